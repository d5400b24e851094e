"""The one clock of a process, with two faces: wall milliseconds and steady nanoseconds.

`wall_ms` is what is stored, retried, delayed and expired by; a test may move it. `steady_ns` is what
beats, leases, long polls and deadlines count by; nothing moves it but time itself. Only relative
values of `steady_ns` mean anything, and only inside one process.

This is the only product module that reads a clock (design, section 1): everyone else is given a
`Clock`, one of its bound methods, or the time as an argument.
"""

import time

_NS_PER_MS = 1_000_000
# CLOCK_MONOTONIC stands still while a machine sleeps, so a laptop that wakes up would believe that its
# lease is still good (HA note, section 6.11). CLOCK_BOOTTIME goes on; it is Linux's alone.
_STEADY_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """Reads the time; the wall face can be set and advanced by tests (`cometmq.v1.Test`)."""

    __slots__ = ("_wall_shift_ms",)

    def __init__(self) -> None:
        self._wall_shift_ms = 0

    def wall_ms(self) -> int:
        """Milliseconds since 1970 UTC, plus what tests have moved it by."""
        return time.time_ns() // _NS_PER_MS + self._wall_shift_ms

    def machine_ms(self) -> int:
        """Milliseconds since 1970 UTC as the machine has them, whatever tests moved: the clock of the
        files' times."""
        return time.time_ns() // _NS_PER_MS

    def hour_of(self, ms: int) -> int:
        """The hour of the day, 0 to 23, in the machine's own zone."""
        return time.localtime(ms / 1000).tm_hour

    def steady_ns(self) -> int:
        """Nanoseconds from an arbitrary start; never goes back."""
        return time.clock_gettime_ns(_STEADY_CLOCK)

    def set_wall_ms(self, wall_ms: int) -> None:
        """Make the wall read `wall_ms` now; it runs on from there."""
        self._wall_shift_ms = wall_ms - time.time_ns() // _NS_PER_MS

    def advance_wall_ms(self, ms: int) -> None:
        """Move the wall by `ms` (negative: back)."""
        self._wall_shift_ms += ms
