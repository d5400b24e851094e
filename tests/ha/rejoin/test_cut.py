"""Cut of a diverged tail: archived first, zeroed permanently, and no crash at any step brings it
back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cometmq.ha.core.epochs import EpochHistory, EpochStart
from cometmq.ha.rejoin import (
    archive,
    pending,
)
from cometmq.ha.rejoin.plan import CUT, Plan, read_plan, write_plan
from cometmq.ha.state import (
    epochs_file,
)
from cometmq.ha.state.positions import POSITIONS_NAME
from cometmq.ha.state.slots import SlotFile
from cometmq.store.format.checkpoint import CheckpointFile
from cometmq.store.format.disk import Disk
from cometmq.store.format.errors import DiskFullError, StoreError
from cometmq.store.format.record import encode_properties
from cometmq.store.timer.checkpoint import TimerCheckpoint, TimerCheckpointFile
from tests.store.fake_disk import FakeDisk, Fate
from tests.store.kit import LIMIT, Kit, assert_whole, filled, message

COUNT = 60
KEPT = 25
#: Index files of a few KiB: a power loss is a copy of every file.
SMALL = {"max_hash_slot_num": 100, "max_index_num": 400}


class Diverged:
    """A stopped store of `COUNT` records, whose leader has only the first `KEPT`."""

    def __init__(self, root: Path, *, clean: bool = True, kept: int = KEPT) -> None:
        self.kit = Kit(root, **SMALL)
        self.kit.open()
        self.ends = filled(self.kit, COUNT)
        self.cut_at = self.ends[kept - 1]
        if clean:
            self.kit.close()
        else:
            self.kit.kill()
        self.ha = root / "ha"
        history = EpochHistory([EpochStart(1, 0), EpochStart(2, self.ends[kept])])
        epochs_file.save(self.ha, history)
        self.set_positions(confirm=self.cut_at, local_ok=self.ends[kept + 9])
        self.log = self.kit.log_bytes()
        self.plan = Plan(CUT, self.cut_at, epoch=3, reason="diverged", leader="broker 1", at_ms=5)

    def set_positions(self, **values: int) -> None:
        slots = SlotFile(self.ha / POSITIONS_NAME, durable=True)
        slots.save(values)
        slots.close()

    def run(self, disk: Disk | None = None) -> list[str]:
        return pending.run(self.kit.root, self.kit.store.config, disk)

    def cut(self) -> list[str]:
        write_plan(self.ha, self.plan)
        return self.run()


def test_the_cut_tail_is_archived_unchanged(tmp_path: Path) -> None:
    store = Diverged(tmp_path)
    steps = store.cut()
    (tail,) = archive.load_tails(store.ha)
    data = (archive.folder_of(store.ha) / tail.log_name).read_bytes()
    assert data == store.log[store.cut_at : store.ends[-1]]
    assert (tail.start, tail.end, tail.messages) == (store.cut_at, store.ends[-1], COUNT - KEPT)
    assert tail.answered_ok == 10, "those that end at or below local_ok"
    assert tail.epoch == 2, "of the bytes that went"
    assert (tail.decided_epoch, tail.leader, tail.cut_at_ms) == (3, "broker 1", 5)
    assert any("10 answered OK" in step for step in steps)
    assert read_plan(store.ha) is None


@pytest.mark.parametrize("clean", [True, False])
def test_the_store_continues_at_the_cut(tmp_path: Path, clean: bool) -> None:
    store = Diverged(tmp_path, clean=clean)
    store.cut()
    report = store.kit.open()
    assert report.log_end == store.cut_at
    assert_whole(store.kit, KEPT)
    for index in range(KEPT, 40):
        store.kit.write(f"{index:04d}".encode().ljust(200), queue_id=index % 3, tags="T")
    assert_whole(store.kit, 40)
    store.kit.close()


def test_every_byte_behind_the_cut_is_zero(tmp_path: Path) -> None:
    store = Diverged(tmp_path)
    store.cut()
    assert store.kit.log_bytes()[: store.cut_at] == store.log[: store.cut_at]
    assert not store.kit.log_bytes()[store.cut_at :].strip(b"\0")
    assert len(store.kit.segment_paths()) == store.cut_at // 4096 + 1


def test_histories_and_positions_follow_the_cut(tmp_path: Path) -> None:
    store = Diverged(tmp_path)
    store.cut()
    history = epochs_file.load(store.ha)
    assert history is not None
    assert history.entries == (EpochStart(1, 0),)
    previous = epochs_file.load(store.ha, epochs_file.PREVIOUS_NAME)
    assert previous is not None, "the version before is kept"
    assert previous.last_epoch == 2
    state = SlotFile(store.ha / POSITIONS_NAME, durable=True).load()
    assert state == {"confirm": store.cut_at, "local_ok": store.cut_at}
    checkpoint = CheckpointFile(str(tmp_path / "checkpoint"), Disk()).load()
    assert checkpoint.flushed_end == store.cut_at


def test_a_cut_below_confirm_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    store = Diverged(tmp_path)
    store.set_positions(confirm=store.ends[KEPT + 1], local_ok=0)
    steps = store.cut()
    assert steps[0].startswith("refused:")
    assert store.kit.log_bytes() == store.log
    assert read_plan(store.ha) is None, "the replica starts, and its group is in HOLD"
    assert not archive.load_tails(store.ha)


def test_accepted_loss_may_cut_below_confirm_and_says_so(tmp_path: Path) -> None:
    store = Diverged(tmp_path)
    store.set_positions(confirm=store.ends[KEPT + 1], local_ok=0)
    store.plan = Plan(CUT, store.cut_at, epoch=3, leader="broker 1", accept_loss=True)
    store.cut()
    (tail,) = archive.load_tails(store.ha)
    assert tail.below_confirm
    assert store.kit.open().log_end == store.cut_at
    store.kit.close()


def test_a_cut_below_the_logs_start_is_refused(tmp_path: Path) -> None:
    store = Diverged(tmp_path)
    store.kit.segment_paths()[0].unlink()
    store.set_positions(confirm=0, local_ok=0)
    store.plan = Plan(CUT, 100, epoch=3, leader="broker 1")
    assert "has to reseed" in store.cut()[0]


def test_a_cut_beyond_the_end_does_nothing(tmp_path: Path) -> None:
    store = Diverged(tmp_path)
    store.plan = Plan(CUT, 1 << 20, epoch=3, leader="broker 1")
    assert store.cut() == ["the log already ends at or before 1048576"]
    assert store.kit.log_bytes() == store.log


def test_a_cut_inside_a_record_removes_all_of_it(tmp_path: Path) -> None:
    """Bytes before the cut would be a torn record, which recovery drops without an archive."""
    store = Diverged(tmp_path)
    store.set_positions(confirm=0, local_ok=0)
    store.plan = Plan(CUT, store.cut_at + 50, epoch=3, leader="broker 1")
    store.cut()
    (tail,) = archive.load_tails(store.ha)
    assert tail.start == store.cut_at
    assert store.kit.open().log_end == store.cut_at
    store.kit.close()


@pytest.mark.parametrize("kept", [1, 13, 14, 26, 27])
def test_cuts_at_segment_boundaries(tmp_path: Path, kept: int) -> None:
    store = Diverged(tmp_path, kept=kept)
    store.cut()
    assert store.kit.open().log_end == store.cut_at
    assert_whole(store.kit, kept)
    store.kit.close()


def test_a_cut_at_the_start_of_a_segment_leaves_the_blank(tmp_path: Path) -> None:
    store = Diverged(tmp_path)
    store.plan = Plan(CUT, 2 * 4096, epoch=3, leader="broker 1", accept_loss=True)
    store.cut()
    report = store.kit.open()
    kept = sum(end <= 2 * 4096 for end in store.ends)
    assert report.log_end in (2 * 4096, store.ends[kept - 1])
    assert_whole(store.kit, kept)
    store.kit.close()


def test_a_full_disk_keeps_the_tail_and_the_plan(tmp_path: Path) -> None:
    store = Diverged(tmp_path)
    write_plan(store.ha, store.plan)
    disk = Disk()

    def full(name: str) -> None:
        if name == "pwrite":
            raise OSError(28, "No space left on device")

    disk.fault = full
    with pytest.raises(DiskFullError, match="not enough disk space to archive"):
        store.run(disk)
    assert store.kit.log_bytes() == store.log
    assert store.run(), "with room it is done"
    assert store.kit.open().log_end == store.cut_at
    store.kit.close()


# --- crashes --------------------------------------------------------------------------------------


def _interrupt(store: Diverged, disk: Disk, at: int) -> bool:
    """Run the plan until the disk's call number `at`; whether it came so far."""
    calls = 0

    def fault(_name: str) -> None:
        nonlocal calls
        calls += 1
        if calls >= at:
            raise OSError(5, "the machine stops here")

    disk.fault = fault
    try:
        store.run(disk)
    except (OSError, StoreError):
        return True
    return False


