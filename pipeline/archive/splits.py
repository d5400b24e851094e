"""Archives one range of a log, in a task that can read the log.

The rows depend only on the log and the archive's settings, so every attempt writes the same rows;
the commit record decides which attempt counts. The source bytes are digested (CRC-32) in the same
pass, so that a log that changes later (a replica with a truncated tail) is detected before the
watermark moves.
"""

import os
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ...store.format.checksum import crc32
from ..decode import Decoder, open_split
from ..schema import COLUMNS
from ..splits import Split
from .manifest import Manifest, commit, finish_one, load, new_token
from .names import escaped, split_name, staging_folder
from .row_file import FileFormat
from .rows import Destination, write_records

KIND: Final = "split"
_DIGEST_BYTES: Final = 8 << 20
_BATCH_ROWS: Final = 32768
#: Columns of a file; the folder's name has the topic.
_BARE_COLUMNS: Final = tuple(name for name in COLUMNS if name != "topic")


@dataclass(frozen=True, slots=True)
class SplitWork:
    """Work of one task; pickled, so plain values only."""

    root: str
    split: Split
    file_format: FileFormat = field(default_factory=FileFormat)
    on_corrupt: Literal["fail", "skip", "permissive"] = "fail"
    verify_crc: bool = True
    topics: Any = None  #: a TopicFilter; None: all topics
    topics_said: str = ""  #: its text, stored in the commit record


@dataclass(frozen=True, slots=True)
class SplitDone:
    """Result of one task."""

    name: str
    start: int
    end: int
    rows: int
    files: int
    bytes_in: int
    bytes_out: int
    fresh: bool  #: False: it was already archived


def archive_split(work: SplitWork) -> SplitDone:
    """Write and commit one split. Raises the decoder's errors, ArchiveError, OSError."""
    split = work.split
    name = split_name(split.broker, split.base, split.start - split.base)
    found = load(work.root, name)
    if found is not None:
        finish_one(work.root, name)
        return _done(found, fresh=False)
    try:
        manifest = _write(work, name)
        fresh = commit(work.root, manifest)
    except OSError:
        # Another attempt may commit first and remove this attempt's staging folder.
        found = load(work.root, name)
        if found is None:
            raise
        return _done(found, fresh=False)
    found = load(work.root, name)
    assert found is not None, name
    return _done(found, fresh)


def _write(work: SplitWork, name: str) -> Manifest:
    split = work.split
    decoder = Decoder(
        _BARE_COLUMNS,
        split.broker,
        verify_crc=work.verify_crc,
        on_corrupt=work.on_corrupt,
        topics=work.topics,
        batch_rows=_BATCH_ROWS,
    )
    stem = f"{escaped(split.broker)}-{split.base:020d}-{split.start - split.base:010d}"
    destination = Destination(work.root, staging_folder(name, new_token()), stem)
    about = {"broker": split.broker, "base": str(split.base), "format": "1"}
    about |= {"start": str(split.start), "end": str(split.end)}
    data = open_split(split)
    # Digest first, in log order: it maps the pages for the decoder.
    source = crc32(data[split.start - split.base : split.end - split.base], 0)
    files = write_records(
        decoder, data, split, destination, file_format=work.file_format, about=about
    )
    return Manifest(
        name,
        tuple(files),
        about={
            "kind": KIND,
            "broker": split.broker,
            "base": split.base,
            "start": split.start,
            "end": split.end,
            "source_crc": source,
            "topics": work.topics_said,
            "on_corrupt": work.on_corrupt,
        },
    )


def source_crc(split: Split) -> int:
    """Return the CRC-32 of the log's bytes [start, end), up to the end of the file.

    Raises OSError.
    """
    crc = 0
    with open(split.path, "rb") as file:
        position, end = split.start - split.base, split.end - split.base
        while position < end:
            data = os.pread(file.fileno(), min(_DIGEST_BYTES, end - position), position)
            if not data:
                break
            crc = crc32(data, crc)
            position += len(data)
    return crc


def _done(manifest: Manifest, fresh: bool) -> SplitDone:
    about = manifest.about
    return SplitDone(
        manifest.name,
        about["start"],
        about["end"],
        manifest.rows,
        len(manifest.files),
        about["end"] - about["start"],
        sum(file.bytes for file in manifest.files),
        fresh,
    )
