"""The end of a queue never goes back: a segment is deleted only when the units of its records are
as durable as it was."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.tests.store.fake_disk import FakeDisk, Fate, Page
from cometmq.tests.store.kit import Kit
from cometmq.tests.store.retention_kit import SmallDiskKit, rounds, small, starts, until, written

#: Queue units and the checkpoint stay in memory for an hour.
SLOW = {"flush_interval_consume_queue": 3_600_000, "delete_commit_log_files_interval": 0}


def first_topic(kit: Kit, count: int = 9) -> None:
    """`count` messages of topic `a`, then several segments of others."""
    for _ in range(count):
        kit.write(topic="a")
    written(kit)


def assert_goes_on(kit: Kit, number: int = 9) -> None:
    kit.dispatch()
    assert kit.store.writer.next_offset("a", 0) == number
    assert kit.write(topic="a").queue_offset == number
    kit.dispatch()
    assert kit.queue_bodies("a") == [b"body"]


def test_a_kill_after_retention_keeps_the_end_of_a_queue(tmp_path: Path) -> None:
    kit = small(tmp_path, **SLOW)
    first_topic(kit)
    rounds(kit.store, 2)
    assert kit.store.min_offset("a", 0) == 9
    kit.kill()
    kit.open()
    assert_goes_on(kit)
    kit.close()


_WRITER = """
import sys, time
from pathlib import Path
from cometmq.tests.store.retention_kit import rounds, small
from cometmq.tests.store.queue.test_queue_ends import SLOW, first_topic
kit = small(Path(sys.argv[1]), **SLOW)
first_topic(kit)
rounds(kit.store, 2)
print(kit.store.log_start, flush=True)
sys.stdin.read()
"""


def test_the_kill_of_a_process_keeps_the_end_of_a_queue(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        start = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    kit = SmallDiskKit(tmp_path, **SLOW)
    kit.open()
    assert kit.store.log_start == start > 0
    assert_goes_on(kit)
    kit.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_power_loss_after_retention_keeps_the_end_of_a_queue(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "store"
    root.mkdir()
    kit = Kit(root, flush_disk_type="ASYNC_FLUSH", flush_interval_commit_log=3_600_000, **SLOW)
    disk = FakeDisk(root)
    kit.make_disk = lambda: disk  # type: ignore[assignment]
    kit.open()
    for _ in range(9):
        kit.write(topic="a")
    kit.write_many(60, size=200)
    kit.store.flush_soon()
    until(lambda: kit.store.flushed_offset == kit.store.log_end)
    kit.write(b"made of a deleted one", topic="b")
    kit.dispatch()
    rounds(kit.store, 2)
    start = kit.store.log_start
    assert start > 0
    kit.kill()
    lost = tmp_path / "lost"
    disk.crash(lost, Fate(seed, pages=(Page.LOST,)))
    after = Kit(lost, **SLOW)
    after.open()
    assert after.store.log_start == start
    assert_goes_on(after)
    assert after.queue_bodies("b") == [b"made of a deleted one"]
    after.close()


def test_nothing_is_deleted_while_queues_cannot_be_flushed(tmp_path: Path) -> None:
    kit = small(tmp_path, **SLOW)
    first_topic(kit)
    files = starts(kit)

    def full(call: str) -> None:
        if call == "pwrite":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    kit.disk.fault = full
    rounds(kit.store, 2)
    assert starts(kit) == files
    assert kit.store.writable
    kit.disk.fault = None
    rounds(kit.store, 2)
    assert starts(kit)[0] > 0
    kit.close()


def test_a_full_disk_frees_segments_whose_queues_are_durable(tmp_path: Path) -> None:
    kit = small(tmp_path, **SLOW)
    first_topic(kit)
    kit.store._threads._queue_flusher.settle(kit.store.log_end)  # type: ignore[union-attr]
    kit.write(topic="new")
    kit.dispatch()

    def full(path: str, position: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    files = kit.store.queue_table.files
    write = files.write_part
    files.write_part = full  # type: ignore[method-assign]
    rounds(kit.store)
    assert starts(kit)[0] > 0
    files.write_part = write  # type: ignore[method-assign]
    kit.close()


def test_a_failed_flush_of_queues_ends_deletion_and_writing(tmp_path: Path) -> None:
    kit = small(tmp_path, **SLOW)
    first_topic(kit)
    files = starts(kit)

    def broken(call: str) -> None:
        if call == "fdatasync":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    kit.disk.fault = broken
    rounds(kit.store)
    assert starts(kit) == files
    assert not kit.store.writable
    kit.disk.fault = None
    kit.kill()
    kit.open()
    assert kit.store.writer.next_offset("a", 0) == 9
    kit.close()
