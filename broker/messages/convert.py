"""Conversion of a stored record to the wire message, as ready bytes.

Source: docs/formats/grpc-api.md, sections 10.1-10.3 (fields, types, digests) and pitfalls 42-48. A
compressed body is decompressed if possible; the digest is the upper-case MD5 of the body as sent;
user properties are the user's and `DELIVERED_PROPERTIES`; `delivery_attempt` is at least 1. The
bytes are those of `ReceiveMessageResponse{message}` and of `PullMessageResponse{message}`, which
has the same field number. Encoded by hand (`wire.py`), because this runs for every delivered
message.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import md5
from typing import TYPE_CHECKING

from msgspec import Struct

from ...nodes.addresses import host_port
from ...proto import v2
from ...proto.route_queues import check_repeated
from ...store.format.properties import DELAY_LEVELS_MS, decode_properties
from ...store.format.property_names import DELIVERED_PROPERTIES, FORBIDDEN_PROPERTIES
from ...store.format.record import Delivery, unpack_host
from .decompress import decompressed
from .wire import INT64_MASK, SMALL, field, timestamp, varint

if TYPE_CHECKING:
    from ...store.format.record import Record

SYS_COMPRESSED = 0x1
SYS_COMPRESSION_MASK = 0x700

#: Properties that clients do not receive, encoded.
HIDDEN_PROPERTIES = frozenset(name.encode() for name in FORBIDDEN_PROPERTIES - DELIVERED_PROPERTIES)
_GZIP_FIELD = b"\x28\x02"
_IDENTITY_FIELD = b"\x28\x01"
#: body_digest (36 bytes): type MD5, checksum of 32 characters.
_MD5_PREFIX = b"\x22\x24\x08\x02\x12\x20"
_KNOWN_TYPES = (
    (b"__SHARDINGKEY", b"\x30" + varint(v2.FIFO)),
    (b"_SYS_MSG_PRIORITY_", b"\x30" + varint(v2.PRIORITY)),
    (b"__LITE_TOPIC", b"\x30" + varint(v2.LITE)),
)
_NORMAL_FIELD = b"\x30" + varint(v2.NORMAL)
_DELAY_FIELD = b"\x30" + varint(v2.DELAY)
_TRANSACTION_FIELD = b"\x30" + varint(v2.TRANSACTION)
_NO_LEVEL = (b"", b"0", b"-1")
#: Digits of the largest 64-bit integer.
_DIGITS_MAX = 19
_INT32_MAX = (1 << 31) - 1


class Receipt(Struct):
    """The fields that a delivery adds to the stored message."""

    handle: bytes
    invisible_ms: int
    #: 1 for the first delivery.
    attempt: int


def topic_field(topic: v2.Resource) -> bytes:
    """Encode field 1 of a message: the topic as the client wrote it, with its namespace.

    Raises WireError if it is too long to be repeated in every message.
    """
    check_repeated(topic)
    return field(b"\x0a", topic.SerializeToString())


def message_item(topic: bytes, record: Delivery, receipt: Receipt | None) -> bytes:
    """Encode the stream item of a message; `topic` is the result of `topic_field`."""
    return sized_item(topic, record, receipt)[0]


def sized_item(topic: bytes, record: Delivery, receipt: Receipt | None) -> tuple[bytes, int]:
    """Return the stream item of a message, and the bytes by which it fills an answer.

    These are at least the decompressed bytes, also of a body that is delivered as stored because
    it is too large or damaged: decompression takes time.
    """
    properties = record.decoded or properties_of(record.properties)
    body, encoding, work = record.body, _IDENTITY_FIELD, 0
    if record.sys_flag & SYS_COMPRESSED:
        found, work = decompressed(body)
        if found is None:
            encoding = _GZIP_FIELD
        else:
            body = found
    system = _system_properties(record, properties, body, encoding, receipt)
    users = b"".join(
        [
            field(b"\x12", field(b"\x0a", name) + field(b"\x12", value))
            for name, value in properties.items()
            if name not in HIDDEN_PROPERTIES
        ]
    )
    content = b"".join(
        (topic, users, b"\x1a", varint(len(system)), system, b"\x22", varint(len(body)), body)
    )
    item = b"\x12" + varint(len(content)) + content
    return item, max(work, len(item))


def delivery_of(record: Record, queue_id: int) -> Delivery:
    """Return a record as a consumer of the queue receives it."""
    return Delivery(
        record.body,
        record.properties,
        queue_id,
        record.queue_offset,
        record.flag,
        record.sys_flag,
        record.body_crc,
        record.born_timestamp_ms,
        record.born_host,
        record.store_timestamp_ms,
        record.store_host,
        record.reconsume_times,
    )


def decoded_properties(record: Delivery) -> dict[bytes, bytes]:
    """Return the record's properties, decoded at the first call."""
    found = record.decoded
    if found is None:
        found = record.decoded = properties_of(record.properties)
    return found


