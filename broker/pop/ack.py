"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue.

Source: gRPC API, sections 5.7-5.9 and 6.1. Promises: an acknowledgement may be repeated; a handle is
good for as long as its delivery lasts, through every change of the invisible time, and a little
longer: after the expiry until the message is given out again; it acknowledges the message that was given out with it,
never another that came to its place in the queue when a leader's lonely tail was cut. A handle that is of no use any more is
INVALID_RECEIPT_HANDLE and nothing else, because push consumers repeat everything else for ever; the
answer to a change always holds a handle that can be used.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...proto import v2
from ...proto.errors import WireError
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
from .dead_letter import Origin, move
from .delivery import Delivery, DeliveryRef, Key, Outcome
from .group import PopGroup
from .handles import FIFO_REVIVE_QUEUE, ReceiptHandle, decode_handle, encode_handle
from .queue import PopQueue
from .request import is_same_message, readable_topic
from .retry import NORMAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...front.context import RequestContext
    from ...store.format.results import StoredRecord
    from ..metadata.tables import Topic
    from ..node import Node
    from .reader import Core

ACK_ENTRIES_MAX = 4_096
"""Of one AckMessage; clients send one entry, the protocol has no limit, the loop needs one."""
_MESSAGE_ID_SCAN_MAX = 256
"""Messages in flight that are read to find one by its id (only the C++ client needs it)."""

_OK_STATUS = field(b"\x0a", STATUS_OK)
_OK_ENTRY_STATUS = field(b"\x1a", STATUS_OK)
_INVALID_STATUS = field(b"\x1a", status(v2.INVALID_RECEIPT_HANDLE, "receipt handle is not valid"))
_EXPIRED_STATUS = field(b"\x1a", status(v2.INVALID_RECEIPT_HANDLE, "receipt handle is expired"))


