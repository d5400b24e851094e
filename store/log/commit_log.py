"""The commit log: consecutive segments with consecutive records. All other files derive from it.

    offset 0            size              2 * size
    | record record ... blank | record ... blank | record ... (zeros) |

A record never crosses a segment. It goes into a segment only if 8 bytes remain behind it; else a
blank record (remaining bytes, magic) ends the segment and the next one begins
(docs/formats/store-format.md, section 2.6). The next segment is created before the blank is
written, so a full disk leaves the log unchanged. Segments may lie in several directories (section
8, `directory_for`).

`end` is the end of the last whole record; readers stop at `readable_end`, which is lower while the
transient pool holds records back (section 7.1). `received_end` is above `end` only while a follower
holds an incomplete record. All move after the bytes are written. One thread writes; the flush and
commit threads read the ends and the list of segments, which is replaced, never changed, when its
first one is dropped.

Segments are created ahead (allocation.py). A log that has never filled half a segment reserves one;
a log of several has the next one ready, and the one after it when its last is half full: a small
idle cluster does not reserve 3 GiB per broker, and a busy one never waits for a file.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol
from zlib import crc32

from ..config.store_config import StoreConfig
from ..events import NO_EVENTS, StoreEvents
from ..format.disk import Disk
from ..format.errors import (
    CorruptLogError,
    OffsetOutOfRangeError,
    RecordFormatError,
    StoreError,
)
from ..format.layout import list_files
from ..format.record_layout import (
    BLANK,
    BLANK_BYTES,
    FIXED_V4,
    MAGIC,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET,
    SIZE,
    SIZE_AND_OFFSET,
    store_timestamp,
)
from ..guard import BlockGuard
from ..scan.single import find_record, inspect
from .allocation import SegmentAllocator, SegmentMaker, SegmentOptions
from .memory import advise_unused, unlock
from .segment import Segment
from .transient_pool import TransientPool

_NEVER: Final = 1 << 62
_CRC_CHUNK_BYTES: Final = 1 << 20


class WholeRecords(Protocol):
    """Checks received records of the common form in the native crate (`whole_records`)."""

    def __call__(self, data: Any, base: int, range: tuple[int, int]) -> tuple[int, int]:
        """Return the position behind the last record, and its store time; the begin of the range
        and 0 if it has read none. Ends in front of a record that is incomplete or left to
        Python."""


class CommitLog:
    """Append-only bytes [start, end) over segments of one size."""

    def __init__(
        self,
        directories: str | Sequence[str],
        segment_bytes: int,
        disk: Disk,
        *,
        read_only: Sequence[str] = (),
        options: SegmentOptions | None = None,
        whole_records: WholeRecords | None = None,
        events: StoreEvents = NO_EVENTS,
    ) -> None:
        everywhere = (directories,) if isinstance(directories, str) else tuple(directories)
        #: Directories of the segments; new ones go to those that are not read-only.
        self.directories = everywhere + tuple(p for p in read_only if p not in everywhere)
        self.writable_directories = tuple(p for p in everywhere if p not in read_only)
        self.segment_bytes = segment_bytes
        self.segments: list[Segment] = []
        self.tail: Segment | None = None  #: the last of `segments`
        self.end = 0
        self.readable_end = 0
        #: Of the last record; later records never get an earlier one, so that time is searchable.
        self.last_store_timestamp_ms = 0
        #: Returns whether a directory should get no new segment; called on the allocator's thread
        #: too.
        self.is_full: Callable[[str], bool] = lambda _path: False
        self.pool: TransientPool | None = None
        self._events = events
        self.guard: BlockGuard | None = None
        self._raw_end = 0
        self._readable_store_timestamp_ms = 0
        self._look_ahead_at = _NEVER
        self._whole_records = whole_records
        self._disk = disk
        self._maker = SegmentMaker(
            self.writable_directories,
            segment_bytes,
            disk,
            options or SegmentOptions(),
            self._asks_full,
        )
        self._allocator = SegmentAllocator(self._maker.create, self._maker.has_space)

    @classmethod
    def of(
        cls,
        config: StoreConfig,
        disk: Disk,
        whole_records: WholeRecords | None = None,
        events: StoreEvents = NO_EVENTS,
    ) -> "CommitLog":
        """Create the log of this configuration."""
        options = SegmentOptions(
            warm=config.warm_maped_file_enable,
            pages_a_flush=config.flush_least_pages_when_warm_maped_file,
            flush_warm=config.sync_flush,
            lock=config.lock_maped_file_enable,
            read_ahead=config.data_read_ahead_enable,
        )
        log = cls(
            [str(path) for path in config.commit_log_directories],
            config.mapped_file_size_commit_log,
            disk,
            read_only=[str(path) for path in config.read_only_directories],
            options=options,
            whole_records=whole_records,
            events=events,
        )
        if config.transient_store_pool_enable:
            log.pool = TransientPool(
                config.transient_store_pool_size,
                config.mapped_file_size_commit_log,
                fail_fast=config.fast_fail_if_no_buffer_in_store_pool,
                later=log._allocator.run_later,
            )
        return log

    # -- files --------------------------------------------------------------------------------

    def load(self) -> str:
        """Map all segments; return the path of an unfinished last file (see format/layout.py) or
        ""."""
        files = list_files(self.directories, self.segment_bytes, "mappedFileSizeCommitLog")
        segments = []
        for start, path in zip(files.starts, files.paths, strict=True):
            read_only = os.path.dirname(path) not in self.writable_directories
            segments.append(
                Segment.open(path, start, self.segment_bytes, self._disk, read_only=read_only)
            )
            self._maker.advise(segments[-1])
        self._set_segments(segments)
        self._set_end(self.tail.end if self.tail else 0)
        self._raw_end = self.end
        return files.unfinished

    def _asks_full(self, path: str) -> bool:
        return self.is_full(path)

    def begin_writing(self) -> None:
        """Prepare for the first append. Raises StoreError when a directory cannot be created."""
        tail = self.tail
        if tail is not None and not tail.writable and self.end < tail.end:
            raise StoreError(
                f"The last segment {tail.path} cannot be written, but it takes the next messages. "
                "Make it writable; readOnlyCommitLogStorePaths is for directories of full segments."
            )
        if tail is not None and self._maker.options.lock:  # reading its pages may take a while
            self._allocator.run_later(lambda: self._maker.lock(tail))
        for path in self.writable_directories:
            try:
                os.makedirs(path, exist_ok=True)
            except OSError as error:
                raise StoreError(f"The directory {path} cannot be created: {error}.") from error

    def add_segment(self, start: int) -> Segment:
        """Return the next segment, ready for use. Raises DiskFullError or StoreError, nothing
        changed."""
        buffer = self.pool.borrow() if self.pool is not None else None
        try:
            segment = self._allocator.take(start)
        except StoreError:
            if self.pool is not None and buffer is not None:
                self.pool.give_back(buffer)
            raise
        if buffer is not None:
            segment.lend(buffer)
        if not self.segments:
            self._set_end(start)
            self._raw_end = start
        self._set_segments([*self.segments, segment])
        return segment

    def _set_segments(self, segments: list[Segment]) -> None:
        self.segments = segments
        self.tail = segments[-1] if segments else None
        self._look_ahead_at = 0

    def _set_end(self, end: int) -> None:
        """Set the end of the last whole record, all of it readable."""
        self.end = self.readable_end = end

    def note_written(self, store_timestamp_ms: int) -> None:
        """Note that records up to `end` were written; prepare the next segments when due."""
        self.last_store_timestamp_ms = store_timestamp_ms
        if self.end >= self._look_ahead_at:
            self._look_ahead()
        if self.pool is not None:
            self.pool.wake(self.end - self.readable_end)

    def _look_ahead(self) -> None:
        tail = self.segments[-1]
        half = tail.start + tail.size // 2 + 1
        count = (len(self.segments) > 1) + (self.end >= half)
        if self._allocator.prepare([tail.end + i * tail.size for i in range(count)]):
            self._look_ahead_at = _NEVER if self.end >= half else half

    def has_room(self, size: int) -> bool:
        """Return whether the next `size` bytes find space: in the last segment, or in one that
        exists or can be created."""
        tail = self.tail
        if tail is not None and tail.end - self.end >= size:
            return True
        start = self.end if tail is None else tail.end
        return self._allocator.is_ready(start) or self._maker.has_space(start)

    @property
    def lacks_space(self) -> bool:
        """Whether the last try to create a segment found no space."""
        return self._allocator.lacks_space

    def discard_prepared(self) -> None:
        """Remove prepared segments, so that a stopped store ends with its records."""
        self._allocator.discard()

    def drop_first(self, *, unlink: bool = True) -> Segment:
        """Drop the first segment; `start` moves behind it. Its file is deleted here, or with
        `unlink` false by the caller, on a thread, with `Segment.remove`. Held views stay valid
        until they are released.

        Raises StoreError for the last segment, and for one that is not flushed.
        """
        if len(self.segments) < 2:
            raise StoreError(
                "The last segment of the log cannot be deleted: new offsets continue from it."
            )
        first = self.segments[0]
        if first.flushed < first.size:
            raise StoreError(f"The segment {first.path} is not flushed; delete it later.")
        self.segments = self.segments[1:]
        if unlink:
            first.remove()
        return first

    def close(self) -> None:
        """Unmap. Prepared segments stay, as after a kill; recovery removes them."""
        self._allocator.abandon()
        for segment in self.segments:
            segment.take_back()
            segment.close()
        self._set_segments([])
        if self.pool is not None:
            self.pool.close()
            self.pool = None

    def release_pages(self) -> None:
        """Take the pages that were read out of this process's memory, on the thread."""
        for segment in self.segments:
            self._allocator.run_later(partial(advise_unused, segment.map))

    # -- positions ----------------------------------------------------------------------------

    @property
    def start(self) -> int:
        segments = self.segments
        return segments[0].start if segments else 0

    def segment_at(self, offset: int) -> Segment:
        """Return the segment that holds `offset`. Raises OffsetOutOfRangeError."""
        segments = self.segments
        if segments:
            index = (offset - segments[0].start) // self.segment_bytes
            if 0 <= index < len(segments):
                return segments[index]
        raise OffsetOutOfRangeError(offset, self.start, self.readable_end)

    def segments_between(self, begin: int, end: int) -> list[Segment]:
        """Return the segments that hold a byte of [begin, end); safe to call from a flush
        thread."""
        return [s for s in self.segments[:] if s.start < end and s.end > begin]

    @property
    def received_end(self) -> int:
        return max(self._raw_end, self.end)

    # -- reading ------------------------------------------------------------------------------

    def read(self, offset: int, size: int) -> bytes:
        """Return [offset, offset + size), which must lie in one segment below `readable_end`."""
        if offset < self.start or offset + size > self.readable_end:
            raise OffsetOutOfRangeError(offset, self.start, self.readable_end)
        segment = self.segment_at(offset)
        position = offset - segment.start
        return segment.map[position : position + size]

    def read_record(self, offset: int, size: int) -> bytes:
        """Return the record that a queue unit or an index entry points to.

        Raises OffsetOutOfRangeError, and RecordFormatError unless a record of this size begins
        there and its own physical offset equals `offset` (damage, or a unit of another log). Costs
        no more than `read` and one look at 36 bytes.
        """
        segments = self.segments
        if not segments or offset < segments[0].start or offset + size > self.readable_end:
            raise OffsetOutOfRangeError(offset, self.start, self.readable_end)
        segment = segments[(offset - segments[0].start) // self.segment_bytes]
        position = offset - segment.start
        data = segment.map[position : position + size]
        if (
            len(data) != size
            or size < SIZE_AND_OFFSET.size
            or SIZE_AND_OFFSET.unpack_from(data) != (size, offset)
        ):
            raise RecordFormatError(f"No record of {size} bytes begins at offset {offset}.")
        return data

    def record_at(self, offset: int) -> bytes:
        """Return the whole record that begins at `offset`.

        Raises OffsetOutOfRangeError, or RecordFormatError when no record begins there.
        """
        size, magic = BLANK.unpack(self.read(offset, BLANK_BYTES))
        if magic not in (MAGIC_V1, MAGIC_V2):
            raise RecordFormatError(f"No record begins at offset {offset}.")
        return self.read_record(offset, size)

    def store_timestamp(self, offset: int) -> int:
        """Return the store time of the record that begins at `offset`. Raises
        OffsetOutOfRangeError."""
        return store_timestamp(self.read(offset, FIXED_V4.size))

    def read_raw(self, offset: int, size_max: int) -> bytes:
        """Return raw bytes from `offset` on: not beyond `readable_end`, not across a segment, whole
        records where possible (a record above `size_max` comes in parts)."""
        if offset == self.readable_end:
            return b""
        if not self.start <= offset < self.readable_end:
            raise OffsetOutOfRangeError(offset, self.start, self.readable_end)
        segment = self.segment_at(offset)
        position = offset - segment.start
        stop = min(segment.size, self.readable_end - segment.start)
        if stop - position > size_max:
            stop = self._last_record_end(segment, position, position + size_max)
        if self.guard is not None and segment is not self.tail:
            self.guard.before_raw_read(offset, segment.start + stop)
        return segment.map[position:stop]

    def _last_record_end(self, segment: Segment, position: int, limit: int) -> int:
        """Return the last record boundary in (position, limit], or `limit` without one."""
        data = segment.map
        border = position
        while border + FIXED_V4.size <= limit:
            fields = FIXED_V4.unpack_from(data, border)
            if fields[MAGIC] not in (MAGIC_V1, MAGIC_V2) or (
                fields[PHYSICAL_OFFSET] != segment.start + border
            ):
                break  # `offset` is inside a record, or this is the blank
            if border + fields[SIZE] > limit:
                break
            border += fields[SIZE]
        return border if border > position else limit

    def next_record_start(self, offset: int) -> int:
        """Return the start of the first record at or above `offset`, which may lie inside one; the
        segment's end without one in it. Raises OffsetOutOfRangeError."""
        segment = self.segment_at(offset)
        position = offset - segment.start
        limit = min(segment.size, self.readable_end - segment.start)
        with segment.hold() as data:
            start = find_record(data, position, limit, segment.start, check_crc=False)
        if start >= 0:
            return segment.start + start
        return min(segment.start + segment.size, self.readable_end)

    def crc(self, begin: int, end: int) -> int:
        """Return the CRC-32 of the bytes [begin, end), across segments. Raises
        OffsetOutOfRangeError."""
        if begin < self.start or end > self.readable_end or begin > end:
            raise OffsetOutOfRangeError(begin, self.start, self.readable_end)
        value = 0
        for segment in self.segments_between(begin, end):
            position = max(begin - segment.start, 0)
            stop = min(end - segment.start, segment.size)
            with segment.hold() as data:
                for chunk in range(position, stop, _CRC_CHUNK_BYTES):
                    value = crc32(data[chunk : min(chunk + _CRC_CHUNK_BYTES, stop)], value)
        return value

    def oldest_store_ms(self) -> int | None:
        """Return the store time of the first record; None without records."""
        start = self.start
        if self.readable_end - start < FIXED_V4.size:
            return None
        magic = FIXED_V4.unpack(self.read(start, FIXED_V4.size))[MAGIC]
        return self.store_timestamp(start) if magic in (MAGIC_V1, MAGIC_V2) else None

    # -- writing ------------------------------------------------------------------------------

    def roll(self) -> Segment:
        """End the current segment with a blank and continue in the next.

        Raises DiskFullError or StoreError, with nothing written.
        """
        current = self.segments[-1]
        position = self.end - current.start
        following = self.add_segment(current.end)
        current.write(position, BLANK.pack(current.size - position, MAGIC_BLANK))
        current.written = current.size
        self.end = following.start
        if self.pool is None:
            self.readable_end = self.end
        if current.locked:  # it is not written any more
            current.locked = False
            self._allocator.run_later(lambda: unlock(current.map))
        return following

    def write(self, data: bytes) -> None:
        """Write whole records at `end`; they must fit the last segment. Raises OSError with `end`
        unchanged."""
        segment = self.segments[-1]
        segment.write(self.end - segment.start, data)
        self.end += len(data)
        if self.pool is None:
            self.readable_end = self.end

    def mark_unfit(self) -> None:
        """Fill the whole empty last segment with a blank, as Apache's broker does for a record that
        fits no segment. The blank does not count: the next record overwrites it, also after a
        restart (docs/formats/store-format.md, section 2.6). Raises OSError."""
        segment = self.segments[-1]
        assert self.end == segment.start
        segment.write(0, BLANK.pack(segment.size, MAGIC_BLANK))
        segment.written = 0

    def commit(self) -> None:
        """With the transient pool: copy its buffers into the files, which makes the records
        readable.

        Any thread, one at a time. Raises OSError, also in all later calls: the state after a failed
        write is unknown, so it is never repeated.
        """
        pool = self.pool
        if pool is None:
            return
        with pool.commit_lock:
            pool.check()
            store_timestamp_ms = self.last_store_timestamp_ms  # read before `end`: never too late
            end = self.end
            try:
                for segment in self.segments_between(self.readable_end, end):
                    if segment.commit():
                        pool.give_back(segment.take_back())
            except OSError as error:
                pool.failure = str(error)
                raise
            self._readable_store_timestamp_ms = store_timestamp_ms
            moved = end > self.readable_end
            self.readable_end = end
        if moved:
            self._events.committed(end)

    @property
    def readable_store_timestamp_ms(self) -> int:
        """Store time of the last readable record, or an earlier one of the last moment."""
        return (
            self.last_store_timestamp_ms if self.pool is None else self._readable_store_timestamp_ms
        )

    def leave_pool(self) -> None:
        """Write directly from now on (a follower checks received bytes in the file)."""
        pool = self.pool
        if pool is not None:
            self.commit()
            for segment in self.segments:
                segment.take_back()
            self.pool = None
            pool.close()

    def append_raw(self, offset: int, data: bytes) -> int:
        """Append bytes of the leader's log; return the new `end`.

        They must begin at `received_end`, or at `end`: then an incomplete record is dropped first
        (an empty log may begin at any segment start). Raises OffsetOutOfRangeError; DiskFullError
        with nothing written beyond the full segment; and CorruptLogError, after which
        `received_end` equals `end`.
        """
        self.leave_pool()
        if not self.segments and offset % self.segment_bytes == 0 and data:
            self.add_segment(offset)
        if offset == self.end < self.received_end:
            # The leader sends a record again that a broken stream had left incomplete.
            self.drop_part()
        if offset != self.received_end:
            raise OffsetOutOfRangeError(offset, self.received_end, self.received_end)
        view = memoryview(data)
        while view:
            segment = self.segments[-1]
            if self.received_end == segment.end:
                segment = self.add_segment(segment.end)
            position = self.received_end - segment.start
            part = view[: segment.size - position]
            segment.write(position, part)
            self._raw_end = segment.start + segment.written
            view = view[len(part) :]
            self._take_whole_records(segment)
        if self.segments and data:
            self.note_written(self.last_store_timestamp_ms)
        return self.end

    def _take_whole_records(self, segment: Segment) -> None:
        """Move `end` over every whole record of `segment`."""
        with segment.hold() as data:
            limit = self.received_end - segment.start
            begin = position = self.end - segment.start
            end_max = segment.size - BLANK_BYTES  # a blank fits behind every record
            if self._whole_records is not None:
                position, stored_ms = self._whole_records(
                    data, segment.start, (begin, min(limit, end_max))
                )
                if position > begin:
                    self.last_store_timestamp_ms = stored_ms
            while limit - position >= BLANK_BYTES:
                size, magic = BLANK.unpack_from(data, position)
                known = magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)
                if known and limit < position + size <= segment.size:
                    break  # incomplete: the rest follows
                try:
                    inspected = inspect(data, position, segment.start, check_crc=False)
                    if not inspected.blank and position + inspected.size > end_max:
                        raise RecordFormatError("no blank fits behind the record.")
                except RecordFormatError as error:
                    self._drop_part(segment, position)
                    raise CorruptLogError(
                        segment.path, segment.start + position, str(error)
                    ) from None
                position += inspected.size
                if not inspected.blank:
                    self.last_store_timestamp_ms = inspected.store_timestamp_ms
            self._set_end(segment.start + position)

    def drop_part(self) -> None:
        """Drop the received part of an incomplete record. Raises OSError."""
        if self._raw_end > self.end:
            segment = self.segment_at(self.end)
            self._drop_part(segment, self.end - segment.start)

    def _drop_part(self, segment: Segment, position: int) -> None:
        self._set_end(segment.start + position)
        segment.write(position, bytes(segment.written - position))
        segment.written = position
        self._raw_end = self.end

    def cut(self, end: int) -> int:
        """Cut the log at `end`: remove later segments, zero the rest of the last one. Returns the
        number of segments removed. Durable on return: cut records must not reappear after a power
        loss, behind other records. Raises OSError.

        A segment that begins exactly at `end` (behind a blank) stays: it is the next to fill. Only
        for recovery, before any read.
        """
        kept = [segment for segment in self.segments if segment.start <= end]
        behind = self.segments[len(kept) :]
        for segment in reversed(behind):
            segment.remove()
        for folder in {os.path.dirname(segment.path) for segment in behind}:
            self._disk.sync_directory(folder)
        self._set_segments(kept)
        if kept:
            last = kept[-1]
            position = end - last.start
            stop = last.used_end(position)
            if stop > position:
                last.zero(position, stop)
                last.flush(position)
            last.written = last.flushed = position
        self._set_end(end)
        self._raw_end = end
        return len(behind)
