"""Group commit: two lists of requests, and callers that wait for the disk without an event loop."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from cometmq.store.format.properties import waits
from cometmq.store.format.results import PutStatus
from cometmq.store.group_commit import FlushRequest, GroupCommit
from cometmq.tests.store.kit import Kit, message
from cometmq.tests.store.log.test_flush import sync_kit, until


@given(
    st.lists(st.one_of(st.integers(1, 5), st.sampled_from(["swap", "settle", "up"])), max_size=40)
)
def test_all_requests_are_settled_once_and_in_order(steps: list[int | str]) -> None:
    group = GroupCommit()
    gathering: list[threading.Event] = []
    flushing: list[threading.Event] = []
    records = 0
    for step in steps:
        if isinstance(step, int):
            gathering.append(threading.Event())
            group.add(FlushRequest(0, step, gathering[-1]))
            records += step
        elif step == "swap":
            group.settle()
            flushing = []
            assert group.swap() == records
            flushing, gathering, records = gathering, [], 0
        elif step == "settle":
            group.settle()
            assert all(event.is_set() for event in flushing)
        else:
            group.give_up()
            assert all(event.is_set() for event in (*flushing, *gathering))
            gathering, flushing, records = [], [], 0
        assert group.pending == records
        assert not any(event.is_set() for event in gathering)


def test_the_wait_flag() -> None:
    assert waits(b"")
    assert waits(b"WAIT\x01true\x02TAGS\x01T\x02")
    assert not waits(b"TAGS\x01T\x02WAIT\x01false\x02")
    assert waits(b"NOWAIT\x01false\x02")


def test_append_and_wait(tmp_path: Path) -> None:
    kit = sync_kit(tmp_path)
    for _ in range(5):
        results = kit.store.writer.append_and_wait([message(), message(b"x" * 5_000_000)])
        assert [r.status for r in results] == [PutStatus.PUT_OK, PutStatus.MESSAGE_ILLEGAL]
        assert kit.store.flushed_offset >= results[0].end
    assert kit.store.writer.append_and_wait([]) == []
    kit.close()
    kit = Kit(tmp_path / "async")
    kit.open()
    assert kit.store.writer.append_and_wait([message()])[0].status is PutStatus.PUT_OK
    assert kit.store.flushed_offset == 0, "no further flush was requested"
    kit.close()


def test_a_flush_timeout_is_reported_as_unknown(tmp_path: Path) -> None:
    kit = sync_kit(tmp_path, sync_flush_timeout=20)
    stuck, go = threading.Event(), threading.Event()

    def fault(name: str) -> None:
        if name == "fdatasync":
            stuck.set()
            assert go.wait(20)

    kit.disk.fault = fault
    quick = message(b"quick", properties=b"WAIT\x01false\x02")
    assert kit.store.writer.append_and_wait([quick])[0].status is PutStatus.PUT_OK
    assert stuck.wait(20)
    (late,) = kit.store.writer.append_and_wait([message(b"late")])
    assert late.status is PutStatus.FLUSH_DISK_TIMEOUT
    assert (late.queue_offset, late.end) == (1, kit.store.log_end), "it is stored"
    kit.dispatch()
    assert kit.queue_bodies() == [b"quick", b"late"]
    kit.disk.fault = None
    go.set()
    until(lambda: kit.store.flushed_offset == late.end)
    # A busy machine may need longer than the limit for one of them.
    until(lambda: kit.store.writer.append_and_wait([message()])[0].status is PutStatus.PUT_OK)
    kit.dispatch()
    assert kit.reopen().clean
    kit.close()


def test_a_failed_flush_releases_the_caller(tmp_path: Path) -> None:
    kit = sync_kit(tmp_path)

    def fault(name: str) -> None:
        if name == "fdatasync":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    kit.disk.fault = fault
    (result,) = kit.store.writer.append_and_wait([message()])
    assert result.status is PutStatus.FLUSH_DISK_TIMEOUT
    until(lambda: not kit.store.writable)
    (result,) = kit.store.writer.append_and_wait([message()])
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    kit.close()
