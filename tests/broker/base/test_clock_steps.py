"""A clock that runs ahead and is corrected: nothing is hidden for longer than its own time.

Each test holds for a step of the running broker and for one while it is stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from cometmq.broker.delay import timer_core
from cometmq.proto import v2
from cometmq.store.config.store_config import TIMER_SLOTS
from cometmq.store.format.record import Message
from cometmq.store.timer.rules import TIMER_TOPIC
from cometmq.tests.broker.desk import Desk, desk, message
from cometmq.tests.broker.lite_desk import ADD, Lite
from cometmq.tests.broker.live import until
from cometmq.tests.broker.stepping import HOUR, SECOND, YEAR, SteppedClock
from cometmq.tests.broker.timing import delayed, enqueued, stored
from cometmq.tests.broker.transacting import end_transaction, prepared

TOPIC, GROUP = "t", "g"
TURN = TIMER_SLOTS * SECOND
STOPPED = pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
STEPS = pytest.mark.parametrize(
    ("stopped", "ahead"), [(False, 8 * HOUR), (True, YEAR)], ids=["running", "stopped"]
)


class Machine:
    """One broker after another on one directory, under one clock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = SteppedClock()
        self.k: Desk
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        self.k = await self._stack.enter_async_context(desk(self.root, clock=self.clock))

    async def stop(self) -> None:
        await self._stack.aclose()
        self._stack = AsyncExitStack()
        self.clock = self.clock.next()

    async def step(self, ms: int, *, stopped: bool = False) -> None:
        """Set the wall clock, while the broker runs or between two runs."""
        if stopped:
            await self.stop()
            self.clock.steps(ms)
            self.clock = self.clock.next()
            await self.start()
            return
        self.clock.steps(ms)
        self.moved()
        await asyncio.sleep(0.01)  # turns of the loop: what looks at the clock has seen the step

    def passes(self, ms: int) -> None:
        self.clock.passes(ms)
        self.moved()

    def moved(self) -> None:
        self.k.node.pop.clock_moved()
        self.k.node.runtime.clock_listeners.notify()


@asynccontextmanager
async def machine(root: Path) -> AsyncIterator[Machine]:
    """Run a broker with an ordinary topic."""
    made = Machine(root)
    await made.start()
    made.k.topic(TOPIC)
    try:
        yield made
    finally:
        await made.stop()


async def leveled(k: Desk, body: bytes, level: int) -> None:
    """Send a message with a delay level, as a classic client does."""
    k.node.sender.append(k.node.delayed.record(Message(TOPIC, 0, body), {"DELAY": str(level)}))
    await k.dispatched()


@STEPS
async def test_store_times_follow_the_clock_back(tmp_path: Path, stopped: bool, ahead: int) -> None:
    async with machine(tmp_path) as one:
        await one.k.sent(TOPIC, b"before")
        await one.step(ahead)
        await one.k.sent(TOPIC, b"ahead")
        await one.step(-ahead, stopped=stopped)
        await one.k.sent(TOPIC, b"after")
        times = [record.store_timestamp_ms for record in stored(one.k, TOPIC)]
        now_ms = one.clock.wall_ms()
        assert times == [now_ms, now_ms + ahead, now_ms]


async def test_a_delay_level_lasts_its_own_time_after_steps_in_both_directions(
    tmp_path: Path,
) -> None:
    """The clock is still behind where it once was when it is set back again."""
    async with machine(tmp_path) as one:
        await one.step(-YEAR)
        await leveled(one.k, b"first", 1)
        one.passes(2 * SECOND)
        await until(lambda: len(stored(one.k, TOPIC)) == 1)
        await one.step(9 * 24 * HOUR)
        await leveled(one.k, b"second", 3)
        await one.step(-8 * HOUR)
        one.passes(11 * SECOND)
        await until(lambda: len(stored(one.k, TOPIC)) == 2, 10)


