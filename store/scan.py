"""Looking at raw log bytes: is there a record here, and is there one anywhere further on.

Pure functions over a buffer that starts at a segment's start. `inspect` is the judgement that
recovery and raw append share (store format, section 6.2), stricter in one point: the physical offset
in the record must be the place where it lies, so that a stray copy is recognised.
"""

from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from .errors import RecordFormatError
from .record import (
    BLANK,
    BLANK_BYTES,
    CRC_MASK,
    FIXED,
    FIXED_V4,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
)

#: What the memory of a map or a view of it is to these functions.
Buffer = memoryview

# Places in the unpacked fixed part of a record (see record.py).
_PHYSICAL_OFFSET, _SYS_FLAG, _STORE_TIMESTAMP, _BODY_LENGTH = 6, 7, 10, 14
_MAGIC_BYTES = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")
_FIND_CHUNK_BYTES = 1 << 20


class Found(NamedTuple):
    """A record (`blank` false) or the blank at a segment's end."""

    size: int
    store_timestamp_ms: int
    properties_bytes: int
    blank: bool = False


def is_empty(data: Buffer, position: int) -> bool:
    """Nothing was ever written here: size and magic are zero."""
    return not any(data[position : position + BLANK_BYTES])


def inspect(data: Buffer, position: int, base: int, check_crc: bool) -> Found:
    """Judge the record at `position` of a whole segment that starts at offset `base`.

    Raises RecordFormatError with the check that failed.
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
    if values[_SYS_FLAG] & 0x30:
        fixed = FIXED[values[_SYS_FLAG] >> 4 & 3]
        if values[0] < fixed.size + 3:
            raise RecordFormatError("the record is too short for its hosts.")
        values = fixed.unpack_from(data, position)
    size, magic, crc, body_length = values[0], values[1], values[2], values[_BODY_LENGTH]
    if values[_PHYSICAL_OFFSET] != base + position:
        raise RecordFormatError(f"the record here belongs at offset {values[_PHYSICAL_OFFSET]}.")
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
    return Found(size, values[_STORE_TIMESTAMP], properties_bytes)


@dataclass(slots=True)
class Steps:
    """How far `step_over` came, and its last two records (positions; -1: there is none)."""

    position: int
    records: int = 0
    last: int = -1
    before_last: int = -1


def step_over(data: Buffer, position: int, base: int, check_crc: bool) -> Steps:
    """Step over records of the usual form (version 1, IPv4) for as long as `inspect` would find
    nothing wrong with them. The same judgement in one loop, because recovery waits for it."""
    steps = Steps(position)
    unpack = FIXED_V4.unpack_from
    fixed = FIXED_V4.size
    limit = len(data)
    while position + RECORD_BYTES_MIN <= limit:
        values = unpack(data, position)
        body_at = position + fixed
        body_end = body_at + values[_BODY_LENGTH]
        stop = position + values[0]
        if (
            values[1] != MAGIC_V1
            or values[_PHYSICAL_OFFSET] != base + position
            or values[_SYS_FLAG] & 0x30
            or not body_at <= body_end <= stop - 3
            or stop > limit
        ):
            break
        topic_end = body_end + 1 + data[body_end]
        if topic_end + 2 > stop:
            break
        if topic_end + 2 + (data[topic_end] << 8 | data[topic_end + 1]) != stop:
            break
        if (
            check_crc
            and body_end > body_at
            and crc32(data[body_at:body_end]) & CRC_MASK != values[2]
        ):
            break
        steps.before_last = steps.last
        steps.last = position
        steps.records += 1
        position = stop
    steps.position = position
    return steps


def find_record(data: Buffer, begin: int, end: int, base: int) -> int:
    """Position of the first whole, checked record that begins in [begin, end), or -1.

    Searches for the magic at any alignment: what was damaged may be a length.
    """
    for chunk in range(begin, end, _FIND_CHUNK_BYTES):
        stop = min(chunk + _FIND_CHUNK_BYTES, end)
        window = bytes(data[chunk : stop + 7])  # a magic may stand across the border
        candidates = sorted(p for magic in _MAGIC_BYTES for p in _positions(window, magic))
        for candidate in candidates:
            position = chunk + candidate - 4
            if begin <= position < end and _is_record(data, position, base):
                return position
    return -1


def _positions(window: bytes, magic: bytes) -> list[int]:
    found = []
    at = window.find(magic)
    while at >= 0:
        found.append(at)
        at = window.find(magic, at + 1)
    return found


def _is_record(data: Buffer, position: int, base: int) -> bool:
    try:
        return not inspect(data, position, base, check_crc=True).blank
    except RecordFormatError:
        return False
