"""Slot file: a small state file that survives a crash at any moment; two slots, written in turn.

offset  size  field      meaning
     0    12  magic      b"cometmq-ha1 "
    12    20  sequence   decimal; the valid slot with the larger one counts
    32     1  space
    33     8  crc        CRC-32 over sequence, length and body, hexadecimal
    41     1  space
    42     6  length     of the body, decimal
    48     1  newline
    49     n  body       JSON, UTF-8
....        padding    newlines up to the slot's size, 4096 unless the file sets another

The file is text: `cat` shows both slots. A torn write damages one slot and leaves the other, the
previous state; if no slot is valid, the file was damaged otherwise and loading fails. Format:
docs/formats/ha.md, section 6.5.
"""

import json
import os
import zlib
from pathlib import Path
from typing import Any

from ...store.format.disk import Disk
from ..errors import DamagedStateError

SLOT_BYTES = 4096
_MAGIC = b"cometmq-ha1 "
_HEADER_BYTES = 49


def encode_slot(sequence: int, state: dict[str, Any], slot_bytes: int = SLOT_BYTES) -> bytes:
    body = json.dumps(state, sort_keys=True).encode()
    body_bytes_max = slot_bytes - _HEADER_BYTES
    if len(body) > body_bytes_max:
        raise ValueError(f"{len(body)} bytes of state do not fit into {body_bytes_max}")
    crc = _crc(sequence, body)
    header = _MAGIC + b"%020d %08x %06d\n" % (sequence, crc, len(body))
    return (header + body).ljust(slot_bytes, b"\n")


def decode_slot(slot: bytes, slot_bytes: int = SLOT_BYTES) -> tuple[int, dict[str, Any]] | None:
    """Return sequence and state, or None for an unwritten or damaged slot."""
    if len(slot) != slot_bytes or not slot.startswith(_MAGIC):
        return None
    try:
        sequence, crc, length = int(slot[12:32]), int(slot[33:41], 16), int(slot[42:48])
    except ValueError:
        return None
    body = slot[_HEADER_BYTES : _HEADER_BYTES + length]
    if crc != _crc(sequence, body):
        return None
    state = json.loads(body)
    return (sequence, state) if isinstance(state, dict) else None


def _crc(sequence: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(b"%020d %06d" % (sequence, len(body))))


class SlotFile:
    """One slot file. `save` is durable on return if the file was opened with `durable=True`."""

    def __init__(
        self,
        path: Path,
        *,
        durable: bool,
        disk: Disk | None = None,
        slot_bytes: int = SLOT_BYTES,
    ) -> None:
        self.path = path
        self._slot_bytes = slot_bytes
        self._durable = durable
        self._disk = disk or Disk()
        self._sequence = 0
        self._descriptor = -1

    def load(self) -> dict[str, Any] | None:
        """Return the newest state, or None without a file. Raises DamagedStateError."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        size = self._slot_bytes
        slots = [decode_slot(content[start : start + size], size) for start in (0, size)]
        valid = [slot for slot in slots if slot is not None]
        if valid:
            self._sequence, state = max(valid, key=lambda slot: slot[0])
            return state
        if not content.strip(b"\0"):
            return None  # a crash between its creation and its first write
        raise DamagedStateError(
            f"Both copies in {self.path} are damaged. Restore the file from a backup, or delete "
            "it: this replica then starts with a new identity."
        )

    def save(self, state: dict[str, Any]) -> None:
        slot = encode_slot(self._sequence + 1, state, self._slot_bytes)
        if self._descriptor < 0:
            self._open()
        position = (self._sequence + 1) % 2 * self._slot_bytes
        self._disk.pwrite(self._descriptor, slot, position)
        if self._durable:
            self._disk.fdatasync(self._descriptor)
        self._sequence += 1

    def close(self) -> None:
        if self._descriptor >= 0:
            self._disk.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = self._disk.open(str(self.path), os.O_RDWR | os.O_CREAT)
        try:
            if os.fstat(descriptor).st_size < 2 * self._slot_bytes:
                # Both slots at once, so that a later save needs no new disk space.
                self._disk.fallocate(descriptor, 2 * self._slot_bytes)
            if self._durable:
                self._disk.sync_directory(str(self.path.parent))
        except BaseException:
            self._disk.close(descriptor)
            raise
        self._descriptor = descriptor
