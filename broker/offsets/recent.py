"""Recent offsets: changes since `consumerOffset.json` was written, in `<store>/ha/offsets-recent`.

The JSON file holds the whole table and is written every few seconds; changes are appended here five
times a second, so that a killed process continues at its consumers' positions. A frame:

    length of the payload 4, CRC-32 of what follows 4, wall time (ms) 8, payload: a `v1.Offsets`

A frame counts only if it is complete, at least as young as the JSON file, and relies on no more of
the log than exists (`log_end`). It is never flushed: it survives the process, not the machine.
Frames that a JSON file covers are removed when the JSON file is on disk; beyond `SIZE_MAX` nothing
is appended until then. Derived: a loss costs repeated deliveries, never a message.

`offsets-recent.copy` has the same bytes. The copy is written behind the file and replaced before
it, so a copy that continues where the file ends shows that the file was cut: the frames are then
read from the copy.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from google.protobuf.message import DecodeError

from ...proto import v1

logger = logging.getLogger(__name__)

#: While no JSON file can be written (full disk), the newest progress is in memory only.
SIZE_MAX = 8 << 20
_HEAD = struct.Struct(">IIq")
_CRC_FROM = 8
_COPY_SUFFIX = ".copy"


class Log(Protocol):
    """The positions of the store's log."""

    @property
    def log_end(self) -> int: ...

    @property
    def flushed_offset(self) -> int: ...

    @property
    def writable(self) -> bool: ...

    @property
    def paused(self) -> bool: ...

    def flush_soon(self) -> None: ...


class RecentOffsets:
    """The file, for one writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._copy = path.with_name(path.name + _COPY_SUFFIX)
        self._size = 0
        self._covered = 0
        self._trouble = ""
        self._table: Path | None = None

    def read(self, table: Path, since_ms: int, log_end: int) -> Iterator[v1.Offsets]:
        """Yield the frames that count after the JSON file `table`, in written order."""
        self._table = table
        data = self._content()
        if table.exists() and table.stat().st_mtime_ns > self._written_ns():
            return  # another writer, possibly Apache's broker, has written the table since
        end = _end_of(data)
        if end < len(data):  # the process ended during a write, or the file is damaged
            logger.warning("offsets_recent.cut path=%s position=%d", self._path, end)
        for _, wall_ms, offsets in _frames(data):
            if wall_ms >= since_ms and offsets.log_end <= log_end:
                yield offsets

    def _content(self) -> bytes:
        """Return the bytes of the file, or of the copy if that has more whole frames."""
        data, copy = _bytes_of(self._path), _bytes_of(self._copy)
        end = _end_of(data)
        if copy[:end] == data[:end] and _end_of(copy) > end:
            logger.warning(
                "offsets_recent.restored path=%s position=%d: the file was cut or damaged there; "
                "the copy is used.",
                self._path,
                end,
            )
            return copy
        return data

    def _written_ns(self) -> int:
        files = [path for path in (self._path, self._copy) if path.exists()]
        return files[0].stat().st_mtime_ns if files else 0

    def begin(self, payload: bytes, wall_ms: int) -> None:
        """Start a new file with the frames read: those of an earlier instance have another
        clock.
        """
        frame = _frame(payload, wall_ms) if payload else b""
        self._replace(frame)

    def append(self, payload: bytes, wall_ms: int) -> None:
        """Append a frame."""
        frame = _frame(payload, wall_ms)
        if self._size + len(frame) > SIZE_MAX:
            return
        try:
            for path in (self._path, self._copy):
                with path.open("ab") as file:
                    file.write(frame)
                self._date(path)
        except OSError as error:
            self._report(error)
            return
        self._size += len(frame)

    def cover(self) -> None:
        """Mark the current frames as covered by a JSON file that is about to be written."""
        self._covered = self._size

    def covered(self) -> None:
        """Remove the covered frames: the JSON file is on disk."""
        if not self._covered:
            return
        try:
            rest = self._path.read_bytes()[self._covered :]
        except OSError as error:
            self._report(error)
            return
        self._replace(rest)

    def _replace(self, content: bytes) -> None:
        temporary = self._path.with_name(self._path.name + ".tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            for path in (self._copy, self._path):
                temporary.write_bytes(content)
                os.replace(temporary, path)
                self._date(path)
        except OSError as error:
            self._report(error)
            return
        self._size, self._covered = len(content), 0

    def _date(self, path: Path) -> None:
        """Give a file that was just written no earlier date than the table's, which may have been
        written before the clock was set back: else `read` takes the table for newer."""
        if self._table is not None and self._table.exists():
            table_ns = self._table.stat().st_mtime_ns
            if path.stat().st_mtime_ns < table_ns:
                os.utime(path, ns=(table_ns, table_ns))

    def _report(self, error: OSError) -> None:
        if str(error) != self._trouble:  # every retry repeats the error
            logger.warning("offsets_recent.not_written path=%s error=%s", self._path, error)
        self._trouble = str(error)


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _end_of(data: bytes) -> int:
    """Return where the whole frames end."""
    return max((end for end, _, _ in _frames(data)), default=0)


def _frames(data: bytes) -> Iterator[tuple[int, int, v1.Offsets]]:
    """Yield end, time and content of each frame, up to the first that is not whole."""
    at = 0
    while at + _HEAD.size <= len(data):
        length, crc, wall_ms = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        if end > len(data) or zlib.crc32(data[at + _CRC_FROM : end]) != crc:
            return
        try:
            offsets = v1.Offsets.FromString(data[at + _HEAD.size : end])
        except DecodeError:
            return
        yield end, wall_ms, offsets
        at = end


def _frame(payload: bytes, wall_ms: int) -> bytes:
    rest = wall_ms.to_bytes(8, "big", signed=True) + payload
    return len(payload).to_bytes(4, "big") + zlib.crc32(rest).to_bytes(4, "big") + rest
