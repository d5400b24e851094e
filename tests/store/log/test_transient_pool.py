"""The transient pool: what is appended is read after the commit, and what a crash of the process
loses."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cometmq.store.format.errors import OffsetOutOfRangeError, StoreError
from cometmq.store.format.results import PutStatus
from cometmq.store.log.transient_pool import TransientPool
from cometmq.tests.store.kit import LIMIT, SEGMENT, Kit, message
from cometmq.tests.store.log.test_flush import Flushed, until

#: The test commits, the thread does not.
BY_HAND: dict[str, Any] = {
    "transient_store_pool_enable": True,
    "commit_interval_commit_log": 3_600_000,
    "commit_commit_log_least_pages": 1 << 40,
}
QUICKLY: dict[str, Any] = {
    "transient_store_pool_enable": True,
    "commit_interval_commit_log": 5,
    "commit_commit_log_thorough_interval": 5,
    "flush_interval_commit_log": 5,
    "flush_commit_log_thorough_interval": 5,
}

# Appends 100 messages and commits them, appends 50 more, says so, and waits to be killed.
CHILD = """
import sys, time
from pathlib import Path
from cometmq.tests.store.kit import Kit
from cometmq.tests.store.log.test_transient_pool import BY_HAND
kit = Kit(Path(sys.argv[1]), **BY_HAND)
kit.open()
for number in range(100):
    kit.write(b"%d" % number)
kit.store.writer.commit()
for number in range(100, 150):
    kit.write(b"%d" % number)
