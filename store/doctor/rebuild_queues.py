"""Rebuilds queues from the log in new folders, with one walk for all of them.

Units of records that are lost in the log are copied from the old files, so that they match when the
segment is restored. Where a queue begins inside a file, fillers precede it
(docs/formats/store-format.md, section 3.4). Extension units are not rebuilt: the plain tags code in
the unit is equivalent.
"""

import os
from pathlib import Path
from typing import Final

import numpy as np

from ..format.disk import Disk
from ..format.layout import file_name
from ..format.record_layout import (
    FILLER,
    TRANSACTION_MASK,
    UNIT_BYTES,
    UNQUEUED,
)
from ..format.topic_names import is_lmq
from ..scan.dtypes import QUEUE_UNIT
from ..scan.lmq import lmq_rows
from ..scan.properties import TagsCodes, by_queue
from ..scan.raw import Integers
from ..scan.walk import Columns, LostRange
from .layout import Layout, QueueFolder
from .log_walk import Batch, LogWalk
from .queue_view import OpenFiles, Units, written_units
from .verify import Progress

_DEFAULT_FILE_BYTES: Final = 6_000_000


class QueueWriter:
    """Writes units of one queue into a new folder, in any order, creating files as needed."""

    def __init__(self, folder: Path, file_bytes: int, disk: Disk) -> None:
        self.folder = folder
        self.written = 0
        self.next_number = 0
        self._size = file_bytes
        self._disk = disk
        self._begun = False
        folder.mkdir(parents=True)

    def write(self, first: int, units: Units) -> None:
        """Write units from number `first` on. Raises OSError."""
        if not self._begun:
            self._begun = True
            self._fill(first)
        self.written += len(units)
        self.next_number = max(self.next_number, first + len(units))
        self._write(first, units.tobytes())

    def restart(self) -> None:
        """Discard what was written. Raises OSError."""
        for path in self.folder.iterdir():
            self._disk.unlink(str(path))
        self._begun = False
        self.written = self.next_number = 0

    def _fill(self, first: int) -> None:
        """Write fillers from the start of the file to the first unit of the queue."""
        position = first * UNIT_BYTES
        start = position - position % self._size
        count = (position - start) // UNIT_BYTES
        if count:
            filler = np.array([FILLER], QUEUE_UNIT)
            self._write(start // UNIT_BYTES, filler.tobytes() * count)

    def _write(self, first: int, data: bytes) -> None:
        position = first * UNIT_BYTES
        while data:
            start = position - position % self._size
            part = data[: start + self._size - position]
            descriptor = self._disk.open(
                str(self.folder / file_name(start)), os.O_RDWR | os.O_CREAT
            )
            try:
                if os.fstat(descriptor).st_size != self._size:
                    self._disk.truncate(descriptor, self._size)
                self._disk.pwrite(descriptor, part, position - start)
            finally:
                self._disk.close(descriptor)
            data = data[len(part) :]
            position += len(part)


def rebuild_queues(
    layout: Layout,
    targets: dict[tuple[str, int], Path],
    lost: list[LostRange],
    disk: Disk,
    *,
    doubted: frozenset[int] = frozenset(),
    progress: Progress | None = None,
) -> dict[tuple[str, int], int]:
    """Write the queues `targets` (topic and queue id to a new folder); return how many units each
    has. A queue with none has no record in the log; its old files are not replaced. Units of
    `doubted` records (physical offsets) keep their tags codes."""
    size = next(layout.of_kind("consumequeue"), None)
    file_bytes = (size.files.size if size else 0) or layout.sizes.queue_file or _DEFAULT_FILE_BYTES
    writers = {key: QueueWriter(path, file_bytes, disk) for key, path in targets.items()}
    codes = TagsCodes()
    for batch in LogWalk(layout):
        _write_batch(batch, writers, codes)
        if progress is not None:
            last = int(batch.columns.position[-1] + batch.columns.size[-1])
            progress(batch.file.start + last - layout.log.start)
    for folder in layout.of_kind("consumequeue"):
        writer = writers.get((folder.topic, folder.queue_id))
        if writer is not None and (lost or doubted):
            _copy_old_units(folder, writer, lost, doubted)
    return {key: writer.written for key, writer in writers.items()}


def _write_batch(
    batch: Batch, writers: dict[tuple[str, int], QueueWriter], codes: TagsCodes
) -> None:
    columns = batch.columns
    queued = ~np.isin(columns.sys_flag & TRANSACTION_MASK, UNQUEUED)
    columns = columns.take(queued)
    codes_of_batch = codes.of(batch.raw, columns, batch.topics)
    if any(is_lmq(name) for name, _ in writers):
        _write_lmqs(batch, columns, codes_of_batch, writers)
    for topic_id, queue_id, rows in by_queue(columns):
        writer = writers.get((batch.topics.names[topic_id], queue_id))
        if writer is None:
            continue
        units = np.empty(len(rows), QUEUE_UNIT)
        units["offset"] = columns.physical_offset[rows]
        units["size"] = columns.size[rows]
        units["code"] = codes_of_batch[rows]
        numbers: Integers = columns.queue_offset[rows]
        for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(numbers) != 1) + 1):
            writer.write(int(numbers[part[0]]), units[part])


def _write_lmqs(
    batch: Batch, columns: Columns, codes: Integers, writers: dict[tuple[str, int], QueueWriter]
) -> None:
    """Write units of light queues (docs/formats/store-format.md, section 3.9)."""
    for row, name, number in lmq_rows(batch.raw, columns, batch.topics):
        writer = writers.get((name, 0))
        if writer is not None:
            if number < writer.next_number:
                writer.restart()  # the queue was removed in between
            unit = (int(columns.physical_offset[row]), int(columns.size[row]), int(codes[row]))
            writer.write(number, np.array([unit], QUEUE_UNIT))


def _copy_old_units(
    folder: QueueFolder, writer: QueueWriter, lost: list[LostRange], doubted: frozenset[int]
) -> None:
    """Copy old units that point into lost ranges of the log, or to doubted records."""
    opened = OpenFiles()
    places = np.array(sorted(doubted), np.int64)
    try:
        for first, units in written_units(opened, folder):
            offsets = units["offset"]
            keep = np.isin(offsets, places)
            for one in lost:
                keep |= (offsets >= one.begin) & (offsets < one.end)
            for at in np.flatnonzero(keep & (units["size"] > 0)).tolist():
                writer.write(first + at, units[at : at + 1])
    finally:
        opened.close()
