"""Clock watch: finds steps of the wall clock, logs each once and reports it to the timers.

Store times and delays follow the wall clock, back as well as forward (`front/clock.py`). A step
hides no message, but what depends on absolute times moves with it; so an operator must know.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from ...store.message_store import MessageStore
    from .runtime import Runtime

logger = logging.getLogger(__name__)

_PERIOD_S = 1.0
#: Smaller steps are common and without effect.
_STEP_MS = 1_000


class ClockWatch:
    """The watch of one broker; started and stopped once."""

    def __init__(self, runtime: Runtime, store: MessageStore) -> None:
        self._runtime = runtime
        self._store = store
        self._ahead_ms = runtime.clock.ahead_ms()
        self._timer: asyncio.TimerHandle | None = None
        runtime.clock_listeners.add(self._moved)

    def start(self) -> None:
        """Start the timer; the store is open. The clock may have been set back while the broker was
        stopped."""
        behind_ms = self._store.log.last_store_timestamp_ms - self._runtime.clock.wall_ms()
        if behind_ms > _STEP_MS:
            self._log(-behind_ms, "it is behind the newest message of the store")
        self._schedule()

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """Compare the wall clock with the steady one; report a step."""
        if self._moved():
            self._runtime.clock_listeners.notify()

    def _moved(self) -> bool:
        """Log a step; return whether there was one."""
        ahead_ms = self._runtime.clock.ahead_ms()
        step_ms = ahead_ms - self._ahead_ms
        if abs(step_ms) <= _STEP_MS:
            return False
        self._ahead_ms = ahead_ms
        self._log(step_ms, "it was set")
        return True

    def _schedule(self) -> None:
        self._timer = self._runtime.loop.call_later(_PERIOD_S, self._turn)

    def _turn(self) -> None:
        self._schedule()  # first: turns go on even if this one fails
        self.look()

    def _log(self, step_ms: int, cause: str) -> None:
        direction = "forward" if step_ms > 0 else "back"
        self._runtime.counters.clock_steps[direction] += 1
        logger.warning(
            "clock.stepped direction=%s ms=%d: %s. Store times follow it; see docs/store.md.",
            direction,
            abs(step_ms),
            cause,
        )
