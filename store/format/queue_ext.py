"""Extension files of the consume queues: tags code, store time and filter bitmap of a message.

offset  size  field
     0     2  size of the unit, this field included: 20 + length of the bitmap
     2     8  tags code
    10     8  store timestamp, ms
    18     2  length of the bitmap
    20     n  bitmap (a Bloom filter of SQL consumers; this store writes none)

With `enableConsumeQueueExt` the queue unit holds the address of such a unit instead of the tags
code: the unit's position in the virtual file plus the smallest i64, which no hash can equal. A unit
never crosses a file: where fewer than its size and 4 bytes remain, -1 as i16 ends the file
(docs/formats/store-format.md, section 3.3). Derived data; if a file is missing its units match
every filter.

Units are written before the queue unit that points to them, into the page cache. The last queue
unit determines the valid end; bytes behind it are left over from a crash, and the same records
write the same bytes there again.
"""

import contextlib
import errno
import os
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from .errors import UnsupportedLayoutError
from .layout import file_name
from .queue_files import QueueFiles

HEAD: Final = struct.Struct(">hqqh")
assert HEAD.size == 20
UNIT_BYTES_MAX: Final = 32_767
#: Bytes kept free behind a unit for the end mark of the file.
END_BYTES: Final = 4
_END_MARK: Final = b"\xff\xff"
_ADDRESS_BASE: Final = -(1 << 63)
#: Larger positions cannot be distinguished from hashes.
POSITION_MAX: Final = 9_223_372_034_707_292_159
_INT_MIN: Final = -(1 << 31)
#: Read-ahead: queues are read in order.
_WINDOW_BYTES: Final = 4096


class ExtUnit(NamedTuple):
    """One unit."""

    tags_code: int
    store_timestamp_ms: int
    bitmap: bytes = b""


def is_address(tags_code: int) -> bool:
    """Return whether the third field of a queue unit is the address of an extension unit."""
    return tags_code < _INT_MIN


def address_of(place: int) -> int:
    return place + _ADDRESS_BASE


def position_of(address: int) -> int:
    return address - _ADDRESS_BASE


def encode_unit(unit: ExtUnit) -> bytes:
    """Encode a unit. Raises ValueError for a bitmap that is too long."""
    size = HEAD.size + len(unit.bitmap)
    if size > UNIT_BYTES_MAX:
        raise ValueError(f"A filter bitmap of {len(unit.bitmap)} bytes does not fit a unit.")
    head = HEAD.pack(size, unit.tags_code, unit.store_timestamp_ms, len(unit.bitmap))
    return head + unit.bitmap


def decode_unit(data: bytes, position: int) -> ExtUnit | None:
    """Return the unit at `position`, or None without one or if `data` ends inside it."""
    if position < 0 or position + HEAD.size > len(data):
        return None
    size, tags_code, store_timestamp_ms, bitmap = HEAD.unpack_from(data, position)
    if bitmap < 0 or size != HEAD.size + bitmap or position + size > len(data):
        return None
    begin = position + HEAD.size
    return ExtUnit(tags_code, store_timestamp_ms, bytes(data[begin : begin + bitmap]))


def walk_units(data: bytes, position: int = 0) -> Iterator[tuple[int, ExtUnit]]:
    """Yield position and unit of all units of a file, up to its end mark or the first invalid
    one."""
    while (unit := decode_unit(data, position)) is not None:
        yield position, unit
        position += HEAD.size + len(unit.bitmap)