kit.dispatch()
print(kit.store.log_end, kit.store.appended_end, flush=True)
time.sleep(600)
"""


def test_only_committed_records_are_readable(tmp_path: Path) -> None:
    kit = Kit(tmp_path, **BY_HAND)
    kit.open()
    first = kit.write(b"one")
    assert first.status is PutStatus.PUT_OK
    assert (kit.store.log_end, kit.store.appended_end) == (0, first.end)
    assert not kit.store.writer.dispatch(LIMIT)
    assert kit.store.read_log(0, 1000) == b""
    with pytest.raises(OffsetOutOfRangeError):
        kit.store.record_at(0)
    assert kit.store.writer.next_offset("TopicTest", 0) == 1, "it has its place all the same"
    assert kit.log_bytes().strip(b"\0") == b""
    kit.store.writer.commit()
    assert kit.store.log_end == first.end
    assert [arrival.physical_offset for arrival in kit.store.writer.dispatch(LIMIT)] == [0]
    second = kit.write(b"two")
    assert kit.store.log_crc(0, first.end)
    with pytest.raises(OffsetOutOfRangeError):
        kit.store.log_crc(0, second.end)
    kit.store.writer.commit()
    kit.dispatch()
    assert kit.queue_bodies() == [b"one", b"two"]
    assert kit.reopen().clean
    kit.close()


def test_bytes_are_those_of_a_store_without_a_pool(tmp_path: Path) -> None:
    """Over many segments, so that buffers come back and are used again."""
    plain, pooled = Kit(tmp_path / "a"), Kit(tmp_path / "b", **BY_HAND)
    for kit in (plain, pooled):
        kit.open()
        for number in range(200):
            kit.write(f"{number:04d}".encode() * (1 + number * 7 % 200), queue_id=number % 3)
            if number % 11 == 0:
                kit.store.writer.commit()
                kit.dispatch()
        kit.store.writer.commit()
        kit.dispatch()
        kit.close()
    assert len(plain.segment_paths()) > 10
    assert pooled.log_bytes() == plain.log_bytes()
    assert pooled.queue_files() == plain.queue_files()


def test_the_thread_commits_and_then_flushes(tmp_path: Path) -> None:
    kit = Kit(tmp_path, **QUICKLY)
    kit.open()
    seen: list[int] = []
    kit.heard.committed = seen.append
    flushed = Flushed(kit)
    end = kit.write().end
    until(lambda: kit.store.log_end == end)
    flushed.wait(end)
    assert seen == [end]
    kit.dispatch()
    assert kit.reopen().clean
    kit.close()


def test_enough_pages_wake_the_thread(tmp_path: Path) -> None:
    kit = Kit(
        tmp_path,
        mapped_file_size_commit_log=1 << 20,
        transient_store_pool_enable=True,
        commit_interval_commit_log=3_600_000,
    )
    kit.open()
    kit.write(b"x" * 1000)
    end = kit.write(b"x" * (4 * 4096)).end
    until(lambda: kit.store.log_end == end)
    kit.dispatch()
    kit.close()


def test_synchronous_flush_commits_first(tmp_path: Path) -> None:
    kit = Kit(tmp_path, **BY_HAND, flush_disk_type="SYNC_FLUSH")
    kit.open()
    flushed = Flushed(kit)
    for _ in range(30):
        end = kit.write(b"x" * 500).end
        flushed.wait(end)
        assert kit.store.log_end >= end
    kit.dispatch()
    assert kit.reopen().clean
    assert len(kit.queue_bodies()) == 30
    kit.close()


def test_asynchronous_flush_never_passes_the_commit(tmp_path: Path) -> None:
    kit = Kit(
        tmp_path, **BY_HAND, flush_interval_commit_log=5, flush_commit_log_thorough_interval=5
    )
    kit.open()
    flushed = Flushed(kit)
    committed = kit.write().end
    kit.store.writer.commit()
    flushed.wait(committed)
    kit.write()
    quiet = kit.disk.counts["fdatasync"]
    until(lambda: kit.store.flushed_offset == committed)
    assert kit.disk.counts["fdatasync"] == quiet
    kit.close()


def test_sigkill_loses_exactly_what_was_not_committed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        log_end, appended_end = map(int, process.stdout.readline().split())
        process.send_signal(signal.SIGKILL)
    assert log_end < appended_end
    kit = Kit(tmp_path, **BY_HAND)
    report = kit.open()
    assert not report.clean
    assert kit.store.log_end == log_end
    kit.dispatch()
    assert kit.queue_bodies() == [b"%d" % number for number in range(100)]
    # What was there at the start is written directly: the next record can be read at once.
    assert kit.write(b"again").queue_offset == 100
    kit.store.writer.commit()
    kit.dispatch()
    assert kit.queue_bodies()[-1] == b"again"
    kit.close()


# -- buffers --------------------------------------------------------------------------------------


def test_a_segment_without_a_buffer_is_written_directly(tmp_path: Path) -> None:
    kit = Kit(tmp_path, **BY_HAND, transient_store_pool_size=1)
    kit.open()
    pool = kit.store.log.pool
    assert pool is not None
    assert pool.available == 1
    for number in range(20):
        kit.write(b"%d" % number * 500)
    assert pool.available == 0
    assert kit.store.log_end == 0, "also what lies in the file already waits for its turn"
    kit.store.writer.commit()
    assert pool.available == 1, "it is back"
    kit.dispatch()
    assert len(kit.queue_bodies()) == 20
    assert kit.reopen().clean
    kit.close()


def test_without_a_buffer_messages_may_be_refused(tmp_path: Path) -> None:
    kit = Kit(
        tmp_path, **BY_HAND, transient_store_pool_size=2, fast_fail_if_no_buffer_in_store_pool=True
    )
    kit.open()
    results = [kit.store.writer.append_many([message(b"x" * 3000)])[0] for _ in range(4)]
    failed = PutStatus.CREATE_MAPPED_FILE_FAILED
    assert [r.status for r in results] == [PutStatus.PUT_OK] * 2 + [failed] * 2
    assert "transientStorePoolSize" in kit.store.writer.allocation_failure
    kit.store.writer.commit()
    assert kit.write(b"x" * 3000).physical_offset == 2 * SEGMENT, "a buffer came back"
    kit.store.writer.commit()
    kit.dispatch()
    kit.close()


def test_a_full_disk_returns_the_buffer(tmp_path: Path) -> None:
    kit = Kit(tmp_path, **BY_HAND, transient_store_pool_size=1)
    kit.open()

    def fault(name: str) -> None:
        if name == "fallocate":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    kit.disk.fault = fault
    assert (
        kit.store.writer.append_many([message()])[0].status is PutStatus.CREATE_MAPPED_FILE_FAILED
    )
    kit.disk.fault = None
    assert kit.store.log.pool is not None
    assert kit.store.log.pool.available == 1
    kit.write()
    kit.close()


def test_the_pool_alone() -> None:
    pool = TransientPool(2, 4096, fail_fast=True)
    one, two = pool.borrow(), pool.borrow()
    assert one is not None
    assert two is not None
    assert len(one) == 4096
    with pytest.raises(StoreError, match="No buffer"):
        pool.borrow()
    pool.give_back(one)
    assert pool.borrow() is one
    pool.give_back(one)
    two[:3] = b"abc"
    pool.close()
    assert bytes(two[:3]) == b"abc", "who still has one keeps it"


# -- failures and followers -----------------------------------------------------------------------


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_failed_commit_is_never_repeated(tmp_path: Path, flush: str) -> None:
    kit = Kit(tmp_path, **QUICKLY, flush_disk_type=flush)
    kit.open()
    good = kit.write(b"good").end
    Flushed(kit).wait(good)
    kit.dispatch()
    tried: list[str] = []

    def fault(name: str) -> None:
        if name == "write_log":
            tried.append(name)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    kit.disk.fault = fault
    kit.write(b"bad")
    until(lambda: not kit.store.writable)
    assert kit.store.writer.append_many([message()])[0].status is PutStatus.SERVICE_NOT_AVAILABLE
    kit.store.writer.commit()
    assert kit.queue_bodies() == [b"good"], "reading goes on"
    kit.close()
    assert tried == ["write_log"]
    assert not kit.open().clean
    kit.dispatch()
    assert kit.queue_bodies() == [b"good"]
    kit.close()


def test_a_follower_writes_directly(tmp_path: Path) -> None:
    leader, follower = Kit(tmp_path / "leader"), Kit(tmp_path / "follower", **BY_HAND)
    leader.open()
    follower.open()
    leader.write_many(40, 300)
    end = leader.store.log_end
    while follower.store.log_end < end:
        begin = follower.store.received_end
        follower.store.append_raw(begin, leader.store.read_log(begin, 1000))
    assert follower.store.log.pool is None
    follower.dispatch()
    assert follower.queue_bodies() == leader.queue_bodies()
    # A leader that becomes a follower commits first.
    other = Kit(tmp_path / "other", **BY_HAND)
    other.open()
    own = other.write(b"own").end
    with pytest.raises(OffsetOutOfRangeError):
        other.store.append_raw(SEGMENT, b"x")
    assert other.store.log_end == own
    for kit in (leader, follower, other):
        kit.dispatch()
        assert kit.reopen().clean
        kit.close()
