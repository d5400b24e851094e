"""How a message that asks for a later delivery is stored: rewritten for the topic where it waits.

    DELAY > 0                              SCHEDULE_TOPIC_XXXX, queue level - 1
    TIMER_DELAY_SEC, TIMER_DELAY_MS or
    TIMER_DELIVER_MS, in the future        rmq_sys_wheel_timer, queue 0, with TIMER_OUT_MS
    neither, or due already                stays what it is

Where it shall go stands in REAL_TOPIC and REAL_QID, so that Apache's broker could deliver it too (store
format, sections 2.12, 11.2 and 11.4; broker semantics, section 6.2). Used for delayed sends, committed
transactions, pop checkpoints and recalls. Promises: nothing is appended here; a time that is too far
away, a slot that is full and a wheel that is switched off are refused with a code and a sentence.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ...proto import v2
from ...proto.errors import WireError
from ...store.config.delay_levels import parse_levels, queue_of
from ...store.format.properties import DELAY, SCHEDULE_TOPIC, encode_properties
from ...store.format.record import PROPERTIES_BYTES_MAX, Message
from ...store.timer.rules import (
    DELIVER_MS,
    OUT_MS,
    REAL_QUEUE,
    REAL_TOPIC,
    REQUESTED,
    TIMER_QUEUE,
    TIMER_TOPIC,
    Verdict,
    congested,
    requested,
    rounded,
)
from ..messages.stored_properties import in_bucket_order
from ..sending.answer import Special
from .recall_handle import RecallHandle

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ..messages.validation import Draft
    from ..metadata.tables import Topic
    from ..node import Node

STAMP_BYTES = 100
"""Room for what delivery adds: TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS and, now and then, TIMER_ROLL_TIMES."""
SENT_BUCKETS = 128
"""Buckets of the Java map that a client's message is decoded into; what the broker makes has 16."""
MADE_BUCKETS = 16

_REFUSALS = {
    Verdict.ILLEGAL: v2.ILLEGAL_DELIVERY_TIME,
    Verdict.NOT_ENABLED: v2.UNSUPPORTED,
    Verdict.CONGESTED: v2.TOO_MANY_REQUESTS,
}


def delayed_message(
    node: Node,
    message: Message,
    properties: Mapping[str, str],
    deliver_ms: int | None = None,
    *,
    buckets: int = SENT_BUCKETS,
) -> Message:
    """The record to append for `message`, whose properties are `properties` (decoded, in the order of
    their insertion), and which is to be delivered at `deliver_ms` if that is given.

    `message` must lie in the topic and queue where it is to arrive. Without a delay it comes back with
    the properties encoded. `buckets` decides their order on disk: MADE_BUCKETS for the broker's own
    records. Raises WireError.
    """
    wanted = dict(properties)
    if deliver_ms is not None:
        wanted[DELIVER_MS] = str(deliver_ms)
    config = node.store.config
    request = requested(wanted, node.clock.wall_ms(), config)
    if request.verdict is Verdict.ORDINARY:
        return replace(message, properties=_encoded(wanted, buckets))
    if request.verdict is Verdict.LEVEL:
        return _levelled(node, message, wanted, buckets)
    if request.verdict is not Verdict.TIMER:
        raise WireError(_REFUSALS[request.verdict], request.reason)
    limit = config.timer_congest_num_each_slot
    if congested(node.timers.number_at(request.out_ms), limit, random.random()):
        raise WireError(
            _REFUSALS[Verdict.CONGESTED],
            f"[WHEEL_TIMER_FLOW_CONTROL] over {limit} messages are due in that second "
            "(timerCongestNumEachSlot)",
        )
    node.system_topics.ensure(TIMER_TOPIC)
    wanted[OUT_MS] = str(request.out_ms)
    return _parked(message, TIMER_TOPIC, TIMER_QUEUE, wanted, buckets)


def _levelled(node: Node, message: Message, wanted: dict[str, str], buckets: int) -> Message:
    levels = parse_levels(node.store.config.message_delay_level)
    queue_id = queue_of(int(wanted[DELAY]), levels)
    wanted[DELAY] = str(queue_id + 1)
    for name in REQUESTED:
        wanted.pop(name, None)
    node.system_topics.ensure(SCHEDULE_TOPIC, len(levels))
    return _parked(message, SCHEDULE_TOPIC, queue_id, wanted, buckets)


def _parked(
    message: Message, topic: str, queue_id: int, wanted: dict[str, str], buckets: int
) -> Message:
    wanted[REAL_TOPIC] = message.topic
    wanted[REAL_QUEUE] = str(message.queue_id)
    properties = _encoded(wanted, buckets)
    if len(properties) > PROPERTIES_BYTES_MAX - STAMP_BYTES:
        raise WireError(
            v2.MESSAGE_PROPERTIES_TOO_LARGE, "the properties leave no room for what delivery adds"
        )
    return replace(message, topic=topic, queue_id=queue_id, properties=properties)


def _encoded(properties: Mapping[str, str], buckets: int) -> bytes:
    return encode_properties(in_bucket_order(properties, buckets))


def recall_handle(node: Node, topic: str, deliver_ms: int, message_id: str) -> str:
    """What takes a message back that was stored as a timer."""
    out_ms = rounded(deliver_ms, node.store.config.timer_precision_ms)
    return RecallHandle(topic, node.config.broker_name, out_ms + 1, message_id).encode()


class DelaySends:
    """The owner of DELAY messages among sends (`sending/typed.py: SpecialType`)."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def prepare(
        self,
        draft: Draft,
        message: Message,
        properties: dict[str, str],
        topic: Topic,
        ctx: RequestContext,
    ) -> tuple[Message, Special | None]:
        """The timer's record, and the handle to recall it; a time that has come needs neither."""
        parked = delayed_message(self._node, message, properties)
        if parked.topic != TIMER_TOPIC or draft.delivery_ms is None:
            return parked, None
        handle = recall_handle(self._node, topic.name, draft.delivery_ms, draft.message_id)
        return parked, Special(recall_handle=handle)
