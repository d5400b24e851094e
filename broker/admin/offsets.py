"""`cometmq.v1.Admin`, consumer offsets: set a group to a time, an offset or an end of a topic.

Promises: the answer gives each queue's offset before and after, and with `dry_run` the offset it
would get. The next receive starts there; messages in flight are dropped from the pop state, a
locked FIFO queue is unlocked, and the journal records it (docs/formats/broker-semantics.md, section
2.5). Retry topics keep their offsets unless `skip_retries` is set: a reset loses no message that
the request does not name. For a group of lite topics, the topic is their parent: every lite topic
that `lite_topics` matches is a queue of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from ...proto import v1, v2
from ...proto.errors import WireError
from ..base.slices import Slices
from ..maintenance.progress import NOT_CONSUMED
from ..messages.validation import check_group, check_topic
from ..metadata.tables import Topic
from ..names.lite import bound_topic, is_lite_group, lite_topics
from ..names.retry import queue_topics

if TYPE_CHECKING:
    from ...front.clock import Clock
    from ...front.context import RequestContext
    from ...store.message_store import MessageStore
    from ..base.leadership import Leadership
    from ..maintenance.progress import ConsumerProgress
    from ..metadata.tables import Metadata
    from ..offsets.consumer_offsets import ConsumerOffsets
    from ..offsets.resets import OffsetResets
    from ..pop.receive import PopService
    from ..visible.dispatch_pump import DispatchPump

#: As a timestamp: the end of the queue, as in Apache's tools.
_LATEST_TIME = -1


class OffsetAdmin:
    """Handler of ResetOffsets."""

    def __init__(
        self,
        *,
        clock: Clock,
        metadata: Metadata,
        store: MessageStore,
        offsets: ConsumerOffsets,
        leadership: Leadership,
        pump: DispatchPump,
        pop: PopService,
        progress: ConsumerProgress,
        resets: OffsetResets,
    ) -> None:
        self._clock = clock
        self._metadata = metadata
        self._store = store
        self._offsets = offsets
        self._leadership = leadership
        self._pump = pump
        self._pop = pop
        self._progress = progress
        self._resets = resets

    async def reset(
        self, request: v1.ResetOffsetsRequest, ctx: RequestContext
    ) -> v1.ResetOffsetsResponse:
        """Set the offsets of a group on a topic."""
        check_topic(request.topic)
        check_group(request.group)
        topic, group = self._metadata.topic(request.topic), self._metadata.group(request.group)
        if topic is None:
            raise WireError(v2.TOPIC_NOT_FOUND, f"topic {request.topic} does not exist")
        if group is None:
            raise WireError(
                v2.CONSUMER_GROUP_NOT_FOUND, f"consumer group {request.group} does not exist"
            )
        self._pump.catch_up()
        slices = Slices(self._clock)
        changes = []
        is_lite = is_lite_group(self._metadata, group.name)
        wanted = self._lite_changes(request) if is_lite else self._changes(request, topic)
        for change in chain(wanted, self._skipped_retries(request)):
            changes.append(change)
            await slices.pause()
        if not request.dry_run:
            if not self._leadership.is_leader:
                raise WireError(v2.HA_NOT_AVAILABLE, "the leader is not reachable: try again")
            for change in changes:
                self._offsets.commit(change.topic, group.name, change.queue_id, change.after)
                self._pop.rewind(change.topic, group.name, change.queue_id, change.after)
                await slices.pause()
            for name in dict.fromkeys(change.topic for change in changes):
                moved = {each.queue_id: each.after for each in changes if each.topic == name}
                self._resets.done(group.name, name, moved)
        return v1.ResetOffsetsResponse(code=v2.OK, message="OK", changes=changes)

    def _lite_changes(self, request: v1.ResetOffsetsRequest) -> Iterator[v1.OffsetChange]:
        """Yield the changes of all lite topics that the request names."""
        parent = bound_topic(self._metadata.group(request.group))
        if parent != request.topic:
            raise _bad(f"group {request.group} consumes the lite topics of {parent}: name {parent}")
        if request.HasField("queue_id"):
            raise _bad("a lite topic has one queue: name lite topics instead of a queue")
        queue = None
        wanted = request.lite_topics or "*"
        for _, queue in lite_topics(self._store.queue_table.lmqs(), parent, wanted):
            yield self._change(request.group, queue, 0, self._target(request, queue, 0))
        if queue is None:
            pattern = f" that matches {request.lite_topics}" if request.lite_topics else ""
            raise WireError(v2.TOPIC_NOT_FOUND, f"topic {parent} has no lite topic{pattern}")

    def _changes(self, request: v1.ResetOffsetsRequest, topic: Topic) -> Iterator[v1.OffsetChange]:
        if request.lite_topics:
            raise _bad(f"group {request.group} does not consume lite topics")
        queue_ids = range(topic.read_queues)
        if request.HasField("queue_id"):
            if request.queue_id not in queue_ids:
                raise _bad(f"topic {topic.name} has no queue {request.queue_id}")
            queue_ids = range(request.queue_id, request.queue_id + 1)
        for queue_id in queue_ids:
            target = self._target(request, topic.name, queue_id)
            yield self._change(request.group, topic.name, queue_id, target)

    def _target(self, request: v1.ResetOffsetsRequest, topic: str, queue_id: int) -> int:
        store = self._store
        first, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        position = request.WhichOneof("position")
        if position == "offset":
            if not first <= request.offset <= end:
                raise WireError(
                    v2.ILLEGAL_OFFSET,
                    f"queue {queue_id} of {topic} holds offsets {first} to {end}, "
                    f"not {request.offset}",
                )
            return request.offset
        if position == "timestamp_ms":
            if request.timestamp_ms < _LATEST_TIME:
                raise _bad(f"{request.timestamp_ms} is not a timestamp")
            if request.timestamp_ms != _LATEST_TIME:
                return store.reader.search_offset(topic, queue_id, request.timestamp_ms)
            return end
        if request.edge == v1.ResetOffsetsRequest.EARLIEST:
            return first
        if request.edge == v1.ResetOffsetsRequest.LATEST:
            return end
        raise _bad("name a target: a timestamp, an offset, earliest or latest")

    def _skipped_retries(self, request: v1.ResetOffsetsRequest) -> Iterator[v1.OffsetChange]:
        if not request.skip_retries:
            return
        for name in queue_topics(request.topic, request.group)[1:]:
            known = self._metadata.topic(name)
            for queue_id in range(known.read_queues if known is not None else 0):
                end = self._store.max_offset(name, queue_id)
                yield self._change(request.group, name, queue_id, end)

    def _change(self, group: str, topic: str, queue_id: int, after: int) -> v1.OffsetChange:
        before = self._offsets.get(topic, group, queue_id)
        before = NOT_CONSUMED if before is None else before
        row = self._progress.queue_row(topic, group, queue_id, before)
        return v1.OffsetChange(
            topic=topic,
            queue_id=queue_id,
            before=before,
            after=after,
            min_offset=row.min_offset,
            max_offset=row.max_offset,
            in_flight=row.in_flight,
            broker=row.broker,
        )


def _bad(sentence: str) -> WireError:
    return WireError(v2.BAD_REQUEST, sentence)
