"""Timer core against a model with crashes: never early, nothing lost, recalls win, progress never
ahead of the disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from cometmq.broker.delay.timer_core import DIRECT_MAX, Timed, TimerCore

START = 1_700_000_000_000
SECOND = 1000


def timed(slot_ms: int, due_ms: int, place: int, key: str = "k", topic: str = "T") -> Timed:
    return Timed(due_ms, place, slot_ms, 0, key, topic)


def opened(core: TimerCore, *messages: Timed) -> None:
    """Open the next slot with these messages in it."""
    slot_ms = core.begin()
    for each in messages:
        assert each.slot_ms == slot_ms
        core.add(each)
    core.opened(slot_ms)


def test_a_slot_is_opened_one_second_before_it_begins() -> None:
    core = TimerCore(START, 0)
    core.pass_to(START + 5 * SECOND)
    assert not core.may_open(START + 3 * SECOND + 999)
    assert core.may_open(START + 4 * SECOND)


def test_messages_are_delivered_at_their_own_time_in_order() -> None:
    core = TimerCore(START, 0)
    late, early = timed(START, START + 900, 2), timed(START, START + 100, 1)
    opened(core, late, early)
    assert core.next_due_ms() == START + 100
    assert core.take(START + 99, 9) == ([], [])
    assert core.take(START + 100, 9) == ([early], [])
    assert core.take(START + 5000, 9) == ([late], [])


def test_the_read_time_advances_when_the_slot_is_over_delivered_and_durable() -> None:
    core = TimerCore(START, 7)
    message = timed(START, START + 1, 1)
    opened(core, message)
    core.take(START + 500, 9)
    core.settled(message, 4000)
    core.advance(START + 999)
    assert core.progress(9999)[0] == START
    before = core.changes
    core.advance(START + 1000)
    assert core.changes > before, "there is something to save"
    assert core.progress(3999) == (START, 7)
    assert core.progress(4000) == (START + SECOND, 7)


def test_nothing_is_delivered_from_a_slot_being_read() -> None:
    core = TimerCore(START, 0)
    slot_ms = core.begin()
    first = timed(slot_ms, slot_ms + 1, 1, "a")
    core.add(first)
    assert core.take(slot_ms + 500, 9) == ([], [])
    core.cancel(slot_ms, "T+a")
    core.opened(slot_ms)
    assert core.take(slot_ms + 500, 9) == ([], [first])


def test_a_recall_wins_until_the_message_is_taken() -> None:
    core = TimerCore(START, 0)
    first, second = timed(START, START + 800, 1, "a"), timed(START, START + 800, 2, "b", "T2")
    opened(core, first, second)
    assert core.waits(START, "a", "T") is True
    core.cancel(START, "T+a")
    core.cancel(START, "T2+b")
    assert core.waits(START, "a", "T") is False
    assert core.take(START + 800, 9) == ([], [first, second])
    core.advance(START + 1000)
    assert core.progress(0)[0] == START + SECOND


def test_a_recall_for_an_unread_slot_is_kept() -> None:
    core = TimerCore(START, 0)
    core.cancel(START, "T+a")
    assert core.waits(START, "a", "T") is None
    message = timed(START, START + 1, 1, "a")
    opened(core, message)
    assert core.take(START + 1, 9) == ([], [message])


def test_the_queue_offset_waits_for_a_recall_without_a_unit() -> None:
    core = TimerCore(START, 0)
    message = timed(START, START + 1, 1, "a")
    opened(core, message)
    core.cancel(START, "T+a", 4)
    core.queue_offset = 5
    assert core.progress(0) == (START, 4)
    assert core.take(START + 1, 9) == ([], [message])
    core.advance(START + SECOND)
    assert core.progress(0) == (START + SECOND, 5)


def test_slots_with_recalls_only_do_not_hold_the_read_time() -> None:
    core = TimerCore(START, 0)
    core.cancel(START, "T+a")
    core.pass_to(START + 2 * SECOND)
    core.advance(START + 2 * SECOND)
    assert core.read_ms == START + 2 * SECOND


def test_a_late_message_is_delivered_at_its_time() -> None:
    core = TimerCore(START, 0)
    core.pass_to(START + SECOND)
    assert core.is_open(START)
    message = timed(START, START + 900, 1)
    core.add(message)
    assert core.take(START + 899, 9) == ([], [])
    assert core.take(START + 900, 9) == ([message], [])


def test_the_queue_offset_waits_for_messages_without_a_unit() -> None:
    core = TimerCore(START, 5)
    first, second = timed(START, START + 1, 1), timed(START, START + 1, 2)
    first.number, second.number = 5, 6
    core.add_direct(first)
    core.add_direct(second)
    core.queue_offset = 9
    assert core.progress(0)[1] == 5
    due, _ = core.take(START + 1, 9)
    assert due == [first, second]
    core.settled(second, 200)
    assert core.progress(1000)[1] == 5
    core.settled(first, 100)
    assert core.progress(150)[1] == 6
    assert core.progress(200)[1] == 9


def test_too_many_messages_without_a_unit_stop_enqueueing() -> None:
    core = TimerCore(START, 0)
    for number in range(DIRECT_MAX):
        assert not core.crowded
        core.add_direct(Timed(START, number, START, 0, "k", "T", number=number))
    assert core.crowded


def test_messages_whose_append_fails_are_returned_again() -> None:
    core = TimerCore(START, 0)
    message = timed(START, START + 1, 1)
    opened(core, message)
    core.give_back(core.take(START + 1, 9)[0])
    assert core.take(START + 1, 9) == ([message], [])


def test_a_clock_set_back_delays_deliveries_and_loses_nothing() -> None:
    core = TimerCore(START, 0)
    opened(core, timed(START, START + 500, 1))
    opened(core, timed(START + SECOND, START + 1500, 2))
    assert len(core.take(START + 1500, 9)[0]) == 2
    core.advance(START - 3600_000)
    assert core.read_ms == START


@dataclass
class Sent:
    """A message, or a recall, of the timer topic."""

    slot_ms: int
    due_ms: int
    key: str
    cancels: bool
    sent_ms: int


@dataclass
class World:
    """The state that survives a crash."""

    topic: list[Sent] = field(default_factory=list)
    #: Slot: numbers of the messages that have a unit.
    wheel: dict[int, list[int]] = field(default_factory=dict)
    #: Deliveries: number, time. Its length is the log end.
    log: list[tuple[int, int]] = field(default_factory=list)
    flushed: int = 0
    saved: tuple[int, int] = (START, 0)


class TimerMachine(RuleBasedStateMachine):
    """A small timer service: enqueues, reads, delivers, flushes, crashes."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.now = START
        self.start()

    def start(self) -> None:
        read_ms, number = self.world.saved
        self.core = TimerCore(read_ms, number)
        self.reading: list[int] | None = None
        self.begin_at = len(self.world.topic)
        self.out: set[int] = set()

    @rule(ahead=st.integers(-1500, 6000), key=st.sampled_from("abc"), cancels=st.booleans())
    def send(self, ahead: int, key: str, cancels: bool) -> None:
        due = max(self.now + ahead, self.now + 1)
        slot = due - (due % SECOND or SECOND)
        self.world.topic.append(Sent(slot, due, key, cancels, self.now))

    @rule(ms=st.sampled_from((1, 300, 999, 1000, 2500)))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(count=st.integers(1, 4))
    def enqueue(self, count: int) -> None:
        core, world = self.core, self.world
        for number in range(core.queue_offset, min(core.queue_offset + count, len(world.topic))):
            core.queue_offset = number + 1
            sent = world.topic[number]
            if number in world.wheel.get(sent.slot_ms, ()):
                continue
            if sent.slot_ms < max(core.floor(self.now), core.read_ms):
                if sent.cancels:
                    core.cancel(sent.slot_ms, f"T+{sent.key}", number)
                else:
                    core.add_direct(replace(self._timed(number), number=number))
                continue
            world.wheel.setdefault(sent.slot_ms, []).append(number)
            if core.is_open(sent.slot_ms):
                if sent.cancels:
                    core.cancel(sent.slot_ms, f"T+{sent.key}")
                else:
                    core.add(self._timed(number))

    @rule(count=st.integers(1, 3))
    def read(self, count: int) -> None:
        core = self.core
        if self.reading is None:
            if not core.may_open(self.now):
                return
            used = [slot for slot in self.world.wheel if slot >= core.open_ms]
            core.pass_to(min([*used, core.horizon_ms(self.now)]))
            if not core.may_open(self.now):
                return
            self.slot = core.begin()
            self.reading = list(self.world.wheel.get(self.slot, ()))
        for _ in range(min(count, len(self.reading))):
            number = self.reading.pop()
            sent = self.world.topic[number]
            if sent.cancels:
                core.cancel(self.slot, f"T+{sent.key}")
            else:
                core.add(self._timed(number))
        if not self.reading:
            self.reading = None
            core.opened(self.slot)

    @rule(limit=st.integers(1, 5), fails=st.booleans())
    def deliver(self, limit: int, fails: bool) -> None:
        if self.core.queue_offset < self.begin_at:
            return
        due, dropped = self.core.take(self.now, limit)
        for each in dropped:
            assert self._recalled(each.physical_offset), "dropped without a recall"
        if fails:
            self.core.give_back(due)
            return
        for each in due:
            sent = self.world.topic[each.physical_offset]
            assert each.due_ms == sent.due_ms <= self.now, "early"
            assert not self._recalled(each.physical_offset, self.core.queue_offset), (
                "recalled in time"
            )
            assert each.physical_offset not in self.out, "twice"
            self.out.add(each.physical_offset)
            self.world.log.append((each.physical_offset, self.now))
            self.core.settled(each, len(self.world.log))

    @rule()
    def flush_log(self) -> None:
        self.world.flushed = len(self.world.log)

    @rule()
    def save(self) -> None:
        self.core.advance(self.now)
        read_ms, number = self.core.progress(self.world.flushed)
        assert read_ms >= self.world.saved[0]
        assert number >= self.world.saved[1]
        self.world.saved = (read_ms, number)

    @rule()
    def lose_power(self) -> None:
        del self.world.log[self.world.flushed :]
        self.start()

    @rule()
    def kill(self) -> None:
        self.start()

    def _timed(self, number: int) -> Timed:
        sent = self.world.topic[number]
        return Timed(sent.due_ms, number, sent.slot_ms, 0, sent.key, "T")

    def _recalled(self, number: int, seen: int | None = None) -> bool:
        """Recall any message; with `seen`, one after it and below this number, sent before it was
        due.
        """
        sent = self.world.topic[number]
        return any(
            each.cancels
            and (each.slot_ms, each.key) == (sent.slot_ms, sent.key)
            and (seen is None or each.sent_ms < sent.due_ms)
            for each in self.world.topic[0 if seen is None else number : seen]
        )

    @invariant()
    def what_is_saved_is_delivered(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        read_ms, first = world.saved
        safe = {number for number, _ in world.log[: world.flushed]}
        for number, sent in enumerate(world.topic[:first]):
            waits = number in world.wheel.get(sent.slot_ms, ()) and sent.slot_ms >= read_ms
            assert waits or sent.cancels or number in safe or self._recalled(number)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.now += 20 * SECOND
        for _ in range(200):
            self.enqueue(4)
            self.read(3)
            self.deliver(5, fails=False)
        self.core.advance(self.now)
        delivered: Any = {number for number, _ in self.world.log}
        for number, sent in enumerate(self.world.topic):
            assert sent.cancels or number in delivered or self._recalled(number), sent
        assert self.core.waiting == 0
        self.world.flushed = len(self.world.log)
        self.save()
        assert self.world.saved == (self.core.floor(self.now), len(self.world.topic))


TestTimerMachine = TimerMachine.TestCase
TestTimerMachine.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)
