"""The client's clock: wall time for timestamps that are sent, steady time for deadlines and pauses.

No other module of `client/` reads a clock, so that a test can replace this one. The test kit lets
pauses end early with `skip`.
"""

import asyncio
import threading
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


class _Pauses:
    """The pauses in progress, in any thread, and the seconds that the test kit has skipped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._skipped_s = 0.0
        self._open: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def skip(self, seconds: float) -> None:
        """Shorten every pause by `seconds`, as if they had passed. Thread-safe."""
        with self._lock:
            self._skipped_s += seconds
            for loop, skipped in self._open:
                loop.call_soon_threadsafe(skipped.set)

    async def pause(self, seconds: float, ended: asyncio.Event) -> bool:
        """Wait `seconds`, less what is skipped. Return True at once when `ended` is set."""
        skipped = asyncio.Event()
        entry = asyncio.get_running_loop(), skipped
        with self._lock:
            self._open.add(entry)
            end_s = steady_s() + self._skipped_s + seconds
        try:
            while not ended.is_set():
                skipped.clear()
                left_s = end_s - steady_s() - self._skipped_s
                if left_s <= 0:
                    return False
                await _first_of((ended, skipped), left_s)
            return True
        finally:
            with self._lock:
                self._open.discard(entry)


async def _first_of(events: tuple[asyncio.Event, ...], timeout_s: float) -> None:
    """Wait for one of the events, at most `timeout_s`."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


_pauses = _Pauses()
skip = _pauses.skip
pause = _pauses.pause
