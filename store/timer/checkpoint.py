"""`config/timercheck`: the progress of the timers. Derived data; without it a week's timers are
delivered again.

offset  size  field
     0     8  last read time, ms: every slot before it was delivered
     8     8  position up to which the timer log was flushed
    16     8  queue offset in the timer topic: everything before it was enqueued or delivered
    24     8  the same on the master (equal on a master)
    32     8  state version
    40     8  time of the version, ms
    48     8  counter of the version
    56    60  ours: seal of the fields before it (store/format/sealed_fields.py)
   116   132  ours: what was delivered before the clock was set back, and a CRC-32; or zeros
   248  3848  zeros

Seven big-endian i64 in a file of 4096 bytes without a backup (docs/formats/store-format.md, section
11.4). They lie within one sector: a crash leaves the old values or the new ones. Damaged fields are
read from the seal; without a usable one all are unknown.

The last read time goes back with the clock. Then up to eight pairs of a time and a log offset say
which units from there on are delivered: those of slots before the time, of messages up to the
offset. Without them these are delivered again.
"""

import logging
import os
import struct
import zlib
from typing import Final

from msgspec import Struct
from msgspec.structs import astuple

from ..format.disk import Disk
from ..format.errors import UnsupportedLayoutError
from ..format.sealed_fields import SealState, seal, sealed_bytes, unseal

logger = logging.getLogger(__name__)
FILE_BYTES: Final = 4096
_FIELDS: Final = struct.Struct(">7q")
_SEALED_BYTES: Final = sealed_bytes(_FIELDS.size)
_DONE_MAX: Final = 8
_DONE: Final = struct.Struct(f">{2 * _DONE_MAX}q")
_CRC_BYTES: Final = 4
#: End of what is written; zeros follow.
USED_BYTES: Final = _SEALED_BYTES + _DONE.size + _CRC_BYTES


class TimerCheckpoint(Struct):
    """The values; 0 = unknown."""

    last_read_ms: int = 0
    last_timer_log_flush_pos: int = 0
    last_timer_queue_offset: int = 0
    master_timer_queue_offset: int = 0
    state_version: int = 0
    version_ms: int = 0
    counter: int = 0
    #: Pairs of a time and a log offset (see above), the oldest first.
    done: tuple[tuple[int, int], ...] = ()

    def encode(self) -> bytes:
        *values, done = astuple(self)
        # Of more pairs the oldest are dropped.
        numbers = [number for pair in done[-_DONE_MAX:] for number in pair]
        data = _DONE.pack(*numbers, *[0] * (2 * _DONE_MAX - len(numbers)))
        crc = zlib.crc32(data) if numbers else 0
        return seal(_FIELDS.pack(*values)) + data + crc.to_bytes(_CRC_BYTES, "big")

    @classmethod
    def decode(cls, data: bytes) -> "TimerCheckpoint":
        return cls.examine(data)[0]

    def is_done(self, slot_ms: int, physical_offset: int) -> bool:
        """Return whether the unit of this message was delivered before the clock was set back."""
        return any(slot_ms < end_ms and physical_offset <= last for end_ms, last in self.done)

    @classmethod
    def examine(cls, data: bytes) -> tuple["TimerCheckpoint", SealState]:
        """Return the values, from the seal if the fields are damaged, and what the seal shows."""
        fields, state = unseal(data, _FIELDS.size, _follows)
        checkpoint = cls(*_FIELDS.unpack(fields)) if fields else cls()
        checkpoint.done = _done(data)
        return checkpoint, state


def _done(data: bytes) -> tuple[tuple[int, int], ...]:
    part = data[_SEALED_BYTES : _SEALED_BYTES + _DONE.size]
    crc = int.from_bytes(data[_SEALED_BYTES + _DONE.size : USED_BYTES], "big")
    if len(part) < _DONE.size or zlib.crc32(part) != crc:
        return ()
    numbers = _DONE.unpack(part)
    return tuple(pair for pair in zip(numbers[::2], numbers[1::2], strict=True) if pair[0])


def _follows(fields: bytes, copy: bytes) -> bool:
    """Return whether Apache's broker may have written the fields after the copy: time and counter
    of its version have grown, and no progress went back."""
    now, before = _FIELDS.unpack(fields), _FIELDS.unpack(copy)
    grown = now[5] > before[5] and now[6] > before[6]
    return grown and all(n >= b for n, b in zip(now, before, strict=True))


class TimerCheckpointFile:
    """Reads and writes the file; one thread at a time."""

    def __init__(self, path: str, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._descriptor = -1

    def load(self) -> TimerCheckpoint | None:
        """Return the values; None without a file. Changes nothing.

        Raises UnsupportedLayoutError for a file that is too short.
        """
        try:
            with open(self._path, "rb") as file:
                data = file.read(FILE_BYTES)
        except FileNotFoundError:
            return None
        if not data:  # created, then the process was killed
            return None
        if len(data) < _FIELDS.size:
            raise UnsupportedLayoutError(
                f"{self._path} has {len(data)} bytes, a timer checkpoint has {FILE_BYTES}. "
                "Restore it, or delete it: timers of the last seven days are then delivered again."
            )
        checkpoint, state = TimerCheckpoint.examine(data)
        if state in (SealState.DAMAGED, SealState.LOST):
            logger.warning("timer.checkpoint_damaged path=%s: %s.", self._path, state.value)
        return checkpoint

    def save(self, check: TimerCheckpoint) -> None:
        """Make the values durable. Raises OSError."""
        made = False
        if self._descriptor < 0:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            self._descriptor = self._disk.open(self._path, os.O_RDWR | os.O_CREAT)
            made = os.fstat(self._descriptor).st_size < FILE_BYTES
            if made:
                self._disk.fallocate(self._descriptor, FILE_BYTES)
        self._disk.pwrite(self._descriptor, check.encode(), 0)
        self._disk.fdatasync(self._descriptor)
        if made:
            self._disk.sync_directory(os.path.dirname(self._path))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
