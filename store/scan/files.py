"""Store files for readers: mapped read-only, closed with the last view of them.

Nothing is written. A sparse file on a full tmpfs is copied instead of mapped, because reading a
hole would need space there. A file must not be cut while it is mapped: brokers delete segments, but
never cut one that others may read.
"""

import errno
import mmap
import os
from pathlib import Path
from typing import Final

_BLOCK_BYTES: Final = 512  # unit of st_blocks
_COPY_BYTES: Final = 16 << 20


def open_bytes(path: Path) -> memoryview:
    """Map a file and return its bytes; closed with the last view of them."""
    with open(path, "rb") as file:
        try:
            if _holes_need_space(file.fileno()):
                return _without_holes(file.fileno())
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except ValueError:  # an empty file cannot be mapped
            return memoryview(b"")


def _holes_need_space(descriptor: int) -> bool:
    """Return whether reading a sparse file through a map may need more space than is free: tmpfs
    allocates pages for holes on read, and raises SIGBUS when it is full."""
    state = os.fstat(descriptor)
    room = os.fstatvfs(descriptor)
    return state.st_size - state.st_blocks * _BLOCK_BYTES > room.f_bavail * room.f_frsize


def _without_holes(descriptor: int) -> memoryview:
    """Return a copy in memory of the allocated bytes. Raises OSError."""
    size = os.fstat(descriptor).st_size
    view = memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    at = 0
    while at < size:
        try:
            at = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                break
            raise
        end = os.lseek(descriptor, at, os.SEEK_HOLE)
        while at < end:
            count = os.preadv(descriptor, [view[at : min(end, at + _COPY_BYTES)]], at)
            if not count:  # cut meanwhile
                return view
            at += count
    return view
