"""Marks: the record that recognizes the history of a log.

A checkpoint keeps the mark of each log: position, store time and body checksum of the log's last
record at that time. While the log has that record at that position, everything before it is what
the checkpoint knows. A log that was restored from a backup or lost its end has none or another one
there. Every store has records, so this works for those of Apache's broker and over the wire.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ...store.format.record import (
    BORN_HOST_V6,
    HEAD,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAGIC_V1,
    MAGIC_V2,
)

_STORE_TIMESTAMP_AT: Final = 56
_LONG: Final = struct.Struct(">q")
#: Bytes of a record up to its store time.
HEAD_BYTES: Final = _STORE_TIMESTAMP_AT + _LONG.size + HOST_V6_BYTES


class Mark(NamedTuple):
    """The last record of a log."""

    position: int
    stored_ms: int  # -1: the log had no record, and `position` is its end
    crc: int = 0

    @property
    def is_record(self) -> bool:
        """Whether the log had a record."""
        return self.stored_ms >= 0


def stored_ms_of(head: bytes) -> int:
    """Return the store time of the record that begins with these bytes."""
    at = _STORE_TIMESTAMP_AT
    if HEAD.unpack_from(head)[-1] & BORN_HOST_V6:
        at += HOST_V6_BYTES - HOST_V4_BYTES
    found: int = _LONG.unpack_from(head, at)[0]
    return found


def mark_of(head: bytes, position: int) -> Mark | None:
    """Return the mark of the record that begins with these bytes; None if no record does."""
    if len(head) < HEAD_BYTES:
        return None
    _, magic, crc, _, _, _, own, _ = HEAD.unpack_from(head)
    if magic not in (MAGIC_V1, MAGIC_V2) or own != position:
        return None
    return Mark(position, stored_ms_of(head), crc)


def last_mark(frames: bytes, offset: int) -> Mark | None:
    """Return the mark of the last of whole records, the first of which is at `offset`."""
    at = last = 0
    while at < len(frames):
        last, at = at, at + max(HEAD.unpack_from(frames, at)[0], HEAD_BYTES)
    return mark_of(frames[last : last + HEAD_BYTES], offset + last)