@STOPPED
async def test_a_search_by_time_serves_the_corrected_clock(tmp_path: Path, stopped: bool) -> None:
    async with machine(tmp_path) as one:
        await one.k.sent(TOPIC, b"a")
        await one.step(8 * HOUR)
        await one.k.sent(TOPIC, b"b", b"c")
        await one.step(-8 * HOUR, stopped=stopped)
        store = one.k.node.store
        assert store.reader.search_offset(TOPIC, 0, one.clock.wall_ms() + 1) == 3  # not come yet
        one.passes(SECOND)
        await one.k.sent(TOPIC, b"d")
        one.passes(SECOND)
        now_ms = one.clock.wall_ms()
        assert store.reader.offset_by_time(TOPIC, 0, now_ms) == 4
        assert store.reader.offset_by_time(TOPIC, 0, now_ms, upper=True) == 3
        assert store.reader.offset_by_time(TOPIC, 0, 0) == 0
        found = store.reader.offset_by_time(TOPIC, 0, now_ms - SECOND)
        assert found in (1, 3)  # a place where older messages end


@STOPPED
async def test_a_query_by_key_finds_messages_of_both_times(tmp_path: Path, stopped: bool) -> None:
    async with machine(tmp_path) as one:
        sent = message(TOPIC, b"x", "ID-ahead")
        await one.step(8 * HOUR)
        await one.k.send(sent)
        await one.step(-8 * HOUR, stopped=stopped)
        await one.k.send(message(TOPIC, b"y", "ID-after"))
        await one.k.dispatched()
        queries, now_ms = one.k.node.store.queries, one.clock.wall_ms()
        await until(lambda: queries.query(TOPIC, "ID-after", begin_ms=now_ms - 1, end_ms=now_ms))
        ahead_ms = now_ms + 8 * HOUR
        for begin_ms, end_ms in ((0, (1 << 63) - 1), (ahead_ms - 1, ahead_ms)):
            assert queries.query(TOPIC, "ID-ahead", begin_ms=begin_ms, end_ms=end_ms)


@STEPS
@pytest.mark.parametrize("orderly", [False, True], ids=["pop", "fifo"])
async def test_an_invisible_message_is_hidden_for_its_own_time(
    tmp_path: Path, stopped: bool, ahead: int, orderly: bool
) -> None:
    async with machine(tmp_path) as one:
        one.k.group(GROUP, orderly=orderly)
        await one.k.sent(TOPIC, b"a", b"b")
        await one.step(ahead)
        got = await one.k.receive(TOPIC, GROUP, invisible_ms=10_000)
        assert got.bodies == [b"a", b"b"]
        assert one.k.change(TOPIC, GROUP, got.handles[0], 20_000).status.code == v2.OK
        await one.step(-ahead, stopped=stopped)
        await one.k.nothing(TOPIC, GROUP)
        one.passes(9_000)
        await one.k.nothing(TOPIC, GROUP)
        one.passes(11_000)
        again: list[bytes] = []
        while len(again) < 2:
            again += (await one.k.receive(TOPIC, GROUP, one.k.context(remaining_ms=5_000))).bodies
        assert sorted(again) == [b"a", b"b"]


@STEPS
async def test_a_lite_topic_is_locked_for_its_own_time(
    tmp_path: Path, stopped: bool, ahead: int
) -> None:
    async with machine(tmp_path) as one:
        lite = Lite(one.k)
        lite.parent()
        lite.bind()
        assert lite.sync(ADD, "a") == v2.OK
        await lite.send("a", b"a1")
        await one.step(ahead)
        assert (await lite.receive(invisible_ms=10_000)).bodies == [b"a1"]
        await one.step(-ahead, stopped=stopped)
        lite = Lite(one.k)
        assert lite.sync(ADD, "a") == v2.OK
        await lite.nothing()
        one.passes(10_000)
        assert (await lite.receive()).bodies == [b"a1"]


