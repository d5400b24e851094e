"""Descriptors of consume queue files, kept open within a bound.

Queue files are sparse (tens of thousands of queues would fill any disk) and are read with pread. At
most `limit` stay open, the least recently used is closed first: a broker may have far more queues
than descriptors.
"""

import os
from collections import OrderedDict

from .disk import Disk


class QueueFiles:
    """Open files by path. Called from one thread."""

    __slots__ = ("_disk", "_limit", "_open", "size")

    def __init__(self, disk: Disk, size: int, limit: int) -> None:
        self.size = size
        self._disk = disk
        self._limit = limit
        self._open: OrderedDict[str, int] = OrderedDict()

    def create(self, path: str) -> None:
        """A sparse file of zeros; creates the folder of the queue as well."""
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            os.makedirs(folder)
        descriptor = self._disk.open(path, os.O_RDWR | os.O_CREAT)
        try:
            self._disk.truncate(descriptor, self.size)
        except BaseException:
            os.close(descriptor)
            raise
        self._keep(path, descriptor)

    def read(self, path: str, size: int, position: int) -> bytes:
        return self._disk.pread(self._descriptor(path), size, position)

    def clear_from(self, path: str, position: int) -> None:
        """Zeros from `position` to the end of the file, as holes."""
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
