"""A commit log in memory that implements `ReplicatedLog`: no files, no flush threads.

A record is a length (4 bytes, itself included) and its body; the rest of a segment that a record
does not fit into is a blank: a length with the highest bit set. Flushing is a call of the test.
"""

import struct
import zlib
from bisect import bisect_right

from cometmq.store.format.errors import OffsetOutOfRangeError

_LENGTH = struct.Struct(">I")
_BLANK_BIT = 1 << 31


class MemoryLog:
    def __init__(self, segment_size: int = 1 << 20) -> None:
        self.segment_size = segment_size
        self.log_start = 0
        self.log_end = 0
        self.flushed_offset = 0
        self.data = bytearray()
        self._borders: list[int] = []  #: ends of records and blanks

    @property
    def received_end(self) -> int:
        return self.log_start + len(self.data)

    def append(self, body: bytes) -> int:
        record = _LENGTH.pack(len(body) + _LENGTH.size) + body
        assert len(record) + _LENGTH.size <= self.segment_size
        left = self.segment_size - self.log_end % self.segment_size
        if left < len(record) + _LENGTH.size:
            self.data += _LENGTH.pack(left | _BLANK_BIT).ljust(left, b"\0")
        self.data += record
        self._find_records()
        return self.log_end

    def flush(self) -> None:
        self.flushed_offset = self.log_end

    def flush_soon(self) -> None:
        self.flush()

    def append_raw(self, offset: int, data: bytes) -> int:
        if not self.data and offset % self.segment_size == 0:
            self.log_start = self.log_end = self.flushed_offset = offset
        if offset == self.log_end:
            del self.data[self.log_end - self.log_start :]
        if offset != self.received_end:
            raise OffsetOutOfRangeError(offset, self.received_end, self.received_end)
        self.data += data
        self._find_records()
        return self.log_end

    def _find_records(self) -> None:
        while self.log_end + _LENGTH.size <= self.received_end:
            (length,) = _LENGTH.unpack_from(self.data, self.log_end - self.log_start)
            end = self.log_end + int(length & ~_BLANK_BIT)
            if end > self.received_end:
                return
            self.log_end = end
            self._borders.append(end)

    def read_log(self, offset: int, max_bytes: int) -> bytes:
        if not self.log_start <= offset <= self.log_end:
            raise OffsetOutOfRangeError(offset, self.log_start, self.log_end)
        segment_end = (offset // self.segment_size + 1) * self.segment_size
        limit = min(offset + max_bytes, self.log_end, segment_end)
        index = bisect_right(self._borders, limit)
        border = self._borders[index - 1] if index else offset
        end = border if border > offset else limit
        return bytes(self.data[offset - self.log_start : end - self.log_start])

    def log_crc(self, start: int, end: int) -> int:
        if not self.log_start <= start <= end <= self.log_end:
            raise OffsetOutOfRangeError(start, self.log_start, self.log_end)
        return zlib.crc32(self.data[start - self.log_start : end - self.log_start])
