"""Due times of groups: one heap for all of them. Pure.

A group is scheduled for its earliest due time only, and scheduled again when that time has come.
Promises: a group is returned once, at its due time or later; the heap holds at most twice as many
entries as scheduled groups.
"""

from __future__ import annotations

import heapq

from .subscription import Subscription

_SLACK = 64


class DueTimes:
    """The scheduled groups by due time."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Subscription]] = []
        self._count = 0
        self._limit = _SLACK

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, sub: Subscription, due_ms: int) -> bool:
        """Schedule the group for `due_ms`; return whether that is now the earliest time."""
        if sub.due_ms and sub.due_ms <= due_ms:
            return False
        sub.due_ms = due_ms
        self._count += 1
        heapq.heappush(self._heap, (due_ms, self._count, sub))
        if len(self._heap) >= self._limit:
            self._heap = [entry for entry in self._heap if entry[2].due_ms == entry[0]]
            heapq.heapify(self._heap)
            self._limit = _SLACK + 2 * len(self._heap)
        return self._heap[0][2] is sub

    def take(self, now_ms: int) -> Subscription | None:
        """Remove and return the next due group."""
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, _, sub = heapq.heappop(self._heap)
            if sub.due_ms == due_ms:
                sub.due_ms = 0
                return sub
        return None

    def next_ms(self) -> int | None:
        """Return the earliest due time."""
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        """Remove all groups."""
        for _, _, sub in self._heap:
            sub.due_ms = 0
        self._heap.clear()
