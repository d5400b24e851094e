"""The timer wheel: for every second of two weeks, the chain of its timers in the timer log.

offset  size  field of a slot
     0     8  time: due time / precision (seconds, with the default precision); 0 = never used
     8     8  first: position of the oldest unit of the chain in the timer log
    16     8  last: position of the newest one; each unit names the one before it
    24     4  num: units that were put less those that cancel
    28     4  magic, unused

1,209,600 slots of 32 bytes in one file (docs/formats/store-format.md, section 11.4); the slot of a
time is (time / precision) mod 1,209,600, and it belongs to this time only if its first field equals
it. Slots are not cleared after delivery: they are overwritten two weeks later.

Derived data: recovery rebuilds slots from the timer log. The file is sparse and never mapped: it is
read with pread and written with pwrite, so a full disk is an error of `write_out`, not a signal.
Memory holds the changes since the last flush (about 200 bytes per slot), and a checksum of every
slot in the file, so that a slot that changes on the disk afterwards is found (`lost`). Pages of
checksums without a used slot take no memory. A slot lies within one sector, so a crash leaves it
old or new, never torn.
"""

import errno
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from heapq import merge
from typing import Final, NamedTuple

from ..config.store_config import TIMER_SLOTS
from ..format.disk import Disk, data_ranges
from ..format.errors import UnsupportedLayoutError

SLOT: Final = struct.Struct(">qqqii")
SLOT_BYTES: Final = SLOT.size
FILE_BYTES: Final = TIMER_SLOTS * SLOT_BYTES
_CHUNK_BYTES: Final = 2048 * SLOT_BYTES
_ZEROS: Final = bytes(_CHUNK_BYTES)
_SUM_BYTES: Final = 4
_NUM_MAX: Final = (1 << 31) - 1


class Slot(NamedTuple):
    """One slot; see the module docstring."""

    time: int
    first: int
    last: int
    num: int
    magic: int = 0

    def encode(self) -> bytes:
        return SLOT.pack(*self)

    @classmethod
    def decode(cls, data: bytes | memoryview, offset: int = 0) -> "Slot":
        return cls._make(SLOT.unpack_from(data, offset))


#: An empty slot.
NONE: Final = Slot(-1, -1, -1, 0)
_UNUSED: Final = Slot(0, 0, 0, 0)


def read_slots(descriptor: int, size: int = FILE_BYTES) -> Iterator[tuple[int, Slot]]:
    """Yield index and content of every slot in a wheel file that is not all zeros, in file
    order."""
    for begin, end in list(_slot_ranges(descriptor, size)):
        for position in range(begin, end, _CHUNK_BYTES):
            chunk = os.pread(descriptor, min(_CHUNK_BYTES, end - position), position)
            if chunk == _ZEROS[: len(chunk)]:
                continue
            whole = len(chunk) - len(chunk) % SLOT_BYTES
            for index, values in enumerate(SLOT.iter_unpack(chunk[:whole])):
                slot = Slot._make(values)
                if slot != _UNUSED:
                    yield position // SLOT_BYTES + index, slot


