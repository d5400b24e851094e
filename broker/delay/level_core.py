"""Delay levels: which of the 18 levels is due, and the delivery progress of each. Pure.

Every level has a queue whose messages all wait equally long, so the first is always the next due
one (docs/formats/store-format.md, sections 11.1 and 11.3). A failed append blocks its level until
it succeeds. Where the clock was set back, messages from before are due later than those behind
them: each is delivered at the latest when its own delay has passed since then (`bound`), in a time
that never goes back. Progress counts only deliveries that are on disk, as with timers
(`timer_core.py`)."""

from __future__ import annotations

from collections import deque

from msgspec import Struct, field

#: Bounds of one level: one for each time that the clock was set back within its delay.
_BOUNDS_MAX = 64


class Level(Struct):
    """One queue of the schedule topic."""

    #: The next offset to deliver.
    offset: int
    #: Offset at which delivery started.
    begin: int
    #: Everything below is delivered, and the deliveries are on disk.
    saved: int
    #: When the message at `offset` is due; None: not read yet, or no message.
    head_due_ms: int | None = None
    #: There is no message at `offset`: wait for an arrival.
    exhausted: bool = False
    #: End of a delivery in the log, and the offset after it; one entry per append, a few per
    #: interval.
    unsafe: deque[tuple[int, int]] = field(default_factory=deque)
    #: Messages below the offset are due at this time at the latest, in forward milliseconds.
    bounds: deque[tuple[int, int]] = field(default_factory=deque)


class DelayCore:
    """The state of all levels, driven by events; times in wall milliseconds, except bounds."""

    def __init__(self, offsets: list[int]) -> None:
        """`offsets`: the start of each level, level 1 first."""
        self.levels = [Level(offset, offset, offset) for offset in offsets]

    def arrived(self, index: int) -> None:
        """Record that a message arrived in this queue."""
        if 0 <= index < len(self.levels):
            self.levels[index].exhausted = False

    def ready(self, now_ms: int) -> list[int]:
        """Return the levels to read now."""
        return [
            index
            for index, level in enumerate(self.levels)
            if not level.exhausted and (level.head_due_ms is None or level.head_due_ms <= now_ms)
        ]

    def next_due_ms(self) -> int | None:
        """Return when a level must be read again, if none is ready."""
        return min(
            (
                level.head_due_ms
                for level in self.levels
                if level.head_due_ms is not None and not level.exhausted
            ),
            default=None,
        )

    def empty(self, index: int, offset: int) -> None:
        """Record that there is no message at `offset`, where the level continues."""
        self._move(index, offset, 0)
        self.levels[index].exhausted = True

    def waits(self, index: int, offset: int, due_ms: int) -> None:
        """Record that the level's next message is at `offset` and not due."""
        self._move(index, offset, 0)
        self.levels[index].head_due_ms = due_ms

    def delivered(self, index: int, offset: int, end: int) -> None:
        """Record that everything below `offset` is delivered; the last copy ends at `end` of the
        log (0: no copy).
        """
        self._move(index, offset, end)

    def look_again(self) -> None:
        """Read all levels again after a clock change: a message may be due earlier."""
        for level in self.levels:
            level.head_due_ms = None

    def bound(self, index: int, end: int, latest_ms: int) -> None:
        """Deliver the messages below `end` at `latest_ms` at the latest."""
        bounds = self.levels[index].bounds
        if len(bounds) == _BOUNDS_MAX:
            bounds.pop()
        bounds.append((end, latest_ms))

    def latest_ms(self, index: int, offset: int) -> int | None:
        """Return the bound of a message at or above the level's offset."""
        level = self.levels[index]
        while level.bounds and level.bounds[0][0] <= level.offset:
            level.bounds.popleft()
        return next((latest_ms for end, latest_ms in level.bounds if offset < end), None)

    def _move(self, index: int, offset: int, end: int) -> None:
        level = self.levels[index]
        level.head_due_ms = None
        if offset != level.offset:
            level.offset = offset
            level.unsafe.append((end, offset))

    def progress(self, flushed: int) -> dict[int, int]:
        """Return the offsets to save when the log is on disk up to `flushed`, of levels that
        moved.
        """
        moved = {}
        for index, level in enumerate(self.levels):
            while level.unsafe and level.unsafe[0][0] <= flushed:
                level.saved = level.unsafe.popleft()[1]
            if level.saved != level.begin:
                moved[index] = level.saved
        return moved

    @property
    def unsaved(self) -> bool:
        """Return whether deliveries are not on disk yet."""
        return any(level.unsafe for level in self.levels)
