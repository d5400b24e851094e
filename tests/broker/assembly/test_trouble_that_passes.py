"""Transient failures: a read or write that fails once stops no service."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.delay.timer_core import Timed
from cometmq.broker.journal.recovery import ReviveReader
from cometmq.broker.metadata.tables import Topic
from cometmq.broker.names.lite import queue_of
from cometmq.broker.pop.reader import PopReader
from cometmq.broker.transactions.checks import CheckRounds
from cometmq.broker.transactions.reader import TransactionReader
from cometmq.proto import v2
from cometmq.proto.errors import WireError
from cometmq.store.format.errors import DiskFullError
from cometmq.store.queue.removal import QueueRemoval
from cometmq.store.timer.store import TimerStore
from cometmq.store.timer.unit import TimerUnit
from cometmq.store.writing import StoreWriter
from cometmq.tests.broker.desk import desk, parse_received
from cometmq.tests.broker.lite_desk import ADD, MINUTE_MS, NONE, PARENT, lite
from cometmq.tests.broker.live import settings, until
from cometmq.tests.broker.timing import HOUR, TOPIC, arrives, delayed, send
from cometmq.tests.broker.transacting import end_transaction, prepared

ROUND_MS = 30_000


class Trouble:
    """Wraps a method: fails a number of times, then passes every call."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str, times: int = 1) -> None:
        self.times, self.failed, self.passed = times, 0, 0
        before: Callable[..., Any] = getattr(owner, name)

        def call(*args: Any, **more: Any) -> Any:
            if self.failed < self.times:
                self.failed += 1
                raise OSError(errno.EIO, "the disk")
            self.passed += 1
            return before(*args, **more)

        patch.setattr(owner, name, call)


async def test_a_failed_revive_of_a_group_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a")
        await one.receive("t", "g")
        await one.receive("t", "h")
        trouble = Trouble(monkeypatch, one.node.pop.reviver, "run")
        polls = [one.start_receive("t", group) for group in ("g", "h")]
        one.node.runtime.clock.advance_wall_ms(30_000)
        for poll in polls:
            assert parse_received(await poll).bodies == [b"a"]
        assert trouble.failed == 1


async def test_messages_of_a_queue_with_a_failed_read_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a", b"b")
        assert len((await one.receive("t", "g")).bodies) == 2
        trouble = Trouble(monkeypatch, one.node.pop.reviver, "_read")
        one.advance(30_000)
        await until(lambda: trouble.failed == 1)
        one.advance(2_000)
        await until(lambda: sum(one.node.pop.reviver.revived.values()) == 2)


async def test_a_redelivery_in_place_survives_a_failed_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a")
        await one.receive("t", "g")
        monkeypatch.setattr(one.node.replication, "write_refusal", lambda: "too few replicas")
        trouble = Trouble(monkeypatch, PopReader, "_read_one")
        one.advance(30_000)
        assert (await one.receive("t", "g")).bodies == [b"a"]
        assert trouble.failed == 1


async def test_check_rounds_continue_after_a_failed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", message_type=v2.TRANSACTION)
        await prepared(one, "t", "A")
        transactions = one.node.transactions
        await until(lambda: transactions.recovery is None and len(transactions.table) == 1)
        for name in ("_steps", "_take"):
            before = transactions.stats.unreachable
            with monkeypatch.context() as patched:
                Trouble(patched, CheckRounds, name)
                with pytest.raises(OSError, match="the disk"):
                    one.advance(ROUND_MS)
            one.advance(ROUND_MS)
            assert transactions.stats.unreachable == before + 1


async def test_ends_are_answered_after_a_failed_read_during_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", message_type=v2.TRANSACTION)
        (ident,) = await prepared(one, "t", "A")
    trouble = Trouble(monkeypatch, TransactionReader, "read_some")
    async with desk(tmp_path) as one:
        assert await end_transaction(one, "t", ident) == v2.OK
        assert trouble.failed == 1


async def test_an_end_during_the_start_does_not_read_all_half_messages_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", message_type=v2.TRANSACTION)
        transactions = one.node.transactions
        await until(lambda: transactions.recovery is None)
        (ident,) = await prepared(one, "t", "A")
        transactions.follow()
        transactions.lead()
        with monkeypatch.context() as patched:
            trouble = Trouble(patched, TransactionReader, "read_some", times=0)
            answer = transactions.end_transaction(
                v2.EndTransactionRequest(
                    topic=v2.Resource(name="t"), transaction_id=ident, resolution=v2.COMMIT
                ),
                one.context(),
            )
            assert trouble.passed == 0, "the recovery reads, a piece a turn"
        assert (await answer).status.code == v2.OK


