"""`cometmq.v1.Admin`, topics: create, alter, delete, list, describe.

Promises: settings that a request does not name keep their value; creating a topic again with the
same settings changes nothing; read queues are removed only when all their messages are consumed (or
the request accepts the loss); system topics are refused (docs/formats/broker-semantics.md, sections
8.1-8.3 and 8.7). A deletion removes the groups' offsets on the topic and their retry topics. The
messages stay in the log until retention deletes them, so a topic that is created again starts
behind them.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...proto import v1, v2
from ...proto.errors import WireError
from ..base.slices import Slices
from ..maintenance.removal import retry_topics_of_topic
from ..messages.validation import MIXED, check_classic_topic
from ..metadata.codec import topic_message
from ..metadata.tables import (
    PERM_DEFAULT,
    PERM_WRITE,
    TYPE_NAMES,
    Topic,
    is_internal_topic,
    type_name,
)
from ..names.lite import bound_topic, check_rows, is_parent, lite_topics
from .attributes import MESSAGE_TYPE, TOPIC_RULES, changed
from .pages import names_behind, size_of

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ...store.message_store import MessageStore
    from ..base.runtime import Runtime
    from ..maintenance.progress import ConsumerProgress
    from ..maintenance.status import BrokerStatus
    from ..metadata.changes import MetadataChanges
    from ..metadata.tables import Metadata
    from ..offsets.consumer_offsets import ConsumerOffsets
    from ..visible.dispatch_pump import DispatchPump
    from .left_behind import LeftBehind
    from .waiting import WaitingMessages

QUEUES_MAX = 1_024
_KNOWN_TYPES = frozenset(TYPE_NAMES.values())


class TopicAdmin:
    """Handlers for topics."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        metadata: Metadata,
        changes: MetadataChanges,
        offsets: ConsumerOffsets,
        pump: DispatchPump,
        progress: ConsumerProgress,
        status: BrokerStatus,
        waiting: WaitingMessages,
        left_behind: LeftBehind,
    ) -> None:
        config = self._config = runtime.config
        self._clock = runtime.clock
        self._store = store
        self._metadata = metadata
        self._changes = changes
        self._offsets = offsets
        self._pump = pump
        self._progress = progress
        self._status = status
        self._waiting = waiting
        self._left_behind = left_behind
        # Apache's broker creates system topics with these names.
        self._own_names = frozenset(
            (
                config.broker_cluster_name,
                config.broker_name,
                f"{config.broker_cluster_name}_REPLY_TOPIC",
            )
        )

    async def create(
        self, request: v1.CreateTopicRequest, ctx: RequestContext
    ) -> v1.CreateTopicResponse:
        """Create a topic, or change it to the requested settings."""
        self._check_name(request.name)
        metadata = self._metadata
        known = metadata.topic(request.name)
        if known is None and request.must_exist:
            raise _unknown(request.name)
        topic = self._wanted(request, known)
        if known is not None and is_parent(topic) != is_parent(known):
            await self._check_no_messages(known)
            known = metadata.topic(request.name)
            topic = self._wanted(request, known)
        is_new, differs = known is None, topic != known
        answer = v1.CreateTopicResponse(
            code=v2.OK,
            message="OK",
            topic=topic_message(topic),
            created=is_new,
            altered=differs and not is_new,
        )
        if not differs:
            return answer
        metadata.check_topic_limit(topic.name)
        self._changes.check_writable()
        if request.dry_run:
            return answer
        write = partial(self._changes.log.write_topic, topic)
        if not is_new:
            return await self._changes.when_durable(write(), answer)
        system = is_internal_topic(topic.name)
        future = self._changes.create(write, answer, what="topic", system=system)
        # It may start behind a deleted topic of the same name.
        answer.topic.CopyFrom(topic_message(topic))
        return await future

    def set_drained(
        self, request: v1.SetDrainedRequest, ctx: RequestContext
    ) -> asyncio.Future[v1.SetDrainedResponse] | v1.SetDrainedResponse:
        """Begin or end that no topic becomes writable; existing topics keep their permission."""
        answer = v1.SetDrainedResponse(code=v2.OK, message="OK")
        if request.drained == self._metadata.drained:
            return answer
        self._changes.check_writable()
        answer.altered = True
        return self._changes.when_durable(self._changes.log.write_drained(request.drained), answer)

    async def delete(
        self, request: v1.DeleteTopicRequest, ctx: RequestContext
    ) -> v1.DeleteTopicResponse:
        """Delete a topic, its retry topics and its offsets. What waits for it elsewhere is dropped
        when its time comes, and never reaches a new topic of the name.

        The topic's own record is written last, so that an interrupted deletion can be repeated.
        """
        self._check_name(request.name)
        if self._metadata.topic(request.name) is None:
            raise _unknown(request.name)
        self._pump.catch_up()  # what was acknowledged waits for its time only once it is dispatched
        in_flight = await self._in_flight(request.name)
        waiting = await self._waiting.count((request.name,))
        left = await self._left_behind.find(request.name)
        if self._metadata.topic(request.name) is None:
            raise _unknown(request.name)
        self._pump.catch_up()
        groups = {group for topic, group in self._offsets.pairs() if topic == request.name}
        known = groups | self._metadata.groups.keys()
        retries = retry_topics_of_topic(self._metadata, request.name, known)
        slices, held = Slices(self._clock), 0
        for name in (request.name, *retries):
            held += self._progress.held_messages(name)
            await slices.pause()
        answer = v1.DeleteTopicResponse(
            code=v2.OK,
            message="OK",
            topics=[request.name, *retries],
            messages=waiting + left.messages + held,
            groups=sorted(groups),
            in_flight=in_flight,
        )
        if request.dry_run:
            return answer
        if answer.messages and not request.accept_loss:
            raise WireError(
                v2.FORBIDDEN,
                f"topic {request.name} holds {answer.messages} messages, {waiting} of which wait "
                f"for their time or the end of a transaction, and {left.messages} are retries or "
                "dead letters of groups: accept the loss",
            )
        self._changes.check_writable()
        self._left_behind.drop(left)
        for name in retries:
            self._changes.log.delete_topic(name)
            await slices.pause()
        end = self._changes.log.delete_topic(request.name)
        return await self._changes.when_durable(end, answer)

    async def _in_flight(self, topic: str) -> int:
        """Return the number of messages of a topic that groups have in flight."""
        slices = Slices(self._clock)
        found = 0
        for name, group in self._offsets.pairs():
            if name == topic:
                for queue_id, offset in self._offsets.queues(name, group):
                    found += self._progress.queue_row(name, group, queue_id, offset).in_flight
                    await slices.pause()
        return found

    async def list_all(
        self, request: v1.ListTopicsRequest, ctx: RequestContext
    ) -> v1.ListTopicsResponse:
        """A page of the topics of this broker by name."""
        answer = v1.ListTopicsResponse(code=v2.OK, message="OK")
        slices, count = Slices(self._clock), size_of(request.limit)
        for name in names_behind(self._metadata.topics, request.after):
            await slices.pause()
            topic = self._metadata.topics.get(name)
            if topic is None or (not request.include_system and self._is_internal(name)):
                continue
            if len(answer.topics) >= count:
                answer.more = True
                break
            answer.topics.append(topic_message(topic))
            if request.with_traffic:
                answer.traffic.append(await self._status.topic_traffic(topic))
        return answer

    async def describe(
        self, request: v1.DescribeTopicRequest, ctx: RequestContext
    ) -> v1.DescribeTopicResponse:
        """One topic and its queues."""
        topic = self._metadata.topic(request.name)
        if topic is None:
            raise _unknown(request.name)
        return v1.DescribeTopicResponse(
            code=v2.OK,
            message="OK",
            topic=topic_message(topic),
            queues=await self._status.queue_status(topic),
            lite_topics=await self._lite_topics(topic.name, request.lite_topics),
        )

    async def _lite_topics(self, parent: str, wanted: str) -> list[v1.LiteTopicStatus]:
        """Return the lite topics of a parent that a glob matches, with the groups that read them.
        Raises WireError."""
        found: list[v1.LiteTopicStatus] = []
        rows = 0
        groups = [one for one in self._metadata.groups.values() if bound_topic(one) == parent]
        slices = Slices(self._clock)
        for name, queue in lite_topics(self._store.queue_table.lmqs(), parent, wanted):
            row = self._status.lite_topic(name, queue)
            row.groups.extend(self._progress.of_lite_topic(queue, groups))
            found.append(row)
            rows += len(row.groups)
            check_rows(rows)
            await slices.pause()
        return sorted(found, key=lambda row: row.name)

    def _check_name(self, name: str) -> None:
        check_classic_topic(name)
        if name in self._own_names:
            raise WireError(v2.ILLEGAL_TOPIC, f"{name} is a system topic")

    def _is_internal(self, name: str) -> bool:
        return name in self._own_names or is_internal_topic(name)

    def _wanted(self, request: v1.CreateTopicRequest, known: Topic | None) -> Topic:
        """Return the topic that the request asks for."""
        read, write = self._queue_counts(request, known)
        if request.perm & ~PERM_DEFAULT:
            raise _bad("perm must be 0 (none), 2 (write), 4 (read) or 6 (both)")
        perm = known.perm if known else PERM_DEFAULT
        if request.HasField("perm"):
            perm = request.perm
        if self._metadata.drained and not is_internal_topic(request.name):
            perm &= ~PERM_WRITE
        kind, attributes = self._type_and_attributes(request, known)
        if known is None:
            return Topic(request.name, read, write, perm, kind, attributes)
        if read < known.read_queues and not request.accept_loss:
            self._check_unread(known, read)
        return replace(
            known,
            read_queues=read,
            write_queues=write,
            perm=perm,
            message_type=kind,
            attributes=attributes,
        )

    def _queue_counts(self, request: v1.CreateTopicRequest, known: Topic | None) -> tuple[int, int]:
        default = self._config.default_topic_queue_nums
        read, write = (known.read_queues, known.write_queues) if known else (default, default)
        for count in (request.queues, request.read_queues, request.write_queues):
            if not 0 <= count <= QUEUES_MAX:
                raise _bad(f"a topic has 1 to {QUEUES_MAX} queues")
        if request.queues:
            if request.read_queues or request.write_queues:
                raise _bad("queues sets both counts: leave out read_queues and write_queues")
            if known is not None and request.queues < max(read, write):
                raise _bad(
                    f"topic {known.name} has {max(read, write)} queues: a topic cannot lose queues "
                    "in one step. Lower its write queues first, and its read queues once they are "
                    "consumed"
                )
            return request.queues, request.queues
        return request.read_queues or read, request.write_queues or write

    def _type_and_attributes(
        self, request: v1.CreateTopicRequest, known: Topic | None
    ) -> tuple[int, dict[str, str]]:
        before = known.attributes if known else {}
        attributes = changed(TOPIC_RULES, before, request.attributes, new=known is None)
        kind = known.message_type if known else int(v2.NORMAL)
        if attributes.get(MESSAGE_TYPE) != before.get(MESSAGE_TYPE):
            kind = TYPE_NAMES.get(attributes.get(MESSAGE_TYPE, ""), v2.NORMAL)
            if request.message_type not in (0, kind):
                raise _bad(f"conflicting message types: +{MESSAGE_TYPE} and message_type")
        elif request.message_type:
            kind = request.message_type
            if kind not in _KNOWN_TYPES:
                raise _bad(f"unknown message type {kind}")
        if kind == MIXED and not self._config.enable_mixed_message_type:
            raise _bad("topics of type MIXED are disabled: enableMixedMessageType")
        if known is None or kind != known.message_type:
            attributes[MESSAGE_TYPE] = type_name(kind)
        return kind, attributes

    async def _check_no_messages(self, topic: Topic) -> None:
        """Refuse a type whose consumers read other queues, while the topic holds messages or some
        wait for it."""
        self._pump.catch_up()
        held = self._progress.held_messages(topic.name) + await self._waiting.count([topic.name])
        if held:
            raise WireError(
                v2.FORBIDDEN,
                f"topic {topic.name} holds {held} messages, and consumers of lite topics read "
                "other queues: create another topic",
            )

    def _check_unread(self, topic: Topic, read_queues: int) -> None:
        """Refuse to remove read queues with messages that a group has not consumed."""
        self._pump.catch_up()
        consumed: dict[int, int] = {}
        for name, _, queue_id, offset in self._offsets:
            if name == topic.name:
                consumed[queue_id] = min(offset, consumed.get(queue_id, offset))
        for queue_id in range(read_queues, topic.read_queues):
            end = self._store.max_offset(topic.name, queue_id)
            first = max(self._store.min_offset(topic.name, queue_id), consumed.get(queue_id, 0))
            if first < end:
                raise WireError(
                    v2.FORBIDDEN,
                    f"queue {queue_id} of {topic.name} holds {end - first} messages that are not "
                    "consumed: wait until they are, or accept the loss",
                )


def _unknown(name: str) -> WireError:
    return WireError(v2.TOPIC_NOT_FOUND, f"topic {name} does not exist")


def _bad(sentence: str) -> WireError:
    return WireError(v2.BAD_REQUEST, sentence)
