"""One Parquet file of the archive while it is written, and the digests that its commit record keeps.

A file has every column but `topic`, which its folder says (readers of Hive's layout take it from there,
and refuse one that is in both places). Every column is encoded by what it holds: no dictionary for
bodies and ids; offsets and times, which ascend, as differences; statistics only for columns that people
search by. What holds for all rows stands in the file's metadata.

A digest of a file is the CRC-32 of all its bodies behind each other: one call over Arrow's own
buffer, so that reading a file back costs next to nothing more than reading it. It is taken of every batch
while the processor's cache still has it. Memory: one row group.
(pipeline study, section 2.4)
"""

import contextlib
import os
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .checksum import crc32
from .manifest import FileEntry

CODECS: Final = ("zstd", "snappy", "lz4", "gzip", "none")
#: Bodies of one row group: what a reader holds at a time, and far below Arrow's 2 GiB of a column.
GROUP_BYTES: Final = 64 << 20
GROUP_ROWS: Final = 1 << 17
#: A page is copied twice before it is compressed: this one stays in the processor's cache meanwhile.
_PAGE_BYTES: Final = 512 << 10
#: Of a file that is digested: what stays in the processor's cache.
_READ_BYTES: Final = 256 << 10
_DICTIONARY: Final = ("brokerName", "tags", "bornHost", "storeHost")
_ASCENDING: Final = ("queueOffset", "bornTimestamp", "storeTimestamp", "physicalOffset")
_STATISTICS: Final = ("queueId", *_ASCENDING)


@dataclass(frozen=True, slots=True)
class FileFormat:
    """How files are written."""

    codec: str = "zstd"
    level: int | None = 1


class RowFile:
    """Takes batches of one topic and day; `close` makes it whole, synced, and nameable in a record."""

    def __init__(self, path: str, schema: pa.Schema, file_format: FileFormat) -> None:
        """Raises OSError."""
        self._path = path
        self._schema = schema
        self._sink = pa.OSFile(path, "wb")
        self._writer = pq.ParquetWriter(self._sink, schema, **_options(schema, file_format))
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._rows = self._crc = 0
        self._first: int | None = None
        self._last = -1

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows of at most about a row group. Raises OSError."""
        size = 0
        if "body" in self._schema.names:
            bodies = batch["body"]
            self._crc = _digest(bodies, self._crc)
            size = _body_bytes(bodies)
        if self._waiting and (
            self._waiting_bytes + size > GROUP_BYTES or self._waiting_rows + len(batch) > GROUP_ROWS
        ):
            self._write_group()
        self._note_offsets(batch)
        self._waiting.append(batch)
        self._waiting_rows += len(batch)
        self._waiting_bytes += size

    def close(self, topic: str, path: str, staged: str) -> FileEntry:
        """Finish it; the entry says that it will be at `path`. Raises OSError."""
        try:
            if self._waiting:
                self._write_group()
            self._writer.close()
        finally:
            self._sink.close()
        size, file_crc = _synced_digest(self._path)
        first = -1 if self._first is None else self._first
        counted = (self._rows, size, file_crc, self._crc, first, self._last)
        return FileEntry(topic, path, staged, *counted)

    def abandon(self) -> None:
        """Let go of a file that is not wanted any more."""
        self._waiting.clear()
        with contextlib.suppress(OSError, pa.ArrowException):
            self._writer.close()
        with contextlib.suppress(OSError, pa.ArrowException):
            self._sink.close()

    def _note_offsets(self, batch: pa.RecordBatch) -> None:
        self._rows += len(batch)
        if "physicalOffset" not in self._schema.names or not len(batch):
            return
        bounds = pc.min_max(batch["physicalOffset"])
        if bounds["min"].is_valid:
            low, high = bounds["min"].as_py(), bounds["max"].as_py()
            self._first = low if self._first is None else min(self._first, low)
            self._last = max(self._last, high)

    def _write_group(self) -> None:
        group = pa.Table.from_batches(self._waiting)
        self._waiting.clear()
        self._waiting_rows = self._waiting_bytes = 0
        self._writer.write_table(group, row_group_size=max(group.num_rows, 1))


def _options(schema: pa.Schema, file_format: FileFormat) -> dict[str, Any]:
    return {
        "compression": file_format.codec,
        "compression_level": file_format.level if file_format.codec in ("zstd", "gzip") else None,
        "data_page_size": _PAGE_BYTES,
        "use_dictionary": [name for name in _DICTIONARY if name in schema.names] or False,
        "write_statistics": [name for name in _STATISTICS if name in schema.names],
        "column_encoding": {
            name: "DELTA_BINARY_PACKED"
            for name in _ASCENDING
            if name in schema.names and _is_number(schema.field(name).type)
        }
        or None,
    }


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind))


def file_schema(schema: pa.Schema, about: dict[str, str]) -> pa.Schema:
    """The schema of rows without their topic, with what holds for all of them."""
    at = schema.get_field_index("topic")
    bare = schema if at < 0 else schema.remove(at)
    return bare.with_metadata({f"cometmq.{key}": value for key, value in about.items()})


def file_digest(path: str) -> tuple[int, int]:
    """Length and CRC-32 of a file. Raises OSError."""
    size = crc = 0
    part = memoryview(bytearray(_READ_BYTES))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(part):
            crc = crc32(part[:count], crc)
            size += count
    return size, crc


def _synced_digest(path: str) -> tuple[int, int]:
    """The same of a file that was just written, which it makes durable."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return file_digest(path)


def digest(table: pa.Table, crc: int = 0) -> int:
    """CRC-32 of the bodies behind each other, going on from `crc`; 0 where there are none."""
    if "body" not in table.column_names:
        return 0
    for chunk in table["body"].chunks:
        crc = _digest(chunk, crc)
    return crc


def _digest(bodies: pa.Array, crc: int) -> int:
    data = bodies.buffers()[2]
    if data is None or not len(bodies):
        return crc
    begin, end = _span(bodies)
    return crc32(memoryview(data)[begin:end], crc)


def _body_bytes(bodies: pa.Array) -> int:
    if not len(bodies):
        return 0
    begin, end = _span(bodies)
    return end - begin


def _span(bodies: pa.Array) -> tuple[int, int]:
    offsets = np.frombuffer(bodies.buffers()[1], np.int32)[bodies.offset :]
    return int(offsets[0]), int(offsets[len(bodies)])
