"""Batch consume queues (topics whose `queue.type` is BatchCQ in Apache's broker). Read only.

offset  size  field
     0     8  physical offset of the record (one record holds a whole batch)
     8     4  total size of the record
    12     8  tags code
    20     8  store timestamp, ms
    28     8  queue offset of the batch's first message
    36     2  messages in the batch
    38     4  compacted offset, -1
    42     4  reserved, 0

Files `batchconsumequeue/<topic>/<queue>/<20 digits>` hold a whole number of units (300,000 by
default) and are named by their start byte. Queue offsets count messages, units count batches: a
message is found by bisection, not by its position (docs/formats/store-format.md, section 3.8).

These files are never written: the store leaves the topics unchanged and refuses their messages;
`cometmq store` shows them.
"""

import os
import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from .errors import UnsupportedLayoutError

UNIT: Final = struct.Struct(">qiqqqhii")
UNIT_BYTES: Final = 46
assert UNIT.size == UNIT_BYTES
#: Units decoded from one read.
_STEP_UNITS: Final = 1024


class BatchUnit(NamedTuple):
    """One unit: a batch of messages in one record."""

    physical_offset: int
    size: int
    tags_code: int
    store_timestamp_ms: int
    base_offset: int
    messages: int
    compacted_offset: int = -1
    reserved: int = 0

    @property
    def end_offset(self) -> int:
        """Queue offset behind the batch's last message."""
        return self.base_offset + self.messages

    @property
    def is_whole(self) -> bool:
        """Whether a unit was written here."""
        return self.size > 0 and self.physical_offset >= 0 and self.messages > 0


def encode_unit(unit: BatchUnit) -> bytes:
    """Encode a unit. Raises struct.error for a field out of range."""
    return UNIT.pack(*unit)


def decode_unit(data: bytes, position: int = 0) -> BatchUnit:
    """Decode the 46 bytes at `position`; check `is_whole` before using the result."""
    return BatchUnit._make(UNIT.unpack_from(data, position))


class BatchQueue:
    """The units of one directory, in order. Opens a file per call and keeps none open."""

    def __init__(self, directory: str) -> None:
        """List the files. Raises OSError, or UnsupportedLayoutError for a foreign file."""
        self._files: list[tuple[str, int]] = []  # path, units before it
        units = 0
        for name in sorted(os.listdir(directory)):
            path = os.path.join(directory, name)
            size = os.path.getsize(path)
            if not (name.isascii() and name.isdecimal()) or size % UNIT_BYTES:
                raise UnsupportedLayoutError(f"{path} is not a batch consume queue file.")
            self._files.append((path, units))
            units += size // UNIT_BYTES
        self._room = units
        #: Number of units; the first one that is not whole ends them.
        self.units = _first(units, lambda index: not self.unit(index).is_whole)

    def unit(self, index: int) -> BatchUnit:
        """Return unit `index`, counted from the first file."""
        if not 0 <= index < self._room:
            raise IndexError(f"{index} is outside of {self._room} units.")
        place = _first(len(self._files), lambda at: self._files[at][1] > index) - 1
        path, before = self._files[place]
        return decode_unit(_read(path, (index - before) * UNIT_BYTES, UNIT_BYTES))

    def __iter__(self) -> Iterator[BatchUnit]:
        left = self.units
        for path, _ in self._files:
            position = 0
            while left and (data := _read(path, position, _STEP_UNITS * UNIT_BYTES)):
                position += len(data)
                for values in UNIT.iter_unpack(data[: left * UNIT_BYTES]):
                    yield BatchUnit._make(values)
                left -= min(len(data) // UNIT_BYTES, left)

    @property
    def min_offset(self) -> int:
        """Queue offset of the first message; 0 without messages."""
        return self.unit(0).base_offset if self.units else 0

    @property
    def max_offset(self) -> int:
        """Queue offset behind the last message."""
        return self.unit(self.units - 1).end_offset if self.units else 0

    def find(self, offset: int) -> BatchUnit | None:
        """Return the batch that holds the message at queue offset `offset`."""
        index = _first(self.units, lambda at: self.unit(at).base_offset > offset) - 1
        if index < 0:
            return None
        unit = self.unit(index)
        return unit if offset < unit.end_offset else None


def _first(count: int, holds: Callable[[int], bool]) -> int:
    """Return the first of `count` numbers for which `holds` is true; `holds` must be monotonic."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _read(path: str, position: int, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, size, position)
    finally:
        os.close(descriptor)
