"""Repair: what is derived comes back with its own bytes, what is true is never touched, and a
repair that was killed is continued."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.store.doctor.journal import Journal, events_of, finish_interrupted
from cometmq.store.doctor.layout import discover
from cometmq.store.doctor.problems import Finding
from cometmq.store.doctor.repair import Repair
from cometmq.store.doctor.repair_plan import Action, Plan, plan_repair
from cometmq.store.doctor.verify import verify
from cometmq.store.format.disk import Disk
from cometmq.store.format.json_file import load, loads, unseal
from cometmq.tests.formats.cases import unpack
from cometmq.tests.store.damage import Place, RecordPlace, Site, flip, zero
from cometmq.tests.store.doctor import test_doctor_matrix as matrix

NOW_MS = 1_800_000_000_000
DERIVED = ("unit", "queue", "index", "checkpoint", "timer wheel", "extension")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return unpack("normal", tmp_path)


def hashes(root: Path, *folders: str) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in folders
        for path in sorted((root / folder).rglob("*"))
        if path.is_file()
    }


def planned(root: Path) -> Plan:
    layout = discover(root)
    return plan_repair(layout, verify(layout))


def repair(root: Path, stamp: str = "now") -> list[Finding]:
    """Plan, repair, verify again: the problems that are left."""
    layout = discover(root)
    report = verify(layout)
    plan = plan_repair(layout, report)
    journal = Journal(root, stamp, Disk())
    try:
        Repair(layout, report, journal, Disk()).run(plan, NOW_MS)
        journal.write("finished")
    finally:
        journal.close()
    return verify(discover(root)).findings.problems


@pytest.mark.parametrize(
    ("case", "plant"),
    [row[1:] for row in matrix.MATRIX if row[0].startswith(DERIVED)],
    ids=[row[0] for row in matrix.MATRIX if row[0].startswith(DERIVED)],
)
def test_planted_damage_of_derived_files_is_repaired(
    case: str, plant: Callable[[Site], Place], tmp_path: Path
) -> None:
    root = unpack(case, tmp_path)
    before = hashes(root, "commitlog")
    plant(Site(root))
    assert repair(root) == []
    assert hashes(root, "commitlog") == before


def test_rebuilt_queues_have_the_original_bytes(root: Path) -> None:
    before = hashes(root, "consumequeue")
    site = Site(root)
    zero(Place(site.unit("TopicNormal", 1, 0).file, 0, 600))
    flip(site.unit("TopicUnicode", 0, 0), 3)
    assert repair(root) == []
    assert hashes(root, "consumequeue") == before
    kept = root / "repair-now/originals/consumequeue/TopicNormal/1/00000000000000000000"
    assert kept.read_bytes()[:600] == bytes(600)


def test_a_queue_that_begins_inside_a_file_keeps_its_numbers(tmp_path: Path) -> None:
    root = unpack("expired", tmp_path)
    unit = Site(root).unit("TopicExpired", 0, 0)
    last = max(i for i in range(100) if any(unit.part(20 * i, 20 * i + 20).data))
    flip(unit.part(20 * last, 20 * last + 20), 1)
    assert repair(root) == []
    assert unit.file.stat().st_size == 2000


def test_a_rebuilt_index_has_the_original_bytes(root: Path) -> None:
    site = Site(root)
    files = sorted((root / "index").iterdir())
    before = [path.read_bytes() for path in files]
    flip(site.entry(50).part(4, 12), 3)
    assert repair(root) == []
    made = sorted((root / "index").iterdir())
    assert [path.read_bytes() for path in made] == before
    assert all(int(path.name) for path in made)


def test_a_lost_queue_folder_is_rebuilt(root: Path) -> None:
    before = hashes(root, "consumequeue")
    for path in (root / "consumequeue/TopicNormal/2").iterdir():
        path.unlink()
    (root / "consumequeue/TopicNormal/2").rmdir()
    assert repair(root) == []
    assert hashes(root, "consumequeue") == before


def test_a_torn_tail_is_cut_and_kept(tmp_path: Path) -> None:
    root = unpack("killed", tmp_path)
    site = Site(root)
    last = site.records[-1].whole
    torn = Place(last.file, last.end, last.end + 300)
    torn.write(last.data[:150].ljust(300, b"\0"))
    plan = planned(root)
    assert [step.action for step in plan.steps] == [Action.CUT_TAIL]
    assert plan.refused == []
    assert repair(root) == []
    assert torn.data == bytes(300)
    (kept,) = (root / "repair-now/originals/commitlog").iterdir()
    assert kept.read_bytes() == last.data[:150].rstrip(b"\0")
    assert (root / "abort").exists(), "the next start still looks at everything"


def test_damage_in_the_middle_of_the_log_is_only_reported(root: Path) -> None:
    site = Site(root)
    zero(site.record(30).field(0, 88))
    zero(site.unit("TopicNormal", 1, 40))
    before = hashes(root, "commitlog")
    left = repair(root)
    assert [one.kind for one in left] == ["record"]
    assert hashes(root, "commitlog") == before
    plan = planned(root)
    assert plan.steps == []
    assert [one.kind for one in plan.refused] == ["record"]


def test_units_of_lost_records_stay(root: Path) -> None:
    """When the segment is restored, the queue knows its records."""
    site = Site(root)
    record = site.record(30)
    unit = site.unit(record.topic, record.queue_id, record.queue_offset)
    was = unit.data
    zero(record.field(0, 88))
    zero(site.unit(record.topic, record.queue_id, record.queue_offset + 9))
    assert [one.kind for one in repair(root)] == ["record"]
    assert unit.data == was


def test_records_with_queue_units_are_not_cut_as_a_torn_tail(root: Path) -> None:
    """The last record of a store that was stopped cleanly is damaged: nothing is cut."""
    site = Site(root)
    before = hashes(root, "commitlog", "consumequeue")
    flip(site.records[-1].field(35, 36), 4)
    plan = planned(root)
    assert plan.steps == []
    assert {"torn_tail", "queue_ahead"} <= {one.kind for one in plan.refused}
    assert repair(root) == plan.refused
    after = hashes(root, "commitlog", "consumequeue")
    assert {n for n in before if before[n] != after[n]} == {"commitlog/00000000000000262144"}


def test_a_broken_json_file_is_replaced_by_its_backup(root: Path) -> None:
    path = root / "config/topics.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:200])
    assert repair(root) == []
    assert path.read_bytes() == (root / "config/topics.json.bak").read_bytes()
    assert (root / "repair-now/originals/config/topics.json").read_bytes() == whole[:200]


def tagged(site: Site) -> RecordPlace:
    """A record in the middle that has tags, keys and a unique key."""
    names = (b"TAGS\x01", b"KEYS\x01", b"UNIQ_KEY\x01")
    return next(r for r in site.records[20:] if all(n in r.properties.data for n in names))


@pytest.mark.parametrize("name", [b"KEYS\x01", b"UNIQ_KEY\x01"])
def test_a_record_with_damaged_keys_is_refused(root: Path, name: bytes) -> None:
    site = Site(root)
    record = tagged(site)
    at = record.properties.data.index(name) + len(name)
    flip(record.properties.part(at, at + 1), 1)
    index = hashes(root, "index")
    plan = planned(root)
    assert plan.steps == []
    assert [(one.kind, one.record) for one in plan.refused] == [("record_keys", record.offset)]
    assert repair(root) == plan.refused
    assert hashes(root, "index") == index


@pytest.mark.parametrize("other_damage", [False, True])
def test_damaged_tags_of_a_record_do_not_become_the_truth(root: Path, other_damage: bool) -> None:
    site = Site(root)
    record = tagged(site)
    unit = site.unit(record.topic, record.queue_id, record.queue_offset)
    before = unit.data
    at = record.properties.data.index(b"TAGS\x01") + 5
    flip(record.properties.part(at, at + 1), 1)
    if other_damage:  # the queue is rebuilt all the same
        zero(site.unit(record.topic, record.queue_id, 1))
    plan = planned(root)
    rebuilt = [Action.REBUILD_QUEUE] if other_damage else []
    assert [step.action for step in plan.steps] == rebuilt
    assert {one.kind for one in plan.refused} >= {"record_tags", "queue_tags"}
    repair(root)
    assert Place(unit.file, unit.begin, unit.end).data == before
    assert planned(root).steps == []


def test_a_damaged_tags_code_is_rebuilt(root: Path) -> None:
    site = Site(root)
    record = tagged(site)
    before = hashes(root, "consumequeue")
    unit = site.unit(record.topic, record.queue_id, record.queue_offset)
    flip(unit.part(19, 20))
    assert repair(root) == []
    assert hashes(root, "consumequeue") == before


@pytest.mark.parametrize("damage", ["cut", "zeros"])
def test_what_can_be_read_is_kept_if_file_and_backup_are_broken(root: Path, damage: str) -> None:
    path = root / "config/topics.json"
    whole = path.read_bytes()
    topics = loads(whole.decode())["topicConfigTable"]
    half = len(whole) // 2
    rest = b"" if damage == "cut" else bytes(16) + whole[half + 16 :]
    path.write_bytes(whole[:half] + rest)
    path.with_name("topics.json.bak").write_bytes(b"{")
    plan = planned(root)
    assert [step.action for step in plan.steps] == [Action.KEEP_READABLE]
    repair(root)
    kept = loads(unseal(path.read_text()))["topicConfigTable"]
    assert len(topics) // 3 < len(kept) < len(topics)
    whole_entries = [name for name, bean in kept.items() if bean == topics[name]]
    assert len(whole_entries) >= len(kept) - 1
    assert (root / "repair-now/originals/config/topics.json").read_bytes() == whole[:half] + rest
    assert load(path) is not None


def test_a_file_of_which_nothing_can_be_read_is_left_alone(root: Path) -> None:
    path = root / "config/topics.json"
    path.write_bytes(bytes(300))
    path.with_name("topics.json.bak").write_bytes(b"{")
    plan = planned(root)
    assert plan.steps == []
    assert "config/topics.json" in {one.file for one in plan.refused}
    repair(root)
    assert path.read_bytes() == bytes(300)


def test_the_journal_records_every_step(root: Path) -> None:
    zero(Site(root).unit("TopicNormal", 1, 40))
    repair(root)
    events = events_of(root / "repair-now")
    assert [e["event"] for e in events] == [
        "begin",
        "step",
        "replace",
        "replaced",
        "done",
        "finished",
    ]
    assert events[0]["steps"][0]["target"] == "consumequeue/TopicNormal/1"


class _Killed(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("calls", range(1, 40, 5))
def test_a_killed_repair_is_continued(root: Path, calls: int) -> None:
    """Killed at any call of the disk, a second repair leaves what an undisturbed one leaves."""
    queues = hashes(root, "consumequeue")
    log = hashes(root, "commitlog")
    index = sorted(hashes(root, "index").values())
    site = Site(root)
    zero(site.unit("TopicNormal", 1, 40))
    zero(site.unit("TopicNormal", 3, 2))
    flip(site.slot(site.used_slots()[2]).part(3, 4), 1)
    left = [calls]
    disk = Disk()

    def fault(_operation: str) -> None:
        left[0] -= 1
        if not left[0]:
            raise _Killed

    layout = discover(root)
    report = verify(layout)
    plan = plan_repair(layout, report)
    disk.fault = fault
    try:
        journal = Journal(root, "first", disk)
        Repair(layout, report, journal, disk).run(plan, NOW_MS)
        journal.write("finished")
    except _Killed:
        pass
    finish_interrupted(root, Disk())
    assert repair(root, "second") == []
    assert hashes(root, "consumequeue") == queues
    assert sorted(hashes(root, "index").values()) == index
    assert hashes(root, "commitlog") == log


def test_an_interrupted_replacement_is_completed(root: Path) -> None:
    """Between the two renames the queue is not there at all."""
    folder = root / "repair-x"
    target = root / "consumequeue/TopicNormal/1"
    new, original = folder / "new/q", folder / "originals/q"
    for path in (new, original):
        path.parent.mkdir(parents=True)
    os.rename(target, original)
    new.mkdir()
    paths = {"target": target, "new": new, "original": original}
    event = {"event": "replace"} | {n: str(p.relative_to(root)) for n, p in paths.items()}
    (folder / "journal.jsonl").write_text(json.dumps(event) + "\n" + '{"event": "repl')
    assert len(finish_interrupted(root, Disk())) == 2
    assert target.is_dir()
    assert finish_interrupted(root, Disk()) == []
