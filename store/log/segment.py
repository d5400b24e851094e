"""One segment of the commit log: a file of fixed size, allocated in full, written and mapped.

The only module that uses mmap. Space is reserved before the map exists, so that neither a write nor
the map can fail on a full disk later (for a map that would be a SIGBUS).

Readers use the map, which is read-only; the writer uses pwrite, one call per batch. Both share the
page cache. Writing through the map instead would cost a page fault with file system work for every
fresh page, and again after every flush (measured: 3 us and more per page, against 0.4 us per record
for pwrite); and a memory copy may fill a range in any order, while the kernel copies upwards, so
that a killed process leaves a prefix of its batch and nothing behind it.

`written` moves only after the bytes are written, `flushed` only after fdatasync. With a buffer of
the transient pool a write goes to the buffer, and `commit` copies it to the file later: `committed`
is then between the two (docs/formats/store-format.md, section 7.1). Views are counted: `close` with
held views keeps the map until the last one is released.
"""

import errno
import mmap
import os

from ..format.disk import NO_SPACE_FOR_FILE, Disk, data_ranges
from ..format.errors import DiskFullError, StoreError

#: Zeroing reads this much at a time and writes only over non-zero bytes.
_ZERO_CHUNK_BYTES = 64 << 10
_ZEROS = bytes(_ZERO_CHUNK_BYTES)
#: Bytes per write while warming.
_WARM_CHUNK_BYTES = 1 << 20
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


def no_room(path: str, size: int) -> DiskFullError:
    return DiskFullError(
        f"No disk space for the next segment {path} ({size} bytes). Free space or lower "
        "fileReservedTime; messages are refused until then."
    )


class HeldView:
    """A view of a whole segment; valid until released, even if the segment is removed."""

    __slots__ = ("_segment", "data")

    def __init__(self, segment: "Segment") -> None:
        self._segment: Segment | None = segment
        self.data = memoryview(segment.map)

    def release(self) -> None:
        """Release the view; a second call does nothing."""
        segment, self._segment = self._segment, None
        if segment is not None:
            self.data.release()
            segment._released()

    def __enter__(self) -> memoryview:
        return self.data

    def __exit__(self, *_: object) -> None:
        self.release()


