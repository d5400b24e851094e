"""Sealed fields: a copy and a checksum behind the fixed fields of a checkpoint file.

    0      n              2n         2n + 4
    | fields | copy of the fields | CRC-32 of the copy | zeros ...

Apache's broker writes the fields and leaves the rest of the file. After it has run, the fields
differ from the copy, and their counters and times have grown; damaged fields differ in another way,
and the copy holds the right ones. Without a seal (a file of Apache's or of an older version) the
fields are used as they are.
"""

import enum
import struct
import zlib
from collections.abc import Callable
from typing import Final

_CRC: Final = struct.Struct(">I")


class SealState(enum.Enum):
    """What the seal shows about the fields."""

    WHOLE = "the fields match their copy"
    NONE = "the file has no seal"
    OVERWRITTEN = "another writer has changed the fields since"
    DAMAGED = "the fields are damaged; the copy is not"
    LOST = "the copy does not match its checksum"


def seal(fields: bytes) -> bytes:
    """Return the fields with their seal."""
    return fields + fields + _CRC.pack(zlib.crc32(fields))


def sealed_bytes(fields_bytes: int) -> int:
    """Return the size of the fields and their seal."""
    return 2 * fields_bytes + _CRC.size


def unseal(
    data: bytes, fields_bytes: int, follows: Callable[[bytes, bytes], bool]
) -> tuple[bytes, SealState]:
    """Return the fields to use and what the seal shows; b"" when no fields can be used.

    `follows(fields, copy)` returns whether another writer may have written these fields after the
    copy.
    """
    data = data.ljust(sealed_bytes(fields_bytes), b"\0")
    fields = data[:fields_bytes]
    copy = data[fields_bytes : 2 * fields_bytes]
    crc = data[2 * fields_bytes : sealed_bytes(fields_bytes)]
    if not any(copy) and not any(crc):
        return fields, SealState.NONE
    if crc != _CRC.pack(zlib.crc32(copy)):
        return b"", SealState.LOST
    if fields == copy:
        return fields, SealState.WHOLE
    if follows(fields, copy):
        return fields, SealState.OVERWRITTEN
    return copy, SealState.DAMAGED
