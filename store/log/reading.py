"""The commit log as its readers see it: places, records, raw bytes.

Nothing here goes beyond `readable_end`. That is the log's end, unless the transient pool is used: then
it is the end of what was committed to the files (store format, section 7.1), and everybody who reads,
dispatches, replicates or flushes stops there. The writing half stands in `commit_log.py`.
"""

import struct
from collections.abc import Callable
from typing import Final
from zlib import crc32

from ..format.errors import OffsetOutOfRangeError, RecordFormatError
from ..format.record import (
    BLANK,
    BLANK_BYTES,
    BORN_HOST_V6,
    FIXED_V4,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAGIC_V1,
    MAGIC_V2,
)
from ..scan.single import find_record
from .segment import Segment

_CRC_CHUNK_BYTES: Final = 1 << 20
_PHYSICAL_OFFSET: Final = 6
_STORE_TIMESTAMP_AT: Final = 56  # with an IPv4 born host
#: A record's size and its own physical offset.
_SIZE_AND_PLACE: Final = struct.Struct(">i24xq")


class LogReading:
    """Segments in a row, of one size; the last whole readable record ends at `readable_end`."""

    segment_bytes: int
    segments: list[Segment]
    tail: Segment | None
    readable_end: int
    #: Asked before raw bytes of a finished segment are handed out (block_api.py); may raise CorruptLogError.
    guard: Callable[[int, int], None] | None = None

    # -- places -------------------------------------------------------------------------------

    @property
    def start(self) -> int:
        segments = self.segments
        return segments[0].start if segments else 0

    def segment_at(self, offset: int) -> Segment:
        """The segment that holds `offset`. Raises OffsetOutOfRangeError."""
        segments = self.segments
        if segments:
            index = (offset - segments[0].start) // self.segment_bytes
            if 0 <= index < len(segments):
                return segments[index]
        raise OffsetOutOfRangeError(offset, self.start, self.readable_end)

    def segments_between(self, begin: int, end: int) -> list[Segment]:
        """Segments that hold a byte of [begin, end); safe to call from a flush thread."""
        return [s for s in self.segments[:] if s.start < end and s.end > begin]

    # -- reading ------------------------------------------------------------------------------

    def read(self, offset: int, size: int) -> bytes:
        """Exactly [offset, offset + size), which must lie in one segment below `readable_end`."""
        if offset < self.start or offset + size > self.readable_end:
            raise OffsetOutOfRangeError(offset, self.start, self.readable_end)
        segment = self.segment_at(offset)
        position = offset - segment.start
        return segment.map[position : position + size]

    def read_record(self, offset: int, size: int) -> bytes:
        """The record that a queue unit or an index entry points to.

        Raises OffsetOutOfRangeError; and RecordFormatError when what lies there is not a record of
        this size that belongs there (damage, or a unit of another log): its own physical offset
        must be its place. Costs no more than `read` and one look at 36 bytes.
        """
        segments = self.segments
        if not segments or offset < segments[0].start or offset + size > self.readable_end:
            raise OffsetOutOfRangeError(offset, self.start, self.readable_end)
        segment = segments[(offset - segments[0].start) // self.segment_bytes]
        position = offset - segment.start
        data = segment.map[position : position + size]
        if (
            len(data) != size
            or size < _SIZE_AND_PLACE.size
            or _SIZE_AND_PLACE.unpack_from(data) != (size, offset)
        ):
            raise RecordFormatError(f"No record of {size} bytes begins at offset {offset}.")
        return data

    def record_at(self, offset: int) -> bytes:
        """The whole record that begins at `offset`.

        Raises OffsetOutOfRangeError, or RecordFormatError when no record begins there.
        """
        size, magic = BLANK.unpack(self.read(offset, BLANK_BYTES))
        if magic not in (MAGIC_V1, MAGIC_V2):
            raise RecordFormatError(f"No record begins at offset {offset}.")
        return self.read_record(offset, size)

    def store_timestamp(self, offset: int) -> int:
        """Store time of the record that begins at `offset`. Raises OffsetOutOfRangeError."""
        head = self.read(offset, FIXED_V4.size)
        at = _STORE_TIMESTAMP_AT
        if int.from_bytes(head[36:40], "big") & BORN_HOST_V6:
            at += HOST_V6_BYTES - HOST_V4_BYTES
        return int.from_bytes(head[at : at + 8], "big")

    def read_raw(self, offset: int, size_max: int) -> bytes:
        """Bytes from `offset` on as they lie there: not beyond `readable_end`, not across a segment, and
        whole records where that is possible (a record above `size_max` comes in parts)."""
        if offset == self.readable_end:
            return b""
        if not self.start <= offset < self.readable_end:
            raise OffsetOutOfRangeError(offset, self.start, self.readable_end)
        segment = self.segment_at(offset)
        position = offset - segment.start
        stop = min(segment.size, self.readable_end - segment.start)
        if stop - position > size_max:
            stop = self._last_border(segment, position, position + size_max)
        if self.guard is not None and segment is not self.tail:
            self.guard(offset, segment.start + stop)
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

    def border_at(self, offset: int) -> int:
        """Start of the first record at or above `offset`, which may lie inside one; the segment's end
        where none follows in it (its blank does). Raises OffsetOutOfRangeError."""
        segment = self.segment_at(offset)
        position = offset - segment.start
        limit = min(segment.size, self.readable_end - segment.start)
        with segment.hold() as data:
            found = find_record(data, position, limit, segment.start, check_crc=False)
        if found >= 0:
            return segment.start + found
        return min(segment.start + segment.size, self.readable_end)

    def crc(self, begin: int, end: int) -> int:
        """CRC-32 of the bytes [begin, end), over segments."""
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