@STEPS
async def test_a_delay_level_waits_for_its_delay(tmp_path: Path, stopped: bool, ahead: int) -> None:
    async with machine(tmp_path) as one:
        await one.step(ahead)
        await leveled(one.k, b"ahead", 3)  # 10 s
        await one.step(-ahead, stopped=stopped)
        await leveled(one.k, b"after", 3)
        one.passes(9_000)
        await asyncio.sleep(0.02)
        assert stored(one.k, TOPIC) == []
        one.passes(1_000)
        await until(lambda: len(stored(one.k, TOPIC)) == 2)


async def test_a_small_step_back_does_not_deliver_a_level_early(tmp_path: Path) -> None:
    async with machine(tmp_path) as one:
        await one.step(5 * SECOND)
        await leveled(one.k, b"x", 17)  # 1 h
        await one.step(-5 * SECOND)
        await asyncio.sleep(0.02)
        one.passes(HOUR - SECOND)
        await asyncio.sleep(0.02)
        assert stored(one.k, TOPIC) == []
        one.passes(SECOND)
        await until(lambda: stored(one.k, TOPIC))


@STEPS
async def test_due_timers_are_delivered_whatever_else_waits(
    tmp_path: Path, stopped: bool, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_core, "DIRECT_MAX", 8)
    monkeypatch.setattr(timer_core, "WAITING_MAX", 16)
    async with machine(tmp_path) as one:
        one.k.topic(TOPIC, message_type=v2.DELAY)
        await one.step(ahead)
        await one.k.send(delayed(b"first", one.clock.wall_ms() + SECOND, topic=TOPIC))
        await one.k.dispatched()
        one.passes(2 * SECOND)
        await until(lambda: stored(one.k, TOPIC))
        far = [b"far-%d" % number for number in range(40)]
        beyond_ms = one.clock.wall_ms() + SECOND
        for body in far[:20]:  # for slots that are open when the clock is set back
            await one.k.send(delayed(body, beyond_ms, topic=TOPIC))
        await enqueued(one.k)
        await one.step(-ahead, stopped=stopped)
        now_ms = one.clock.wall_ms()
        for body in far[20:]:
            await one.k.send(delayed(body, now_ms + HOUR, topic=TOPIC))
        await one.k.send(delayed(b"soon", now_ms + 5 * SECOND, topic=TOPIC))
        await one.k.dispatched()
        one.passes(5 * SECOND)
        await until(lambda: len(stored(one.k, TOPIC)) == 2)
        assert [record.body for record in stored(one.k, TOPIC)][-1] == b"soon"
        await enqueued(one.k)
        await one.step(0, stopped=True)
        one.passes(HOUR)
        await until(lambda: len(stored(one.k, TOPIC)) >= 22)
        await one.step(ahead, stopped=stopped)
        await until(lambda: len(stored(one.k, TOPIC)) >= 42)
        bodies = sorted(record.body for record in stored(one.k, TOPIC))
        assert bodies == sorted([b"first", b"soon", *far])
    assert not (tmp_path / "abort").exists()


@STOPPED
async def test_a_due_timer_keeps_its_slot_from_one_of_a_turn_of_the_wheel_later(
    tmp_path: Path, stopped: bool
) -> None:
    """The slots of both are at one place of the wheel, and the first is not read yet."""
    async with machine(tmp_path) as one:
        one.k.topic(TOPIC, message_type=v2.DELAY)
        due_ms = one.clock.wall_ms() + HOUR
        await one.k.send(delayed(b"due", due_ms, topic=TOPIC))
        await enqueued(one.k)
        if stopped:
            await one.stop()
        one.clock.steps(TURN)
        if stopped:
            await one.start()
        await one.k.send(delayed(b"later", due_ms + TURN, topic=TOPIC))
        await until(lambda: [each.body for each in stored(one.k, TOPIC)] == [b"due"], 10)
        await one.step(0, stopped=True)
        one.passes(HOUR + SECOND)
        await until(lambda: [each.body for each in stored(one.k, TOPIC)] == [b"due", b"later"], 10)