def _check_finished(store: Diverged, root: Path) -> None:
    """The plan was finished: the archive is whole, the log is the prefix, and stays so."""
    (tail,) = archive.load_tails(root / "ha")
    data = (archive.folder_of(root / "ha") / tail.log_name).read_bytes()
    assert data == store.log[store.cut_at : store.ends[-1]]
    assert (tail.messages, tail.answered_ok) == (COUNT - KEPT, 10)
    kit = Kit(root, **SMALL)
    assert kit.open().log_end == store.cut_at
    assert_whole(kit, KEPT)
    # A shorter record of the new history where the old one was: nothing of the old one behind it.
    kit.write(b"new")
    kit.kill()
    again = Kit(root, **SMALL)
    again.open()
    assert again.bodies()[KEPT:] == [b"new"]
    again.kill()


def test_a_cut_killed_at_any_step_is_completed_by_the_next_start(tmp_path: Path) -> None:
    at = 1
    while True:
        root = tmp_path / str(at)
        store = Diverged(root)
        write_plan(store.ha, store.plan)
        interrupted = _interrupt(store, Disk(), at)
        assert interrupted or read_plan(store.ha) is None
        store.run()
        _check_finished(store, root)
        if not interrupted:
            break
        at += 1
    assert at > 20


@pytest.mark.parametrize("seed", range(4))
def test_a_power_loss_at_any_step_never_brings_the_tail_back(tmp_path: Path, seed: int) -> None:
    at = 1 + seed
    while True:
        root, after = tmp_path / str(at), tmp_path / f"{at}-after"
        store = Diverged(root)
        write_plan(store.ha, store.plan)
        disk = FakeDisk(root)
        interrupted = _interrupt(store, disk, at)
        disk.crash(after, Fate(seed * 1000 + at))
        pending.run(after, Kit(after, **SMALL).store.config)
        _check_finished(store, after)
        if not interrupted:
            break
        at += 4


