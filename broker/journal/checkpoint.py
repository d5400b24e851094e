"""Data of the pop journal: checkpoints, and the book of each queue. Pure.

A checkpoint is one delivered batch, or one message whose invisible time was changed; it is finished
when all its messages are done and the log records it (docs/formats/broker-semantics.md, section
1.7). In memory it takes about 250 bytes, shared by its messages, and each open message has an entry
in its queue's book.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from .revive_codec import BatchKey, CheckpointRecord


class Checkpoint(Struct, eq=False):
    """One delivered batch."""

    book: Book
    start: int
    pop_ms: int
    invisible_ms: int
    #: At most BATCH_MAX; bit j belongs to the j-th message.
    offsets: Sequence[int]
    #: Bits of the open messages.
    open: int
    revive_queue: int
    suspended: bool = False
    #: Its records are in the timer topic at or after this queue offset; -1: not written.
    timer_offset: int = -1
    #: Bits that are done and not written.
    acks: int = 0
    #: A copy is in the revive topic or about to be.
    surfaced: bool = False
    #: Log offset of its record, if that was read.
    place: int = 0

    @property
    def visible_ms(self) -> int:
        """Return when its messages become visible again."""
        return self.pop_ms + self.invisible_ms

    @property
    def key(self) -> BatchKey:
        """Return its key in the log."""
        book = self.book
        return BatchKey(book.topic, book.group, book.queue_id, self.start, self.pop_ms)

    @property
    def finished(self) -> bool:
        """Return whether the log records everything about it."""
        return not self.open and not self.acks and not self.surfaced

    def bit(self, offset: int) -> int:
        """Return the bit of one of its messages."""
        offsets = self.offsets
        at = offset - offsets[0]
        if at >= len(offsets) or offsets[at] != offset:
            at = offsets.index(offset)
        return 1 << at

    def offsets_of(self, bits: int) -> list[int]:
        """Return the offsets of some bits."""
        return [offset for at, offset in enumerate(self.offsets) if bits >> at & 1]

    def record(self) -> CheckpointRecord:
        """Return its record in the current state."""
        distances = [offset - self.start for offset in self.offsets]
        acked = (1 << len(self.offsets)) - 1 & ~self.open
        return CheckpointRecord(self.key, self.invisible_ms, distances, acked, self.suspended)


class Book(Struct, eq=False):
    """The open messages of one queue of one group."""

    #: The queue's topic: a retry topic, or the topic itself.
    topic: str
    group: str
    queue_id: int
    #: Open messages with the newest checkpoint of each.
    open: dict[int, Checkpoint] = field(default_factory=dict)
    #: Offsets acknowledged according to the log, with the log offset of the checkpoint and the
    #: store time of the acknowledging record.
    consumed: dict[int, tuple[int, int]] = field(default_factory=dict)
    #: Called after a write; not used in this module.
    holder: Any = None


class Batch(Struct):
    """Records to write, in this order: all of one list before any of the next."""

    #: Checkpoints of messages delivered earlier under another checkpoint.
    urgent: list[Checkpoint] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    #: Checkpoints whose `acks` are to be written.
    acks: list[Checkpoint] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Return the number of records to write."""
        return len(self.urgent) + len(self.checkpoints) + len(self.acks)
