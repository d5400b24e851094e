"""Damaged records in a block of the log, for blocks without a reliable digest.

A record is checked by its structure, its position, its body's checksum (`store/scan/walk.py`), and
the checksum over the whole record if it has one (`enabledAppendPropCRC`); without that, changed
properties go unnoticed. The walk begins at the segment's start, because only there a record
boundary is certain. Runs on a thread: a GiB takes half a second.
"""

from typing import Final

from ...store.format.record import CRC_NAME, CRC_TAIL_BYTES, property_crc_ok
from ...store.scan.walk import StopReason, walk

#: Longest record and longest blank (store/format/record.py).
_REACH_BYTES: Final = 8 << 20


def damaged_records(
    data: memoryview, base: int, place: tuple[int, int], patch: bytes | None = None
) -> bool:
    """Return whether a record that touches a block of a finished segment is damaged.

    The block is [position, position + length) of the segment at offset `base`; `patch` replaces its
    bytes.
    """
    position, length = place
    record_start = _record_start(data, base, position)
    end = position + length
    view = bytearray(data[record_start : end + _REACH_BYTES])
    if patch is not None:
        view[position - record_start : end - record_start] = patch
    records = walk(
        memoryview(view), base + record_start, 0, end - record_start, "skip", check_crc=True
    )
    for columns in records:
        ends = (columns.position + columns.size).tolist()
        for at, stop in zip(columns.position.tolist(), ends, strict=True):
            touches = at + record_start < end and position < stop + record_start
            if touches and _is_changed(bytes(view[at:stop])):
                return True
    if any(lost.begin < base + end and base + position < lost.end for lost in records.lost):
        return True
    # A finished segment ends with its blank, or exactly with a record.
    return records.stop not in (StopReason.END, StopReason.BLANK)


def _is_changed(record: bytes) -> bool:
    """Return whether the record ends with a checksum of itself that does not match."""
    tail = record[-CRC_TAIL_BYTES:]
    return tail.startswith(CRC_NAME) and not property_crc_ok(record)


def _record_start(data: memoryview, base: int, position: int) -> int:
    """Return the end of the last whole record at or before `position`, or 0."""
    records = walk(data, base, 0, position, "skip")
    record_start = 0
    for columns in records:
        ends = columns.position + columns.size
        before = ends <= position
        if before.any():
            record_start = int(ends[before][-1])
    return record_start
