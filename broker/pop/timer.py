"""Pop timer: one timer for the due times of all pop states.

Promises: never early; a group is processed within milliseconds of its due time, and within half a
second after a test moved the clock; one turn of the loop takes a few milliseconds. Groups without
deliveries, and FIFO groups without polls, cost nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from .due import DueTimes
from .group import PopGroup

if TYPE_CHECKING:
    from ..base.leadership import Leadership
    from ..base.runtime import Runtime
    from .reviver import Reviver
    from .subscription import Subscription

#: Maximum interval of the timer while groups are scheduled; bounds the delay of a moved clock.
WAKE_MS = 500
WAKE_MIN_MS = 5
#: Time of the loop in one turn.
_SLICE_NS = 4_000_000


class PopTimer:
    """Processes groups at their due times."""

    def __init__(
        self,
        runtime: Runtime,
        leadership: Leadership,
        reviver: Reviver,
        serve: Callable[[Subscription], None],
    ) -> None:
        """`serve` schedules the waiting polls of a group."""
        self._loop = runtime.loop
        self._clock = runtime.clock
        self._leadership = leadership
        self._reviver = reviver
        self._serve = serve
        self._due = DueTimes()
        self._timer: asyncio.TimerHandle | None = None
        self._scheduled = False

    def schedule(self, sub: Subscription, due_ms: int) -> None:
        """Process a group at `due_ms`."""
        if self._due.schedule(sub, due_ms):
            self._set()

    def delivered(self, sub: Subscription, visible_ms: int) -> None:
        """Schedule a group after a delivery that becomes visible at `visible_ms`."""
        if isinstance(sub.core, PopGroup) and self._leadership.pop_leads:
            self.schedule(sub, visible_ms)

    def arm(self, sub: Subscription) -> None:
        """Schedule a group for its next due message, if it copies messages or has polls."""
        copies = isinstance(sub.core, PopGroup) and self._leadership.pop_leads
        if not copies and not sub.waiters:
            return
        visible_ms = sub.core.next_visible_ms()
        if visible_ms is None:
            return
        now_ms = self._clock.forward_ms()
        if visible_ms <= now_ms:
            # Processed since then without effect: the log accepts nothing now, for example.
            visible_ms = now_ms + (WAKE_MS if sub.looked_ms >= visible_ms else 0)
        self.schedule(sub, visible_ms)

    def watch(self, sub: Subscription) -> None:
        """Call `sub.on_due` once, when the lock of the state ends."""
        visible_ms = sub.core.next_visible_ms()
        if visible_ms is not None and visible_ms > self._clock.forward_ms():
            self.schedule(sub, visible_ms)

    def run_soon(self) -> None:
        """Process the due groups in the next turn of the loop; called when the clock moved."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def stop(self) -> None:
        """Forget all due times."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        self._scheduled = False
        clock = self._clock
        now_ms = clock.forward_ms()
        end_ns = clock.steady_ns() + _SLICE_NS
        try:
            while (sub := self._due.take(now_ms)) is not None:
                self._process(sub, now_ms)
                if clock.steady_ns() >= end_ns:
                    self.run_soon()
                    return
        except BaseException:
            # The error must end neither this group's schedule nor the others'.
            if sub is not None:
                self._due.schedule(sub, now_ms + WAKE_MS)
            raise
        finally:
            self._set()

    def _process(self, sub: Subscription, now_ms: int) -> None:
        sub.looked_ms = now_ms
        if sub.on_due is not None:
            sub.on_due(sub)
            return
        if self._reviver.run(sub):
            self._due.schedule(sub, now_ms)
            return
        core = sub.core
        if not isinstance(core, PopGroup) or self._reviver.in_place(core):
            self._serve(sub)
        self.arm(sub)

    def _set(self) -> None:
        """Set the timer to the earliest due time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self._due.next_ms()
        if due_ms is None or self._scheduled:
            return
        delay_ms = min(max(due_ms - self._clock.forward_ms(), WAKE_MIN_MS), WAKE_MS)
        self._timer = self._loop.call_later(delay_ms / 1000, self._run)
