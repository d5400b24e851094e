"""Fuzz targets of pure codecs: records, properties, units, SQL, handles, and wire conversion."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cometmq.broker.journal import revive_codec
from cometmq.broker.messages.convert import Receipt, delivery_of, message_item, topic_field
from cometmq.broker.messages.decompress import decompressed
from cometmq.broker.messages.runs import Room, run_converter
from cometmq.broker.names.handles import decode_handle, encode_handle
from cometmq.broker.names.recall_handle import decode_recall_handle
from cometmq.broker.pop.ack_request import common_acks
from cometmq.broker.sql import SqlError, compile_sql
from cometmq.broker.transactions.records import half_properties, op_body, op_offsets, parse_id
from cometmq.client.message import native_read
from cometmq.proto import native, v2
from cometmq.remoting import bare_json, codec, header_fields, headers
from cometmq.store.format.errors import RecordFormatError
from cometmq.store.format.message_id import OffsetId, UniqueKey
from cometmq.store.format.properties import (
    decode_properties,
    encode_properties,
    is_delayed,
    property_value,
    tags_code,
    waits,
)
from cometmq.store.format.record import decode, decode_delivery, encode_record
from cometmq.store.format.record_layout import UNIT
from cometmq.store.format.results import StoredRecord
from cometmq.tests.broker.pop.ack_cases import BROKER
from cometmq.tests.broker.pop.ack_cases import check as check_acks
from cometmq.tests.client.message_cases import check_responses
from cometmq.tests.fuzz.target import Check, target

NOW_MS = 1_700_000_000_000
_RUNS = run_converter(native.load())
_TOPIC = topic_field(v2.Resource(name="t"))
_RECEIPT = Receipt(b"handle", 30_000, 1)
#: Log offset of the first byte of the segment of `queue_read`, and the number of its first unit.
SEGMENT_BEGIN, FIRST_UNIT = 1_000, 70


@target
def record(_directory: Path) -> Iterator[Check]:
    """A decoded record has the bytes it was decoded from; its delivery has the same fields."""

    def check(data: bytes) -> None:
        try:
            found = decode(data, check_crc=False)
        except RecordFormatError:
            return
        if not found.topic:
            return  # decoded, because Apache decodes it, but never written
        raw = data[: found.size]
        again = encode_record(found)
        assert again[:8] + again[12:] == raw[:8] + raw[12:]  # all but the checksum
        delivery = decode_delivery(raw)
        assert delivery.body == found.body
        assert delivery.properties == found.properties
        assert delivery.queue_offset == found.queue_offset
        assert delivery.born_timestamp_ms == found.born_timestamp_ms

    yield check


@target
def properties(_directory: Path) -> Iterator[Check]:
    """Each reader of properties agrees with the decoded dictionary."""

    def check(data: bytes) -> None:
        found = decode_properties(data)
        tags_code("t", data, NOW_MS)
        tags_code("SCHEDULE_TOPIC_XXXX", data, NOW_MS)
        is_delayed(data)
        waits(data)
        half_properties(data)
        for name in ("TAGS", "KEYS", "WAIT", "DELAY"):
            value = property_value(data, name.encode()).decode("utf-8", "replace")
            assert value == found.get(name, ""), name
        assert decode_properties(encode_properties(found)) == {
            name: value for name, value in found.items() if len(name) + len(value) >= 2
        }

    yield check


@target
def delivery(_directory: Path) -> Iterator[Check]:
    """Any stored record is delivered as a message that clients can parse; what the native crate
    converts has the same bytes."""

    def check(data: bytes) -> None:
        try:
            found = decode(data, check_crc=False)
        except RecordFormatError:
            return
        for receipt in (None, _RECEIPT):
            item = message_item(_TOPIC, delivery_of(found, found.queue_id), receipt)
            parsed = v2.ReceiveMessageResponse.FromString(item)
            assert parsed.message.system_properties.queue_offset == found.queue_offset
            parsed.message.system_properties.born_timestamp.ToMilliseconds()
        stored = StoredRecord(found.queue_offset, 7, data[: found.size], 0)
        run = _RUNS.run(_TOPIC, [stored], 0, Room(1, 1), wanted=None)
        assert run.items in ([], [message_item(_TOPIC, decode_delivery(stored.data), None)])

    yield check


@target
def sql(_directory: Path) -> Iterator[Check]:
    """An expression is refused with its position, or true or false for any message."""
    messages: tuple[dict[bytes, bytes], ...] = (
        {},
        {b"a": b"1", b"b": b"2.5", b"c": b"x", b"TAGS": b"t"},
        {b"a": b"9" * 400, b"b": b"-1e400", b"c": b"\xff", b"TAGS": b""},
    )

    def check(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        try:
            matches = compile_sql(text)
        except SqlError:
            return
        for message in messages:
            assert matches(message) in (True, False, None)

    yield check


@target
def handles(_directory: Path) -> Iterator[Check]:
    """Tokens of clients and bodies of internal records are decoded, or are not tokens."""

    def check(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        handle = decode_handle(text)
        if handle is not None:
            assert decode_handle(encode_handle(handle)) == handle
        recall = decode_recall_handle(text)
        if recall is not None:
            assert decode_recall_handle(recall.encode()) == recall
        parse_id(text)
        OffsetId.parse(text)
        key = UniqueKey.parse(text)
        if key is not None:
            assert str(key) == text.upper()
            key.born_ms(NOW_MS)
        revive_codec.decode(data)
        assert op_offsets(op_body(op_offsets(data))) == op_offsets(data)

    yield check


@target
def bodies(_directory: Path) -> Iterator[Check]:
    """A compressed body is decompressed within the limit, or left as it is."""

    def check(data: bytes) -> None:
        with suppress(RecordFormatError):
            found = decompressed(data, 100_000)
            assert found is None or len(found) <= 100_000

    yield check


@target
def remoting(_directory: Path) -> Iterator[Check]:
    """A stream is cut into commands that survive a further turn, or is refused."""

    def check(data: bytes) -> None:
        reader = codec.FrameReader()
        try:
            for command in reader.feed(data):
                for binary in (False, True):
                    command.binary = binary
                    with suppress(codec.FrameError):  # larger in the other layout
                        again = codec.decode(codec.encode(command)[4:])
                        assert again.fields == command.fields
                        assert again.body == command.body
                        assert again.opaque == command.opaque
                for header in (headers.PullMessage, headers.SearchOffset):
                    with suppress(header_fields.HeaderError):
                        header_fields.read(header, command.fields)
                with suppress(header_fields.HeaderError):
                    header_fields.read(headers.SendMessage, command.fields, letters=True)
        except codec.FrameError:
            return
        assert reader.unfinished <= len(data)

    yield check


@target
def bare_json_documents(_directory: Path) -> Iterator[Check]:
    """A document is read back as it was, or refused."""

    def check(data: bytes) -> None:
        try:
            found = bare_json.loads(data)
        except bare_json.BareJsonError:
            return
        assert repr(bare_json.loads(bare_json.dumps(found))) == repr(found)

    yield check


@target
def acks(_directory: Path) -> Iterator[Check]:
    """The native crate reads in an AckMessage request what Python decodes, and answers the same."""
    read = common_acks(native.load(), BROKER)

    def check(data: bytes) -> None:
        if read is not None:
            check_acks(read, data)

    yield check


@target
def responses(_directory: Path) -> Iterator[Check]:
    """The SDK's messages that the native crate reads in responses are those that Python reads."""
    read = native_read()

    def check(data: bytes) -> None:
        if read is not None:
            check_responses(read, [data])

    yield check


