"""The simulated log's records: small, but found and checked in real bytes, as in the real log.

0  u16  length of the record, this header included; 0: nothing was written here
2  u8   kind (MESSAGE, EPOCH_START)
3  u8   zero
4  u32  identity: unique among messages; the epoch of an EPOCH_START
8  u32  queue offset: how many messages the log holds before it
12 u32  CRC-32 of everything else
16 body made of the identity, so that two different messages differ in every part
"""

import struct
import zlib
from dataclasses import dataclass

_HEADER = struct.Struct("<HBxIII")
HEADER_BYTES = _HEADER.size
MESSAGE, EPOCH_START = 1, 2


@dataclass(frozen=True, slots=True)
class Record:
    offset: int
    length: int
    kind: int
    identity: int
    queue_offset: int

    @property
    def end(self) -> int:
        return self.offset + self.length


def build(kind: int, identity: int, queue_offset: int, body_bytes: int) -> bytes:
    seed = struct.pack("<IB", identity, kind)
    body = (seed * (body_bytes // 5 + 1))[:body_bytes]
    head = _HEADER.pack(HEADER_BYTES + body_bytes, kind, identity, queue_offset, 0)
    return (
        _HEADER.pack(
            HEADER_BYTES + body_bytes, kind, identity, queue_offset, zlib.crc32(head + body)
        )
        + body
    )


def read_one(log: bytearray, offset: int, limit: int) -> Record | None:
    """The whole and undamaged record at `offset`, or None."""
    if offset + HEADER_BYTES > limit:
        return None
    length, kind, identity, queue_offset, crc = _HEADER.unpack_from(log, offset)
    if length < HEADER_BYTES or offset + length > limit or kind not in (MESSAGE, EPOCH_START):
        return None
    head = _HEADER.pack(length, kind, identity, queue_offset, 0)
    body = log[offset + HEADER_BYTES : offset + length]
    if zlib.crc32(body, zlib.crc32(head)) != crc:
        return None
    return Record(offset, length, kind, identity, queue_offset)


def scan(log: bytearray, start: int, limit: int) -> list[Record]:
    """All records from `start` on, up to the first that is torn, damaged or not there."""
    found = []
    offset = start
    while (record := read_one(log, offset, limit)) is not None:
        found.append(record)
        offset = record.end
    return found
