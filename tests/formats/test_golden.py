"""Stores that the released Apache RocketMQ 5.5.0 broker wrote: opened, read, recovered, re-encoded.

`golden/CASE.tar.gz` is the directory as the broker left it, `CASE.json.gz` what the broker itself
said about it, `CASE.recovered.json.gz` what it said after it had recovered a killed copy. `normal` was
stopped cleanly, `killed` was not. Only copies are opened.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.store.config import StoreConfig
from cometmq.store.message_store import MessageStore, PutStatus
from cometmq.store.record import Message, decode, encode_record, unpack_host

GOLDEN = Path(__file__).parent / "golden"
SEGMENT = 131_072
QUEUE_FILE = 2_000
SAID = {"normal": "normal.json.gz", "killed": "killed.recovered.json.gz"}


def said_by_apache(name: str) -> dict[str, Any]:
    with gzip.open(GOLDEN / name) as file:
        said: dict[str, Any] = json.load(file)
    return said


def files_of(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(params=["normal", "killed"])
def case(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def root(case: str, tmp_path: Path) -> Path:
    with tarfile.open(GOLDEN / f"{case}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / case


def new_store(root: Path) -> MessageStore:
    config = StoreConfig(
        str(root), mapped_file_size_commit_log=SEGMENT, mapped_file_size_consume_queue=QUEUE_FILE
    )
    return MessageStore(config, lambda: 1_800_000_000_000)


@pytest.fixture
def store(root: Path) -> Iterator[MessageStore]:
    store = new_store(root)
    store.open()
    while store.dispatched_offset < store.log_end:
        store.dispatch(store.log_end)
    yield store
    store.close()


def queues_of(said: dict[str, Any]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    for topic, queues in said["queues"].items():
        for queue_id, queue in queues.items():
            yield topic, int(queue_id), queue


def host(text: str) -> tuple[str, int]:
    address, port = text.split("|")
    return address, int(port)


def test_the_store_answers_what_apache_answered(case: str, store: MessageStore) -> None:
    said = said_by_apache(SAID[case])
    assert store.log_start == said["min_physical_offset"]
    assert store.log_end == said["max_physical_offset"]
    assert sorted(store.queues()) == sorted((topic, qid) for topic, qid, _ in queues_of(said))
    for topic, queue_id, queue in queues_of(said):
        assert store.min_offset(topic, queue_id) == queue["min"]
        assert store.max_offset(topic, queue_id) == queue["max"]
        assert store.next_offset(topic, queue_id) == queue["max"]
        for time_ms, boundary, answer in queue["offset_by_time"]:
            upper = boundary == "UPPER"
            assert store.offset_by_time(topic, queue_id, time_ms, upper=upper) == answer


def test_every_unit_and_record_is_what_apache_read(case: str, store: MessageStore) -> None:
    said = said_by_apache(SAID[case])
    count = 0
    for topic, queue_id, queue in queues_of(said):
        for unit in queue["units"]:
            count += 1
            (stored,) = store.get(topic, queue_id, unit["queue_offset"], 1).records
            assert stored.physical_offset == unit["physical_offset"]
            assert len(stored.data) == unit["size"]
            assert stored.tags_code == unit["tags_code"]
            record = decode(stored.data)
            assert record.topic == unit["record_topic"] == topic
            assert record.queue_id == unit["record_queue_id"] == queue_id
            assert record.queue_offset == unit["record_queue_offset"]
            assert record.flag == unit["flag"]
            assert record.sys_flag == unit["sys_flag"]
            assert record.born_timestamp_ms == unit["born_timestamp"]
            assert unpack_host(record.born_host) == host(unit["born_host"])
            assert record.store_timestamp_ms == unit["store_timestamp"]
            assert unpack_host(record.store_host) == host(unit["store_host"])
            assert record.reconsume_times == unit["reconsume_times"]
            assert record.prepared_transaction_offset == unit["prepared_transaction_offset"]
            assert record.body_crc == unit["body_crc"]
            assert record.properties_dict == unit["properties"]
            assert record.body == base64.b64decode(unit["stored_body_b64"])
            assert encode_record(record) == stored.data, "a record re-encodes to its own bytes"
    assert count == 241


def test_what_was_sent_is_there(case: str, store: MessageStore) -> None:
    for sent in said_by_apache(f"{case}.json.gz")["sent"]:
        physical_offset = int(sent["offset_msg_id"][-16:], 16)
        record = decode(store.record_at(physical_offset))
        assert record.topic == sent["topic"]
        assert record.queue_id == sent["queue"]
        assert record.queue_offset == sent["queue_offset"]
        assert record.body == base64.b64decode(sent["body_b64"])


def test_opening_changes_no_byte_that_is_not_ours(case: str, root: Path) -> None:
    before = files_of(root)
    store = new_store(root)
    report = store.open()
    store.close()
    after = files_of(root)
    assert report.clean == (case == "normal")
    gone = {"commitlog/00000000000000393216"} if case == "killed" else set()
    assert set(before) - set(after) == gone, "only the segment that was made ahead"
    assert all(after[name] == before[name] for name in after)


def test_queues_built_from_the_log_have_apaches_bytes(root: Path) -> None:
    before = {n: h for n, h in files_of(root).items() if n.startswith("consumequeue/")}
    shutil.rmtree(root / "consumequeue")
    store = new_store(root)
    store.open()
    store.start()
    while store.dispatched_offset < store.log_end:
        store.dispatch(store.log_end)
    store.close()
    after = {n: h for n, h in files_of(root).items() if n.startswith("consumequeue/")}
    assert after == before


def test_the_log_goes_on_behind_apaches_records(root: Path, case: str) -> None:
    said = said_by_apache(SAID[case])
    others = {n: h for n, h in files_of(root).items() if n.startswith(("index/", "timer"))}
    store = new_store(root)
    store.open()
    store.start()
    # The next segment boundary is 47,427 bytes away: ten of these cross it.
    messages = [Message("TopicNormal", 1, bytes([i]) * 8000) for i in range(10)]
    results = store.append_many(messages)
    assert {result.status for result in results} == {PutStatus.PUT_OK}
    assert results[0].physical_offset == said["max_physical_offset"]
    assert [result.queue_offset for result in results] == list(range(60, 70))
    store.dispatch(store.log_end)
    store.close()
    assert (root / "lock").read_bytes() == b"lock"
    assert not (root / "abort").exists()
    store = new_store(root)
    assert store.open().clean
    assert store.max_offset("TopicNormal", 1) == 70
    bodies = [decode(r.data).body for r in store.get("TopicNormal", 1, 60, 32).records]
    assert bodies == [message.body for message in messages]
    store.close()
    # The files of Apache's that the store does not know yet stay as they are.
    kept = {n: h for n, h in files_of(root).items() if n.startswith(("index/", "timer"))}
    assert kept == others


def test_the_blank_at_a_segments_end_is_apaches(root: Path) -> None:
    """Both of Apache's full segments end as ours do: remaining bytes, magic, zeros."""
    for name in ("00000000000000000000", "00000000000000131072"):
        data = (root / "commitlog" / name).read_bytes()
        position = 0
        while data[position + 4 : position + 8] != bytes.fromhex("cbd43194"):
            record = decode(data[position:])
            assert record.physical_offset == int(name) + position
            position += record.size
        rest = len(data) - position
        assert data[position:] == rest.to_bytes(4, "big") + bytes.fromhex("cbd43194") + bytes(
            rest - 8
        )


def test_a_log_written_again_message_by_message_has_apaches_bytes(root: Path) -> None:
    """The same messages at the same times through our appender: the same segments, blanks and
    queues, byte for byte."""
    old = new_store(root)
    old.open()
    records = []
    offset = 0
    while offset < old.log_end:
        data = old.read_log(offset, SEGMENT)
        position = 0
        while position < len(data) and data[position + 4 : position + 8] != b"\xcb\xd4\x31\x94":
            records.append(decode(data[position:]))
            position += records[-1].size
        offset += len(data)
    old.close()
    now = [0]
    config = StoreConfig(
        str(root / "again"),
        mapped_file_size_commit_log=SEGMENT,
        mapped_file_size_consume_queue=QUEUE_FILE,
    )
    new = MessageStore(config, lambda: now[0])
    new.open()
    new.start()
    for record in records:
        now[0] = record.store_timestamp_ms
        (result,) = new.append_many([record])
        assert result.physical_offset == record.physical_offset
    new.dispatch(new.log_end)
    new.close()
    ours = files_of(root / "again")
    theirs = files_of(root)
    compared = [name for name in ours if name.startswith(("commitlog/", "consumequeue/"))]
    assert len(compared) == 8
    for name in compared:
        assert ours[name] == theirs[name], name
