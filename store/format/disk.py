"""System calls of the store: the one interface to the disk.

Every call that creates, grows, writes or flushes a file goes through `Disk`. It counts the calls by
name (benchmarks and tests count fdatasync, they never time it) and calls `fault` first, which may
raise OSError: tests simulate a full or failing disk with it. Nothing is retried here.
"""

import ctypes
import errno
import os
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple


class Space(NamedTuple):
    """Bytes of a file system; `usable` is what is free for a process that is not root."""

    total: int
    free: int
    usable: int


#: Error numbers for "no disk space"; all others are faults of the disk.
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
#: The same for a file that is allocated in full: it may also exceed the maximum file size.
NO_SPACE_FOR_FILE: Final = (*NO_SPACE, errno.EFBIG)


class Disk:
    """System calls, counted; `fault` is called with the call's name before each, on the calling
    thread (some run on the flush threads)."""

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
        """Flush the file, size included. Releases the GIL."""
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
        """Flush the file system of `path` with one call. Releases the GIL."""
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
        """Reserve [0, size): a later write into it cannot fail on a full disk."""
        self._enter("fallocate")
        os.posix_fallocate(descriptor, 0, size)

    def free_bytes(self, path: str) -> int:
        """Return what this process may still write to the file system of `path`. Raises OSError."""
        space = self.space(path)
        return space.free if os.geteuid() == 0 else space.usable

    def space(self, path: str) -> Space:
        """Return the use of the file system of `path`. Raises OSError."""
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
        """`pwrite` into the commit log; a call of its own, so that `fault` can distinguish it."""
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