def _slot_ranges(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of the file that may hold data, in whole slots. Raises OSError."""
    position = 0
    for begin, end in data_ranges(descriptor, 0, size):
        slots_end = end + -end % SLOT_BYTES
        yield max(begin - begin % SLOT_BYTES, position), slots_end
        position = slots_end


class TimerWheel:
    """The wheel in use: the file, and the changes since the last flush.

    One thread calls everything but `write_out`, which may run on another. Another number of slots
    is for tests: Apache supports only this one.
    """

    def __init__(self, path: str, precision_ms: int, disk: Disk, slots: int = TIMER_SLOTS) -> None:
        self._path = path
        self.slots = slots
        self.precision_ms = precision_ms
        self._disk = disk
        self._descriptor = -1
        self._changed: dict[int, Slot] = {}
        self._in_flight: Mapping[int, Slot] = {}  # being written
        self._sums = bytearray(slots * _SUM_BYTES)  # by slot of the file; 0 for an empty one
        self._sum_of = memoryview(self._sums).cast("I")

    def load(self) -> bool:
        """Open the file; return False without one. Changes nothing.

        Raises UnsupportedLayoutError for another size.
        """
        try:
            size = os.stat(self._path).st_size
        except FileNotFoundError:
            return False
        if size not in (0, self.slots * SLOT_BYTES):
            raise UnsupportedLayoutError(
                f"{self._path} has {size} bytes, a timer wheel has {self.slots * SLOT_BYTES}. "
                "Restore it, or delete it: it is then rebuilt from the timer log."
            )
        if size == 0:  # created, then the process was killed
            return False
        self._descriptor = self._disk.open(self._path, os.O_RDWR)
        for begin, end in list(_slot_ranges(self._descriptor, size)):
            for position in range(begin, end, _CHUNK_BYTES):
                count = min(_CHUNK_BYTES, end - position)
                chunk = self._disk.pread(self._descriptor, count, position)
                if chunk != _ZEROS[: len(chunk)]:
                    self._note_sums(position, chunk)
        return True

    def _note_sums(self, position: int, data: bytes) -> None:
        """Note the checksums of whole slots of the file."""
        for at in range(0, len(data) - SLOT_BYTES + 1, SLOT_BYTES):
            self._sum_of[(position + at) // SLOT_BYTES] = _sum_of(data[at : at + SLOT_BYTES])

    def _read(self, position: int, size: int) -> bytes:
        """Return bytes of the file; zeros for what a cut file lacks."""
        return self._disk.pread(self._descriptor, size, position).ljust(size, b"\0")

    def index(self, time_ms: int) -> int:
        return time_ms // self.precision_ms % self.slots

    def at(self, index: int) -> Slot:
        """Return the stored slot, whichever time it belongs to."""
        slot = self._changed.get(index) or self._in_flight.get(index)
        if slot is not None:
            return slot
        if self._descriptor < 0:
            return _UNUSED
        data = self._read(index * SLOT_BYTES, SLOT_BYTES)
        return Slot.decode(data)

    def many(self, indexes: Iterable[int]) -> Iterator[Slot]:
        """Yield `at` for ascending indexes, with few reads. Do not put or flush meanwhile."""
        begin = -_CHUNK_BYTES
        chunk = b""
        for index in indexes:
            position = index * SLOT_BYTES
            if index in self._changed or index in self._in_flight or self._descriptor < 0:
                yield self.at(index)
                continue
            if position >= begin + _CHUNK_BYTES:
                begin = position
                chunk = self._read(begin, _CHUNK_BYTES)
            yield Slot.decode(chunk, position - begin)

    def slot(self, time_ms: int) -> Slot:
        """Return the slot of this time; NONE while it belongs to another."""
        slot = self.at(self.index(time_ms))
        return slot if slot.time == time_ms // self.precision_ms else NONE

    def lost(self, time_ms: int) -> bool:
        """Return whether the slot of this time is damaged: it changed in the file since it was read
        or written, or it cannot be a slot of this place."""
        index = self.index(time_ms)
        if self._descriptor < 0 or index in self._changed or index in self._in_flight:
            return False
        return self._is_damaged(index, self._read(index * SLOT_BYTES, SLOT_BYTES))

    def _is_damaged(self, index: int, data: bytes) -> bool:
        known = self._sum_of[index]
        if not known:
            return False
        slot = Slot.decode(data)
        is_of_place = slot.time > 0 and slot.time % self.slots == index and slot.last >= 0
        return not is_of_place or _sum_of(data) != known

    def next_used(self, begin_ms: int, end_ms: int) -> int:
        """Return the first time in the range whose slot is used for it; `end_ms` without one."""
        return next(self.used_times(begin_ms, end_ms), end_ms)

    def used_times(self, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the times in the range whose slots are used for them, in ascending order. Reads
        2048 slots at once. Do not put or flush meanwhile."""
        precision = self.precision_ms
        times = range(begin_ms // precision, -(-end_ms // precision))
        above = self._in_flight.keys() | self._changed.keys()
        waiting = sorted(time for time in self._times(above) if time in times)
        in_file = self._times_in_file(times, above) if self._descriptor >= 0 else ()
        return (time * precision for time in merge(waiting, in_file))

    def _times_in_file(self, times: range, above: Set[int]) -> Iterator[int]:
        """Yield the times of one turn of the wheel, then the later ones: years cost two turns."""
        for at, index, data in self._used_parts(times[: self.slots]):
            for number in range(len(data) // SLOT_BYTES):
                place = index + number
                if place in above or not self._sum_of[place]:
                    continue
                slot = data[number * SLOT_BYTES : (number + 1) * SLOT_BYTES]
                if SLOT.unpack(slot)[0] == at + number or self._is_damaged(place, slot):
                    yield at + number
        if later := times[self.slots :]:
            yield from sorted(
                time
                for _, index, data in self._used_parts(range(self.slots))
                for place, (time, *_) in enumerate(SLOT.iter_unpack(data), index)
                if time in later and place not in above
            )

    def _used_parts(self, times: range) -> Iterator[tuple[int, int, bytes]]:
        """Yield the parts of the range that have a used slot in the file: first time, its place,
        and the slots."""
        at = times.start
        while at < times.stop:
            index = at % self.slots
            count = min(times.stop - at, self.slots - index, _CHUNK_BYTES // SLOT_BYTES)
            sums = self._sums[index * _SUM_BYTES : (index + count) * _SUM_BYTES]
            if sums != _ZEROS[: len(sums)]:
                yield at, index, self._read(index * SLOT_BYTES, count * SLOT_BYTES)
            at += count

    def count(self, begin_ms: int, bounds_ms: Sequence[int]) -> list[int]:
        """Return the number of messages due from `begin_ms` up to each of the bounds, which ascend
        and lie within a week; recalled messages count until their slot is read."""
        import numpy as np

        first = begin_ms // self.precision_ms
        ends = [max(-(-bound // self.precision_ms), first) for bound in bounds_ms]
        numbers = np.zeros(max(ends, default=first) - first, np.int64)
        fields = np.dtype([("time", ">i8"), ("chain", ">i8", 2), ("num", ">i4"), ("magic", ">i4")])
        at = 0
        while at < len(numbers) and self._descriptor >= 0:
            index = (first + at) % self.slots
            count = min(len(numbers) - at, self.slots - index, _CHUNK_BYTES // SLOT_BYTES)
            data = self._read(index * SLOT_BYTES, count * SLOT_BYTES)
            rows = np.frombuffer(data, fields, count=len(data) // SLOT_BYTES)
            times = np.arange(first + at, first + at + len(rows))
            numbers[at : at + len(rows)] = np.where(rows["time"] == times, rows["num"], 0)
            at += count
        for index in self._in_flight.keys() | self._changed.keys():
            slot = self.at(index)
            numbers[(index - first) % self.slots :: self.slots] = 0  # the file has an older slot
            if 0 <= slot.time - first < len(numbers):
                numbers[slot.time - first] = slot.num
        summed = np.concatenate(([0], np.maximum(numbers, 0).cumsum()))
        return [int(summed[end - first]) for end in ends]

    def _times(self, indexes: Iterable[int]) -> Iterator[int]:
        return (slot.time for slot in map(self.at, indexes) if slot.last >= 0)

    def put(self, time_ms: int, first: int, last: int, num: int) -> None:
        """Replace the slot of this time, whichever time it belonged to."""
        num = max(-_NUM_MAX, min(num, _NUM_MAX))
        index = self.index(time_ms)
        self._changed[index] = Slot(time_ms // self.precision_ms, first, last, num)

    def clear(self, index: int) -> None:
        self._changed[index] = _UNUSED

    def occupied(self) -> Iterator[tuple[int, Slot]]:
        """Yield index and content of every used slot. Do not put or flush meanwhile."""
        above = {**self._in_flight, **self._changed}
        if self._descriptor >= 0:
            for index, slot in read_slots(self._descriptor, self.slots * SLOT_BYTES):
                if index not in above:
                    yield index, slot
        for index in sorted(above):
            if above[index] != _UNUSED:
                yield index, above[index]

    @property
    def changed(self) -> int:
        """Number of slots that are not in the file yet."""
        return len(self._changed) + len(self._in_flight)

    def take_changes(self) -> Mapping[int, Slot]:
        """Return the changes for `write_out`. Not while it runs."""
        self._in_flight = {**self._in_flight, **self._changed}
        self._changed = {}
        return self._in_flight

    def write_out(self, changes: Mapping[int, Slot]) -> None:
        """Make the changes durable; the timer log must be durable already. Raises OSError."""
        if changes:
            if self._descriptor < 0:
                self._create()
            for position, data in _runs(changes):
                done = self._disk.pwrite(self._descriptor, data, position)
                if done != len(data):
                    raise OSError(errno.EIO, f"{done} of {len(data)} bytes written", self._path)
                self._note_sums(position, data)
            self._disk.fdatasync(self._descriptor)
            self._in_flight = {}

    def _create(self) -> None:
        descriptor = self._disk.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            self._disk.truncate(descriptor, self.slots * SLOT_BYTES)
            self._disk.fsync(descriptor)
            self._disk.sync_directory(os.path.dirname(self._path))
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _sum_of(slot: bytes) -> int:
    """Return the checksum of a slot: 0 if it is empty, else not 0."""
    return 0 if slot == _ZEROS[:SLOT_BYTES] else zlib.crc32(slot) or 1


def _runs(changes: Mapping[int, Slot]) -> Iterator[tuple[int, bytes]]:
    """Yield position and bytes of each run of neighbouring slots."""
    first = previous = -2
    parts: list[bytes] = []
    for index in sorted(changes):
        if index != previous + 1:
            if parts:
                yield first * SLOT_BYTES, b"".join(parts)
            first, parts = index, []
        parts.append(changes[index].encode())
        previous = index
    if parts:
        yield first * SLOT_BYTES, b"".join(parts)
