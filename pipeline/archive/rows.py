"""Writes rows of messages as Parquet files, one per topic and day, in queue order.

    write_rows      writes given rows with any columns (sink, compaction)
    write_records   sorts the records of a log, then reads each once

The files are invisible until a commit record names them.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...store.scan.walk import RawBytes
from ..decode import Decoder
from ..rows import LogBytes
from ..splits import Split
from .manifest import FileEntry
from .names import folder_of
from .record_order import sort_records
from .row_file import FileFormat, RowFile, file_schema

Integers = npt.NDArray[np.int64]

_US_PER_DAY: Final = 86_400_000_000
#: Tables below this size are combined; an Arrow column in one chunk is limited to 2 GiB.
_TOGETHER_BYTES: Final = 1 << 30
#: Rows gathered at a time: fits the processor's cache, and the memory is reused.
_BATCH_ROWS: Final = 8192


@dataclass(frozen=True, slots=True)
class Destination:
    """Paths of one attempt: staged below `staged`, later renamed to `TOPIC/DAY/stem.parquet`."""

    root: str
    staged: str
    stem: str


class _Files:
    """Writes the files of one attempt."""

    def __init__(
        self, destination: Destination, file_format: FileFormat, about: dict[str, str]
    ) -> None:
        self._place = destination
        self._file_format = file_format
        self._about = about
        self._made = False
        self.entries: list[FileEntry] = []

    def write(self, topic: str, day: int, batches: Iterable[pa.RecordBatch]) -> None:
        """Write these rows to one file; no file without rows. Raises OSError."""
        destination = self._place
        staged = f"{destination.staged}/{len(self.entries):05d}.parquet"
        file: RowFile | None = None
        try:
            for batch in batches:
                if file is None:
                    file = self._open(staged, topic, batch.schema)
                file.add(batch)
        except BaseException:
            if file is not None:
                file.abandon()
            raise
        if file is not None:
            path = f"{folder_of(topic, day)}/{destination.stem}.parquet"
            self.entries.append(file.close(topic, path, staged))

    def _open(self, staged: str, topic: str, schema: pa.Schema) -> RowFile:
        if not self._made:
            os.makedirs(os.path.join(self._place.root, self._place.staged), exist_ok=True)
            self._made = True
        path = os.path.join(self._place.root, staged)
        return RowFile(
            path, file_schema(schema, {**self._about, "topic": topic}), self._file_format
        )


# -- rows -------------------------------------------------------------------------------------


def write_rows(
    batches: Iterable[pa.RecordBatch],
    destination: Destination,
    file_format: FileFormat,
    about: dict[str, str],
) -> list[FileEntry]:
    """Write rows, which are held in memory. Raises OSError."""
    parts = [batch for batch in batches if len(batch)]
    if not parts:
        return []
    table = pa.Table.from_batches(parts)
    if table.nbytes < _TOGETHER_BYTES:
        # Gathering rows from one chunk is much faster. The batches are released first, so that the
        # gathered rows reuse their memory without page faults.
        table = table.combine_chunks()
    del parts
    topics = table["topic"].dictionary_encode().combine_chunks()
    codes = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    days = table["storeTimestamp"].cast(pa.int64()).to_numpy() // _US_PER_DAY
    order = _order_of_table(table, codes, days)
    names = topics.dictionary.to_pylist()
    bare = table.drop_columns(["topic"])
    files = _Files(destination, file_format, about)
    for begin, end in _groups(codes[order], days[order]):
        first = order[begin]
        files.write(names[codes[first]], int(days[first]), _taken(bare, order[begin:end]))
    return files.entries


def _order_of_table(table: pa.Table, codes: Integers, days: Integers) -> Integers:
    """Return the order by topic, day and, if these columns exist, broker, queue and offset."""
    keys: list[Any] = []
    for name in ("queueOffset", "queueId"):
        if name in table.column_names:
            keys.append(table[name].to_numpy())
    if "brokerName" in table.column_names:
        brokers = table["brokerName"].dictionary_encode().combine_chunks()
        keys.append(brokers.indices.fill_null(-1).to_numpy(zero_copy_only=False))
    return np.lexsort((*keys, days, codes))


def _groups(codes: Integers, days: Integers) -> Iterator[tuple[int, int]]:
    """Yield the row range [begin, end) of each file."""
    boundaries = np.flatnonzero((np.diff(codes) != 0) | (np.diff(days) != 0)) + 1
    ends = [*boundaries.tolist(), len(codes)]
    yield from zip([0, *ends[:-1]], ends, strict=True)


def _taken(table: pa.Table, rows: Integers) -> Iterator[pa.RecordBatch]:
    for begin in range(0, len(rows), _BATCH_ROWS):
        yield from table.take(pa.array(rows[begin : begin + _BATCH_ROWS])).to_batches()


# -- records ----------------------------------------------------------------------------------


def write_records(
    decoder: Decoder,
    data: memoryview,
    split: Split,
    destination: Destination,
    *,
    file_format: FileFormat,
    about: dict[str, str],
) -> list[FileEntry]:
    """Write the records of a split, whose segment is `data`, with the columns of the decoder.

    Memory: the scanned columns of all records and the rows of one row group. Raises the decoder's
    errors and OSError.
    """
    view = LogBytes(RawBytes(data))
    batches = decoder.scan(view, split.base, split.start, split.end, split.path)
    columns, days = sort_records(view.raw, batches, split.end - split.start)
    if not len(columns):
        return []
    files = _Files(destination, file_format, about)
    for begin, end in _groups(columns.topic_id, days):
        topic = decoder.topic(int(columns.topic_id[begin]))
        rows = decoder.rows(view, columns.take(slice(begin, end)))
        files.write(topic, int(days[begin]), rows)
    return files.entries
