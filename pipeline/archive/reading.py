"""Reads rows of an archive, selected by topic, time, broker and queue.

Files are selected by folder (topic, day), rows by their columns. The rows of a file are in queue
order. Only the driver reads the commit records; tasks get file names.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .manifest import FileEntry, all_manifests, files_of, finish
from .names import date_of, day_of

NO_TIME: Final = 1 << 62
_MS_PER_DAY: Final = 86_400_000
_BATCH_ROWS: Final = 8192


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of rows; times are store times, [start_ms, end_ms)."""

    topic: str
    start_ms: int = 0
    end_ms: int = NO_TIME
    broker: str = ""
    queue_id: int = -1


def files(root: str, selection: Selection) -> list[FileEntry]:
    """Return the files that may have such rows, in log order. Raises ArchiveError, OSError."""
    finish(root)
    first = date_of(min(selection.start_ms, NO_TIME >> 20) // _MS_PER_DAY)
    last = date_of(min(selection.end_ms, 253_402_214_400_000) // _MS_PER_DAY)
    found = [
        file
        for file in files_of(all_manifests(root))
        if file.topic == selection.topic and first <= day_of(file.path) <= last
    ]
    return sorted(found, key=lambda file: (day_of(file.path), file.first, file.path))


def rows(
    root: str, entries: Iterable[FileEntry], selection: Selection, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the selected rows of these files with the given columns."""
    for entry in entries:
        with pq.ParquetFile(os.path.join(root, entry.path)) as file:
            known = file.schema_arrow.names
            wanted = [name for name in columns if name in known]
            needed = [name for name in ("storeTimestamp", "brokerName", "queueId") if name in known]
            read = list(dict.fromkeys((*wanted, *needed)))
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=read):
                part = batch.filter(_mask(batch, selection))
                if len(part):
                    yield _with_topic(part.select(wanted), selection.topic, columns)


def matching(batch: pa.RecordBatch, selection: Selection) -> pa.RecordBatch:
    """Return the selected rows of a batch."""
    return batch.filter(_mask(batch, selection))


def _mask(batch: pa.RecordBatch, selection: Selection) -> pa.Array:
    stamps = batch["storeTimestamp"].cast(pa.int64())
    start, end = selection.start_ms * 1000, min(selection.end_ms, NO_TIME // 1000) * 1000
    mask = pc.and_(pc.greater_equal(stamps, start), pc.less(stamps, end))
    if selection.broker and "brokerName" in batch.schema.names:
        mask = pc.and_(mask, pc.equal(batch["brokerName"], selection.broker))
    if selection.queue_id >= 0 and "queueId" in batch.schema.names:
        mask = pc.and_(mask, pc.equal(batch["queueId"], selection.queue_id))
    return mask


def _with_topic(batch: pa.RecordBatch, topic: str, columns: Sequence[str]) -> pa.RecordBatch:
    if "topic" not in columns:
        return batch
    return batch.add_column(0, "topic", pa.array([topic] * len(batch), pa.string()))


def queues(root: str, entries: Iterable[FileEntry], selection: Selection) -> list[tuple[str, int]]:
    """Return broker and queue id of every queue with such rows."""
    found: set[tuple[str, int]] = set()
    for batch in rows(root, entries, selection, ("brokerName", "queueId")):
        table = pa.Table.from_batches([batch]).group_by(["brokerName", "queueId"]).aggregate([])
        found |= set(
            zip(table["brokerName"].to_pylist(), table["queueId"].to_pylist(), strict=True)
        )
    return sorted(found)
