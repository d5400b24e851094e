"""Retention on real directories: what goes, what follows, and who is left with bytes."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from cometmq.store.format.disk import Disk
from cometmq.store.format.errors import StoreError
from cometmq.store.format.results import GetStatus
from cometmq.store.retention.archive_watermark import FILE_NAME, ArchiveWatermark
from cometmq.store.retention.rules import Reason
from cometmq.tests.store.kit import SEGMENT, filled, message
from cometmq.tests.store.retention_kit import (
    HOUR,
    HOUR_MS,
    LATER_MS,
    SmallDisk,
    rounds,
    small,
    starts,
    until,
    written,
)


def test_expired_segments_are_deleted_and_queues_trimmed(tmp_path: Path) -> None:
    kit = small(tmp_path)
    written(kit, 120)
    end, before = kit.store.log_end, kit.bodies()
    files = starts(kit)
    assert {v.reason for v in rounds(kit.store, now_ms=HOUR_MS)} <= {Reason.YOUNG, Reason.LAST}
    assert starts(kit) == files
    rounds(kit.store, 3)
    (left,) = [start for start in starts(kit) if start <= end]
    assert left == end // SEGMENT * SEGMENT
    assert (kit.store.log_start, kit.store.log_end) == (left, end)
    bodies = kit.bodies()
    assert bodies == before[-len(bodies) :]
    for queue_id in range(3):
        rest = [body for body in bodies if int(body) % 3 == queue_id]
        assert kit.queue_bodies(queue_id=queue_id) == rest
        assert kit.store.min_offset("TopicTest", queue_id) == 40 - len(rest)
        assert kit.store.get("TopicTest", queue_id, 0, 1).status is GetStatus.OFFSET_TOO_SMALL
        assert kit.store.writer.next_offset("TopicTest", queue_id) == 40
    assert kit.write().queue_offset == 40
    kit.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_store_without_its_head_starts_again(tmp_path: Path, clean: bool) -> None:
    kit = small(tmp_path)
    written(kit)
    rounds(kit.store, 2)
    start, end, bodies = kit.store.log_start, kit.store.log_end, kit.bodies()
    assert start > 0
    if clean:
        kit.close()
    else:
        kit.kill()
    report = kit.open()
    kit.dispatch()
    assert report.clean is clean
    assert (kit.store.log_start, kit.store.log_end, kit.bodies()) == (start, end, bodies)
    for queue_id in range(3):
        assert kit.queue_bodies(queue_id=queue_id) == [
            body for body in bodies if int(body) % 3 == queue_id
        ]
        assert kit.store.writer.next_offset("TopicTest", queue_id) == 20
    kit.close()


def test_segments_that_are_not_flushed_or_dispatched_stay(tmp_path: Path) -> None:
    kit = small(tmp_path, flush_disk_type="ASYNC_FLUSH", flush_interval_commit_log=3_600_000)
    filled(kit)
    assert kit.store.flushed_offset == 0
    assert {v.reason for v in rounds(kit.store)} == {Reason.UNSAFE, Reason.LAST}
    kit.close()
    kit = small(tmp_path / "other")
    kit.store.writer.append_many([message(b"x" * 1000) for _ in range(20)])
    until(lambda: kit.store.flushed_offset == kit.store.log_end)
    assert kit.store.dispatched_offset == 0
    assert {v.reason for v in rounds(kit.store)} == {Reason.UNSAFE, Reason.LAST}
    kit.dispatch()
    rounds(kit.store)
    assert kit.store.log_start > 0
    kit.close()


def test_a_reader_keeps_its_bytes(tmp_path: Path) -> None:
    kit = small(tmp_path, destroy_maped_file_interval_forcibly=1000)
    written(kit)
    first = kit.store.log.segments[0]
    path = Path(first.path)
    content = path.read_bytes()
    view = first.hold()
    assert rounds(kit.store)[0].reason is Reason.HELD
    assert rounds(kit.store, now_ms=LATER_MS + 999)[0].reason is Reason.HELD
    assert path.exists()
    assert rounds(kit.store, now_ms=LATER_MS + 1000)[0].delete
    assert not path.exists()
    assert kit.store.log_start >= SEGMENT
    assert bytes(view.data) == content, "the file is gone, its reader has it"
    view.release()
    with pytest.raises(ValueError, match="closed"):
        first.map[0]
    kit.close()


def test_a_released_segment_is_deleted_without_further_waiting(tmp_path: Path) -> None:
    kit = small(tmp_path)
    written(kit)
    view = kit.store.log.segments[0].hold()
    rounds(kit.store)
    view.release()
    assert rounds(kit.store)[0].delete
    assert kit.store.log_start > 0
    kit.close()


def test_a_deletion_that_fails_is_tried_again_before_any_other(tmp_path: Path) -> None:
    kit = small(tmp_path, delete_file_batch_max=2)
    written(kit, 120)
    files = starts(kit)

    def fault(call: str) -> None:
        if call == "unlink":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    kit.disk.fault = fault
    rounds(kit.store, 3)
    assert starts(kit) == files, "nothing behind it may go"
    assert kit.store.log_start == 2 * SEGMENT
    assert kit.store.writable
    kit.disk.fault = None
    rounds(kit.store, 2)
    assert starts(kit)[0] > 2 * SEGMENT - 1
    kit.close()
    kit.open()
    kit.close()


def test_close_finishes_pending_deletions(tmp_path: Path) -> None:
    kit = small(tmp_path, delete_commit_log_files_interval=3_600_000)
    written(kit)
    kit.store.retention.step(LATER_MS, HOUR)
    start = kit.store.log_start
    assert start > SEGMENT
    kit.close()
    assert starts(kit)[0] == start


@pytest.mark.parametrize(("forced", "stay"), [(85, 8), (60, 6), (30, 3)])
def test_disk_pressure_deletes_no_segment_that_could_stay(
    tmp_path: Path, forced: int, stay: int
) -> None:
    kit = small(tmp_path, disk_space_clean_forcibly_ratio=forced, disk_max_used_space_ratio=95)
    written(kit, 500)
    kit.store.log.discard_prepared()
    extra = len(starts(kit)) - 9
    assert isinstance(kit.disk, SmallDisk)
    kit.disk.percent_of = lambda: 10 * (len(starts(kit)) - extra)
    retention, now_ms = kit.store.retention, HOUR_MS
    retention.tick()
    assert retention.disk_use == 90
    assert retention.verdicts(now_ms, HOUR)[0].reason is Reason.FORCED
    rounds(kit.store, now_ms=now_ms)
    for _ in range(20):
        retention.tick()
        if retention.is_due:
            rounds(kit.store, now_ms=now_ms)
    assert len(starts(kit)) - extra == stay
    assert not retention.is_due
    kit.close()


def test_segments_that_a_connected_follower_needs_stay(tmp_path: Path) -> None:
    kit = small(tmp_path)
    written(kit)
    kit.store.retention.replica_end = lambda: 2 * SEGMENT + 5
    assert rounds(kit.store, 2)[0].reason is Reason.REPLICA
    assert kit.store.log_start == 2 * SEGMENT
    kit.fill_to(86)
    verdicts = rounds(kit.store)
    assert verdicts[0].overridden == (Reason.REPLICA,)
    assert kit.store.log_start > 2 * SEGMENT
    kit.close()


def test_the_archive_gate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kit = small(tmp_path, archive_gate=True)
    written(kit, 120)
    assert rounds(kit.store)[0].reason is Reason.ARCHIVE
    kit.store.retention.watermark.set(2 * SEGMENT + 1)
    rounds(kit.store)
    assert kit.store.log_start == 2 * SEGMENT
    kit.close()
    kit.open()
    assert kit.store.retention.watermark.value == 2 * SEGMENT + 1, "a restart keeps it"
    assert rounds(kit.store)[0].reason is Reason.ARCHIVE
    kit.fill_to(86)
    with caplog.at_level("WARNING"):
        rounds(kit.store)
    assert kit.store.log_start > 2 * SEGMENT
    said = f"archive.overridden start={2 * SEGMENT} end={3 * SEGMENT} watermark={2 * SEGMENT + 1}"
    assert said in caplog.text
    kit.close()


def test_the_watermark_file(tmp_path: Path) -> None:
    disk = Disk()
    mark = ArchiveWatermark(tmp_path, disk)
    mark.load()
    assert mark.value == 0
    mark.set(5)
    path = tmp_path / "config" / FILE_NAME
    assert json.loads(path.read_text()) == {"archiveWatermark": 5}

    def fault(call: str) -> None:
        if call == "pwrite":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk.fault = fault
    with pytest.raises(OSError, match="No space"):
        mark.set(7)
    assert mark.value == 5
    other = ArchiveWatermark(tmp_path, Disk())
    other.load()
    assert other.value == 5
    for text in ("", "{}", "[]", '{"archiveWatermark": -1}', '{"archiveWatermark": "5"}'):
        path.write_text(text)
        with pytest.raises(StoreError, match="delete it"):
            other.load()
