"""SendMessage: checks, queue choice, and one append for everything that was collected.

Promises: a plain function that never waits; what it accepts is appended in the order in which it
came, by one `append_many` a loop turn, or every one to two milliseconds while many send at once through
a door that hands requests over one by one (decision 2);
several messages of a request get one entry each, in their order, and an answer that fails as a whole
has no entries (gRPC API, sections 5.5 and 10.2). An OK answer means what the durability table says
(design, section 4). A message is judged by its properties, not by the type that the client declares.
What waits is bounded: beyond it TOO_MANY_REQUESTS.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeAlias

from ..front.later import Later
from ..proto import v2
from ..proto.errors import WireError
from ..store.errors import StoreError
from ..store.record import Message, pack_host
from ..store.results import AppendResult, PutStatus
from .convert import SYS_COMPRESSED
from .send_plain import (
    EXEMPT_PREFIXES,
    Lane,
    Origin,
    Prepared,
    fifo_queue,
    lane_of,
    prepare_plain,
)
from .stored_properties import encode_sent
from .validation import (
    Draft,
    check_message_type,
    check_messages,
    check_topic,
    require_client_id,
)
from .wire import STATUS_OK, field, receipt, status

if TYPE_CHECKING:
    from ..front.context import RequestContext
    from .metadata import Topic
    from .node import Node

log = logging.getLogger(__name__)

# Sends that were collected wait in memory; requests are bounded by the configuration, bytes by this.
PENDING_BYTES_MAX = 256 << 20
# Many senders: wait a moment for company instead of a loop turn. A request alone costs three times as
# much as one of five (the interpreter's code and data have left the caches in between), and while
# requests queue for the processor the moment is not felt. It begins when a turn brings three sends at
# once, which one or two senders never do, and ends when a millisecond brings no second one.
GATHER_FROM = 3
GATHER_ON = 2
GATHER_S = 0.001
# So many in a moment leave enough in flight for a longer one; four senders would only wait in it.
GATHER_LONG_FROM = 5
GATHER_LONG_S = 0.002
_UNKNOWN_HOST = "0.0.0.0"

_ANSWER_OK = field(b"\x0a", STATUS_OK)
_PUT_OK = PutStatus.PUT_OK
_NORMAL = v2.NORMAL
_FAILURES = {
    PutStatus.MESSAGE_ILLEGAL: (
        v2.MESSAGE_BODY_TOO_LARGE,
        "the message is too large for the store",
    ),
    PutStatus.PROPERTIES_SIZE_EXCEEDED: (
        v2.MESSAGE_PROPERTIES_TOO_LARGE,
        "the properties are too large for the store",
    ),
    PutStatus.END_OF_FILE: (v2.INTERNAL_SERVER_ERROR, "the message does not fit a log segment"),
    PutStatus.FLUSH_DISK_TIMEOUT: (
        v2.MASTER_PERSISTENCE_TIMEOUT,
        "not flushed in time: the outcome is unknown",
    ),
    PutStatus.FLUSH_SLAVE_TIMEOUT: (
        v2.SLAVE_PERSISTENCE_TIMEOUT,
        "not replicated in time: the outcome is unknown",
    ),
    PutStatus.OS_PAGE_CACHE_BUSY: (
        v2.TOO_MANY_REQUESTS,
        "the page cache is busy: a write to the log took longer than osPageCacheBusyTimeOutMills",
    ),
}

_Pending: TypeAlias = "tuple[v2.SendMessageRequest, RequestContext, Later]"


_Batch: TypeAlias = "tuple[Later, Prepared]"
"""One request whose messages are ready for the log."""


class Sender:
    """Takes SendMessage requests and the broker's own records to the log."""

    def __init__(self, node: Node) -> None:
        self._node = node
        config = node.config
        self._capacity = config.send_thread_pool_queue_capacity
        self.origin = Origin(
            config.region_id,
            config.broker_cluster_name,
            node.store.config.max_message_size,
            _packed(f"{config.broker_ip1}:{config.grpc_server_port}"),
        )
        self.gathers = True
        """Whether many senders wait for company; not behind a door that hands over in batches."""
        self._pending: list[_Pending] = []
        self._pending_bytes = 0
        self._gather_s = 0.0
        self._busy_ns = node.store.config.os_page_cache_busy_time_out_mills * 1_000_000
        self._busy = False
        """The last write hung: what was sent meanwhile is refused, so that it does not pile up."""
        self._lanes: dict[str, Lane] = {}

    @property
    def store_host(self) -> bytes:
        """Stored with every record; the server corrects it when the port was chosen by the OS."""
        return self.origin.store_host

    @store_host.setter
    def store_host(self, packed: bytes) -> None:
        self.origin.store_host = packed

    def send(self, request: v2.SendMessageRequest, ctx: RequestContext) -> Later:
        """Handler of SendMessage."""
        require_client_id(ctx)
        pending = self._pending
        if len(pending) + len(self._node.durability) >= self._capacity:
            raise WireError(v2.TOO_MANY_REQUESTS, "too many sends wait: flow limit")
        if self._pending_bytes >= PENDING_BYTES_MAX:
            raise WireError(v2.TOO_MANY_REQUESTS, "too many bytes wait for the log: flow limit")
        answer = Later()
        if not pending:
            loop = self._node.loop
            if self._gather_s:
                loop.call_later(self._gather_s, self.append_pending)
            else:
                loop.call_soon(self.append_pending)
        pending.append((request, ctx, answer))
        self._pending_bytes += ctx.request_bytes
        return answer

    def append(self, message: Message) -> AppendResult:
        """Append one record of the broker itself, after what is pending. Raises WireError."""
        self.append_pending()
        try:
            result = self._node.store.append_many([message])[0]
        except (StoreError, OSError) as error:
            raise WireError(v2.INTERNAL_SERVER_ERROR, str(error)) from error
        if result.status is not _PUT_OK:
            raise WireError(*self._failure(result.status))
        self._node.appended()
        return result

    def append_pending(self) -> None:
        """Check and append what was collected, and answer or hand over to the durability gate."""
        pending = self._pending
        if not pending:
            return
        self._pending = []
        self._pending_bytes = 0
        if self.gathers:
            self._gather_s = next_gather_s(self._gather_s, len(pending))
        batches = self._checked(pending)
        self._busy = False
        if not batches:
            return
        if len(batches) == 1:
            everything = batches[0][1].messages
        else:
            everything = [message for _, ready in batches for message in ready.messages]
        begin_ns = self._node.clock.steady_ns()
        try:
            results = self._node.store.append_many(everything)
        except (StoreError, OSError) as error:
            log.error("send.append_failed messages=%d error=%s", len(everything), error)
            for answer, _ in batches:
                _resolve(answer, _failed(v2.INTERNAL_SERVER_ERROR, str(error)))
            return
        self._busy = self._node.clock.steady_ns() - begin_ns >= self._busy_ns
        at = 0
        for answer, ready in batches:
            count = len(ready.ids)
            self._settle(answer, ready, results[at : at + count])
            at += count
        self._node.appended()

    def _checked(self, pending: list[_Pending]) -> list[_Batch]:
        """The requests that may be appended; the others' answers say why not."""
        refusal = self._refusal()
        now_ms = self._node.clock.wall_ms()
        batches = []
        for request, ctx, answer in pending:
            try:
                ready = self._prepared(request.messages, ctx, now_ms)
            except WireError as error:
                # Bytes, not the exception: it would hold this frame, and with it every request of
                # the turn, in a ring with the answer until the garbage collector comes.
                _resolve(answer, _failed(error.code, error.message))
            except Exception as error:  # a bug: the door logs where it is
                if not answer.done():
                    answer.set_exception(error)
            else:
                if refusal is None:
                    batches.append((answer, ready))
                else:
                    _resolve(answer, _failed(refusal.code, refusal.message))
        return batches

    def _prepared(self, sent: Sequence[v2.Message], ctx: RequestContext, now_ms: int) -> Prepared:
        """The messages of one request; most take the short way. Raises WireError."""
        peer = _peer(ctx.peer)
        if sent:
            name = sent[0].topic.name
            check_topic(name)
            topic = self._node.metadata.topics.get(name)
            if topic is not None:
                lane = self._lane(topic)
                plain = prepare_plain(sent, lane, self.origin, peer, now_ms)
                if plain is not None:
                    return plain
        return self._prepare(sent, peer, now_ms)

    def _lane(self, topic: Topic) -> Lane:
        lane = self._lanes.get(topic.name)
        if lane is None or lane.topic is not topic:
            lane = lane_of(topic, self.origin, 0 if lane is None else lane.turn)
            self._lanes[topic.name] = lane
        return lane

    def _prepare(
        self, sent: Sequence[v2.Message], peer: tuple[str, bytes], now_ms: int
    ) -> Prepared:
        drafts = check_messages(sent, now_ms, self.origin.max_body)
        topic = self._topic_for(sent[0].topic.name, drafts, now_ms)
        queue_id = self._lane(topic).next_queue()
        ready = Prepared([], [], topic.name, drafts[0].message_type, 0)
        for draft in drafts:
            if draft.message_group:
                queue_id = fifo_queue(draft.message_group, topic.write_queues)
            ready.messages.append(self._message(draft, topic.name, queue_id, peer))
            ready.ids.append(draft.message_id.encode())
            ready.size += len(draft.body)
        return ready

    def _topic_for(self, name: str, drafts: list[Draft], now_ms: int) -> Topic:
        topic = self._node.metadata.topic(name)
        if topic is None:
            raise WireError(v2.TOPIC_NOT_FOUND, f"topic {name} does not exist")
        if not topic.writable:
            raise WireError(v2.FORBIDDEN, f"no writable queue: topic {name} takes no messages")
        expected = topic.message_type
        if not name.startswith(EXEMPT_PREFIXES):
            check_message_type(drafts, expected)
            if expected == _NORMAL:
                return topic  # so is every draft
        for draft in drafts:
            if draft.message_type not in (v2.NORMAL, v2.FIFO):
                _check_supported(draft, now_ms)
        return topic

    def _refusal(self) -> WireError | None:
        """Why nothing may be appended now; before anything is written."""
        node = self._node
        if not node.is_leader:
            # The access point holds or forwards; a forwarded call that lands here is refused.
            return WireError(v2.HA_NOT_AVAILABLE, "this replica follows: its leader takes writes")
        if not node.store.writable:
            return WireError(v2.INTERNAL_SERVER_ERROR, node.store.refusal)
        if self._busy:
            return WireError(*_FAILURES[PutStatus.OS_PAGE_CACHE_BUSY])
        refusal = node.replication.write_refusal()
        return WireError(v2.HA_NOT_AVAILABLE, refusal) if refusal is not None else None

    def _message(self, draft: Draft, topic: str, queue_id: int, peer: tuple[str, bytes]) -> Message:
        origin = self.origin
        host, born_host = peer
        host = draft.born_host or host
        return Message(
            topic,
            queue_id,
            draft.body,
            encode_sent(draft, topic, origin.region, origin.cluster, host),
            0,
            SYS_COMPRESSED if draft.compressed else 0,
            draft.born_ms,
            born_host,
            origin.store_host,
        )

    def _settle(self, answer: Later, ready: Prepared, results: list[AppendResult]) -> None:
        end = -1
        for result in results:
            if result.status is _PUT_OK:
                end = result.end
        if end >= 0:
            self._node.counters.add_sent(ready.topic, ready.message_type, len(results), ready.size)
        gate = self._node.durability
        if end < 0 or gate.immediate:
            _resolve(answer, self._answer(ready, results))
        else:
            gate.wait(end, partial(self._durable, answer, ready, results))

    def _durable(
        self, answer: Later, ready: Prepared, results: list[AppendResult], outcome: PutStatus
    ) -> None:
        if outcome is _PUT_OK:
            _resolve(answer, self._answer(ready, results))
        else:
            _resolve(answer, _failed(*_FAILURES[outcome]))

    def _answer(self, ready: Prepared, results: Sequence[AppendResult]) -> bytes:
        parts = [_ANSWER_OK]
        codes = set()
        for message_id, result in zip(ready.ids, results, strict=True):
            if result.status is _PUT_OK:
                parts += receipt(message_id, result.queue_offset)
                continue
            code, sentence = self._failure(result.status)
            codes.add((code, sentence))
            entry = field(b"\x0a", status(code, sentence)) + field(b"\x12", message_id)
            parts.append(field(b"\x12", entry))
        if codes:
            all_failed = all(result.status is not _PUT_OK for result in results)
            if all_failed and len(codes) == 1:
                return _failed(*codes.pop())
            parts[0] = field(b"\x0a", status(v2.MULTIPLE_RESULTS, "the messages' results differ"))
        return b"".join(parts)

    def _failure(self, put: PutStatus) -> tuple[int, str]:
        known = _FAILURES.get(put)
        if known is not None:
            return known
        # Without room, too: every official client then tries another group, which TOO_MANY_REQUESTS
        # would not make all of them do, and says what it was told when there is none.
        store = self._node.store
        reason = store.refusal
        if put is PutStatus.CREATE_MAPPED_FILE_FAILED:
            reason = reason or f"the disk is full: {store.allocation_failure}"
        return v2.INTERNAL_SERVER_ERROR, reason or "the store takes no messages"