def test_the_tail_does_not_reappear_when_new_data_is_short(tmp_path: Path) -> None:
    """Finding 5: bytes that merely lie behind the end would be found again by a start."""
    store = Diverged(tmp_path)
    store.cut()
    store.kit.open()
    store.kit.kill()
    assert store.kit.open().log_end == store.cut_at
    store.kit.kill()


def test_the_same_range_of_another_history_gets_an_archive_of_its_own(tmp_path: Path) -> None:
    store = Diverged(tmp_path)
    store.cut()
    store.kit.open()
    for index in range(KEPT, COUNT):
        store.kit.write(f"{index:04x}".encode().ljust(200), queue_id=index % 3, tags="T")
    store.kit.dispatch()
    store.kit.close()
    epochs_file.save(store.ha, EpochHistory([EpochStart(1, 0), EpochStart(2, store.ends[KEPT])]))
    store.plan = Plan(CUT, store.cut_at, epoch=4, leader="broker 1", at_ms=6)
    store.cut()
    first, second = archive.load_tails(store.ha)
    assert second.file_id == f"{first.file_id}.2"
    assert first.crc32 != second.crc32


# --- progress -------------------------------------------------------------------------------------


def _offsets(root: Path) -> Path:
    path = root / "config" / "consumerOffset.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"offsetTable": {"TopicTest@group": {"0": 20, "1": 3}}}))
    return path


