"""The checkpoint: positions up to which the files are durable. Derived data; without it recovery
takes longer.

offset  size  field
     0     8  store time up to which the log was flushed
     8     8  store time of the last record whose queue unit was flushed
    16     8  store time up to which the index was flushed
    24     8  flushed offset of the master (replication)
    32     8  start of the last whole record that recovery found
    40     8  start of the last record whose queue unit was flushed
    48     8  ours: 1 + offset up to which the log was flushed; 0 = unknown
    56     8  ours: copy of the first value, as of the write of the one before
    64  4032  zeros

Big-endian i64 in a file of 4096 bytes (docs/formats/store-format.md, section 5; the sixth value is
5.5's). The last queue unit counts only once the log is flushed beyond its record, so that recovery
may trust everything before it.

Apache's broker reads and writes the first six values and leaves the rest. After it has run, the
first value differs from its copy, and our flushed end is ignored.
"""

import os
import struct
from dataclasses import astuple, dataclass
from typing import Final

from .disk import Disk
from .errors import UnsupportedLayoutError

FILE_BYTES: Final = 4096
_FIELDS: Final = struct.Struct(">8q")
#: The minimum size that any writer produces.
_BYTES_MIN: Final = 48


@dataclass(slots=True)
class Checkpoint:
    """The values; times in ms, 0 = unknown."""

    physic_msg_timestamp_ms: int = 0
    logics_msg_timestamp_ms: int = 0
    index_msg_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0
    logics_physical_offset: int = 0
    #: Everything before this offset was flushed; -1 = unknown.
    flushed_end: int = -1

    def note_flushed(self, end: int, store_timestamp_ms: int) -> None:
        """Note that the log was flushed up to `end`, and to records of this time. (A reader on
        another thread may see only one of both; each is valid alone.)"""
        self.physic_msg_timestamp_ms = store_timestamp_ms
        self.flushed_end = end

    def encode(self) -> bytes:
        *values, flushed_end = astuple(self)
        return _FIELDS.pack(*values, flushed_end + 1, values[0] if flushed_end >= 0 else 0)

    @classmethod
    def decode(cls, data: bytes) -> "Checkpoint":
        *values, flushed, copy = _FIELDS.unpack_from(
            data[: _FIELDS.size].ljust(_FIELDS.size, b"\0")
        )
        found = cls(*values)
        if flushed > 0 and copy == values[0]:
            found.flushed_end = flushed - 1
        return found


class CheckpointFile:
    """Reads and writes the file; one thread at a time."""

    def __init__(self, path: str, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._descriptor = -1
        self._named = True  # the file's name is durable
        self._on_disk = b""

    def load(self) -> Checkpoint:
        """Return the values; all 0 without a file. Changes nothing.

        Raises UnsupportedLayoutError for a file that is too short, and for a folder.
        """
        try:
            with open(self._path, "rb") as file:
                data = file.read(FILE_BYTES)
        except FileNotFoundError:
            return Checkpoint()
        except IsADirectoryError as error:
            raise UnsupportedLayoutError(
                f"{self._path} is a folder, not a checkpoint. Move it away: "
                f"the next start then reads more of the log."
            ) from error
        if not data:  # created, then the process was killed
            return Checkpoint()
        if len(data) < _BYTES_MIN:
            raise UnsupportedLayoutError(
                f"{self._path} has {len(data)} bytes, a checkpoint has {FILE_BYTES}. Delete it: "
                "the next start then reads more of the log."
            )
        self._on_disk = data[: _FIELDS.size]
        return Checkpoint.decode(data)

    def allocate(self) -> None:
        """Allocate the whole file, so that `save` cannot fail on a full disk. Raises OSError."""
        if self._descriptor >= 0:
            return
        descriptor = self._disk.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            if os.fstat(descriptor).st_size < FILE_BYTES:
                self._named = False
                self._disk.fallocate(descriptor, FILE_BYTES)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def save(self, checkpoint: Checkpoint) -> None:
        """Make the values durable, if they changed. Raises OSError."""
        data = checkpoint.encode()
        if data == self._on_disk:
            return
        self.allocate()
        self._disk.pwrite(self._descriptor, data, 0)
        self._disk.fdatasync(self._descriptor)
        if not self._named:
            self._disk.sync_directory(os.path.dirname(self._path))
            self._named = True
        self._on_disk = data

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
