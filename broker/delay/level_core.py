"""The 18 delay levels: whose turn it is, and how far each queue was delivered. Pure.

Every level has a queue in which all messages wait equally long, so that the first is always the next that
is due (store format, sections 11.1 and 11.3). A failed append blocks its level until it succeeds. Progress
counts only what the disk has of the deliveries, as with timers (`timer_core.py`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Level:
    """One queue of the schedule topic."""

    offset: int
    """The next to deliver."""
    begin: int
    """Where delivery began."""
    saved: int
    """Everything below is delivered, and the deliveries are on the disk."""
    head_due_ms: int | None = None
    """When the message at `offset` is due; None: nobody has looked, or there is none."""
    exhausted: bool = False
    """Nothing lies at `offset`: wait for an arrival."""
    unsafe: deque[tuple[int, int]] = field(default_factory=deque)
    """End of a delivery in the log, and the offset behind it; one entry an append, a few an interval."""


class DelayCore:
    """Driven by events; times in wall milliseconds."""

    def __init__(self, offsets: list[int]) -> None:
        """Where each level begins, level 1 first."""
        self.levels = [Level(offset, offset, offset) for offset in offsets]

    def arrived(self, index: int) -> None:
        """A message came into this queue."""
        if 0 <= index < len(self.levels):
            self.levels[index].exhausted = False

    def ready(self, now_ms: int) -> list[int]:
        """The levels to look at now."""
        return [
            index
            for index, level in enumerate(self.levels)
            if not level.exhausted and (level.head_due_ms is None or level.head_due_ms <= now_ms)
        ]

    def next_due_ms(self) -> int | None:
        """When a level has to be looked at again, if none is ready."""
        return min(
            (
                level.head_due_ms
                for level in self.levels
                if level.head_due_ms is not None and not level.exhausted
            ),
            default=None,
        )

    def empty(self, index: int, offset: int) -> None:
        """Nothing lies at `offset`, where the level goes on."""
        self._move(index, offset, 0)
        self.levels[index].exhausted = True

    def waits(self, index: int, offset: int, due_ms: int) -> None:
        """The level's next message lies at `offset` and is not due."""
        self._move(index, offset, 0)
        self.levels[index].head_due_ms = due_ms

    def delivered(self, index: int, offset: int, end: int) -> None:
        """Everything below `offset` is; the last copy ends at `end` of the log (0: there is none)."""
        self._move(index, offset, end)

    def look_again(self) -> None:
        """The clock was moved: a message may be due earlier than it seemed."""
        for level in self.levels:
            level.head_due_ms = None

    def _move(self, index: int, offset: int, end: int) -> None:
        level = self.levels[index]
        level.head_due_ms = None
        if offset != level.offset:
            level.offset = offset
            level.unsafe.append((end, offset))

    def progress(self, flushed: int) -> dict[int, int]:
        """What may be saved when the log is on the disk up to `flushed`, of levels that moved."""
        moved = {}
        for index, level in enumerate(self.levels):
            while level.unsafe and level.unsafe[0][0] <= flushed:
                level.saved = level.unsafe.popleft()[1]
            if level.saved != level.begin:
                moved[index] = level.saved
        return moved

    @property
    def unsaved(self) -> bool:
        """Whether deliveries are not on the disk yet."""
        return any(level.unsafe for level in self.levels)
