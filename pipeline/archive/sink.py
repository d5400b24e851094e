"""The `rocketmq-archive` sink: writes rows as Parquet under `topic=/dt=`, exactly once.

    stream.writeStream.format("rocketmq-archive").option("path", "/archive")
      .option("checkpointLocation", "/checkpoint").start()

Tasks write synced files to the staging folder. The driver's commit writes one commit record for the
micro-batch and renames the files (manifest.py). The record is named by query and batch: a batch
that Spark repeats after a crash finds it, completes its publication and discards its new files. A
batch write is one unit, all or nothing.

Rows need `topic` and `storeTimestamp`; every other column is written unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    WriterCommitMessage,
)

from ..errors import OptionError, PipelineError
from ..sink import running_batch, suggestion
from ..spark_api import DataSourceStreamArrowWriter, stream_writer
from .manifest import FileEntry, Manifest, commit, finish, finish_one, load, new_token, sweep
from .names import ATTEMPT_MARK, escaped, staging_folder
from .settings import open_archive

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from .row_file import FileFormat

FORMAT_NAME: Final = "rocketmq-archive"
OPTIONS: Final = {
    "path": "folder of the archive, shared by all workers",
    "codec": "zstd (default), snappy, lz4, gzip or none",
    "level": "compression level of zstd and gzip (1)",
    "checkpointLocation": "option of Spark",
}
_NEEDED: Final = {"topic": "string", "storeTimestamp": "timestamp"}


@dataclass
class Staged(WriterCommitMessage):
    """Files that one task has written."""

    name: str
    files: tuple[FileEntry, ...]


def _settings(options: Mapping[str, str], schema: StructType) -> tuple[str, FileFormat]:
    """Folder and file_format. Raises OptionError."""
    from .row_file import CODECS, FileFormat

    given = {key.lower(): value for key, value in options.items()}
    for key in given:
        if key not in {name.lower() for name in OPTIONS}:
            text = f"The rocketmq-archive sink has no option {key}.{suggestion(key, OPTIONS)}"
            raise OptionError(text)
    root = given.get("path", "").removeprefix("file://")
    if not root or "://" in root:
        raise OptionError("The rocketmq-archive sink needs the option path: a local folder.")
    codec, level = given.get("codec", "zstd"), given.get("level", "1")
    if codec not in CODECS:
        raise OptionError(f"Unknown codec {codec}. Codecs are: {', '.join(CODECS)}.")
    if not level.isdigit():
        raise OptionError(f"level must be a number, not {level!r}.")
    for name, kind in _NEEDED.items():
        found = next((each for each in schema.fields if each.name == name), None)
        if found is None or found.dataType.simpleString() != kind:
            raise OptionError(f"The rocketmq-archive sink needs a column {name} ({kind}).")
    return os.path.abspath(root), FileFormat(codec, int(level))


def _stage(
    root: str, file_format: FileFormat, name: str, stem: str, batches: Iterator[pa.RecordBatch]
) -> Staged:
    from pyspark import TaskContext

    from .rows import Destination, write_rows

    context = TaskContext.get()
    assert context is not None
    part = context.partitionId()
    token = f"{part:05d}-{new_token()}"
    destination = Destination(root, staging_folder(name, token), f"{stem}-{part:05d}")
    return Staged(name, tuple(write_rows(batches, destination, file_format, {"format": "1"})))


class ArchiveWriter(DataSourceArrowWriter):
    """Writer of a batch write, which is one unit of work."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise PipelineError("An archive cannot be overwritten. Use mode append.")
        self._root, self._file_format = _settings(options, schema)
        open_archive(self._root)
        finish(self._root)
        self._name = f"write.{new_token()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task to the staging folder."""
        return _stage(self._root, self._file_format, self._name, self._name[6:], iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make all files visible; called on the driver."""
        files = [file for one in messages if isinstance(one, Staged) for file in one.files]
        commit(self._root, Manifest(self._name, tuple(files), about={"kind": "write"}))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the staged files; called on the driver."""
        sweep(self._root, self._name + ATTEMPT_MARK)


class ArchiveStreamWriter(DataSourceStreamArrowWriter):
    """Writer of a streaming query, with one unit of work per micro-batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._root, self._file_format = _settings(options, schema)
        open_archive(self._root)
        finish(self._root)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task to the staging folder."""
        query, batch = running_batch()
        stem = f"{query.replace(chr(45), '')}-{batch:010d}"
        return _stage(self._root, self._file_format, _unit(query, batch), stem, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Make the files visible unless this batch is already committed; called on the driver."""
        staged = [one for one in messages if isinstance(one, Staged)]
        if not staged:
            return
        name = staged[0].name
        if load(self._root, name) is not None:
            finish_one(self._root, name)
            return
        files = [file for one in staged for file in one.files]
        about = {"kind": "batch", "batch": batchId}
        commit(self._root, Manifest(name, tuple(files), about=about))
        if batchId:
            sweep(self._root, name.rpartition(".")[0] + f".{batchId - 1:010d}" + ATTEMPT_MARK)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove the staged files of the batch; called on the driver."""
        for one in messages:
            if isinstance(one, Staged) and load(self._root, one.name) is None:
                sweep(self._root, one.name + ATTEMPT_MARK)


def _unit(query: str, batch: int) -> str:
    return f"batch.{escaped(query)}.{batch:010d}"


class ArchiveDataSource(DataSource):
    """Data source `rocketmq-archive`, registered by `pyspark_rocketmq.register`."""

    @classmethod
    def name(cls) -> str:
        """Return the format name."""
        return FORMAT_NAME

    def writer(self, schema: StructType, overwrite: bool) -> ArchiveWriter:
        """Called by Spark for `df.write`."""
        return ArchiveWriter(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Called by Spark for `df.writeStream`."""
        return stream_writer(ArchiveStreamWriter(dict(self.options), schema, overwrite), schema)
