"""RecallMessage: a producer takes back a message that is not delivered yet.

    body 0, tag _RECALL_TAG_, UNIQ_KEY and TIMER_DEL_UNIQKEY of the message, for the same slot

is put into the timer topic (store format, section 2.12; broker semantics, section 6.3) and cancels the
message when its slot is delivered, in this broker or in Apache's. Answers (gRPC API, section 5.11): a
handle that cannot be read or is not of this topic and broker is BAD_REQUEST, a message that was
delivered MESSAGE_NOT_FOUND. Promises: OK means that the recall is stored as safely as a send, and that
the message will not be delivered; a message of the slot that is being delivered can be recalled up to
its own time. An id that nobody sent is recalled with success, because only the slot would know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...proto import v2
from ...proto.errors import WireError
from ...store.format.record import Message, pack_host
from ...store.format.results import PutStatus
from ...store.timer.rules import DELETE_KEY, UNIQUE_KEY, delete_key, rounded
from ..messages.validation import MIXED, check_topic, require_client_id
from ..sending.answer import FAILURES
from .delayed import MADE_BUCKETS, delayed_message
from .recall_handle import RecallHandle, decode_recall_handle

if TYPE_CHECKING:
    import asyncio

    from ...front.context import RequestContext
    from ..node import Node

RECALL_TAG = "_RECALL_TAG_"
_BODY = b"0"


class Recalls:
    """The handler of the method."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def recall(
        self, request: v2.RecallMessageRequest, ctx: RequestContext
    ) -> v2.RecallMessageResponse | asyncio.Future[v2.RecallMessageResponse]:
        """Handler of RecallMessage."""
        require_client_id(ctx)
        handle = self._checked(request)
        self._check_time(handle)
        precision_ms = self._node.store.config.timer_precision_ms
        slot_ms = rounded(handle.recall_ms, precision_ms)
        result = self._node.sender.append(self._record(handle, ctx))
        self._node.timers.recalled(slot_ms, handle.message_id)
        answer: asyncio.Future[v2.RecallMessageResponse] = self._node.loop.create_future()

        def durable(outcome: PutStatus) -> None:
            if answer.done():
                return
            if outcome is PutStatus.PUT_OK:
                # Once more: what is not confirmed yet cannot be enqueued.
                self._node.timers.recalled(slot_ms, handle.message_id)
                answer.set_result(_answer(handle))
            else:
                answer.set_exception(WireError(*FAILURES[outcome]))

        self._node.durability.wait(result.end, durable)
        return answer

    def _checked(self, request: v2.RecallMessageRequest) -> RecallHandle:
        """The handle, if it may be used. Raises WireError."""
        node, name = self._node, request.topic.name
        if not node.config.recall_message_enable:
            raise WireError(v2.FORBIDDEN, "recalls are switched off: recallMessageEnable")
        check_topic(name)
        topic = node.metadata.topic(name)
        if topic is None:
            raise WireError(v2.TOPIC_NOT_FOUND, f"topic {name} does not exist")
        if topic.message_type not in (v2.DELAY, MIXED):
            raise WireError(
                v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "the topic takes no delayed messages"
            )
        handle = decode_recall_handle(request.recall_handle)
        if handle is None:
            raise WireError(v2.BAD_REQUEST, "this is no recall handle")
        if handle.topic != name:
            raise WireError(v2.BAD_REQUEST, "the recall handle is of another topic")
        if handle.broker != node.config.broker_name:
            raise WireError(v2.BAD_REQUEST, "the recall handle is of another broker")
        return handle

    def _check_time(self, handle: RecallHandle) -> None:
        """A message whose time has come is out; one that would be due later than any can be is none."""
        node = self._node
        config, now_ms = node.store.config, node.clock.wall_ms()
        if handle.recall_ms - now_ms > 1000 * config.timer_max_delay_sec:
            raise WireError(v2.BAD_REQUEST, "the recall handle's time is too far away")
        slot_ms = rounded(handle.recall_ms, config.timer_precision_ms)
        if handle.recall_ms > now_ms:
            return
        # Its slot has begun: only the slot knows whether the message's own time has come.
        node.sender.append_pending()
        if node.timers.waits(slot_ms, handle.message_id) is False:
            raise WireError(v2.MESSAGE_NOT_FOUND, "too late: the message was delivered")

    def _record(self, handle: RecallHandle, ctx: RequestContext) -> Message:
        """The record for the timer topic. Raises WireError."""
        node = self._node
        now_ms = node.clock.wall_ms()
        old_form = node.config.append_topic_for_timer_delete_key
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
            store_host=node.sender.store_host,
        )
        # In a slot that has begun the record's own time would be past; it holds for the slot anyway.
        deliver_ms = max(handle.recall_ms, now_ms + 1)
        return delayed_message(node, message, properties, deliver_ms, buckets=MADE_BUCKETS)


def _packed(host: str, port: str) -> bytes:
    try:
        return pack_host(host.strip("[]"), int(port))
    except (OSError, ValueError):
        return pack_host("0.0.0.0", 0)


def _answer(handle: RecallHandle) -> v2.RecallMessageResponse:
    status = v2.Status(code=v2.OK, message="OK")
    return v2.RecallMessageResponse(status=status, message_id=handle.message_id)
