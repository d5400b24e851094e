"""Pull service: PullMessage, UpdateOffset, GetOffset and QueryOffset, reading a queue by offsets.

Source: docs/formats/grpc-api.md, section 5.12; docs/formats/broker-semantics.md, sections 2.2-2.4.
Promises: a pull at the end of a queue waits as a receive does and is answered as soon as a matching
message arrives; an offset outside of the queue is ILLEGAL_OFFSET with the nearest valid offset;
filtered messages are skipped, and the next offset tells how far. Pulled messages have no receipt
handle and change no state. A pull from an offset below 0 requests the start offset, as broadcasting
clients with their own offsets do: the answer is ILLEGAL_OFFSET with that offset
(`broadcast.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from ...proto import v2
from ...proto.errors import WireError
from ...store.format.record import decode_delivery
from ...store.format.results import GetStatus
from ..messages.convert import sized_item, topic_field
from ..messages.filters import Filter, parse_filter
from ..messages.runs import Room, RunConverter
from ..messages.validation import (
    MAX_BATCH,
    TOOLS_GROUP,
    check_group,
    check_topic,
    duration_ms,
    polling_ms,
    require_client_id,
)
from ..messages.wire import STATUS_OK, field, status, varint
from ..metadata.incarnations import has_origins, without_left_overs
from ..metadata.tables import Group
from ..names.retry import is_retry_topic, without_foreign
from ..pop.request import consuming_group, readable_topic
from ..pop.turn import ANSWER_BYTES_MAX, matches
from .broadcast import COMMIT_MS, BroadcastOffsets, broadcast_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...front.context import RequestContext
    from ...store.format.results import GetResult
    from ...store.message_store import MessageStore
    from ..base.leadership import Leadership
    from ..base.runtime import Runtime
    from ..clients.registry import ClientRegistry
    from ..metadata.tables import Metadata
    from ..offsets.consumer_offsets import ConsumerOffsets
    from ..pop.receive import PopService
    from ..visible.dispatch_pump import DispatchPump

_READS_MAX = 16
#: Time of the loop for one request.
_READ_NS = 10_000_000
#: Time of the loop in one turn.
_SLICE_NS = 4_000_000
_NS_PER_MS = 1_000_000
_NOTHING_NEW = "no new message"
_OK_ITEM = field(b"\x0a", STATUS_OK)
_QueueRequest = v2.PullMessageRequest | v2.UpdateOffsetRequest | v2.GetOffsetRequest


class AnswerForm(Protocol):
    """How a protocol answers a pull."""

    def outside(self, pull: Pull, result: GetResult) -> Any:
        """Return the answer to an offset outside of the queue."""

    def found(self, pull: Pull, result: GetResult) -> Any:
        """Return the answer with the matching records of a read; None if there are none."""

    def empty(self, pull: Pull, sentence: str) -> Any:
        """Return the answer without records; the client continues at `pull.offset`."""


class Pull(Struct):
    """One pull that passed its checks."""

    topic: str
    queue_id: int
    offset: int
    batch: int
    tags: Filter | None
    form: AnswerForm
    #: The group that reads; "" for tools, which read everything.
    group: str
    bytes_max: int = ANSWER_BYTES_MAX


class _Waiter(Struct):
    pull: Pull
    answer: asyncio.Future[Any]
    timer: asyncio.TimerHandle


class PullService:
    """Handlers of pulls and offsets."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        metadata: Metadata,
        clients: ClientRegistry,
        offsets: ConsumerOffsets,
        leadership: Leadership,
        pump: DispatchPump,
        pop: PopService,
        runs: RunConverter,
    ) -> None:
        self._runs = runs
        self._broker_name = runtime.config.broker_name
        self._clock = runtime.clock
        self._counters = runtime.counters
        self._loop = runtime.loop
        self._store = store
        self._metadata = metadata
        self._clients = clients
        self._offsets = offsets
        self._leadership = leadership
        self._pump = pump
        self._pop = pop
        self._limit = pop.limit
        self._waiters: dict[tuple[str, int], dict[int, _Waiter]] = {}
        self._count = 0
        self._waiting = 0
        #: Waiters that are not processed yet, by queue with new messages.
        self._woken: dict[tuple[str, int], Iterator[tuple[int, _Waiter]]] = {}
        self._serving: asyncio.Handle | None = None
        #: When the time of pulls in this turn of the event loop ends; 0: none was read in it.
        self._turn_end_ns = 0
        #: Pulls that came when it was over, with their polling times.
        self._late: deque[tuple[Pull, int, asyncio.Future[Any]]] = deque()
        self._broadcast = BroadcastOffsets()
        self._commit_timer: asyncio.TimerHandle | None = None

    def pull_message(
        self, request: v2.PullMessageRequest, ctx: RequestContext
    ) -> list[bytes] | asyncio.Future[list[bytes]]:
        """Handler of PullMessage."""
        require_client_id(ctx)
        now_ns = self._clock.steady_ns()
        self._clients.seen(ctx, now_ns)
        self._pump.catch_up()
        asked = None
        if request.HasField("long_polling_timeout"):
            asked = duration_ms(request.long_polling_timeout)
        poll_ms = polling_ms(asked, ctx.remaining_ms(now_ns))
        is_tool = request.group.name == TOOLS_GROUP
        topic, queue_id = self._queue(request, check_groups=not is_tool)
        name = request.group.name
        count = partial(self._counters.add_received, topic, name, is_retry_topic(topic))
        pull = Pull(
            topic,
            queue_id,
            request.offset,
            min(request.batch_size, MAX_BATCH) if request.batch_size > 0 else 1,
            parse_filter(request.filter_expression),
            _MessageForm(topic_field(request.message_queue.topic), count, self._runs),
            "" if is_tool else name,
        )
        group = Group(name) if is_tool else consuming_group(self._metadata, name)
        if not is_tool:
            self._clients.consumes(ctx.client_id, name)
        self._follow_broadcast(pull, group, ctx.client_id, now_ns // _NS_PER_MS)
        if pull.offset < 0:
            return self._start_offset(pull, group.name)
        answer: list[bytes] | asyncio.Future[list[bytes]] = self.read_or_wait(pull, poll_ms)
        return answer

    def read_or_wait(self, pull: Pull, poll_ms: int) -> Any:
        """Return the answer of a pull, or a future of it if nothing matches yet. Raises WireError.

        The caller has called `DispatchPump.catch_up`.
        """
        if not self._turn_end_ns:
            self._turn_end_ns = self._clock.steady_ns() + _SLICE_NS
            self._loop.call_soon(self._next_turn)
        elif self._late or self._clock.steady_ns() >= self._turn_end_ns:
            self._limit.check(self._waiting + len(self._late))
            answer = self._loop.create_future()
            self._late.append((pull, poll_ms, answer))
            return answer
        return self._read_or_park(pull, poll_ms)

    def _read_or_park(
        self, pull: Pull, poll_ms: int, late: asyncio.Future[Any] | None = None
    ) -> Any:
        """Return the answer, or the future of a pull that waits: `late`, if given."""
        answer = self._read(pull)
        if answer is not None:
            return answer
        if poll_ms <= 0:
            return pull.form.empty(pull, _NOTHING_NEW)
        self._limit.check(self._waiting)
        return self._park(pull, poll_ms, late or self._loop.create_future())

    def _next_turn(self) -> None:
        """Read for the pulls that came late, in their order, for one turn of the event loop: pulls
        of large messages take 10 ms each, and other calls do not wait for all of them."""
        self._turn_end_ns = 0
        if not self._late:
            return
        stop_ns = self._turn_end_ns = self._clock.steady_ns() + _SLICE_NS
        self._loop.call_soon(self._next_turn)
        while self._late:
            pull, poll_ms, answer = self._late.popleft()
            if not answer.done():
                self._answer_late(pull, poll_ms, answer)
                if self._clock.steady_ns() >= stop_ns:
                    break

    def _answer_late(self, pull: Pull, poll_ms: int, answer: asyncio.Future[Any]) -> None:
        try:
            found = self._read_or_park(pull, poll_ms, answer)
        except Exception as error:  # of one call: the door logs it and answers the client
            answer.set_exception(error)
        else:
            if found is not answer:
                answer.set_result(found)

    def update_offset(
        self, request: v2.UpdateOffsetRequest, ctx: RequestContext
    ) -> v2.UpdateOffsetResponse:
        """Handler of UpdateOffset."""
        require_client_id(ctx)
        self._pump.catch_up()
        topic, queue_id = self._queue(request, check_groups=True)
        group = request.group.name
        if self._metadata.group(group) is None:
            raise WireError(v2.CONSUMER_GROUP_NOT_FOUND, f"consumer group {group} does not exist")
        end = self._store.max_offset(topic, queue_id)
        if not 0 <= request.offset <= end:
            raise WireError(v2.ILLEGAL_OFFSET, f"the offset is outside of the queue: 0 to {end}")
        self._offsets.commit(topic, group, queue_id, request.offset)
        self._pop.rewind(topic, group, queue_id, request.offset)
        return v2.UpdateOffsetResponse(status=_ok())

    def get_offset(self, request: v2.GetOffsetRequest, ctx: RequestContext) -> v2.GetOffsetResponse:
        """Handler of GetOffset."""
        require_client_id(ctx)
        topic, queue_id = self._queue(request, check_groups=True)
        offset = self._offsets.get(topic, request.group.name, queue_id)
        if offset is None:
            raise WireError(v2.OFFSET_NOT_FOUND, "the group has committed no offset of this queue")
        return v2.GetOffsetResponse(status=_ok(), offset=offset)

    def query_offset(
        self, request: v2.QueryOffsetRequest, ctx: RequestContext
    ) -> v2.QueryOffsetResponse:
        """Handler of QueryOffset."""
        require_client_id(ctx)
        self._pump.catch_up()
        topic, queue_id = self._queue(request, check_groups=False)
        store = self._store
        policy = request.query_offset_policy
        if policy == v2.BEGINNING:
            offset = store.min_offset(topic, queue_id)
        elif policy == v2.END:
            offset = store.max_offset(topic, queue_id)
        elif policy == v2.TIMESTAMP:
            if not request.HasField("timestamp"):
                raise WireError(v2.BAD_REQUEST, "timestamp is required for this policy")
            time_ms = request.timestamp.seconds * 1000 + request.timestamp.nanos // 1_000_000
            offset = store.reader.search_offset(topic, queue_id, time_ms)
        else:
            raise WireError(v2.BAD_REQUEST, f"unknown offset policy {int(policy)}")
        return v2.QueryOffsetResponse(status=_ok(), offset=offset)

    def forget(self, topic: str | None, group: str | None) -> None:
        """A topic or group was deleted: its broadcasting clients commit no offsets any more, and
        those of a new one do not begin at theirs."""
        self._broadcast.forget(topic, group)
        if group is not None:
            for of_topic, name in self._offsets.pairs():
                if name == broadcast_group(group):
                    self._offsets.forget(of_topic, name)

    def notify(self, topic: str, queue_id: int) -> None:
        """Wake the pulls that wait for new messages of a queue."""
        waiters = self._waiters.get((topic, queue_id))
        if waiters:
            # Including those that were processed for an earlier arrival.
            self._woken[topic, queue_id] = iter([*waiters.items()])
            if self._serving is None:
                self._serving = self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        """Answer woken pulls in slices; one queue may have thousands."""
        self._serving = None
        clock = self._clock
        stop_ns = clock.steady_ns() + _SLICE_NS
        while self._woken:
            queue, waiters = next(iter(self._woken.items()))
            for key, waiter in waiters:
                self._serve_one(key, waiter)
                if clock.steady_ns() >= stop_ns:
                    self._serving = self._loop.call_soon(self._serve)
                    return
            del self._woken[queue]

    def _serve_one(self, key: int, waiter: _Waiter) -> None:
        if waiter.answer.done():
            return
        try:
            answer = self._read(waiter.pull)
        except Exception as error:  # of one call: the door logs it and answers the client
            waiter.answer.set_exception(error)
            answer = []
        if answer is not None:
            self._finish(key, waiter, answer)

    def close(self) -> None:
        """Answer all waiting pulls."""
        if self._commit_timer is not None:
            self._commit_broadcast()
        if self._commit_timer is not None:
            self._commit_timer.cancel()
            self._commit_timer = None
        self.end_polls()

    def end_polls(self) -> None:
        """Answer all waiting pulls: their clients pull again."""
        while self._late:
            pull, _, answer = self._late.popleft()
            if not answer.done():
                answer.set_result(pull.form.empty(pull, _NOTHING_NEW))
        for waiters in list(self._waiters.values()):
            for key, waiter in list(waiters.items()):
                self._finish(key, waiter, waiter.pull.form.empty(waiter.pull, _NOTHING_NEW))

    def _queue(
        self, request: _QueueRequest | v2.QueryOffsetRequest, check_groups: bool
    ) -> tuple[str, int]:
        """Return topic and queue id. Raises WireError."""
        queue = request.message_queue
        check_topic(queue.topic.name)
        if queue.broker.name not in ("", self._broker_name):
            # Its offsets are those of another log.
            raise WireError(
                v2.BAD_REQUEST,
                f"broker group {queue.broker.name[:255]} is not known here; this is "
                f"{self._broker_name}",
            )
        if check_groups:
            assert not isinstance(request, v2.QueryOffsetRequest)
            check_group(request.group.name)
        topic = readable_topic(self._metadata, queue.topic.name)
        if not 0 <= queue.id < topic.read_queues:
            raise WireError(v2.BAD_REQUEST, f"topic {topic.name} has no queue {queue.id}")
        return topic.name, queue.id

    def _follow_broadcast(self, pull: Pull, group: Group, client_id: str, now_ms: int) -> None:
        """Record the offset of a broadcasting client; an offset below 0 marks its start."""
        if pull.offset >= 0:
            if self._broadcast:
                self._broadcast.pulled(
                    pull.topic,
                    group.name,
                    client_id,
                    queue_id=pull.queue_id,
                    offset=pull.offset,
                    now_ms=now_ms,
                )
            return
        if group.extra.get("consumeBroadcastEnable") is False:
            raise WireError(v2.FORBIDDEN, f"consumer group {group.name} does not broadcast")
        self._broadcast.begin(pull.topic, group.name, client_id, now_ms)
        if self._commit_timer is None:
            self._commit_timer = self._loop.call_later(COMMIT_MS / 1000, self._commit_broadcast)

    def _commit_broadcast(self) -> None:
        self._commit_timer = None
        for topic, group, queue_id, offset in self._broadcast.slowest(
            self._clock.steady_ns() // _NS_PER_MS
        ):
            if self._leadership.is_leader:
                self._offsets.commit(topic, broadcast_group(group), queue_id, offset)
        if self._broadcast:
            self._commit_timer = self._loop.call_later(COMMIT_MS / 1000, self._commit_broadcast)

    def _start_offset(self, pull: Pull, group: str) -> list[bytes]:
        """Return the start offset of a client without one: the slowest client's of its group, if
        any."""
        offsets, store = self._offsets, self._store
        known = offsets.get(pull.topic, broadcast_group(group), pull.queue_id)
        if known is None:
            known = offsets.get(pull.topic, group, pull.queue_id)
        first = store.min_offset(pull.topic, pull.queue_id)
        last = store.max_offset(pull.topic, pull.queue_id)
        return [
            field(b"\x0a", status(v2.ILLEGAL_OFFSET, "start at the offset in this answer")),
            _next_offset(max(first, min(known or 0, last))),
        ]

    def _read(self, pull: Pull) -> Any:
        """Return the answer; None: wait at `pull.offset`, which may have advanced."""
        stop_ns = self._clock.steady_ns() + _READ_NS
        for _ in range(_READS_MAX):
            wanted = pull.tags
            codes = None if wanted is None else wanted.codes
            # If only the records decide the match, reading them one at a time would cost a read
            # each.
            count = pull.batch if wanted is None or codes is not None else MAX_BATCH
            result = self._store.get(
                pull.topic, pull.queue_id, pull.offset, count, pull.bytes_max, tag_codes=codes
            )
            if pull.offset < result.min_offset or pull.offset > result.max_offset:
                return pull.form.outside(pull, result)
            if has_origins(pull.topic):
                records = without_left_overs(self._metadata, pull.topic, result.records)
                if pull.group:
                    records = without_foreign(pull.topic, pull.group, records)
                result = replace(result, records=records)
            answer = pull.form.found(pull, result)
            if answer is not None:
                return answer
            if result.next_offset <= pull.offset:
                return None
            pull.offset = result.next_offset
            if self._clock.steady_ns() >= stop_ns:
                break
        # Many messages were filtered out: the client continues at the offset that was reached.
        return pull.form.empty(pull, "no match message")

    def _park(self, pull: Pull, poll_ms: int, answer: asyncio.Future[Any]) -> asyncio.Future[Any]:
        self._count += 1
        key = self._count
        timer = self._loop.call_later(poll_ms / 1000, self._time_over, key, pull)
        waiter = _Waiter(pull, answer, timer)
        self._waiters.setdefault((pull.topic, pull.queue_id), {})[key] = waiter
        self._waiting += 1
        answer.add_done_callback(partial(self._left, key, waiter))
        return answer

    def _time_over(self, key: int, pull: Pull) -> None:
        waiter = self._waiters.get((pull.topic, pull.queue_id), {}).get(key)
        if waiter is not None:
            self._finish(key, waiter, pull.form.empty(pull, _NOTHING_NEW))

    def _left(self, key: int, waiter: _Waiter, answer: asyncio.Future[Any]) -> None:
        if answer.cancelled():
            self._finish(key, waiter, [])

    def _finish(self, key: int, waiter: _Waiter, answer: Any) -> None:
        """Remove a waiter, and answer it unless its client has left."""
        queue = (waiter.pull.topic, waiter.pull.queue_id)
        waiters = self._waiters.get(queue, {})
        if waiters.pop(key, None) is None:
            return
        if not waiters:
            del self._waiters[queue]
        self._waiting -= 1
        waiter.timer.cancel()
        if not waiter.answer.done():
            waiter.answer.set_result(answer)


class _MessageForm(Struct, frozen=True):
    """Answers of PullMessage: a stream of messages between a status and the next offset."""

    topic_bytes: bytes
    #: Counts the messages of an answer and their bytes.
    count: Callable[[int, int], None]
    runs: RunConverter

    def outside(self, pull: Pull, result: GetResult) -> list[bytes]:
        return [
            field(b"\x0a", status(v2.ILLEGAL_OFFSET, "the offset is outside of the queue")),
            _next_offset(max(result.min_offset, min(pull.offset, result.max_offset))),
        ]

    def found(self, pull: Pull, result: GetResult) -> list[bytes] | None:
        """Return the matching messages: at most a batch, and ending with the one that reaches the
        limit of an answer, which counts decompressed bodies.
        """
        records = result.records if result.status is GetStatus.FOUND else []
        items: list[bytes] = []
        size = at = 0
        while at < len(records) and len(items) < pull.batch and size < ANSWER_BYTES_MAX:
            room = Room(pull.batch - len(items), ANSWER_BYTES_MAX - size)
            run = self.runs.run(self.topic_bytes, records, at, room, wanted=pull.tags)
            items += run.items
            size += run.size
            if run.end == at:
                record = decode_delivery(records[at].data)
                if matches(record, pull.tags):
                    item, filled = sized_item(self.topic_bytes, record, None)
                    items.append(item)
                    size += filled
            at = max(run.end, at + 1)
        if not items:
            return None
        self.count(len(items), size)
        following = records[at].queue_offset if at < len(records) else result.next_offset
        return [_OK_ITEM, *items, _next_offset(following)]

    def empty(self, pull: Pull, sentence: str) -> list[bytes]:
        return [
            field(b"\x0a", status(v2.MESSAGE_NOT_FOUND, sentence)),
            _next_offset(pull.offset),
        ]


def _ok() -> v2.Status:
    return v2.Status(code=v2.OK, message="OK")


def _next_offset(offset: int) -> bytes:
    """Encode the field `next_offset`, a member of a oneof: written even if it is 0."""
    return b"\x18" + varint(offset)
