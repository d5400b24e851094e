"""Flushing: group commit counted, pages and intervals, and a disk that fails."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.store.format.checkpoint import Checkpoint
from cometmq.store.format.disk import Disk
from cometmq.store.format.results import PutStatus
from cometmq.tests.store.kit import SEGMENT, START_MS, Kit, message

WAIT_SECONDS = 20  # a test that hangs fails; nothing here takes so long


class Flushed:
    """Waits for the flushed offset."""

    def __init__(self, kit: Kit) -> None:
        self.condition = threading.Condition()
        self.seen: list[int] = []
        self.kit = kit
        kit.heard.flushed = self

    def __call__(self, offset: int) -> None:
        with self.condition:
            self.seen.append(offset)
            self.condition.notify_all()

    def wait(self, offset: int) -> None:
        with self.condition:
            assert self.condition.wait_for(
                lambda: self.kit.store.flushed_offset >= offset, WAIT_SECONDS
            )


def sync_kit(root: Path, **options: object) -> Kit:
    kit = Kit(root, mapped_file_size_commit_log=1 << 20, flush_disk_type="SYNC_FLUSH", **options)
    kit.open()
    return kit


def until(condition: Callable[[], bool]) -> None:
    done = threading.Event()
    for _ in range(WAIT_SECONDS * 100):
        if condition():
            return
        done.wait(0.01)
    raise AssertionError("it never happened")


def test_every_sync_append_is_flushed(tmp_path: Path) -> None:
    kit = sync_kit(tmp_path)
    flushed = Flushed(kit)
    for _ in range(20):
        flushed.wait(kit.write().end)
    assert flushed.seen == sorted(flushed.seen)
    assert kit.store._threads.rounds == 20
    kit.close()


def test_64_senders_share_their_flushes(tmp_path: Path) -> None:
    """Each of 64 senders sends its next message when its last one is flushed: at most one
    fdatasync for 8 messages."""
    kit = sync_kit(tmp_path)
    flushed = Flushed(kit)
    ready, sent = 64, 0
    waiting: list[int] = []
    before = kit.disk.counts["fdatasync"]
    while sent < 2560:
        waiting += [kit.write().end for _ in range(ready)]
        sent += ready
        flushed.wait(waiting[0])
        done = kit.store.flushed_offset
        left = [end for end in waiting if end > done]
        ready, waiting = len(waiting) - len(left), left
    assert kit.disk.counts["fdatasync"] - before <= sent / 8
    assert kit.store._threads.rounds <= sent / 8
    kit.close()


def test_a_flush_crosses_segments(tmp_path: Path) -> None:
    kit = Kit(tmp_path, flush_disk_type="SYNC_FLUSH")
    kit.open()
    flushed = Flushed(kit)
    results = kit.store.writer.append_many([message(b"x" * 1000) for _ in range(20)])
    flushed.wait(results[-1].end)
    for segment in kit.store.log.segments:
        assert segment.flushed == segment.written or segment.start > results[-1].end
    assert kit.disk.counts["fdatasync"] >= results[-1].end // SEGMENT
    kit.close()


def test_async_waits_for_pages_or_for_its_long_interval(tmp_path: Path) -> None:
    kit = Kit(
        tmp_path,
        mapped_file_size_commit_log=1 << 20,
        flush_interval_commit_log=5,
        flush_commit_log_thorough_interval=10_000_000,
    )
    kit.open()
    flushed = Flushed(kit)
    end = kit.write(b"x" * 1000).end
    threading.Event().wait(0.1)
    assert kit.store.flushed_offset == 0, "one page is too little"
    kit.write_many(20, 1000)
    flushed.wait(end)
    last = kit.write(b"x" * 1000).end
    kit.store.flush_soon()
    flushed.wait(last)
    kit.close()
    kit = Kit(tmp_path / "b", flush_interval_commit_log=5, flush_commit_log_thorough_interval=20)
    kit.open()
    Flushed(kit).wait(kit.write().end)
    kit.close()


def test_a_failed_fdatasync_is_never_repeated(tmp_path: Path) -> None:
    kit = sync_kit(tmp_path)
    refusals: list[str] = []
    kit.heard.refused = refusals.append
    flushed = Flushed(kit)
    flushed.wait(kit.write().end)
    good = kit.store.flushed_offset
    tried: list[str] = []

    def fault(name: str) -> None:
        if name == "fdatasync":
            tried.append(name)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    kit.disk.fault = fault
    kit.write(b"unknown outcome")
    until(lambda: not kit.store.writable)
    kit.disk.fault = None
    assert tried == ["fdatasync"]
    assert refusals == [kit.store.refusal]
    assert "read-only" in refusals[0]
    assert "fdatasync" in refusals[0]
    assert kit.store.flushed_offset == good
    (result,) = kit.store.writer.append_many([message()])
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    before = kit.disk.counts["fdatasync"]
    kit.close()
    assert kit.disk.counts["fdatasync"] == before
    assert (tmp_path / "abort").exists(), "this was no clean stop"


def test_queues_and_checkpoint_are_flushed(tmp_path: Path) -> None:
    kit = Kit(
        tmp_path,
        flush_interval_commit_log=5,
        flush_commit_log_thorough_interval=5,
        flush_interval_consume_queue=5,
        flush_consume_queue_thorough_interval=10,
    )
    kit.open()
    results = kit.write_many(10)
    last = results[-1]

    def saved() -> bool:
        path = tmp_path / "checkpoint"
        if not path.exists():
            return False
        found = Checkpoint.decode(path.read_bytes())
        # Apache's queue values follow the index, whose only file is not full.
        return found == Checkpoint(
            START_MS, flushed_end=last.end, queued_offset=last.physical_offset
        )

    until(saved)
    assert (tmp_path / "checkpoint").stat().st_size == 4096
    (queue_file,) = (tmp_path / "consumequeue").rglob("0*0")
    assert queue_file.read_bytes()[180:200].hex() == (
        f"{last.physical_offset:016x}{last.size:08x}{0:016x}"
    ), "units reach the file without another message"

    def quiet() -> bool:  # the last flushes may come late
        before = kit.disk.counts["fdatasync"]
        threading.Event().wait(0.5)
        return kit.disk.counts["fdatasync"] == before

    assert any(quiet() for _ in range(20)), "an idle store does not write"
    kit.close()


def test_the_checkpoint_follows_a_fast_growing_log_before_its_interval(tmp_path: Path) -> None:
    """A start after a kill reads the log from there."""
    kit = Kit(
        tmp_path,
        flush_interval_commit_log=5,
        flush_commit_log_thorough_interval=5,
        flush_interval_consume_queue=5,
        flush_consume_queue_thorough_bytes=10_000,
    )
    kit.open()

    def queued() -> int:
        path = tmp_path / "checkpoint"
        return Checkpoint.decode(path.read_bytes()).queued_offset if path.exists() else -1

    last = kit.write_many(200)[-1]
    assert last.end > 20_000
    until(lambda: queued() > last.physical_offset - 10_000)
    kit.close()


def test_a_checkpoint_that_cannot_be_written_makes_the_store_read_only(tmp_path: Path) -> None:
    kit = Kit(tmp_path, flush_interval_consume_queue=5, flush_consume_queue_thorough_interval=5)
    kit.open()

    def fault(name: str) -> None:
        if name == "pwrite":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    kit.disk.fault = fault
    kit.write()
    until(lambda: not kit.store.writable)
    assert "Repair the disk" in kit.store.refusal
    kit.close()
    assert not kit.open().clean
    kit.dispatch()
    assert len(kit.queue_bodies()) == 1
    kit.close()


class FullForCheckpoint(Disk):
    """A disk without space for the checkpoint, while `full`."""

    full = False
    refused = 0

    def pwrite(self, descriptor: int, data: bytes | memoryview, position: int) -> int:
        if self.full and os.readlink(f"/proc/self/fd/{descriptor}").endswith("/checkpoint"):
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().pwrite(descriptor, data, position)


class FullKit(Kit):
    make_disk = FullForCheckpoint


def test_a_checkpoint_without_disk_space_is_written_once_there_is_some(tmp_path: Path) -> None:
    """Without a newer checkpoint a start only reads more of the log."""
    kit = FullKit(tmp_path, flush_interval_consume_queue=5, flush_consume_queue_thorough_interval=5)
    kit.open()
    assert isinstance(kit.disk, FullForCheckpoint)
    disk = kit.disk

    def saved_end() -> int:
        return Checkpoint.decode((tmp_path / "checkpoint").read_bytes()).flushed_end

    until((tmp_path / "checkpoint").exists)
    before = saved_end()
    disk.full = True
    end = kit.write_many(3)[-1].end
    kit.store.flush_soon()
    until(lambda: disk.refused > 2)
    assert kit.store.writable
    assert saved_end() == before
    disk.full = False
    until(lambda: saved_end() == end)
    kit.close()
    assert kit.open().clean
    kit.close()


def test_close_flushes_everything(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.open()
    flushed = Flushed(kit)
    end = kit.write_many(3)[-1].end
    kit.close()
    assert flushed.seen[-1] == end
    kit.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("call", ["fdatasync", "write_log"])
def test_a_flush_thread_that_dies_makes_the_store_read_only(tmp_path: Path, call: str) -> None:
    """When the flush or the commit thread ends for any reason, messages are refused."""
    kit = sync_kit(tmp_path, transient_store_pool_enable=call == "write_log")

    def fault(name: str) -> None:
        if name == call:
            raise ValueError("a bug")

    kit.disk.fault = fault
    kit.write()
    until(lambda: not kit.store.writable)
    assert "ValueError('a bug')" in kit.store.refusal
    (result,) = kit.store.writer.append_and_wait([message()])
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    kit.close()
