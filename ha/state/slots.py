"""Slot file: a state file of two slots, written in turn, that survives a crash at any moment.

The codec of a slot is `store/format/slot_file.py` (docs/formats/ha.md, section 6.5). A torn write
damages one slot; if no slot is valid, the file was damaged otherwise and loading fails.
"""

import os
from pathlib import Path
from typing import Any

from ...store.format.disk import Disk
from ...store.format.slot_file import SLOT_BYTES, encode_slot, newest_slot
from ..errors import DamagedStateError


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
        newest = newest_slot(content, self._slot_bytes)
        if newest is not None:
            self._sequence, state = newest
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
