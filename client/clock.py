"""The client's clock: wall time for timestamps that are sent, steady time for deadlines and pauses.

No other module of `client/` reads a clock, so that a test can replace this one.
"""

import time


def wall_ms() -> int:
    """Return milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


def steady_s() -> float:
    """Return monotonic seconds, for deadlines."""
    return time.monotonic()


def local_date_time() -> str:
    """Return the text to sign. Official clients send local time with a literal Z."""
    return time.strftime("%Y%m%dT%H%M%SZ")
