"""Record codec of the commit log: pure functions between bytes and `Message`, `Record`.

`record_layout.py` has the layout. Version 2 is written exactly when the topic has more than 127
bytes, because version 1 reads its length as a signed byte. Only the body has a checksum: `decode`
also requires that all lengths add up to the total size. With `enabledAppendPropCRC` the properties
end in a checksum of everything before it (docs/formats/store-format.md, section 2.8):

    __CRC32# 0x01 <CRC-32, top bit cleared: decimal, last digit first, filled up with 0 to 10> 0x02
"""

import socket
import struct
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final
from zlib import crc32

from .errors import RecordFormatError
from .properties import (
    PROPERTIES_BYTES_MAX,
    decode_properties,
    encode_properties,
    java_hash,
    property_value,
    tags_code,
)
from .record_layout import (
    AT,
    BODY_CRC,
    BORN_HOST_V6,
    BORN_TIMESTAMP,
    CRC_MASK,
    FIXED,
    FIXED_V4,
    HEAD,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    HOSTS_AT,
    HOSTS_V6,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    STORE_HOST_V6,
    TOPIC_BYTES_MAX,
    TOPIC_BYTES_V1_MAX,
)

__all__ = [
    "PROPERTIES_BYTES_MAX",
    "Delivery",
    "Message",
    "Record",
    "checked_delivery",
    "crc_room",
    "decode",
    "decode_delivery",
    "decode_properties",
    "encode",
    "encode_properties",
    "encode_record",
    "encode_sealed",
    "java_hash",
    "pack_host",
    "property_crc_ok",
    "property_value",
    "record_size",
    "tags_code",
    "unpack_host",
]

CRC_NAME: Final = b"__CRC32#\x01"
CRC_DIGITS: Final = 10
CRC_TAIL_BYTES: Final = len(CRC_NAME) + CRC_DIGITS + 1
_LENGTH_16: Final = struct.Struct(">H")


@dataclass(slots=True)
class Message:
    """A message to append. `properties` is the encoded string, hosts are packed (`pack_host`)."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = bytes(HOST_V4_BYTES)
    store_host: bytes = bytes(HOST_V4_BYTES)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


@dataclass(slots=True)
class Record(Message):
    """A message with the fields that the store added. `version` is 1 or 2."""

    version: int = 1
    size: int = 0
    body_crc: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    store_timestamp_ms: int = 0
    _decoded: dict[str, str] | None = field(default=None, repr=False, compare=False)

    @property
    def properties_dict(self) -> dict[str, str]:
        if self._decoded is None:
            self._decoded = decode_properties(self.properties)
        return self._decoded


@dataclass(slots=True)
class Delivery:
    """The fields of a delivery to a consumer; topic and checksum are not checked."""

    body: bytes
    properties: bytes
    queue_id: int
    queue_offset: int
    flag: int
    sys_flag: int
    body_crc: int
    born_timestamp_ms: int
    born_host: bytes
    store_timestamp_ms: int
    store_host: bytes
    reconsume_times: int
    #: Cache of the decoded properties.
    decoded: dict[bytes, bytes] | None = field(default=None, repr=False, compare=False)
    prepared_transaction_offset: int = 0


def pack_host(host: str, port: int) -> bytes:
    """Return address bytes and i32 port: 8 bytes for IPv4, 20 for IPv6."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.inet_pton(family, host) + port.to_bytes(4, "big", signed=True)


def unpack_host(data: bytes) -> tuple[str, int]:
    family = socket.AF_INET if len(data) == HOST_V4_BYTES else socket.AF_INET6
    return socket.inet_ntop(family, data[:-4]), int.from_bytes(data[-4:], "big", signed=True)


@lru_cache(maxsize=4096)
def topic_field(topic: str) -> tuple[int, bytes]:
    """Return magic and length-prefixed topic. Raises ValueError for a topic that is too long or
    empty."""
    data = topic.encode()
    if not data or len(data) > TOPIC_BYTES_MAX:
        raise ValueError(f"A topic has 1 to {TOPIC_BYTES_MAX} bytes; this one has {len(data)}.")
    if len(data) <= TOPIC_BYTES_V1_MAX:
        return MAGIC_V1, bytes((len(data),)) + data
    return MAGIC_V2, _LENGTH_16.pack(len(data)) + data


