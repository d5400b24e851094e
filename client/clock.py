"""The client's one clock: wall time for what is sent, steady time for deadlines and pauses.

Nobody else in `client/` reads a clock, so that a test can replace this one.
"""

import time


def wall_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def steady_s() -> float:
    """Seconds that only ever grow; for deadlines."""
    return time.monotonic()


def local_date_time() -> str:
    """The text that is signed: official clients send local time with a literal Z."""
    return time.strftime("%Y%m%dT%H%M%SZ")