@pytest.mark.parametrize("where", ["log", "record", "recalls"])
async def test_a_slot_is_read_completely_after_a_failed_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    async with desk(tmp_path) as one:
        one.topic(TOPIC, message_type=v2.DELAY)
        due = one.node.runtime.clock.wall_ms() + HOUR
        await send(one, *(delayed(b"%d" % n, due) for n in range(3)))
        if where == "log":
            failed = _fail_in_the_middle(monkeypatch)
        else:
            owner = one.node.store if where == "record" else TimerStore
            name = "record_at" if where == "record" else "cancelled_keys"
            trouble = Trouble(monkeypatch, owner, name)
            failed = lambda: trouble.failed  # noqa: E731
        one.advance(HOUR)
        await arrives(one, b"0", b"1", b"2")
        assert failed() == 1
    shutil.rmtree(tmp_path)  # a wheel is a sparse file of 37 MiB


def _fail_in_the_middle(patch: pytest.MonkeyPatch) -> Callable[[], int]:
    units, failures = TimerStore.units, [1]

    def broken(self: TimerStore, slot_ms: int) -> Iterator[TimerUnit]:
        for number, unit in enumerate(units(self, slot_ms)):
            if number == 1 and failures:
                failures.clear()
                raise OSError(errno.EIO, "the disk")
            yield unit

    patch.setattr(TimerStore, "units", broken)
    return lambda: 1 - len(failures)


async def test_a_follower_continues_reading_after_a_failed_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path, settings(tmp_path)) as one:
        journal: Any = one.node.journal
        journal.follow()
        trouble = Trouble(monkeypatch, ReviveReader, "behind")
        await until(lambda: trouble.passed > 1)
        journal.lead(one.node.pop.core)


async def test_a_failed_removal_of_a_lite_topic_does_not_keep_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lite(tmp_path) as one:
        one.parent(expiration="30")
        await one.send("a", b"1")
        await one.send("b", b"1")
        service = one.one.node.lite
        trouble = Trouble(monkeypatch, QueueRemoval, "remove_lmq")
        one.one.advance(30 * MINUTE_MS)
        await until(lambda: one.queues == [queue_of(PARENT, "a")] and not service._sweeping)
        assert trouble.failed == 1
        service._tick()
        await until(lambda: not one.queues)


async def test_lite_topic_sweeps_continue_after_a_failed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lite(tmp_path) as one:
        service = one.one.node.lite
        service._stop()
        monkeypatch.setattr("cometmq.broker.lite.service._PERIOD_S", 0.01)
        trouble = Trouble(monkeypatch, service, "_sweep")
        with pytest.raises(OSError, match="the disk"):
            service._tick()
        await until(lambda: trouble.passed > 1)


async def test_attempts_are_dropped_when_a_client_unsubscribes(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        assert one.sync(ADD, "a") == v2.OK
        await one.send("a", b"1")
        got = await one.receive(attempt_id="first")
        assert got.bodies == [b"1"]
        assert one.sync(NONE) == v2.OK
        assert not one.one.node.lite.receiving._attempts


async def test_a_topic_whose_append_fails_is_refused_and_can_be_created_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path) as one:

        def full(*_: Any) -> None:
            raise DiskFullError("there is no room")

        with monkeypatch.context() as patched:
            patched.setattr(StoreWriter, "append_many", full)
            with pytest.raises(WireError, match="no room"):
                one.node.meta_log.write_topic(Topic("t", 1, 1))
        assert one.node.metadata.topic("t") is None
        one.node.meta_log.write_topic(Topic("t", 1, 1))


async def test_a_clock_set_back_during_a_round_does_not_delay_the_next(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as one:
        checks = one.node.transactions.checks
        await until(lambda: one.node.transactions.recovery is None)
        one.node.runtime.clock.advance_wall_ms(-HOUR)
        checks._slice()
        assert checks._timer is not None
        assert checks._timer.when() <= one.node.runtime.loop.time() + ROUND_MS / 1000


async def test_late_messages_are_enqueued_after_a_timer_file_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path) as one:
        monkeypatch.setattr("cometmq.broker.delay.timer_core.DIRECT_MAX", 1)
        timers = one.node.timers
        core, saver = timers._core, timers._saver
        assert saver is not None
        timers.stats.broken = True
        core.add_direct(Timed(core.read_ms, 0, core.read_ms, 0, "K", "t", number=0))
        (timed,), _ = core.take(core.read_ms, 1)
        core.settled(timed, 0)
        assert core.crowded
        saver._turn()
        assert not core.crowded
