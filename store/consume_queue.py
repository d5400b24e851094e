"""One consume queue: where the records of one topic and queue lie in the log. Derived data.

    unit k at byte 20 * k:   physical offset i64 | total size of the record i32 | tags code i64

The files are sparse and of one size; unit k lies in the file that starts at 20 * k rounded down to it
(store format, sections 3.1, 3.4-3.7). All zeros means that nothing was written there. Where a queue
begins above 0 or skips offsets, filler units (0, 0x7FFFFFFF, 0) stand in the gap. Losing a queue
costs a walk over the log at the next start, nothing else.

New units wait in `tail` until `QueueTable.write_out` puts many of them into the file at once; readers
see them there. `max_offset` is the end of what readers see, `next_offset` the offset that the next
append gets.
"""

import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from .config import CONSUME_QUEUE_UNIT_BYTES as UNIT_BYTES
from .layout import file_name
from .queue_files import QueueFiles
from .record import topic_field

UNIT: Final = struct.Struct(">qiq")
assert UNIT.size == UNIT_BYTES
FILLER_SIZE: Final = 0x7FFFFFFF
FILLER: Final = (0, FILLER_SIZE, 0)
#: Gaps are filled in steps, so that a wide one needs no wide buffer.
_FILL_UNITS: Final = 4096
#: Units encoded with one call.
_PACK_UNITS: Final = 256


@lru_cache(maxsize=_PACK_UNITS + 1)
def _units(count: int) -> struct.Struct:
    return struct.Struct(">" + "qiq" * count)


