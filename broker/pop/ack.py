"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue.

Source: docs/formats/grpc-api.md, sections 5.7-5.9 and 6.1. Promises: an acknowledgement may be
repeated; a handle is valid for as long as its delivery lasts, through every change of the invisible
time, and after the expiry until the message is delivered again (after a restart or a failover,
until it lies in the retry topic); it acknowledges the message that it was delivered with, never
another message that got the same queue offset after a diverged tail was truncated. OK means that
the message does not come again and is no dead letter, unless the clock was set back by less than
the invisible time while the broker was stopped (`copies.py` has the other limits). An unusable
handle is INVALID_RECEIPT_HANDLE and nothing else, because push consumers retry every other code
without end; an unknown group has no handles and is not created, nor has a topic that was deleted or
made unreadable; the answer to a change always has a usable handle.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from ...proto import v2
from ...proto.errors import WireError
from ...proto.native import Native
from ...proto.request_limits import ACKS_MAX
from ...store.format.properties import property_value
from ...store.format.record import decode_delivery
from ..messages.validation import (
    check_group,
    check_invisible,
    check_topic,
    duration_ms,
    require_client_id,
)
from ..messages.wire import STATUS_OK, field, status
from ..names.delivery import Delivery, DeliveryRef, Key, Outcome
from ..names.handles import FIFO_REVIVE_QUEUE, ReceiptHandle, decode_handle, encode_handle
from ..names.retry import NORMAL
from .ack_request import AckRequest, common_acks
from .copies import Copies
from .dead_letter import Origin
from .group import PopGroup
from .queue import PopQueue
from .request import is_same_message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...front.context import RequestContext
    from ...store.format.results import StoredRecord
    from ...store.message_store import MessageStore
    from ..base.leadership import Leadership
    from ..base.runtime import Runtime
    from ..metadata.changes import MetadataChanges
    from ..metadata.tables import Metadata, Topic
    from ..trace.spans import DeliveryTraces
    from ..visible.durability import DurabilityGate
    from .dead_letter import DeadLetters
    from .journal_api import Journal
    from .receive import PopService
    from .subscription import Core

    HandleRequest = (
        v2.AckMessageRequest
        | v2.ChangeInvisibleDurationRequest
        | v2.ForwardMessageToDeadLetterQueueRequest
    )

#: Maximum of messages in flight read to find one by its id (the C++ client needs it).
_MESSAGE_ID_SCAN_MAX = 256

_OK_STATUS = field(b"\x0a", STATUS_OK)
_OK_ENTRY_STATUS = field(b"\x1a", STATUS_OK)
_INVALID_STATUS = field(b"\x1a", status(v2.INVALID_RECEIPT_HANDLE, "receipt handle is not valid"))
_EXPIRED_STATUS = field(b"\x1a", status(v2.INVALID_RECEIPT_HANDLE, "receipt handle is expired"))


class LiteHandlers(Protocol):
    """The same handlers for groups that consume lite topics."""

    def takes(self, group: str) -> bool:
        """Return whether the group consumes lite topics."""

    def ack(self, request: v2.AckMessageRequest, ctx: RequestContext) -> v2.AckMessageResponse:
        """AckMessage."""

    def change_invisible(
        self, request: v2.ChangeInvisibleDurationRequest, ctx: RequestContext
    ) -> v2.ChangeInvisibleDurationResponse:
        """ChangeInvisibleDuration."""

    def forward_to_dead_letter_queue(
        self, request: v2.ForwardMessageToDeadLetterQueueRequest, ctx: RequestContext
    ) -> (
        v2.ForwardMessageToDeadLetterQueueResponse
        | asyncio.Future[v2.ForwardMessageToDeadLetterQueueResponse]
    ):
        """ForwardMessageToDeadLetterQueue."""


