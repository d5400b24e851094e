"""Conversion between wire messages and stored records."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from dataclasses import replace
from functools import partial
from typing import Any

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from cometmq.broker.messages.convert import (
    Receipt,
    message_item,
    properties_of,
    sized_item,
    topic_field,
)
from cometmq.broker.messages.decompress import DECOMPRESSED_BYTES_MAX, decompressed
from cometmq.broker.messages.stored_properties import encode_sent, in_bucket_order
from cometmq.broker.messages.validation import check_message
from cometmq.broker.messages.wire import (
    TIMESTAMP_MAX_MS,
    TIMESTAMP_MIN_MS,
    field,
    timestamp,
    varint,
)
from cometmq.broker.names.handles import ReceiptHandle, decode_handle, encode_handle
from cometmq.proto import v2
from cometmq.store.format.bodies import zstd
from cometmq.store.format.property_names import DELIVERED_PROPERTIES, FORBIDDEN_PROPERTIES
from cometmq.store.format.record import Delivery, encode_properties, pack_host
from cometmq.tests.broker.desk import message

NOW_MS = 1_800_000_000_000
RECEIPT = Receipt(b"0 1 2 0 0 b 3 4 5", 60_000, 1)
WITHOUT_SIZE = {zstd().CompressionParameter.content_size_flag: 0}
TOPIC = topic_field(v2.Resource(name="t", resource_namespace="ns"))


def stored(properties: bytes = b"", body: bytes = b"body", **fields: Any) -> Delivery:
    """Return a record as the store returns it."""
    made = Delivery(
        body,
        properties,
        queue_id=3,
        queue_offset=77,
        flag=0,
        sys_flag=0,
        body_crc=0,
        born_timestamp_ms=NOW_MS + 123,
        born_host=pack_host("192.0.2.7", 4711),
        store_timestamp_ms=NOW_MS + 999,
        store_host=pack_host("127.0.0.1", 8081),
        reconsume_times=0,
    )
    return replace(made, **fields)


def received(record: Delivery, receipt: Receipt | None = RECEIPT) -> v2.Message:
    """Return the message as a client parses it."""
    return v2.ReceiveMessageResponse.FromString(message_item(TOPIC, record, receipt)).message


def keep(sent: v2.Message) -> Delivery:
    """Return the record that the store holds for a sent message."""
    draft = check_message(sent, NOW_MS, 4 << 20)
    data = encode_sent(draft, "t", "DefaultRegion", "DefaultCluster", draft.born_host or "peer")
    return stored(data, draft.body, born_timestamp_ms=draft.born_ms)


@pytest.mark.pitfall(45, 46, 48)
def test_a_received_message_has_every_field() -> None:
    sent = message(
        "t",
        b"hello",
        "01FD",
        tag="tag",
        keys=["k1", "k2"],
        message_group="order-1",
        trace_context="00-ab-cd-01",
        properties={"user": "größe"},
    )
    sent.system_properties.born_timestamp.FromMilliseconds(1_795_255_684_123)
    got = received(keep(sent))
    system = got.system_properties
    assert (got.topic.name, got.topic.resource_namespace) == ("t", "ns")
    assert got.body == b"hello"
    assert dict(got.user_properties) == {"user": "größe", "__SHARDINGKEY": "order-1"}
    assert (system.tag, list(system.keys), system.message_id) == ("tag", ["k1", "k2"], "01FD")
    assert system.body_digest.type == v2.MD5
    assert system.body_digest.checksum == hashlib.md5(b"hello").hexdigest().upper()
    assert system.body_encoding == v2.IDENTITY
    assert system.message_type == v2.FIFO
    assert system.born_timestamp.ToMilliseconds() == 1_795_255_684_123
    assert system.born_host == "client"
    assert system.store_timestamp.ToMilliseconds() == NOW_MS + 999
    assert system.store_host == "127.0.0.1:8081"
    assert system.receipt_handle == RECEIPT.handle.decode()
    assert (system.queue_id, system.queue_offset) == (3, 77)
    assert system.invisible_duration.ToMilliseconds() == 60_000
    assert system.delivery_attempt == 1
    assert system.message_group == "order-1"
    assert system.trace_context == "00-ab-cd-01"
    assert not system.HasField("dead_letter_queue")
    assert not system.HasField("delivery_timestamp")


PLAIN = st.text(st.characters(blacklist_categories=("Cc", "Cs")), max_size=12)
NAMES = PLAIN.filter(lambda name: name and name not in FORBIDDEN_PROPERTIES)


@given(
    st.dictionaries(NAMES, PLAIN, max_size=6),
    PLAIN.filter(lambda tag: not tag.isspace() and "|" not in tag),
    st.binary(min_size=1, max_size=50),
    st.integers(0, 1 << 40),
)
def test_a_received_message_equals_the_sent_one(
    users: dict[str, str], tag: str, body: bytes, offset: int
) -> None:
    record = replace(keep(message("t", body, tag=tag, properties=users)), queue_offset=offset)
    got = received(record)
    assert dict(got.user_properties) == users
    assert (got.body, got.system_properties.tag) == (body, tag)
    assert got.system_properties.queue_offset == offset
    # Canonical protobuf: a generated class serializes it to the same bytes.
    again = v2.ReceiveMessageResponse.FromString(message_item(TOPIC, record, RECEIPT))
    assert again.message == got


def test_properties_are_stored_in_the_references_order() -> None:
    """The property string of a record that Apache's proxy wrote (golden case `grpc`)."""
    sent = message(
        "acc-normal-30e51d9df24d",
        message_id="0102FC0000000155100B1307C000000000",
        tag="tg",
        keys=["k"],
        properties={"a": "1"},
    )
    sent.system_properties.born_host = "192.0.2.2"
    sent.system_properties.born_timestamp.FromMilliseconds(1_795_255_744_000)
    expected = (
        "MSG_REGION=DefaultRegion;UNIQ_KEY=0102FC0000000155100B1307C000000000;"
        "CLUSTER=DefaultCluster;PGROUP=acc-normal-30e51d9df24d;RECONSUME_TIME=0;TAGS=tg;"
        "__BORNHOST=192.0.2.2;BORN_TIMESTAMP=1795255744000;KEYS=k;a=1;TRACE_ON=true;"
    )
    draft = check_message(sent, NOW_MS, 4 << 20)
    data = encode_sent(
        draft, "acc-normal-30e51d9df24d", "DefaultRegion", "DefaultCluster", draft.born_host
    )
    assert data.decode() == expected.replace("=", "\x01").replace(";", "\x02")


