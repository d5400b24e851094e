"""RecallMessage: a producer cancels a message that is not delivered yet.

    body 0, tag _RECALL_TAG_, UNIQ_KEY and TIMER_DEL_UNIQKEY of the message, for the same slot;
    prepared transaction offset: the message's mark (`names/recall_handle.py`)

This record is put into the timer topic (docs/formats/store-format.md, section 2.12;
docs/formats/broker-semantics.md, section 6.3) and cancels the message when its slot is delivered,
by this broker or by Apache's. Answers (docs/formats/grpc-api.md, section 5.11): BAD_REQUEST for a
handle that cannot be decoded or is of another topic or broker, NOT_FOUND for a delivered message
(the official Python client takes MESSAGE_NOT_FOUND for success). Promises: OK means that the recall
is as durable as a send and that the message will not be delivered; a message of the slot that is
being delivered can be recalled until its own time. It names one message, by topic, id and mark;
without a mark it names messages of Apache's. A recall that names none succeeds, because only the
slot could tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...proto import v2
from ...proto.errors import WireError
from ...store.format.record import Message, pack_host
from ...store.format.results import PutStatus
from ...store.timer.rules import (
    DELETE_KEY,
    NO_MARK,
    UNIQUE_KEY,
    cancellation,
    delete_key,
    recall_key,
    rounded,
)
from ..messages.validation import MIXED, check_topic, require_client_id
from ..names.recall_handle import RecallHandle, decode_recall_handle
from ..sending.answer import FAILURES
from .delayed import MADE_BUCKETS

if TYPE_CHECKING:
    import asyncio

    from ...front.context import RequestContext
    from ...store.config.store_config import StoreConfig
    from ..base.runtime import Runtime
    from ..metadata.tables import Metadata, Topic
    from ..sending.sender import Sender
    from ..visible.durability import DurabilityGate
    from .delayed import DelayedMessages
    from .timer_service import TimerService

RECALL_TAG = "_RECALL_TAG_"
_BODY = b"0"


class Recalls:
    """Handler of RecallMessage."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store_config: StoreConfig,
        metadata: Metadata,
        sender: Sender,
        durability: DurabilityGate,
        timers: TimerService,
        delayed: DelayedMessages,
    ) -> None:
        self._config = runtime.config
        self._clock = runtime.clock
        self._loop = runtime.loop
        self._store_config = store_config
        self._metadata = metadata
        self._sender = sender
        self._durability = durability
        self._timers = timers
        self._delayed = delayed

    def recall(
        self, request: v2.RecallMessageRequest, ctx: RequestContext
    ) -> asyncio.Future[v2.RecallMessageResponse]:
        """Handle RecallMessage. Raises WireError."""
        require_client_id(ctx)
        name = request.topic.name
        topic = self._topic(name)
        if topic.message_type not in (v2.DELAY, MIXED):
            raise WireError(
                v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                "the topic does not accept delayed messages",
            )
        return self.cancel(name, request.recall_handle, ctx)

    def cancel(
        self, name: str, text: str, ctx: RequestContext
    ) -> asyncio.Future[v2.RecallMessageResponse]:
        """Cancel the message of topic `name` that the handle `text` names. Raises WireError."""
        self._topic(name)
        handle = self._handle(name, text)
        self._check_time(handle)
        precision_ms = self._store_config.timer_precision_ms
        slot_ms = rounded(handle.recall_ms, precision_ms)
        result = self._sender.append(self._record(handle, ctx))
        name = cancellation(handle.message_id, handle.topic, handle.mark or NO_MARK)
        self._timers.recalled(slot_ms, name)
        answer: asyncio.Future[v2.RecallMessageResponse] = self._loop.create_future()

        def durable(outcome: PutStatus) -> None:
            if answer.done():
                return
            if outcome is PutStatus.PUT_OK:
                # Again: before the confirm offset had reached the recall, it could not be enqueued.
                self._timers.recalled(slot_ms, name)
                self._sender.forget(handle.topic, handle.message_id)
                answer.set_result(_answer(handle))
            else:
                answer.set_exception(WireError(*FAILURES[outcome]))

        self._durability.wait(result.end, durable)
        return answer

    def _topic(self, name: str) -> Topic:
        """Return the topic if messages can be recalled. Raises WireError."""
        if not self._config.recall_message_enable:
            raise WireError(v2.FORBIDDEN, "recalls are disabled: recallMessageEnable")
        check_topic(name)
        topic = self._metadata.topic(name)
        if topic is None:
            raise WireError(v2.TOPIC_NOT_FOUND, f"topic {name} does not exist")
        return topic

    def _handle(self, name: str, text: str) -> RecallHandle:
        """Return the handle of a message of the topic on this broker. Raises WireError."""
        handle = decode_recall_handle(text)
        if handle is None:
            raise WireError(v2.BAD_REQUEST, "the recall handle is malformed")
        if handle.topic != name:
            raise WireError(v2.BAD_REQUEST, "the recall handle is of another topic")
        if handle.broker != self._config.broker_name:
            raise WireError(v2.BAD_REQUEST, "the recall handle is of another broker")
        return handle

    def _check_time(self, handle: RecallHandle) -> None:
        """Raise WireError if the message is delivered or its time is later than any can be."""
        config, now_ms = self._store_config, self._clock.wall_ms()
        if handle.recall_ms - now_ms > 1000 * config.timer_max_delay_sec:
            raise WireError(v2.BAD_REQUEST, "the recall handle's time is too far ahead")
        slot_ms = rounded(handle.recall_ms, config.timer_precision_ms)
        if handle.recall_ms > now_ms:
            return
        # The slot has begun: only the slot holds the message's exact time.
        self._sender.append_pending()
        key = recall_key(handle.message_id, handle.mark)
        if self._timers.waits(slot_ms, key, handle.topic) is False:
            raise WireError(v2.NOT_FOUND, "too late: the message was delivered")

    def _record(self, handle: RecallHandle, ctx: RequestContext) -> Message:
        """Return the record for the timer topic. Raises WireError."""
        now_ms = self._clock.wall_ms()
        old_form = self._config.append_topic_for_timer_delete_key
        properties = {
            "TAGS": RECALL_TAG,
            UNIQUE_KEY: handle.message_id,
            "TRACE_CONTEXT": "",
            "BORN_TIMESTAMP": str(now_ms),
            DELETE_KEY: delete_key(handle.message_id, handle.topic if old_form else ""),
        }
        host, _, port = ctx.peer.rpartition(":")
        message = Message(
            handle.topic,
            0,
            _BODY,
            born_timestamp_ms=now_ms,
            born_host=_packed(host, port),
            store_host=self._sender.store_host,
            prepared_transaction_offset=handle.mark or NO_MARK,
        )
        # In a slot that has begun the handle's time would be past; the recall counts for the slot.
        deliver_ms = max(handle.recall_ms, now_ms + 1)
        return self._delayed.record(message, properties, deliver_ms, buckets=MADE_BUCKETS)


def _packed(host: str, port: str) -> bytes:
    try:
        return pack_host(host.strip("[]"), int(port))
    except (OSError, ValueError):
        return pack_host("0.0.0.0", 0)


def _answer(handle: RecallHandle) -> v2.RecallMessageResponse:
    status = v2.Status(code=v2.OK, message="OK")
    return v2.RecallMessageResponse(status=status, message_id=handle.message_id)
