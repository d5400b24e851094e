"""Revive codec: byte for byte what Apache's broker writes; decoding never raises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.journal.revive_codec import (
    ACK_TAG,
    BATCH_MAX,
    CK_TAG,
    TAG_CODES,
    AckRecord,
    BatchKey,
    CheckpointRecord,
    ReviveWriter,
    decode,
    revive_topic,
)
from cometmq.store.format.properties import decode_properties
from cometmq.store.format.record import Record
from cometmq.store.format.record import decode as decode_record
from cometmq.store.timer.rules import TIMER_QUEUE, TIMER_TOPIC
from cometmq.tests.formats.cases import new_store, unpack

TOPIC = revive_topic("DefaultCluster")
KEY = BatchKey("t", "g", 3, 100, 1_700_000_000_123)
ADDED = ("TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS")


@pytest.fixture(scope="module")
def apaches(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """Return every record that Apache's broker wrote into the timer and the revive topic for its
    pops.
    """
    store = new_store("grpc", unpack("grpc", tmp_path_factory.mktemp("golden")))
    store.open()
    try:
        found = []
        for topic, queue_id in [(TIMER_TOPIC, TIMER_QUEUE), *((TOPIC, n) for n in range(8))]:
            offset = store.min_offset(topic, queue_id)
            while offset < store.max_offset(topic, queue_id):
                result = store.get(topic, queue_id, offset, 32, tag_codes=TAG_CODES)
                found += [decode_record(one.data) for one in result.records]
                offset = result.next_offset
        return found
    finally:
        store.close()


def test_encoding_reproduces_apaches_records(apaches: list[Record]) -> None:
    writer = ReviveWriter("broker-a", TOPIC, 1_000)
    kinds = {"direct": 0, "first": 0, "copy": 0}
    for theirs in apaches:
        properties = decode_properties(theirs.properties)
        record = decode(theirs.body)
        assert record is not None
        # A copy in the revive topic was written with its first record, which contains the queue.
        queue_id = int(properties.get("REAL_QID", theirs.queue_id))
        now_ms = theirs.born_timestamp_ms
        if isinstance(record, CheckpointRecord):
            assert properties["TAGS"] == CK_TAG
            ours = writer.checkpoint(record, queue_id, now_ms)
        else:
            assert properties["TAGS"] == ACK_TAG
            visible_ms = int(properties["TIMER_DELIVER_MS"])
            ours = writer.ack(record.key, record.offsets, visible_ms, queue_id, now_ms)
        assert ours.body == theirs.body
        if "TIMER_DEQUEUE_MS" in properties:
            kinds["copy"] += 1
            kept = {name: value for name, value in properties.items() if name not in ADDED}
            assert decode_properties(ours.properties) == kept
            continue
        kinds["first" if theirs.topic == TIMER_TOPIC else "direct"] += 1
        assert ours.properties == theirs.properties
        assert (ours.topic, ours.queue_id) == (theirs.topic, theirs.queue_id)
    assert all(kinds.values()), kinds


def test_several_acks_are_one_record() -> None:
    message = ReviveWriter("b", TOPIC, 1_000).ack(KEY, [100, 103], KEY.pop_ms + 60_000, 5, 1)
    assert list(json.loads(message.body)) == ["ao", "aol", "bn", "c", "pt", "q", "so", "t"]
    assert decode(message.body) == AckRecord(KEY, [100, 103])
    properties = decode_properties(message.properties)
    assert properties["UNIQ_KEY"] == "t@3@[100, 103]@g@1700000000123@bAck"
    assert properties["TAGS"] == "bAck"
    assert (message.topic, properties["REAL_TOPIC"], properties["REAL_QID"]) == (
        TIMER_TOPIC,
        TOPIC,
        "5",
    )
    assert properties["TIMER_OUT_MS"] == "1700000060000"


@given(
    key=st.builds(
        BatchKey,
        st.text(min_size=1),
        st.text(min_size=1),
        st.integers(0, 1000),
        st.integers(0, 1 << 50),
        st.integers(0, 1 << 45),
    ),
    invisible_ms=st.integers(0, 43_200_000),
    distances=st.lists(st.integers(0, 10_000), min_size=1, max_size=BATCH_MAX, unique=True),
    acked=st.integers(0, (1 << BATCH_MAX) - 1),
    suspended=st.booleans(),
)
def test_a_checkpoint_round_trips(
    key: BatchKey, invisible_ms: int, distances: list[int], acked: int, suspended: bool
) -> None:
    record = CheckpointRecord(key, invisible_ms, distances, acked, suspended)
    body = ReviveWriter("b", TOPIC, 1_000).checkpoint(record, 0, key.pop_ms).body
    assert decode(body) == record
    assert -(1 << 31) <= json.loads(body)["bm"] < 1 << 31, "a Java int"
    assert list(json.loads(body)) == sorted(json.loads(body))


def test_old_forms_are_decoded() -> None:
    plain = '{"bm":0,"c":"g","it":5,"n":3,"pt":7,"q":0,"so":2,"t":"t"}'
    record = decode(plain.encode())
    assert isinstance(record, CheckpointRecord)
    assert list(record.distances) == [0, 1, 2]
    assert not record.suspended
    put_again = decode(plain.replace('"so"', '"rp":"3","so"').encode())
    assert isinstance(put_again, CheckpointRecord)


@given(st.binary() | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["bm", "bn", "c", "d", "it", "n", "pt", "q", "so", "sp", "t",
        "ao", "aol"]), inner),
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_decoding_never_raises(body: bytes) -> None:
    found = decode(body)
    assert found is None or found.key.topic is not None


def test_a_checkpoint_with_too_many_messages_is_rejected() -> None:
    body = b'{"bm":0,"c":"g","d":[%s],"it":5,"n":33,"pt":7,"q":0,"so":2,"t":"t"}'
    assert decode(body % b",".join(b"%d" % n for n in range(33))) is None


@pytest.mark.parametrize("field", ["n", "q", "so", "pt", "it", "bm"])
@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, 1 << 4096])
def test_a_number_outside_a_java_long_is_rejected(field: str, value: int) -> None:
    fields = {"bm": 0, "c": "g", "it": 5, "n": 3, "pt": 7, "q": 0, "so": 2, "t": "t"}
    assert decode(json.dumps({**fields, field: value}).encode()) is None


def test_a_due_record_is_stored_in_the_revive_topic_at_once(tmp_path: Path) -> None:
    writer = ReviveWriter("b", TOPIC, 1_000)
    record = CheckpointRecord(KEY, 1_000, [0])
    message = writer.checkpoint(record, 6, KEY.pop_ms)
    assert (message.topic, message.queue_id) == (TOPIC, 6)
    assert list(decode_properties(message.properties)) == ["TIMER_DELIVER_MS", "UNIQ_KEY", "TAGS"]
