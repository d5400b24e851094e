"""Delivery copy: the record of a due delayed message, with the properties that Apache would store.

Apache decodes the parked record into a Java map of 128 buckets, adds the enqueue and dequeue times,
and writes the map again: REAL_TOPIC, REAL_QID, TIMER_OUT_MS and the requested delay stay
(docs/formats/store-format.md, section 2.12; docs/formats/broker-semantics.md, section 6.2). The
order is cached for each set of property names, because most messages have the same ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from ...store.format.errors import OffsetOutOfRangeError, RecordFormatError
from ...store.format.properties import (
    decode_properties,
    encode_properties,
    property_value,
    whole_number,
)
from ...store.format.record import Delivery, Message, checked_delivery
from ...store.timer.rules import TIMER_QUEUE, TIMER_TOPIC
from ..messages.stored_properties import in_bucket_order
from ..metadata.incarnations import is_left_over

if TYPE_CHECKING:
    from ...store.message_store import MessageStore
    from ..metadata.tables import Metadata, Topic
    from .timer_core import Timed
    from .timer_stats import TimerStats

logger = logging.getLogger(__name__)

ENQUEUED = b"TIMER_ENQUEUE_MS"
DEQUEUED = b"TIMER_DEQUEUE_MS"
ROLLED = b"TIMER_ROLL_TIMES"
#: TIMER_ENQUEUE_MS of a message that was never in the wheel.
DUE_BEFORE_ENQUEUED = (1 << 63) - 1
_PAIR_END, _NAME_END = b"\x02", b"\x01"

#: Called with properties and body of a due message: False drops it.
DeliveryFilter = Callable[[bytes, bytes], bool]


class TimerCopies:
    """Makes the copies of due messages of the timer wheel."""

    def __init__(self, store: MessageStore, metadata: Metadata, stats: TimerStats) -> None:
        self._store = store
        self._metadata = metadata
        self._stats = stats
        #: By topic.
        self.filters: dict[str, DeliveryFilter] = {}

    def copy(self, timed: Timed, now_ms: int) -> Message | None:
        """Return the copy to deliver; None if the message is dropped."""
        record = timer_record(self._store, timed.physical_offset, self._stats)
        if record is None:
            return None
        properties = record.properties
        if is_left_over(self._metadata, timed.topic, properties, timed.physical_offset):
            self._stats.without_topic += 1
            return None
        names, values = [ENQUEUED, DEQUEUED], [b"%d" % timed.enqueued_ms, b"%d" % now_ms]
        if timed.rolled:
            times = number(property_value(properties, ROLLED))
            names.append(ROLLED)
            values.append(b"%d" % (max(times, 0) + 1))
            copy = copy_of(record, TIMER_TOPIC, TIMER_QUEUE, names, values)
            copy.prepared_transaction_offset = record.prepared_transaction_offset
            return copy
        accepts = self.filters.get(timed.topic)
        if accepts is not None and not accepts(properties, record.body):
            return None
        known = self._metadata.topic(timed.topic)
        if known is None:
            self._stats.without_topic += 1
            return None
        return copy_of(record, timed.topic, own_queue(properties, known), names, values)


def timer_record(store: MessageStore, physical_offset: int, stats: TimerStats) -> Delivery | None:
    """Return the record of a delayed message; None, and counted, if it is deleted or damaged."""
    try:
        return checked_delivery(store.record_at(physical_offset))
    except OffsetOutOfRangeError:
        stats.gone += 1  # deleted by retention
    except RecordFormatError as error:
        stats.damaged += 1
        logger.error("timer.message_damaged physical_offset=%d: %s", physical_offset, error)
    return None


def copy_of(
    record: Delivery,
    topic: str,
    queue_id: int,
    names: Sequence[bytes] = (),
    values: Sequence[bytes] = (),
) -> Message:
    """Return the message to deliver, with these properties added or replaced."""
    return Message(
        topic,
        queue_id,
        record.body,
        stamped(record.properties, names, values),
        record.flag,
        record.sys_flag,
        record.born_timestamp_ms,
        record.born_host,
        record.store_host,
        record.reconsume_times,
    )


def own_queue(properties: bytes, topic: Topic) -> int:
    """Return the queue that the message was sent to, or one that the topic still has."""
    return max(number(property_value(properties, b"REAL_QID")), 0) % max(topic.write_queues, 1)


def stamped(properties: bytes, names: Sequence[bytes], values: Sequence[bytes]) -> bytes:
    """Return the properties with these added or replaced."""
    parts = properties.split(_PAIR_END)
    if not parts[-1]:
        parts.pop()
    if (
        properties.count(_NAME_END) != len(parts)
        or _NAME_END + _PAIR_END in properties
        or _PAIR_END + _NAME_END in properties
        or properties.startswith((_NAME_END, _PAIR_END))
        or properties.endswith(_NAME_END)
        or _PAIR_END + _PAIR_END in properties
    ):
        return _slowly(properties, names, values)
    parts += [name + _NAME_END + value for name, value in zip(names, values, strict=True)]
    order = _order(tuple([part.partition(_NAME_END)[0] for part in parts]))
    return _PAIR_END.join([parts[index] for index in order]) + _PAIR_END if order else b""


def _slowly(properties: bytes, names: Sequence[bytes], values: Sequence[bytes]) -> bytes:
    """Return the properties without what readers ignore: empty names and values."""
    decoded = decode_properties(properties)
    for name, value in zip(names, values, strict=True):
        decoded[name.decode()] = value.decode()
    return encode_properties(in_bucket_order(decoded))


def number(text: bytes) -> int:
    """Parse a non-negative number; -1 for anything else."""
    parsed = whole_number(text)
    return -1 if parsed is None else parsed


@lru_cache(maxsize=1024)
def _order(names: tuple[bytes, ...]) -> tuple[int, ...]:
    """Return the output order of the parts; of a repeated name the last part counts."""
    last = {name.decode("utf-8", "replace"): str(index) for index, name in enumerate(names)}
    return tuple(int(index) for index in in_bucket_order(last).values())