@given(
    PLAIN, st.sampled_from(["", "k", "k1 k2"]), st.sampled_from(["", "g"]), st.integers(0, NOW_MS)
)
def test_the_fast_property_encoder_equals_the_ordered_map(
    trace: str, keys: str, group: str, born_ms: int
) -> None:
    sent = message("t", tag="x", keys=keys.split(), message_group=group, trace_context=trace)
    sent.system_properties.born_timestamp.FromMilliseconds(born_ms)
    draft = check_message(sent, NOW_MS, 4 << 20)
    quick = encode_sent(draft, "t", "r", "c", "h")
    # The user property "zz" sorts elsewhere; without it both encoders must agree.
    draft.user_properties = {"zz": "1"}
    slow = encode_sent(draft, "t", "r", "c", "h")
    assert slow.replace(b"zz\x011\x02", b"") == quick


def test_a_large_map_has_more_buckets() -> None:
    names = [f"key{n}" for n in range(130)]
    ordered = in_bucket_order(dict.fromkeys(names, "v"))
    assert sorted(ordered) == sorted(names) and list(ordered) != names


@pytest.mark.parametrize(
    ("compress", "sys_flag"),
    [
        (zlib.compress, 0x1),
        (zlib.compress, 0x301),
        (gzip.compress, 0x1),
        (lz4.frame.compress, 0x101),
        (zstd().compress, 0x201),
        (partial(zstd().compress, options=WITHOUT_SIZE), 0x201),
    ],
)
def test_compressed_bodies_are_decompressed(compress: Any, sys_flag: int) -> None:
    body = b"abc" * 1_000
    got = received(stored(body=compress(body), sys_flag=sys_flag))
    assert got.body == body
    assert got.system_properties.body_encoding == v2.IDENTITY
    assert got.system_properties.body_digest.checksum == hashlib.md5(body).hexdigest().upper()


