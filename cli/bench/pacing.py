"""The times at which sends are due: closed and open loops.

In a closed loop a sender sends again when its send is answered. In an open loop sends are due at a
fixed rate, whatever the server does, and latencies count from the due time: a server that pauses
delays all sends of the pause.
"""

import asyncio
import time
from typing import Protocol


class Pace(Protocol):
    """A source of due times; several senders share it."""

    async def next(self) -> int | None:
        """Wait until the next send is due; return its due time in ns, or None at the end."""
        ...


class ClosedLoop:
    """Every send is due at once, for `seconds` or for a number of `messages`."""

    def __init__(self, *, seconds: float | None = None, sends: int | None = None) -> None:
        self._end_ns = None if seconds is None else time.perf_counter_ns() + int(seconds * 1e9)
        self._left = sends

    async def next(self) -> int | None:
        """See `Pace`."""
        if self._left is not None:
            if not self._left:
                return None
            self._left -= 1
        now_ns = time.perf_counter_ns()
        return None if self._end_ns is not None and now_ns >= self._end_ns else now_ns


class OpenLoop:
    """`rate` sends are due in each second, for `seconds`."""

    def __init__(self, rate: float, seconds: float) -> None:
        self._start_ns = time.perf_counter_ns()
        self._period_ns = 1e9 / rate
        self._sends = int(rate * seconds)
        self._next = 0

    async def next(self) -> int | None:
        """See `Pace`."""
        if self._next >= self._sends:
            return None
        due_ns = self._start_ns + int(self._next * self._period_ns)
        self._next += 1
        wait_ns = due_ns - time.perf_counter_ns()
        if wait_ns > 0:
            await asyncio.sleep(wait_ns / 1e9)
        return due_ns
