"""Records that hold a batch of messages (docs/formats/store-format.md, section 2.10).

    body = size i32 | 0 i32 | 0 i32 | flag i32 | body length i32 | body
           | properties length i16 | properties ...

Topic, queue, times and hosts are those of the record. Queue offsets of the messages count up from
INNER_BASE, or from the record's offset without it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80
WRAPPED: Final = NEED_UNWRAP | INNER_BATCH
_HEAD: Final = struct.Struct(">5i")
_PROPERTIES_LENGTH: Final = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class InnerMessage:
    """One message of a batch."""

    flag: int
    body: bytes
    properties: bytes


def unwrap(body: bytes) -> Iterator[InnerMessage]:
    """Yield the messages of a batch's decompressed body. Raises ValueError for invalid lengths."""
    position = 0
    while position < len(body):
        end_of_head = position + _HEAD.size
        if end_of_head > len(body):
            raise ValueError("A message of the batch is truncated.")
        size, _magic, _crc, flag, length = _HEAD.unpack_from(body, position)
        body_end = end_of_head + length
        if length < 0 or size < _HEAD.size + 2 or position + size > len(body):
            raise ValueError(f"A message of {size} bytes exceeds its batch.")
        if body_end + _PROPERTIES_LENGTH.size > position + size:
            raise ValueError(f"A body of {length} bytes exceeds its message in the batch.")
        (properties_length,) = _PROPERTIES_LENGTH.unpack_from(body, body_end)
        properties_at = body_end + _PROPERTIES_LENGTH.size
        if properties_length < 0 or properties_at + properties_length != position + size:
            raise ValueError("The lengths of a message in the batch are inconsistent.")
        yield InnerMessage(flag, body[end_of_head:body_end], body[properties_at : position + size])
        position += size
