"""The archive watermark: the physical offset up to which the log is archived. Ours.

    config/archiveWatermark.json      {"archiveWatermark": 1073741824}

While `archiveGate=true`, retention keeps segments above it, unless the disk is too full. A lost
file means that nothing is archived: segments stay longer, none is lost. The file is written to a
new name and renamed, so that a crash leaves the old or the new one; on a full disk the old value
stays and the caller gets the error.
"""

import json
import os
from pathlib import Path

from ..format.disk import Disk
from ..format.errors import StoreError

FILE_NAME = "archiveWatermark.json"
_KEY = "archiveWatermark"


class ArchiveWatermark:
    """The watermark and its file."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self.value = 0
        self._path = root / "config" / FILE_NAME
        self._disk = disk

    def load(self) -> None:
        """Read the file; 0 without one. Raises StoreError for an unreadable file."""
        try:
            value = json.loads(self._path.read_text("utf-8"))[_KEY]
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError):
            value = None
        if not isinstance(value, int) or value < 0:
            raise StoreError(
                f'{self._path} does not hold {{"{_KEY}": NUMBER}}. Correct it, or delete it: '
                "then nothing is archived."
            )
        self.value = value

    def set(self, value: int) -> None:
        """Make the value durable, then use it. Raises OSError with nothing changed."""
        data = json.dumps({_KEY: value}).encode()
        path = str(self._path)
        new = path + ".new"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = self._disk.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self._disk.pwrite(descriptor, data, 0)
            self._disk.fsync(descriptor)
        finally:
            self._disk.close(descriptor)
        self._disk.replace(new, path)
        self._disk.sync_directory(str(self._path.parent))
        self.value = value
