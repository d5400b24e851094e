"""Records that waited for a topic when it was deleted, beside a new topic of its name. Pure.

Retry and dead-letter topics belong to a group, so they outlive the topics that it consumes. What
was stored in one before the origin was deleted, or before the present topic of its name was
created, belongs to a deleted topic: readers skip it, as retention would have deleted it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...store.format.properties import property_value
from ...store.format.record import decode_delivery

if TYPE_CHECKING:
    from ...store.format.results import StoredRecord
    from .tables import Metadata

_DEAD = "%DLQ%"
#: Properties that name the origin of a record, the first of them if there are two.
_ORIGIN = {"%RETRY%": (b"RETRY_TOPIC",), _DEAD: (b"DLQ_ORIGIN_TOPIC", b"RETRY_TOPIC")}


def has_origins(topic: str) -> bool:
    """Return whether the records of a topic come from other topics."""
    return topic.startswith(tuple(_ORIGIN))


def origin_of(topic: str, properties: bytes) -> str:
    """Return the topic to which a record of a retry or dead-letter topic was sent first; "" if it
    is unknown, or for a record of another topic."""
    for prefix, names in _ORIGIN.items():
        if topic.startswith(prefix):
            values = (property_value(properties, name) for name in names)
            return next(filter(None, values), b"").decode("utf-8", "replace")
    return ""


def is_left_over(metadata: Metadata, topic: str, properties: bytes, physical_offset: int) -> bool:
    """Return whether a record for `topic` belongs to a deleted topic: of this name, or of the name
    of its origin."""
    if metadata.is_older(topic, physical_offset):
        return True
    origin = origin_of(topic, properties)
    if not origin or not metadata.is_older(origin, physical_offset):
        return False
    # A dead letter may come from elsewhere, before the first topic of this name is created here.
    was_here = physical_offset < metadata.deleted_topics.get(origin, 0)
    return was_here or not topic.startswith(_DEAD) or bool(metadata.topics[origin].first_offsets)


def without_left_overs(
    metadata: Metadata, topic: str, records: list[StoredRecord]
) -> list[StoredRecord]:
    """Return the records of a retry or dead-letter topic that belong to no deleted topic."""
    return [
        stored
        for stored in records
        if not is_left_over(
            metadata, topic, decode_delivery(stored.data).properties, stored.physical_offset
        )
    ]