def host_flags(sys_flag: int, born_host: bytes, store_host: bytes) -> int:
    """Return the system flag with bits 4 and 5 set from the hosts. Raises ValueError for other
    lengths."""
    sys_flag &= ~HOSTS_V6
    for host, bit in ((born_host, BORN_HOST_V6), (store_host, STORE_HOST_V6)):
        if len(host) == HOST_V6_BYTES:
            sys_flag |= bit
        elif len(host) != HOST_V4_BYTES:
            raise ValueError(f"A packed host has 8 or 20 bytes; this one has {len(host)}.")
    return sys_flag


def record_size(message: Message) -> int:
    """Return the total size that `encode` will produce."""
    hosts = len(message.born_host) + len(message.store_host)
    topic = topic_field(message.topic)[1]
    return (
        FIXED_V4.size
        - 2 * HOST_V4_BYTES
        + hosts
        + len(message.body)
        + len(topic)
        + 2
        + len(message.properties)
    )


def encode(
    message: Message, queue_offset: int, physical_offset: int, store_timestamp_ms: int
) -> bytes:
    """Encode one whole record. Raises ValueError or struct.error for a field out of range."""
    magic, topic = topic_field(message.topic)
    body = message.body
    properties = message.properties
    born_host = message.born_host
    store_host = message.store_host
    sys_flag = message.sys_flag
    fixed = FIXED_V4
    if len(born_host) != HOST_V4_BYTES or len(store_host) != HOST_V4_BYTES or sys_flag & HOSTS_V6:
        sys_flag = host_flags(sys_flag, born_host, store_host)
        fixed = FIXED[sys_flag >> 4 & 3]
    head = fixed.pack(
        fixed.size + len(body) + len(topic) + 2 + len(properties),
        magic,
        crc32(body) & CRC_MASK,
        message.queue_id,
        message.flag,
        queue_offset,
        physical_offset,
        sys_flag,
        message.born_timestamp_ms,
        born_host,
        store_timestamp_ms,
        store_host,
        message.reconsume_times,
        message.prepared_transaction_offset,
        len(body),
    )
    return b"".join((head, body, topic, len(properties).to_bytes(2, "big"), properties))


def crc_room(properties: bytes) -> bytes:
    """Return the properties with space for the checksum at the end; an existing checksum is
    removed."""
    if CRC_NAME in properties:
        pairs = properties.split(b"\x02")
        properties = b"\x02".join(pair for pair in pairs if not pair.startswith(CRC_NAME))
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    return b"%b%b0000000000\x02" % (properties, CRC_NAME)


def encode_sealed(
    message: Message, queue_offset: int, physical_offset: int, store_timestamp_ms: int
) -> bytes:
    """Encode one whole record whose properties, made by `crc_room`, end in the checksum of the
    rest."""
    data = encode(message, queue_offset, physical_offset, store_timestamp_ms)
    return data[: -CRC_DIGITS - 1] + _digits(data) + b"\x02"


def _digits(record: bytes | memoryview) -> bytes:
    value = crc32(record[:-CRC_TAIL_BYTES]) & CRC_MASK
    return str(value).encode()[::-1].ljust(CRC_DIGITS, b"0")


def property_crc_ok(record: bytes | memoryview) -> bool:
    """Return whether the record ends in its checksum and the checksum matches."""
    tail = bytes(record[-CRC_TAIL_BYTES:])
    return tail == b"%b%b\x02" % (CRC_NAME, _digits(record))


def with_crc_room(message: Message) -> Message:
    """Return the message as it is appended with `enabledAppendPropCRC`."""
    return replace(message, properties=crc_room(message.properties))


def encode_record(record: Record) -> bytes:
    """Return the bytes that `record` was decoded from."""
    data = encode(record, record.queue_offset, record.physical_offset, record.store_timestamp_ms)
    topic = record.topic.encode()
    if record.version == 1 or len(topic) > TOPIC_BYTES_V1_MAX:
        return data
    # Version 2 with a short topic, which no broker writes: its length has two bytes.
    at = FIXED[record.sys_flag >> 4 & 3].size + len(record.body)
    head = record.size.to_bytes(4, "big") + MAGIC_V2.to_bytes(4, "big", signed=True)
    return head + data[AT[BODY_CRC] : at] + b"\x00" + data[at:]


def without_body(data: bytes) -> bytes:
    """Return a whole record with zeros in place of its body, and the checksums of that.

    The body may be damaged. Raises RecordFormatError.
    """
    record = decode(data, check_crc=False)
    blank = encode_record(replace(record, body=bytes(len(record.body))))
    if property_crc_ok(data):
        return blank[: -CRC_DIGITS - 1] + _digits(blank) + b"\x02"
    return blank


