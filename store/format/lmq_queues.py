"""Light queues (LMQ): one record in several queues. Pure functions over names and properties.

    INNER_MULTI_DISPATCH=%LMQ%a,%LMQ%b        the queues besides the record's own, as the sender says
    INNER_MULTI_QUEUE_OFFSET=7,12             the record's number in queue 0 of each, as the store says

Both are properties of the record, so that the log alone tells which units there are (store format,
section 3.9). Records of retry topics, of the broker's own topics and of delay levels have none.

Light queues come and go: an unused one is removed with its files and begins at 0 when it is used again.
The log then holds numbers that were used twice. The later record is right, for everybody who reads the
log in its order: the dispatcher, recovery, a follower.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from .properties import SCHEDULE_TOPIC, java_hash, property_value
from .record import Message
from .topic_names import LIGHT_PREFIX, check_topic

NAMES: Final = b"INNER_MULTI_DISPATCH"
NUMBERS: Final = b"INNER_MULTI_QUEUE_OFFSET"
#: In memory only: this bit of the system flag sends a message the appender's careful way, so that
#: the common ones need not be searched for a property that they do not have. (Bit 30 would cost them
#: more than the rest of this: Python's numbers have digits of 30 bits.)
MULTI_DISPATCH: Final = 1 << 29
_WAIT: Final = b"WAIT"
_SEPARATOR: Final = ","
_NO_LIGHT_QUEUES: Final = ("%RETRY%", "rmq_sys_", SCHEDULE_TOPIC)
#: RocketMQ keeps what it decodes in a Java hash map of so many buckets, and writes it in their order.
_BUCKETS: Final = 128


def with_lmqs(message: Message, names: Iterable[str]) -> Message:
    """The message, to be put into queue 0 of each of these light queues as well."""
    text = _SEPARATOR.join(names).encode()
    return replace(
        message,
        properties=_with_property(message.properties, NAMES, text),
        sys_flag=message.sys_flag | MULTI_DISPATCH,
    )


def may_have(topic: str) -> bool:
    """Whether records of this topic can be in light queues."""
    return not topic.startswith(_NO_LIGHT_QUEUES)


def asked_for(message: Message) -> list[str]:
    """The light queues that a message names. Raises ValueError for names that cannot be."""
    if not may_have(message.topic):
        return []
    value = property_value(message.properties, NAMES).decode()
    names = [name for name in value.split(_SEPARATOR) if name.startswith(LIGHT_PREFIX)]
    if len(set(names)) < len(names):
        raise ValueError("A light queue is named twice.")
    for name in names:
        check_topic(name)
    return names


def numbered(properties: bytes, numbers: Sequence[int]) -> bytes:
    """The properties of a record that has these numbers in the light queues that it names.

    Names that are no light queue's have an empty number; WAIT goes, as with Apache's broker.
    """
    names = property_value(properties, NAMES).decode().split(_SEPARATOR)
    rest = iter(numbers)
    texts = [str(next(rest)) if name.startswith(LIGHT_PREFIX) else "" for name in names]
    return _with_property(_without(properties, _WAIT), NUMBERS, _SEPARATOR.join(texts).encode())


def lmq_units(topic: str, properties: bytes) -> list[tuple[str, int]]:
    """Light queue and unit number for every unit that a record has besides its own."""
    if NUMBERS not in properties or not may_have(topic):
        return []
    names = property_value(properties, NAMES).decode("utf-8", "replace").split(_SEPARATOR)
    numbers = property_value(properties, NUMBERS).split(_SEPARATOR.encode())
    if len(names) != len(numbers):
        return []
    units: dict[str, int] = {}
    for name, number in zip(names, numbers, strict=True):
        if name.startswith(LIGHT_PREFIX) and number.isdigit() and _can_be(name):
            units.setdefault(name, int(number))
    return list(units.items())


def _can_be(name: str) -> bool:
    """Whether the name can be a folder's: what a foreign log holds may be anything."""
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
    """The properties with one pair more, where RocketMQ's order has it; a pair of that name goes."""
    pairs = [pair for pair in _without(properties, name).split(b"\x02") if pair]
    own = _bucket(name)
    at = len(pairs)
    while at and _bucket(pairs[at - 1].partition(b"\x01")[0]) > own:
        at -= 1
    pairs.insert(at, b"%b\x01%b" % (name, value))
    return b"\x02".join(pairs) + b"\x02"
