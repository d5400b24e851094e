"""The clock of a process: wall time, forward time in milliseconds, steady time in nanoseconds.

`wall_ms` is used for stored times, absolute delays and retention; it goes back when the machine's
clock is set back, and tests can move it. `forward_ms` is used for the deadlines of messages:
invisible times, locks, renewals. It starts as the wall time and follows it forward; when the wall
time goes back, it goes on with the steady time. So a deadline is never hidden behind a step back,
and a step forward ends it early by at most the step. A forward time that was saved is compared with
another process' only within its own duration. `steady_ns` is used for heartbeats, leases, long
polls and deadlines of requests; it is monotonic, and only differences between values of one process
are meaningful.

Only this module of the product reads a clock: all others get a `Clock`, one of its bound methods,
or the time as an argument.
"""

import time

_NS_PER_MS = 1_000_000
_NEVER_NS = -(1 << 80)
# CLOCK_MONOTONIC stops while a machine sleeps: after a wake-up an expired lease would still look
# valid (docs/formats/ha.md, section 6.11). CLOCK_BOOTTIME does not stop; it exists on Linux only.
_STEADY_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """Reads the time; tests can set and advance the wall time (`cometmq.v1.Test`)."""

    __slots__ = ("_ahead_ns", "_wall_shift_ms")

    def __init__(self) -> None:
        self._wall_shift_ms = 0
        #: The largest distance of the wall time from the steady time so far.
        self._ahead_ns = _NEVER_NS

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 UTC, plus the shift set by tests."""
        return self._wall_ns() // _NS_PER_MS

    def _wall_ns(self) -> int:
        return time.time_ns() + self._wall_shift_ms * _NS_PER_MS

    def forward_ms(self) -> int:
        """Return milliseconds since 1970 UTC that never go back (see the module docstring)."""
        wall_ns = self._wall_ns()  # first: the distance is never too large
        steady_ns = self.steady_ns()
        self._ahead_ns = max(self._ahead_ns, wall_ns - steady_ns)
        return (steady_ns + self._ahead_ns) // _NS_PER_MS

    def ahead_ms(self) -> int:
        """Return the distance of the wall time from the steady time: only a step changes it, by
        the step (and a thread switch between both readings, by its duration, downwards)."""
        wall_ns = self._wall_ns()
        return (wall_ns - self.steady_ns()) // _NS_PER_MS

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
