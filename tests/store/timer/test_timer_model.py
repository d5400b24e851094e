"""The timers against a dict of lists: any order of puts, flushes, kills and power losses.

After every start the timer topic is enqueued again from the queue offset that recovery returns,
as in the broker; then every slot must hold its messages, each once, in order. A flush may fail at
any call; a power loss keeps, loses or tears every page of 4 KiB that was not flushed.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.errors import OffsetOutOfRangeError
from cometmq.store.format.record import Message, encode, encode_properties, pack_host
from cometmq.store.timer.rules import TIMER_TOPIC
from cometmq.store.timer.store import TimerStore
from cometmq.store.timer.wheel import TimerWheel
from cometmq.tests.store.fake_disk import FakeDisk, Fate

HOST = pack_host("127.0.0.1", 10911)
#: Small numbers so that slots collide and files fill: a wheel of two pages, 160 units in a file.
WHEEL_SLOTS = 256
LOG_FILE = 160 * 52 + 36
START_MS = 1_700_000_000_000
LAST_SECOND = 400


class Topic:
    """The timer topic, in memory: what the store would hold and never lose."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.due: list[tuple[int, int, bool]] = []  # out_ms, physical offset, cancels
        self.places: dict[int, int] = {}
        self.log_end = 0

    def send(self, second: int, cancels: bool) -> None:
        number = len(self.records)
        properties = {"REAL_TOPIC": f"T{second}"}
        message = Message(
            TIMER_TOPIC, 0, b"b", encode_properties(properties), born_host=HOST, store_host=HOST
        )
        data = encode(message, number, self.log_end, START_MS)
        self.records.append(data)
        self.due.append((START_MS + second * 1000, self.log_end, cancels))
        self.places[self.log_end] = number
        self.log_end += len(data)

    def record_at(self, physical_offset: int) -> bytes:
        if physical_offset not in self.places:
            raise OffsetOutOfRangeError(physical_offset, 0, self.log_end)
        return self.records[self.places[physical_offset]]

    def min_offset(self, topic: str, queue_id: int) -> int:
        return 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        return len(self.records)


class Crash(BaseException):
    """The process is gone."""


class TimerMachine(RuleBasedStateMachine):
    """`topic.due` is what the slots must hold, as far as it was enqueued."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="timer-machine-"))
        self.generation = 0
        self.root = self.folder / "0"
        (self.root / "config").mkdir(parents=True)
        self.topic = Topic()
        self.enqueued = 0
        self.disk = FakeDisk(self.root)

    def teardown(self) -> None:
        self.timers.close()
        shutil.rmtree(self.folder)

    @initialize()
    def start(self) -> None:
        config = StoreConfig(str(self.root), mapped_file_size_timer_log=LOG_FILE)
        self.timers = TimerStore(self.root, config, self.disk, self.topic)
        self.timers.wheel = TimerWheel(
            str(self.root / "timerwheel"), 1000, self.disk, slots=WHEEL_SLOTS
        )
        report = self.timers.recover(START_MS)
        assert report.queue_offset <= self.enqueued
        again, self.enqueued = self.enqueued, report.queue_offset
        self.enqueue(again)

    def enqueue(self, up_to: int) -> None:
        while self.enqueued < up_to:
            out_ms, offset, cancels = self.topic.due[self.enqueued]
            topic = f"T{(out_ms - START_MS) // 1000}"
            size = len(self.topic.records[self.enqueued])
            self.timers.put(out_ms, START_MS, offset, size, real_topic=topic, cancels=cancels)
            self.enqueued += 1

    @rule(seconds=st.lists(st.integers(0, LAST_SECOND), max_size=60), cancels=st.booleans())
    def put(self, seconds: list[int], cancels: bool) -> None:
        for index, second in enumerate(seconds):
            self.topic.send(second, cancels and index % 7 == 0)
        self.enqueue(len(self.topic.records))

    @rule()
    def flush(self) -> None:
        self.timers.flush(START_MS, self.enqueued, START_MS)

    @rule(calls=st.integers(0, 12), kill=st.booleans(), seed=st.integers(0, 1 << 32))
    def die_while_flushing(self, calls: int, kill: bool, seed: int) -> None:
        left = calls

        def fault(name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Crash

        self.disk.fault = fault
        with suppress(Crash):
            self.timers.flush(START_MS, self.enqueued, START_MS)
        self.disk.fault = None
        if kill:
            self.kill()
        else:
            self.lose_power(seed)

    @rule()
    def kill(self) -> None:
        self.timers.close()
        self.start()

    @rule(seed=st.integers(0, 1 << 32))
    def lose_power(self, seed: int) -> None:
        self.timers.close()
        self.generation += 1
        root = self.folder / str(self.generation)
        self.disk.crash(root, Fate(seed))
        shutil.rmtree(self.root)
        self.root = root
        self.disk = FakeDisk(root)
        self.start()

    @invariant()
    def every_slot_holds_its_messages(self) -> None:
        if not hasattr(self, "timers"):
            return
        slots: dict[int, tuple[int, list[tuple[int, bool]]]] = {}
        for out_ms, offset, cancels in self.topic.due[: self.enqueued]:
            index = self.timers.wheel.index(out_ms)
            known = slots.get(index)
            if known is not None and known[0] > out_ms:
                continue  # it was due: messages of a later turn of the wheel wait there
            if known is None or known[0] != out_ms:
                known = slots[index] = (out_ms, [])
            known[1].append((offset, cancels))
        occupied = dict(self.timers.wheel.occupied())
        assert set(occupied) == set(slots)
        for index, (out_ms, messages) in slots.items():
            waiting = self.timers.units_at(out_ms)
            expected = [offset for offset, cancels in messages if not cancels]
            assert [unit.physical_offset for unit in waiting.units] == expected
            cancelling = [offset for offset, cancels in messages if cancels]
            assert [unit.physical_offset for unit in waiting.cancellations] == cancelling
            assert occupied[index].num == len(expected) - len(cancelling)


TimerMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=15, deadline=None, print_blob=True
)
TestTimers = TimerMachine.TestCase