async def test_a_timer_of_after_a_step_back_survives_the_next_step_back(tmp_path: Path) -> None:
    """The slot that was open before the first step is still in memory at the second."""
    async with machine(tmp_path) as one:
        one.k.topic(TOPIC, message_type=v2.DELAY)
        await one.k.send(delayed(b"first", one.clock.wall_ms() + SECOND, topic=TOPIC))
        await enqueued(one.k)
        one.passes(SECOND)
        await until(lambda: stored(one.k, TOPIC))
        await one.step(-YEAR)
        await one.k.send(delayed(b"second", one.clock.wall_ms() + 30 * SECOND, topic=TOPIC))
        await enqueued(one.k)
        await one.step(-5 * SECOND)
        one.passes(40 * SECOND)
        await until(lambda: len(stored(one.k, TOPIC)) == 2, 10)


async def test_timers_that_the_clock_opened_wait_again_when_it_goes_back(tmp_path: Path) -> None:
    async with machine(tmp_path) as one:
        one.k.topic(TOPIC, message_type=v2.DELAY)
        now_ms = one.clock.wall_ms()
        await one.k.send(delayed(b"later", now_ms + HOUR, topic=TOPIC))
        await enqueued(one.k)
        await one.step(HOUR - SECOND)
        await until(lambda: one.k.node.timers._core.waiting == 1)
        await one.step(-HOUR + SECOND)
        await until(lambda: one.k.node.timers._core.waiting == 0)
        assert stored(one.k, TOPIC) == []
        one.passes(HOUR)
        await until(lambda: stored(one.k, TOPIC))


@STOPPED
async def test_what_was_acknowledged_before_a_reset_comes_again(
    tmp_path: Path, stopped: bool
) -> None:
    async with machine(tmp_path) as one:
        one.k.group(GROUP)
        await one.step(8 * HOUR)
        await one.k.sent(TOPIC, b"a", b"b", b"c")
        got = await one.k.receive(TOPIC, GROUP)
        one.k.ack(TOPIC, GROUP, *got.handles[1:])
        one.k.node.journal.flush_all()
        await one.step(-8 * HOUR, stopped=stopped)
        one.k.node.offsets.commit(TOPIC, GROUP, 0, 0)
        one.k.node.pop.rewind(TOPIC, GROUP, 0, 0)
        await one.step(0, stopped=True)
        one.passes(30_000)
        again: list[bytes] = []
        while len(set(again)) < 3:
            again += (await one.k.receive(TOPIC, GROUP, one.k.context(remaining_ms=5_000))).bodies


@STOPPED
async def test_a_transaction_ends_as_its_producer_says(tmp_path: Path, stopped: bool) -> None:
    async with machine(tmp_path) as one:
        one.k.topic("tx", message_type=v2.TRANSACTION)
        await one.step(YEAR)
        (ahead,) = await prepared(one.k, "tx", "ID-ahead")
        await one.step(-YEAR, stopped=stopped)
        (after,) = await prepared(one.k, "tx", "ID-after")
        await one.step(YEAR)  # older than retention: asked before it is given up
        await one.step(-YEAR)
        for transaction in (ahead, after):
            assert await end_transaction(one.k, "tx", transaction) == v2.OK
        await until(lambda: len(stored(one.k, "tx")) == 2)


async def test_a_step_is_logged_once_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with machine(tmp_path) as one:
        with caplog.at_level(logging.WARNING, logger="cometmq.broker.base.clock_watch"):
            for ms in (900, 8 * HOUR, -8 * HOUR, 0):
                await one.step(ms)
        steps = [one.getMessage() for one in caplog.records if "clock_watch" in one.name]
        assert [step.split(":")[0] for step in steps] == [
            f"clock.stepped direction=forward ms={8 * HOUR + 900}",
            f"clock.stepped direction=back ms={8 * HOUR}",
        ]
        await one.step(HOUR)
        await one.k.sent(TOPIC, b"x")
        caplog.clear()
        await one.step(-HOUR, stopped=True)
        assert "behind the newest message" in caplog.text
        assert one.k.node.runtime.counters.clock_steps["back"] == 1


