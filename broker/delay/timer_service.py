"""Messages with a delivery time of their own: from the timer topic into the wheel, and out when due.

The shell around `timer_core.py` (what is due) and `store/timer/store.py` (wheel, timer log, progress).
Everything runs on the broker's loop in turns of a few milliseconds, so that who sends meanwhile hardly
notices; only flushing has a thread. On a leader alone: `lead` recovers the files and begins, `stop` ends,
`finish` writes the progress once the log is closed.

Promises: never early by the wall clock; a delivery is an ordinary append behind the clients' own; what
the log does not take now (full disk, too few replicas) waits and is tried again, for ever; the progress
on disk never passes a delivery that the log's flush has not reached, so that a crash at the due moment
repeats messages and loses none. A message is dropped only when its record is gone (retention), its
topic was deleted, or it was recalled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...proto import v2
from ...proto.errors import WireError
from ...store.format.errors import OffsetOutOfRangeError, RecordFormatError, StoreError
from ...store.format.properties import property_value
from ...store.format.record import Delivery, Message, decode_delivery
from ...store.format.results import PutStatus
from ...store.timer.rules import TIMER_QUEUE, TIMER_TOPIC
from ...store.timer.store import TimerStore
from ..metadata.system_topics import PROGRESS_GROUP, READ_TIME_QUEUE
from .delayed import DelaySends
from .delivery_copy import DEQUEUED, ENQUEUED, ROLLED, copy_of, number, own_queue
from .timer_core import Timed, TimerCore
from .timer_dedup import TimerDedup
from .timer_intake import TimerIntake
from .timer_saver import TimerSaver
from .timer_stats import TimerStats

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from ..node import Node

log = logging.getLogger(__name__)

SLICE_NS = 2_000_000
"""The loop belongs to others after so long; the rest is done in later turns."""
BATCH = 32
"""Messages delivered by one append: about half a millisecond."""
_RETRY_NS = 500_000_000
_VISIBLE_NS = 20_000_000
"""With replication that waits for followers, the end of the log may take seconds to become visible."""
_FAR_MS = 1 << 62
_LOOK_S = 0.5
"""A wall clock that is set shows itself at the next look."""
_NS_PER_S = 1_000_000_000
_NEVER = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)
"""What the store refuses for what it is."""

Wants = Callable[[bytes, bytes], bool]
"""Asked with properties and body of a message that is due: False drops it."""


class TimerService:
    """Made with the node; `lead` begins."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._config = node.store.config
        self.stats = TimerStats()
        self.wants: dict[str, Wants] = {}
        """By the topic that a message is due for; asked before it is delivered."""
        self._timers: TimerStore | None = None
        self._core = TimerCore(0, 0)
        self._intake: TimerIntake | None = None
        self._saver: TimerSaver | None = None
        self._repeats: TimerDedup | None = None
        self._turn_handle: asyncio.Handle | None = None
        self._running = False
        self._not_before_ns = 0
        self._begin_at = 0
        self._trouble = ""
        node.pump.watch(TIMER_TOPIC, self.wake)
        node.clock_listeners.add(self.wake)

    # -- life ---------------------------------------------------------------------------------

    def lead(self) -> None:
        """This replica delivers from now on. Raises StoreError, ConfigFileError or OSError when the
        timer files cannot be used."""
        node = self._node
        store, now_ms = node.store, node.clock.wall_ms()
        timers = TimerStore(self._config.root, self._config, store.disk, store)
        report = timers.recover(now_ms)
        led = self._led_by_another()
        # Without a message there is nothing to read again.
        empty = not store.max_offset(TIMER_TOPIC, TIMER_QUEUE)
        read_ms = now_ms if empty else max(report.read_ms, led[1])
        core = TimerCore(read_ms, report.queue_offset, self._config.timer_precision_ms)
        self._timers, self._core = timers, core
        self.stats.timing = timers.metrics
        self._intake = TimerIntake(node, timers, core, self.stats)
        self._intake.delivered_before = led
        self._repeats = TimerDedup(node, min(read_ms, self._stored_ms(report.queue_offset)))
        # What came last before the stop may be a recall of what is due: enqueue first, then deliver.
        self._begin_at = store.max_offset(TIMER_TOPIC, TIMER_QUEUE)
        self._saver = TimerSaver(node, timers, core, self.stats)
        self._saver.start()
        self._running = True
        log.info(
            "timer.started read_ms=%d queue_offset=%d units_walked=%d",
            read_ms,
            report.queue_offset,
            report.units_walked,
        )
        self.wake()

    def _led_by_another(self) -> tuple[int, int]:
        """How far the timers were by what came with the consumer offsets: queue offset, read time."""
        offsets = self._node.offsets
        number = offsets.get(TIMER_TOPIC, PROGRESS_GROUP, TIMER_QUEUE)
        return number or 0, offsets.get(TIMER_TOPIC, PROGRESS_GROUP, READ_TIME_QUEUE) or 0

    def halt(self) -> None:
        """Deliver no more: the log is about to be closed."""
        self._running = False
        if self._turn_handle is not None:
            self._turn_handle.cancel()
            self._turn_handle = None

    async def stop(self) -> None:
        """Deliver no more; a flush under way ends."""
        self.halt()
        if self._saver is not None:
            await self._saver.stop()

    async def follow(self) -> None:
        """This replica leads no more: its files stay as they are, for the next time."""
        await self.stop()
        self.finish()

    def finish(self) -> None:
        """Write the progress and let go of the files; best when the store is closed, for all of its
        log is on the disk then."""
        if self._timers is None or self._saver is None:
            return
        self._saver.finish()
        self._timers.close()
        self._timers = self._intake = self._saver = None

    # -- what others ask ----------------------------------------------------------------------

    def number_at(self, out_ms: int) -> int:
        """Messages that the slot of this time holds."""
        return self._timers.number_at(out_ms) if self._timers is not None else 0

    def waits(self, slot_ms: int, key: str) -> bool | None:
        """Whether the message waits in the slot, if that is open; None: nobody has looked yet."""
        self._look_at_topic()
        return self._core.waits(slot_ms, key)

    def recalled(self, slot_ms: int, key: str) -> None:
        """A recall for this slot is in the log: it holds at once, before it is enqueued."""
        if self._core.is_open(slot_ms):
            self._core.cancel(slot_ms, key)
        self._look_at_topic()

    def _look_at_topic(self) -> None:
        self._node.pump.run()
        if self._intake is not None:
            try:
                self._intake.enqueue(self._node.clock.steady_ns() + SLICE_NS)
            except (StoreError, OSError) as error:
                self._wait_a_moment(str(error))  # a later turn tries again

    @property
    def enqueue_lag(self) -> int:
        """Messages of the timer topic that were not looked at."""
        end = self._node.store.max_offset(TIMER_TOPIC, TIMER_QUEUE)
        return max(end - self._core.queue_offset, 0) if self._running else 0

    @property
    def enqueue_latency_ms(self) -> int:
        """How long the first message of the timer topic that was not looked at lies there."""
        if not self.enqueue_lag:
            return 0
        now_ms = self._node.clock.wall_ms()
        return max(now_ms - min(self._stored_ms(self._core.queue_offset), now_ms), 0)

    def _stored_ms(self, queue_offset: int) -> int:
        """When a message of the timer topic was stored; the far future if there is none."""
        records = self._node.store.get(TIMER_TOPIC, TIMER_QUEUE, queue_offset, 1, 1).records
        return decode_delivery(records[0].data).store_timestamp_ms if records else _FAR_MS

    @property
    def dequeue_lag(self) -> int:
        """Messages whose time has come and that are not delivered."""
        return self._core.overdue(self._node.clock.wall_ms()) if self._running else 0

    def due_within(self, bounds_s: Sequence[int]) -> list[int]:
        """Messages in the wheel that are due within each of so many seconds."""
        if self._timers is None:
            return [0 for _ in bounds_s]
        now_ms = self._core.floor(self._node.clock.wall_ms())
        return self._timers.wheel.count(now_ms, [now_ms + 1000 * bound for bound in bounds_s])

    @property
    def dequeue_latency_ms(self) -> int:
        """How far delivering is behind its time."""
        due_ms = self._core.next_due_ms() if self._running else None
        return 0 if due_ms is None else max(self._node.clock.wall_ms() - due_ms, 0)

    def wake(self) -> None:
        """Something may be due, or be there to be enqueued: look in the next turn."""
        if self._running:
            self._arm(0)

    def _arm(self, pause_s: float) -> None:
        """The next turn, and only that: whoever asks last says when."""
        loop = self._node.loop
        if self._turn_handle is not None:
            self._turn_handle.cancel()
        if pause_s > 0:
            self._turn_handle = loop.call_later(pause_s, self._turn)
        else:
            self._turn_handle = loop.call_soon(self._turn)

    # -- one turn -----------------------------------------------------------------------------

    def _turn(self) -> None:
        node, intake = self._node, self._intake
        assert intake is not None
        self._arm(_LOOK_S)  # first, so that a turn that fails is not the last one
        stop_ns = node.clock.steady_ns() + SLICE_NS
        busy = False
        try:
            if node.clock.steady_ns() >= self._not_before_ns:
                # What was answered is in the wheel before its slot is read: recalls hold.
                node.pump.catch_up()
                busy = intake.enqueue(stop_ns)
                busy = intake.read(stop_ns) or busy
                busy = self._deliver(stop_ns) or busy
        except (WireError, StoreError, OSError) as error:
            self._wait_a_moment(str(error))
            busy = False
        self._core.advance(node.clock.wall_ms())
        self._arm(0 if busy else self._pause_s())

    def _pause_s(self) -> float:
        """Until something is due, a slot is to be opened, or what failed is tried again."""
        node = self._node
        wait_s = (self._not_before_ns - node.clock.steady_ns()) / _NS_PER_S
        if wait_s > 0:
            return wait_s
        now_ms = node.clock.wall_ms()
        until_ms = self._core.floor(now_ms) + self._core.precision_ms
        due_ms = self._core.next_due_ms()
        if due_ms is not None and not self._config.timer_stop_dequeue:
            until_ms = min(until_ms, due_ms)
        return min(max(until_ms - now_ms, 0) / 1000, _LOOK_S)

    def _wait_a_moment(self, reason: str) -> None:
        self._not_before_ns = self._node.clock.steady_ns() + _RETRY_NS
        if reason != self._trouble:  # it comes back with every try
            self._trouble = reason
            log.warning("timer.waits reason=%s", reason)

    # -- delivery -----------------------------------------------------------------------------

    def _deliver(self, stop_ns: int) -> bool:
        """Append what is due; True: there is more. Raises WireError: nothing can be appended now."""
        clock, core, repeats = self._node.clock, self._core, self._repeats
        if self._config.timer_stop_dequeue:
            return False
        assert repeats is not None
        if core.queue_offset < self._begin_at and not core.crowded:
            return True
        if not repeats.visible:
            self._not_before_ns = clock.steady_ns() + _VISIBLE_NS
            return False
        while True:
            now_ms = clock.wall_ms()
            due, dropped = core.take(now_ms, BATCH)
            for timed in dropped:
                self._count(timed, now_ms)
            if due:
                try:
                    if not repeats.ready(due, stop_ns):
                        core.give_back(due)
                        return True
                    for timed in repeats.taken_from(due):
                        core.settled(timed, repeats.log_end)
                        self._count(timed, now_ms)
                    self._append(due, now_ms)
                except (WireError, StoreError, OSError):
                    core.give_back(due)
                    raise
            elif not dropped:
                return False
            if clock.steady_ns() >= stop_ns:
                return True

    def _append(self, due: list[Timed], now_ms: int) -> None:
        """Raises WireError, and then nothing happened."""
        messages = [self._message(timed, now_ms) for timed in due]
        sent = [message for message in messages if message is not None]
        results = iter(self._node.sender.append_internal(sent))
        self._trouble = ""
        again = []
        for timed, message in zip(due, messages, strict=True):
            end = 0
            if message is not None:
                result = next(results)
                if result.status is PutStatus.PUT_OK:
                    end = result.end
                elif result.status in _NEVER:
                    self._undeliverable(timed, result.status)
                else:
                    again.append(timed)  # the log took some of the batch, and then no more
                    continue
            self._core.settled(timed, end)
            self._count(timed, now_ms)
        if again:
            self._core.give_back(again)
            self._wait_a_moment("the log takes nothing now")

    def _count(self, timed: Timed, now_ms: int) -> None:
        if self._timers is not None and timed.number < 0:
            self._timers.metrics.add(timed.topic, -1, now_ms)
        self.stats.dequeued(timed.topic)

    def _undeliverable(self, timed: Timed, status: PutStatus) -> None:
        self.stats.undeliverable += 1
        log.error(
            "timer.undeliverable topic=%s status=%s record=%d",
            timed.topic,
            status.value,
            timed.place,
        )

    def _message(self, timed: Timed, now_ms: int) -> Message | None:
        """The copy to deliver; None: there is nobody to deliver to, or nothing."""
        record = self._record(timed.place)
        if record is None:
            return None
        properties = record.properties
        names, values = [ENQUEUED, DEQUEUED], [b"%d" % timed.enqueued_ms, b"%d" % now_ms]
        if timed.rolled:
            times = number(property_value(properties, ROLLED))
            names.append(ROLLED)
            values.append(b"%d" % (max(times, 0) + 1))
            topic, queue_id = TIMER_TOPIC, TIMER_QUEUE
        else:
            wants = self.wants.get(timed.topic)
            if wants is not None and not wants(properties, record.body):
                return None
            topic, queue_id = timed.topic, self._queue(timed.topic, properties)
            if queue_id < 0:
                return None
        return copy_of(record, topic, queue_id, names, values)

    def _queue(self, topic: str, properties: bytes) -> int:
        """Its own queue, or one that the topic still has; -1: the topic is gone."""
        known = self._node.metadata.topic(topic)
        if known is None:
            self.stats.without_topic += 1
            return -1
        return own_queue(properties, known)

    def _record(self, physical_offset: int) -> Delivery | None:
        try:
            return decode_delivery(self._node.store.record_at(physical_offset))
        except (OffsetOutOfRangeError, RecordFormatError):
            self.stats.gone += 1  # retention took it
            return None


def open_timers(node: Node, stack: AsyncExitStack) -> None:
    """Make the service and begin on a leader; `stack` stops it, the store's close finishes it. Raises
    StoreError, ConfigFileError or OSError."""
    node.timers = TimerService(node)
    node.sender.types[v2.DELAY] = DelaySends(node)
    node.closers.append(node.timers.halt)
    node.store.on_closed.append(node.timers.finish)
    stack.push_async_callback(node.timers.stop)
    if node.leadership.is_leader:
        node.timers.lead()
