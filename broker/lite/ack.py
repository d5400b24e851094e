"""Acknowledgements, changes of the invisible time and dead letters of lite topics.

Source: docs/formats/grpc-api.md, sections 5.7-5.9 and 5.13. A request names the parent topic; the
entry names the lite topic, or else the record of the handle does. Codes are those of ordinary
messages (`pop/ack.py`): an unusable handle is INVALID_RECEIPT_HANDLE and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...proto import v2
from ...proto.errors import WireError
from ...proto.request_limits import ACKS_MAX
from ...store.format.errors import OffsetOutOfRangeError, RecordFormatError
from ...store.format.properties import property_value
from ...store.format.record import checked_delivery
from ..messages.validation import (
    check_group,
    check_invisible,
    check_topic,
    duration_ms,
    require_client_id,
)
from ..names.delivery import DeliveryRef, Outcome
from ..names.handles import ReceiptHandle, decode_handle, encode_handle
from ..names.lite import PROPERTY, is_lite_group, queue_of
from ..pop.copies import Copies
from ..pop.dead_letter import Origin
from ..pop.request import is_same_message
from .receive import QUEUE

if TYPE_CHECKING:
    import asyncio

    from ...front.context import RequestContext
    from ...store.message_store import MessageStore
    from ..base.leadership import Leadership
    from ..base.runtime import Runtime
    from ..metadata.changes import MetadataChanges
    from ..metadata.tables import Metadata
    from ..pop.dead_letter import DeadLetters
    from ..visible.durability import DurabilityGate
    from .receive import LiteReceive

    Request = (
        v2.AckMessageRequest
        | v2.ChangeInvisibleDurationRequest
        | v2.ForwardMessageToDeadLetterQueueRequest
    )

_INVALID = (v2.INVALID_RECEIPT_HANDLE, "receipt handle is not valid")
_EXPIRED = (v2.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
_OK = (v2.OK, "OK")


class LiteAcks:
    """Handlers of the RPCs with receipt handles, for lite groups."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        metadata: Metadata,
        leadership: Leadership,
        durability: DurabilityGate,
        changes: MetadataChanges,
        dead_letters: DeadLetters,
        receive: LiteReceive,
    ) -> None:
        self._clock = runtime.clock
        self._counters = runtime.counters
        self._broker_name = runtime.config.broker_name
        self._store = store
        self._metadata = metadata
        self._leadership = leadership
        self._durability = durability
        self._changes = changes
        self._dead_letters = dead_letters
        self._receive = receive

    def takes(self, group: str) -> bool:
        """Return whether the group consumes lite topics."""
        return is_lite_group(self._metadata, group)

    def ack(self, request: v2.AckMessageRequest, ctx: RequestContext) -> v2.AckMessageResponse:
        """AckMessage. Raises WireError."""
        self._check(request, ctx)
        if not request.entries:
            raise WireError(v2.INTERNAL_SERVER_ERROR, "no entry to acknowledge")
        if len(request.entries) > ACKS_MAX:
            raise WireError(v2.BAD_REQUEST, f"over {ACKS_MAX} entries in one request")
        answer = v2.AckMessageResponse()
        touched: dict[str, None] = {}
        copies = Copies(self._store, self._clock)
        results = set()
        for entry in request.entries:
            result = self._ack_one(request, entry, touched, copies)
            results.add(result)
            answer.entries.add(
                message_id=entry.message_id,
                receipt_handle=entry.receipt_handle,
                status=v2.Status(code=v2.Code.ValueType(result[0]), message=result[1]),
            )
        for queue in touched:
            self._receive.settle(request.group.name, queue)
        code, text = results.pop()
        if results:
            code, text = v2.MULTIPLE_RESULTS, "the entries' results differ"
        answer.status.code = v2.Code.ValueType(code)
        answer.status.message = text
        return answer

    def change_invisible(
        self, request: v2.ChangeInvisibleDurationRequest, ctx: RequestContext
    ) -> v2.ChangeInvisibleDurationResponse:
        """ChangeInvisibleDuration; the answer always has a usable handle."""
        text = request.receipt_handle
        try:
            self._check(request, ctx)
            invisible_ms = duration_ms(request.invisible_duration)
            check_invisible(invisible_ms, 0)
            handle, queue = self._usable(request, text, request.lite_topic)
            core, _ = self._receive.state(request.group.name, queue)
            now_ms = self._clock.forward_ms()
            outcome, delivery = core.change(
                _claim(handle), now_ms, invisible_ms, count=not request.suspend
            )
            copies = Copies(self._store, self._clock)
            if copies.is_expired(outcome, core, queue, handle):
                raise WireError(*_EXPIRED)
        except WireError as error:
            return v2.ChangeInvisibleDurationResponse(status=error.status(), receipt_handle=text)
        if delivery is not None:
            handle.pop_ms = delivery.pop_ms
            handle.invisible_ms = delivery.visible_ms - delivery.pop_ms
            text = encode_handle(handle)
        self._receive.settle(request.group.name, queue)
        return v2.ChangeInvisibleDurationResponse(
            status=v2.Status(code=v2.OK, message="OK"), receipt_handle=text
        )

    def forward_to_dead_letter_queue(
        self, request: v2.ForwardMessageToDeadLetterQueueRequest, ctx: RequestContext
    ) -> (
        v2.ForwardMessageToDeadLetterQueueResponse
        | asyncio.Future[v2.ForwardMessageToDeadLetterQueueResponse]
    ):
        """ForwardMessageToDeadLetterQueue: copy, then acknowledge. Raises WireError."""
        self._check(request, ctx)
        handle, queue = self._usable(request, request.receipt_handle, request.lite_topic)
        group = request.group.name
        core, state = self._receive.state(group, queue)
        claim, now_ms = _claim(handle), self._clock.forward_ms()
        outcome = core.judge(claim, now_ms)
        if outcome is Outcome.STALE:
            raise WireError(*_EXPIRED)
        answer = v2.ForwardMessageToDeadLetterQueueResponse(
            status=v2.Status(code=v2.OK, message="OK")
        )
        if outcome is not Outcome.DONE:
            self._receive.settle(group, queue)
            return answer
        records = self._store.get(queue, 0, handle.offset, 1).records
        if not records or records[0].queue_offset != handle.offset:
            raise WireError(v2.INVALID_RECEIPT_HANDLE, "the message does not exist any more")
        end = 0
        if not state.was_acked(handle.offset):
            origin = Origin(request.topic.name, queue, group)
            end = self._dead_letters.append(origin, records[0], max(1, request.delivery_attempt))
        core.ack(claim, now_ms)
        self._receive.settle(group, queue)
        if not end or self._durability.immediate:
            return answer
        return self._changes.when_durable(end, answer)

    def _check(self, request: Request, ctx: RequestContext) -> None:
        require_client_id(ctx)
        check_topic(request.topic.name)
        check_group(request.group.name)

    def _ack_one(
        self,
        request: v2.AckMessageRequest,
        entry: v2.AckMessageEntry,
        touched: dict[str, None],
        copies: Copies,
    ) -> tuple[int, str]:
        try:
            handle, queue = self._usable(request, entry.receipt_handle, entry.lite_topic)
        except WireError as error:
            return error.code, error.message
        core, _ = self._receive.state(request.group.name, queue)
        touched[queue] = None
        outcome = core.ack(_claim(handle), self._clock.forward_ms())
        if copies.is_expired(outcome, core, queue, handle):
            return _EXPIRED
        if outcome is Outcome.DONE:
            self._counters.acked += 1
        return _OK

    def _usable(self, request: Request, text: str, lite: str) -> tuple[ReceiptHandle, str]:
        """Return the handle and the LMQ of its message. Raises WireError."""
        handle = decode_handle(text)
        if handle is None or handle.broker != self._broker_name or handle.key != QUEUE:
            raise WireError(*_INVALID)
        group = self._metadata.group(request.group.name)
        if group is not None and group.is_younger(handle.pop_ms, self._clock.forward_ms()):
            raise WireError(*_INVALID)
        lite = lite or self._lite_of(handle)
        queue = queue_of(request.topic.name, lite)
        # A follower may not have the message yet that the leader delivered.
        if not lite or (
            self._leadership.is_leader and not is_same_message(self._store, queue, handle)
        ):
            raise WireError(*_INVALID)
        return handle, queue

    def _lite_of(self, handle: ReceiptHandle) -> str:
        """Return the lite topic of the handle's record; "" if there is none."""
        try:
            record = checked_delivery(self._store.record_at(handle.physical_offset))
        except (OffsetOutOfRangeError, RecordFormatError):
            return ""
        return property_value(record.properties, PROPERTY.encode()).decode("utf-8", "replace")


def _claim(handle: ReceiptHandle) -> DeliveryRef:
    return DeliveryRef(handle.key, handle.offset, handle.pop_ms, handle.expires_ms)