def decode(data: bytes | memoryview, check_crc: bool = True) -> Record:
    """Decode the record at the start of `data`, which may be longer.

    Raises RecordFormatError when magic, lengths or the checksum of the body do not fit.
    """
    if len(data) < RECORD_BYTES_MIN:
        raise RecordFormatError(f"{len(data)} bytes are too few for a record.")
    size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag = HEAD.unpack_from(
        data
    )
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RecordFormatError(f"{magic & 0xFFFFFFFF:#010x} is not the magic of a record.")
    if size < RECORD_BYTES_MIN or size > len(data):
        raise RecordFormatError(f"A record of {size} bytes does not fit {len(data)} bytes.")
    fixed = FIXED[sys_flag >> 4 & 3]
    if size < fixed.size + 3:
        raise RecordFormatError(f"{size} bytes are too few for a record with these hosts.")
    born_ms, born_host, store_ms, store_host, reconsumed, prepared, body_length = fixed.unpack_from(
        data
    )[BORN_TIMESTAMP:]
    body_end = fixed.size + body_length
    topic_at = body_end + (1 if magic == MAGIC_V1 else 2)
    if body_length < 0 or topic_at > size:
        raise RecordFormatError(f"A body of {body_length} bytes does not fit the record.")
    topic_end = topic_at + int.from_bytes(data[body_end:topic_at], "big")
    properties_at = topic_end + 2
    if properties_at > size:
        raise RecordFormatError("The topic does not fit the record.")
    if properties_at + int.from_bytes(data[topic_end:properties_at], "big") != size:
        raise RecordFormatError("The lengths do not add up to the size of the record.")
    body = bytes(data[fixed.size : body_end])
    if check_crc and body_length and crc32(body) & CRC_MASK != crc:
        raise RecordFormatError("The checksum of the body does not match.")
    try:
        topic = str(data[topic_at:topic_end], "utf-8")
    except UnicodeDecodeError as error:
        raise RecordFormatError("The topic is not UTF-8.") from error
    return Record(
        topic,
        queue_id,
        body,
        bytes(data[properties_at:size]),
        flag,
        sys_flag,
        born_ms,
        born_host,
        store_host,
        reconsumed,
        prepared,
        version=1 if magic == MAGIC_V1 else 2,
        size=size,
        body_crc=crc,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        store_timestamp_ms=store_ms,
    )


def decode_delivery(data: bytes) -> Delivery:
    """Return the fields of a delivery from a whole record (`StoredRecord`)."""
    fixed = FIXED[data[HOSTS_AT] >> 4 & 3]
    (
        _size,
        magic,
        crc,
        queue_id,
        flag,
        queue_offset,
        _physical_offset,
        sys_flag,
        born_ms,
        born_host,
        store_ms,
        store_host,
        reconsumed,
        prepared,
        body_length,
    ) = fixed.unpack_from(data)
    body_at = fixed.size
    topic_at = body_at + body_length
    if magic == MAGIC_V1:
        properties_at = topic_at + data[topic_at] + 3
    else:
        properties_at = topic_at + int.from_bytes(data[topic_at : topic_at + 2], "big") + 4
    return Delivery(
        data[body_at:topic_at],
        data[properties_at:],
        queue_id,
        queue_offset,
        flag,
        sys_flag,
        crc,
        born_ms,
        born_host,
        store_ms,
        store_host,
        reconsumed,
        prepared_transaction_offset=prepared,
    )


def checked_delivery(data: bytes) -> Delivery:
    """Return the same for a record that was not read through a queue, and so was not checked.

    Raises RecordFormatError when lengths or checksums do not fit.
    """
    try:
        delivery = decode_delivery(data)
    except (struct.error, IndexError) as error:
        raise RecordFormatError("The lengths do not fit the record.") from error
    length = len(delivery.properties)
    if int.from_bytes(data[-length - 2 : len(data) - length], "big") != length:
        raise RecordFormatError("The lengths do not add up to the size of the record.")
    if delivery.body and crc32(delivery.body) & CRC_MASK != delivery.body_crc:
        raise RecordFormatError("The checksum of the body does not match.")
    if data[-CRC_TAIL_BYTES:].startswith(CRC_NAME) and not property_crc_ok(data):
        raise RecordFormatError("The checksum of the record does not match.")
    return delivery
