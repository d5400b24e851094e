"""Consume queue: the units of one topic and queue. Derived data.

    unit k at byte 20 * k:   physical offset i64 | total size of the record i32 | tags code i64

The files are sparse and of one size; unit k lies in the file that starts at 20 * k rounded down to
the file size (docs/formats/store-format.md, sections 3.1, 3.4-3.7). All zeros means unwritten. A
queue that begins above 0 or skips offsets has filler units (0, 0x7FFFFFFF, 0) in the gap. A lost
queue is rebuilt from the log at the next start.

New units wait in `tail`, where readers see them, until `QueueTable.write_out` writes many of them
into the file at once. `max_offset` is the end of the visible units, `next_offset` the offset that
the next append gets.

A store may have 80,000 queues, so an object is small (about 500 bytes with its names), loading
reads a queue once, and the first and the last unit seen by loading are cached.
"""

import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final

from ..format.layout import file_name
from ..format.queue_ext import QueueExt
from ..format.queue_files import QueueFiles
from ..format.record import topic_field
from ..format.record_layout import FILLER, FILLER_SIZE, UNIT, UNIT_BYTES

assert UNIT.size == UNIT_BYTES
#: Gaps are filled in steps, so that a wide one needs no wide buffer.
_FILL_UNITS: Final = 4096
#: Units encoded with one call.
_PACK_UNITS: Final = 256
#: Files up to this size are loaded with one read.
WHOLE_FILE_BYTES: Final = 65_536
_FILLER_BYTES: Final = UNIT.pack(*FILLER)
_POSITION_MAX: Final = (1 << 63) - 1
_NO_PATH: Final = (-1, "")


@lru_cache(maxsize=_PACK_UNITS + 1)
def _units(count: int) -> struct.Struct:
    return struct.Struct(">" + "qiq" * count)


