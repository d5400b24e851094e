"""A full disk pauses the store: messages are refused, readers are served, and it goes on by
itself."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from cometmq.store.format.disk import SPARES, Disk, Space
from cometmq.store.format.errors import DiskFullError
from cometmq.store.format.results import PutStatus
from cometmq.store.retention.rules import Pressure, Reason
from cometmq.tests.store.kit import Kit, assert_whole, filled, message
from cometmq.tests.store.retention_kit import SmallDisk, rounds, small, until, written


def test_above_the_warning_level_messages_are_refused_until_space_is_free(tmp_path: Path) -> None:
    kit = small(tmp_path, clean_file_forcibly_enable=False)
    written(kit)
    resumed: list[bool] = []
    kit.heard.resumed = lambda: resumed.append(True)
    kit.fill_to(91)
    assert kit.store.paused
    assert not kit.store.writable
    assert "91 % full (diskSpaceWarningLevelRatio 90 %)" in kit.store.refusal
    (refused,) = kit.store.writer.append_many([message()])
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    with pytest.raises(DiskFullError, match="91 % full"):
        kit.store.append_raw(kit.store.log_end, b"x")
    assert_whole_for_readers(kit)
    kit.fill_to(90)
    assert "90 % full (diskSpaceCleanForciblyRatio 85 %" in kit.store.refusal
    assert not resumed
    kit.fill_to(85)
    assert kit.store.writable
    assert resumed == [True]
    kit.dispatch()
    assert_whole(kit, 60)
    kit.write()
    kit.dispatch()
    kit.close()
    assert kit.open().clean
    kit.close()


def assert_whole_for_readers(kit: Kit) -> None:
    for queue_id in range(3):
        assert len(kit.queue_bodies(queue_id=queue_id)) == 20


def test_forced_deletion_frees_space(tmp_path: Path) -> None:
    kit = small(tmp_path)
    written(kit)
    kit.fill_to(95)
    verdicts = rounds(kit.store, now_ms=0)
    assert [verdict.reason for verdict in verdicts if verdict.delete] == [Reason.FORCED]
    assert kit.store.log_start > 0
    assert kit.store.retention.pressure is Pressure.STOP
    assert not kit.store.writable
    kit.fill_to(40)
    assert kit.store.writable
    kit.close()


def test_a_store_on_a_full_disk_starts_and_can_be_read(tmp_path: Path) -> None:
    kit = small(tmp_path)
    written(kit)
    kit.close()
    SmallDisk.percent = 99
    try:
        kit.open()
        assert kit.store.paused
        assert "99 % full" in kit.store.refusal
        assert_whole_for_readers(kit)
    finally:
        SmallDisk.percent = 10
    kit.fill_to(20)
    kit.dispatch()
    kit.write()
    kit.close()


def test_an_unknown_disk_use_refuses_nothing(tmp_path: Path) -> None:
    kit = small(tmp_path)

    def fail(_path: str) -> Space:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    kit.store.disk.space = fail  # type: ignore[assignment, method-assign]
    kit.store.retention.watch_disk()
    assert kit.store.retention.pressure is Pressure.ANY_HOUR
    assert kit.store.writable
    kit.close()


def test_a_lack_of_descriptors_pauses_the_store_until_there_are_some(tmp_path: Path) -> None:
    kit = Kit(tmp_path, flush_interval_consume_queue=10)
    kit.open()
    kit.write()
    kit.dispatch()
    lacking = True

    def fault(call: str) -> None:
        if lacking and call == "open":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    kit.disk.fault = fault
    for topic in range(3):
        kit.write(topic=f"new{topic}")
    kit.dispatch()
    until(lambda: kit.store.paused)  # the flush thread needs a new queue file
    assert "no free descriptor" in kit.store.refusal
    assert "Messages are refused until descriptors are free" in kit.store.refusal
    with pytest.raises(DiskFullError, match="no free descriptor"):
        kit.store.append_raw(kit.store.log_end, b"x")
    lacking = False
    until(lambda: kit.store.writable)
    kit.write(topic="new0")
    kit.dispatch()
    kit.close()
    assert kit.open().clean
    found = [len(kit.queue_bodies(topic)) for topic in ("TopicTest", "new0", "new1", "new2")]
    assert found == [1, 2, 1, 1]
    kit.close()


def test_a_call_without_a_free_descriptor_takes_a_spare_one(tmp_path: Path) -> None:
    disk = Disk()
    disk.keep_spares()
    path = tmp_path / "file"
    path.write_bytes(b"x")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    begin = disk.open(str(path), os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (begin + 1, hard))
    try:
        taken = []
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(os.open(path, os.O_RDONLY))
        opened = [disk.open(str(path), os.O_RDONLY) for _ in range(SPARES)]
        with pytest.raises(OSError, match="Too many open files"):
            disk.open(str(path), os.O_RDONLY)
        for descriptor in opened:
            disk.close(descriptor)
        again = [disk.open(str(path), os.O_RDONLY) for _ in range(SPARES)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for descriptor in (*taken, *again, begin):
        os.close(descriptor)
    disk.drop_spares()


class FullDisk(Disk):
    """A disk without a free byte: what is there can be overwritten, nothing can grow."""

    full = False

    def __init__(self) -> None:
        super().__init__()
        self.fault = self._grow

    def _grow(self, call: str) -> None:
        if self.full and call in ("pwrite", "truncate", "fallocate"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullDiskKit(Kit):
    make_disk = FullDisk

    def fill(self, full: bool) -> None:
        assert isinstance(self.disk, FullDisk)
        self.disk.full = full


@pytest.mark.parametrize("clean", [True, False])
def test_units_wait_in_memory_while_the_disk_is_full(
    tmp_path: Path, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than may wait was dispatched, the process ends, the next one finds the disk full."""
    monkeypatch.setattr("cometmq.store.queue.table.WAITING_UNITS_MAX", 50)
    kit = FullDiskKit(tmp_path, flush_interval_consume_queue=10)
    kit.open()
    filled(kit, 30)
    kit.fill(True)
    for index in range(30, 120):
        kit.store.writer.append_many(
            [message(f"{index:04d}".encode().ljust(200), queue_id=index % 3)]
        )
    kit.store.writer.dispatch(kit.store.log_end)
    until(lambda: kit.store.paused)
    assert "The disk is full: the queues" in kit.store.refusal
    end = kit.store.log_end
    count = len(kit.bodies())
    assert count >= 30
    if clean:
        kit.close()
    else:
        kit.kill()
    monkeypatch.setattr(FullDisk, "full", True)
    kit.open()
    assert kit.store.log_end == end
    for _ in range(20):
        kit.store.writer.dispatch(end)
    until(lambda: kit.store.paused)
    (refused,) = kit.store.writer.append_many([message()])
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    monkeypatch.setattr(FullDisk, "full", False)
    kit.fill(False)
    kit.dispatch()
    until(lambda: kit.store.writable)
    assert [kit.queue_bodies(queue_id=queue_id) for queue_id in range(3)] == [
        [body for body in kit.bodies() if int(body) % 3 == queue_id] for queue_id in range(3)
    ]
    assert len(kit.bodies()) == count
    kit.write()
    kit.dispatch()
    kit.close()
    assert kit.open().clean
    kit.close()
