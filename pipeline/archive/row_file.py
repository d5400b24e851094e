"""Writer of one Parquet file of the archive, with the digests for its commit record.

A file has every column but `topic`: readers of the Hive layout take it from the folder's name and
refuse a duplicate. Encodings: no dictionary for bodies and ids; delta encoding for offsets and
times, which ascend; statistics only for columns that are used in filters. The file's metadata holds
what is common to all rows.

The digest of a file is the CRC-32 of its concatenated bodies, computed per batch over Arrow's
buffer while it is in the processor's cache. Memory: one row group.
"""

import contextlib
import os
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...store.format.checksum import crc32
from .manifest import FileEntry

CODECS: Final = ("zstd", "snappy", "lz4", "gzip", "none")
#: Bytes of bodies in one row group, which readers hold in memory; Arrow's limit is 2 GiB.
GROUP_BYTES: Final = 64 << 20
GROUP_ROWS: Final = 1 << 17
#: A page is copied twice before compression: this size stays in the processor's cache.
_PAGE_BYTES: Final = 512 << 10
#: Read size of digests: stays in the processor's cache.
_READ_BYTES: Final = 256 << 10
_DICTIONARY: Final = ("brokerName", "tags", "bornHost", "storeHost")
_ASCENDING: Final = ("queueOffset", "bornTimestamp", "storeTimestamp", "physicalOffset")
_STATISTICS: Final = ("queueId", *_ASCENDING)


@dataclass(frozen=True, slots=True)
class FileFormat:
    """Compression of Parquet files."""

    codec: str = "zstd"
    level: int | None = 1


class RowFile:
    """Writes batches of one topic and day. `close` completes and syncs the file."""

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
        """Add rows, at most about one row group. Raises OSError."""
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
        """Complete the file and return its entry with the final `path`. Raises OSError."""
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
        """Close the file without completing it."""
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
    """Return the schema without `topic`, with `about` as metadata."""
    at = schema.get_field_index("topic")
    bare = schema if at < 0 else schema.remove(at)
    return bare.with_metadata({f"cometmq.{key}": value for key, value in about.items()})


def file_digest(path: str) -> tuple[int, int]:
    """Return length and CRC-32 of a file. Raises OSError."""
    size = crc = 0
    part = memoryview(bytearray(_READ_BYTES))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(part):
            crc = crc32(part[:count], crc)
            size += count
    return size, crc


def _synced_digest(path: str) -> tuple[int, int]:
    """Make a new file durable. Return its length and CRC-32."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return file_digest(path)


def digest(table: pa.Table, crc: int = 0) -> int:
    """Return the CRC-32 of the concatenated bodies, continued from `crc`; 0 without bodies."""
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
