"""Single record checks on raw log bytes: is there a whole record, and if not, why.

Pure functions over a buffer that starts at a segment's start; without NumPy, because raw append and
single reads use them too. Recovery, raw append and the scanner (`walk.py`) share `inspect`
(docs/formats/store-format.md, section 6.2), which is stricter in one point: the physical offset in
the record must equal its position, so that a stray copy is recognised.
"""

import re
from typing import Final, NamedTuple
from zlib import crc32

from ..format.errors import RecordFormatError
from ..format.record_layout import (
    AT,
    BLANK,
    BLANK_BYTES,
    BODY_CRC,
    BODY_LENGTH,
    CRC_MASK,
    FIXED,
    FIXED_V4,
    HOSTS_V6,
    MAGIC,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET,
    RECORD_BYTES_MIN,
    SIZE,
    STORE_TIMESTAMP,
    SYS_FLAG,
)

#: Type of the buffers: a map's memory or a view of it.
Buffer = memoryview

#: The magic of version 1 or 2; a record begins `MAGIC_AT` bytes before it.
MAGIC_PATTERN: Final = re.compile(rb"\xda\xa3\x20[\xa7\xab]")
MAGIC_AT: Final = AT[MAGIC]
MAGIC_BYTES: Final = 4


class Found(NamedTuple):
    """A record (`blank` false) or the blank at a segment's end."""

    size: int
    store_timestamp_ms: int
    properties_bytes: int
    blank: bool = False


def is_empty(data: Buffer, position: int) -> bool:
    """Return whether nothing was written here: size and magic are zero."""
    return not any(data[position : position + BLANK_BYTES])


def inspect(data: Buffer, position: int, base: int, check_crc: bool) -> Found:
    """Check the record at `position` of a whole segment that starts at offset `base`.

    Raises RecordFormatError with the failed check.
    """
    remaining = len(data) - position
    if remaining < BLANK_BYTES:
        raise RecordFormatError("fewer than 8 bytes are left in the segment.")
    size, magic = BLANK.unpack_from(data, position)
    if magic == MAGIC_BLANK:
        if size != remaining:
            raise RecordFormatError("a blank record does not reach the end of its segment.")
        return Found(size, 0, 0, blank=True)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RecordFormatError("no record begins here.")
    if not RECORD_BYTES_MIN <= size <= remaining:
        raise RecordFormatError(f"a record of {size} bytes does not fit the segment.")
    return _inspect_record(data, position, base, check_crc)


def _inspect_record(data: Buffer, position: int, base: int, check_crc: bool) -> Found:
    fixed = FIXED_V4
    values = fixed.unpack_from(data, position)
    if values[SYS_FLAG] & HOSTS_V6:
        fixed = FIXED[values[SYS_FLAG] >> 4 & 3]
        if values[SIZE] < fixed.size + 3:
            raise RecordFormatError("the record is too short for its hosts.")
        values = fixed.unpack_from(data, position)
    size, magic, crc, body_length = (
        values[SIZE],
        values[MAGIC],
        values[BODY_CRC],
        values[BODY_LENGTH],
    )
    if values[PHYSICAL_OFFSET] != base + position:
        raise RecordFormatError(f"the record here belongs at offset {values[PHYSICAL_OFFSET]}.")
    body_at = position + fixed.size
    body_end = body_at + body_length
    end = position + size
    if body_length < 0 or body_end + 3 > end:
        raise RecordFormatError("the body does not fit the record.")
    if magic == MAGIC_V1:
        topic_end = body_end + 1 + data[body_end]
    else:
        topic_end = body_end + 2 + (data[body_end] << 8 | data[body_end + 1])
    properties_bytes = end - topic_end - 2
    if properties_bytes < 0 or data[topic_end] << 8 | data[topic_end + 1] != properties_bytes:
        raise RecordFormatError("the lengths do not add up to the size of the record.")
    if check_crc and body_length and crc32(data[body_at:body_end]) & CRC_MASK != crc:
        raise RecordFormatError("the checksum of the body does not match.")
    return Found(size, values[STORE_TIMESTAMP], properties_bytes)


def find_record(data: Buffer, begin: int, end: int, base: int, check_crc: bool = True) -> int:
    """Return the position of the first whole record that begins in [begin, end), or -1.

    Searches for the magic at any alignment, as the damage may be in a length. A record must hold
    its own offset, so a magic (or a whole copied record) inside a body is not found.
    """
    begin = max(begin, 0)
    stop = min(end - 1 + MAGIC_AT + MAGIC_BYTES, len(data))
    at = begin + MAGIC_AT
    while (match := MAGIC_PATTERN.search(data, at, stop)) is not None:
        position = match.start() - MAGIC_AT
        if is_record(data, position, base, check_crc):
            return position
        at = match.start() + 1
    return -1


def is_record(data: Buffer, position: int, base: int, check_crc: bool) -> bool:
    """Return whether a whole record begins at `position`."""
    try:
        return not inspect(data, position, base, check_crc).blank
    except RecordFormatError:
        return False