def pack_units(flat: list[int]) -> bytes:
    """Encode [physical offset, size, tags code, physical offset, ...]."""
    step = 3 * _PACK_UNITS
    parts = (flat[at : at + step] for at in range(0, len(flat), step))
    return b"".join([_units(len(part) // 3).pack(*part) for part in parts])


def _is_possible(offset: int, size: int) -> bool:
    """Return whether a unit can have a record: it is neither a filler nor negative nor empty."""
    return 0 < size < FILLER_SIZE and offset >= 0


class ConsumeQueue:
    """Units [min_offset, max_offset) of one queue."""

    __slots__ = (
        "_files",
        "_first_at",
        "_first_position",
        "_known_at",
        "_known_end",
        "_path",
        "ext",
        "files_begin",
        "files_end",
        "max_offset",
        "min_offset",
        "next_offset",
        "queue_id",
        "tail",
        "tail_first",
        "topic",
        "topic_field",
        "topic_magic",
        "unconfirmed",
        "written_end",
    )

    def __init__(self, topic: str, queue_id: int, files: QueueFiles) -> None:
        self.topic = topic
        self.topic_magic, self.topic_field = topic_field(topic)
        self.queue_id = queue_id
        self.files_begin = 0  #: start byte of the first file
        self.files_end = 0  #: end byte of the last file; equal: no files
        self.min_offset = 0
        self.max_offset = 0
        self.next_offset = 0
        #: The encoded units [tail_first, max_offset).
        self.tail = bytearray()
        self.tail_first = 0
        self.written_end = 0  #: units before it are in the files; a flush thread moves it
        self.unconfirmed = False  #: loading found units that the log does not confirm
        self.ext: QueueExt | None = None  #: created on first use
        self._files = files
        self._path = _NO_PATH  # of the last file used; replaced atomically, by any thread
        # Cache: physical offset of unit `_first_at`, end in the log of unit `_known_at - 1`; -1:
        # none.
        self._first_at = self._known_at = -1
        self._first_position = self._known_end = -1

    @property
    def directory(self) -> str:
        return os.path.join(self._files.directory, self.topic, str(self.queue_id))

    @property
    def starts(self) -> range:
        """Start bytes of the files, ascending."""
        return range(self.files_begin, self.files_end, self._files.size)

    def _path_of(self, start: int) -> str:
        known = self._path
        if known[0] != start:
            known = self._path = (start, os.path.join(self.directory, file_name(start)))
        return known[1]

    # -- writing ------------------------------------------------------------------------------

    def put(self, units: bytes) -> None:
        """Add encoded units, visible at once. Their files are created when the units are
        written."""
        end = self.max_offset + len(units) // UNIT_BYTES
        if end * UNIT_BYTES > self.files_end:
            self._reach(end * UNIT_BYTES)
        self.tail += units
        self.max_offset = end

    def _reach(self, end: int) -> None:
        size = self._files.size
        if self.files_begin == self.files_end:
            position = self.max_offset * UNIT_BYTES
            self.files_begin = position - position % size
        self.files_end = end + -end % size

    def skip_to(self, number: int) -> None:
        """Continue at unit `number`: fillers fill the gap, in an empty queue from the start of the
        unit's file, else from the queue's end."""
        if self.files_begin == self.files_end:
            assigned = self.next_offset
            position = number * UNIT_BYTES
            self._begin_at((position - position % self._files.size) // UNIT_BYTES)
            self.next_offset = assigned
            self.min_offset = number
        while self.max_offset < number:
            self.put(_FILLER_BYTES * min(_FILL_UNITS, number - self.max_offset))

    def _begin_at(self, number: int) -> None:
        """Set the end: all units before `number` are in the files, none behind."""
        self.max_offset = self.next_offset = number
        self.tail_first = self.written_end = number
        self._first_at = self._known_at = -1
        self.tail.clear()

    def waiting(self) -> list[tuple[str, int, bytes]]:
        """Return the unwritten units of `tail`: path, position in the file, bytes."""
        first = max(self.tail_first, self.written_end)
        return self._parts(first, bytes(self.tail[(first - self.tail_first) * UNIT_BYTES :]))

    def _parts(self, first: int, units: bytes) -> list[tuple[str, int, bytes]]:
        position = first * UNIT_BYTES
        parts = []
        while units:
            start = position - position % self._files.size
            part = units[: start + self._files.size - position]
            parts.append((self._path_of(start), position - start, part))
            units = units[len(part) :]
            position += len(part)
        return parts

    def extend(self, units: bytes, write: Callable[[str, int, bytes], None]) -> None:
        """Add encoded units, which `write` writes into the files at once. The tail must be empty.
        Raises OSError."""
        assert not self.tail, "write out first"
        end = self.max_offset + len(units) // UNIT_BYTES
        if end * UNIT_BYTES > self.files_end:
            self._reach(end * UNIT_BYTES)
        for path, position, part in self._parts(self.max_offset, units):
            write(path, position, part)
        self.max_offset = self.tail_first = self.written_end = end
        self.next_offset = max(self.next_offset, end)

    def overwrite(
        self,
        first: int,
        units: Sequence[tuple[int, int, int]],
        write: Callable[[str, int, bytes], None],
    ) -> None:
        """Replace the units from `first` on, which `write` writes into the files at once. Raises
        OSError."""
        self._first_at = self._known_at = -1
        for number, unit in enumerate(units, first):
            if number >= self.tail_first:
                UNIT.pack_into(self.tail, (number - self.tail_first) * UNIT_BYTES, *unit)
        count = max(min(self.written_end - first, len(units)), 0)
        data = b"".join([UNIT.pack(*unit) for unit in units[:count]])
        for path, position, part in self._parts(first, data):
            write(path, position, part)

    def trim(self) -> None:
        """Drop units from the tail that are in the files."""
        if self.written_end > self.tail_first:
            del self.tail[: (self.written_end - self.tail_first) * UNIT_BYTES]
            self.tail_first = self.written_end

    # -- reading ------------------------------------------------------------------------------

    def read(self, first: int, count: int) -> bytes:
        """Return the units from `first` on: at least one, at most `count`, none behind
        `max_offset`."""
        count = min(count, self.max_offset - first)
        return self._read_raw(first, count) if count > 0 else b""

    def _read_raw(self, first: int, count: int) -> bytes:
        """Return units of one file, or of the tail; zeros for what a missing or a cut file
        lacks."""
        if first >= self.tail_first:
            begin = (first - self.tail_first) * UNIT_BYTES
            return bytes(self.tail[begin : begin + count * UNIT_BYTES])
        count = min(count, self.tail_first - first)
        position = first * UNIT_BYTES
        start = position - position % self._files.size
        size = min(count * UNIT_BYTES, start + self._files.size - position)
        try:
            units = self._files.read(self._path_of(start), size, position - start)
        except FileNotFoundError:
            units = b""
        return units if len(units) == size else units.ljust(size, b"\0")

    def unit(self, number: int) -> tuple[int, int, int]:
        """Return physical offset, size and tags code."""
        values: tuple[int, int, int] = UNIT.unpack(self._read_raw(number, 1))
        return values

    def first_with(self, key: Callable[[int], int], value: int, *, above: bool = False) -> int:
        """Return the first queue offset for which `key` is at least `value` (with `above`:
        greater); the end of the queue without one. `key` never decreases."""
        return self._bisect(self.min_offset, key, value, above)

    def known_end(self) -> int:
        """Return the end in the log of the last unit's record; -1 for an empty queue or a
        filler."""
        if self._known_at != self.max_offset:
            self._known_end = -1
            if self.max_offset > self.min_offset:
                offset, size, _ = self.unit(self.max_offset - 1)
                self._known_end = -1 if size == FILLER_SIZE else offset + size
            self._known_at = self.max_offset
        return self._known_end

    def _bisect(self, first: int, key: Callable[[int], int], value: int, right: bool) -> int:
        bisect = bisect_right if right else bisect_left
        return first + bisect(range(first, self.max_offset), value, key=key)

    def _position_of(self, number: int) -> int:
        """Return the physical offset of the unit's record; for a filler or an impossible unit
        (damaged) that of the next possible one, so that the sequence never decreases."""
        offset, size, _ = self.unit(number)
        return offset if _is_possible(offset, size) else self._next_position(number + 1)

    def _next_position(self, number: int) -> int:
        """Return the physical offset of the first possible unit from `number` on."""
        while number < self.max_offset:
            units = self._read_raw(number, min(_FILL_UNITS, self.max_offset - number))
            if any(units) and units != _FILLER_BYTES * (len(units) // UNIT_BYTES):
                for offset, size, _ in UNIT.iter_unpack(units):
                    if _is_possible(offset, size):
                        return int(offset)
            number += len(units) // UNIT_BYTES
        return _POSITION_MAX

    def after_fillers(self, number: int) -> int:
        """Return the first unit from `number` on that is not a filler."""
        if number < self.max_offset and self.unit(number)[1] != FILLER_SIZE:
            return number
        while number < self.max_offset:
            units = self._read_raw(number, _FILL_UNITS)
            count = len(units) // UNIT_BYTES
            if units != _FILLER_BYTES * count:
                sizes = (size for _, size, _ in UNIT.iter_unpack(units))
                return number + next(i for i, size in enumerate(sizes) if size != FILLER_SIZE)
            number += count
        return number

    # -- loading and recovery -----------------------------------------------------------------

    def load(
        self, starts: Sequence[int], is_whole: Callable[[int, int, int], bool], data: bytes = b""
    ) -> None:
        """Find the end: units that are not zero, then only those that the log confirms.

        `is_whole(number, physical offset, size)` checks the record. Bytes behind the end may be
        left over from a truncation that did not clear them (docs/formats/store-format.md, section
        3.6). `data` is the last file, if the caller has read it.
        """
        if not starts:
            return
        size = self._files.size
        self.files_begin = starts[0]
        self.files_end = starts[-1] + size
        begin = self.min_offset = starts[0] // UNIT_BYTES
        if not data and size <= WHOLE_FILE_BYTES:
            data = self._files.read_once(self._path_of(starts[-1]), size)
        end, unit = self._last_in(data, starts[-1] // UNIT_BYTES) if data else (-1, FILLER)
        self._begin_at(self.files_end // UNIT_BYTES if end < 0 else end)
        if end < 0:
            self.unconfirmed = bool(data)
            end = self._prefix(starts[-1] // UNIT_BYTES, lambda n: self.unit(n)[1] > 0)
            self._begin_at(end)
        if data and len(starts) == 1 and end > begin and data[8:12] != _FILLER_BYTES[8:12]:
            self._first_at = begin
            self._first_position = int.from_bytes(data[:8], "big")
        if end <= begin:
            return
        if unit == FILLER:
            unit = self.unit(end - 1)
        self._known_at = end
        self._known_end = -1 if unit[1] == FILLER_SIZE else unit[0] + unit[1]
        if not is_whole(end - 1, unit[0], unit[1]):
            self.unconfirmed = True
            self._begin_at(self._prefix(begin, lambda n: is_whole(n, *self.unit(n)[:2])))

    @staticmethod
    def _last_in(data: bytes, first: int) -> tuple[int, tuple[int, int, int]]:
        """Return the end of the units in a file, and the last of them; -1 if that is ambiguous."""
        count = (len(data.rstrip(b"\0")) + UNIT_BYTES - 1) // UNIT_BYTES
        if not count:
            return first, FILLER
        unit: tuple[int, int, int] = UNIT.unpack_from(data, (count - 1) * UNIT_BYTES)
        return (first + count, unit) if unit[1] > 0 else (-1, FILLER)

    def _prefix(self, first: int, holds: Callable[[int], bool]) -> int:
        """Return the end of the units from `first` on for which `holds` is true."""
        return self._bisect(first, lambda n: 0 if holds(n) else 1, 1, False)

    def truncate(self, physical_offset: int) -> None:
        """Drop the units of records at `physical_offset` and behind, and clear their bytes. Only
        after `load`."""
        if self._seen_whole and 0 <= self.known_end() <= physical_offset:
            return  # nothing to drop, and nothing behind the end
        end = self._prefix(self.min_offset, lambda n: self._is_before(n, physical_offset))
        stop = end * UNIT_BYTES
        size = self._files.size
        while self.files_begin < self.files_end and self.files_end - size >= stop:
            self.files_end -= size
            self._files.remove(self._path_of(self.files_end))
        if self.files_begin < self.files_end:
            start = self.files_end - size
            self._files.clear_from(self._path_of(start), stop - start)
        else:
            self.files_begin = self.files_end = 0
        self._begin_at(end)

    @property
    def _seen_whole(self) -> bool:
        """Whether loading read the whole last file and nothing has changed since."""
        small = self._files.size <= WHOLE_FILE_BYTES
        return small and not self.unconfirmed and self._known_at == self.max_offset

    def _is_before(self, number: int, physical_offset: int) -> bool:
        offset, size, _ = self.unit(number)
        return size > 0 and offset < physical_offset

    def clear(self) -> list[str]:
        """Remove all units, on disk too, and restart at 0; return the removed paths."""
        paths = [self._path_of(start) for start in self.starts]
        for path in paths:
            with suppress(FileNotFoundError):
                self._files.remove(path)
        self.files_begin = self.files_end = self.min_offset = 0
        self._begin_at(0)
        return paths

    def correct_min_offset(self, log_start: int) -> bool:
        """Skip deleted records and fillers at the start (docs/formats/store-format.md, section
        3.5). Returns whether the files had to be read."""
        if self.min_offset == self.max_offset:
            return False
        if self._first_at == self.min_offset and self._first_position >= log_start:
            return False
        first = self.after_fillers(self.min_offset)
        if first < self.max_offset:
            first = self.after_fillers(self._first_from(first, max(log_start, 0)))
        self.min_offset = first
        self._first_at = -1
        if first < self.max_offset:
            self._first_at, self._first_position = first, self.unit(first)[0]
        return True

    def _first_from(self, first: int, log_start: int) -> int:
        """Return the first unit from `first` on whose record lies at `log_start` or above. A unit
        in front of the result that points too low (damaged) does not hide those before it."""
        first_kept = self._bisect(first, self._position_of, log_start, False)
        while first_kept - 1 > first and self._position_of(first_kept - 2) >= log_start:
            before = range(first, first_kept - 1)
            first_kept = first + bisect_left(before, log_start, key=self._position_of)
        return first_kept

    @property
    def has_unused_file(self) -> bool:
        """Whether no unit of the first file is readable any more and it is not the last file."""
        end = self.files_begin + self._files.size
        return end < self.files_end and self.min_offset * UNIT_BYTES >= end

    def drop_files(self, log_start: int, count_max: int) -> int:
        """Delete up to `count_max` leading files whose last unit points below the log start; never
        the last file, so that offsets continue. Returns how many (docs/formats/store-format.md,
        section 10.3)."""
        size = self._files.size
        removed = 0
        while removed < count_max and self.files_begin + size < self.files_end:
            last = (self.files_begin + size) // UNIT_BYTES - 1
            if last >= self.written_end or last >= self.min_offset:
                break
            if self.unit(last)[0] >= log_start:
                break
            self._files.remove(self._path_of(self.files_begin))
            self.files_begin += size
            removed += 1
        if removed:
            self.min_offset = max(self.min_offset, self.files_begin // UNIT_BYTES)
        return removed
