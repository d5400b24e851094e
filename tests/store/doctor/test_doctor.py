"""The doctor on undamaged stores: Apache's and ours; stopped, killed and running. And what it
prints of them."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from cometmq.store.doctor.diff import diff
from cometmq.store.doctor.dump import DumpState, Selection, index_entries, messages, timers, units
from cometmq.store.doctor.index_view import common_layout
from cometmq.store.doctor.layout import Layout, NoStoreError, Sizes, discover
from cometmq.store.doctor.listing import list_store
from cometmq.store.doctor.verify import verify
from cometmq.store.format.bodies import decompress
from cometmq.store.query import KeyQuery, StoreQuery
from cometmq.tests.formats.cases import CASES, KILLED, LOG_ENDS, manifest, queues_of, unpack

RENAMED = {
    "record_topic": "topic",
    "record_queue_id": "queue_id",
    "record_queue_offset": "queue_offset",
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def layout(case: str, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    return discover(unpack(case, tmp_path_factory.mktemp("golden")))


@pytest.fixture(scope="module")
def rows(layout: Layout) -> dict[int, dict[str, Any]]:
    """Every message by physical offset."""
    state = DumpState()
    found = {row["physical_offset"]: row for row in messages(layout, Selection(), state)}
    assert state.lost == []
    return found


# -- Apache's -------------------------------------------------------------------------------------


def test_a_store_of_apaches_has_no_problem(case: str, layout: Layout) -> None:
    report = verify(layout)
    assert [one.document() for one in report.findings.problems] == []
    notes = [one.kind for one in report.findings.notes]
    assert notes == (["not_stopped"] if case in KILLED else [])
    said = manifest(case)
    end = LOG_ENDS.get(case, said["max_physical_offset"])
    assert report.verdict.end == end
    assert report.bytes == end - said["min_physical_offset"]


def test_the_dump_equals_what_apache_read_back(case: str, rows: dict[int, dict[str, Any]]) -> None:
    for _, _, queue in queues_of(manifest(case)):
        for unit in queue["units"]:
            row = rows[unit["physical_offset"]]
            for name, value in unit.items():
                if name not in ("queue_offset", "offset_msg_id"):
                    assert row[RENAMED.get(name, name)] == value, (unit["physical_offset"], name)


def test_bodies_are_dumped_as_sent(case: str, rows: dict[int, dict[str, Any]]) -> None:
    for sent in manifest(case)["sent"]:
        if isinstance(sent, dict) and sent.get("offset_msg_id") and "body_b64" in sent:
            row = rows.get(int(sent["offset_msg_id"][-16:], 16))
            if row is not None and row["topic"] == sent["topic"]:
                assert row["body_b64"] == sent["body_b64"]


def test_the_queues_dump_has_apaches_units(case: str, layout: Layout) -> None:
    found = {(u["topic"], u["queue_id"], u["queue_offset"]): u for u in units(layout, Selection())}
    for topic, queue_id, queue in queues_of(manifest(case)):
        for unit in queue["units"]:
            mine = found[topic, queue_id, unit["queue_offset"]]
            for name in ("physical_offset", "size", "tags_code"):
                assert mine[name] == unit[name]


def test_key_queries_equal_apaches(case: str, layout: Layout) -> None:
    folders = [str(layout.root / "commitlog")]
    with StoreQuery(folders, str(layout.root / "index"), common_layout(layout)) as store:
        for asked in manifest(case)["key_queries"]:
            found = store.query(KeyQuery(asked["topic"], asked["key"], 1000))
            expected = set(asked["physical_offsets"])
            assert {record.physical_offset for record in found} == expected


def test_the_listing_knows_what_the_manifest_knows(case: str, layout: Layout) -> None:
    document = list_store(layout)
    said = manifest(case)
    assert document["segments"][0]["start"] == said["min_physical_offset"]
    held = {(q["topic"], q["queue_id"]): q for q in document["queues"]}
    for topic, queue_id, queue in queues_of(said):
        mine = held[topic, queue_id]
        assert mine["min"] == queue["min"]
        assert mine["max"] >= queue["max"]
    assert document["stopped_cleanly"] == (case not in KILLED)
    assert sum(row["entries"] for row in document["index"]) == len(list(index_entries(layout)))
    assert not document["strays"]
    if document["timers"] and document["timers"]["log_files"]:
        assert len(list(timers(layout, Selection()))) > 0


def test_a_store_equals_itself(layout: Layout) -> None:
    assert list(diff(layout, layout)) == []


# -- parts ----------------------------------------------------------------------------------------


def test_a_selection_bounds_what_is_dumped(tmp_path: Path) -> None:
    layout = discover(unpack("normal", tmp_path))
    rows = list(messages(layout, Selection("TopicNormal", 2), DumpState()))
    assert {(row["topic"], row["queue_id"]) for row in rows} == {("TopicNormal", 2)}
    assert len(rows) == 60
    some = list(messages(layout, Selection("TopicNormal", 2, 10, 20), DumpState(), by_number=True))
    assert [row["queue_offset"] for row in some] == list(range(10, 20))
    begin, end = rows[5]["physical_offset"], rows[8]["physical_offset"]
    part = list(messages(layout, Selection("TopicNormal", 2, begin, end), DumpState()))
    assert part == rows[5:8]


@pytest.mark.parametrize(
    ("body", "flag"),
    [(b"junk", 0x301), (b"junk", 0x101), (b"junk", 0x201), (b"x\x9c\x03", 0x001), (b"", 0x501)],
)
def test_a_body_that_is_not_compressed_raises(body: bytes, flag: int) -> None:
    with pytest.raises(ValueError, match=r"stream|frame|Compression"):
        decompress(body, flag)
    assert base64.b64encode(decompress(body, 0)) == base64.b64encode(body)


def test_a_directory_that_is_not_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoStoreError, match="not a store directory"):
        discover(tmp_path)
    with pytest.raises(NoStoreError, match="not a directory"):
        discover(tmp_path / "nothing")


def test_sizes_are_found_in_damaged_folders(tmp_path: Path) -> None:
    root = unpack("normal", tmp_path)
    (root / "commitlog/00000000000000131072").write_bytes(b"\0" * 1000)
    layout = discover(root)
    assert layout.log.size == 131_072
    assert discover(root, Sizes(segment=4096)).log.size == 4096