class Segment:
    """Bytes [start, end) of the log. Positions are relative to `start`."""

    __slots__ = (
        "_closing",
        "_descriptor",
        "_disk",
        "_filled",
        "_holds",
        "buffer",
        "committed",
        "end",
        "flushed",
        "locked",
        "map",
        "path",
        "size",
        "start",
        "writable",
        "written",
    )

    def __init__(self, path: str, start: int, size: int, descriptor: int, disk: Disk) -> None:
        self.path = path
        self.start = start
        self.size = size
        self.end = start + size
        # The map holds a duplicate of the descriptor.
        self.map = disk.with_spares(lambda: mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
        self.written = 0  #: position behind the last byte written
        self.flushed = 0  #: position up to which it is durable; at most `written`
        #: Buffer of the transient pool that takes the writes; None: they go to the file.
        self.buffer: memoryview | None = None
        self.committed = 0  #: with a buffer: position up to which it was copied to the file
        self._filled = 0  # with a buffer: behind its last byte (a blank leaves the rest)
        self.locked = False  #: the map is kept in memory (mlock)
        self.writable = True  #: false only if the directory is configured as read-only
        self._descriptor = descriptor
        self._disk = disk
        self._holds = 0
        self._closing = False

    @classmethod
    def create(cls, path: str, start: int, size: int, disk: Disk) -> "Segment":
        """Create a file of zeros with all its space reserved, durable under its name.

        Raises DiskFullError or StoreError; the file is then removed.
        """
        descriptor = -1
        try:
            descriptor = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            disk.fallocate(descriptor, size)
            disk.fsync(descriptor)
            disk.sync_directory(os.path.dirname(path))
            return cls(path, start, size, descriptor, disk)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
                os.unlink(path)
            if error.errno in NO_SPACE_FOR_FILE:
                raise no_room(path, size) from error
            raise StoreError(f"The segment {path} cannot be created: {error}.") from error

    @classmethod
    def open(
        cls, path: str, start: int, size: int, disk: Disk, *, read_only: bool = False
    ) -> "Segment":
        """Open an existing file of exactly `size` bytes, all of it counted as written. With
        `read_only` it need not be writable (see `writable`).

        Raises StoreError for a file that this process may not write and should.
        """
        writable = True
        try:
            descriptor = disk.open(path, os.O_RDWR)
        except OSError as error:
            if error.errno not in _NOT_ALLOWED:
                raise
            if not read_only:
                raise StoreError(
                    f"The segment {path} cannot be opened for writing: {error.strerror}. Start as "
                    "the owner of the store, on a file system that is mounted for writing."
                ) from error
            writable = False
            descriptor = disk.open(path, os.O_RDONLY)
        try:
            segment = cls(path, start, size, descriptor, disk)
        except BaseException:
            os.close(descriptor)
            raise
        segment.writable = writable
        segment.written = segment.flushed = size
        return segment

    def hold(self) -> HeldView:
        """Return a counted view of the whole segment."""
        self._holds += 1
        return HeldView(self)

    @property
    def held(self) -> bool:
        """Whether a counted view is held."""
        return self._holds > 0

    def _released(self) -> None:
        self._holds -= 1
        if self._closing and not self._holds:
            self._unmap()

    def write(self, position: int, data: bytes | memoryview) -> None:
        """Write `data` at `position`. Raises OSError; a prefix may be written then."""
        if self.buffer is not None:
            end = position + len(data)
            self.buffer[position:end] = data
            self._filled = end
            self.written = end
            return
        done = self._disk.write_log(self._descriptor, data, position)
        if done != len(data):
            raise OSError(errno.EIO, f"{done} of {len(data)} bytes were written", self.path)
        self.written = position + done

    def read(self, position: int, length: int) -> bytes:
        """Read bytes of the file without holding the GIL while the disk works; hold the segment
        meanwhile. Fewer at its end. Raises OSError."""
        return os.pread(self._descriptor, length, position)

    def lend(self, buffer: memoryview) -> None:
        """Write to `buffer`, which is as large as the segment, until it is taken back."""
        self.committed = self._filled = self.written
        self.buffer = buffer

    def commit(self) -> bool:
        """Copy the buffer into the file; return whether the whole segment is copied.

        One thread at a time; the writer may continue meanwhile. Raises OSError; do not call it
        again then, the state of the file is unknown.
        """
        buffer = self.buffer
        if buffer is None:
            return False
        written = self.written  # read before `_filled`: what it covers is in the buffer
        filled = min(self._filled, written)
        if filled > self.committed:
            with buffer[self.committed : filled] as data:
                done = self._disk.write_log(self._descriptor, data, self.committed)
            if done != filled - self.committed:
                raise OSError(errno.EIO, f"{done} bytes of a commit were written", self.path)
        self.committed = written
        return written == self.size

    def take_back(self) -> memoryview | None:
        """Return the buffer, which must be committed; writes go to the file from now on."""
        buffer, self.buffer = self.buffer, None
        return buffer

    def warm(self, pages_a_flush: int, flush: bool) -> None:
        """Write zeros over the whole new file, so that its blocks and pages exist before the first
        message. With `flush` every `pages_a_flush` pages are made durable, so that the first
        fdatasync does not wait for all of them. Raises StoreError or DiskFullError; the file is
        removed then."""
        zeros = bytes(min(_WARM_CHUNK_BYTES, self.size))
        waiting = 0
        try:
            for position in range(0, self.size, len(zeros)):
                with memoryview(zeros)[: self.size - position] as part:
                    waiting += self._disk.pwrite(self._descriptor, part, position)
                if flush and waiting >= pages_a_flush * mmap.PAGESIZE:
                    self._disk.fdatasync(self._descriptor)
                    waiting = 0
        except OSError as error:
            self.remove()
            if error.errno in NO_SPACE_FOR_FILE:
                raise no_room(self.path, self.size) from error
            raise StoreError(f"The segment {self.path} cannot be warmed: {error}.") from error

    def flush(self, position: int) -> None:
        """Make [0, position) durable with one fdatasync. Raises OSError; do not call it again then,
        the state of the pages is unknown."""
        self._disk.fdatasync(self._descriptor)
        self.flushed = max(self.flushed, position)

    def _data_ranges(self, position: int) -> list[tuple[int, int]]:
        """Return the ranges from `position` on that may hold non-zero bytes. Raises OSError.

        All are listed before any is read: reading brings zeros into the page cache, and the file
        system then reports them as data.
        """
        return list(data_ranges(self._descriptor, position, self.size))

    def data_end(self, position: int) -> int:
        """Return the position behind which the file has only holes, at least `position`. Raises
        OSError."""
        return max((end for _, end in self._data_ranges(position)), default=position)

    def used_end(self, position: int) -> int:
        """Return the position behind the last non-zero byte, at least `position`."""
        for begin, end in reversed(self._data_ranges(position)):
            for stop in range(end, begin, -_ZERO_CHUNK_BYTES):
                chunk = self.map[max(stop - _ZERO_CHUNK_BYTES, begin) : stop]
                if chunk != _ZEROS[: len(chunk)]:
                    return stop - len(chunk) + len(chunk.rstrip(b"\0"))
        return position

    def zero(self, begin: int, end: int) -> None:
        """Zero [begin, end), writing only over non-zero bytes. Raises OSError."""
        for position in range(begin, end, _ZERO_CHUNK_BYTES):
            zeros = _ZEROS[: end - position]
            if self.map[position : position + len(zeros)] != zeros:
                self._disk.write_log(self._descriptor, zeros, position)

    def overwrite(self, position: int, data: bytes) -> None:
        """Overwrite written bytes, durably; `written` does not move. Any thread. Raises OSError."""
        done = self._disk.write_log(self._descriptor, data, position)
        if done != len(data):
            raise OSError(errno.EIO, f"{done} of {len(data)} bytes were written", self.path)
        self._disk.fdatasync(self._descriptor)

    def close(self) -> None:
        """Unmap now, or when the last view is released. A second call does nothing."""
        if self._closing:
            return
        self._closing = True
        if not self._holds:
            self._unmap()

    def remove(self) -> None:
        """Delete the file; the map is freed with its last reader."""
        self._disk.unlink(self.path)
        self.close()

    def _unmap(self) -> None:
        self.map.close()
        os.close(self._descriptor)
