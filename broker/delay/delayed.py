"""Records of delayed messages: a message is rewritten for the system topic in which it waits.

    DELAY > 0                              SCHEDULE_TOPIC_XXXX, queue level - 1
    TIMER_DELAY_SEC, TIMER_DELAY_MS or
    TIMER_DELIVER_MS, in the future        rmq_sys_wheel_timer, queue 0, with TIMER_OUT_MS
    neither, or due already                not rewritten

REAL_TOPIC and REAL_QID hold the destination, so that Apache's broker could deliver the message, too
(docs/formats/store-format.md, sections 2.12, 11.2 and 11.4; docs/formats/broker-semantics.md,
section 6.2). The record in the timer topic has a random mark in its prepared transaction offset,
which names it in recalls and which its copy for consumers does not have. Used for delayed sends,
committed transactions and recalls. Promises: nothing is appended here; a time too far ahead, a full
slot and a disabled timer wheel are refused with a code and a sentence.
"""

from __future__ import annotations

import random
import secrets
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
from ..names.recall_handle import RecallHandle
from ..sending.answer import ReceiptExtras

if TYPE_CHECKING:
    from ...front.clock import Clock
    from ...front.context import RequestContext
    from ...store.config.store_config import StoreConfig
    from ..messages.validation import Draft
    from ..metadata.system_topics import SystemTopics
    from ..metadata.tables import Topic
    from .timer_service import TimerService

#: Space reserved for the properties that delivery adds: TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS and
#: sometimes TIMER_ROLL_TIMES.
STAMP_BYTES = 100
#: Buckets of the Java map into which Apache decodes a client's message.
SENT_BUCKETS = 128
#: Buckets of the map of a message that the broker itself makes.
MADE_BUCKETS = 16
#: The mark of a message fits a signed field of eight bytes.
_MARKS = (1 << 63) - 1

_REFUSALS = {
    Verdict.ILLEGAL: v2.ILLEGAL_DELIVERY_TIME,
    Verdict.NOT_ENABLED: v2.UNSUPPORTED,
    Verdict.CONGESTED: v2.TOO_MANY_REQUESTS,
}


class DelayedMessages:
    """Rewrites messages for the topic in which they wait."""

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        timers: TimerService,
        system_topics: SystemTopics,
    ) -> None:
        self._config = config
        self._clock = clock
        self._timers = timers
        self._system_topics = system_topics

    def record(
        self,
        message: Message,
        properties: Mapping[str, str],
        deliver_ms: int | None = None,
        *,
        buckets: int = SENT_BUCKETS,
    ) -> Message:
        """Return the record to append for `message`, to be delivered at `deliver_ms` if given.

        `message` is addressed to its destination; `properties` are its properties, decoded, in the
        order of their insertion. A message without a delay is returned with the properties encoded.
        `buckets` determines their order on disk: MADE_BUCKETS for the broker's own records. Raises
        WireError.
        """
        wanted = dict(properties)
        if deliver_ms is not None:
            wanted[DELIVER_MS] = str(deliver_ms)
        request = requested(wanted, self._clock.wall_ms(), self._config)
        if request.verdict is Verdict.ORDINARY:
            return replace(message, properties=_encoded(wanted, buckets))
        if request.verdict is Verdict.LEVEL:
            return self._level_record(message, wanted, buckets)
        if request.verdict is not Verdict.TIMER:
            raise WireError(_REFUSALS[request.verdict], request.reason)
        limit = self._config.timer_congest_num_each_slot
        if congested(self._timers.number_at(request.out_ms), limit, random.random()):
            raise WireError(
                _REFUSALS[Verdict.CONGESTED],
                f"[WHEEL_TIMER_FLOW_CONTROL] over {limit} messages are due in that second "
                "(timerCongestNumEachSlot)",
            )
        self._system_topics.ensure(TIMER_TOPIC)
        wanted[OUT_MS] = str(request.out_ms)
        parked = _parked(message, TIMER_TOPIC, TIMER_QUEUE, wanted, buckets)
        if not parked.prepared_transaction_offset:
            parked.prepared_transaction_offset = secrets.randbelow(_MARKS) + 1
        return parked

    def _level_record(self, message: Message, wanted: dict[str, str], buckets: int) -> Message:
        levels = parse_levels(self._config.message_delay_level)
        queue_id = queue_of(int(wanted[DELAY]), levels)
        wanted[DELAY] = str(queue_id + 1)
        for name in REQUESTED:
            wanted.pop(name, None)
        self._system_topics.ensure(SCHEDULE_TOPIC, len(levels))
        return _parked(message, SCHEDULE_TOPIC, queue_id, wanted, buckets)


class DelaySends:
    """Handler of DELAY messages (`sending/grpc_records.py: TypeHandler`)."""

    def __init__(self, delayed: DelayedMessages, broker_name: str, precision_ms: int) -> None:
        self._delayed = delayed
        self._broker_name = broker_name
        self._precision_ms = precision_ms

    def prepare(
        self,
        draft: Draft,
        message: Message,
        properties: dict[str, str],
        topic: Topic,
        ctx: RequestContext,
    ) -> tuple[Message, ReceiptExtras | None]:
        """Return the record for the timer topic and its recall handle.

        A message that is due already is returned for its own topic, without a handle.
        """
        record = self._delayed.record(message, properties)
        if record.topic != TIMER_TOPIC or draft.delivery_ms is None:
            return record, None
        out_ms = rounded(draft.delivery_ms, self._precision_ms)
        mark = record.prepared_transaction_offset
        handle = RecallHandle(topic.name, self._broker_name, out_ms + 1, draft.message_id, mark)
        return record, ReceiptExtras(recall_handle=handle.encode())


def _parked(
    message: Message, topic: str, queue_id: int, wanted: dict[str, str], buckets: int
) -> Message:
    wanted[REAL_TOPIC] = message.topic
    wanted[REAL_QUEUE] = str(message.queue_id)
    properties = _encoded(wanted, buckets)
    if len(properties) > PROPERTIES_BYTES_MAX - STAMP_BYTES:
        raise WireError(
            v2.MESSAGE_PROPERTIES_TOO_LARGE,
            "the properties leave no space for those that delivery adds",
        )
    return replace(message, topic=topic, queue_id=queue_id, properties=properties)


def _encoded(properties: Mapping[str, str], buckets: int) -> bytes:
    return encode_properties(in_bucket_order(properties, buckets))
