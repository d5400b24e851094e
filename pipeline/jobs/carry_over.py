"""Carries over queue units and index entries of deleted records from the store's files.

The first file of a consume queue and an index file may begin with units and entries of records
below the log's start. They point to deleted records, but a broker's files have them, and a queue
without remaining records gets its next offset from them. Units and entries below the log's start
are copied from the beginning of the store's files up to the first gap, after a check that their
physical offsets ascend. Everything at or above the log's start is rebuilt from the log.

Units of queues with extension files are not carried over: their tags codes are addresses in
extension files that are rebuilt (docs/formats/store-format.md, sections 3.4, 3.5 and 4).
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...store.format.index_file import (
    ENTRY,
    HEADER,
    MS_PER_SECOND,
    IndexHeader,
    IndexLayout,
    guess_layout,
    index_files,
)
from ...store.format.index_keys import Entries
from ...store.format.index_writer import INDEX_ENTRY
from ...store.format.layout import INDEX_FOLDER, QUEUE_FOLDER, is_file_name
from ...store.format.record_layout import FILLER_SIZE, UNIT_BYTES
from ...store.format.topic_names import is_queue_name, queue_path
from ...store.scan.dtypes import QUEUE_UNIT
from .queue_files import QueueSizes, write_units

#: Units and entries per read.
_UNITS: Final = 4096
_ENTRIES: Final = 1 << 16
_NO_END: Final = 1 << 62


def known_queues(store: str) -> list[tuple[str, int]]:
    """Return topic and queue id of every queue with files in the store."""
    return sorted(
        (folder.parent.name, int(folder.name))
        for folder in (Path(store) / QUEUE_FOLDER).glob("*/*")
        if is_file_name(folder.name) and is_queue_name(folder.parent.name, int(folder.name))
    )


def carry_units(
    store: str,
    out: str,
    sizes: QueueSizes,
    key: tuple[str, int],
    *,
    log_start: int,
    first: int = -1,
) -> tuple[int, int]:
    """Write the units of deleted records of a queue. Return their numbers [begin, end).

    `first` is the number of the first unit rebuilt from the log, -1 without one. Raises OSError.
    """
    if not log_start or key in sizes.extended:
        return 0, 0
    stop = first if first >= 0 else _NO_END
    begin, end = _old_range(store, key, log_start, stop)
    per_file = sizes.file_bytes // UNIT_BYTES
    if first >= 0 and end < first - first % per_file:
        return 0, 0  # a gap before the first rebuilt file: the queue begins there
    for number, units in _chunks(store, key):
        if number >= end:
            break
        write_units(out, sizes, key, number, units[: end - number])
    return begin, end


def _old_range(store: str, key: tuple[str, int], log_start: int, stop: int) -> tuple[int, int]:
    begin = end = -1
    last = -1
    for number, found in _chunks(store, key):
        if begin < 0:
            begin = end = number
        if number != end or number >= stop:
            break
        units = found[: stop - number]
        offsets, lengths = units["offset"].astype(np.int64), units["size"].astype(np.int64)
        filler = (lengths == FILLER_SIZE) & (offsets == 0)
        # A filler takes the physical offset before it, so that offsets ascend.
        before = np.maximum.accumulate(np.where(filler, last, offsets))
        rises = np.diff(before, prepend=last) > 0
        old = (lengths > 0) & (offsets >= 0) & (offsets + lengths <= log_start) & rises
        good = filler | old
        count = len(units) if good.all() else int(np.argmin(good))
        end += count
        if count < len(units):
            break
        last = int(before[-1]) if len(before) else last
    return max(begin, 0), max(end, 0)


def _chunks(store: str, key: tuple[str, int]) -> Iterator[tuple[int, Any]]:
    """Yield the units of a queue's files in parts, with the number of each part's first unit."""
    folder = queue_path(store, *key)
    try:
        names = [name for name in os.listdir(folder) if is_file_name(name)]
    except FileNotFoundError:
        return
    for name in sorted(names, key=int):
        number = int(name) // UNIT_BYTES
        try:
            with open(os.path.join(folder, name), "rb", buffering=0) as file:
                while len(data := file.read(_UNITS * UNIT_BYTES)) >= UNIT_BYTES:
                    units = np.frombuffer(data[: len(data) - len(data) % UNIT_BYTES], QUEUE_UNIT)
                    yield number, units
                    number += len(units)
        except FileNotFoundError:
            continue  # deleted by retention meanwhile


class OldEntries:
    """Index entries of records below the log's start, in order; an iterator of parts."""

    def __init__(self, store: str, log_start: int) -> None:
        self.count = 0
        self._log_start = log_start
        self._paths = index_files(os.path.join(store, INDEX_FOLDER)) if log_start else []

    def seed(self) -> IndexHeader:
        """Return a header for the first file that gives its first entry the same time."""
        for path, layout, header in self._files():
            with open(path, "rb", buffering=0) as file:
                entry = os.pread(file.fileno(), ENTRY.size, layout.entry_at(1))
            seconds = ENTRY.unpack(entry)[2] if len(entry) == ENTRY.size else 0
            if seconds > 0:
                return IndexHeader(header.begin_timestamp_ms - seconds * MS_PER_SECOND)
            break
        return IndexHeader()

    def __iter__(self) -> Iterator[Entries]:
        last = 0
        for path, layout, header in self._files():
            for part in _entries_of(path, layout, header):
                good = (part.hashes >= 0) & (part.offsets < self._log_start)
                good &= np.diff(part.offsets, prepend=last) >= 0
                count = len(part) if good.all() else int(np.argmin(good))
                if count:
                    self.count += count
                    last = int(part.offsets[count - 1])
                    yield Entries(
                        *(c[:count] for c in (part.hashes, part.offsets, part.times, part.kinds))
                    )
                if count < len(part):
                    return

    def _files(self) -> Iterator[tuple[str, IndexLayout, IndexHeader]]:
        for path in self._paths:
            try:
                layout = guess_layout(path)
                with open(path, "rb", buffering=0) as file:
                    header = IndexHeader.decode(file.read(HEADER.size))
            except FileNotFoundError:
                continue  # deleted by retention meanwhile
            if layout is None or header.is_empty or header.problem(layout):
                return
            yield path, layout, header


def _entries_of(path: str, layout: IndexLayout, header: IndexHeader) -> Iterator[Entries]:
    with open(path, "rb", buffering=0) as file:
        for number in range(1, header.count, _ENTRIES):
            count = min(_ENTRIES, header.count - number)
            data = os.pread(file.fileno(), count * ENTRY.size, layout.entry_at(number))
            rows: Any = np.frombuffer(data[: len(data) - len(data) % ENTRY.size], INDEX_ENTRY)
            times = header.begin_timestamp_ms + rows["seconds"].astype(np.int64) * MS_PER_SECOND
            # The header has both ends in ms: the next file's times continue from the last one.
            if number == 1 and len(rows):
                times[0] = header.begin_timestamp_ms
            if number + len(rows) == header.count and len(rows):
                times[-1] = header.end_timestamp_ms
            hashes, offsets = rows["hash"].astype(np.int64), rows["offset"].astype(np.int64)
            yield Entries(hashes, offsets, times, np.zeros(len(rows), np.int64))
