"""Slices: the long work of one request, cut into short turns of the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...front.clock import Clock

#: Time of the loop in one turn.
SLICE_NS = 5_000_000


class Slices:
    """The turns of one request; `pause` between its steps, each of which takes a millisecond at
    most."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stop_ns = clock.steady_ns() + SLICE_NS

    async def pause(self) -> None:
        """Let other requests run if the time of this turn is used."""
        if self._clock.steady_ns() >= self._stop_ns:
            await asyncio.sleep(0)
            self._stop_ns = self._clock.steady_ns() + SLICE_NS
