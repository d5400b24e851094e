"""Retry topics: where a message goes whose invisible time is over.

Each (topic, group) has one of its own, made when it is first needed, with one queue; pops of the group
read it besides the topic (broker semantics, sections 1.2, 1.7; store format, section 2.12). Its name has
two forms. The first, `%RETRY%<group>_<topic>`, is the default and is ambiguous: a copy of another group
is told by its ORIGIN_GROUP. The second has a `+`, which no topic name may contain. Pure.
"""

from __future__ import annotations

from ...store.format.properties import decode_properties, encode_properties, property_value
from ...store.format.record import Delivery as Stored
from ...store.format.record import Message
from ..messages.stored_properties import in_bucket_order

NORMAL, RETRY_V1, RETRY_V2 = 0, 1, 2
"""Kinds of a group's queues, as receipt handles name them."""

_PREFIX = "%RETRY%"
_ORIGIN_GROUP = "ORIGIN_GROUP"
_FIRST_POP_TIME = "1ST_POP_TIME"
# The reference gathers a copy's properties in a fresh map; the order on disk is that of its buckets.
_BUCKETS = 16
# A copy must not be put into the light queues of its original again.
NOT_COPIED = ("INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET")


def queue_topics(topic: str, group: str) -> tuple[str, str, str]:
    """The topics that a group reads on behalf of one, by kind."""
    return topic, f"{_PREFIX}{group}_{topic}", f"{_PREFIX}{group}+{topic}"


def origin_topic(topic: str, group: str) -> str:
    """What a group's retry topic retries; any other topic is its own origin."""
    for start in (f"{_PREFIX}{group}_", f"{_PREFIX}{group}+"):
        if topic.startswith(start):
            return topic.removeprefix(start)
    return topic


def is_retry_topic(topic: str) -> bool:
    """Whether copies of messages lie there, of whatever group."""
    return topic.startswith(_PREFIX)


def is_of_group(record: Stored, group: str) -> bool:
    """Whether a record of a retry topic is the group's own; records without a name are."""
    origin = property_value(record.properties, _ORIGIN_GROUP.encode())
    return not origin or origin == group.encode()


def retry_copy(
    record: Stored, target: str, group: str, attempts: int, pop_ms: int, *, store_host: bytes
) -> Message:
    """The copy of a record that was given out `attempts` times, the first time at `pop_ms`.

    Body, flags, born time and properties are the original's; the hosts are this broker's.
    """
    properties = decode_properties(record.properties)
    for name in NOT_COPIED:
        properties.pop(name, None)
    properties.setdefault(_FIRST_POP_TIME, str(pop_ms))
    properties[_ORIGIN_GROUP] = group
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