@pytest.mark.parametrize("compress", [zlib.compress, lz4.frame.compress, zstd().compress])
def test_only_complete_bodies_below_the_limit_are_decompressed(compress: Any) -> None:
    body = bytes(range(256)) * 16
    assert decompressed(compress(body), len(body)) == (body, len(body))
    assert decompressed(compress(body), len(body) - 1)[0] is None
    assert decompressed(compress(body)[:-5])[0] is None


@pytest.mark.parametrize("compress", [zlib.compress, lz4.frame.compress, zstd().compress])
def test_bodies_of_several_parts_are_decompressed(compress: Any) -> None:
    body = os.urandom(1 << 16) * 40
    assert decompressed(compress(body)) == (body, len(body))
    assert decompressed(compress(body), len(body)) == (body, len(body))
    assert decompressed(compress(body), 1 << 20)[0] is None


def test_the_decompressed_bytes_of_a_body_delivered_as_stored_fill_the_answer() -> None:
    """Decompression takes time, also if its result is not used."""
    body = zlib.compress(bytes(DECOMPRESSED_BYTES_MAX + 1))
    item, size = sized_item(TOPIC, stored(body=body, sys_flag=0x1), None)
    assert len(item) < 20_000
    assert size > DECOMPRESSED_BYTES_MAX


@pytest.mark.parametrize(
    ("body", "sys_flag"),
    [
        (b"not compressed at all", 0x1),
        (zlib.compress(b"x" * 100)[:-3], 0x301),
        (bytes.fromhex("28b52ffd2000"), 0x201),
    ],
)
def test_an_undecompressable_body_is_delivered_unchanged(body: bytes, sys_flag: int) -> None:
    got = received(stored(body=body, sys_flag=sys_flag))
    assert (got.body, got.system_properties.body_encoding) == (body, v2.GZIP)
    assert got.system_properties.body_digest.checksum == hashlib.md5(body).hexdigest().upper()


@pytest.mark.parametrize(
    ("properties", "sys_flag", "kind"),
    [
        ({}, 0, v2.NORMAL),
        ({"TRAN_MSG": "true"}, 0, v2.TRANSACTION),
        ({"TRAN_MSG": "true", "__transactionId__": "ID"}, 0x8, v2.TRANSACTION),
        ({"TRAN_MSG": "true", "__SHARDINGKEY": "g"}, 0x8, v2.TRANSACTION),
        ({"__SHARDINGKEY": "g"}, 0, v2.FIFO),
        ({"DELAY": "3"}, 0, v2.DELAY),
        ({"DELAY": "0"}, 0, v2.NORMAL),
        ({"TIMER_DELIVER_MS": "5000"}, 0, v2.DELAY),
        ({"_SYS_MSG_PRIORITY_": "4"}, 0, v2.PRIORITY),
        ({"__LITE_TOPIC": "l"}, 0, v2.LITE),
    ],
)
def test_the_type_comes_from_the_stored_properties(
    properties: dict[str, str], sys_flag: int, kind: int
) -> None:
    got = received(stored(encode_properties(properties), sys_flag=sys_flag))
    assert got.system_properties.message_type == kind
    assert got.user_properties == {
        name: value for name, value in properties.items() if name in DELIVERED_PROPERTIES
    }


def test_malformed_utf8_in_a_stored_property_is_replaced() -> None:
    """A client could not parse the answer, and never get past the message."""
    properties = b"UNIQ_KEY\x01\xffID\x02TAGS\x01\xc3\x28\x02user\x01caf\xe9\x02\xe9\x01v\x02"
    got = received(stored(properties))
    assert got.system_properties.message_id == "\ufffdID"
    assert got.system_properties.tag == "\ufffd("
    assert got.user_properties == {"user": "caf\ufffd", "\ufffd": "v"}


