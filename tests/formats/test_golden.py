"""Every golden directory through our store: it answers what Apache's broker answered.

`cases.py` lists the 16 cases. Directories of killed brokers are compared with the result of
Apache's own recovery of a copy.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.store.format.record import Message, decode, encode_record
from cometmq.store.format.results import PutStatus
from cometmq.store.message_store import MessageStore
from cometmq.tests.formats.agreement import check_key_queries, check_queues, check_units
from cometmq.tests.formats.cases import (
    BLANK_MAGIC,
    CASES,
    KILLED,
    LOG_ENDS,
    contents,
    digests,
    dispatch_all,
    manifest,
    new_store,
    queues_of,
    read_back,
    records_of,
    units_of,
    unpack,
)

#: Folders whose files a rebuild from the log must make again.
QUEUES = ("consumequeue", "consumequeue_ext")


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def root(case: str, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return unpack(case, tmp_path)


@pytest.fixture(scope="module")
def store(case: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    """A store on another copy, which the tests of a case share: they only read."""
    store = new_store(case, unpack(case, tmp_path_factory.mktemp(case)))
    store.open()
    store.start()  # a killed store's index is made again once the store may write
    dispatch_all(store)
    yield store
    store.close()


def test_all_cases_are_here() -> None:
    assert len(CASES) == 16


def test_the_store_returns_what_apache_returned(case: str, store: MessageStore) -> None:
    said = read_back(case)
    assert store.log_start == said["min_physical_offset"]
    assert store.log_end == LOG_ENDS.get(case, said["max_physical_offset"])
    check_queues(store, said, may_have_grown=case == "transaction")


def test_every_unit_and_record_is_what_apache_read(case: str, store: MessageStore) -> None:
    assert check_units(store, read_back(case)) > 0


def low_32(code: int) -> int:
    """The part of a tags code that a filter compares, signed."""
    return (code & 0xFFFFFFFF) - (code << 1 & 1 << 32)


def test_a_tag_finds_the_same_messages(case: str, store: MessageStore) -> None:
    """Reading with a filter: the units of one code, and those whose code is no hash of tags (the
    due time of a scheduled record, or damage), in order."""
    for topic, queue_id, queue in queues_of(read_back(case)):
        codes = [(unit["queue_offset"], unit["tags_code"]) for unit in queue["units"]]
        for wanted in {low_32(code) for _, code in codes[:20]}:
            found: list[int] = []
            offset = queue["min"]
            while offset < queue["max"]:
                result = store.get(topic, queue_id, offset, 32, tag_codes=frozenset({wanted}))
                found += [r.queue_offset for r in result.records if r.queue_offset < queue["max"]]
                offset = result.next_offset
            matching = [n for n, code in codes if code == wanted or code != low_32(code)]
            assert found == matching


def test_key_queries_find_what_apache_found(case: str, store: MessageStore) -> None:
    check_key_queries(store, manifest(case))


def test_every_key_and_unique_id_is_found(case: str, store: MessageStore) -> None:
    """More than the manifests ask: each message by its unique id and by each key."""
    places: dict[tuple[str, str], list[int]] = {}
    for unit in units_of(read_back(case)):
        properties = unit["properties"]
        keys = {properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")} - {""}
        for key in keys:
            places.setdefault((unit["record_topic"], key), []).append(unit["physical_offset"])
    for (topic, key), expected in places.items():
        found = [record.physical_offset for record in store.queries.query(topic, key)]
        if case == "transaction":  # what came after the manifest is found too
            found = [offset for offset in found if offset in expected]
        assert found == sorted(expected)[-64:]


def test_sent_messages_are_stored(case: str, store: MessageStore) -> None:
    for sent in manifest(case)["sent"]:
        for message_id in filter(None, (sent.get("offset_msg_id") or "").split(",")):
            physical_offset = int(message_id[-16:], 16)
            if physical_offset >= store.log_end or physical_offset < store.log_start:
                assert case in ("hosts", "expired")
                continue
            record = decode(store.record_at(physical_offset))
            if "delay" in case or case in ("timer-roll", "transaction"):
                continue  # what was stored has another topic
            assert record.topic == sent["topic"]
            assert record.queue_id == sent.get("queue", record.queue_id)
            if "batch_of" not in sent:
                assert record.queue_offset == sent["queue_offset"]
                if not record.sys_flag & 1:
                    assert record.body == base64.b64decode(sent["body_b64"])


def test_every_record_re_encodes_to_its_own_bytes(case: str, root: Path) -> None:
    """All that is in the segments, also what no queue points to."""
    count = 0
    for record, data in records_of(root):
        assert encode_record(record) == data
        count += 1
    assert count >= sum(queue["max"] - queue["min"] for _, _, queue in queues_of(read_back(case)))


def test_opening_changes_no_foreign_byte(case: str, root: Path) -> None:
    before = digests(root)
    store = new_store(case, root)
    report = store.open()
    store.close()
    after = digests(root)
    assert report.clean == (case not in KILLED)
    # The segment that was made ahead, and an index file that the checkpoint does not vouch for
    # (both brokers make that one again).
    expected = {
        "killed": {"commitlog/00000000000000393216", "index/20261121093035415"},
        "delay-killed": {"commitlog/00000000000000131072", "index/20261121093414360"},
    }
    assert set(before) - set(after) == expected.get(case, set())
    changed = {name for name in after if name in before and after[name] != before[name]}
    # A blank with no segment behind it is taken back: Apache goes on there, we put zeros there too.
    taken_back = "commitlog/00000000000000262144"
    assert changed == ({taken_back} if case == "hosts" else set())
    if changed:
        assert (root / taken_back).read_bytes() == bytes(131_072)


def test_queues_built_from_the_log_have_apaches_bytes(case: str, root: Path) -> None:
    if case == "expired":
        return  # its log begins in the middle, so the units before it cannot be made again
    before = contents(root, *QUEUES)
    for folder in QUEUES:
        shutil.rmtree(root / folder, ignore_errors=True)
    store = new_store(case, root)
    store.open()
    store.start()
    dispatch_all(store)
    store.close()
    after = contents(root, *QUEUES)
    assert after.keys() == before.keys()
    for name, data in before.items():
        assert after[name] == data, name


@pytest.mark.parametrize("case", ["normal", "killed"], scope="module")
def test_the_log_continues_behind_apaches_records(case: str, root: Path) -> None:
    said = read_back(case)
    timers = {name: data for name, data in digests(root).items() if name.startswith("timer")}
    store = new_store(case, root)
    store.open()
    store.start()
    # The next segment boundary is 47,427 bytes away: ten of these cross it.
    messages = [Message("TopicNormal", 1, bytes([i]) * 8000) for i in range(10)]
    results = store.writer.append_many(messages)
    assert {result.status for result in results} == {PutStatus.PUT_OK}
    assert results[0].physical_offset == said["max_physical_offset"]
    assert [result.queue_offset for result in results] == list(range(60, 70))
    dispatch_all(store)
    store.close()
    assert (root / "lock").read_bytes() == b"lock"
    assert not (root / "abort").exists()
    store = new_store(case, root)
    assert store.open().clean
    assert store.max_offset("TopicNormal", 1) == 70
    bodies = [decode(r.data).body for r in store.get("TopicNormal", 1, 60, 32).records]
    assert bodies == [message.body for message in messages]
    store.close()
    assert {n: d for n, d in digests(root).items() if n.startswith("timer")} == timers


@pytest.mark.parametrize("case", ["normal", "killed"], scope="module")
def test_the_blank_at_a_segments_end_is_apaches(root: Path) -> None:
    """Both of Apache's full segments end as ours do: remaining bytes, magic, zeros."""
    for name in ("00000000000000000000", "00000000000000131072"):
        data = (root / "commitlog" / name).read_bytes()
        position = 0
        while data[position + 4 : position + 8] != BLANK_MAGIC:
            position += decode(data[position:]).size
        rest = len(data) - position
        assert data[position:] == rest.to_bytes(4, "big") + BLANK_MAGIC + bytes(rest - 8)