def next_gather_s(gather_s: float, count: int) -> float:
    """How long the next sends wait for company, when `gather_s` brought `count` requests; 0: a turn."""
    if count >= GATHER_LONG_FROM:
        return GATHER_LONG_S
    return GATHER_S if count >= (GATHER_ON if gather_s else GATHER_FROM) else 0.0


def _check_supported(draft: Draft, now_ms: int) -> None:
    if draft.message_type == v2.DELAY:
        if draft.delivery_ms is not None and draft.delivery_ms > now_ms:
            raise WireError(
                v2.UNSUPPORTED,
                "delayed delivery is not supported yet: send without a delivery time",
            )
        return
    name = v2.MessageType.Name(v2.MessageType.ValueType(draft.message_type)).lower()
    raise WireError(v2.UNSUPPORTED, f"{name} messages are not supported yet")


def _resolve(answer: Later, content: bytes) -> None:
    if not answer.done():
        answer.set_result(content)


def _failed(code: int, sentence: str) -> bytes:
    return field(b"\x0a", status(code, sentence))


@lru_cache(maxsize=4096)
def _packed(address: str) -> bytes:
    """A peer's address as the store keeps it; what is no IP address (a unix socket) becomes 0.0.0.0."""
    host, _, port = address.rpartition(":")
    try:
        return pack_host(host.strip("[]"), int(port))
    except (OSError, ValueError):
        return pack_host(_UNKNOWN_HOST, 0)


@lru_cache(maxsize=4096)
def _peer(address: str) -> tuple[str, bytes]:
    """A peer's host as text, and its address as the store keeps it."""
    return address.rpartition(":")[0] or _UNKNOWN_HOST, _packed(address)
