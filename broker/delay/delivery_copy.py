"""Delivery copy: the record of a due delayed message, with the properties that Apache would store.
Pure.

Apache decodes the parked record into a Java map of 128 buckets, adds the enqueue and dequeue times,
and writes the map again: REAL_TOPIC, REAL_QID, TIMER_OUT_MS and the requested delay stay
(docs/formats/store-format.md, section 2.12; docs/formats/broker-semantics.md, section 6.2). The
order is cached for each set of property names, because most messages have the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from ...store.format.properties import (
    decode_properties,
    encode_properties,
    property_value,
    whole_number,
)
from ...store.format.record import Delivery, Message
from ..messages.stored_properties import in_bucket_order

if TYPE_CHECKING:
    from ..metadata.tables import Topic

ENQUEUED = b"TIMER_ENQUEUE_MS"
DEQUEUED = b"TIMER_DEQUEUE_MS"
ROLLED = b"TIMER_ROLL_TIMES"
#: TIMER_ENQUEUE_MS of a message that was never in the wheel.
DUE_BEFORE_ENQUEUED = (1 << 63) - 1
_PAIR_END, _NAME_END = b"\x02", b"\x01"


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
