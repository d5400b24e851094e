"""Queries by key and id, held against a plain list of messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cometmq.store.format.index_file import IndexLayout
from cometmq.store.format.message_id import OffsetId
from cometmq.store.format.record import Record, encode_properties, pack_host
from cometmq.store.query import KeyQuery, StoreQuery
from cometmq.tests.store.kit import START_MS, Kit

HOST_V6 = pack_host("2001:db8::1", 10911)
SIZES = {"max_hash_slot_num": 3, "max_index_num": 10}
# "Aa" and "BB" have the same hash; so has the tag T of topic A and the key T#T of it.
KEYS = ("Aa", "BB", "AaBB", "BBAa", "T", "T#T", "x")

key_lists = st.lists(st.sampled_from(KEYS), max_size=3).map(" ".join)
properties = st.fixed_dictionaries(
    {},
    optional={
        "UNIQ_KEY": st.sampled_from(KEYS),
        "KEYS": key_lists,
        "TAGS": st.sampled_from(KEYS),
    },
)
sent = st.lists(
    st.tuples(st.sampled_from(["A", "B"]), properties, st.sampled_from([0, 400, 3000])),
    min_size=1,
    max_size=40,
)
asked = st.tuples(
    st.sampled_from(["A", "B", "C"]),
    st.sampled_from(KEYS),
    st.sampled_from([None, "K", "U", "T"]),
    st.integers(0, 12_000),
    st.integers(0, 20_000),
    st.integers(1, 5),
)


def expected(records: list[Record], query: KeyQuery) -> list[int]:
    matching = []
    for record in records:
        found = record.properties_dict
        unique = found.get("UNIQ_KEY") == query.key
        key = query.key in found.get("KEYS", "").split(" ")
        tag = found.get("TAGS") == query.key
        kinds = {None: unique or key, "U": unique, "K": key, "T": tag}
        in_time = query.begin_ms <= record.store_timestamp_ms <= query.end_ms
        if record.topic == query.topic and kinds[query.index_type] and in_time:
            matching.append(record.physical_offset)
    return matching[-query.count_max :]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(many=sent, questions=st.lists(asked, min_size=1, max_size=8), reopen=st.booleans())
def test_answers_are_those_of_a_list(
    tmp_path_factory: pytest.TempPathFactory,
    many: list[tuple[str, dict[str, str], int]],
    questions: list[tuple[str, str, str | None, int, int, int]],
    reopen: bool,
) -> None:
    kit = Kit(tmp_path_factory.mktemp("store"), **SIZES)
    kit.open()
    for topic, found, pause in many:
        kit.now_ms += pause
        kit.write(topic=topic, properties=encode_properties(found))
    kit.dispatch()
    if reopen:
        kit.reopen()
    records = list(kit.records())
    for topic, key, kind, begin, length, count in questions:
        begin_ms = START_MS + begin
        query = KeyQuery(topic, key, count, begin_ms, begin_ms + length, kind)
        answer = kit.store.queries.query(
            topic,
            key,
            count_max=count,
            begin_ms=query.begin_ms,
            end_ms=query.end_ms,
            index_type=kind,
        )
        assert [record.physical_offset for record in answer] == expected(records, query)
    kit.close()


@pytest.fixture
def keyed(kit: Kit) -> Kit:
    for number in range(5):
        found = {"UNIQ_KEY": f"{number:032X}", "KEYS": f"k{number}"}
        kit.write(f"{number}".encode(), properties=encode_properties(found))
    kit.write(b"five", store_host=HOST_V6, properties=encode_properties({"UNIQ_KEY": f"{0:032X}"}))
    kit.dispatch()
    return kit


def test_by_offset_id_in_both_forms(keyed: Kit) -> None:
    for record in keyed.records():
        text = str(OffsetId(record.store_host, record.physical_offset))
        assert len(text) in (32, 56)
        found = keyed.store.queries.by_id(text)
        assert found is not None
        assert found.body == record.body
        assert keyed.store.queries.by_id(text.lower()) == found


def test_unknown_ids_return_none(keyed: Kit) -> None:
    records = list(keyed.records())
    host = records[0].store_host
    inside = str(OffsetId(host, records[1].physical_offset + 8))
    for text in ("", "x", "0" * 31, "G" * 32, inside, str(OffsetId(host, 1 << 40)), "F" * 32):
        assert keyed.store.queries.by_id(text, "TopicTest") is None
    elsewhere = str(OffsetId(pack_host("10.0.0.1", 1), records[1].physical_offset))
    assert keyed.store.queries.by_id(elsewhere) is None, "the id of another broker"
    kit_end = keyed.write(b"not dispatched")
    assert keyed.store.queries.by_id(str(OffsetId(host, kit_end.physical_offset))) is None


def test_by_unique_key(keyed: Kit) -> None:
    first = keyed.store.queries.by_id(f"{1:032X}", "TopicTest")
    assert first is not None
    assert first.body == b"1"
    newest = keyed.store.queries.by_unique_key("TopicTest", f"{0:032X}")
    assert newest is not None
    assert newest.body == b"five", "the newest of two"
    assert keyed.store.queries.by_unique_key("Other", f"{1:032X}") is None
    assert keyed.store.queries.by_unique_key("TopicTest", "k1") is None, "a key is no unique key"


def test_at_most_max_msgs_num_batch(tmp_path: Path) -> None:
    kit = Kit(tmp_path, max_msgs_num_batch=3)
    kit.open()
    for number in range(5):
        kit.write(f"{number}".encode(), properties=encode_properties({"KEYS": "k"}))
    kit.dispatch()
    assert [r.body for r in kit.store.queries.query("TopicTest", "k", count_max=100)] == [
        b"2",
        b"3",
        b"4",
    ]
    assert kit.store.queries.query("TopicTest", "k", count_max=0) == []
    assert kit.store.queries.query("TopicTest", "") == []
    with pytest.raises(ValueError, match="index type"):
        kit.store.queries.query("TopicTest", "k", index_type="X")
    kit.close()


@pytest.mark.parametrize("known", [True, False])
def test_queries_work_on_any_directory(tmp_path: Path, known: bool) -> None:
    kit = Kit(tmp_path / "store", **SIZES)
    kit.open()
    for number in range(40):
        found = {"UNIQ_KEY": f"u{number}", "KEYS": "all"}
        kit.write(bytes(200), properties=encode_properties(found), queue_id=number)
    kit.dispatch()
    kit.close()
    before = kit.all_files()
    layout = IndexLayout(SIZES["max_hash_slot_num"], SIZES["max_index_num"]) if known else None
    root = kit.root
    with StoreQuery([str(root / "commitlog")], str(root / "index"), layout) as asked:
        for number in (0, 17, 39):
            (record,) = asked.query(KeyQuery("TopicTest", f"u{number}", 10))
            assert record.queue_id == number
            text = str(OffsetId(record.store_host, record.physical_offset))
            assert asked.by_id(text) == record
        assert len(asked.query(KeyQuery("TopicTest", "all", 64))) == 40
        assert asked.query(KeyQuery("TopicTest", "none", 64)) == []
        assert asked.by_id("0" * 31) is None
    assert kit.all_files() == before
    with StoreQuery([str(root / "none")], str(root / "none")) as asked:
        assert asked.query(KeyQuery("T", "k", 1)) == []
        assert asked.record_or_none(0) is None
