"""The commit log: segments in a row, records one behind the other. This is the truth.

    offset 0            size              2 * size
    | record record ... blank | record ... blank | record ... (zeros) |

A record never crosses a segment. It is put into a segment only if 8 bytes remain behind it; else a
blank record (bytes that remain, magic) ends the segment and the next one begins (store format,
section 2.6). The next segment is there before the blank is written, so a full disk leaves the log as
it was.

`end` is the end of the last whole record, `received_end` is beyond it only while a follower holds a
part of a record. Both move after the bytes are there. One thread writes; the flush threads read
`end` and the list of segments.
"""

import os
from zlib import crc32

from .allocation import SegmentAllocator
from .disk import Disk
from .errors import CorruptLogError, OffsetOutOfRangeError, RecordFormatError
from .layout import file_name, list_files
from .record import (
    BLANK,
    BLANK_BYTES,
    BORN_HOST_V6,
    FIXED_V4,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
)
from .scan import inspect
from .segment import Segment

_CRC_CHUNK_BYTES = 1 << 20
_PHYSICAL_OFFSET = 6
_STORE_TIMESTAMP_AT = 56  # with an IPv4 born host


class CommitLog:
    """Append-only bytes [start, end) over segments of one size."""

    def __init__(self, directory: str, segment_bytes: int, disk: Disk) -> None:
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.segments: list[Segment] = []
        self.tail: Segment | None = None  #: the last of `segments`
        self.end = 0
        #: Of the last record; later records never get an earlier one, so that time is searchable.
        self.last_store_timestamp_ms = 0
        self._raw_end = 0
        self._disk = disk
        self._allocator = SegmentAllocator(self._create)

    # -- files --------------------------------------------------------------------------------

    def load(self) -> str:
        """Map all segments; returns the path of an unfinished last file (see layout.py) or ""."""
        files = list_files(self.directory, self.segment_bytes, "mappedFileSizeCommitLog")
        for start in files.starts:
            path = os.path.join(self.directory, file_name(start))
            self.segments.append(Segment.open(path, start, self.segment_bytes, self._disk))
        self._set_tail()
        self.end = self._raw_end = self.tail.end if self.tail else 0
        return files.unfinished

    def _create(self, start: int) -> Segment:
        path = os.path.join(self.directory, file_name(start))
        return Segment.create(path, start, self.segment_bytes, self._disk)

    def add_segment(self, start: int) -> Segment:
        """The next segment, ready for use. Raises DiskFullError or StoreError, nothing changed."""
        segment = self._allocator.take(start)
        if not self.segments:
            self.end = self._raw_end = start
        self.segments.append(segment)
        self._set_tail()
        return segment

    def _set_tail(self) -> None:
        self.tail = self.segments[-1] if self.segments else None

    def note_written(self, store_timestamp_ms: int) -> None:
        """Records up to `end` were written. Has the next segment made once this one is half full."""
        self.last_store_timestamp_ms = store_timestamp_ms
        self._prepare_next(self.segments[-1])

    def _prepare_next(self, segment: Segment) -> None:
        if segment.written * 2 > segment.size:
            self._allocator.prepare(segment.end)

    def discard_prepared(self) -> None:
        """Remove the segment that was made ahead, so that a stopped store ends with its records."""
        self._allocator.discard()

    def close(self) -> None:
        """Unmap. A segment that was made ahead stays, as after a kill; recovery removes it."""
        self._allocator.abandon()
        for segment in self.segments:
            segment.close()
        self.segments = []
        self.tail = None

    # -- places -------------------------------------------------------------------------------

    @property
    def start(self) -> int:
        segments = self.segments
        return segments[0].start if segments else 0

    @property
    def received_end(self) -> int:
        return max(self._raw_end, self.end)

    def segment_at(self, offset: int) -> Segment:
        """The segment that holds `offset`. Raises OffsetOutOfRangeError."""
        segments = self.segments
        if segments:
            index = (offset - segments[0].start) // self.segment_bytes
            if 0 <= index < len(segments):
                return segments[index]
        raise OffsetOutOfRangeError(offset, self.start, self.end)

    def segments_between(self, begin: int, end: int) -> list[Segment]:
        """Segments that hold a byte of [begin, end); safe to call from a flush thread."""
        return [s for s in self.segments[:] if s.start < end and s.end > begin]

    # -- reading ------------------------------------------------------------------------------

    def read(self, offset: int, size: int) -> bytes:
        """Exactly [offset, offset + size), which must lie in one segment below `end`."""
        if offset < self.start or offset + size > self.end:
            raise OffsetOutOfRangeError(offset, self.start, self.end)
        segment = self.segment_at(offset)
        position = offset - segment.start
        return segment.map[position : position + size]

    def record_at(self, offset: int) -> bytes:
        """The whole record that begins at `offset`.

        Raises OffsetOutOfRangeError, or RecordFormatError when no record begins there.
        """
        size, magic = BLANK.unpack(self.read(offset, BLANK_BYTES))
        if magic not in (MAGIC_V1, MAGIC_V2):
            raise RecordFormatError(f"No record begins at offset {offset}.")
        return self.read(offset, size)

    def store_timestamp(self, offset: int) -> int:
        """Store time of the record that begins at `offset`. Raises OffsetOutOfRangeError."""
        head = self.read(offset, FIXED_V4.size)
        at = _STORE_TIMESTAMP_AT
        if int.from_bytes(head[36:40], "big") & BORN_HOST_V6:
            at += HOST_V6_BYTES - HOST_V4_BYTES
        return int.from_bytes(head[at : at + 8], "big")

    def read_raw(self, offset: int, size_max: int) -> bytes:
        """Bytes from `offset` on as they lie there: not beyond `end`, not across a segment, and
        whole records where that is possible (a record above `size_max` comes in parts)."""
        if offset == self.end:
            return b""
        if not self.start <= offset < self.end:
            raise OffsetOutOfRangeError(offset, self.start, self.end)
        segment = self.segment_at(offset)
        position = offset - segment.start
        stop = min(segment.size, self.end - segment.start)
        if stop - position > size_max:
            stop = self._last_border(segment, position, position + size_max)
        return segment.map[position:stop]

    def _last_border(self, segment: Segment, position: int, limit: int) -> int:
        """Last border of a record in (position, limit], or `limit` where none is found."""
        data = segment.map
        border = position
        while border + FIXED_V4.size <= limit:
            fields = FIXED_V4.unpack_from(data, border)
            if fields[1] not in (MAGIC_V1, MAGIC_V2) or (
                fields[_PHYSICAL_OFFSET] != segment.start + border
            ):
                break  # `offset` is inside a record, or this is the blank
            if border + fields[0] > limit:
                break
            border += fields[0]
        return border if border > position else limit

    def crc(self, begin: int, end: int) -> int:
        """CRC-32 of the bytes [begin, end), over segments."""
        if begin < self.start or end > self.end or begin > end:
            raise OffsetOutOfRangeError(begin, self.start, self.end)
        value = 0
        for segment in self.segments_between(begin, end):
            position = max(begin - segment.start, 0)
            stop = min(end - segment.start, segment.size)
            with segment.hold() as data:
                for chunk in range(position, stop, _CRC_CHUNK_BYTES):
                    value = crc32(data[chunk : min(chunk + _CRC_CHUNK_BYTES, stop)], value)
        return value

    # -- writing ------------------------------------------------------------------------------

    def roll(self) -> Segment:
        """End the current segment with a blank and go on in the next.

        Raises DiskFullError or StoreError, with nothing written.
        """
        current = self.segments[-1]
        position = self.end - current.start
        following = self.add_segment(current.end)
        current.write(position, BLANK.pack(current.size - position, MAGIC_BLANK))
        current.written = current.size
        self.end = following.start
        return following

    def write(self, data: bytes) -> None:
        """Put whole records at `end`, which must fit the last segment. Raises OSError, with `end`
        where it was."""
        segment = self.segments[-1]
        segment.write(self.end - segment.start, data)
        self.end += len(data)

    def append_raw(self, offset: int, data: bytes) -> int:
        """Append bytes as they lie on the leader; returns the new `end`.

        They must begin at `received_end`, or at `end`: then a part of a record that is there is
        dropped first (an empty log begins at any segment's start). Raises
        OffsetOutOfRangeError; DiskFullError with nothing taken beyond the full segment; and
        CorruptLogError, after which `received_end` is back at `end`.
        """
        if not self.segments and offset % self.segment_bytes == 0 and data:
            self.add_segment(offset)
        if offset == self.end < self.received_end:
            # The leader begins the record again that a broken stream had left half sent.
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
            self._prepare_next(self.segments[-1])
        return self.end

    def _take_whole_records(self, segment: Segment) -> None:
        """Move `end` over every record of `segment` that is there in full."""
        with segment.hold() as data:
            limit = self.received_end - segment.start
            position = self.end - segment.start
            while limit - position >= BLANK_BYTES:
                size, magic = BLANK.unpack_from(data, position)
                known = magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)
                if known and limit < position + size <= segment.size:
                    break  # the rest is still to come
                try:
                    found = inspect(data, position, segment.start, check_crc=False)
                except RecordFormatError as error:
                    self._drop_part(segment, position)
                    raise CorruptLogError(
                        segment.path, segment.start + position, str(error)
                    ) from None
                position += found.size
                if not found.blank:
                    self.last_store_timestamp_ms = found.store_timestamp_ms
            self.end = segment.start + position

    def drop_part(self) -> None:
        """Forget what was received of a record that never became whole. Raises OSError."""
        if self._raw_end > self.end:
            segment = self.segment_at(self.end)
            self._drop_part(segment, self.end - segment.start)

    def _drop_part(self, segment: Segment, position: int) -> None:
        self.end = segment.start + position
        segment.write(position, bytes(segment.written - position))
        segment.written = position
        self._raw_end = self.end

    def cut(self, end: int) -> int:
        """Forget everything behind `end`: later segments are removed, the rest of its own is
        zeroed. Returns the number of segments removed.

        A segment that begins exactly at `end` (behind a blank) stays: it is the next to fill. Only
        for recovery, before anyone reads.
        """
        removed = 0
        while self.segments and self.segments[-1].start > end:
            self.segments.pop().remove()
            removed += 1
        self._set_tail()
        if self.segments:
            last = self.segments[-1]
            position = end - last.start
            last.zero(position, last.used_end(position))
            last.written = position
        self.end = self._raw_end = end
        return removed
