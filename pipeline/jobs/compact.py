"""Job compact: merges small files of an archive, or writes the latest message of every key.

    compact_files(spark, "/archive")                         in place, one unit of work per folder
    latest_by_key(spark, "/archive", "accounts", "/latest")  to another table

Small files of one topic and day are merged in the order of broker, queue and offset. The new file
is read back before a commit record replaces the old ones (manifest.py). Readers of the commit
records see either the old files or the new one; a plain listing has all rows once when the job, or
the next one after a crash, has finished. The latest message of a key has the largest store time,
then queue and queue offset; an empty body deletes the key.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ..archive.checking import check_unit
from ..archive.errors import ArchiveError
from ..archive.manifest import (
    FileEntry,
    Manifest,
    all_manifests,
    commit,
    files_of,
    finish,
    new_token,
    sweep,
)
from ..archive.names import staging_folder
from ..archive.row_file import FileFormat
from ..archive.rows import Destination, write_rows
from ..archive.settings import only_writer, open_archive
from .running import Report, run_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PREFIX: Final = "compact."
TARGET_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class CompactPart:
    """Files of one folder to merge."""

    root: str
    files: tuple[FileEntry, ...]
    file_format: FileFormat = field(default_factory=FileFormat)


@dataclass(frozen=True, slots=True)
class CompactDone:
    """Result of one task."""

    folder: str
    files: int
    rows: int
    bytes_in: int
    bytes_out: int


def compact_files(
    spark: SparkSession | None,
    root: str,
    *,
    target_bytes: int = TARGET_BYTES,
    file_format: FileFormat | None = None,
    dry_run: bool = False,
) -> Report:
    """Merge small files. Raises ArchiveError, OSError."""
    root = os.path.abspath(root)
    open_archive(root)
    with only_writer(root, "compact"):
        finish(root)
        sweep(root, _PREFIX)
        parts = [
            CompactPart(root, tuple(files), file_format or FileFormat())
            for files in choose(files_of(all_manifests(root)), target_bytes)
        ]
        summary = {"archive": root, "dry_run": dry_run, "folders": len(parts)}
        summary["files_in"] = sum(len(part.files) for part in parts)
        if dry_run:
            rows = [{"folder": _folder(p.files[0]), "files": len(p.files)} for p in parts]
            return Report("compact", summary, rows)
        done = run_parts(spark, parts, compact_part, "compact")
        summary["files_out"] = sum(one.files for one in done)
        summary["rows_moved"] = sum(one.rows for one in done)
        rows = [
            {
                "folder": one.folder,
                "rows": one.rows,
                "bytes_in": one.bytes_in,
                "bytes_out": one.bytes_out,
            }
            for one in done
        ]
        return Report("compact", summary, rows)


def _folder(file: FileEntry) -> str:
    return file.path.rpartition("/")[0]


def choose(files: list[FileEntry], target_bytes: int) -> list[list[FileEntry]]:
    """Return groups of at least two small files of a folder, each of about `target_bytes`."""
    folders: dict[str, list[FileEntry]] = {}
    for file in files:
        if file.bytes < target_bytes:
            folders.setdefault(_folder(file), []).append(file)
    found: list[list[FileEntry]] = []
    for _, small in sorted(folders.items()):
        group: list[FileEntry] = []
        size = 0
        for file in sorted(small, key=lambda one: (one.first, one.path)):
            if group and size + file.bytes > target_bytes:
                found.append(group)
                group, size = [], 0
            group.append(file)
            size += file.bytes
        found.append(group)
    return [group for group in found if len(group) > 1]


def compact_part(part: CompactPart) -> CompactDone:
    """Write, read back and commit one group; runs in a task. Raises ArchiveError, OSError."""
    token = new_token()
    name = f"{_PREFIX}{token}"
    batches: list[pa.RecordBatch] = []
    for file in part.files:
        table = pq.read_table(os.path.join(part.root, file.path), partitioning=None)
        topics = pa.array([file.topic], pa.string()).take(
            pa.array([0] * table.num_rows, pa.int32())
        )
        table = table.replace_schema_metadata(None).add_column(0, "topic", topics)
        batches += table.to_batches()
    destination = Destination(part.root, staging_folder(name, token), f"compact-{token}")
    written = write_rows(batches, destination, part.file_format, {"format": "1"})
    removes = tuple(file.path for file in part.files)
    about = {"kind": "compact", "on_corrupt": "fail"}
    staged = Manifest(name, tuple(_as_staged(one) for one in written), removes, about)
    problems = check_unit(part.root, staged, None)
    rows = sum(file.rows for file in part.files)
    if problems or staged.rows != rows:
        sweep(part.root, name)
        raise ArchiveError(
            problems[0] if problems else f"{staged.rows} of {rows} rows were written."
        )
    commit(part.root, Manifest(name, tuple(written), removes, about))
    size = sum(file.bytes for file in part.files)
    out = sum(file.bytes for file in written)
    return CompactDone(_folder(part.files[0]), len(written), rows, size, out)


def _as_staged(file: FileEntry) -> FileEntry:
    """Return the entry with the staged path as its path."""
    return replace(file, path=file.staged)


def latest_by_key(spark: SparkSession, root: str, topic: str, out: str) -> Report:
    """Write the latest message of every key of a topic to `out` as Parquet.

    Every word of `keys` is a key. Raises ArchiveError and Spark's errors.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    root = os.path.abspath(root)
    finish(root)
    paths = [
        os.path.join(root, file.path)
        for file in files_of(all_manifests(root))
        if file.topic == topic
    ]
    if not paths:
        raise ArchiveError(f"The archive {root} has no messages of topic {topic}.")
    rows = spark.read.parquet(*paths)
    keyed = rows.where(f.col("keys").isNotNull()).withColumn("key", f.explode(f.split("keys", " ")))
    keyed = keyed.where(f.col("key") != "")
    order = [f.col(name).desc() for name in ("storeTimestamp", "queueId", "queueOffset")]
    latest = (
        keyed.withColumn("place", f.row_number().over(Window.partitionBy("key").orderBy(*order)))
        .where(f.col("place") == 1)
        .drop("place")
        .where(f.length("body") > 0)
    )
    latest.write.mode("errorifexists").parquet(out)
    kept = spark.read.parquet(out).count()
    return Report("compact", {"archive": root, "topic": topic, "out": out, "keys": kept})
