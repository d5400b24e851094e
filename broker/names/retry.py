"""Retry topics: names, and the copies of messages whose invisible time ended. Pure.

Each topic and group has one retry topic, created on first use with one queue; pops of the group
read it besides the topic (docs/formats/broker-semantics.md, sections 1.2 and 1.7;
docs/formats/store-format.md, section 2.12). The name has two forms. The first,
`%RETRY%<group>_<topic>`, is the default and is ambiguous: the property ORIGIN_GROUP tells the
copies of two groups apart. The second has a `+`, which no topic name may contain.
"""

from __future__ import annotations

from ...store.format.properties import decode_properties, encode_properties, property_value
from ...store.format.record import Delivery as Stored
from ...store.format.record import Message
from ..messages.stored_properties import in_bucket_order

#: Kinds of a group's queues, as in receipt handles.
NORMAL, RETRY_V1, RETRY_V2 = 0, 1, 2

_PREFIX = "%RETRY%"
ORIGIN_GROUP = "ORIGIN_GROUP"
_FIRST_POP_TIME = "1ST_POP_TIME"
# The reference collects a copy's properties in a new map; its bucket order is the order on disk.
_BUCKETS = 16
# A copy must not enter the light queues of its original.
NOT_COPIED = ("INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET")


def queue_topics(topic: str, group: str) -> tuple[str, str, str]:
    """Return the topics that a group reads for one subscribed topic, by kind."""
    return topic, f"{_PREFIX}{group}_{topic}", f"{_PREFIX}{group}+{topic}"


def origin_topic(topic: str, group: str) -> str:
    """Return the origin of a group's retry topic; any other topic is its own origin."""
    for start in (f"{_PREFIX}{group}_", f"{_PREFIX}{group}+"):
        if topic.startswith(start):
            return topic.removeprefix(start)
    return topic


def is_retry_topic(topic: str) -> bool:
    """Return whether the topic is a retry topic of any group."""
    return topic.startswith(_PREFIX)


def is_of_group(record: Stored, group: str) -> bool:
    """Return whether a record of a retry topic belongs to the group; without a name it does."""
    origin = property_value(record.properties, ORIGIN_GROUP.encode())
    return not origin or origin == group.encode()


def retry_copy(
    record: Stored, target: str, group: str, attempts: int, pop_ms: int, *, store_host: bytes
) -> Message:
    """Return the copy of a record delivered `attempts` times, first at `pop_ms`.

    Body, flags, born time and properties are the original's; the hosts are this broker's.
    """
    properties = decode_properties(record.properties)
    for name in NOT_COPIED:
        properties.pop(name, None)
    properties.setdefault(_FIRST_POP_TIME, str(pop_ms))
    properties[ORIGIN_GROUP] = group
    return Message(
        target,
        0,
        record.body,
        encode_properties(in_bucket_order(properties, _BUCKETS)),
        record.flag,
        record.sys_flag,
        record.born_timestamp_ms,
        store_host,
        store_host,
        record.reconsume_times + attempts,
    )
