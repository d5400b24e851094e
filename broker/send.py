"""SendMessage: checks, queue choice, and one append for everything that was collected.

Promises: a plain function that never waits; what it accepts is appended in the order in which it
came, by one `append_many` a loop turn, or every one to two milliseconds while many send at once;
several messages of a request get one entry each, in their order, and an answer that fails as a whole
has no entries (gRPC API, sections 5.5 and 10.2). An OK answer means what the durability table says
(design, section 4). A message is judged by its properties, not by the type that the client declares.
What waits is bounded: beyond it TOO_MANY_REQUESTS.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeAlias

from ..proto import v2
from ..proto.errors import WireError
from ..store.errors import StoreError
from ..store.properties import java_hash
from ..store.record import Message, pack_host
from ..store.results import AppendResult, PutStatus
from .convert import SYS_COMPRESSED
from .stored_properties import encode_sent
from .validation import Draft, check_message_type, check_messages, require_client_id
from .wire import SMALL, STATUS_OK, field, status, varint

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
_EXEMPT_PREFIXES = ("%RETRY%", "%DLQ%")
_UNKNOWN_HOST = "0.0.0.0"

_ENTRY_STATUS_OK = field(b"\x0a", STATUS_OK)
_ANSWER_OK = _ENTRY_STATUS_OK
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

_Pending: TypeAlias = "tuple[v2.SendMessageRequest, RequestContext, asyncio.Future[bytes]]"


@dataclass(slots=True)
class _Batch:
    """One request whose messages are ready for the log."""

    answer: asyncio.Future[bytes]
    messages: list[Message]
    ids: list[bytes]
    topic: str
    message_type: int
    size: int


class Sender:
    """Takes SendMessage requests and the broker's own records to the log."""

    def __init__(self, node: Node) -> None:
        self._node = node
        config = node.config
        self._capacity = config.send_thread_pool_queue_capacity
        self._max_body = node.store.config.max_message_size
        self._region = config.region_id
        self._cluster = config.broker_cluster_name
        self.store_host = _packed(f"{config.broker_ip1}:{config.grpc_server_port}")
        """Stored with every record; the server corrects it when the port was chosen by the OS."""
        self._pending: list[_Pending] = []
        self._pending_bytes = 0
        self._gather_s = 0.0
        self._busy_ns = node.store.config.os_page_cache_busy_time_out_mills * 1_000_000
        self._busy = False
        """The last write hung: what was sent meanwhile is refused, so that it does not pile up."""
        self._turns: dict[str, int] = {}

    def send(self, request: v2.SendMessageRequest, ctx: RequestContext) -> asyncio.Future[bytes]:
        """Handler of SendMessage."""
        require_client_id(ctx)
        pending = self._pending
        if len(pending) + len(self._node.durability) >= self._capacity:
            raise WireError(v2.TOO_MANY_REQUESTS, "too many sends wait: flow limit")
        if self._pending_bytes >= PENDING_BYTES_MAX:
            raise WireError(v2.TOO_MANY_REQUESTS, "too many bytes wait for the log: flow limit")
        loop = self._node.loop
        answer: asyncio.Future[bytes] = loop.create_future()
        if not pending:
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
        self._gather_s = next_gather_s(self._gather_s, len(pending))
        batches = self._checked(pending)
        self._busy = False
        if not batches:
            return
        if len(batches) == 1:
            everything = batches[0].messages
        else:
            everything = [message for batch in batches for message in batch.messages]
        begin_ns = self._node.clock.steady_ns()
        try:
            results = self._node.store.append_many(everything)
        except (StoreError, OSError) as error:
            log.error("send.append_failed messages=%d error=%s", len(everything), error)
            for batch in batches:
                _resolve(batch.answer, _failed(v2.INTERNAL_SERVER_ERROR, str(error)))
            return
        self._busy = self._node.clock.steady_ns() - begin_ns >= self._busy_ns
        at = 0
        for batch in batches:
            count = len(batch.messages)
            self._settle(batch, results[at : at + count])
            at += count
        self._node.appended()

    def _checked(self, pending: list[_Pending]) -> list[_Batch]:
        """The requests that may be appended; the others' answers say why not."""
        refusal = self._refusal()
        now_ms = self._node.clock.wall_ms()
        batches = []
        for request, ctx, answer in pending:
            try:
                batch = self._batch(request, ctx, answer, now_ms)
            except WireError as error:
                # Bytes, not the exception: it would hold this frame, and with it every request of
                # the turn, in a ring with the future until the garbage collector comes.
                _resolve(answer, _failed(error.code, error.message))
            except Exception as error:  # a bug: the door logs where it is
                if not answer.done():
                    answer.set_exception(error)
            else:
                if refusal is None:
                    batches.append(batch)
                else:
                    _resolve(answer, _failed(refusal.code, refusal.message))
        return batches

    def _batch(
        self,
        request: v2.SendMessageRequest,
        ctx: RequestContext,
        answer: asyncio.Future[bytes],
        now_ms: int,
    ) -> _Batch:
        messages = request.messages
        drafts = check_messages(messages, now_ms, self._max_body)
        topic = self._topic_for(messages[0].topic.name, drafts, now_ms)
        batch = _Batch(answer, [], [], topic.name, drafts[0].message_type, 0)
        born_host = _packed(ctx.peer)
        queue_id = self._next_queue(topic)
        for draft in drafts:
            if draft.message_group:
                queue_id = fifo_queue(draft.message_group, topic.write_queues)
            batch.messages.append(self._message(draft, topic.name, queue_id, born_host, ctx))
        batch.ids = [draft.message_id.encode() for draft in drafts]
        batch.size = sum([len(draft.body) for draft in drafts])
        return batch

    def _topic_for(self, name: str, drafts: list[Draft], now_ms: int) -> Topic:
        topic = self._node.metadata.topic(name)
        if topic is None:
            raise WireError(v2.TOPIC_NOT_FOUND, f"topic {name} does not exist")
        if not topic.writable:
            raise WireError(v2.FORBIDDEN, f"no writable queue: topic {name} takes no messages")
        expected = topic.message_type
        if not name.startswith(_EXEMPT_PREFIXES):
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

    def _next_queue(self, topic: Topic) -> int:
        """Queues in turn. The client's choice is not honoured: Python and Go always say queue 0."""
        turn = self._turns.get(topic.name, 0)
        self._turns[topic.name] = turn + 1
        return turn % topic.write_queues

    def _message(
        self, draft: Draft, topic: str, queue_id: int, born_host: bytes, ctx: RequestContext
    ) -> Message:
        host = draft.born_host or ctx.peer.rpartition(":")[0] or _UNKNOWN_HOST
        return Message(
            topic,
            queue_id,
            draft.body,
            encode_sent(draft, topic, self._region, self._cluster, host),
            0,
            SYS_COMPRESSED if draft.compressed else 0,
            draft.born_ms,
            born_host,
            self.store_host,
        )

    def _settle(self, batch: _Batch, results: list[AppendResult]) -> None:
        end = -1
        for result in results:
            if result.status is _PUT_OK:
                end = result.end
        if end < 0:
            _resolve(batch.answer, self._answer(batch, results))
            return
        self._node.counters.add_sent(
            batch.topic, batch.message_type, len(batch.messages), batch.size
        )
        gate = self._node.durability
        if gate.immediate:
            _resolve(batch.answer, self._answer(batch, results))
        else:
            gate.wait(end, partial(self._durable, batch, results))

    def _durable(self, batch: _Batch, results: list[AppendResult], outcome: PutStatus) -> None:
        if outcome is _PUT_OK:
            _resolve(batch.answer, self._answer(batch, results))
        else:
            _resolve(batch.answer, _failed(*_FAILURES[outcome]))

    def _answer(self, batch: _Batch, results: Sequence[AppendResult]) -> bytes:
        parts = [_ANSWER_OK]
        codes = set()
        for message_id, result in zip(batch.ids, results, strict=True):
            if result.status is _PUT_OK:
                size = len(message_id)
                named = (SMALL[size] if size < 128 else varint(size)) + message_id
                # Ordinary receipts carry the message id as transaction id too, as the reference's do.
                entry = b"%b\x12%b\x1a%b\x20%b" % (
                    _ENTRY_STATUS_OK,
                    named,
                    named,
                    varint(result.queue_offset),
                )
            else:
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


def _resolve(answer: asyncio.Future[bytes], content: bytes) -> None:
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


@lru_cache(maxsize=8192)
def fifo_queue(message_group: str, queues: int) -> int:
    """The queue of a message group: Guava's consistent hash over Java's string hash.

    One fixed function on the server, because the clients' hashes differ from language to language
    (gRPC API, section 9.4; broker semantics, section 7, has check values).
    """
    state = java_hash(message_group) & 0xFFFFFFFFFFFFFFFF
    candidate = 0
    while True:
        state = (state * 2862933555777941757 + 1) & 0xFFFFFFFFFFFFFFFF
        fraction = ((state >> 33) + 1) / (1 << 31)
        following = int((candidate + 1) / fraction)
        if not 0 <= following < queues:
            return candidate
        candidate = following