def test_negative_numbers_of_a_damaged_record_are_delivered_as_stored() -> None:
    got = received(stored(queue_offset=-1, queue_id=-7, reconsume_times=-9)).system_properties
    assert (got.queue_offset, got.queue_id, got.delivery_attempt) == (-1, -7, 1)
    got = received(stored(queue_offset=-(1 << 63), queue_id=-(1 << 31))).system_properties
    assert (got.queue_offset, got.queue_id) == (-(1 << 63), -(1 << 31))


def test_times_hosts_and_dead_letter_fields_of_remoting_messages() -> None:
    properties = {"TIMER_DELIVER_MS": "1795255684123", "DLQ_ORIGIN_TOPIC": "o"}
    properties |= {"DLQ_ORIGIN_MESSAGE_ID": "ID", "_SYS_MSG_PRIORITY_": "4", "__LITE_TOPIC": "l"}
    record = stored(
        encode_properties(properties),
        reconsume_times=2,
        store_host=pack_host("::1", 8081),
        sys_flag=0x20,
    )
    system = received(record).system_properties
    assert system.delivery_timestamp.ToMilliseconds() == 1_795_255_684_123
    assert system.born_host == "192.0.2.7"
    assert system.store_host == "[::1]:8081"
    assert system.delivery_attempt == 3
    assert (system.dead_letter_queue.topic, system.dead_letter_queue.message_id) == ("o", "ID")
    assert (system.priority, system.lite_topic) == (4, "l")
    level = received(stored(encode_properties({"DELAY": "2"}))).system_properties
    assert level.delivery_timestamp.ToMilliseconds() == NOW_MS + 123 + 5_000


def test_a_pulled_message_has_no_receipt() -> None:
    system = received(stored(), None).system_properties
    assert not system.HasField("receipt_handle")
    assert not system.HasField("invisible_duration")
    assert system.delivery_attempt == 1


def test_malformed_property_strings_are_decoded_as_far_as_possible() -> None:
    assert properties_of(b"") == {}
    assert properties_of(b"a\x01b") == {b"a": b"b"}
    assert properties_of(b"junk\x02a\x01b\x02") == {b"a": b"b"}
    assert properties_of(b"a\x01\x02") == {b"a": b""}


@given(st.integers(0, 1 << 63))
def test_varints_equal_protobufs(number: int) -> None:
    parsed = v2.GetOffsetResponse.FromString(b"\x10" + varint(number >> 1))
    assert parsed.offset == number >> 1


@given(st.integers(TIMESTAMP_MIN_MS, TIMESTAMP_MAX_MS))
def test_timestamps_equal_protobufs(time_ms: int) -> None:
    assert v2.Timestamp.FromString(timestamp(time_ms)).ToMilliseconds() == time_ms


def test_long_fields_equal_protobufs() -> None:
    data = bytes(20_000)
    assert v2.Message.FromString(field(b"\x22", data)).body == data


HANDLES = st.builds(
    ReceiptHandle,
    *(st.integers(0, 1 << 50) for _ in range(3)),
    st.sampled_from([0, 999]),
    st.sampled_from([0, 1, 2]),
    st.sampled_from(["broker-a", "b"]),
    st.integers(0, 99),
    st.integers(0, 1 << 50),
    st.integers(-1, 1 << 50),
)


@given(HANDLES)
def test_handles_round_trip(handle: ReceiptHandle) -> None:
    assert decode_handle(encode_handle(handle)) == handle
    eight = encode_handle(handle).rpartition(" ")[0]
    assert decode_handle(eight) == structs.replace(handle, physical_offset=-1)


@given(st.text(max_size=60))
def test_arbitrary_text_is_not_a_handle(text: str) -> None:
    fields = text.split(" ")
    if not 8 <= len(fields) <= 9:
        assert decode_handle(text) is None
    decode_handle(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1 2 3 4 5 b 6",
        "1 2 3 4 5 b 6 7 8 9",
        "1 2 3 4 5 b -6 7 8",
        "1 2 3 4 5 b 6 -7 8",
        "1 2 3 4 5 b 6 99999999999999999999 8",
        "1 2 3 4 x b 6 7 8",
        "1  2 3 4 5 b 6 7",
        "1 2 3 4 5 " + "b" * 600 + " 6 7 8",
    ],
)
def test_malformed_handles_are_rejected(text: str) -> None:
    assert decode_handle(text) is None
