"""The record codec against the worked examples of the store format (section 15) and against
itself."""

from __future__ import annotations

import contextlib
import struct
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.store.format.errors import RecordFormatError
from cometmq.store.format.record import (
    Message,
    decode,
    decode_delivery,
    encode,
    encode_properties,
    encode_record,
    pack_host,
    record_size,
    unpack_host,
)

BORN = pack_host("10.1.2.3", 54321)
STORED = pack_host("127.0.0.1", 10911)
BORN_MS = 1_700_000_000_000
STORE_MS = 1_700_000_000_123

E1 = bytes.fromhex(
    "0000008b daa320a7 69c865ed 00000001 00000000 0000000000000000 0000000000000000 00000000"
    "0000018bcfe56800 0a0102030000d431 0000018bcfe5687b 7f00000100002a9f 00000000 0000000000000000"
    "0000000e 48656c6c6f20526f636b65744d51 09 546f70696354657374"
    "0019 4b455953014b455931204b4559320254414753015461674102"
)
E3 = bytes.fromhex(
    "0000007c daa320a7 77065916 00000001 00000000 0000000000000001 000000000000008b 00000010"
    "0000018bcfe56800 20010db8000000000000000000000001 0000d431 0000018bcfe5687b 7f00000100002a9f"
    "00000000 0000000000000000 00000002 7636 09 546f70696354657374 000a 54414753015461674102"
)


def test_version_1_record_is_as_in_the_format() -> None:
    properties = encode_properties({"KEYS": "KEY1 KEY2", "TAGS": "TagA"})
    message = Message(
        "TopicTest",
        1,
        b"Hello RocketMQ",
        properties,
        born_timestamp_ms=BORN_MS,
        born_host=BORN,
        store_host=STORED,
    )
    assert encode(message, 0, 0, STORE_MS) == E1
    assert record_size(message) == len(E1) == 139


def test_ipv6_born_host_is_as_in_the_format() -> None:
    message = Message(
        "TopicTest",
        1,
        b"v6",
        encode_properties({"TAGS": "TagA"}),
        born_timestamp_ms=BORN_MS,
        born_host=pack_host("2001:db8::1", 54321),
        store_host=STORED,
    )
    assert encode(message, 1, 139, STORE_MS) == E3
    assert decode(E3).born_host == message.born_host


def test_version_2_is_written_for_topics_above_127_bytes() -> None:
    topic = "%RETRY%" + "g" * 123
    data = encode(Message(topic, 0, b"v2"), 0, 263, STORE_MS)
    assert data[:12].hex() == "000000e0daa320ab706b9d0f"
    assert data[84:].hex() == "0000000276320082" + topic.encode().hex() + "0000"
    record = decode(data)
    assert (record.version, record.topic) == (2, topic)
    assert decode(encode(Message(topic[:127], 0, b""), 0, 0, 0)).version == 1


def test_hosts() -> None:
    for host, port, size in (("10.1.2.3", 54321, 8), ("2001:db8::1", 65535, 20), ("::1", 0, 20)):
        data = pack_host(host, port)
        assert len(data) == size
        assert unpack_host(data) == (host, port)


hosts = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
i32 = st.integers(-(1 << 31), (1 << 31) - 1)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
messages = st.builds(
    Message,
    topic=st.one_of(
        st.text(min_size=1, max_size=60),
        st.integers(128, 255).map(lambda n: "%RETRY%".ljust(n, "g")),
    ),
    queue_id=i32,
    body=st.binary(max_size=300),
    properties=st.binary(max_size=300),
    flag=i32,
    sys_flag=i32,
    born_timestamp_ms=i64,
    born_host=hosts,
    store_host=hosts,
    reconsume_times=i32,
    prepared_transaction_offset=i64,
)


def test_a_short_topic_of_version_2_keeps_its_bytes() -> None:
    first = encode(Message("T", 0, b"body", b"p", born_host=bytes(8), store_host=bytes(8)), 1, 2, 3)
    at = first.index(b"\x01T")
    size = (len(first) + 1).to_bytes(4, "big")
    data = size + (0xDAA320AB).to_bytes(4, "big") + first[8:at] + b"\x00" + first[at:]
    record = decode(data)
    assert (record.version, record.topic) == (2, "T")
    assert encode_record(record) == data


@given(messages, i64, i64, i64)
def test_what_is_encoded_is_decoded_and_encoded_again(
    message: Message, queue_offset: int, physical_offset: int, store_ms: int
) -> None:
    data = encode(message, queue_offset, physical_offset, store_ms)
    record = decode(data + b"more")
    assert encode_record(record) == data
    assert record.size == len(data) == record_size(message)
    assert record.body_crc == crc32(message.body) & 0x7FFFFFFF
    for name in ("topic", "queue_id", "body", "properties", "flag", "born_timestamp_ms"):
        assert getattr(record, name) == getattr(message, name)
    for name in ("born_host", "store_host", "reconsume_times", "prepared_transaction_offset"):
        assert getattr(record, name) == getattr(message, name)
    assert record.sys_flag & ~0x30 == message.sys_flag & ~0x30
    assert (record.queue_offset, record.physical_offset) == (queue_offset, physical_offset)
    assert record.store_timestamp_ms == store_ms


@given(messages, i64, i64)
def test_a_delivery_is_the_record_without_topic(
    message: Message, queue_offset: int, store_ms: int
) -> None:
    data = encode(message, queue_offset, 5, store_ms)
    record = decode(data)
    delivery = decode_delivery(data)
    assert delivery.decoded is None  # filled on first use of the properties
    for name in set(type(delivery).__slots__) - {"decoded"}:
        assert getattr(delivery, name) == getattr(record, name), name


@given(messages, st.data())
def test_damage_is_a_record_format_error_or_another_record(
    message: Message, draw: st.DataObject
) -> None:
    data = bytearray(encode(message, 1, 2, 3))
    if draw.draw(st.booleans()):
        data = data[: draw.draw(st.integers(0, len(data) - 1))]
    else:
        data[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    with contextlib.suppress(RecordFormatError):
        decode(bytes(data))


def test_a_changed_body_fails_its_checksum_unless_ignored() -> None:
    data = bytearray(E1)
    data[90] ^= 1
    with pytest.raises(RecordFormatError, match="checksum"):
        decode(bytes(data))
    assert decode(bytes(data), check_crc=False).body != b"Hello RocketMQ"


@pytest.mark.parametrize(
    ("position", "value", "reason"),
    [
        (4, 0, "magic"),
        (0, 140, "fit"),
        (0, 138, "add up"),
        (0, 20, "fit"),
        (84, -1, "body"),
        (84, 500, "body"),
    ],
)
def test_each_length_is_checked(position: int, value: int, reason: str) -> None:
    data = bytearray(E1)
    struct.pack_into(">i", data, position, value)
    with pytest.raises(RecordFormatError, match=reason):
        decode(bytes(data))


def test_messages_that_cannot_be_stored_are_refused() -> None:
    with pytest.raises(ValueError, match="topic"):
        encode(Message("t" * 256, 0, b""), 0, 0, 0)
    with pytest.raises(ValueError, match="topic"):
        encode(Message("", 0, b""), 0, 0, 0)
    with pytest.raises(ValueError, match="host"):
        encode(Message("t", 0, b"", born_host=b"12345"), 0, 0, 0)
