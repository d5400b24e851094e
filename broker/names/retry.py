"""Retry topics: names, and the copies of messages whose invisible time ended. Pure.

Each topic and group has one retry topic, created on first use with one queue; pops of the group
read it besides the topic (docs/formats/broker-semantics.md, sections 1.2 and 1.7;
docs/formats/store-format.md, section 2.12). The name has two forms. The first,
`%RETRY%<group>_<topic>`, is the default and is ambiguous: `%RETRY%a_b_c` is the retry topic of
group `a` and topic `b_c`, of group `a_b` and topic `c`, and of the classic consumers of group
`a_b_c`. The property ORIGIN_GROUP names the group of a copy of a pop. The second form has a `+`,
which no topic name may contain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...store.format.properties import decode_properties, encode_properties, property_value
from ...store.format.record import Delivery as Stored
from ...store.format.record import Message, decode_delivery
from ..messages.stored_properties import in_bucket_order

if TYPE_CHECKING:
    from ...store.format.results import StoredRecord

#: Kinds of a group's queues, as in receipt handles.
NORMAL, RETRY_V1, RETRY_V2 = 0, 1, 2

_PREFIX = "%RETRY%"
ORIGIN_GROUP = "ORIGIN_GROUP"
_FIRST_POP_TIME = "1ST_POP_TIME"
# The reference collects a copy's properties in a new map; its bucket order is the order on disk.
_BUCKETS = 16
#: Properties of copies of pops, which consumers do not send.
POP_MARKS = (ORIGIN_GROUP, _FIRST_POP_TIME)
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


def is_of_group(record: Stored, group: str, topic: str) -> bool:
    """Return whether a record of a retry topic belongs to the group.

    ORIGIN_GROUP names the group of a copy of a pop. A record without it belongs to the group of
    `%RETRY%<group>`, to which a consumer sent it back. If it was not sent back (no RETRY_TOPIC, or
    the time of a pop), it may be of either group.
    """
    origin = property_value(record.properties, ORIGIN_GROUP.encode())
    if origin or topic == _PREFIX + group:
        return not origin or origin == group.encode()
    was_popped = property_value(record.properties, _FIRST_POP_TIME.encode())
    return bool(was_popped) or not property_value(record.properties, b"RETRY_TOPIC")


def without_foreign(topic: str, group: str, records: list[StoredRecord]) -> list[StoredRecord]:
    """Return the records that a group may read of a topic: of a retry topic, its own and those of
    the group that the topic's name ends with."""
    if not is_retry_topic(topic):
        return records
    owners = {group, topic.removeprefix(_PREFIX)}
    decoded = ((stored, decode_delivery(stored.data)) for stored in records)
    return [
        stored
        for stored, record in decoded
        if any(is_of_group(record, owner, topic) for owner in owners)
    ]


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
