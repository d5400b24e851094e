"""System calls of the store: the one interface to the disk.

Every call that creates, grows, writes or flushes a file goes through `Disk`. It counts the calls by
name (benchmarks and tests count fdatasync, they never time it) and calls `fault` first, which may
raise OSError: tests simulate a full or failing disk with it. Nothing is retried here, with one
exception: a call that needs a descriptor when there is none gets one of the spare descriptors.
"""

import ctypes
import errno
import os
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

_T = TypeVar("_T")


class Space(NamedTuple):
    """Bytes of a file system; `usable` is what is free for a process that is not root."""

    total: int
    free: int
    usable: int


#: Error numbers for "no disk space".
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
#: Error numbers for "no free descriptor", of the process or of the system.
NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
#: The same for a file that is allocated in full: it may also exceed the maximum file size.
NO_SPACE_FOR_FILE: Final = (*NO_SPACE, errno.EFBIG)


#: Spare descriptors: more than the files that all threads of the store open at the same time.
SPARES: Final = 16


def descriptor_share() -> int:
    """Return an eighth of RLIMIT_NOFILE, at least 8: the limit for one kind of descriptor, such as
    cached queue files or connections of replicas."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else max(8, soft // 8)


class Shortage(NamedTuple):
    """What a call lacked: a state that passes, not a fault of the disk."""

    what: str
    ends_when: str


def shortage(error: OSError) -> Shortage | None:
    """Return what the failed call lacked; None for a fault of the disk."""
    if error.errno in NO_SPACE:
        return Shortage("The disk is full", "disk space is free")
    if error.errno in NO_DESCRIPTORS:
        return Shortage("The process has no free descriptor", "descriptors are free (ulimit -n)")
    return None


class Disk:
    """System calls, counted; `fault` is called with the call's name before each, on the calling
    thread (some run on the flush threads)."""

    __slots__ = ("_spares", "counts", "fault")

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.fault: Callable[[str], None] | None = None
        self._spares: list[int] | None = None  # None: this user of the disk keeps none

    def keep_spares(self) -> None:
        """Keep spare descriptors from now on. Raises OSError without free descriptors."""
        self._spares = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(SPARES)]

    def drop_spares(self) -> None:
        """Close the spare descriptors."""
        spares, self._spares = self._spares, None
        for descriptor in spares or ():
            os.close(descriptor)

    def with_spares(self, call: Callable[[], _T]) -> _T:
        """Return the result of `call`; repeat it with a spare descriptor while there is none."""
        while True:
            try:
                return call()
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS or not self._spares:
                    raise
                with suppress(IndexError):  # another thread took the last one
                    os.close(self._spares.pop())

    def _refill_spares(self) -> None:
        """Replace used spare descriptors, once others were closed."""
        spares = self._spares
        with suppress(OSError):
            while spares is not None and len(spares) < SPARES:
                spares.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _enter(self, name: str) -> None:
        self.counts[name] += 1
        if self.fault is not None:
            self.fault(name)

    def open(self, path: str, flags: int, mode: int = 0o666) -> int:
        """Open a file; a new one gets `mode` without the bits of the umask. A call that may create
        the file does not follow a symbolic link."""
        if flags & os.O_CREAT:
            flags |= os.O_NOFOLLOW

        def call() -> int:
            self._enter("open")
            return os.open(path, flags | os.O_CLOEXEC, mode)

        return self.with_spares(call)

    def close(self, descriptor: int) -> None:
        self._enter("close")
        os.close(descriptor)
        if self._spares is not None and len(self._spares) < SPARES:
            self._refill_spares()

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
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        descriptor = self.with_spares(lambda: os.open(path, flags))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_file_system(self, path: str) -> None:
        """Flush the file system of `path` with one call. Releases the GIL."""
        self._enter("syncfs")
        flags = os.O_RDONLY | os.O_CLOEXEC
        descriptor = self.with_spares(lambda: os.open(path, flags))
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
        try:
            self._enter("fallocate")
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            raise _named(error, descriptor) from None

    def free_bytes(self, path: str) -> int:
        """Return what this process may still write to the file system of `path`. Raises OSError."""
        space = self.space(path)
        return space.free if os.geteuid() == 0 else space.usable

    def space(self, path: str) -> Space:
        """Return the use of the file system of `path`. Raises OSError."""
        self._enter("statvfs")
        statistics = os.statvfs(path)
        unit = statistics.f_frsize
        return Space(
            statistics.f_blocks * unit, statistics.f_bfree * unit, statistics.f_bavail * unit
        )

    def pwrite(self, descriptor: int, data: bytes | memoryview, position: int) -> int:
        self.counts["pwrite"] += 1
        try:
            if self.fault is not None:
                self.fault("pwrite")
            return os.pwrite(descriptor, data, position)
        except OSError as error:
            raise _named(error, descriptor) from None

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


def _named(error: OSError, descriptor: int) -> OSError:
    """Return the error of a call on a descriptor, with the path of its file."""
    if error.filename is None:
        with suppress(OSError):  # not on macOS
            error.filename = os.readlink(f"/proc/self/fd/{descriptor}")
    return error


def existing(path: str) -> str:
    """Return the directory at this path, or the nearest one above it that exists."""
    path = os.path.abspath(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def full_disk(path: str, needs: str) -> str:
    """Return the sentence for a start that has no disk space for `path`: how much is free, what is
    needed (`needs`) and what to do."""
    directory = existing(path)
    statistics = os.statvfs(directory)
    free, total = (n * statistics.f_frsize for n in (statistics.f_bavail, statistics.f_blocks))
    return (
        f"The disk of {directory} has {free} of {total} bytes free, and {needs}. "
        "Free space on it (other files than the store's), or put the directory on a larger disk."
    )


def data_ranges(descriptor: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of [begin, end) of a file that are not holes (lseek SEEK_DATA). Raises
    OSError."""
    while begin < end:
        try:
            start = os.lseek(descriptor, begin, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        if start >= end:
            return
        begin = min(os.lseek(descriptor, start, os.SEEK_HOLE), end)
        yield start, begin