@target
def queue_read(_directory: Path) -> Iterator[Check]:
    """The native crate returns records of units only if Python decodes them, with their checksums,
    to the record that the unit names. A first byte gives the number of units; the segment follows
    them."""
    crate = native.load()
    queue_records = None if crate is None else crate.queue_records
    reader = None if queue_records is None else queue_records(StoredRecord)
    topic = b"\x01t"

    def check(data: bytes) -> None:
        if reader is None or not data:
            return
        end = 1 + UNIT.size * (data[0] % 8)
        units, segment = data[1:end], data[end:]
        units = units[: len(units) // UNIT.size * UNIT.size]
        stop = SEGMENT_BEGIN + len(segment)
        for tags in (None, frozenset({0, 2_598_919})):
            examined, found, _full, last = reader.read(
                units,
                0,
                FIRST_UNIT,
                segment=(segment, SEGMENT_BEGIN, stop),
                queue=(3, topic),
                tags=tags,
                room=(0, 5, len(segment)),
            )
            assert len(found) <= examined <= len(units) // UNIT.size
            assert last == -1 or any(last == unit[0] for unit in UNIT.iter_unpack(units))
            for one in found:
                offset, size, code = UNIT.unpack_from(
                    units, UNIT.size * (one.queue_offset - FIRST_UNIT)
                )
                begin = offset - SEGMENT_BEGIN
                assert one.data == segment[begin : begin + size]
                assert (one.physical_offset, one.tags_code) == (offset, code)
                record = decode(one.data)
                named = (record.queue_id, record.queue_offset, record.physical_offset)
                assert named == (3, one.queue_offset, offset)
                assert record.topic == "t"
                assert code == tags_code("t", record.properties, NOW_MS)

    yield check
