"""Bytes that the records of one queue take in the log, from the sizes in its units. Derived data,
in memory: after a start the queue is read again, in bounded steps.

Sums are kept by block of units, so that what retention removes is subtracted without a look at
units that may be gone. A record that is in several queues counts in each; a filler counts nothing.
"""

from typing import Final

from ..format.record_layout import FILLER_SIZE
from .consume_queue import ConsumeQueue

#: Units of a block: 8 bytes of memory for each 80 KB of a queue.
BLOCK_UNITS: Final = 4096


class QueueBytes:
    """Counts the bytes of one queue's records; each `read` continues where the last one ended."""

    __slots__ = ("_begin", "_blocks", "_end", "_queue", "total")

    def __init__(self, queue: ConsumeQueue) -> None:
        self._queue = queue
        #: Bytes of the units that have been read.
        self.total = 0
        self._begin = self._end = queue.min_offset
        #: Bytes by number of the block, ascending.
        self._blocks: dict[int, int] = {}

    def is_of(self, queue: ConsumeQueue) -> bool:
        """Return whether this counts the given queue, and not a deleted one of the same name."""
        return self._queue is queue

    def read(self, units_max: int) -> int:
        """Follow the queue's beginning, and its end by up to `units_max` units; return how many
        were read. Raises OSError."""
        queue = self._queue
        if not self._begin <= queue.min_offset <= self._end <= queue.max_offset:
            self._restart()
        used = self._follow_begin() if queue.min_offset > self._begin else 0
        while used < units_max and self._end < queue.max_offset:
            block = self._end // BLOCK_UNITS
            count = min((block + 1) * BLOCK_UNITS - self._end, units_max - used)
            size, read = self._sum(self._end, count)
            self._blocks[block] = self._blocks.get(block, 0) + size
            self.total += size
            self._end += read
            used += read
        return used

    def _restart(self) -> None:
        """Begin again: the queue was cut, or its beginning has passed what was read."""
        self.total = 0
        self._begin = self._end = self._queue.min_offset
        self._blocks.clear()

    def _follow_begin(self) -> int:
        self._begin = self._queue.min_offset
        first = self._begin // BLOCK_UNITS
        while self._blocks and (block := next(iter(self._blocks))) < first:
            self.total -= self._blocks.pop(block)
        if first not in self._blocks:
            return 0
        self.total -= self._blocks[first]
        at, end, size = self._begin, min(self._end, (first + 1) * BLOCK_UNITS), 0
        while at < end:
            more, read = self._sum(at, end - at)
            size, at = size + more, at + read
        self._blocks[first] = size
        self.total += size
        return end - self._begin

    def _sum(self, first: int, count: int) -> tuple[int, int]:
        """Return the bytes of some units from `first` on, and how many units these are."""
        # Imported here because NumPy is large; a store that is open has loaded it.
        import numpy as np

        from ..scan.dtypes import QUEUE_UNIT

        sizes = np.frombuffer(self._queue.read(first, count), QUEUE_UNIT)["size"]
        known = sizes[(sizes > 0) & (sizes != FILLER_SIZE)]
        return int(known.sum(dtype=np.int64)), len(sizes)
