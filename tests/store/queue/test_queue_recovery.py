"""Recovery of consume queues: lost, behind, ahead, stale; always the bytes of a rebuild."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from cometmq.store import holdings
from cometmq.store.format.checkpoint import Checkpoint
from cometmq.tests.store.kit import QUEUE_FILE, SEGMENT, START_MS, Kit, assert_whole, filled
from cometmq.tests.store.retention_kit import rounds, until


@pytest.mark.parametrize("clean", [False, True])
def test_lost_queues_are_rebuilt_with_the_same_bytes(kit: Kit, clean: bool) -> None:
    filled(kit)
    kit.close()
    before = kit.queue_files()
    if not clean:
        kit.open_only()
        kit.store.start()
        kit.kill()
    shutil.rmtree(kit.root / "consumequeue")
    kit.open()
    assert_whole(kit, 60)
    kit.close()
    assert kit.queue_files() == before


@pytest.mark.parametrize("lost", ["OldTopic/0", "OldTopic"])
@pytest.mark.parametrize("clean", [False, True])
def test_a_lost_queue_without_recent_messages_is_rebuilt(
    kit: Kit, clean: bool, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    old = [b"%d" % number for number in range(20)]
    for body in old:
        kit.write(body, topic="OldTopic")
    kit.write_many(120)
    kit.close()
    if not clean:
        kit.open()
        kit.write_many(5)
        kit.kill()
    shutil.rmtree(kit.root / "consumequeue" / lost)
    kit.open()
    assert kit.queue_bodies("OldTopic") == old
    assert ("queues.ends_differ" if clean else "queues.missing topic=OldTopic") in caplog.text


def test_a_queue_is_noted_before_the_checkpoint_covers_it(tmp_path: Path) -> None:
    kit = Kit(tmp_path / "store", flush_interval_consume_queue=10)
    kit.open()
    noted = kit.root / "config" / "storeDigests.json"
    folder = kit.root / "consumequeue" / "OldTopic"
    kit.write(b"old", topic="OldTopic")
    kit.write_many(120)
    until(lambda: folder.exists() and noted.exists() and "OldTopic" in noted.read_text())
    kit.kill()
    shutil.rmtree(folder)
    kit.open()
    assert kit.queue_bodies("OldTopic") == [b"old"]
    kit.close()


def test_a_full_disk_delays_the_note_of_a_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = Kit(tmp_path / "store", flush_interval_consume_queue=10)
    kit.open()
    save = kit.store._digests.save
    failures = 0

    def full_twice() -> None:
        nonlocal failures
        if failures < 2:
            failures += 1
            raise OSError(errno.ENOSPC, "no space")
        save()

    monkeypatch.setattr(kit.store._digests, "save", full_twice)
    kit.write(b"old", topic="OldTopic")
    kit.dispatch()
    noted = kit.root / "config" / "storeDigests.json"
    until(lambda: noted.exists() and "OldTopic" in noted.read_text())
    until(lambda: kit.store.writable)
    assert kit.write(b"new", topic="OldTopic")
    kit.close()


def test_a_lost_queue_without_records_keeps_its_end(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    kit.write(b"old", topic="OldTopic")
    kit.write_many(120)
    kit.close()
    for path in kit.segment_paths()[:2]:
        path.unlink()
    shutil.rmtree(kit.root / "consumequeue" / "OldTopic")
    holdings.forget(kit.root, kit.disk)  # retention would have recorded it
    kit.open()
    assert "queues.missing" not in caplog.text
    assert "queues.end_missing topic=OldTopic queue=0 end=1" in caplog.text
    assert kit.write(b"new", topic="OldTopic").queue_offset == 1
    kit.dispatch()
    assert kit.queue_bodies("OldTopic") == [b"new"]
    kit.reopen()
    assert kit.queue_bodies("OldTopic") == [b"new"]
    kit.close()


def test_a_removed_queue_is_not_missed(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    kit.write(b"old", topic="OldTopic")
    kit.write_many(120)
    kit.store.flush_soon()
    until(lambda: kit.store.flushed_offset == kit.store.log_end)
    rounds(kit.store)
    assert kit.store.removal.remove_expired([("OldTopic", 0)]) == [("OldTopic", 0)]
    kit.reopen()
    assert "OldTopic" not in caplog.text
    assert kit.store.max_offset("OldTopic", 0) == 0
    kit.close()


def test_an_emptied_queue_is_rebuilt(kit: Kit) -> None:
    filled(kit)
    kit.close()
    before = kit.queue_files()
    kit.open()
    kit.kill()
    path = kit.root / "consumequeue" / "TopicTest" / "1" / f"{0:020d}"
    path.write_bytes(bytes(QUEUE_FILE))
    kit.open()
    assert_whole(kit, 60)
    kit.close()
    assert kit.queue_files() == before


@pytest.mark.parametrize("clean", [False, True])
def test_the_lost_first_file_of_a_queue_is_rebuilt(
    kit: Kit, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    filled(kit, 120)
    kit.close()
    before = kit.queue_files()
    if not clean:
        kit.open_only()
        kit.store.start()
        kit.kill()
    folder = kit.root / "consumequeue" / "TopicTest" / "1"
    assert len(list(folder.iterdir())) > 1
    (folder / f"{0:020d}").unlink()
    kit.open()
    assert "queues.begin_missing" in caplog.text
    assert_whole(kit, 120)
    kit.close()
    assert kit.queue_files() == before


def test_units_behind_the_log_are_dropped(kit: Kit) -> None:
    """After power loss a queue may know more than the log kept."""
    ends = filled(kit, 60)
    kit.store.queue_table.write_out()
    kit.kill()
    keep = 45
    kit.cut_tail(ends[keep - 1], SEGMENT * -(-ends[keep - 1] // SEGMENT))
    for path in kit.segment_paths():
        if int(path.name) > ends[keep - 1]:
            path.unlink()
    report = kit.open()
    assert report.log_end == ends[keep - 1]
    assert_whole(kit, keep)
    kit.close()
    for data in kit.queue_files().values():
        units = [data[at : at + 20] for at in range(0, len(data), 20)]
        assert all(int.from_bytes(unit[:8], "big") < report.log_end for unit in units)


def test_stale_units_of_another_writer_are_dropped(kit: Kit) -> None:
    """Apache truncates queues without clearing the bytes."""
    filled(kit, 30)
    kit.close()
    path = kit.root / "consumequeue" / "TopicTest" / "1" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[200:260] = data[20:80]
    path.write_bytes(data)
    assert kit.open().clean
    assert_whole(kit, 30)
    kit.close()
    assert path.read_bytes()[200:] == bytes(QUEUE_FILE - 200)


def test_recovery_begins_where_the_checkpoint_says(kit: Kit) -> None:
    ends = filled(kit, 60)
    kit.close()
    before = kit.queue_files()
    kit.open()
    kit.kill()
    saved = Checkpoint.decode((kit.root / "checkpoint").read_bytes())
    assert saved.queued_offset == ends[-2]
    last_segment = ends[-2] // SEGMENT * SEGMENT
    assert kit.open().scanned_from == last_segment
    assert_whole(kit, 60)
    kit.close()
    assert kit.queue_files() == before
    for value, expected in (
        (Checkpoint(logics_physical_offset=SEGMENT), SEGMENT),
        (Checkpoint(logics_msg_timestamp_ms=START_MS), last_segment),
        (Checkpoint(logics_msg_timestamp_ms=START_MS - 1), 0),
        (Checkpoint(), 0),
    ):
        kit.open()
        kit.kill()
        (kit.root / "checkpoint").write_bytes(value.encode().ljust(4096, b"\0"))
        assert kit.open().scanned_from == expected
        assert_whole(kit, 60)
        kit.close()
        assert kit.queue_files() == before
    (kit.root / "checkpoint").unlink()
    assert kit.open().clean


def vouching_for_nothing(kit: Kit) -> None:
    (kit.root / "checkpoint").write_bytes(Checkpoint().encode().ljust(4096, b"\0"))


@pytest.mark.parametrize("most", [1, 2, 100])
def test_recovery_goes_back_a_limited_number_of_segments(tmp_path: Path, most: int) -> None:
    kit = Kit(tmp_path / "store", commit_log_recover_max_num=most)
    kit.open()
    filled(kit, 60)
    kit.reopen()
    before = kit.queue_files()
    count = len(kit.segment_paths())
    kit.kill()
    vouching_for_nothing(kit)
    report = kit.open()
    assert report.scanned_from == max(report.segments - most, 0) * SEGMENT, count
    assert_whole(kit, 60)
    kit.close()
    assert kit.queue_files() == before


def test_accelerated_recovery_begins_at_the_last_record_that_is_surely_queued(
    tmp_path: Path,
) -> None:
    kit = Kit(tmp_path / "store", enable_accelerated_recovery=True)
    kit.open()
    ends = filled(kit, 20)
    kit.reopen()
    for index in range(20, 25):
        kit.write(f"{index:04d}".encode().ljust(200), queue_id=index % 3, tags="T")
    kit.dispatch()
    kit.store.queue_table.write_out()
    kit.kill()
    report = kit.open()
    assert (report.scanned_from, report.records_scanned) == (ends[18], 6)
    assert report.units_from == ends[18]
    assert_whole(kit, 25)
    kit.close()
    rebuilt = kit.queue_files()
    shutil.rmtree(kit.root / "consumequeue")
    kit.open()
    kit.dispatch()
    kit.close()
    assert kit.queue_files() == rebuilt


def test_accelerated_recovery_begins_with_the_segment_where_the_checkpoint_is_wrong(
    tmp_path: Path,
) -> None:
    kit = Kit(tmp_path / "store", enable_accelerated_recovery=True)
    kit.open()
    ends = filled(kit, 60)
    kit.reopen()
    kit.kill()
    begin = ends[-2] // SEGMENT * SEGMENT
    value = Checkpoint(logics_physical_offset=ends[-2] + 1)
    (kit.root / "checkpoint").write_bytes(value.encode().ljust(4096, b"\0"))
    assert kit.open().scanned_from == begin
    assert_whole(kit, 60)
    kit.close()
