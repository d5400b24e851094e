"""A simulated disk: a log of pages that are in memory until they are flushed, and small durable
files.

A killed process loses nothing of the page cache. A machine that loses its power keeps, of every
page written since the last flush, the new content, the old one, or a mixture: what a real disk may
do, and in any order. Small files stand for the product's two-slot files: a write is atomic and
durable on return (the caller models its duration).
"""

import random
from typing import Any

PAGE_BYTES = 64
LOG_BYTES = 1 << 18  #: larger than any log of a run


class Disk:
    def __init__(self) -> None:
        self.live = bytearray(LOG_BYTES)  #: as the process sees it
        self.durable = bytearray(LOG_BYTES)
        self.flushed = 0  #: everything below is durable
        self.extent = 0  #: no write was ever above
        self.files: dict[str, Any] = {}
        self.hints: dict[str, Any] = {}  #: files without fsync
        self._durable_hints: dict[str, Any] = {}
        self.latency_factor = 1

    def write(self, offset: int, data: bytes | bytearray) -> None:
        end = offset + len(data)
        self.live[offset:end] = data
        self.extent = max(self.extent, end)

    def flush(self, end: int) -> None:
        """Make everything below `end` durable."""
        if end > self.flushed:
            self.durable[self.flushed : end] = self.live[self.flushed : end]
            self.flushed = end

    def shrink(self, end: int, *, zero: bool) -> None:
        """Lower the log's end, durably."""
        if zero:
            gap = bytes(max(0, self.extent - end))
            self.live[end : end + len(gap)] = gap
            self.durable[end : end + len(gap)] = gap
        self.flush(end)
        self.flushed = min(self.flushed, end)

    def lose_power(self, rng: random.Random) -> None:
        """Keep unflushed bytes at random, page by page."""
        durable = self.durable
        start = self.flushed
        while start < self.extent:
            end = min(self.extent, (start // PAGE_BYTES + 1) * PAGE_BYTES)
            fate = rng.random()
            if fate < 0.4:
                durable[start:end] = self.live[start:end]
            elif fate < 0.5:  # torn inside the page
                middle = rng.randint(start, end)
                durable[start:middle] = self.live[start:middle]
            start = end
        self.live[:] = durable
        if rng.random() < 0.5:
            self.hints = dict(self._durable_hints)

    def keep_hint(self, name: str, value: Any) -> None:
        """Write a file without fsync; it becomes durable some time later."""
        if name in self.hints:
            self._durable_hints[name] = self.hints[name]
        self.hints[name] = value

    def damage_bit(self, offset: int) -> None:
        """Flip one bit on the disk."""
        self.live[offset] ^= 1
        self.durable[offset] ^= 1

    def shrink_tail(self, end: int) -> None:
        """Drop a partial record behind the log's end."""
        gap = self.extent - end
        if gap > 0:
            self.live[end : self.extent] = bytes(gap)
            self.durable[end : self.extent] = bytes(gap)
