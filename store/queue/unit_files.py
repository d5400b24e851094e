"""The files of all consume queues: writing units into them, and flushing what was written."""

import errno
import os
import threading
from contextlib import suppress
from typing import Final

from ..format.disk import Disk
from ..format.queue_files import QueueFiles
from .ext_table import ExtTable

_PAGE_BYTES: Final = 4096
#: From this many dirty files on, one flush of the file system is cheaper than one per file:
#: flushing a small file costs 0.3 ms, and a stop with 80,000 of them has to end.
FLUSH_FILES_MAX: Final = 1024


class UnitFiles:
    """Files of units and of extension units. `flush_written` may run on another thread."""

    def __init__(self, directory: str, disk: Disk, files: QueueFiles, exts: ExtTable) -> None:
        self.disk = disk
        self.files = files
        self.exts = exts
        #: Held while units are written to the files.
        self.lock = threading.Lock()
        self._directory = directory
        self._dirty: dict[str, int] = {}  # path -> bytes written since its last flush; under `lock`
        self._unflushed: list[str] = []  # files and folders that `flush_written` has taken
        self._unflushed_folders: set[str] = set()

    def write_kept(self, path: str, position: int, data: bytes) -> None:
        """Write units through a descriptor that stays open. Under `lock`. Raises OSError."""
        self._note_written(path, data, self.files.write(path, data, position))

    def write_part(self, path: str, position: int, data: bytes) -> None:
        """Write units. Under `lock`. Raises OSError."""
        descriptor = self.files.open_for_writing(path)
        try:
            written = self.disk.pwrite(descriptor, data, position)
        finally:
            self.disk.close(descriptor)
        self._note_written(path, data, written)

    def _note_written(self, path: str, data: bytes, written: int) -> None:
        if written != len(data):
            raise OSError(errno.ENOSPC, f"{written} of {len(data)} bytes were written", path)
        self._dirty[path] = self._dirty.get(path, 0) + written

    def forget(self, path: str) -> None:
        """Do not flush a removed file. Under `lock`."""
        self._dirty.pop(path, None)

    def take_dirty(self, pages_min: int) -> list[str]:
        """Return and clear the paths of files with at least this many pages written."""
        limit = pages_min * _PAGE_BYTES
        with self.lock:
            paths = [path for path, size in self._dirty.items() if size >= limit]
            for path in paths:
                del self._dirty[path]
        return paths + self.exts.take_dirty(limit)

    def flush_written(self, pages_min: int) -> None:
        """Flush files with at least this many pages written since their last flush; with 0 also the
        names of new files, which the checkpoint depends on. Any thread, one at a time. Raises
        OSError; what was not flushed remains for the next call."""
        self._unflushed += self.take_dirty(pages_min)
        if not pages_min:
            self._unflushed_folders |= self.files.take_folders() | self.exts.take_folders()
        paths, folders = self._unflushed, self._unflushed_folders
        if len(paths) + len(folders) > FLUSH_FILES_MAX:
            self.disk.sync_file_system(self._directory)
            paths.clear()
            folders.clear()
        while paths:
            with suppress(FileNotFoundError):  # trimmed meanwhile
                self._flush_file(paths[-1])
            paths.pop()
        while folders and not pages_min:
            folder = next(iter(folders))
            with suppress(FileNotFoundError):
                self.disk.sync_directory(folder)
            folders.discard(folder)

    def _flush_file(self, path: str) -> None:
        descriptor = self.disk.open(path, os.O_RDWR)
        try:
            self.disk.fdatasync(descriptor)
        finally:
            self.disk.close(descriptor)

    def close(self) -> None:
        self.files.close()
        self.exts.close()
