"""The one seam between the store and the disk.

Every system call that creates, grows, writes or flushes a file goes through `Disk`. It counts the
calls by name (benchmarks and tests count fdatasync, they never time it) and asks `fault` first, which
may raise OSError: that is how a full or failing disk is tested. Nothing here retries.
"""

import ctypes
import errno
import os
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple


class Space(NamedTuple):
    """Bytes of a file system; `usable` is what is free for who is not root."""

    total: int
    free: int
    usable: int


#: What the kernel says when there is no room; everything else is a fault of the disk.
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
#: The same for a file that is allocated in full: it may also be larger than files may be.
NO_SPACE_FOR_FILE: Final = (*NO_SPACE, errno.EFBIG)


class Disk:
    """System calls, counted; `fault` is called with the call's name before the call is made, on
    whichever thread makes it (the store's flush threads make some)."""

    __slots__ = ("counts", "fault")

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.fault: Callable[[str], None] | None = None

    def _enter(self, name: str) -> None:
        self.counts[name] += 1
        if self.fault is not None:
            self.fault(name)

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        self._enter("open")
        return os.open(path, flags | os.O_CLOEXEC, mode)

    def close(self, descriptor: int) -> None:
        self._enter("close")
        os.close(descriptor)

    def fdatasync(self, descriptor: int) -> None:
        """Durable on return, size included. Releases the GIL."""
        self._enter("fdatasync")
        os.fdatasync(descriptor)

    def fsync(self, descriptor: int) -> None:
        self._enter("fsync")
        os.fsync(descriptor)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        self._enter("fsync")
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_file_system(self, path: str) -> None:
        """Make everything on the file system of `path` durable, in one call. Releases the GIL."""
        self._enter("syncfs")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if not hasattr(libc, "syncfs"):
                os.sync()
            elif libc.syncfs(descriptor):
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), path)
        finally:
            os.close(descriptor)

    def fallocate(self, descriptor: int, size: int) -> None:
        """Reserve [0, size): a later write into it cannot find the disk full."""
        self._enter("fallocate")
        os.posix_fallocate(descriptor, 0, size)

    def free_bytes(self, path: str) -> int:
        """What this process may still write to the file system of `path`. Raises OSError."""
        space = self.space(path)
        return space.free if os.geteuid() == 0 else space.usable

    def space(self, path: str) -> Space:
        """How full the file system of `path` is. Raises OSError."""
        self._enter("statvfs")
        found = os.statvfs(path)
        unit = found.f_frsize
        return Space(found.f_blocks * unit, found.f_bfree * unit, found.f_bavail * unit)

    def pwrite(self, descriptor: int, data: bytes | memoryview, position: int) -> int:
        self.counts["pwrite"] += 1
        if self.fault is not None:
            self.fault("pwrite")
        return os.pwrite(descriptor, data, position)

    def write_log(self, descriptor: int, data: bytes | memoryview, position: int) -> int:
        """`pwrite` into the commit log; a call of its own, so that faults can tell it apart."""
        self.counts["write_log"] += 1
        if self.fault is not None:
            self.fault("write_log")
        return os.pwrite(descriptor, data, position)

    def pread(self, descriptor: int, size: int, position: int) -> bytes:
        self._enter("pread")
        return os.pread(descriptor, size, position)

    def truncate(self, descriptor: int, size: int) -> None:
        self._enter("truncate")
        os.ftruncate(descriptor, size)

    def unlink(self, path: str) -> None:
        self._enter("unlink")
        os.unlink(path)

    def replace(self, source: str, target: str) -> None:
        self._enter("replace")
        os.replace(source, target)
