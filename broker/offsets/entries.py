"""One consumer offset: in memory, in the replicated snapshot, and in RocketMQ's file. Pure.

A snapshot is a `v1.Offsets`; each position caches its encoded entry until it changes, because with
many groups most entries are the same from one snapshot to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

from ...proto import v1
from ...store.config.catalog import number_table
from ..messages.wire import field


@dataclass(slots=True)
class Position:
    """The progress of one group in one queue."""

    #: Messages below this offset are consumed.
    offset: int
    #: Number of deliberate rewinds.
    generation: int = 0
    #: Messages below this offset were delivered at least once, by this or another replica.
    handed_out: int = 0
    #: End of the log at the last rewind.
    rewound_at: int = dataclass_field(default=0, compare=False)
    #: Encoded entry of a snapshot; empty after a change.
    encoded: bytes = dataclass_field(default=b"", compare=False, repr=False)


def offsets_of(content: dict[Any, Any]) -> dict[str, dict[int, int]]:
    """Return the table of `consumerOffset.json`: by `topic@group`, by queue. Raises KeyError for
    the content of another file."""
    return tables(content["offsetTable"])


def tables(table: Any) -> dict[str, dict[int, int]]:
    """Return a table of tables of numbers in the file's form."""
    return {str(name): number_table(queues) for name, queues in (table or {}).items()}


def gone(topic: str, group: str, queue_id: int) -> bytes:
    """Encode the entry of a removed offset."""
    entry = v1.OffsetEntry(group=group, topic=topic, queue_id=queue_id, offset=-1)
    return field(b"\x0a", entry.SerializeToString())


def encode(topic: str, group: str, queue_id: int, position: Position) -> bytes:
    """Encode one element of the repeated field `entries` of `v1.Offsets`; the position caches
    it.
    """
    entry = v1.OffsetEntry(
        group=group,
        topic=topic,
        queue_id=queue_id,
        offset=position.offset,
        next_offset=position.handed_out,
        generation=position.generation,
    )
    position.encoded = field(b"\x0a", entry.SerializeToString())
    return position.encoded
