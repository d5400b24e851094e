"""Simulated time: a heap of events, and a clock for each machine.

Everything that happens in a simulated cluster is an event here, so one seed gives one story: events
of the same instant run in the order in which they were scheduled, and nothing reads a real clock or
an unseeded random number.
"""

import heapq
import random
from collections.abc import Callable
from typing import Any

MS = 1_000_000


class Scheduler:
    def __init__(self) -> None:
        self.now = 0  #: real time of the simulation, ns
        self.count = 0  #: events executed
        self.after_event: Callable[[], None] = _nothing
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._next = 0

    def at(self, time_ns: int, action: Callable[..., None], *arguments: Any) -> None:
        self._next += 1
        heapq.heappush(self._heap, (max(time_ns, self.now), self._next, action, arguments))

    def after(self, delay_ns: int, action: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + delay_ns, action, *arguments)

    def run_until(self, time_ns: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= time_ns:
            self.now, _, action, arguments = heapq.heappop(heap)
            self.count += 1
            action(*arguments)
            self.after_event()
        self.now = time_ns


def _nothing() -> None:
    pass


class Clock:
    """A machine's steady clock: runs at its own rate, and jumps only by a fault."""

    def __init__(self, scheduler: Scheduler, offset_ns: int) -> None:
        self._scheduler = scheduler
        self._rate_ppm = 0
        self._base_real = 0
        self._base_own = offset_ns

    def now(self) -> int:
        elapsed = self._scheduler.now - self._base_real
        return self._base_own + elapsed + elapsed * self._rate_ppm // 1_000_000

    def set_rate(self, ppm: int) -> None:
        own = self.now()
        self._base_real, self._base_own, self._rate_ppm = self._scheduler.now, own, ppm

    def step(self, forward_ns: int) -> None:
        self._base_own += forward_ns


def stream_of(seed: int, purpose: str) -> random.Random:
    """Return the random numbers of one purpose: draws for one purpose never change another."""
    return random.Random(f"{seed}/{purpose}")  # the seed is the point
