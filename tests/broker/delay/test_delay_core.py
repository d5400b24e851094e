"""Delay level core against a model: in order, never early, progress only for durable deliveries."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from cometmq.broker.delay.level_core import DelayCore

DELAYS = (1, 5)


def test_an_empty_level_is_read_once_until_an_arrival() -> None:
    core = DelayCore([0, 0])
    assert core.ready(0) == [0, 1]
    core.empty(0, 0)
    core.waits(1, 0, 500)
    assert core.ready(499) == []
    assert core.next_due_ms() == 500
    assert core.ready(500) == [1]
    core.arrived(0)
    assert core.ready(499) == [0]
    core.arrived(7)  # a level that this configuration does not have


def test_a_clock_change_makes_every_level_ready() -> None:
    core = DelayCore([0])
    core.waits(0, 0, 500)
    core.look_again()
    assert core.ready(0) == [0]


def test_progress_covers_only_deliveries_on_disk() -> None:
    core = DelayCore([3, 0])
    assert core.progress(0) == {}
    core.delivered(0, 5, 100)
    core.delivered(0, 6, 200)
    assert core.unsaved
    assert core.progress(99) == {}
    assert core.progress(100) == {0: 5}
    assert core.progress(200) == {0: 6}
    assert not core.unsaved


class DelayMachine(RuleBasedStateMachine):
    """Two levels, a log with occasional flushes, crashes."""

    @initialize()
    def begin(self) -> None:
        self.now = 0
        #: When each message is due.
        self.queues: list[list[int]] = [[], []]
        self.log: list[tuple[int, int]] = []
        self.flushed = 0
        self.saved = [0, 0]
        self.core = DelayCore(self.saved)

    @rule(level=st.integers(0, 1))
    def send(self, level: int) -> None:
        self.queues[level].append(self.now + DELAYS[level])
        self.core.arrived(level)

    @rule(ms=st.integers(1, 4))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(limit=st.integers(1, 3))
    def turn(self, limit: int) -> None:
        for level in self.core.ready(self.now):
            offset = self.core.levels[level].offset
            waiting = self.queues[level][offset:]
            due = [at for at in waiting if at <= self.now][:limit]
            if due:
                numbers = range(offset, offset + len(due))
                self.log += [(level, number) for number in numbers]
                self.core.delivered(level, numbers.stop, len(self.log))
            elif waiting:
                self.core.waits(level, offset, waiting[0])
            else:
                self.core.empty(level, offset)

    @rule()
    def flush(self) -> None:
        self.flushed = len(self.log)

    @rule()
    def save(self) -> None:
        for level, offset in self.core.progress(self.flushed).items():
            assert offset >= self.saved[level]
            self.saved[level] = offset
            for number in range(offset):
                assert (level, number) in self.log[: self.flushed]

    @rule()
    def lose_power(self) -> None:
        del self.log[self.flushed :]
        self.core = DelayCore(self.saved)

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        self.now += max(DELAYS)
        for _ in range(50):
            self.turn(3)
        for level, queue in enumerate(self.queues):
            numbers = [number for at, number in self.log if at == level]
            assert set(numbers) == set(range(len(queue)))
        assert self.core.ready(self.now) == []


TestDelayMachine = DelayMachine.TestCase
TestDelayMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
