"""Durability gate: sends that wait for disk and replicas, and their results."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.visible.durability import WaitingList
from cometmq.proto import v2
from cometmq.store.format.results import PutStatus
from cometmq.tests.broker.desk import desk, message
from cometmq.tests.broker.live import settings, until

FLUSH_NS = 5_000
REPLICA_NS = 3_000


def waiting(flush: bool = True, replicas: bool = True) -> tuple[WaitingList, dict[int, PutStatus]]:
    """Return a waiting list, and the results by end offset."""
    made = WaitingList(FLUSH_NS if flush else None, REPLICA_NS if replicas else None)
    return made, {}


def add(made: WaitingList, results: dict[int, PutStatus], end: int, now_ns: int) -> None:
    """Wait for `end`."""
    made.add(end, now_ns, lambda code: results.__setitem__(end, code))


def test_a_wait_ends_when_both_offsets_have_passed() -> None:
    made, results = waiting()
    for end in (10, 20, 30):
        add(made, results, end, 0)
    assert [w.end for w in made.advance(25, 15)] == [10]
    assert [w.end for w in made.advance(25, 30)] == [20]
    assert [w.end for w in made.advance(30, 30)] == [30]
    assert made.next_deadline_ns() is None


def test_a_wait_covers_only_the_configured_offsets() -> None:
    flush_only, results = waiting(replicas=False)
    add(flush_only, results, 10, 0)
    assert len(flush_only.advance(10, 0)) == 1
    replicas_only, results = waiting(flush=False)
    add(replicas_only, results, 10, 0)
    assert len(replicas_only.advance(0, 10)) == 1
    neither, results = waiting(flush=False, replicas=False)
    add(neither, results, 10, 0)
    assert len(neither.advance(0, 0)) == 1


def test_a_timeout_reports_the_slow_part() -> None:
    made, results = waiting()
    add(made, results, 10, 0)
    add(made, results, 20, 100)
    assert made.next_deadline_ns() == REPLICA_NS
    assert made.expire(0, 0, REPLICA_NS - 1) == []
    ((first, code),) = made.expire(10, 0, REPLICA_NS)
    assert (first.end, code) == (10, PutStatus.FLUSH_SLAVE_TIMEOUT)
    # The replicas have the second, the local disk has not.
    assert made.expire(10, 20, FLUSH_NS) == []
    ((second, code),) = made.expire(10, 20, FLUSH_NS + 100)
    assert (second.end, code) == (20, PutStatus.FLUSH_DISK_TIMEOUT)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2_000)), max_size=12),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 4_000)), max_size=12),
)
def test_every_wait_ends_once_and_in_order(
    appends: list[tuple[int, int]], events: list[tuple[int, int, int]]
) -> None:
    made, results = waiting()
    end = now_ns = 0
    for size, later in appends:
        end += size
        now_ns += later
        add(made, results, end, now_ns)
    ends = [wait.end for wait in made.waits]
    over: list[tuple[int, PutStatus | None]] = []
    flushed = confirm = 0
    for more, also, later in events:
        flushed, confirm, now_ns = max(flushed, more), max(confirm, also), now_ns + later
        released = made.advance(flushed, confirm)
        assert all(wait.end <= min(flushed, confirm) for wait in released)
        over += [(wait.end, None) for wait in released]
        expired = made.expire(flushed, confirm, now_ns)
        assert all(wait.end > min(flushed, confirm) for wait, _ in expired)
        over += [(wait.end, code) for wait, code in expired]
        deadline = made.next_deadline_ns()
        # Waits that remain are not overdue: at most the disk's longer timeout is still running.
        assert deadline is None or deadline + FLUSH_NS - REPLICA_NS > now_ns
    assert [done for done, _ in over] + [wait.end for wait in made.waits] == ends


async def test_synchronous_flush_answers_after_the_flush(tmp_path: Path) -> None:
    base = settings(tmp_path)
    chosen = replace(base, store=replace(base.store, flush_disk_type="SYNC_FLUSH"))
    async with desk(tmp_path, chosen) as one:
        one.topic("t")
        answers = await asyncio.gather(
            *(one.send(message("t", b"%d" % n, f"ID-{n}")) for n in range(50))
        )
        assert {answer.status.code for answer in answers} == {v2.OK}
        assert one.node.store.flushed_offset == one.node.store.log_end
        assert len(one.node.durability) == 0


async def test_a_stalled_flush_leaves_the_result_unknown(
    tmp_path: Path,
) -> None:
    base = settings(tmp_path)
    store = replace(base.store, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=100)
    async with desk(tmp_path, replace(base, store=store)) as one:
        one.topic("t")
        slow = asyncio.Event()
        loop = asyncio.get_running_loop()

        def stuck(call: str) -> None:
            if call == "fdatasync":
                asyncio.run_coroutine_threadsafe(slow.wait(), loop).result(30)

        one.node.store.disk.fault = stuck
        answer = await one.send(message("t"))
        assert answer.status.code == v2.MASTER_PERSISTENCE_TIMEOUT
        assert not answer.entries
        one.node.store.disk.fault = None
        slow.set()
        while (answer := await one.send(message("t"))).status.code != v2.OK:
            # A busy machine may need longer than the limit for some.
            assert answer.status.code == v2.MASTER_PERSISTENCE_TIMEOUT


async def test_sends_queued_behind_a_stalled_write_are_refused(tmp_path: Path) -> None:
    base = settings(tmp_path)
    store = replace(base.store, os_page_cache_busy_time_out_mills=500)
    async with desk(tmp_path, replace(base, store=store)) as one:
        one.topic("t")
        await one.sent("t", b"before")

        def hang(call: str) -> None:
            if call == "write_log":
                threading.Event().wait(0.6)

        one.node.store.disk.fault = hang
        assert (await one.send(message("t"))).status.code == v2.OK, "it was written"
        one.node.store.disk.fault = None
        refused = await asyncio.gather(*(one.send(message("t")) for _ in range(3)))
        assert {answer.status.code for answer in refused} == {v2.TOO_MANY_REQUESTS}
        assert "osPageCacheBusyTimeOutMills" in refused[0].status.message
        assert (await one.send(message("t"))).status.code == v2.OK


async def test_the_transient_pool_loses_nothing_at_a_clean_stop(tmp_path: Path) -> None:
    """Answers arrive at once, readers see a message after the commit, a clean stop loses
    nothing.
    """
    base = settings(tmp_path)
    store = replace(
        base.store,
        transient_store_pool_enable=True,
        transient_store_pool_size=2,
        commit_interval_commit_log=20,
        commit_commit_log_thorough_interval=20,
    )
    chosen = replace(base, store=store)
    async with desk(tmp_path, chosen) as one:
        one.topic("t")
        await until(lambda: one.node.metadata.topic("t"))
        for n in range(30):
            answer = await one.send(message("t", b"%d" % n * 1000, f"ID-{n}"))
            assert answer.status.code == v2.OK
        await until(lambda: one.node.store.max_offset("t", 0) == 30)
        assert one.node.store.log_end == one.node.store.appended_end
        await one.send(message("t", b"last"))
    async with desk(tmp_path, chosen) as one:
        assert one.node.store.max_offset("t", 0) == 31


async def test_a_failing_callback_does_not_stop_the_waits_behind_it(
    tmp_path: Path,
) -> None:
    base = settings(tmp_path)
    chosen = replace(base, store=replace(base.store, flush_disk_type="SYNC_FLUSH"))
    async with desk(tmp_path, chosen) as one:
        one.topic("t")
        failures: list[object] = []
        one.node.runtime.loop.set_exception_handler(
            lambda _, what: failures.append(what["exception"])
        )

        def fail(_: PutStatus) -> None:
            raise ValueError("a bug")

        one.node.durability.wait(one.node.store.log_end + 1, fail)
        assert (await one.send(message("t"))).status.code == v2.OK
        assert [str(failure) for failure in failures] == ["a bug"]
