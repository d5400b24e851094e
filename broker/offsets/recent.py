"""Recent offsets: changes since `consumerOffset.json` was written, in `<store>/ha/offsets-recent`.

The JSON file holds the whole table and is written every few seconds; changes are appended here five
times a second, so that a killed process continues at its consumers' positions. A frame:

    length of the payload 4, CRC-32 of what follows 4, wall time (ms) 8, payload: a `v1.Offsets`

A frame counts only if it is complete, at least as young as the JSON file, and relies on no more of
the log than exists (`log_end`). It is never flushed: it survives the process, not the machine.
Frames that a JSON file covers are removed when the JSON file is on disk; beyond `SIZE_MAX` nothing
is appended until then. Derived: a loss costs repeated deliveries, never a message.
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
        self._size = 0
        self._covered = 0
        self._trouble = ""

    def read(self, table: Path, since_ms: int, log_end: int) -> Iterator[v1.Offsets]:
        """Yield the frames that count after the JSON file `table`, in written order."""
        try:
            data = self._path.read_bytes()
            if table.exists() and table.stat().st_mtime_ns > self._path.stat().st_mtime_ns:
                return  # another writer, possibly Apache's broker, has written the table since
        except FileNotFoundError:
            return
        at = 0
        while at + _HEAD.size <= len(data):
            length, crc, wall_ms = _HEAD.unpack_from(data, at)
            end = at + _HEAD.size + length
            if end > len(data) or zlib.crc32(data[at + _CRC_FROM : end]) != crc:
                # The process ended during a write, or the file is damaged.
                logger.warning("offsets_recent.cut path=%s position=%d", self._path, at)
                return
            try:
                offsets = v1.Offsets.FromString(data[at + _HEAD.size : end])
            except DecodeError:
                return
            if wall_ms >= since_ms and offsets.log_end <= log_end:
                yield offsets
            at = end

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
            with self._path.open("ab") as file:
                file.write(frame)
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
            temporary.write_bytes(content)
            os.replace(temporary, self._path)
        except OSError as error:
            self._report(error)
            return
        self._size, self._covered = len(content), 0

    def _report(self, error: OSError) -> None:
        if str(error) != self._trouble:  # every retry repeats the error
            logger.warning("offsets_recent.not_written path=%s error=%s", self._path, error)
        self._trouble = str(error)


def _frame(payload: bytes, wall_ms: int) -> bytes:
    rest = wall_ms.to_bytes(8, "big", signed=True) + payload
    return len(payload).to_bytes(4, "big") + zlib.crc32(rest).to_bytes(4, "big") + rest
