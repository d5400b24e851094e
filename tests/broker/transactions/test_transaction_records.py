"""Transaction records byte for byte against Apache's; transaction ids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.transactions.records import (
    HALF_TOPIC,
    OP_TOPIC,
    PARKED_TOPIC,
    HalfProperties,
    TransactionId,
    checked_copy,
    committed,
    half_message,
    half_properties,
    immune_copy,
    op_body,
    op_message,
    op_offsets,
    parked,
    parse_id,
)
from cometmq.store.format.properties import decode_properties, encode_properties
from cometmq.store.format.record import Message, Record, encode
from cometmq.tests.formats.cases import records_of, unpack

CASES = ["transaction", "grpc"]
CHECKS = "TRANSACTION_CHECK_TIMES"


def same(message: Message, record: Record, data: bytes) -> None:
    """Check that the message is stored as the record is."""
    place = (record.queue_offset, record.physical_offset, record.store_timestamp_ms)
    assert encode(message, *place) == data


@pytest.mark.parametrize("case", CASES)
def test_half_messages_equal_apaches(case: str, tmp_path: Path) -> None:
    count = 0
    for record, data in records_of(unpack(case, tmp_path)):
        sent = decode_properties(record.properties)
        if record.topic == HALF_TOPIC and CHECKS not in sent:
            for name in ("REAL_TOPIC", "REAL_QID", "__transactionId__"):
                del sent[name]
            facts = half_properties(record.properties)
            message = replace(
                record_as_message(record), topic=facts.topic, queue_id=facts.queue_id, sys_flag=4
            )
            same(half_message(message, sent), record, data)
            count += 1
    assert count >= 12


@pytest.mark.parametrize("case", CASES)
def test_commits_equal_apaches(case: str, tmp_path: Path) -> None:
    halves: dict[int, Record] = {}
    count = 0
    for record, data in records_of(unpack(case, tmp_path)):
        if record.topic == HALF_TOPIC:
            halves[record.physical_offset] = record
        elif record.sys_flag & 0xC == 0x8:
            half = halves[record.prepared_transaction_offset]
            same(committed(half, record.queue_id, record.store_host), record, data)
            count += 1
    assert count >= 10


def test_copies_for_checks_equal_apaches(tmp_path: Path) -> None:
    newest: dict[str, Record] = {}
    count = 0
    for record, data in records_of(unpack("transaction", tmp_path)):
        if record.topic != HALF_TOPIC:
            continue
        facts = half_properties(record.properties)
        before = newest.get(facts.key)
        if before is not None:
            same(checked_copy(before, facts.checks, record.store_host), record, data)
            count += 1
        newest[facts.key] = record
    assert count == 270


@pytest.mark.parametrize("case", CASES)
def test_op_records_equal_apaches(case: str, tmp_path: Path) -> None:
    count = 0
    for record, data in records_of(unpack(case, tmp_path)):
        if record.topic == OP_TOPIC:
            offsets = op_offsets(record.body)
            message = op_message(offsets, record.born_timestamp_ms, record.store_host)
            same(message, record, data)
            count += 1
    assert count >= 1


def record_as_message(record: Record) -> Message:
    """Return the appended records."""
    return Message(
        record.topic,
        record.queue_id,
        record.body,
        record.properties,
        record.flag,
        record.sys_flag,
        record.born_timestamp_ms,
        record.born_host,
        record.store_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
    )


def a_half(**properties: str) -> Record:
    """Return a half message with more properties."""
    everything = {
        "UNIQ_KEY": "K",
        "TRAN_MSG": "true",
        "REAL_TOPIC": "t",
        "REAL_QID": "3",
        **properties,
    }
    return Record(HALF_TOPIC, 0, b"body", encode_properties(everything), physical_offset=77)


def test_the_properties_of_a_half_message_are_read() -> None:
    assert half_properties(a_half().properties) == HalfProperties("t", 3, "K", 0, None, -1)
    half = a_half(
        TRANSACTION_CHECK_TIMES="4",
        CHECK_IMMUNITY_TIME_IN_SECONDS="60",
        TRAN_PREPARED_QUEUE_OFFSET="9",
    )
    assert half_properties(half.properties) == HalfProperties("t", 3, "K", 4, 60_000, 9)
    nonsense = a_half(TRANSACTION_CHECK_TIMES="x", CHECK_IMMUNITY_TIME_IN_SECONDS="-1")
    assert half_properties(nonsense.properties) == HalfProperties("t", 3, "K", 0, None, -1)
    long = a_half(TRANSACTION_CHECK_TIMES="\u00b2", CHECK_IMMUNITY_TIME_IN_SECONDS="9" * 5_000)
    assert half_properties(long.properties) == HalfProperties("t", 3, "K", 0, None, -1)


def test_copies_keep_all_properties_and_add_their_reason() -> None:
    half = a_half(empty="", user="a\u00e4")
    asked = checked_copy(half, 3, bytes(8))
    assert half_properties(asked.properties).checks == 3
    again = checked_copy(replace(half, properties=asked.properties), 4, bytes(8))
    assert half_properties(again.properties).checks == 4
    immune = immune_copy(half, 12, bytes(8))
    assert half_properties(immune.properties).copy_of == 12
    laid_aside = parked(half, bytes(8))
    assert laid_aside.topic == PARKED_TOPIC
    for copy in (asked, again, immune, laid_aside):
        assert b"empty\x01\x02" in copy.properties
        assert "user\x01a\u00e4\x02".encode() in copy.properties
        assert copy.body == half.body
        assert not copy.sys_flag & 0xC


def test_a_commit_references_its_half_message_and_drops_internal_properties() -> None:
    half = a_half(empty="", XREAL_TOPIC="stays")
    message = committed(half, 2, bytes(8))
    assert (message.topic, message.queue_id, message.prepared_transaction_offset) == ("t", 2, 77)
    assert message.sys_flag == 0x8
    assert message.properties == (
        b"UNIQ_KEY\x01K\x02TRAN_MSG\x01true\x02empty\x01\x02XREAL_TOPIC\x01stays\x02"
    )


@given(st.lists(st.integers(0, 1 << 60)))
def test_op_bodies_round_trip(offsets: list[int]) -> None:
    assert op_offsets(op_body(offsets)) == offsets


def test_invalid_parts_of_an_op_body_are_skipped() -> None:
    assert op_offsets(b"12,,x,15,-3, 7,") == [12, 15, 7]
    assert op_offsets(b"9" * 5_000 + b",12,%d" % (1 << 63)) == [12]


BROKERS = st.text(st.sampled_from("abz019_-%|"), min_size=1, max_size=20)


@given(BROKERS, st.integers(0, 1 << 60), st.text(min_size=1).filter(lambda key: key.isprintable()))
def test_transaction_ids_round_trip(broker: str, offset: int, key: str) -> None:
    ident = TransactionId(broker, offset, key)
    assert parse_id(str(ident)) == ident


@pytest.mark.parametrize(
    "text", ["01FD", "a:b:c", "broker:12", "broker:12:", ":1:k", "b:-1:k", "b:\u00b2:k"]
)
def test_other_ids_are_message_ids(text: str) -> None:
    assert parse_id(text) == TransactionId("", -1, text)
