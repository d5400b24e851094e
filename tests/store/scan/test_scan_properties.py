"""Properties and queues in bulk, against the plain codec."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.store.format.properties import SCHEDULE_TOPIC, property_value, tags_code
from cometmq.store.format.record import Message
from cometmq.store.scan import (
    raw as scan_raw,
)
from cometmq.store.scan.properties import TagsCodes, by_queue, value_spans
from cometmq.store.scan.walk import BytesTable, RawBytes, TopicTable, walk
from cometmq.tests.store.logs import any_message, build, plain

#: Pieces that make separators, names and near misses likely.
PIECES = st.sampled_from(
    [b"\x01", b"\x02", b"TAGS", b"A", b"TAGS\x01", b"\x02TAGS\x01v", b"x" * 40]
)
STRINGS = st.lists(st.lists(PIECES, max_size=8).map(b"".join), max_size=30)


def places(strings: list[bytes], tail: bytes) -> tuple[RawBytes, np.ndarray, np.ndarray]:
    lengths = np.array([len(one) for one in strings], np.int64)
    starts = np.cumsum(lengths) - lengths
    return RawBytes(b"".join(strings) + tail), starts, lengths


@settings(max_examples=300, deadline=None)
@given(strings=STRINGS, tail=st.sampled_from([b"", bytes(64), b"\x01" * 300]))
@pytest.mark.parametrize("name", [b"TAGS", b"A"])
def test_a_value_is_found_where_the_codec_finds_it(
    name: bytes, strings: list[bytes], tail: bytes
) -> None:
    raw, starts, lengths = places(strings, tail)
    at, sizes = value_spans(raw, starts, lengths, name)
    found = [raw.bytes_at(a, s) for a, s in zip(at.tolist(), sizes.tolist(), strict=True)]
    assert found == [property_value(one, name) for one in strings]
    inside = (at >= starts) & (at + sizes <= starts + lengths)
    assert inside.all()


def test_long_properties() -> None:
    rng = random.Random(1)
    strings = []
    for _ in range(60):
        filler = b"k\x01" + bytes(rng.choices(b"abc", k=rng.randrange(32_000))) + b"\x02"
        strings.append(rng.choice([filler + b"TAGS\x01t\x02", b"TAGS\x01t\x02" + filler, filler]))
    raw, starts, lengths = places(strings, b"")
    at, sizes = value_spans(raw, starts, lengths, b"TAGS")
    for one, begin, size in zip(strings, at.tolist(), sizes.tolist(), strict=True):
        assert raw.bytes_at(begin, size) == property_value(one, b"TAGS")


@settings(max_examples=100, deadline=None)
@given(batches=st.lists(st.lists(st.binary(max_size=20), max_size=20), max_size=4))
def test_equal_strings_have_equal_numbers(batches: list[list[bytes]]) -> None:
    table = BytesTable()
    for strings in batches:
        raw, starts, lengths = places(strings, b"")
        numbers = table.numbers(raw, starts, lengths).tolist()
        assert [table.values[number] for number in numbers] == strings
    assert len(set(table.values)) == len(table.values)


def test_strings_with_one_hash_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_raw, "_MIX", np.uint64(0))  # every hash is 0
    table = BytesTable()
    strings = [b"one", b"two", b"three", b"two", b"one"]
    raw, starts, lengths = places(strings, bytes(8))
    for _ in range(2):
        assert table.numbers(raw, starts, lengths).tolist() == [0, 1, 2, 1, 0]


def test_tags_codes_and_queues_of_a_log() -> None:
    rng = random.Random(5)
    messages = [any_message(rng) for _ in range(500)]
    for message in rng.sample(messages, 60):
        message.topic = SCHEDULE_TOPIC
        message.properties = rng.choice([b"DELAY\x013\x02", b"DELAY\x010\x02TAGS\x01a\x02", b""])
    messages.append(Message("Orders", -3, b"", b"TAGS\x01last"))
    data = build(messages, 0)
    records, _ = plain(data, 0, 0, len(data), False)
    topics, codes, number = TopicTable(), TagsCodes(), 0
    raw = RawBytes(data)
    queues: dict[tuple[str, int], list[int]] = {}
    for columns in walk(data, 0, 0, len(data), topics=topics):
        found = codes.of(raw, columns, topics).tolist()
        batch = records[number : number + len(columns)]
        number += len(columns)
        assert found == [tags_code(r.topic, r.properties, r.store_timestamp_ms) for r in batch]
        for topic, queue_id, rows in by_queue(columns):
            key = topics.names[topic], queue_id
            queues.setdefault(key, []).extend(columns.physical_offset[rows].tolist())
    expected: dict[tuple[str, int], list[int]] = {}
    for record in records:
        expected.setdefault((record.topic, record.queue_id), []).append(record.physical_offset)
    assert queues == expected
