"""Consume queue files as arrays of units, read in bulk, offline.

    unit k at byte 20 * k:   physical offset i64 | total size of the record i32 | tags code i64

Files are sparse: only ranges with data are read; holes and missing files read as zeros
(docs/formats/store-format.md, section 3.1). At most `_OPEN_MAX` descriptors stay open.
"""

import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..format.disk import data_ranges
from ..format.record_layout import UNIT_BYTES
from ..scan.dtypes import QUEUE_UNIT
from .layout import DataFile, FileQueue, QueueFolder

_OPEN_MAX: Final = 256
_CHUNK_BYTES: Final = 1 << 20

Units = npt.NDArray[Any]


class OpenFiles:
    """Descriptors for reading, the least recently used closed first."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, int] = OrderedDict()

    def descriptor(self, path: Path) -> int:
        opened = self._open.get(path)
        if opened is not None:
            self._open.move_to_end(path)
            return opened
        if len(self._open) >= _OPEN_MAX:
            os.close(self._open.popitem(last=False)[1])
        opened = self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return opened

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


def file_at(files: FileQueue, position: int) -> DataFile | None:
    """Return the file that covers a position of the queue's virtual bytes."""
    if not files.files or not files.size or position < files.files[0].start:
        return None
    # Consecutive files are found by arithmetic; after a gap, by search.
    index = (position - files.files[0].start) // files.size
    for file in (*files.files[index : index + 1], *files.files):
        if file.start <= position < file.start + files.size:
            return file
    return None


def read_bytes(opened: OpenFiles, files: FileQueue, position: int, length: int) -> bytes:
    """Return `length` bytes; zeros where no file covers them."""
    parts = []
    while length > 0:
        file = file_at(files, position)
        if file is None:
            following = [f.start for f in files.files if f.start > position]
            step = min(length, min(following, default=position + length) - position)
            parts.append(bytes(step))
        else:
            step = min(length, file.start + files.size - position)
            part = os.pread(opened.descriptor(file.path), step, position - file.start)
            parts.append(part.ljust(step, b"\0"))
        position += step
        length -= step
    return b"".join(parts)


def read_units(opened: OpenFiles, queue: QueueFolder, first: int, count: int) -> Units:
    data = read_bytes(opened, queue.files, first * UNIT_BYTES, count * UNIT_BYTES)
    return np.frombuffer(data, QUEUE_UNIT)


def written_units(
    opened: OpenFiles, queue: QueueFolder, first: int = 0, end: int = 1 << 62
) -> Iterator[tuple[int, Units]]:
    """Yield number of the first unit and units, for every range of the queue's files that is not a
    hole, within [first, end). All-zero units may be among them."""
    for file in queue.files.files:
        start = max(first * UNIT_BYTES, file.start)
        stop = min(end * UNIT_BYTES, file.start + min(file.length, queue.files.size))
        if start >= stop:
            continue
        descriptor = opened.descriptor(file.path)
        for begin, until in data_ranges(descriptor, start - file.start, stop - file.start):
            low = begin - begin % UNIT_BYTES
            low = max(low, start - file.start)
            high = min(-(-until // UNIT_BYTES) * UNIT_BYTES, stop - file.start)
            for at in range(low, high, _CHUNK_BYTES // UNIT_BYTES * UNIT_BYTES):
                size = min(_CHUNK_BYTES // UNIT_BYTES * UNIT_BYTES, high - at)
                data = os.pread(descriptor, size, at)
                data = data[: len(data) - len(data) % UNIT_BYTES]
                yield (file.start + at) // UNIT_BYTES, np.frombuffer(data, QUEUE_UNIT)


def unit_ranges(queue: QueueFolder, first: int, end: int) -> Iterator[tuple[Path, int, int]]:
    """Yield files and the byte ranges in them that hold the units [first, end)."""
    position, stop = first * UNIT_BYTES, end * UNIT_BYTES
    size = queue.files.size or stop - position
    folder = queue.files.files[0].path.parent if queue.files.files else None
    while position < stop:
        start = position - position % size
        step = min(stop, start + size) - position
        file = file_at(queue.files, position)
        if file is not None:
            yield file.path, position - file.start, position - file.start + step
        elif folder is not None:
            yield folder / f"{start:020d}", position - start, position - start + step
        position += step
