"""One consumer offset: in memory, in the snapshot that travels, and in RocketMQ's file. Pure.

A snapshot is a `v1.Offsets`; each position keeps its own entry of it encoded until it changes, because
with many groups most of them stay as they are from one snapshot to the next.
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
    """How far one group is in one queue."""

    offset: int
    """Everything below is consumed."""
    generation: int = 0
    """Counts deliberate rewinds."""
    handed_out: int = 0
    """Everything below was delivered at least once by some replica."""
    rewound_ms: int = dataclass_field(default=0, compare=False)
    """When it was set back last."""
    encoded: bytes = dataclass_field(default=b"", compare=False, repr=False)
    """Its entry of a snapshot; empty after a change."""


def offsets_of(content: dict[Any, Any]) -> dict[str, dict[int, int]]:
    """The table of `consumerOffset.json`: by `topic@group`, by queue."""
    return tables(content.get("offsetTable"))


def tables(table: Any) -> dict[str, dict[int, int]]:
    """A table of tables of numbers, as the file has them."""
    return {str(name): number_table(queues) for name, queues in (table or {}).items()}


def gone(topic: str, group: str, queue_id: int) -> bytes:
    """The entry of an offset that is no more."""
    entry = v1.OffsetEntry(group=group, topic=topic, queue_id=queue_id, offset=-1)
    return field(b"\x0a", entry.SerializeToString())


def encode(topic: str, group: str, queue_id: int, position: Position) -> bytes:
    """One element of the repeated field `entries` of `v1.Offsets`, kept in the position."""
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
