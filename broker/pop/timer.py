"""The one timer of all pop states: what becomes visible when, and who is told.

Promises: never early; a group's messages are looked at within milliseconds of their time, and within
half a second of a clock that a test has moved; the loop is kept for a few milliseconds at once. Groups
that hold nothing, and FIFO groups for which nobody waits, cost nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from .due import DueTimes
from .group import PopGroup

if TYPE_CHECKING:
    from ..node import Node
    from .reviver import Reviver
    from .subscription import Subscription

WAKE_MS = 500
"""Due times are looked at least this often while there are any: a moved clock is seen, too."""
WAKE_MIN_MS = 5
_SLICE_NS = 4_000_000
"""Of the loop, before others get it."""


class PopTimer:
    """Looks at groups when their time has come."""

    def __init__(
        self, node: Node, reviver: Reviver, schedule: Callable[[Subscription], None]
    ) -> None:
        """`schedule` serves the waiters of a group."""
        self._node = node
        self._reviver = reviver
        self._schedule = schedule
        self._due = DueTimes()
        self._timer: asyncio.TimerHandle | None = None
        self._looking = False

    def ask(self, sub: Subscription, due_ms: int) -> None:
        """Look at a group at `due_ms`."""
        if self._due.ask(sub, due_ms):
            self._set()

    def given(self, sub: Subscription, visible_ms: int) -> None:
        """Messages were given out that are visible again at `visible_ms`."""
        if isinstance(sub.core, PopGroup) and self._node.leadership.pop_leads:
            self.ask(sub, visible_ms)

    def arm(self, sub: Subscription) -> None:
        """Look at a group when its next message is due, if anybody has to."""
        copies = isinstance(sub.core, PopGroup) and self._node.leadership.pop_leads
        if not copies and not sub.waiters:
            return
        visible_ms = sub.core.next_visible_ms()
        if visible_ms is None:
            return
        now_ms = self._node.clock.wall_ms()
        if visible_ms <= now_ms:
            # Looked for since then, it could not be had (nothing can be written, say).
            visible_ms = now_ms + (WAKE_MS if sub.looked_ms >= visible_ms else 0)
        self.ask(sub, visible_ms)

    def watch(self, sub: Subscription) -> None:
        """Look at a locked state when its lock ends; `sub.on_due` is told, once."""
        visible_ms = sub.core.next_visible_ms()
        if visible_ms is not None and visible_ms > self._node.clock.wall_ms():
            self.ask(sub, visible_ms)

    def look(self) -> None:
        """Look now at what is due: the clock was moved."""
        if not self._looking:
            self._looking = True
            self._node.loop.call_soon(self._tick)

    def stop(self) -> None:
        """Nothing is looked at any more."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._looking = False
        clock = self._node.clock
        now_ms = clock.wall_ms()
        end_ns = clock.steady_ns() + _SLICE_NS
        try:
            while (sub := self._due.take(now_ms)) is not None:
                self._come_due(sub, now_ms)
                if clock.steady_ns() >= end_ns:
                    self.look()
                    return
        except BaseException:
            # It must not be the last look: not at this group, and not at the others.
            if sub is not None:
                self._due.ask(sub, now_ms + WAKE_MS)
            raise
        finally:
            self._set()

    def _come_due(self, sub: Subscription, now_ms: int) -> None:
        sub.looked_ms = now_ms
        if sub.on_due is not None:
            sub.on_due(sub)
            return
        if self._reviver.run(sub):
            self._due.ask(sub, now_ms)
            return
        core = sub.core
        if not isinstance(core, PopGroup) or self._reviver.in_place(core):
            self._schedule(sub)
        self.arm(sub)

    def _set(self) -> None:
        """Keep one timer for the earliest time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self._due.next_ms()
        if due_ms is None or self._looking:
            return
        delay_ms = min(max(due_ms - self._node.clock.wall_ms(), WAKE_MIN_MS), WAKE_MS)
        self._timer = self._node.loop.call_later(delay_ms / 1000, self._tick)
