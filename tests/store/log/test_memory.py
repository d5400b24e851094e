"""Warm pages, locked pages, advice to the kernel: it works where allowed, and says where not."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.store.format.disk import Disk
from cometmq.store.format.errors import DiskFullError
from cometmq.store.log import memory
from cometmq.store.log.segment import Segment
from cometmq.tests.store.kit import SEGMENT, Kit
from cometmq.tests.store.log.test_flush import until

# A child without privileges: RLIMIT_MEMLOCK of one page, then two maps that are larger.
CHILD = """
import logging, mmap, os, resource
from cometmq.store.log.memory import lock, unlock
logging.basicConfig(format="%(levelname)s %(message)s")
resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096))
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
for _ in range(2):
    made = mmap.mmap(-1, 1 << 20)
    print(lock(made))
    unlock(made)
"""


def locked_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmLck:")[2].split()[0])


@pytest.fixture
def may_lock() -> None:
    made = mmap.mmap(-1, 64 << 10)
    if not memory.lock(made):
        pytest.skip("this machine does not allow 64 KiB of locked memory")
    memory.unlock(made)


@pytest.mark.usefixtures("may_lock")
def test_a_map_that_may_not_be_written_is_locked(tmp_path: Path) -> None:
    segment = Segment.create(str(tmp_path / f"{0:020d}"), 0, 64 << 10, Disk())
    before = locked_kib()
    assert memory.lock(segment.map)
    assert locked_kib() == before + 64
    memory.unlock(segment.map)
    assert locked_kib() == before
    segment.close()


def test_a_low_mlock_limit_is_logged_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", CHILD], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["False", "False"]
    (line,) = [line for line in done.stderr.splitlines() if "memory.not_locked" in line]
    assert line.startswith("WARNING")
    assert "RLIMIT_MEMLOCK is 4096 bytes" in line
    assert "raise the limit" in line


@pytest.mark.usefixtures("may_lock")
def test_only_the_segments_ahead_are_locked(tmp_path: Path) -> None:
    kit = Kit(tmp_path, lock_maped_file_enable=True, data_read_ahead_enable=False)
    kit.open()
    kit.write_many(60, 300)
    first, *_, last = kit.store.log.segments
    assert last.locked
    assert not first.locked
    kit.close()
    kit.open()
    until(lambda: kit.store.log.segments[-1].locked)
    assert len(kit.queue_bodies()) == 60
    kit.close()


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_warm_segments_hold_written_zeros(tmp_path: Path, flush: str) -> None:
    kit = Kit(
        tmp_path,
        mapped_file_size_commit_log=3 << 20,
        warm_maped_file_enable=True,
        flush_least_pages_when_warm_maped_file=256,
        flush_disk_type=flush,
    )
    kit.open()
    flushes = kit.disk.counts["fdatasync"]
    kit.write()
    if flush == "SYNC_FLUSH":
        assert kit.disk.counts["fdatasync"] >= flushes + 3
    (path,) = kit.segment_paths()
    descriptor = os.open(path, os.O_RDONLY)
    assert os.lseek(descriptor, 1 << 20, os.SEEK_DATA) == 1 << 20, "written, not only reserved"
    os.close(descriptor)
    kit.dispatch()
    kit.kill()
    kit.open()
    assert kit.bodies() == [b"body"]
    kit.close()


def test_a_segment_that_cannot_be_warmed_is_removed(tmp_path: Path) -> None:
    disk = Disk()
    segment = Segment.create(str(tmp_path / f"{0:020d}"), 0, SEGMENT, disk)

    def fault(name: str) -> None:
        if name == "pwrite":
            raise OSError(28, "full")

    disk.fault = fault
    with pytest.raises(DiskFullError):
        segment.warm(1, flush=False)
    assert list(tmp_path.iterdir()) == []


def test_a_rolled_segment_is_unlocked_on_the_allocators_thread(kit: Kit) -> None:
    done: list[str] = []
    kit.store.log._allocator.run_later(lambda: done.append("chore"))
    until(lambda: done == ["chore"])


def test_unlocking_a_closed_map_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    made = mmap.mmap(-1, 4096)
    made.close()
    assert not memory.lock(made)
    memory.unlock(made)
    assert "memory.not_locked" not in caplog.text


def resident_kib(path: str) -> int:
    """Return how much of a mapped file counts as this process's memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    assert any(line.endswith(path) for line in lines)
    return int(next(line for line in lines if line.startswith("Rss:")).split()[1])


def test_what_was_read_of_the_log_leaves_the_memory_of_the_process_and_stays_readable(
    kit: Kit,
) -> None:
    log = kit.store.log
    while len(log.segments) < 2:
        kit.write_many(20)
    before = [bytes(each.map) for each in log.segments]
    assert [resident_kib(each.path) for each in log.segments] == [SEGMENT >> 10] * 2
    log.release_pages()
    until(lambda: not any(resident_kib(each.path) for each in log.segments))
    assert [bytes(each.map) for each in log.segments] == before


@pytest.mark.usefixtures("may_lock")
def test_locked_pages_stay_in_the_memory_of_the_process(tmp_path: Path) -> None:
    segment = Segment.create(str(tmp_path / f"{0:020d}"), 0, 64 << 10, Disk())
    memory.lock(segment.map)
    memory.advise_unused(segment.map)
    assert resident_kib(segment.path) == 64
    segment.close()


def test_pages_of_a_segment_that_retention_closes_meanwhile_are_nobodys(tmp_path: Path) -> None:
    segment = Segment.create(str(tmp_path / f"{0:020d}"), 0, 64 << 10, Disk())
    segment.close()
    memory.advise_unused(segment.map)
