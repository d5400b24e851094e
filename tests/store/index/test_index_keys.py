"""Keys and hashes in bulk, held against the same done one by one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.store.format.index_file import key_hash
from cometmq.store.format.index_keys import entries_of
from cometmq.store.format.record import Message, decode, encode, encode_properties
from cometmq.store.index.columns import next_columns
from cometmq.tests.store import plain_index

NOW_MS = 1_700_000_000_000

values = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=8
)
keyed = st.dictionaries(
    st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "KEY", "TAGSS", "UNIQ_KEYS", "x"]),
    values | st.lists(values, max_size=4).map(" ".join),
).map(encode_properties)
#: Bytes that are no properties, or are them only in part.
broken = st.lists(
    st.sampled_from(
        [
            b"KEYS",
            b"TAGS",
            b"UNIQ_KEY",
            b"\x01",
            b"\x02",
            b" ",
            b"a",
            b"\xff",
            b"\xe4\xb8",
            "日".encode(),
        ]
    ),
    max_size=24,
).map(b"".join)
topics = st.sampled_from(["T", "TopicTest", "主题", "KEYS", "%RETRY%" + "g" * 130])
messages = st.builds(
    Message,
    topic=topics,
    queue_id=st.just(0),
    body=st.binary(max_size=20),
    properties=keyed | broken,
    sys_flag=st.sampled_from([0, 0x4, 0x8, 0xC]),
)


def log_of(many: list[Message]) -> bytes:
    log = b""
    for index, message in enumerate(many):
        log += encode(message, index, len(log), NOW_MS + index)
    return log


def bulk(log: bytes, step: int) -> list[tuple[int, int, int]]:
    found = []
    position = 0
    while position < len(log):
        columns, position = next_columns(memoryview(log), 0, position, len(log), step)
        assert columns is not None
        entries = entries_of(memoryview(log), columns)
        parts = (entries.hashes.tolist(), entries.offsets.tolist(), entries.times.tolist())
        found += list(zip(*parts, strict=True))
    return found


def one_by_one(log: bytes) -> list[tuple[int, int, int]]:
    found = []
    position = 0
    while position < len(log):
        record = decode(log[position:])
        for text in plain_index.keys_of(record):
            found.append((plain_index.key_hash(text), position, record.store_timestamp_ms))
        position += record.size
    return found


@settings(deadline=None)
@given(st.lists(messages, max_size=12), st.integers(1, 5))
def test_bulk_results_equal_single_ones(many: list[Message], step: int) -> None:
    log = log_of(many)
    assert bulk(log, step) == one_by_one(log)


def test_order_is_unique_key_then_keys_then_tag() -> None:
    properties = encode_properties({"TAGS": "t", "KEYS": " b  a ", "UNIQ_KEY": "u"})
    log = log_of([Message("T", 0, b"", properties)])
    assert [hash_ for hash_, _, _ in bulk(log, 1)] == [
        key_hash(text) for text in ("T#u", "T#b", "T#a", "T#T#t")
    ]


def test_a_property_counts_as_the_reader_sees_it() -> None:
    """Of a repeated name the last value, an empty one not at all, an unterminated one as well."""
    properties = b"KEYS\x01a\x02KEYS\x01b\x02KEYS\x01\x02TAGS\x01t"
    log = log_of([Message("T", 0, b"", properties)])
    assert [hash_ for hash_, _, _ in bulk(log, 1)] == [key_hash("T#b"), key_hash("T#T#t")]


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_key_hash_is_javas(text: str) -> None:
    assert key_hash(text) == plain_index.key_hash(text)


def test_the_hash_without_an_absolute_value_is_zero() -> None:
    assert key_hash("polygenelubricants") == 0
    log = log_of([Message("polygenelubricants", 0, b"", b"KEYS\x01a\x02")])
    assert [hash_ for hash_, _, _ in bulk(log, 1)] == [plain_index.key_hash("polygenelubricants#a")]


def test_worked_example() -> None:
    """Store format, E7."""
    assert key_hash("TopicTest#KEY1") == 0x62C3592C
    assert key_hash("TopicTest#KEY2") == 0x62C3592B
