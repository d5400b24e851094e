"""The timer log: files of units (`unit.py`) in the order in which messages were enqueued.

    | unit | unit | ...                    | remaining i32, 0 i64, 0xCBD43194 | zeros |
    0                                                               mappedFileSizeTimerLog

Files like those of the commit log (docs/formats/store-format.md, sections 1 and 11.4). A unit needs
16 bytes behind it; otherwise an end mark is written, which only its magic distinguishes from a unit
(the remaining bytes may be 52), and the next file begins. Space is reserved when a file is created;
it is read with pread.

Derived data: after its loss the timer topic is enqueued again. Appended units are in the page cache
and survive the process; `sync` makes them durable. Physical offsets increase, because the timer
topic is enqueued in order.
"""

import errno
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Final

from ..format.disk import NO_SPACE_FOR_FILE, Disk, data_ranges
from ..format.errors import DiskFullError, RecordFormatError, StoreError
from ..format.layout import file_name, list_files
from ..format.record_layout import (
    MAGIC_BLANK,
)
from .unit import (
    UNIT_BYTES,
    TimerUnit,
    are_plausible,
    count_plausible,
    decode_unit,
    unit_type,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

END: Final = struct.Struct(">iqi")
#: Bytes kept free behind a unit, so that the end mark fits.
END_BYTES: Final = END.size
_NO_OFFSET: Final = 1 << 63
#: Bytes per read of a walk; a chain is followed in blocks, as neighbours often lie close.
_WALK_BYTES: Final = 32_768 * UNIT_BYTES
_BLOCK_BYTES: Final = 16 << 10
_OPEN_FILES_MAX: Final = 16
_ZEROS: Final = bytes(64 << 10)


class TimerWalk:
    """Iterates the units from `begin` to the first position without one; `end` and `reason` then
    hold where and why it stopped (an empty reason: the unwritten rest)."""

    def __init__(self, log: "TimerLog", begin: int) -> None:
        self._log = log
        self.end = begin
        self.reason = ""

    def __iter__(self) -> Iterator[tuple[int, TimerUnit]]:
        """Yield positions and units, one by one."""
        for position, rows in self.batches():
            for index, (_, *values) in enumerate(rows.tolist()):
                yield position + index * UNIT_BYTES, TimerUnit._make(values)

    def batches(self) -> "Iterator[tuple[int, NDArray[np.void]]]":
        """Yield the position of the first unit and consecutive units, as `unit_type` rows."""
        log = self._log
        for start in [start for start in log.starts if start + log.file_bytes > self.end]:
            self.end = max(start, self.end)
            if not (yield from self._batches_of_file(start)):
                return
            self.end = start + log.file_bytes

    def _batches_of_file(self, start: int) -> "Generator[tuple[int, NDArray[np.void]], None, bool]":
        """Yield the units of one file; return true if it ends with an end mark."""
        import numpy as np

        log = self._log
        stop = start + log.file_bytes
        while stop - self.end >= UNIT_BYTES + END_BYTES:
            begin = self.end
            data = log.pread(start, min(_WALK_BYTES, stop - begin - END_BYTES), begin - start)
            rows = np.frombuffer(data, unit_type(), count=len(data) // UNIT_BYTES)
            good = count_plausible(rows, begin)
            self.end += good * UNIT_BYTES
            if good:
                yield begin, rows[:good]
            if good == 0 or good < len(rows):
                head = log.pread(start, END_BYTES, self.end - start).ljust(END_BYTES, b"\0")
                return self._stop_at(*END.unpack(head))
        remaining, prev, magic = END.unpack(log.pread(start, END_BYTES, self.end - start))
        if magic == MAGIC_BLANK and remaining == stop - self.end:
            return True
        return self._stop_at(remaining, prev, magic)

    def _stop_at(self, size: int, prev: int, magic: int) -> bool:
        if size or prev or magic:
            self.reason = f"no timer unit at {self.end}: size {size}, magic {magic}."
        return False


class TimerLog:
    """The files, read and appended by one thread; `sync` may run on another."""

    def __init__(self, directory: str, file_bytes: int, disk: Disk) -> None:
        self.directory = directory
        self.file_bytes = file_bytes
        self.starts: list[int] = []  #: start positions of the files, ascending
        self.end = 0  #: position of the next unit (or the end mark)
        self._disk = disk
        self._descriptors: dict[int, int] = {}
        self._dirty: set[int] = set()  # starts of files that were written since the last flush
        self._syncing: tuple[int, ...] = ()
        self._block = b""
        self._block_at = 0

    @property
    def start(self) -> int:
        return self.starts[0] if self.starts else 0

    def load(self) -> str:
        """Find the files; everything counts as written until `truncate` sets the end.

        Returns the path of an unfinished last file, or "". Changes nothing. Raises
        UnsupportedLayoutError.
        """
        files = list_files(self.directory, self.file_bytes, "mappedFileSizeTimerLog")
        self.starts = list(files.starts)
        self.end = self.starts[-1] + self.file_bytes if self.starts else 0
        return files.unfinished

    # -- reading ------------------------------------------------------------------------------

    def walk(self, begin: int = 0) -> TimerWalk:
        """Walk from `begin`, the position of a unit or of a file, to the end."""
        return TimerWalk(self, max(begin, self.start))

    def read(self, position: int) -> TimerUnit:
        """Return one unit. Raises RecordFormatError without one."""
        start = position - position % self.file_bytes
        if position < self.start or position >= self.end:
            raise RecordFormatError(f"no timer unit at {position}: outside of the timer log.")
        at = position - self._block_at
        if not 0 <= at <= len(self._block) - UNIT_BYTES:
            # A chain goes backwards: the next unit lies before this one.
            stop = min(position - start + UNIT_BYTES, self.file_bytes)
            begin = max(stop - _BLOCK_BYTES, 0)
            self._block = self.pread(start, stop - begin, begin)
            self._block_at = start + begin
            at = position - self._block_at
        return decode_unit(self._block, at, position)

    def units_of(self, time: int, precision_ms: int) -> list[tuple[int, TimerUnit]]:
        """Return all units of a slot with their positions, oldest first, by a search through the
        whole log that skips damaged units."""
        import numpy as np

        units: list[tuple[int, TimerUnit]] = []
        for start in self.starts:
            stop = min(start + self._units_in(start) * UNIT_BYTES, self.end)
            for position in range(start, stop, _WALK_BYTES):
                data = self.pread(start, min(_WALK_BYTES, stop - position), position - start)
                rows = np.frombuffer(data, unit_type(), count=len(data) // UNIT_BYTES)
                times = (rows["write_ms"].astype(np.int64) + rows["delay_ms"]) // precision_ms
                wanted = (times == time) & are_plausible(rows, position)
                for at in np.flatnonzero(wanted).tolist():
                    unit = TimerUnit._make(rows[at].item()[1:])
                    units.append((position + at * UNIT_BYTES, unit))
        return units

    def chain(self, last: int) -> Iterator[tuple[int, TimerUnit]]:
        """Yield the units of one slot, newest first, down to the oldest that exists.

        Raises RecordFormatError where the chain is broken.
        """
        while last >= self.start and last >= 0:
            unit = self.read(last)
            yield last, unit
            last = unit.prev

    def find(self, physical_offset: int) -> int:
        """Return the position of the unit of this message, or -1. Raises RecordFormatError."""
        found = bisect_right(self.starts, physical_offset, key=self._offset_at) - 1
        if found < 0:
            return -1
        start = self.starts[found]
        places = range(start, start + self._units_in(start) * UNIT_BYTES, UNIT_BYTES)
        index = bisect_left(places, physical_offset, key=self._offset_at)
        if index < len(places) and self._offset_at(places[index]) == physical_offset:
            return places[index]
        return -1

    def _offset_at(self, position: int) -> int:
        return _NO_OFFSET if position >= self.end else self.read(position).physical_offset

    def pread(self, start: int, size: int, position: int) -> bytes:
        """Return bytes of the file that begins at `start`."""
        return self._disk.pread(self._descriptor(start), size, position)

    def _descriptor(self, start: int) -> int:
        descriptor = self._descriptors.pop(start, -1)
        if descriptor < 0:
            descriptor = self._disk.open(self._path(start), os.O_RDWR)
        self._descriptors[start] = descriptor
        if len(self._descriptors) > _OPEN_FILES_MAX:
            kept = self._dirty.union(self._syncing, (start,))
            oldest = next((each for each in self._descriptors if each not in kept), None)
            if oldest is not None:
                os.close(self._descriptors.pop(oldest))
        return descriptor

    def _path(self, start: int) -> str:
        return os.path.join(self.directory, file_name(start))

    # -- writing ------------------------------------------------------------------------------

    def append(self, unit: TimerUnit) -> int:
        """Write a unit; return its position. Raises DiskFullError, StoreError or OSError."""
        position = self.end
        stop = self.starts[-1] + self.file_bytes if self.starts else position
        if stop - position < UNIT_BYTES + END_BYTES:
            # The file before the mark: without a mark the next start removes the file.
            self._create(stop)
            if stop > position:
                self._write(position, END.pack(stop - position, 0, MAGIC_BLANK))
            self.starts.append(stop)
            self.end = position = stop
        self._write(position, unit.encode())
        self.end = position + UNIT_BYTES
        return position

    def _write(self, position: int, data: bytes) -> None:
        start = position - position % self.file_bytes
        done = self._disk.pwrite(self._descriptor(start), data, position - start)
        if done != len(data):
            raise OSError(errno.EIO, f"{done} of {len(data)} bytes written", self._path(start))
        self._dirty.add(start)
        self._block = b""

    def _create(self, start: int) -> None:
        path = self._path(start)
        descriptor = -1
        try:
            os.makedirs(self.directory, exist_ok=True)
            descriptor = self._disk.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            self._disk.fallocate(descriptor, self.file_bytes)
            self._disk.fsync(descriptor)
            self._disk.sync_directory(self.directory)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
                os.unlink(path)
            kind = DiskFullError if error.errno in NO_SPACE_FOR_FILE else StoreError
            raise kind(f"The timer log file {path} cannot be created: {error}.") from error
        self._descriptors[start] = descriptor

    def take_dirty(self) -> tuple[int, ...]:
        """Return the descriptors for `sync`: all that was appended so far. Not while it runs."""
        self._syncing = (*self._syncing, *sorted(self._dirty.difference(self._syncing)))
        self._dirty.clear()
        return tuple(self._descriptors[start] for start in self._syncing)

    def mark_unflushed(self, flushed: int) -> None:
        """Mark everything behind `flushed`, written by an earlier process, for the next flush."""
        for start in self.starts:
            if start + self.file_bytes > flushed and self.end > flushed:
                self._descriptor(start)
                self._dirty.add(start)

    def sync(self, descriptors: tuple[int, ...]) -> None:
        """Flush the files, in order. Raises OSError."""
        for descriptor in descriptors:
            self._disk.fdatasync(descriptor)
        self._syncing = ()

    # -- recovery and retention ---------------------------------------------------------------

    def truncate(self, position: int) -> int:
        """Drop and clear everything from `position` on; return how many bytes were not zero. Not
        while `sync` runs."""
        cut = 0
        while self.starts and self.starts[-1] > position:
            start = self.starts.pop()
            cut += self._clear(start, 0)
            self._remove(start)
        if self.starts:
            start = self.starts[-1]
            cut += self._clear(start, min(position - start, self.file_bytes))
        self.end = min(position, self.starts[-1] + self.file_bytes) if self.starts else 0
        self._block = b""
        return cut

    def _clear(self, start: int, begin: int) -> int:
        cut = 0
        # A reserved file is mostly a hole: to read all of it would delay a promotion by 0.5 s.
        for first, end in data_ranges(self._descriptor(start), begin, self.file_bytes):
            for position in range(first, end, len(_ZEROS)):
                data = self.pread(start, min(len(_ZEROS), end - position), position)
                if data != _ZEROS[: len(data)]:
                    used = len(data.rstrip(b"\0"))
                    cut += used
                    self._write(start + position, _ZEROS[:used])
        return cut

    def trim(self, log_start: int) -> int:
        """Remove files whose messages all lie before `log_start`; return how many. Never the last
        file. Not while `sync` runs."""
        removed = 0
        while len(self.starts) > 1 and self._newest_in(self.starts[0]) < log_start:
            self._remove(self.starts.pop(0))
            removed += 1
        if removed:
            self._disk.sync_directory(self.directory)
            self._block = b""
        return removed

    def _newest_in(self, start: int) -> int:
        """Return the largest physical offset in a full file. Nearly always the last unit's, but a
        message that was enqueued again after a crash may lie behind later ones."""
        newest = -1
        for position, rows in self.walk(start).batches():
            if position >= start + self.file_bytes:
                break
            newest = max(newest, int(rows["physical_offset"].max()))
        return newest

    def _units_in(self, start: int) -> int:
        last = start == self.starts[-1]
        return (self.end - start if last else self.file_bytes - END_BYTES) // UNIT_BYTES

    def _remove(self, start: int) -> None:
        descriptor = self._descriptors.pop(start, -1)
        if descriptor >= 0:
            os.close(descriptor)
        self._dirty.discard(start)
        self._syncing = tuple(each for each in self._syncing if each != start)
        self._disk.unlink(self._path(start))

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])
