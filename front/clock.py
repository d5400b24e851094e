"""The clock of a process: wall time in milliseconds and steady time in nanoseconds.

`wall_ms` is used for stored times, retries, delays and expiry; tests can move it. `steady_ns` is
used for heartbeats, leases, long polls and deadlines; it is monotonic, and only differences between
values of one process are meaningful.

Only this module of the product reads a clock: all others get a `Clock`, one of its bound methods,
or the time as an argument.
"""

import time

_NS_PER_MS = 1_000_000
# CLOCK_MONOTONIC stops while a machine sleeps: after a wake-up an expired lease would still look
# valid (docs/formats/ha.md, section 6.11). CLOCK_BOOTTIME does not stop; it exists on Linux only.
_STEADY_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """Reads the time; tests can set and advance the wall time (`cometmq.v1.Test`)."""

    __slots__ = ("_wall_shift_ms",)

    def __init__(self) -> None:
        self._wall_shift_ms = 0

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 UTC, plus the shift set by tests."""
        return time.time_ns() // _NS_PER_MS + self._wall_shift_ms

    def machine_ms(self) -> int:
        """Return the machine's milliseconds since 1970 UTC, without the shift: for file times."""
        return time.time_ns() // _NS_PER_MS

    def hour_of(self, ms: int) -> int:
        """Return the hour of the day, 0 to 23, in the machine's time zone."""
        return time.localtime(ms / 1000).tm_hour

    def steady_ns(self) -> int:
        """Return monotonic nanoseconds since an arbitrary start."""
        return time.clock_gettime_ns(_STEADY_CLOCK)

    def set_wall_ms(self, wall_ms: int) -> None:
        """Set the wall time to `wall_ms`; it continues from there."""
        self._wall_shift_ms = wall_ms - time.time_ns() // _NS_PER_MS

    def advance_wall_ms(self, ms: int) -> None:
        """Move the wall time by `ms` (negative: back)."""
        self._wall_shift_ms += ms
