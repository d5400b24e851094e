"""What the journal of pop state is made of: checkpoints, and the book of each queue. Pure.

A checkpoint is one batch that was given out, or one message that was hidden anew; it is finished when
all of it is done and the log says so (broker semantics, section 1.7). In memory one takes about 250
bytes, shared by its messages, and each open message an entry in its queue's book.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .revive_codec import BatchKey, CheckpointRecord


@dataclass(slots=True, eq=False)
class Checkpoint:
    """A batch that was given out."""

    book: Book
    start: int
    pop_ms: int
    invisible_ms: int
    offsets: Sequence[int]
    """At most BATCH_MAX; bit j belongs to the j-th."""
    open: int
    """Bits of what is not done."""
    revive_queue: int
    suspended: bool = False
    place: int = -1
    """Its records lie in the timer topic at or behind this queue offset; -1: it is not written."""
    acks: int = 0
    """Bits that are done and not written."""
    surfaced: bool = False
    """A copy lies in the revive topic, or is about to."""

    @property
    def visible_ms(self) -> int:
        """When its messages come back."""
        return self.pop_ms + self.invisible_ms

    @property
    def key(self) -> BatchKey:
        """Its name in the log."""
        book = self.book
        return BatchKey(book.topic, book.group, book.queue_id, self.start, self.pop_ms)

    @property
    def finished(self) -> bool:
        """Whether the log says all that there is to say."""
        return not self.open and not self.acks and not self.surfaced

    def bit(self, offset: int) -> int:
        """The bit of one of its messages."""
        offsets = self.offsets
        at = offset - offsets[0]
        if at >= len(offsets) or offsets[at] != offset:
            at = offsets.index(offset)
        return 1 << at

    def chosen(self, bits: int) -> list[int]:
        """The offsets of some bits."""
        return [offset for at, offset in enumerate(self.offsets) if bits >> at & 1]

    def record(self) -> CheckpointRecord:
        """As it is written now."""
        distances = [offset - self.start for offset in self.offsets]
        acked = (1 << len(self.offsets)) - 1 & ~self.open
        return CheckpointRecord(self.key, self.invisible_ms, distances, acked, self.suspended)


@dataclass(slots=True, eq=False)
class Book:
    """What is open in one queue of one group."""

    topic: str
    """The one that is read: a retry topic, or the topic itself."""
    group: str
    queue_id: int
    open: dict[int, Checkpoint] = field(default_factory=dict)
    """Messages that are not done, with the newest checkpoint of each."""
    consumed: dict[int, int] = field(default_factory=dict)
    """Acknowledged according to the log, with the store time of the record that says so."""
    holder: Any = None
    """Whoever is to be told what was written; not looked at here."""


@dataclass(slots=True)
class Batch:
    """What is to be written: all of one list before any of the next."""

    hurried: list[Checkpoint] = field(default_factory=list)
    """Of what was given out before, under another checkpoint."""
    checkpoints: list[Checkpoint] = field(default_factory=list)
    acks: list[Checkpoint] = field(default_factory=list)
    """Those whose `acks` are to be written."""

    @property
    def size(self) -> int:
        """Records to write."""
        return len(self.hurried) + len(self.checkpoints) + len(self.acks)
