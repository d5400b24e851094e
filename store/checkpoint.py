"""The checkpoint: how far the disk certainly is. Derived data; losing it makes recovery longer.

offset  size  field
     0     8  store time up to which the log was flushed
     8     8  store time of the last record whose queue unit was flushed
    16     8  store time up to which the index was flushed
    24     8  flushed offset of the master (replication)
    32     8  start of the last whole record that recovery found
    40     8  start of the last record whose queue unit was flushed
    48  4048  zeros

Six big-endian i64 in a file of 4096 bytes (store format, section 5; the sixth is 5.5's). The last
queue unit counts only once the log is flushed beyond its record, so that recovery may trust
everything before it.
"""

import os
import struct
from dataclasses import astuple, dataclass
from typing import Final

from .disk import Disk
from .errors import UnsupportedLayoutError

FILE_BYTES: Final = 4096
_FIELDS: Final = struct.Struct(">6q")


@dataclass(slots=True)
class Checkpoint:
    """The values; times in ms, 0 = nothing known."""

    physic_msg_timestamp_ms: int = 0
    logics_msg_timestamp_ms: int = 0
    index_msg_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0
    logics_physical_offset: int = 0

    def encode(self) -> bytes:
        return _FIELDS.pack(*astuple(self))

    @classmethod
    def decode(cls, data: bytes) -> "Checkpoint":
        return cls(*_FIELDS.unpack_from(data))


class CheckpointFile:
    """Reads and writes the file; one thread at a time."""

    def __init__(self, path: str, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._descriptor = -1
        self._on_disk = b""

    def load(self) -> Checkpoint:
        """The values; all 0 when there is no file. Changes nothing.

        Raises UnsupportedLayoutError for a file that is too short.
        """
        try:
            with open(self._path, "rb") as file:
                data = file.read(FILE_BYTES)
        except FileNotFoundError:
            return Checkpoint()
        if not data:  # created, then the process died
            return Checkpoint()
        if len(data) < _FIELDS.size:
            raise UnsupportedLayoutError(
                f"{self._path} has {len(data)} bytes, a checkpoint has {FILE_BYTES}. Delete it: "
                "the next start then walks the whole log."
            )
        self._on_disk = data[: _FIELDS.size]
        return Checkpoint.decode(data)

    def save(self, checkpoint: Checkpoint) -> None:
        """Make the values durable, if they changed. Raises OSError."""
        data = checkpoint.encode()
        if data == self._on_disk:
            return
        if self._descriptor < 0:
            self._descriptor = self._disk.open(self._path, os.O_RDWR | os.O_CREAT)
            if os.fstat(self._descriptor).st_size < FILE_BYTES:
                self._disk.fallocate(self._descriptor, FILE_BYTES)
        self._disk.pwrite(self._descriptor, data, 0)
        self._disk.fdatasync(self._descriptor)
        self._on_disk = data

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
