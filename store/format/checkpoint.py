"""The checkpoint: positions up to which the files are durable. Derived data; without it recovery
takes longer.

offset  size  field
     0     8  store time up to which the log was flushed
     8     8  store time of the record at the sixth value
    16     8  store time up to which the index was flushed
    24     8  flushed offset of the master (replication)
    32     8  start of the last whole record that recovery found
    40     8  start of the last record whose queue unit and index entries were flushed
    48     8  ours: 1 + offset up to which the log was flushed; 0 = unknown
    56     8  ours: copy of the first value, as of the write of the one before
    64     8  ours: 1 + start of the last record whose queue unit was flushed; 0 = unknown
    72    76  ours: seal of the values before it (sealed_fields.py)
   148  3948  zeros

Big-endian i64 in a file of 4096 bytes (docs/formats/store-format.md, section 5; the sixth value is
5.5's). The last queue unit counts only once the log is flushed beyond its record, so that recovery
may trust everything before it.

Apache's broker reads and writes the first six values and leaves the rest. After it has run, the
first value differs from its copy, and our values are ignored. After an unclean stop it builds
queues and index from the sixth value on, so this one is never beyond the durable index files; our
recovery builds the queues from our own value on, and the index in the background.
Damaged values are read from the seal; without a usable one all are unknown.
"""

import logging
import os
import struct
from typing import Final

from msgspec import Struct
from msgspec.structs import astuple

from .disk import Disk
from .errors import UnsupportedLayoutError
from .sealed_fields import SealState, seal, sealed_bytes, unseal

logger = logging.getLogger(__name__)
FILE_BYTES: Final = 4096
_FIELDS: Final = struct.Struct(">9q")
#: The minimum size that any writer produces.
_BYTES_MIN: Final = 48
#: End of what is written; zeros follow.
USED_BYTES: Final = sealed_bytes(_FIELDS.size)


class Checkpoint(Struct):
    """The values; times in ms, 0 = unknown."""

    physic_msg_timestamp_ms: int = 0
    logics_msg_timestamp_ms: int = 0
    index_msg_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0
    logics_physical_offset: int = 0
    #: Everything before this offset was flushed; -1 = unknown.
    flushed_end: int = -1
    #: Start of the last record whose queue unit was flushed; -1 = unknown.
    queued_offset: int = -1

    @property
    def queues_durable_to(self) -> int:
        """Start of the last record whose queue unit was flushed; 0 = unknown."""
        return max(self.queued_offset, self.logics_physical_offset)

    @property
    def is_foreign(self) -> bool:
        """Whether Apache's broker has written it since we did."""
        return self.physic_msg_timestamp_ms > 0 and self.flushed_end < 0

    def note_flushed(self, end: int, store_timestamp_ms: int) -> None:
        """Note that the log was flushed up to `end`, and to records of this time. (A reader on
        another thread may see only one of both; each is valid alone.)"""
        self.physic_msg_timestamp_ms = store_timestamp_ms
        self.flushed_end = end

    def encode(self) -> bytes:
        *values, flushed_end, queued_offset = astuple(self)
        copy = values[0] if max(flushed_end, queued_offset) >= 0 else 0
        return seal(_FIELDS.pack(*values, flushed_end + 1, copy, queued_offset + 1))

    @classmethod
    def decode(cls, data: bytes) -> "Checkpoint":
        return cls.examine(data)[0]

    @classmethod
    def examine(cls, data: bytes) -> tuple["Checkpoint", SealState]:
        """Return the values, from the seal if the fields are damaged, and what the seal shows."""
        fields, state = unseal(data, _FIELDS.size, _follows)
        if not fields:
            return cls(), state
        *values, flushed, copy, queued = _FIELDS.unpack(fields)
        checkpoint = cls(*values)
        if copy == values[0]:
            checkpoint.flushed_end = max(flushed, 0) - 1
            checkpoint.queued_offset = max(queued, 0) - 1
        return checkpoint, state


def _follows(fields: bytes, copy: bytes) -> bool:
    """Return whether Apache's broker may have written the fields after the copy: its times and
    offsets do not decrease, and with any flush the first one grows."""
    now, before = _FIELDS.unpack(fields), _FIELDS.unpack(copy)
    ours = now[6:] == before[6:]
    return ours and now[0] > before[0] and all(n >= b for n, b in zip(now, before, strict=True))


class CheckpointFile:
    """Reads and writes the file; one thread at a time."""

    def __init__(self, path: str, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._descriptor = -1
        self._named = True  # the file's name is durable
        self._on_disk = b""
        self._written = b""

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
        self._on_disk = data[:USED_BYTES]
        checkpoint, state = Checkpoint.examine(data)
        if state in (SealState.DAMAGED, SealState.LOST):
            logger.warning("checkpoint.damaged path=%s: %s.", self._path, state.value)
        return checkpoint

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
        if self.write(checkpoint):
            self.flush()

    def write(self, checkpoint: Checkpoint) -> bool:
        """Write the values, if they differ from the durable ones; return whether `flush` must
        follow. Raises OSError; a disk without space leaves the previous values."""
        data = checkpoint.encode()
        if data == self._on_disk:
            return False
        self.allocate()
        self._disk.pwrite(self._descriptor, data, 0)
        self._written = data
        return True

    def flush(self) -> None:
        """Make the written values durable. Raises OSError."""
        self._disk.fdatasync(self._descriptor)
        if not self._named:
            self._disk.sync_directory(os.path.dirname(self._path))
            self._named = True
        self._on_disk = self._written

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
