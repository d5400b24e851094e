"""Checks an archive: reads it back and compares it with its commit records and the log.

For each unit of work: every file exists with the recorded size, rows, checksum and digest of its
bodies. If the log still has the range: its bytes have the recorded digest, and the rows are exactly
its records (physical offset, size, queue, queue offset, body checksum). A problem is a sentence.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..decode import decode
from ..splits import Split
from .manifest import FileEntry, Manifest
from .planning import StoreSnapshot, split_of
from .row_file import digest, file_digest
from .splits import KIND, source_crc

#: Columns that identify a record.
IDENTITY: Final = ("physicalOffset", "size", "queueId", "queueOffset", "bodyCRC")


def check_unit(
    root: str,
    manifest: Manifest,
    split: Split | None,
    topics: Any = None,
    moved: Mapping[str, tuple[str, ...]] | None = None,
) -> list[str]:
    """Return the problems of a unit of work.

    `split`: its range, if the log has it. `moved`: the files that replaced each compacted file.
    """
    found: list[str] = []
    parts: list[pa.Table] = []
    for entry in manifest.files:
        try:
            places = (moved or {}).get(entry.path, (entry.path,))
            check = _FileCheck(entry, manifest.about.get("broker", ""), places == (entry.path,))
            for path in places:
                check.read(os.path.join(root, path))
            found += check.problems()
            parts += check.parts
        except (OSError, pa.ArrowInvalid) as error:
            found.append(f"{entry.path} cannot be read: {error}.")
    if split is not None and not found:
        found += _against_log(manifest, split, parts, topics)
    return found


class _FileCheck:
    """Checks the rows of one file, which compaction may have moved."""

    def __init__(self, entry: FileEntry, broker: str, whole: bool) -> None:
        self.parts: list[pa.Table] = []
        self._entry = entry
        self._broker = broker
        self._whole = whole
        self._rows = self._crc = 0
        self._file = (entry.bytes, entry.file_crc)

    def read(self, path: str) -> None:
        """Raises OSError, ArrowInvalid."""
        if self._whole:
            self._file = file_digest(path)
            if self._file[1] != self._entry.file_crc:
                return  # checksum mismatch
        with pq.ParquetFile(path) as file:
            known = set(file.schema_arrow.names)
            identity = [name for name in IDENTITY if name in known]
            wanted = [*identity, *(name for name in ("body", "brokerName") if name in known)]
            for batch in file.iter_batches(batch_size=1 << 16, columns=wanted):
                table = pa.Table.from_batches([batch])
                if not self._whole:
                    table = table.filter(self._is_own(table))
                self._crc = digest(table.combine_chunks(), self._crc)
                self._rows += table.num_rows
                self.parts.append(table.select(identity))
            if not self.parts:
                fields = [file.schema_arrow.field(name) for name in identity]
                self.parts.append(pa.schema(fields).empty_table())

    def _is_own(self, table: pa.Table) -> pa.ChunkedArray:
        offsets = table["physicalOffset"]
        inside = pc.and_(
            pc.greater_equal(offsets, self._entry.first), pc.less_equal(offsets, self._entry.last)
        )
        return pc.and_(inside, pc.equal(table["brokerName"], self._broker))

    def problems(self) -> list[str]:
        """Return the problems of the rows that were read."""
        entry, found = self._entry, []
        if self._file != (entry.bytes, entry.file_crc):
            return [f"{entry.path}: the checksum of the file does not match its commit record."]
        if self._rows != entry.rows:
            found.append(f"{entry.path} has {self._rows} rows; its commit record has {entry.rows}.")
        if self._crc != entry.crc:
            found.append(f"{entry.path}: the digest of the bodies does not match its record.")
        return found


def _against_log(
    manifest: Manifest, split: Split, parts: Iterable[pa.Table], topics: Any
) -> list[str]:
    if source_crc(split) != manifest.about["source_crc"]:
        return [f"Bytes [{split.start}, {split.end}) of the log differ from the archived ones."]
    on_corrupt = manifest.about["on_corrupt"]
    batches = list(decode(split, IDENTITY, on_corrupt=on_corrupt, topics=topics))
    log = pa.Table.from_batches(batches) if batches else None
    archive = pa.concat_tables([part.cast(log.schema) for part in parts]) if log else None
    if log is None or archive is None:
        return [f"{manifest.name} has {manifest.rows} rows, the log 0."] if manifest.rows else []
    if log.num_rows != archive.num_rows:
        return [f"{manifest.name} has {archive.num_rows} rows, the log {log.num_rows}."]
    if not log.sort_by("physicalOffset").equals(archive.sort_by("physicalOffset")):
        return [f"The rows of {manifest.name} differ from the records of the log."]
    return []


def is_another_log(manifests: Iterable[Manifest], store: StoreSnapshot) -> bool:
    """Whether the commit records belong to another log with the same broker name. Raises OSError.

    A single differing range may be damage or a truncated tail; of another log, the oldest and the
    newest range both differ. Ranges that this log does not have completely are ignored.
    """
    units = sorted(
        (one for one in manifests if one.about.get("kind") == KIND),
        key=lambda one: int(one.about["start"]),
    )
    there = []
    for one in units:
        split = split_of(store, one.about["start"], one.about["end"])
        if split is not None and split.end <= store.end:
            there.append((split, one.about["source_crc"]))
    ends = there[:1] + there[1:][-1:]
    return bool(ends) and all(source_crc(split) != crc for split, crc in ends)
