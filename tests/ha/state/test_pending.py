"""Plans for the closed directory: durable, repeated until complete, never half done."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import pytest

from cometmq.ha.errors import DamagedStateError
from cometmq.ha.rejoin import archive, pending
from cometmq.ha.rejoin.plan import CUT, PENDING_NAME, RESEED, Plan, read_plan, write_plan
from cometmq.ha.state import documents
from cometmq.ha.state.replica_meta import META_NAME
from cometmq.ha.state.slots import SlotFile
from cometmq.store.format.disk import Disk
from cometmq.store.format.errors import StoreError, StoreLockedError
from tests.store.kit import Kit


def test_a_plan_is_read_back_unchanged(tmp_path: Path) -> None:
    plan = Plan(
        CUT, to=4096, epoch=3, epochs=((1, 0), (2, 100)), reason="diverged", leader="broker 1"
    )
    write_plan(tmp_path, plan)
    assert read_plan(tmp_path) == plan
    later = Plan(RESEED, reason="below the leader's start")
    write_plan(tmp_path, later)
    assert read_plan(tmp_path) == later


def test_a_plan_is_flushed_before_it_counts(tmp_path: Path) -> None:
    disk = Disk()
    write_plan(tmp_path, Plan(RESEED), disk)
    assert disk.counts["fsync"] >= 2, "the file and its name"


def test_a_full_disk_keeps_the_previous_plan(tmp_path: Path) -> None:
    before = Plan(RESEED, reason="first")
    write_plan(tmp_path, before)
    disk = Disk()

    def full(name: str) -> None:
        if name == "pwrite":
            raise OSError(28, "No space left on device")

    disk.fault = full
    with pytest.raises(OSError, match="No space"):
        write_plan(tmp_path, Plan(RESEED, reason="second"), disk)
    assert read_plan(tmp_path) == before


def test_a_damaged_plan_is_refused_with_what_to_do(tmp_path: Path) -> None:
    write_plan(tmp_path, Plan(RESEED))
    path = tmp_path / PENDING_NAME
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedStateError, match="Delete it"):
        read_plan(tmp_path)


@pytest.mark.parametrize("bad", [{"kind": "shrink"}, {"kind": CUT, "to": -1}])
def test_an_invalid_plan_raises_value_error(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Plan(**bad)  # type: ignore[arg-type]


def test_without_a_plan_nothing_is_touched(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    assert pending.run(tmp_path, kit.store.config) == []
    assert not list(tmp_path.iterdir())


def test_an_open_store_is_never_changed(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.open()
    write_plan(tmp_path / "ha", Plan(CUT, to=0))
    with pytest.raises(StoreLockedError):
        pending.run(tmp_path, kit.store.config)
    assert read_plan(tmp_path / "ha") is not None, "the plan waits"
    kit.close()


def _reseeded(tmp_path: Path) -> Kit:
    kit = Kit(tmp_path)
    kit.open()
    kit.write_many(60)
    kit.close()
    slots = SlotFile(tmp_path / "ha" / META_NAME, durable=True)
    slots.save({"replica_uuid": "old", "incarnation": 7, "promised_epoch": 5, "suspect": True})
    slots.close()
    (tmp_path / "ha" / "positions").write_bytes(b"of the old log")
    return kit


def test_a_reseed_moves_everything_aside_and_deletes_nothing(tmp_path: Path) -> None:
    kit = _reseeded(tmp_path)
    before = kit.log_bytes()
    plan = Plan(RESEED, reason="below the leader's start")
    write_plan(tmp_path / "ha", plan)
    steps = pending.run(tmp_path, kit.store.config)
    assert any("aside" in step for step in steps)
    aside = tmp_path / "aside" / plan.plan_id
    assert b"".join(p.read_bytes() for p in sorted((aside / "commitlog").iterdir())) == before
    assert (aside / "ha" / "positions").read_bytes() == b"of the old log"
    assert read_plan(tmp_path / "ha") is None
    report = kit.open()
    assert (report.log_start, report.log_end) == (0, 0)
    kit.close()


def test_a_reseed_renews_the_uuid_and_keeps_the_promise(tmp_path: Path) -> None:
    kit = _reseeded(tmp_path)
    write_plan(tmp_path / "ha", Plan(RESEED))
    pending.run(tmp_path, kit.store.config)
    state = SlotFile(tmp_path / "ha" / META_NAME, durable=True).load()
    assert state is not None
    assert state["replica_uuid"] != "old"
    assert (state["incarnation"], state["promised_epoch"], state["suspect"]) == (7, 5, True)


def test_a_reseed_moves_segments_of_other_directories(tmp_path: Path) -> None:
    other = tmp_path / "logs"
    kit = Kit(tmp_path / "store", store_path_commit_log=str(other))
    kit.open()
    kit.write_many(20)
    kit.close()
    plan = Plan(RESEED)
    names = sorted(os.listdir(other))
    write_plan(tmp_path / "store" / "ha", plan)
    pending.run(tmp_path / "store", kit.store.config)
    assert sorted(os.listdir(other / f"aside-{plan.plan_id}")) == names
    assert kit.open().log_end == 0, "the folder between the segments is no segment"
    kit.close()


@pytest.mark.parametrize("crash_at", range(1, 40, 3))
def test_an_interrupted_reseed_is_completed(tmp_path: Path, crash_at: int) -> None:
    kit = _reseeded(tmp_path)
    plan = Plan(RESEED)
    write_plan(tmp_path / "ha", plan)
    disk = Disk()
    calls = 0

    def fault(name: str) -> None:
        nonlocal calls
        calls += 1
        if calls == crash_at:
            raise OSError(5, "killed here")

    disk.fault = fault
    try:
        pending.run(tmp_path, kit.store.config, disk)
    except (OSError, StoreError):
        if read_plan(tmp_path / "ha") is None:
            moved = (tmp_path / "aside" / plan.plan_id / "commitlog").is_dir()
            assert moved, "the plan is deleted last"
        else:
            pending.run(tmp_path, kit.store.config)
    assert read_plan(tmp_path / "ha") is None
    assert (tmp_path / "aside" / plan.plan_id / "commitlog").is_dir()
    assert kit.open().log_end == 0
    kit.close()


@pytest.mark.parametrize("plan_id", ["../../elsewhere", "..", "", "/tmp"])
def test_a_plan_whose_id_is_a_path_is_refused(tmp_path: Path, plan_id: str) -> None:
    content = asdict(Plan(RESEED)) | {"plan_id": plan_id}
    documents.write(tmp_path / PENDING_NAME, content, Disk())
    with pytest.raises(DamagedStateError, match="plan id"):
        read_plan(tmp_path)


def test_a_tail_whose_name_is_a_path_is_refused(tmp_path: Path) -> None:
    content = {"file_id": "../../../secret"}
    documents.write(tmp_path / archive.FOLDER / "1-0-9.json", content, Disk())
    with pytest.raises(DamagedStateError, match="name of a tail"):
        archive.load_tails(tmp_path)