def pack_units(flat: list[int]) -> bytes:
    """Encode [physical offset, size, tags code, physical offset, ...]."""
    step = 3 * _PACK_UNITS
    parts = (flat[at : at + step] for at in range(0, len(flat), step))
    return b"".join([_units(len(part) // 3).pack(*part) for part in parts])


class _Keyed:
    """A range of unit numbers seen through a key, for bisect."""

    __slots__ = ("_first", "_key", "_length")

    def __init__(self, first: int, end: int, key: Callable[[int], int]) -> None:
        self._first = first
        self._length = max(end - first, 0)
        self._key = key

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return self._key(self._first + index)


class ConsumeQueue:
    """Units [min_offset, max_offset) of one queue."""

    __slots__ = (
        "_files",
        "_files_end",
        "directory",
        "disbelieved",
        "max_offset",
        "min_offset",
        "next_offset",
        "queue_id",
        "starts",
        "tail",
        "tail_first",
        "topic",
        "topic_field",
        "topic_magic",
        "written_end",
    )

    def __init__(self, topic: str, queue_id: int, directory: str, files: QueueFiles) -> None:
        self.topic = topic
        self.topic_magic, self.topic_field = topic_field(topic)
        self.queue_id = queue_id
        self.directory = directory
        self.starts: list[int] = []  #: start bytes of the files there are, ascending
        self.min_offset = 0
        self.max_offset = 0
        self.next_offset = 0
        #: Units [tail_first, max_offset): physical offset, size, tags code, physical offset, ...
        self.tail: list[int] = []
        self.tail_first = 0
        self.written_end = 0  #: units before it are in the files; a flush thread moves it
        self.disbelieved = False  #: loading found units that the log does not confirm
        self._files = files
        self._files_end = 0  # byte behind the last file

    def _path_of(self, start: int) -> str:
        return os.path.join(self.directory, file_name(start))

    # -- writing ------------------------------------------------------------------------------

    def put(self, flat: list[int]) -> None:
        """Add units [physical offset, size, tags code, ...], visible at once. Raises OSError when a
        new file cannot be made."""
        end = self.max_offset + len(flat) // 3
        if end * UNIT_BYTES > self._files_end:
            self._make_files(end * UNIT_BYTES)
        self.tail += flat
        self.max_offset = end

    def _make_files(self, end: int) -> None:
        size = self._files.size
        if not self.starts:
            position = self.max_offset * UNIT_BYTES
            self._files_end = position - position % size
        while self._files_end < end:
            self._files.create(self._path_of(self._files_end))
            self.starts.append(self._files_end)
            self._files_end += size

    def leap(self, number: int) -> None:
        """Go on at unit `number`: fillers stand in the gap, from the start of the unit's file in an
        empty queue, else from where the queue ends."""
        if not self.starts:
            assigned = self.next_offset
            position = number * UNIT_BYTES
            self._begin_at((position - position % self._files.size) // UNIT_BYTES)
            self.next_offset = assigned
            self.min_offset = number
        while self.max_offset < number:
            self.put([*FILLER] * min(_FILL_UNITS, number - self.max_offset))

    def _begin_at(self, number: int) -> None:
        """All units before `number` are in the files, none behind."""
        self.max_offset = self.next_offset = number
        self.tail_first = self.written_end = number
        self.tail.clear()

    def waiting(self) -> list[tuple[str, int, bytes]]:
        """What `tail` holds: path, position in the file, bytes."""
        first = max(self.tail_first, self.written_end)
        units = pack_units(self.tail[(first - self.tail_first) * 3 :])
        position = first * UNIT_BYTES
        parts = []
        while units:
            start = position - position % self._files.size
            part = units[: start + self._files.size - position]
            parts.append((self._path_of(start), position - start, part))
            units = units[len(part) :]
            position += len(part)
        return parts

    def trim(self) -> None:
        """Let go of units that are in the files."""
        if self.written_end > self.tail_first:
            del self.tail[: (self.written_end - self.tail_first) * 3]
            self.tail_first = self.written_end

    # -- reading ------------------------------------------------------------------------------

    def read(self, first: int, count: int) -> bytes:
        """The units from `first` on: at least one, at most `count`, none behind `max_offset`."""
        count = min(count, self.max_offset - first)
        if count <= 0:
            return b""
        return self._read_raw(first, count)

    def _read_raw(self, first: int, count: int) -> bytes:
        if first >= self.tail_first:
            begin = (first - self.tail_first) * 3
            return pack_units(self.tail[begin : begin + count * 3])
        count = min(count, self.tail_first - first)
        position = first * UNIT_BYTES
        start = position - position % self._files.size
        size = min(count * UNIT_BYTES, start + self._files.size - position)
        return self._files.read(self._path_of(start), size, position - start)

    def unit(self, number: int) -> tuple[int, int, int]:
        """Physical offset, size, tags code."""
        values: tuple[int, int, int] = UNIT.unpack(self._read_raw(number, 1))
        return values

    def offset_by_time(self, timestamp_ms: int, upper: bool, time_of: Callable[[int], int]) -> int:
        """First unit at or after the time, or with `upper` the last one at or before it; always
        within [min_offset, max_offset]. `time_of` gives the store time for a physical offset."""
        first = self.min_offset
        found = self._bisect(first, lambda n: time_of(self.unit(n)[0]), timestamp_ms, upper)
        return max(found - 1, first) if upper else found

    def _bisect(self, first: int, key: Callable[[int], int], value: int, right: bool) -> int:
        bisect = bisect_right if right else bisect_left
        return first + bisect(_Keyed(first, self.max_offset, key), value)

    # -- loading and recovery -----------------------------------------------------------------

    def load(self, starts: list[int], is_whole: Callable[[int, int, int], bool]) -> None:
        """Find the end: units that hold something, then only those that the log confirms.

        `is_whole(number, physical offset, size)` looks at the record. Bytes behind the end may be
        leftovers of a truncation that did not clear them (store format, section 3.6).
        """
        self.starts = starts
        if not starts:
            return
        self._files_end = starts[-1] + self._files.size
        begin = self.min_offset = starts[0] // UNIT_BYTES
        self._begin_at(self._files_end // UNIT_BYTES)
        self._begin_at(self._prefix(starts[-1] // UNIT_BYTES, lambda n: self.unit(n)[1] > 0))
        last = self.max_offset - 1
        if last >= begin and not is_whole(last, *self.unit(last)[:2]):
            self.disbelieved = True
            self._begin_at(self._prefix(begin, lambda n: is_whole(n, *self.unit(n)[:2])))

    def _prefix(self, first: int, holds: Callable[[int], bool]) -> int:
        """End of the units from `first` on for which `holds` is true."""
        return self._bisect(first, lambda n: 0 if holds(n) else 1, 1, False)

    def truncate(self, physical_offset: int) -> None:
        """Drop the units of records at `physical_offset` and behind, and clear their bytes. For a
        queue that was just loaded."""
        end = self._prefix(self.min_offset, lambda n: self._is_before(n, physical_offset))
        stop = end * UNIT_BYTES
        while self.starts and self.starts[-1] >= stop:
            self._files.remove(self._path_of(self.starts.pop()))
        self._files_end = 0
        if self.starts:
            start = self.starts[-1]
            self._files_end = start + self._files.size
            self._files.clear_from(self._path_of(start), stop - start)
        self._begin_at(end)

    def _is_before(self, number: int, physical_offset: int) -> bool:
        offset, size, _ = self.unit(number)
        return size > 0 and offset < physical_offset

    def correct_min_offset(self, log_start: int) -> None:
        """Skip what retention or a filler took away (store format, section 3.5)."""
        first = self.min_offset
        if first < self.max_offset and self._start_of(first) >= log_start:
            return
        self.min_offset = self._bisect(self.min_offset, self._start_of, max(log_start, 0), False)

    def _start_of(self, number: int) -> int:
        offset, size, _ = self.unit(number)
        return -1 if size == FILLER_SIZE else offset
