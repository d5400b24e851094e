"""Files of a store for readers: mapped read-only, let go of with the last view of them.

Promises: nothing is written; a sparse file on a full tmpfs is copied instead of mapped, because looking
at a hole would need room there. A file that is cut while it is mapped is beyond this: brokers delete
segments, they never cut one that others may read (pipeline, pitfall 11).
"""

import errno
import mmap
import os
from pathlib import Path
from typing import Final

_BLOCK_BYTES: Final = 512  # what st_blocks counts
_COPY_BYTES: Final = 16 << 20


def open_bytes(path: Path) -> memoryview:
    """The bytes of a file, mapped; closed with the last view of them."""
    with open(path, "rb") as file:
        try:
            if _holes_need_room(file.fileno()):
                return _without_holes(file.fileno())
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except ValueError:  # an empty file cannot be mapped
            return memoryview(b"")


def _holes_need_room(descriptor: int) -> bool:
    """Whether looking at a sparse file through a map might need more room than there is: tmpfs gives
    holes pages when they are read, and a full one answers with SIGBUS."""
    state = os.fstat(descriptor)
    room = os.fstatvfs(descriptor)
    return state.st_size - state.st_blocks * _BLOCK_BYTES > room.f_bavail * room.f_frsize


def _without_holes(descriptor: int) -> memoryview:
    """A copy in memory, as large as what is really there. Raises OSError."""
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