async def test_the_first_timer_after_a_step_back_survives_a_restart(tmp_path: Path) -> None:
    """The read time that the leader of before the step has told is not that of the new one."""
    async with machine(tmp_path) as one:
        one.k.topic("later", message_type=v2.DELAY)
        await one.step(-5 * SECOND)  # the read time is saved
        await one.step(-9 * 24 * HOUR, stopped=True)
        due_ms = one.clock.wall_ms() + 30 * SECOND
        assert (await one.k.send(delayed(b"due", due_ms, topic="later"))).status.code == v2.OK
        await one.k.dispatched()
        await one.step(0, stopped=True)
        one.passes(31 * SECOND)
        await until(lambda: [each.body for each in stored(one.k, "later")] == [b"due"], 10)


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_timer_survives_a_kill_before_the_offsets_of_after_a_step_are_written(
    tmp_path: Path, stopped: bool
) -> None:
    """The offsets still have the read time of before the step; the timer is in the wheel."""
    async with machine(tmp_path) as one:
        one.k.topic("later", message_type=v2.DELAY)
        if not stopped:
            await one.k.send(delayed(b"before", one.clock.wall_ms() + SECOND, topic="later"))
            one.passes(2 * SECOND)
            await until(lambda: len(stored(one.k, "later")) == 1)
        await saved(one)
        offsets = one.k.node.offsets
        before = [each for each in offsets if each[0] == TIMER_TOPIC]
        await one.step(-9 * 24 * HOUR, stopped=stopped)
        await until(lambda: one.k.node.timers._core.read_ms <= one.clock.wall_ms())
        due_ms = one.clock.wall_ms() + 30 * SECOND
        assert (await one.k.send(delayed(b"due", due_ms, topic="later"))).status.code == v2.OK
        await until(lambda: not one.k.node.timers.enqueue_lag, 10)
        await saved(one)
        offsets = one.k.node.offsets
        for topic, group, queue_id, offset in before:
            offsets.commit(topic, group, queue_id, offset)
        saver = one.k.node.timers._saver
        assert saver is not None
        saver._offsets = Mock()  # later ones are not written
        await one.step(0, stopped=True)
        one.passes(31 * SECOND)
        await until(lambda: b"due" in [each.body for each in stored(one.k, "later")], 10)


async def saved(one: Machine) -> None:
    """Wait until the timers' progress is saved."""
    saver = one.k.node.timers._saver
    assert saver is not None
    flushes = saver.flushes
    await until(lambda: not saver.busy)
    saver.save()
    await until(lambda: saver.flushes > flushes)


async def test_an_acknowledgement_of_what_comes_again_after_a_step_back_is_refused(
    tmp_path: Path,
) -> None:
    """The clock is behind the end of the invisible time; the message is in the retry topic."""
    async with machine(tmp_path) as one:
        one.k.group(GROUP)
        await one.k.sent(TOPIC, b"1", b"2")
        got = await one.k.receive(TOPIC, GROUP, invisible_ms=20 * SECOND)
        one.passes(2 * SECOND)  # its checkpoint is in the log
        await until(lambda: one.k.node.offsets.get(TOPIC, GROUP, 0) == 2)
        await one.step(-8 * HOUR, stopped=True)
        assert one.k.ack(TOPIC, GROUP, got.handles[1]).entries[0].status.code == v2.OK
        one.passes(21 * SECOND)
        await until(lambda: len(stored(one.k, "%RETRY%g_t")) == 1)
        answer = one.k.ack(TOPIC, GROUP, got.handles[0])
        assert answer.entries[0].status.code == v2.INVALID_RECEIPT_HANDLE
        assert (await one.k.receive(TOPIC, GROUP)).bodies == [b"1"]
