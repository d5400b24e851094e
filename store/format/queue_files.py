"""Descriptors of consume queue files, with a limit of open ones.

Queue files are sparse (tens of thousands of queues would fill any disk) and are read with pread,
never mapped. At most `limit` stay open, the least recently used is closed first: a broker may have
far more queues than descriptors.
"""

import os
from collections import OrderedDict, deque

from .disk import Disk


class QueueFiles:
    """Files of one size below `directory`; open ones by path. Called from one thread."""

    __slots__ = ("_created", "_disk", "_limit", "_open", "directory", "size")

    def __init__(self, disk: Disk, size: int, limit: int, directory: str = "") -> None:
        self.size = size
        self.directory = directory
        self._disk = disk
        self._limit = limit
        self._open: OrderedDict[str, int] = OrderedDict()
        self._created: deque[str] = deque()  # paths whose names are not durable yet

    def open_for_writing(self, path: str) -> int:
        """Return a descriptor that the caller closes; a new file is sparse zeros of the fixed size,
        in a new folder if needed. Any thread. Raises OSError."""
        try:
            descriptor = self._disk.open(path, os.O_RDWR)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            descriptor = self._disk.open(path, os.O_RDWR | os.O_CREAT)
            self._created.append(path)
        try:
            # also extends a file that a crash left short
            if os.fstat(descriptor).st_size < self.size:
                self._disk.truncate(descriptor, self.size)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def take_folders(self) -> set[str]:
        """Return the folders to sync for the files created since the last call: the queue's, the
        topic's, and the root. Any thread."""
        folders: set[str] = set()
        while self._created:
            folder = os.path.dirname(self._created.popleft())
            while len(folder) >= len(self.directory) and folder not in folders:
                folders.add(folder)
                folder = os.path.dirname(folder)
        return folders

    def read(self, path: str, size: int, position: int) -> bytes:
        """Read through a cached descriptor. Raises FileNotFoundError when the file is missing."""
        return self._disk.pread(self._descriptor(path), size, position)

    def read_once(self, path: str, size: int) -> bytes:
        """Return the first `size` bytes of a file, without keeping it open; b"" for a folder."""
        descriptor = self._disk.open(path, os.O_RDONLY)
        try:
            return self._disk.pread(descriptor, size, 0)
        except IsADirectoryError:
            return b""
        finally:
            self._disk.close(descriptor)

    def write(self, path: str, data: bytes, position: int) -> int:
        """Write through a cached descriptor, into a new file if needed; return the bytes written.
        Raises OSError."""
        if path not in self._open:
            self._keep(path, self.open_for_writing(path))
        return self._disk.pwrite(self._descriptor(path), data, position)

    def clear_from(self, path: str, position: int) -> None:
        """Zero the file from `position` to its end, as holes."""
        descriptor = self._descriptor(path)
        self._disk.truncate(descriptor, position)
        self._disk.truncate(descriptor, self.size)

    def remove(self, path: str) -> None:
        descriptor = self._open.pop(path, -1)
        if descriptor >= 0:
            self._disk.close(descriptor)
        self._disk.unlink(path)

    def close(self) -> None:
        while self._open:
            self._disk.close(self._open.popitem()[1])

    def _descriptor(self, path: str) -> int:
        descriptor = self._open.get(path)
        if descriptor is None:
            descriptor = self._disk.open(path, os.O_RDWR)
            self._keep(path, descriptor)
        else:
            self._open.move_to_end(path)
        return descriptor

    def _keep(self, path: str, descriptor: int) -> None:
        self._open[path] = descriptor
        if len(self._open) > self._limit:
            self._disk.close(self._open.popitem(last=False)[1])


def salvage(directory: str, size: int) -> tuple[list[int], list[str]]:
    """Return what a crash left of a queue's files: start bytes of the whole ones from the first on,
    and paths of the others, which hold nothing (a power loss may take a file's name or size) or lie
    behind a gap. Both are empty when no crash explains the files. Changes nothing."""
    starts: list[int] = []
    others: list[str] = []
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        length = os.path.getsize(path)
        if not (name.isascii() and name.isdecimal()) or length > size:
            return [], []
        if length < size:
            with open(path, "rb") as file:
                if file.read().strip(b"\0"):
                    return [], []
        if length < size or others or (starts and int(name) != starts[-1] + size):
            others.append(path)
        else:
            starts.append(int(name))
    return starts, others