class AckService:
    """What consumers say about the messages that they received."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def ack(self, request: v2.AckMessageRequest, ctx: RequestContext) -> bytes:
        """Handler of AckMessage."""
        if self._node.lite.is_lite(request.group.name):
            return self._node.lite.acks.ack(request, ctx).SerializeToString()
        core, topic = self._core(request, ctx)
        entries = request.entries
        if not entries:
            raise WireError(v2.INTERNAL_SERVER_ERROR, "no entry to acknowledge")
        if len(entries) > ACK_ENTRIES_MAX:
            raise WireError(v2.BAD_REQUEST, f"over {ACK_ENTRIES_MAX} entries in one request")
        now_ms = self._node.clock.wall_ms()
        touched: set[Key] = set()
        parts = [_OK_STATUS]
        failed = 0
        for entry in entries:
            text = entry.receipt_handle
            code = self._ack_one(core, topic, decode_handle(text), now_ms, touched)
            failed += code is not _OK_ENTRY_STATUS
            if self._node.trace is not None and code is _OK_ENTRY_STATUS:
                self._node.trace.acked(request.group.name, text, entry.message_id)
            parts.append(
                field(
                    b"\x12",
                    field(b"\x0a", entry.message_id.encode())
                    + field(b"\x12", text.encode())
                    + code,
                )
            )
        for key in touched:
            self._node.pop.changed(core, key)
        if failed == len(entries):
            parts[0] = field(
                b"\x0a", status(v2.INVALID_RECEIPT_HANDLE, "receipt handle is not valid")
            )
        elif failed:
            parts[0] = field(b"\x0a", status(v2.MULTIPLE_RESULTS, "the entries' results differ"))
        return b"".join(parts)

    def change_invisible(
        self, request: v2.ChangeInvisibleDurationRequest, ctx: RequestContext
    ) -> v2.ChangeInvisibleDurationResponse:
        """Handler of ChangeInvisibleDuration."""
        if self._node.lite.is_lite(request.group.name):
            return self._node.lite.acks.change_invisible(request, ctx)
        text = request.receipt_handle
        try:
            core, topic = self._core(request, ctx)
            invisible_ms = duration_ms(request.invisible_duration)
            check_invisible(invisible_ms, 0)
            handle = self._usable(core, topic, text)
            now_ms = self._node.clock.wall_ms()
            count = not request.suspend
            outcome, delivery = core.change(_claim(handle), now_ms, invisible_ms, count=count)
            if outcome is Outcome.STALE:
                raise WireError(v2.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
        except WireError as error:
            # Some clients overwrite their handle with the answer's before they look at the status.
            return v2.ChangeInvisibleDurationResponse(status=error.status(), receipt_handle=text)
        if delivery is not None:
            if isinstance(core, PopGroup):
                queue = core.queues[handle.key]
                self._node.journal.changed(core, queue, delivery, now_ms, invisible_ms, count)
            self._node.pop.hidden(core, handle.key, delivery)
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
        if self._node.lite.is_lite(request.group.name):
            return self._node.lite.acks.forward_to_dead_letter_queue(request, ctx)
        core, topic = self._core(request, ctx)
        if request.receipt_handle:
            handle = self._usable(core, topic, request.receipt_handle)
        else:
            handle = self._find(core, request.message_id)
        stored = self._stored(core, handle)
        now_ms = self._node.clock.wall_ms()
        claim = _claim(handle)
        outcome = core.judge(claim, now_ms)
        if outcome is Outcome.STALE:
            raise WireError(v2.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
        answer = v2.ForwardMessageToDeadLetterQueueResponse(
            status=v2.Status(code=v2.OK, message="OK")
        )
        if outcome is not Outcome.DONE:
            return answer
        node = self._node
        origin = Origin(core.topic, _topic_of(core, handle.key), core.group)
        end = move(node, origin, stored, max(1, request.delivery_attempt))
        core.ack(claim, now_ms)
        self._settled(core, handle)
        node.pop.changed(core, handle.key)
        return answer if node.durability.immediate else node.changes.when_durable(end, answer)

    def _core(
        self,
        request: v2.AckMessageRequest
        | v2.ChangeInvisibleDurationRequest
        | v2.ForwardMessageToDeadLetterQueueRequest,
        ctx: RequestContext,
    ) -> tuple[Core, Topic]:
        require_client_id(ctx)
        topic_name = request.topic.name
        check_topic(topic_name)
        group_name = request.group.name
        check_group(group_name)
        topic = readable_topic(self._node, topic_name)
        return self._node.pop.core(topic_name, self._node.metadata.ensure_group(group_name)), topic

    def _ack_one(
        self,
        core: Core,
        topic: Topic,
        handle: ReceiptHandle | None,
        now_ms: int,
        touched: set[Key],
    ) -> bytes:
        if handle is None:
            return _INVALID_STATUS
        if isinstance(core, PopGroup):
            key = handle.kind, handle.queue_id
            queue = core.queues.get(key)
            if (
                queue is not None
                and handle.broker == self._node.config.broker_name
                and queue.ack(handle.offset, handle.pop_ms)
            ):
                self._node.counters.acked += 1
                self._node.journal.settled(core, queue, handle.offset)
                touched.add(key)
                return _OK_ENTRY_STATUS
        if not self._fits(core, topic, handle):
            return _INVALID_STATUS
        outcome = core.ack(_claim(handle), now_ms)
        if outcome is Outcome.STALE:
            return _EXPIRED_STATUS
        if outcome is Outcome.DONE:
            self._node.counters.acked += 1
            self._settled(core, handle)
            touched.add(handle.key)
        return _OK_ENTRY_STATUS

    def _settled(self, core: Core, handle: ReceiptHandle) -> None:
        if isinstance(core, PopGroup):
            self._node.journal.settled(core, core.queues[handle.key], handle.offset)

    def _usable(self, core: Core, topic: Topic, text: str) -> ReceiptHandle:
        handle = decode_handle(text)
        if handle is None or not self._fits(core, topic, handle):
            raise WireError(v2.INVALID_RECEIPT_HANDLE, "receipt handle is not valid")
        return handle

    def _fits(self, core: Core, topic: Topic, handle: ReceiptHandle) -> bool:
        """Whether the handle can be one of this broker's for the topic; opens the queue's state."""
        node, key = self._node, handle.key
        known: Topic | None = topic
        if isinstance(core, PopGroup):
            if handle.kind != NORMAL:
                known = node.metadata.topic(core.topics[handle.kind])
        elif handle.kind != NORMAL:
            return False
        if known is None or handle.queue_id >= known.read_queues:
            return False
        if handle.broker != node.config.broker_name:
            return False
        if key not in core.queues:
            node.pop.open_queue(core, key)
        # A follower may not have the message yet that the leader gave out.
        return not node.leadership.pop_leads or is_same_message(node.store, known.name, handle)

    def _stored(self, core: Core, handle: ReceiptHandle) -> StoredRecord:
        topic = _topic_of(core, handle.key)
        result = self._node.store.get(topic, handle.queue_id, handle.offset, 1)
        if not result.records or result.records[0].queue_offset != handle.offset:
            raise WireError(v2.INVALID_RECEIPT_HANDLE, "the message does not exist any more")
        return result.records[0]

    def _find(self, core: Core, message_id: str) -> ReceiptHandle:
        """A message in flight by its id: the C++ client sends no handle here."""
        wanted = message_id.encode()
        looked_at = 0
        for (kind, queue_id), offset, pop_ms in _in_flight(core):
            looked_at += 1
            if looked_at > _MESSAGE_ID_SCAN_MAX:
                break
            topic = _topic_of(core, (kind, queue_id))
            records = self._node.store.get(topic, queue_id, offset, 1).records
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
    """Where the messages of a queue lie."""
    return core.topics[key[0]] if isinstance(core, PopGroup) else core.topic


def _moved(handle: ReceiptHandle, delivery: Delivery) -> ReceiptHandle:
    """The handle after a change: the same message, by itself and with times of its own."""
    if handle.revive_queue != FIFO_REVIVE_QUEUE:
        handle.start = handle.offset
    handle.pop_ms = delivery.pop_ms
    handle.invisible_ms = delivery.visible_ms - delivery.pop_ms
    return handle


def _in_flight(core: Core) -> Iterator[tuple[Key, int, int]]:
    """Queue, offset and pop time of what is out, FIFO batches included; there may be very many."""
    for queue in core.queues.values():
        if isinstance(queue, PopQueue):
            for delivery in queue.unacked.values():
                yield queue.key, delivery.offset, delivery.pop_ms
        elif queue.batch is not None:
            for offset in queue.batch.unacked():
                yield queue.key, offset, queue.batch.pop_ms
