"""Records that hold a batch: one record of the log, many messages (store format, section 2.10).

    body = size i32 | 0 i32 | 0 i32 | flag i32 | body length i32 | body | properties length i16 | properties ...

Topic, queue, times and hosts are the record's; the messages' queue offsets count up from INNER_BASE (else
from the record's own). Raises ValueError where the lengths do not fit.
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
    """The messages of a batch's (decompressed) body."""
    position = 0
    while position < len(body):
        end_of_head = position + _HEAD.size
        if end_of_head > len(body):
            raise ValueError("A message of the batch is cut off.")
        size, _magic, _crc, flag, length = _HEAD.unpack_from(body, position)
        body_end = end_of_head + length
        if length < 0 or size < _HEAD.size + 2 or position + size > len(body):
            raise ValueError(f"A message of {size} bytes does not fit the batch.")
        if body_end + _PROPERTIES_LENGTH.size > position + size:
            raise ValueError(f"A body of {length} bytes does not fit its message of the batch.")
        (properties_length,) = _PROPERTIES_LENGTH.unpack_from(body, body_end)
        properties_at = body_end + _PROPERTIES_LENGTH.size
        if properties_length < 0 or properties_at + properties_length != position + size:
            raise ValueError("The lengths of a message of the batch do not add up.")
        yield InnerMessage(flag, body[end_of_head:body_end], body[properties_at : position + size])
        position += size
