"""The consumer offsets that moved since `consumerOffset.json` was written: `<store>/ha/offsets-recent`.

The JSON file holds the whole table and is written every few seconds; what moved meanwhile is appended
here five times a second, so that a process that is killed goes on where its consumers were. A frame:

    length of the payload 4, CRC-32 of what follows 4, wall time (ms) 8, payload: a `v1.Offsets`

Promises: a frame counts only if it is whole, at least as young as the JSON file, and relies on no more of
the log than there is (`log_end`), so it is never flushed and survives the process, not the machine.
Frames that a JSON file covers are cut off when it is on the disk; beyond `SIZE_MAX` nothing is appended
until then. Derived: its loss costs deliveries that are repeated, never a message.
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

log = logging.getLogger(__name__)

SIZE_MAX = 8 << 20
"""Without a JSON file for so long (a full disk, say) the newest progress is in memory alone."""
_HEAD = struct.Struct(">IIq")
_CRC_FROM = 8


class Log(Protocol):
    """What offsets need of the store: how far its log is, and how far on the disk."""

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
        """The frames that count behind the JSON file `table`, in the order of their writing."""
        try:
            data = self._path.read_bytes()
            if table.exists() and table.stat().st_mtime_ns > self._path.stat().st_mtime_ns:
                return  # somebody else has written the table since, Apache's broker maybe
        except FileNotFoundError:
            return
        at = 0
        while at + _HEAD.size <= len(data):
            length, crc, wall_ms = _HEAD.unpack_from(data, at)
            end = at + _HEAD.size + length
            if end > len(data) or zlib.crc32(data[at + _CRC_FROM : end]) != crc:
                return  # the process died while it wrote
            try:
                offsets = v1.Offsets.FromString(data[at + _HEAD.size : end])
            except DecodeError:
                return
            if wall_ms >= since_ms and offsets.log_end <= log_end:
                yield offsets
            at = end

    def begin(self, payload: bytes, wall_ms: int) -> None:
        """Start anew, with what was read: frames of an earlier life are of another clock."""
        frame = _frame(payload, wall_ms) if payload else b""
        self._replace(frame)

    def append(self, payload: bytes, wall_ms: int) -> None:
        """Add a frame."""
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
        """A JSON file of this moment is about to be written."""
        self._covered = self._size

    def covered(self) -> None:
        """It is on the disk."""
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
        if str(error) != self._trouble:  # it comes back with every try
            log.warning("offsets_recent.not_written path=%s error=%s", self._path, error)
        self._trouble = str(error)


def _frame(payload: bytes, wall_ms: int) -> bytes:
    rest = wall_ms.to_bytes(8, "big", signed=True) + payload
    return len(payload).to_bytes(4, "big") + zlib.crc32(rest).to_bytes(4, "big") + rest