def properties_of(data: bytes) -> dict[bytes, bytes]:
    """Return names and values, still encoded; an empty value of a user property is kept.

    Malformed UTF-8 is replaced: clients cannot parse a message that holds it.
    """
    if not data.isascii():
        data = data.decode("utf-8", "replace").encode()
    pairs = [pair.split(b"\x01", 1) for pair in data.split(b"\x02")]
    if pairs[-1] == [b""]:
        del pairs[-1]
    try:
        return dict(pairs)  # a pair without 0x01 raises
    except ValueError:
        # Not written by CometMQ or Apache: decode what is decodable.
        return {name.encode(): value.encode() for name, value in decode_properties(data).items()}


def _system_properties(
    record: Delivery,
    properties: dict[bytes, bytes],
    body: bytes,
    encoding: bytes,
    receipt: Receipt | None,
) -> bytes:
    get = properties.get
    parts = []
    tag = get(b"TAGS")
    if tag:
        parts.append(field(b"\x0a", tag))
    keys = get(b"KEYS")
    if keys:
        parts += [field(b"\x12", key) for key in keys.split(b" ") if key]
    born = timestamp(record.born_timestamp_ms)
    stored = timestamp(record.store_timestamp_ms)
    parts += (
        field(b"\x1a", get(b"UNIQ_KEY", b"")),
        _MD5_PREFIX,
        md5(body, usedforsecurity=False).hexdigest().upper().encode(),
        encoding,
        _type_field(properties),
        b"\x3a",
        SMALL[len(born)],
        born,
        field(b"\x42", get(b"__BORNHOST") or _host(record.born_host)),
        b"\x4a",
        SMALL[len(stored)],
        stored,
        _store_host_field(record.store_host),
    )
    deliver = get(b"TIMER_DELIVER_MS")
    deliver_ms = _integer(deliver) if deliver else None
    if deliver_ms is not None:
        parts.append(field(b"\x5a", timestamp(deliver_ms)))
    elif get(b"DELAY", b"") not in _NO_LEVEL:
        parts.append(field(b"\x5a", timestamp(_level_time_ms(record, properties))))
    if receipt is not None:
        parts.append(field(b"\x62", receipt.handle))
    if record.queue_id:
        parts.append(b"\x68" + varint(record.queue_id & INT64_MASK))
    parts.append(b"\x70" + varint(record.queue_offset & INT64_MASK))
    attempt = record.reconsume_times
    if receipt is not None:
        parts.append(_invisible_field(receipt.invisible_ms))
        attempt += receipt.attempt
    parts.append(b"\x80\x01" + varint(max(1, attempt)))
    _append_rare(parts, properties)
    return b"".join(parts)


def _append_rare(parts: list[bytes], properties: dict[bytes, bytes]) -> None:
    """Append fields 17 and up; most messages have none of them."""
    get = properties.get
    group = get(b"__SHARDINGKEY")
    if group:
        parts.append(field(b"\x8a\x01", group))
    trace = get(b"TRACE_CONTEXT")
    if trace:
        parts.append(field(b"\x92\x01", trace))
    origin = get(b"DLQ_ORIGIN_TOPIC")
    if origin:
        message_id = get(b"DLQ_ORIGIN_MESSAGE_ID", b"")
        parts.append(field(b"\xa2\x01", field(b"\x0a", origin) + field(b"\x12", message_id)))
    lite = get(b"__LITE_TOPIC")
    if lite:
        parts.append(field(b"\xaa\x01", lite))
    priority = _integer(get(b"_SYS_MSG_PRIORITY_", b""))
    if priority is not None and 0 <= priority <= _INT32_MAX:
        parts.append(b"\xb0\x01" + varint(priority))


def _type_field(properties: dict[bytes, bytes]) -> bytes:
    """Encode the message type given by the stored properties (docs/formats/grpc-api.md, section
    10.2). A committed message keeps TRAN_MSG.
    """
    if properties.get(b"TRAN_MSG") == b"true":
        return _TRANSACTION_FIELD
    if b"TIMER_DELIVER_MS" in properties or b"TIMER_DELAY_SEC" in properties:
        return _DELAY_FIELD
    if properties.get(b"DELAY", b"") not in _NO_LEVEL:
        return _DELAY_FIELD
    for name, type_field in _KNOWN_TYPES:
        if name in properties:
            return type_field
    return _NORMAL_FIELD


def _integer(text: bytes) -> int | None:
    """Return the integer in a property; None for other text and for more than 19 digits."""
    digits = text.removeprefix(b"-")
    return int(text) if digits.isdigit() and len(digits) <= _DIGITS_MAX else None


def _level_time_ms(record: Delivery, properties: dict[bytes, bytes]) -> int:
    level = _integer(properties[b"DELAY"])
    if level is None or level < 0:
        return record.store_timestamp_ms
    index = min(max(level, 1), len(DELAY_LEVELS_MS)) - 1
    return record.born_timestamp_ms + DELAY_LEVELS_MS[index]


@lru_cache(maxsize=4096)
def _host(packed: bytes) -> bytes:
    return unpack_host(packed)[0].encode()


@lru_cache(maxsize=64)
def _store_host_field(packed: bytes) -> bytes:
    host, port = unpack_host(packed)
    return field(b"\x52", host_port(host, port).encode())


@lru_cache(maxsize=1024)
def _invisible_field(invisible_ms: int) -> bytes:
    return field(b"\x7a", timestamp(invisible_ms))
