"""Reads the consume queues of a store from their files, by `pread`.

    consumequeue/TOPIC/QUEUE/FILE        physical offset i64 | size i32 | tags code i64,
                                         unit k at byte 20 * k
    batchconsumequeue/TOPIC/QUEUE/FILE   units of 46 bytes (store/format/batch_queue.py)

Units that point beyond the safe end of the log are ignored: a truncated queue keeps stale units
behind its end. Physical offsets ascend; a filler (size 0x7FFFFFFF) counts as the next unit that is
not a filler (docs/formats/store-format.md, sections 3.1 and 3.4-3.8).
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

from ...store.format.batch_queue import BatchQueue
from ...store.format.layout import BATCH_QUEUE_FOLDER, QUEUE_FOLDER, file_name, is_file_name
from ...store.format.record_layout import FILLER_SIZE, UNIT, UNIT_BYTES

_NO_POSITION: Final = 1 << 62
_GAP_UNITS: Final = 4096
#: Files that stay open; a store may have tens of thousands of queues.
_OPEN_MAX: Final = 256


class Units(Protocol):
    """One queue: offsets [first, end) below the safe end of the log."""

    first: int
    end: int

    def position(self, offset: int) -> tuple[int, int] | None:
        """Return physical offset and size of a message's record."""
        ...

    def bisect(self, key: Callable[[int], int], value: int) -> int:
        """Return the first offset whose physical offset has a `key` of at least `value`."""
        ...

    def records(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield physical offset and size of the records of messages [start, end)."""
        ...


def queues_of(root: str) -> list[tuple[str, int, Path]]:
    """Return topic, queue id and folder of every queue of a store."""
    found: list[tuple[str, int, Path]] = []
    for kind in (QUEUE_FOLDER, BATCH_QUEUE_FOLDER):
        for topic in _entries(os.path.join(root, kind)):
            found += [
                (topic.name, int(queue.name), Path(queue.path))
                for queue in _entries(topic.path)
                if is_file_name(queue.name)
            ]
    return found


def open_units(folder: Path, log_start: int, log_end: int, files: OpenFiles) -> Units:
    """Open the queue in a folder, limited to the readable log."""
    if folder.parent.parent.name == BATCH_QUEUE_FOLDER:
        return BatchUnits(folder, log_start, log_end)
    return QueueUnits(folder, log_start, log_end, files)


class OpenFiles:
    """Cache of file descriptors; the least recently used is closed first."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()

    def read(self, path: str, size: int, position: int) -> bytes:
        """Read from a file; b"" if it is deleted."""
        descriptor = self._open.get(path)
        if descriptor is None:
            try:
                descriptor = self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return b""
            if len(self._open) > _OPEN_MAX:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(path)
        return os.pread(descriptor, size, position)

    def close(self) -> None:
        """Close all files; `read` opens them again."""
        while self._open:
            os.close(self._open.popitem()[1])


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


class QueueUnits:
    """Consume queue with units of 20 bytes."""

    def __init__(self, folder: Path, log_start: int, log_end: int, opened: OpenFiles) -> None:
        files = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_file_name(entry.name):
                    files[int(entry.name)] = entry.stat().st_size
        self._folder = folder
        self._starts = sorted(files)
        self._opened = opened
        self.first = self.end = 0
        if not files:
            return
        begin = self._starts[0] // UNIT_BYTES
        stop = (self._starts[-1] + files[self._starts[-1]]) // UNIT_BYTES
        self.end = begin + bisect_left(
            range(begin, stop), 1, key=lambda number: not self._is_written(number, log_end)
        )
        self.first = begin
        self.first = self.bisect(lambda at: at, log_start)

    def position(self, offset: int) -> tuple[int, int] | None:
        if not self.first <= offset < self.end:
            return None
        position, size, _ = self._unit(offset)
        return None if size == FILLER_SIZE else (position, size)

    def bisect(self, key: Callable[[int], int], value: int) -> int:
        units = range(self.first, self.end)
        return self.first + bisect_left(
            units, value, key=lambda number: key(self._position(number))
        )

    def records(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        number, end = max(start, self.first), min(end, self.end)
        while number < end:
            units = self._read(number, min(_GAP_UNITS, end - number))
            for position, size, _ in UNIT.iter_unpack(units):
                if size != FILLER_SIZE:
                    yield position, size
            number += max(len(units) // UNIT_BYTES, 1)

    def _is_written(self, number: int, log_end: int) -> bool:
        position, size, _ = self._unit(number)
        return size == FILLER_SIZE or (size > 0 and position >= 0 and position + size <= log_end)

    def _position(self, number: int) -> int:
        while number < self.end:
            position, size, _ = self._unit(number)
            if size != FILLER_SIZE:
                return position
            number = self._behind_fillers(number)
        return _NO_POSITION

    def _behind_fillers(self, number: int) -> int:
        while number < self.end:
            units = self._read(number, min(_GAP_UNITS, self.end - number))
            for count, (_, size, _) in enumerate(UNIT.iter_unpack(units)):
                if size != FILLER_SIZE:
                    return number + count
            if not units:
                break
            number += len(units) // UNIT_BYTES
        return self.end

    def _unit(self, number: int) -> tuple[int, int, int]:
        data = self._read(number, 1)
        if len(data) < UNIT_BYTES:  # a file in the middle is missing
            return 0, 0, 0
        found: tuple[int, int, int] = UNIT.unpack(data)
        return found

    def _read(self, number: int, count: int) -> bytes:
        position = number * UNIT_BYTES
        at = bisect_left(self._starts, position + 1) - 1
        if at < 0:
            return b""
        start = self._starts[at]
        path = f"{self._folder}/{file_name(start)}"
        data = self._opened.read(path, count * UNIT_BYTES, position - start)
        return data[: len(data) - len(data) % UNIT_BYTES]


class BatchUnits:
    """Batch consume queue with units of 46 bytes, one per record that holds a batch."""

    def __init__(self, folder: Path, log_start: int, log_end: int) -> None:
        self._units = [
            unit
            for unit in BatchQueue(str(folder))
            if log_start <= unit.physical_offset and unit.physical_offset + unit.size <= log_end
        ]
        self.first = self._units[0].base_offset if self._units else 0
        self.end = self._units[-1].end_offset if self._units else 0

    def position(self, offset: int) -> tuple[int, int] | None:
        at = bisect_left(self._units, offset + 1, key=lambda unit: unit.base_offset) - 1
        if at < 0 or offset >= self._units[at].end_offset:
            return None
        return self._units[at].physical_offset, self._units[at].size

    def bisect(self, key: Callable[[int], int], value: int) -> int:
        at = bisect_left(self._units, value, key=lambda unit: key(unit.physical_offset))
        return self._units[at].base_offset if at < len(self._units) else self.end

    def records(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        for unit in self._units:
            if unit.base_offset < end and unit.end_offset > start:
                yield unit.physical_offset, unit.size
