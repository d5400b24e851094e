"""Archived tails: bytes that a rejoining replica cut from its log, and their descriptions.

    <store>/ha/diverged/<epoch>-<start>-<end>.log     the bytes from `start` on, unchanged
    <store>/ha/diverged/<epoch>-<start>-<end>.json    `DivergedTail`, as of `state/documents.py`

`epoch` is the newest epoch of the bytes, `end` the end of the last whole record; the file also has
what followed it (a torn record). The description is written after the bytes are durable, and the
log may be changed only after that (invariant I8). Nothing here deletes a tail (docs/formats/ha.md,
section 6.5, R6 and R7).
"""

import os
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from ...store.format.disk import NO_SPACE, Disk
from ...store.format.errors import DiskFullError
from ...store.format.layout import check_name
from ...store.log.commit_log import CommitLog
from ..errors import DamagedStateError
from ..state import documents

FOLDER: Final = "diverged"
#: Message ids in a report; the archive has all of them.
SAMPLE_MAX: Final = 16
_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class DivergedTail:
    """One archived tail."""

    file_id: str
    epoch: int
    start: int
    end: int  #: end of the last whole record
    size: int  #: bytes in the file, which may continue after `end`
    crc32: int  #: of the file
    messages: int  #: records written by clients, without the broker's own
    records: int
    answered_ok: int  #: those of `messages` that end at or below `local_ok`
    sample_ids: tuple[str, ...]  #: of the first answered messages
    local_ok: int  #: highest end that this replica ever answered OK
    confirm: int
    below_confirm: bool
    first_stored_ms: int
    last_stored_ms: int
    decided_epoch: int  #: epoch of the leader that ordered the cut
    leader: str
    reason: str
    cut_at_ms: int
    plan_id: str
    reported: bool = False  #: a controller has acknowledged the report
    replayed: bool = False  #: every message was sent again
    replayed_to: int = 0  #: everything below was sent again, except `unsent`
    unsent: tuple[int, ...] = ()  #: offsets of messages that the group refused

    @property
    def log_name(self) -> str:
        return f"{self.file_id}.log"


def folder_of(directory: Path) -> Path:
    """Return the archive folder of `<store>/ha`."""
    return directory / FOLDER


def load_tails(directory: Path) -> list[DivergedTail]:
    """Return every archived tail, the oldest cut first. Raises DamagedStateError."""
    tails = []
    for path in sorted(folder_of(directory).glob("*.json")):
        content = documents.read(path)
        if content is not None:
            tails.append(_tail_of(path, content))
    return sorted(tails, key=lambda tail: (tail.cut_at_ms, tail.epoch, tail.start))


def _tail_of(path: Path, content: dict[str, Any]) -> DivergedTail:
    known = {each.name for each in fields(DivergedTail)}
    values = {name: value for name, value in content.items() if name in known}
    try:
        check_name(content["file_id"], "name of a tail")
        for name in ("sample_ids", "unsent"):
            values[name] = tuple(values.get(name) or ())
        return DivergedTail(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedStateError(f"{path} is not a valid description of a tail: {error}.") from None


def save(directory: Path, tail: DivergedTail, disk: Disk) -> None:
    """Write the description durably. Raises OSError."""
    documents.write(folder_of(directory) / f"{tail.file_id}.json", asdict(tail), disk)


def copy_tail(
    directory: Path, file_id: str, log: CommitLog, span: tuple[int, int], disk: Disk
) -> tuple[int, int]:
    """Copy the bytes [start, end) of the log durably; returns size and CRC-32.

    Raises DiskFullError or OSError, with the log untouched.
    """
    folder = folder_of(directory)
    if not folder.exists():
        folder.mkdir(parents=True)
        disk.sync_directory(str(directory))
    path = folder / f"{file_id}.log"
    size = crc = 0
    try:
        descriptor = disk.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            for chunk in _chunks(log, *span):
                if disk.pwrite(descriptor, chunk, size) != len(chunk):
                    raise OSError(f"{path} was not written in full.")
                crc = zlib.crc32(chunk, crc)
                size += len(chunk)
            disk.fsync(descriptor)
        finally:
            os.close(descriptor)
        disk.sync_directory(str(folder))
    except OSError as error:
        if error.errno in NO_SPACE:
            raise DiskFullError(
                "There is not enough disk space to archive the tail of the log from "
                f"{span[0]} on as {path}. Free some space: until then this replica cannot "
                "rejoin its group. No data is lost."
            ) from error
        raise
    return size, crc


def _chunks(log: CommitLog, start: int, end: int) -> Iterator[bytes]:
    for segment in log.segments_between(start, end):
        first, stop = max(start - segment.start, 0), min(end - segment.start, segment.size)
        for position in range(first, stop, _CHUNK_BYTES):
            yield segment.map[position : min(position + _CHUNK_BYTES, stop)]


def used_end(log: CommitLog, start: int) -> int:
    """Return the end of the last non-zero byte from `start` on, or `start`."""
    for segment in reversed(log.segments_between(start, log.end)):
        position = max(start - segment.start, 0)
        used = segment.used_end(position)
        if used > position:
            return segment.start + used
    return start
