"""A clock with both kinds of movement, for tests: time that passes, and steps of the wall clock."""

from __future__ import annotations

from cometmq.front.clock import Clock

SECOND, HOUR, DAY = 1_000, 3_600_000, 86_400_000
YEAR = 365 * DAY
START_MS = 1_795_255_684_123


class SteppedClock(Clock):
    """The clock of one process: nothing moves it but the test."""

    def __init__(self, wall_ms: int = START_MS) -> None:
        super().__init__()
        self._start_ms = wall_ms
        self._most_ms = 0
        self._passed_ms = 0

    def passes(self, ms: int) -> None:
        """Let time pass, on both clocks."""
        self._passed_ms += ms

    def steps(self, ms: int) -> None:
        """Set the wall clock forward, or back."""
        self._wall_shift_ms += ms

    def ahead_ms(self) -> int:
        """Return the sum of the steps."""
        return self._wall_shift_ms

    def wall_ms(self) -> int:
        """Return the start, plus what passed and the steps."""
        return self._start_ms + self._passed_ms + self._wall_shift_ms

    def forward_ms(self) -> int:
        """Return the start, plus what passed and the largest sum of steps so far."""
        self._most_ms = max(self._most_ms, self._wall_shift_ms)
        return self._start_ms + self._passed_ms + self._most_ms

    def next(self) -> SteppedClock:
        """Return the clock of the next process on this machine."""
        return SteppedClock(self.wall_ms())
