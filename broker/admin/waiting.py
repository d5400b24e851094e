"""Messages that wait outside their topic: in the timer wheel, for a delay level, or for the end of
their transaction. They are lost with the topic. Reads only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.slices import Slices

if TYPE_CHECKING:
    from collections.abc import Collection

    from ...front.clock import Clock
    from ..delay.levels import DelayLevels
    from ..delay.timer_service import TimerService
    from ..transactions.service import Transactions


class WaitingMessages:
    """Counts them."""

    def __init__(
        self,
        clock: Clock,
        timers: TimerService,
        levels: DelayLevels,
        transactions: Transactions,
    ) -> None:
        self._clock = clock
        self._timers = timers
        self._levels = levels
        self._transactions = transactions

    async def count(self, topics: Collection[str]) -> int:
        """Return how many messages wait for these topics."""
        slices = Slices(self._clock)
        await self._timers.settle()
        await self._transactions.settle(slices)
        waiting = 0
        for topic in topics:
            waiting += self._timers.waiting(topic)
            await slices.pause()
        for half in self._transactions.table:
            waiting += half.topic in topics and self._transactions.is_open(half)
            await slices.pause()
        for number in self._levels.waiting(topics):
            waiting += number
            await slices.pause()
        return waiting
