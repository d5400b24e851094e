"""Light message queues (LMQ): one record in several queues. Pure functions over names and
properties.

    INNER_MULTI_DISPATCH=%LMQ%a,%LMQ%b    the additional queues, set by the sender
    INNER_MULTI_QUEUE_OFFSET=7,12             the offset in queue 0 of each, set by the store

Both are properties of the record, so that the log alone determines all units
(docs/formats/store-format.md, section 3.9). Records of retry topics, of the broker's own topics and
of delay levels have none.

Light queues are temporary: an unused one is removed with its files and restarts at offset 0 when it
is used again. The log then holds offsets that were used twice; for every reader in log order (the
dispatcher, recovery, a follower) the later record counts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from .properties import SCHEDULE_TOPIC, java_hash, property_value, whole_number
from .record import Message
from .topic_names import LMQ_PREFIX, check_topic

NAMES: Final = b"INNER_MULTI_DISPATCH"
NUMBERS: Final = b"INNER_MULTI_QUEUE_OFFSET"
#: In memory only: this bit of the system flag sends a message to the appender's general path, so
#: that common messages need not be searched for the property. (Bit 30 would be slower: Python's
#: integers have digits of 30 bits.)
MULTI_DISPATCH: Final = 1 << 29
_WAIT: Final = b"WAIT"
_SEPARATOR: Final = ","
_NO_LIGHT_QUEUES: Final = ("%RETRY%", "rmq_sys_", SCHEDULE_TOPIC)
#: RocketMQ keeps decoded properties in a Java hash map of this many buckets, and writes them in its
#: order.
_BUCKETS: Final = 128


def with_lmqs(message: Message, names: Iterable[str]) -> Message:
    """Return the message with these light queues added."""
    text = _SEPARATOR.join(names).encode()
    return replace(
        message,
        properties=_with_property(message.properties, NAMES, text),
        sys_flag=message.sys_flag | MULTI_DISPATCH,
    )


def may_have(topic: str) -> bool:
    """Return whether records of this topic can be in light queues."""
    return not topic.startswith(_NO_LIGHT_QUEUES)


def asked_for(message: Message) -> list[str]:
    """Return the light queues that a message names. Raises ValueError for invalid names."""
    if not may_have(message.topic):
        return []
    value = property_value(message.properties, NAMES).decode()
    names = [name for name in value.split(_SEPARATOR) if name.startswith(LMQ_PREFIX)]
    if len(set(names)) < len(names):
        raise ValueError("A light queue is named twice.")
    for name in names:
        check_topic(name)
    return names


def numbered(properties: bytes, numbers: Sequence[int]) -> bytes:
    """Return the properties with these offsets for the light queues that they name.

    Names that are not light queues have an empty offset; WAIT is removed, as in Apache's broker.
    """
    names = property_value(properties, NAMES).decode().split(_SEPARATOR)
    rest = iter(numbers)
    texts = [str(next(rest)) if name.startswith(LMQ_PREFIX) else "" for name in names]
    return _with_property(_without(properties, _WAIT), NUMBERS, _SEPARATOR.join(texts).encode())


def lmq_units(topic: str, properties: bytes) -> list[tuple[str, int]]:
    """Return light queue and unit number of every additional unit of a record."""
    if NUMBERS not in properties or not may_have(topic):
        return []
    names = property_value(properties, NAMES).decode("utf-8", "replace").split(_SEPARATOR)
    numbers = property_value(properties, NUMBERS).split(_SEPARATOR.encode())
    if len(names) != len(numbers):
        return []
    units: dict[str, int] = {}
    for name, text in zip(names, numbers, strict=True):
        number = whole_number(text)
        if number is not None and name.startswith(LMQ_PREFIX) and _can_be(name):
            units.setdefault(name, number)
    return list(units.items())


def _can_be(name: str) -> bool:
    """Return whether the name can be a folder name; a foreign log may hold any name."""
    try:
        check_topic(name)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=1024)
def _bucket(name: bytes) -> int:
    value = java_hash(name.decode("utf-8", "replace")) & 0xFFFFFFFF
    return (value ^ value >> 16) & (_BUCKETS - 1)


def _without(properties: bytes, name: bytes) -> bytes:
    if name not in properties:
        return properties
    mark = name + b"\x01"
    pairs = properties.split(b"\x02")
    return b"\x02".join([pair for pair in pairs if not pair.startswith(mark)])


def _with_property(properties: bytes, name: bytes, value: bytes) -> bytes:
    """Return the properties with this pair, at RocketMQ's position; an older pair of that name is
    removed."""
    pairs = [pair for pair in _without(properties, name).split(b"\x02") if pair]
    own = _bucket(name)
    at = len(pairs)
    while at and _bucket(pairs[at - 1].partition(b"\x01")[0]) > own:
        at -= 1
    pairs.insert(at, b"%b\x01%b" % (name, value))
    return b"\x02".join(pairs) + b"\x02"