class QueueExt:
    """The extension units of one queue: positions [begin, end) over files of one size."""

    __slots__ = (
        "_directory",
        "_files",
        "_pending",
        "_window",
        "_window_at",
        "begin",
        "end",
        "stop",
    )

    def __init__(self, topic: str, queue_id: int, files: QueueFiles) -> None:
        """List names and sizes only; call `find_end` before writing. Missing files make their units
        missing. Raises UnsupportedLayoutError or OSError."""
        self._files = files
        self._directory = os.path.join(files.directory, topic, str(queue_id))
        starts = _list(self._directory, files.size)
        self.begin = starts[0] if starts else 0  #: start of the first file
        self.stop = starts[-1] + files.size if starts else 0  #: end of the last file
        self.end = -1  #: position of the next unit; -1: unknown
        self._pending: list[tuple[int, bytes]] = []  # position and bytes, not written yet
        self._window = b""
        self._window_at = 0

    def _path_of(self, start: int) -> str:
        return os.path.join(self._directory, file_name(start))

    def _start_of(self, place: int) -> int:
        return place - place % self._files.size

    # -- reading ------------------------------------------------------------------------------

    def unit(self, address: int) -> ExtUnit | None:
        """Return the unit at the address, or None."""
        place = position_of(address)
        unit = decode_unit(self._window, place - self._window_at)
        if unit is not None or not self.begin <= place < self.stop:
            return unit
        unit = self._load(place, _WINDOW_BYTES)
        return self._load(place, UNIT_BYTES_MAX) if unit is None else unit

    def _load(self, place: int, size: int) -> ExtUnit | None:
        start = self._start_of(place)
        size = min(size, start + self._files.size - place)
        try:
            self._window = self._files.read(self._path_of(start), size, place - start)
        except FileNotFoundError:
            self._window = b""
        self._window_at = place
        return decode_unit(self._window, 0)

    def find_end(self, last_address: int | None) -> None:
        """Find the end from the last address in the queue; without one by a walk over the files
        (docs/formats/store-format.md, section 3.3). An address whose unit is missing is not reused:
        units then continue in the next file."""
        if last_address is None:
            self.end = self._walk()
            return
        unit = self.unit(last_address)
        place = position_of(last_address)
        if unit is None:
            self.end = self._start_of(place) + self._files.size
        else:
            self.end = place + HEAD.size + len(unit.bitmap)

    def _walk(self) -> int:
        end = self.begin
        for start in range(self.begin, self.stop, self._files.size):
            try:
                data = self._files.read(self._path_of(start), self._files.size, 0)
            except FileNotFoundError:
                continue
            end = start
            for position, unit in walk_units(data):
                end = start + position + HEAD.size + len(unit.bitmap)
        return end

    # -- writing ------------------------------------------------------------------------------

    def append(self, unit: ExtUnit) -> int:
        """Append a unit; return its address. `write_out` writes it into the file."""
        data = encode_unit(unit)
        size = self._files.size
        if len(data) > size - END_BYTES:
            raise ValueError(f"A unit of {len(data)} bytes does not fit a file of {size}.")
        rest = self._start_of(self.end) + size - self.end
        if len(data) > rest - END_BYTES:
            self._pending.append((self.end, _END_MARK))
            self.end += rest
        place = self.end
        if place + len(data) > POSITION_MAX:
            raise ValueError(f"The extension files end at {POSITION_MAX}.")
        self._pending.append((place, data))
        self.end += len(data)
        return address_of(place)

    def write_out(self) -> list[tuple[str, int]]:
        """Write what was appended; return (path, bytes written). Raises OSError."""
        if not self._pending:
            return []
        pending, self._pending = self._pending, []
        self._window = b""
        runs: list[tuple[int, list[bytes]]] = []
        end = -1
        for place, data in pending:
            if place != end or not place % self._files.size:
                runs.append((place, []))
            runs[-1][1].append(data)
            end = place + len(data)
        return [self._write(place, b"".join(parts)) for place, parts in runs]

    def _write(self, place: int, data: bytes) -> tuple[str, int]:
        start = self._start_of(place)
        path = self._path_of(start)
        if self.stop == self.begin:  # no files yet: they begin where the units begin
            self.begin = self.stop = start
        self.stop = max(self.stop, start + self._files.size)
        written = self._files.write(path, data, place - start)
        if written != len(data):
            raise OSError(errno.ENOSPC, f"{written} of {len(data)} bytes were written", path)
        return path, written

    # -- cutting ------------------------------------------------------------------------------

    def truncate(self) -> None:
        """Remove what lies behind `end`."""
        while self.stop > self.begin and self.stop - self._files.size >= self.end:
            self.stop -= self._files.size
            self._remove(self.stop)
        if self.begin < self.end < self.stop:
            start = self.stop - self._files.size
            with contextlib.suppress(FileNotFoundError):
                self._files.clear_from(self._path_of(start), self.end - start)
        self._window = b""

    def trim(self, address: int) -> int:
        """Remove files that end at or before the address; return how many."""
        removed = 0
        while self.begin + self._files.size <= min(position_of(address), self.stop):
            removed += self._remove(self.begin)
            self.begin += self._files.size
        return removed

    def _remove(self, start: int) -> bool:
        try:
            self._files.remove(self._path_of(start))
        except FileNotFoundError:
            return False
        return True


def _list(directory: str, size: int) -> list[int]:
    """Return the start bytes of the files. A crash may have left the last one short."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    for name in names:
        path = os.path.join(directory, name)
        length = os.path.getsize(path)
        if not (name.isascii() and name.isdecimal()):
            raise UnsupportedLayoutError(f"{path} is not an extension file. Move it away.")
        if length > size or (length < size and name != names[-1]):
            raise UnsupportedLayoutError(
                f"{path} has {length} bytes, mappedFileSizeConsumeQueueExt is {size}. Start with "
                "the size that this store was made with, or move consumequeue_ext away: then every "
                "filter matches its messages."
            )
    return [int(name) for name in names]