class AckService:
    """Handlers of the RPCs with receipt handles."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        metadata: Metadata,
        leadership: Leadership,
        durability: DurabilityGate,
        changes: MetadataChanges,
        journal: Journal,
        dead_letters: DeadLetters,
        pop: PopService,
        lite: LiteHandlers,
        trace: DeliveryTraces | None,
        native: Native | None = None,
    ) -> None:
        self._clock = runtime.clock
        self._counters = runtime.counters
        self._broker_name = runtime.config.broker_name
        self._store = store
        self._metadata = metadata
        self._leadership = leadership
        self._durability = durability
        self._changes = changes
        self._journal = journal
        self._dead_letters = dead_letters
        self._pop = pop
        self._lite = lite
        self._trace = trace
        # Spans need the id of each message.
        self._read_common = None if trace is not None else common_acks(native, self._broker_name)

    @property
    def takes_bytes(self) -> bool:
        """Return whether AckMessage requests are best passed undecoded (`AckRequest`)."""
        return self._read_common is not None

    def ack(self, request: v2.AckMessageRequest | AckRequest, ctx: RequestContext) -> bytes:
        """Handler of AckMessage."""
        if isinstance(request, AckRequest):
            return self._ack_common(request.raw, ctx) or self._ack(request.decoded(), ctx)
        return self._ack(request, ctx)

    def _ack(self, request: v2.AckMessageRequest, ctx: RequestContext) -> bytes:
        if self._lite.takes(request.group.name):
            return self._lite.ack(request, ctx).SerializeToString()
        state = self._find(request.topic.name, request.group.name, ctx)
        entries = request.entries
        if not entries:
            raise WireError(v2.INTERNAL_SERVER_ERROR, "no entry to acknowledge")
        if len(entries) > ACKS_MAX:
            raise WireError(v2.BAD_REQUEST, f"over {ACKS_MAX} entries in one request")
        now_ms = self._clock.forward_ms()
        trace = self._trace
        touched: set[Key] = set()
        copies = Copies(self._store, self._clock)
        parts = [_OK_STATUS]
        failed = 0
        for entry in entries:
            text = entry.receipt_handle
            code = _INVALID_STATUS
            if state is not None:
                code = self._ack_one(*state, decode_handle(text), now_ms, touched, copies)
            failed += code is not _OK_ENTRY_STATUS
            if trace is not None and code is _OK_ENTRY_STATUS:
                trace.acked(request.group.name, text, entry.message_id)
            parts.append(
                field(
                    b"\x12",
                    field(b"\x0a", entry.message_id.encode())
                    + field(b"\x12", text.encode())
                    + code,
                )
            )
        if state is not None:
            for key in touched:
                self._pop.changed(state[0], key)
        if failed == len(entries):
            parts[0] = field(
                b"\x0a", status(v2.INVALID_RECEIPT_HANDLE, "receipt handle is not valid")
            )
        elif failed:
            parts[0] = field(b"\x0a", status(v2.MULTIPLE_RESULTS, "the entries' results differ"))
        return b"".join(parts)

    def _ack_common(self, raw: bytes, ctx: RequestContext) -> bytes | None:
        """Acknowledge all messages of a common request if all are in flight here; else change
        nothing and return None."""
        common = None if self._read_common is None else self._read_common(raw)
        if common is None:
            return None
        group, topic, deliveries, answer = common
        if self._lite.takes(group):
            return None
        state = self._find(topic, group, ctx)
        if state is None or not isinstance(state[0], PopGroup):
            return None
        core = state[0]
        taken = []
        for kind, queue_id, offsets, pop_times_ms in deliveries:
            queue = core.queues.get((kind, queue_id))
            if queue is None or not queue.holds(offsets, pop_times_ms):
                return None
            taken.append((queue, offsets))
        for queue, offsets in taken:
            queue.ack_all(offsets)
            self._counters.acked += len(offsets)
            self._journal.settled(core, queue, *offsets)
        for queue, _ in taken:
            self._pop.changed(core, queue.key)
        return answer

    def change_invisible(
        self, request: v2.ChangeInvisibleDurationRequest, ctx: RequestContext
    ) -> v2.ChangeInvisibleDurationResponse:
        """Handler of ChangeInvisibleDuration."""
        if self._lite.takes(request.group.name):
            return self._lite.change_invisible(request, ctx)
        text = request.receipt_handle
        try:
            core, topic = self._core(request, ctx)
            invisible_ms = duration_ms(request.invisible_duration)
            check_invisible(invisible_ms, 0)
            handle = self._usable(core, topic, text)
            now_ms = self._clock.forward_ms()
            count = not request.suspend
            outcome, delivery = core.change(_claim(handle), now_ms, invisible_ms, count=count)
            if self._is_expired(outcome, core, handle):
                raise WireError(v2.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
        except WireError as error:
            # Some clients take the answer's handle before they check the status.
            return v2.ChangeInvisibleDurationResponse(status=error.status(), receipt_handle=text)
        if delivery is not None:
            if isinstance(core, PopGroup):
                queue = core.queues[handle.key]
                self._journal.changed(core, queue, delivery, now_ms, invisible_ms, count)
            self._pop.hidden(core, handle.key, delivery)
            text = encode_handle(_moved(handle, delivery))
        return v2.ChangeInvisibleDurationResponse(
            status=v2.Status(code=v2.OK, message="OK"), receipt_handle=text
        )

    def forward_to_dead_letter_queue(
        self, request: v2.ForwardMessageToDeadLetterQueueRequest, ctx: RequestContext
    ) -> (
        v2.ForwardMessageToDeadLetterQueueResponse
        | asyncio.Future[v2.ForwardMessageToDeadLetterQueueResponse]
    ):
        """Handler of ForwardMessageToDeadLetterQueue: copy, then acknowledge."""
        if self._lite.takes(request.group.name):
            return self._lite.forward_to_dead_letter_queue(request, ctx)
        core, topic = self._core(request, ctx)
        if request.receipt_handle:
            handle = self._usable(core, topic, request.receipt_handle)
        else:
            handle = self._find_by_id(core, request.message_id)
        stored = self._stored(core, handle)
        now_ms = self._clock.forward_ms()
        claim = _claim(handle)
        outcome = core.judge(claim, now_ms)
        if self._is_expired(outcome, core, handle, dead_letters=False):
            raise WireError(v2.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
        answer = v2.ForwardMessageToDeadLetterQueueResponse(
            status=v2.Status(code=v2.OK, message="OK")
        )
        if outcome is not Outcome.DONE:
            return answer
        end = 0
        queue = core.queues[handle.key]
        if isinstance(queue, PopQueue) or not queue.was_acked(handle.offset):
            origin = Origin(core.topic, _topic_of(core, handle.key), core.group)
            end = self._dead_letters.append(origin, stored, max(1, request.delivery_attempt))
        core.ack(claim, now_ms)
        self._settled(core, handle)
        self._pop.changed(core, handle.key)
        if not end or self._durability.immediate:
            return answer
        return self._changes.when_durable(end, answer)

    def _core(self, request: HandleRequest, ctx: RequestContext) -> tuple[Core, Topic]:
        """Return the group's state and the topic. Raises WireError."""
        state = self._find(request.topic.name, request.group.name, ctx)
        if state is None:
            raise WireError(
                v2.INVALID_RECEIPT_HANDLE,
                f"receipt handle is not valid: consumer group {request.group.name} does not exist, "
                f"or topic {request.topic.name} cannot be read",
            )
        return state

    def _find(
        self, topic_name: str, group_name: str, ctx: RequestContext
    ) -> tuple[Core, Topic] | None:
        """Return the group's state and the topic; None without one of them, or for a topic that
        may not be read: then no handle is valid. Raises WireError.

        Creates no group. A group whose record the log refused has a state but no metadata.
        """
        require_client_id(ctx)
        check_topic(topic_name)
        check_group(group_name)
        topic = self._metadata.topic(topic_name)
        if topic is None or not topic.readable:
            return None
        group = self._metadata.group(group_name)
        if group is not None:
            return self._pop.core(topic_name, group), topic
        core = self._pop.existing_core(topic_name, group_name)
        return None if core is None else (core, topic)

    def _ack_one(  # noqa: PLR0917 - the parts of one request
        self,
        core: Core,
        topic: Topic,
        handle: ReceiptHandle | None,
        now_ms: int,
        touched: set[Key],
        copies: Copies,
    ) -> bytes:
        if handle is None:
            return _INVALID_STATUS
        if isinstance(core, PopGroup):
            key = handle.kind, handle.queue_id
            queue = core.queues.get(key)
            if (
                queue is not None
                and handle.broker == self._broker_name
                and queue.ack(handle.offset, handle.pop_ms)
            ):
                self._counters.acked += 1
                self._journal.settled(core, queue, handle.offset)
                touched.add(key)
                return _OK_ENTRY_STATUS
        if not self._fits(core, topic, handle):
            return _INVALID_STATUS
        outcome = core.ack(_claim(handle), now_ms)
        if copies.is_expired(outcome, core, _topic_of(core, handle.key), handle):
            return _EXPIRED_STATUS
        if outcome is Outcome.DONE:
            self._counters.acked += 1
            self._settled(core, handle)
            touched.add(handle.key)
        return _OK_ENTRY_STATUS

    def _is_expired(
        self, outcome: Outcome, core: Core, handle: ReceiptHandle, *, dead_letters: bool = True
    ) -> bool:
        topic = _topic_of(core, handle.key)
        copies = Copies(self._store, self._clock)
        return copies.is_expired(outcome, core, topic, handle, dead_letters=dead_letters)

    def _settled(self, core: Core, handle: ReceiptHandle) -> None:
        if isinstance(core, PopGroup):
            self._journal.settled(core, core.queues[handle.key], handle.offset)

    def _usable(self, core: Core, topic: Topic, text: str) -> ReceiptHandle:
        handle = decode_handle(text)
        if handle is None or not self._fits(core, topic, handle):
            raise WireError(v2.INVALID_RECEIPT_HANDLE, "receipt handle is not valid")
        return handle

    def _fits(self, core: Core, topic: Topic, handle: ReceiptHandle) -> bool:
        """Return whether this broker can have made the handle for the topic; open the queue's
        state."""
        key = handle.key
        known: Topic | None = topic
        if isinstance(core, PopGroup):
            if handle.kind != NORMAL:
                known = self._metadata.topic(core.topics[handle.kind])
        elif handle.kind != NORMAL:
            return False
        if known is None or handle.queue_id >= known.read_queues:
            return False
        if 0 <= handle.physical_offset < known.since:
            return False  # of a deleted topic
        group = self._metadata.group(core.group)
        if group is not None and group.is_younger(handle.pop_ms, self._clock.forward_ms()):
            return False
        if handle.broker != self._broker_name:
            return False
        if key not in core.queues:
            self._pop.open_queue(core, key)
        # A follower may not have the message yet that the leader delivered.
        return not self._leadership.pop_leads or is_same_message(self._store, known.name, handle)

    def _stored(self, core: Core, handle: ReceiptHandle) -> StoredRecord:
        topic = _topic_of(core, handle.key)
        result = self._store.get(topic, handle.queue_id, handle.offset, 1)
        if not result.records or result.records[0].queue_offset != handle.offset:
            raise WireError(v2.INVALID_RECEIPT_HANDLE, "the message does not exist any more")
        return result.records[0]

    def _find_by_id(self, core: Core, message_id: str) -> ReceiptHandle:
        """Return the handle of a message in flight by its id: the C++ client sends no handle."""
        wanted = message_id.encode()
        looked_at = 0
        for (kind, queue_id), offset, pop_ms in _in_flight(core):
            looked_at += 1
            if looked_at > _MESSAGE_ID_SCAN_MAX:
                break
            topic = _topic_of(core, (kind, queue_id))
            records = self._store.get(topic, queue_id, offset, 1).records
            if not records or records[0].queue_offset != offset:
                continue
            record = decode_delivery(records[0].data)
            if property_value(record.properties, b"UNIQ_KEY") == wanted:
                return ReceiptHandle(
                    offset, pop_ms, 0, 0, kind, "", queue_id, offset, records[0].physical_offset
                )
        raise WireError(
            v2.INVALID_RECEIPT_HANDLE, "no receipt handle, and no such message is in flight"
        )


def _claim(handle: ReceiptHandle) -> DeliveryRef:
    return DeliveryRef(handle.key, handle.offset, handle.pop_ms, handle.expires_ms)


def _topic_of(core: Core, key: Key) -> str:
    """Return the topic of a queue's messages."""
    return core.topics[key[0]] if isinstance(core, PopGroup) else core.topic


def _moved(handle: ReceiptHandle, delivery: Delivery) -> ReceiptHandle:
    """Return the handle after a change: the single message, with its new times."""
    if handle.revive_queue != FIFO_REVIVE_QUEUE:
        handle.start = handle.offset
    handle.pop_ms = delivery.pop_ms
    handle.invisible_ms = delivery.visible_ms - delivery.pop_ms
    return handle


def _in_flight(core: Core) -> Iterator[tuple[Key, int, int]]:
    """Yield queue, offset and pop time of messages in flight; there may be very many."""
    for queue in core.queues.values():
        if isinstance(queue, PopQueue):
            for delivery in queue.unacked.values():
                yield queue.key, delivery.offset, delivery.pop_ms
        elif queue.batch is not None:
            for offset in queue.batch.unacked():
                yield queue.key, offset, queue.batch.pop_ms
