"""Protobuf wire format: hand-written encoders for the most frequent responses.

SendMessage, ReceiveMessage and AckMessage respond with ready bytes: joining prepared pieces is
several times cheaper than filling message objects. Plain protobuf (varints, length-delimited
fields); tests parse every hand-written response with the generated classes and compare.
"""

from __future__ import annotations

from functools import lru_cache

from ...proto import v2
from ...proto.varint import encode_varint

_TABLE_SIZE = 1 << 14


TIMESTAMP_MIN_MS = -62_135_596_800_000
#: The bounds of google.protobuf.Timestamp: the years 1 to 9999.
TIMESTAMP_MAX_MS = 253_402_300_799_999
#: A negative int64 is encoded as its two's complement, in ten bytes.
INT64_MASK = (1 << 64) - 1


def _pairs(second: int) -> tuple[bytes, ...]:
    """Return the varints of 0..16383 in two bytes each; `second` is added to the second one.

    Slices of one string: the tables cost a start two milliseconds instead of twenty.
    """
    table = bytearray(2 * _TABLE_SIZE)
    table[0::2] = bytes(range(0x80, 0x100)) * 0x80
    table[1::2] = b"".join(bytes((second + high,)) * 0x80 for high in range(0x80))
    whole = bytes(table)
    return tuple(whole[at : at + 2] for at in range(0, len(whole), 2))


#: Varints of 0..16383: nearly all lengths and small numbers.
SMALL = (*(bytes((number,)) for number in range(0x80)), *_pairs(0)[0x80:])

#: The first two bytes of a longer varint, by its low 14 bits.
_LOW = _pairs(0x80)


def varint(number: int) -> bytes:
    """Encode a non-negative number as a varint."""
    if number < _TABLE_SIZE:
        return SMALL[number]
    if number < _TABLE_SIZE * _TABLE_SIZE:
        return _LOW[number & _TABLE_SIZE - 1] + SMALL[number >> 14]
    return encode_varint(number)


def field(tag: bytes, data: bytes) -> bytes:
    """Encode a length-delimited field; `tag` is its key byte (or bytes)."""
    size = len(data)
    return tag + (SMALL[size] if size < _TABLE_SIZE else encode_varint(size)) + data


@lru_cache(maxsize=4096)
def timestamp(time_ms: int) -> bytes:
    """Encode the content of a google.protobuf.Timestamp (or of a non-negative Duration).

    A time outside the bounds of a Timestamp becomes the nearest bound: clients raise for others.
    """
    seconds, ms = divmod(min(max(time_ms, TIMESTAMP_MIN_MS), TIMESTAMP_MAX_MS), 1000)
    out = b"\x08" + varint(seconds & INT64_MASK) if seconds else b""
    return out + b"\x10" + encode_varint(ms * 1_000_000) if ms else out


@lru_cache(maxsize=256)
def status(code: int, message: str) -> bytes:
    """Encode the content of a Status."""
    return v2.Status(code=v2.Code.ValueType(code), message=message).SerializeToString()


STATUS_OK = status(v2.OK, "OK")

_RECEIPT_HEAD = field(b"\x0a", STATUS_OK) + b"\x12"
#: The size of a receipt without its two names and its number: the head and two keys.
_RECEIPT_BYTES = len(_RECEIPT_HEAD) + 2


def receipt(message_id: bytes, queue_offset: int) -> tuple[bytes, ...]:
    """Encode the receipt of a stored message in a SendMessage response, in pieces."""
    named = varint(len(message_id)) + message_id
    number = varint(queue_offset)
    # Ordinary receipts carry the message id as transaction id too, as in the reference.
    size = varint(_RECEIPT_BYTES + 2 * len(named) + len(number))
    return b"\x12", size, _RECEIPT_HEAD, named, b"\x1a", named, b"\x20", number
