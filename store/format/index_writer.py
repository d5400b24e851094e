"""The index file that is being filled, many entries at once (NumPy). Derived data.

Entries are written as they come, one pwrite per batch; slots and header stay in memory (20 MB for
5,000,000 slots) until the file is full or the store stops: slots are updated at random, so writing
them with every batch would write all of them every time. After a kill the header does not count the
new entries; the next start rebuilds the file (docs/formats/store-format.md, section 4: load).

A failed write changes nothing in memory: the same entries can be put again.
"""

import os
import zlib
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from .disk import Disk
from .index_file import (
    ENTRY,
    HEADER,
    MS_PER_SECOND,
    SLOT,
    IndexDigest,
    IndexHeader,
    IndexLayout,
    seconds_since,
)
from .index_keys import Entries, Integers

#: The entry as a NumPy type.
INDEX_ENTRY: Final = np.dtype(
    [("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
_INT_MAX: Final = (1 << 31) - 1
#: Only slot pages that changed are written; the others stay holes.
_PAGE_SLOTS: Final = 1024
assert INDEX_ENTRY.itemsize == ENTRY.size


class IndexWriter:
    """One open file with space for `room` more entries."""

    def __init__(
        self,
        path: str,
        layout: IndexLayout,
        header: IndexHeader,
        disk: Disk,
        *,
        create: bool,
        entries_sum: int = 0,
    ) -> None:
        """Create the file (all zeros), or continue one that was closed, whose entries have this
        checksum. Raises OSError; a file that could not be created is removed."""
        self.path = path
        #: Checksum of the entries before `header.count`.
        self.entries_sum = entries_sum
        self.header = header
        self._layout = layout
        self._disk = disk
        self._changed = np.zeros(layout.slots // _PAGE_SLOTS + 1, np.bool_)
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
        self._descriptor = disk.open(path, flags)
        try:
            if create:
                disk.truncate(self._descriptor, layout.file_bytes)
                self._slots = np.zeros(layout.slots, ">i4")
            else:
                size = layout.slots * SLOT.size
                slots = np.frombuffer(disk.pread(self._descriptor, size, HEADER.size), ">i4")
                self._slots = slots.copy()
        except OSError:
            os.close(self._descriptor)
            if create:
                os.unlink(path)
            raise

    @property
    def room(self) -> int:
        return self._layout.entries - self.header.count

    def slot(self, hash_: int) -> int:
        """Return the number of the newest entry in the chain of this hash."""
        return int(self._slots[hash_ % self._layout.slots])

    def put(self, entries: Entries, begin: int, end: int) -> None:
        """Append entries [begin, end), in order; they must fit. Raises OSError."""
        count = end - begin
        header = self.header
        offsets = entries.offsets[begin:end]
        times = entries.times[begin:end]
        hashes = entries.hashes[begin:end]
        first = header.count
        slots = hashes % self._layout.slots
        previous, heads, tails = self._link(slots, first)
        new: Any = np.empty(count, INDEX_ENTRY)
        new["hash"] = hashes
        new["offset"] = offsets
        new["seconds"] = self._seconds(times)
        new["previous"] = previous
        data = memoryview(new).cast("B")
        self._write(data, self._layout.entry_at(first))
        self.entries_sum = zlib.crc32(data, self.entries_sum)
        header.slots_used += int(np.count_nonzero(previous[heads] == 0))
        touched = slots[tails]
        self._slots[touched] = tails + first
        self._changed[touched // _PAGE_SLOTS] = True
        if first <= 1:
            header.begin_offset, header.begin_timestamp_ms = int(offsets[0]), int(times[0])
        header.end_offset, header.end_timestamp_ms = int(offsets[-1]), int(times[-1])
        header.count = first + count

    def _link(self, slots: Integers, first: int) -> tuple[Integers, Integers, Integers]:
        """Return for each entry the previous one in its chain, and which are the first and the last
        of this batch in their chains."""
        order = slots << 32 | np.arange(len(slots))
        order.sort()
        place = order & 0xFFFFFFFF
        same = np.zeros(len(slots) + 1, np.bool_)  # whether neighbours share a chain
        same[1:-1] = slots[place[1:]] == slots[place[:-1]]
        heads, tails = place[~same[:-1]], place[~same[1:]]
        previous = np.empty(len(slots), np.int64)
        previous[place[1:]] = place[:-1] + first
        old = self._slots[slots[heads]].astype(np.int64)
        old[(old < 0) | (old > heads + first)] = 0
        previous[heads] = old
        return previous, heads, tails

    def _seconds(self, times: Integers) -> Integers:
        """Return the time fields: the first entry's since the header's time, the others' since the
        first entry's."""
        header = self.header
        begin = header.begin_timestamp_ms if header.count > 1 else int(times[0])
        if begin > 0:
            seconds: Integers = np.minimum(np.maximum(times - begin, 0) // MS_PER_SECOND, _INT_MAX)
        else:
            seconds = np.zeros(len(times), np.int64)
        if header.count <= 1:
            seconds[0] = seconds_since(header.begin_timestamp_ms, int(times[0]))
        return seconds

    def _write(self, data: bytes | memoryview, position: int) -> None:
        while data:
            done = self._disk.pwrite(self._descriptor, data, position)
            data = data[done:]
            position += done

    def write_out(self) -> None:
        """Complete the file: write slots, then the header. Raises OSError."""
        self.write_slots()
        self._write(self.header.encode(), 0)

    def write_slots(self) -> None:
        """Write the slots that changed. Raises OSError."""
        pages = np.flatnonzero(self._changed)
        borders = np.flatnonzero(np.diff(pages) > 1) + 1
        for run in np.split(pages, borders):
            if len(run):
                begin = int(run[0]) * _PAGE_SLOTS
                slots = self._slots[begin : (int(run[-1]) + 1) * _PAGE_SLOTS]
                self._write(slots.data.cast("B"), HEADER.size + begin * SLOT.size)
        self._changed[:] = False

    def write_header_behind(self) -> None:
        """Write a header whose end lies behind the last record instead of at its start: Apache's
        broker indexes records from the end on, so it does not index this one again."""
        self._write(replace(self.header, end_offset=self.header.end_offset + 1).encode(), 0)

    def digest(self) -> IndexDigest:
        """Return the digest of the complete file, from memory. Any thread, once it is full."""
        head = zlib.crc32(self._slots.data.cast("B"), zlib.crc32(self.header.encode()))
        return IndexDigest(head, self.entries_sum, self._layout.file_bytes)

    def sync(self) -> None:
        self._disk.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the descriptor only; call `write_out` before, if the file is to be kept."""
        os.close(self._descriptor)
