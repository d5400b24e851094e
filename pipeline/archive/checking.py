"""The archive read back and compared with what its records and the log say, before anything is deleted.

Of each unit of work: every file is there, has its size, its rows, and bodies with the digest that they
had when they were written. While the log still has the range: its bytes have the digest that they had
then, and the rows are exactly its records (place, size, queue, queue offset, body checksum), each once
and none missing. A finding is a sentence; none means that the unit may be relied on.
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

#: What makes a record the record that it is.
IDENTITY: Final = ("physicalOffset", "size", "queueId", "queueOffset", "bodyCRC")


def check_unit(
    root: str,
    manifest: Manifest,
    split: Split | None,
    topics: Any = None,
    moved: Mapping[str, tuple[str, ...]] | None = None,
) -> list[str]:
    """Everything that is wrong with a unit of work; `split` is its range where the log has it, `moved`
    says where the rows of its files are since they were compacted."""
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
    """The rows of one file, where they lie now."""

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
                return  # whatever it holds, it is not what was written
        with pq.ParquetFile(path) as file:
            known = set(file.schema_arrow.names)
            identity = [name for name in IDENTITY if name in known]
            wanted = [*identity, *(name for name in ("body", "brokerName") if name in known)]
            for batch in file.iter_batches(batch_size=1 << 16, columns=wanted):
                table = pa.Table.from_batches([batch])
                if not self._whole:
                    table = table.filter(self._mine(table))
                self._crc = digest(table.combine_chunks(), self._crc)
                self._rows += table.num_rows
                self.parts.append(table.select(identity))
            if not self.parts:
                fields = [file.schema_arrow.field(name) for name in identity]
                self.parts.append(pa.schema(fields).empty_table())

    def _mine(self, table: pa.Table) -> pa.ChunkedArray:
        offsets = table["physicalOffset"]
        inside = pc.and_(
            pc.greater_equal(offsets, self._entry.first), pc.less_equal(offsets, self._entry.last)
        )
        return pc.and_(inside, pc.equal(table["brokerName"], self._broker))

    def problems(self) -> list[str]:
        """What is wrong with what was read."""
        entry, found = self._entry, []
        if self._file != (entry.bytes, entry.file_crc):
            return [f"{entry.path} is not the file that was written: its checksum differs."]
        if self._rows != entry.rows:
            found.append(f"{entry.path} has {self._rows} rows, its record says {entry.rows}.")
        if self._crc != entry.crc:
            found.append(f"{entry.path}: the bodies are not those that were written.")
        return found


def _against_log(
    manifest: Manifest, split: Split, parts: Iterable[pa.Table], topics: Any
) -> list[str]:
    if source_crc(split) != manifest.about["source_crc"]:
        return [f"The log's bytes [{split.start}, {split.end}) are not those that were archived."]
    on_corrupt = manifest.about["on_corrupt"]
    batches = list(decode(split, IDENTITY, on_corrupt=on_corrupt, topics=topics))
    log = pa.Table.from_batches(batches) if batches else None
    archive = pa.concat_tables([part.cast(log.schema) for part in parts]) if log else None
    if log is None or archive is None:
        return [f"{manifest.name} has rows, the log has none."] if manifest.rows else []
    if log.num_rows != archive.num_rows:
        return [f"{manifest.name} has {archive.num_rows} rows, the log {log.num_rows}."]
    if not log.sort_by("physicalOffset").equals(archive.sort_by("physicalOffset")):
        return [f"The rows of {manifest.name} are not the records of the log."]
    return []


def is_another_log(manifests: Iterable[Manifest], store: StoreSnapshot) -> bool:
    """Whether the records are of a log that only has the same name. One range that differs may be damage,
    or a tail that a replica lost; a log of somebody else differs from the oldest to the newest. Ranges
    that the log does not have whole (a replica that is behind) say nothing. Raises OSError."""
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