def test_consumer_offsets_move_aside_when_a_leader_ordered_the_cut(tmp_path: Path) -> None:
    """An offset may pass a message whose checkpoint was in the tail, and replicas merge by
    maximum."""
    store = Diverged(tmp_path)
    path = _offsets(tmp_path)
    content = path.read_bytes()
    recent = [store.ha / name for name in ("offsets-recent", "offsets-recent.copy")]
    for each in recent:
        each.write_bytes(b"frames")
    store.cut()
    assert not any(each.exists() for each in (path, *recent))
    (tail,) = archive.load_tails(store.ha)
    kept = archive.folder_of(store.ha) / f"{tail.file_id}.progress" / path.name
    assert kept.read_bytes() == content


@pytest.mark.parametrize("leader", ["broker 1", ""])
def test_deliveries_from_the_cut_tail_are_not_handed_to_a_leader(
    tmp_path: Path, leader: str
) -> None:
    """Their offsets belong to other messages in the leader's log."""
    store = Diverged(tmp_path)
    _offsets(tmp_path)
    (store.ha / "pop-handover").write_bytes(b"deliveries")
    store.plan = Plan(CUT, store.cut_at, epoch=4, leader=leader)
    store.cut()
    assert not (store.ha / "pop-handover").exists()


def test_without_a_leader_offsets_are_lowered_to_the_ends(tmp_path: Path) -> None:
    store = Diverged(tmp_path)
    path = _offsets(tmp_path)
    store.plan = Plan(CUT, store.cut_at, reason="by an operator")
    steps = store.cut()
    table = json.loads(path.read_text())["offsetTable"]["TopicTest@group"]
    assert table == {"0": 9, "1": 3}, "queue 0 has 9 of the 25 records that stay"
    assert any("lowered 1 consumer offsets" in step for step in steps)


def test_timers_that_the_tail_delivered_are_due_again(tmp_path: Path) -> None:
    store = Diverged(tmp_path)
    store.kit.open()
    properties = encode_properties({"TIMER_OUT_MS": "1699999990000", "TIMER_DEQUEUE_MS": "1"})
    store.kit.store.writer.append_many([message(properties=properties)])
    store.kit.dispatch()
    store.kit.close()
    file = TimerCheckpointFile(str(tmp_path / "config" / "timercheck"), Disk())
    file.save(TimerCheckpoint(last_read_ms=1_700_000_500_000, last_timer_queue_offset=7))
    file.close()
    store.cut()
    check = TimerCheckpointFile(str(tmp_path / "config" / "timercheck"), Disk()).load()
    assert check is not None
    assert check.last_read_ms == 1_699_999_988_000
    assert check.last_timer_queue_offset == 7, "nothing of the timer topic went"


def test_reading_stops_at_the_cut(tmp_path: Path) -> None:
    store = Diverged(tmp_path)
    store.cut()
    store.kit.open()
    store.kit.store.writer.dispatch(LIMIT)
    for queue_id in range(3):
        end = store.kit.store.max_offset("TopicTest", queue_id)
        assert end == len(range(queue_id, KEPT, 3))
    store.kit.close()
