"""Timer service: moves delayed messages into the timer wheel and delivers them when due.

The shell around `timer_core.py` (due messages) and `store/timer/store.py` (wheel, timer log,
progress). Everything but flushing and the recovery of a promotion runs on the broker's loop, in
turns of a few milliseconds, so that sends are hardly delayed. It runs on the leader only: `lead`
and `promote` recover the files and start, `stop` ends it, `finish` saves the progress after the log
was closed.

Promises: nothing is delivered early by the wall clock; a delivery is an ordinary append after
collected sends; deliveries that the log does not accept (full disk, too few replicas) are retried
without limit; the saved progress never exceeds what the log's flush has reached, so that a crash
repeats messages and loses none. A message is dropped only if retention has deleted its record, if
its topic was deleted, or if it was recalled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from ...proto.errors import WireError
from ...store.format.errors import StoreError
from ...store.format.record import decode_delivery
from ...store.format.results import PutStatus
from ...store.timer.recovery import TimerRecovery
from ...store.timer.rules import TIMER_QUEUE, TIMER_TOPIC
from ...store.timer.store import TimerStore
from ..metadata.system_topics import PROGRESS_GROUP, READ_TIME_QUEUE
from .delivery_copy import TimerCopies
from .recalled import Recalled
from .timer_core import Timed, TimerCore
from .timer_dedup import TimerDedup
from .timer_intake import TimerIntake
from .timer_saver import TimerSaver
from .timer_stats import TimerStats

if TYPE_CHECKING:
    from ...store.message_store import MessageStore
    from ..base.internal_appender import InternalAppender
    from ..base.runtime import Runtime
    from ..metadata.tables import Metadata
    from ..offsets.consumer_offsets import ConsumerOffsets
    from ..visible.dispatch_pump import DispatchPump
    from .delivery_copy import DeliveryFilter

logger = logging.getLogger(__name__)

#: Time slice of a turn; the rest of the work follows in later turns.
SLICE_NS = 2_000_000
#: Messages delivered by one append: about half a millisecond.
BATCH = 32
#: Turns of a question for numbers: two seconds, or a million messages beside recalled ones.
_TURNS_MAX = 1_000
_RETRY_NS = 500_000_000
#: With synchronous replication the end of the log may take seconds to become visible.
_VISIBLE_NS = 20_000_000
_FAR_MS = 1 << 62
#: Behind every log offset.
_NEVER = 1 << 62
#: Longest pause: after it a changed wall clock is noticed.
_POLL_S = 0.5
_NS_PER_S = 1_000_000_000
#: Recoveries of damaged files until the next promotion or start.
_REPAIRS_MAX = 3
#: Refusals by the store that a retry cannot change.
_PERMANENT = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)


class TimerService:
    """Delivery of messages at arbitrary times, on the leader."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        metadata: Metadata,
        offsets: ConsumerOffsets,
        pump: DispatchPump,
        appender: InternalAppender,
    ) -> None:
        self._runtime = runtime
        self._clock = runtime.clock
        self._loop = runtime.loop
        self._store = store
        self._metadata = metadata
        self._offsets = offsets
        self._pump = pump
        self._appender = appender
        self._config = store.config
        self.stats = TimerStats()
        self._copies = TimerCopies(store, metadata, self.stats)
        self._timers: TimerStore | None = None
        self._core = TimerCore(0, 0)
        self._intake: TimerIntake | None = None
        self._saver: TimerSaver | None = None
        self._recalled: Recalled | None = None
        self._dedup: TimerDedup | None = None
        self._turn_handle: asyncio.Handle | None = None
        self._running = False
        self._halted = False
        self._recovering: asyncio.Future[TimerRecovery] | None = None
        self._not_before_ns = 0
        self._begin_at = 0
        self._flushes_before = 0
        self._last_failure = ""
        self._repairing: asyncio.Task[None] | None = None
        self._repairs = 0
        self._fail: Callable[[Exception], None] | None = None
        pump.watch(TIMER_TOPIC, self.wake)
        runtime.clock_listeners.add(self.wake)

    def add_filter(self, topic: str, accepts: DeliveryFilter) -> None:
        """Call `accepts` before each delivery to `topic`; messages it rejects are dropped."""
        self._copies.filters[topic] = accepts

    def on_failure(self, listener: Callable[[Exception], None]) -> None:
        """Call `listener` if damaged files cannot be recovered while this broker leads."""
        self._fail = listener

    # -- start and stop -----------------------------------------------------------------------

    def lead(self) -> None:
        """Recover the timer files and start to deliver, at the start of a broker.

        Raises StoreError, ConfigFileError or OSError if the files cannot be used.
        """
        timers, now_ms = self._new_files(), self._clock.wall_ms()
        self._start(timers, timers.recover(now_ms, self._since_of), now_ms)

    def promote(self) -> Coroutine[Any, Any, bool]:
        """Recover the files on a thread and start to deliver: with millions of messages it takes
        seconds, and a new leader must send heartbeats.

        The result is False if `halt` was called meanwhile. Raises what `lead` raises.
        """
        self._halted = False  # now: a `halt` before the first step counts
        return self._promote()

    async def _promote(self) -> bool:
        timers, now_ms = self._new_files(), self._clock.wall_ms()
        self._recovering = self._loop.run_in_executor(None, timers.recover, now_ms, self._since_of)
        try:
            report = await self._recovering
        finally:
            self._recovering = None
        if self._halted:
            timers.close()
            return False
        self._start(timers, report, now_ms)
        return True

    def _new_files(self) -> TimerStore:
        return TimerStore(self._config.root, self._config, self._store.disk, self._store)

    def _start(self, timers: TimerStore, report: TimerRecovery, now_ms: int) -> None:
        """Start to deliver from recovered files."""
        store = self._store
        replicated = self._replicated_progress()
        read_ms = report.read_ms
        # Without messages there is nothing to read again. After a kill the queue may lack some.
        if report.newest < 0 and not store.max_offset(TIMER_TOPIC, TIMER_QUEUE):
            read_ms = now_ms
            if now_ms < replicated[1]:
                # The clock is behind the last stop: its read time would hold back new messages.
                timers.go_back(replicated[1])
                self._offsets.commit(TIMER_TOPIC, PROGRESS_GROUP, READ_TIME_QUEUE, now_ms)
        elif not timers.went_back(*replicated):
            read_ms = max(read_ms, replicated[1])
        core = TimerCore(read_ms, report.queue_offset, self._config.timer_precision_ms)
        self._timers, self._core = timers, core
        if report.waiting is not None:
            for topic in timers.metrics.counts().keys() | report.waiting.keys():
                timers.metrics.set(topic, report.waiting[topic], now_ms)
        self._recalled = Recalled(
            clock=self._clock,
            store=store,
            timers=timers,
            core=core,
            counts=self.is_of_present,
            slots=report.recalled_slots,
        )
        self._intake = TimerIntake(
            clock=self._clock,
            store=store,
            timers=timers,
            core=core,
            stats=self.stats,
            recalled=self._recalled,
            counts=self.is_of_present,
            delivered_before=replicated,
        )
        begin_ms = min(read_ms, self._stored_ms(report.queue_offset))
        self._dedup = TimerDedup(self._clock, store, begin_ms)
        # The newest messages may recall due ones: enqueue all of them before the first delivery.
        self._begin_at = store.max_offset(TIMER_TOPIC, TIMER_QUEUE)
        self._saver = TimerSaver(
            runtime=self._runtime,
            store=store,
            offsets=self._offsets,
            timers=timers,
            core=core,
            stats=self.stats,
        )
        self._saver.start()
        self._running = True
        logger.info(
            "timer.started read_ms=%d queue_offset=%d units_walked=%d",
            read_ms,
            report.queue_offset,
            report.units_walked,
        )
        self.wake()

    def _replicated_progress(self) -> tuple[int, int]:
        """Return the replicated progress of earlier leaders: queue offset and read time."""
        offsets = self._offsets
        queue_offset = offsets.get(TIMER_TOPIC, PROGRESS_GROUP, TIMER_QUEUE)
        return queue_offset or 0, offsets.get(TIMER_TOPIC, PROGRESS_GROUP, READ_TIME_QUEUE) or 0

    def halt(self) -> None:
        """Stop to deliver, before the log is closed."""
        self._halted = True
        self._running = False
        if self._repairing is not None:
            self._repairing.cancel()
            self._repairing = None
        if self._turn_handle is not None:
            self._turn_handle.cancel()
            self._turn_handle = None

    async def stop(self) -> None:
        """Stop to deliver, and wait for a running recovery or flush."""
        self.halt()
        if self._recovering is not None:
            await asyncio.wait((self._recovering,))
        if self._saver is not None:
            await self._saver.stop()

    async def follow(self) -> bool:
        """Stop to lead; the files keep their state for the next promotion. Return False."""
        await self.stop()
        self.finish()
        return False

    def finish(self) -> None:
        """Save the progress and close the files.

        Called after the store was closed, the saved progress is complete, because all of the log is
        flushed then.
        """
        if self._timers is None or self._saver is None:
            return
        self._saver.finish()
        self._timers.close()
        self._timers = self._intake = self._saver = self._recalled = None
        self._core = TimerCore(0, 0)  # it answers that no slot is read, until the next recovery

    # -- state for other parts ----------------------------------------------------------------

    def number_at(self, out_ms: int) -> int:
        """Return the number of messages in the slot of this time."""
        return self._timers.number_at(out_ms) if self._timers is not None else 0

    def waits(self, slot_ms: int, key: str, topic: str) -> bool | None:
        """Return whether the message of a topic with this `recall_key` waits in the slot; None if
        the slot is not read yet."""
        self._enqueue_now()
        return self._core.waits(slot_ms, key, topic)

    def recalled(self, slot_ms: int, name: str) -> None:
        """Apply a recall (`cancellation`) that is in the log at once, before it is enqueued."""
        if self._core.is_open(slot_ms):
            self._core.cancel(slot_ms, name)
        self._enqueue_now()

    def _enqueue_now(self) -> None:
        self._pump.run()
        if self._intake is not None:
            try:
                self._intake.enqueue(self._clock.steady_ns() + SLICE_NS)
            except (StoreError, OSError) as error:
                self._retry_later(str(error))

    def waiting(self, topic: str) -> int:
        """Return the number of messages for a topic in the wheel; await `settle` before."""
        return max(0, self._timers.metrics.count(topic)) if self._timers is not None else 0

    def waiting_by_topic(self) -> dict[str, int]:
        """Return the number of messages in the wheel, by topic; await `settle` before."""
        counts = self._timers.metrics.counts() if self._timers is not None else {}
        return {topic: max(number, 0) for topic, number in counts.items()}

    async def settle(self) -> None:
        """Make the numbers true: enqueue what has arrived, and take out what was recalled, in
        turns of a few milliseconds. After `_TURNS_MAX` of them the numbers are upper bounds, until
        later calls have counted the rest."""
        for _ in range(_TURNS_MAX):
            self._enqueue_now()
            recalled = self._recalled
            if recalled is None or recalled.settle(self._clock.steady_ns() + SLICE_NS):
                return
            await asyncio.sleep(0)

    def topic_removed(self, topic: str) -> None:
        """A topic was deleted: what waits for it does not count any more."""
        if self._timers is not None and self._recalled is not None:
            self._recalled.forget(topic)
            self._timers.metrics.set(topic, 0, self._clock.wall_ms())

    def is_of_present(self, topic: str, physical_offset: int) -> bool:
        """Return whether the message is one of the topic that has this name now."""
        return physical_offset >= self._since_of(topic)

    def _since_of(self, topic: str) -> int:
        """Return the log offset from which on messages count for the topic."""
        known = self._metadata.topic(topic)
        return _NEVER if known is None else known.since

    @property
    def recalled_elsewhere(self) -> frozenset[str]:
        """The recalls whose message lies in another slot than they do."""
        return self._recalled.elsewhere if self._recalled is not None else frozenset()

    def unread(self) -> tuple[TimerStore, int] | None:
        """Enqueue what has arrived; return the files, and the time of the first slot that is not
        being delivered. None while this broker does not lead."""
        self._enqueue_now()
        return None if self._timers is None else (self._timers, self._core.open_ms)

    def oldest(self) -> int | None:
        """Return the log offset of the oldest message that waits; None without one, 0 if this
        replica does not lead."""
        if self._timers is None:
            return 0
        read_ms, queue_offset = self._core.progress(self._store.flushed_offset)
        arrived = self._store.reader.position_from(TIMER_TOPIC, TIMER_QUEUE, queue_offset)
        found = (self._timers.oldest(read_ms), arrived)
        return min((each for each in found if each is not None), default=None)

    @property
    def enqueue_lag(self) -> int:
        """Messages of the timer topic that are not enqueued."""
        end = self._store.max_offset(TIMER_TOPIC, TIMER_QUEUE)
        return max(end - self._core.queue_offset, 0) if self._running else 0

    @property
    def enqueue_latency_ms(self) -> int:
        """Age of the oldest message of the timer topic that is not enqueued."""
        if not self.enqueue_lag:
            return 0
        now_ms = self._clock.wall_ms()
        return max(now_ms - min(self._stored_ms(self._core.queue_offset), now_ms), 0)

    def _stored_ms(self, queue_offset: int) -> int:
        """Return the store time of a message of the timer topic; the far future if it is absent."""
        records = self._store.get(TIMER_TOPIC, TIMER_QUEUE, queue_offset, 1, 1).records
        return decode_delivery(records[0].data).store_timestamp_ms if records else _FAR_MS

    @property
    def dequeue_lag(self) -> int:
        """Messages that are due and not delivered."""
        return self._core.overdue(self._clock.wall_ms()) if self._running else 0

    def due_within(self, bounds_s: Sequence[int]) -> list[int]:
        """Return the number of messages in the wheel that are due within each of the seconds."""
        now_ms = self._core.floor(self._clock.wall_ms())
        return self.due(now_ms, [now_ms + 1000 * bound for bound in bounds_s])

    def due(self, begin_ms: int, bounds_ms: Sequence[int]) -> list[int]:
        """Return the number of messages in the wheel that are due from `begin_ms` up to each of the
        bounds, which ascend and lie within a week; await `settle` before."""
        if self._recalled is None:
            return [0 for _ in bounds_ms]
        return self._recalled.due(begin_ms, bounds_ms)

    @property
    def dequeue_latency_ms(self) -> int:
        """Time by which the next delivery is late."""
        due_ms = self._core.next_due_ms() if self._running else None
        return 0 if due_ms is None else max(self._clock.wall_ms() - due_ms, 0)

    def wake(self) -> None:
        """Schedule a turn: messages may have arrived, or the wall clock may have jumped."""
        if self._running:
            self._arm(0)

    def _arm(self, pause_s: float) -> None:
        """Schedule the next turn; replaces one that is already scheduled."""
        if self._turn_handle is not None:
            self._turn_handle.cancel()
        if pause_s > 0:
            self._turn_handle = self._loop.call_later(pause_s, self._turn)
        else:
            self._turn_handle = self._loop.call_soon(self._turn)

    # -- one turn -----------------------------------------------------------------------------

    def _turn(self) -> None:
        clock, intake = self._clock, self._intake
        assert intake is not None
        self._arm(_POLL_S)  # first: turns go on even if this one fails
        stop_ns = clock.steady_ns() + SLICE_NS
        busy = False
        try:
            if clock.steady_ns() >= self._not_before_ns:
                self._follow_clock(intake)
                # Acknowledged messages are in the wheel before their slot is read, so that recalls
                # take effect.
                self._pump.catch_up()
                busy = intake.enqueue(stop_ns)
                busy = intake.read(stop_ns) or busy
                busy = self._deliver(stop_ns) or busy
        except (WireError, StoreError, OSError) as error:
            self._retry_later(str(error))
            busy = False
        if self._timers is not None and self._timers.damaged and self._repairs < _REPAIRS_MAX:
            self._repairs += 1
            self._repairing = self._loop.create_task(self._repair())
            return
        self._core.advance(clock.wall_ms())
        self._arm(0 if busy else self._pause_s())

    def _follow_clock(self, intake: TimerIntake) -> None:
        """Go back with a clock that was set back: once the deliveries so far are on disk, and
        without new messages until the progress is saved."""
        saver = self._saver
        assert saver is not None
        if intake.paused:
            intake.paused = saver.flushes == self._flushes_before
        elif self._core.is_ahead(self._clock.wall_ms()):
            if saver.busy or not intake.rewind():
                self._store.flush_soon()
                return
            self._flushes_before = saver.flushes
            logger.warning("timer.clock_set_back read_ms=%d", self._core.read_ms)
            saver.save()

    async def _repair(self) -> None:
        """Recover the damaged timer files from the log: what follows the damage is enqueued
        again."""
        logger.warning("timer.files_damaged: they are recovered from the log.")
        self._running = False
        if self._turn_handle is not None:
            self._turn_handle.cancel()
        if self._saver is not None:
            await self._saver.stop()
        self._repairing = None
        self.finish()
        try:
            await self.promote()
        except (StoreError, OSError) as error:
            if self._fail is None:
                raise
            self._fail(error)

    def _pause_s(self) -> float:
        """Return the time until a message is due, a slot must be opened, or a retry is allowed."""
        wait_s = (self._not_before_ns - self._clock.steady_ns()) / _NS_PER_S
        if wait_s > 0:
            return wait_s
        now_ms = self._clock.wall_ms()
        until_ms = self._core.floor(now_ms) + self._core.precision_ms
        due_ms = self._core.next_due_ms()
        if due_ms is not None and not self._config.timer_stop_dequeue:
            until_ms = min(until_ms, due_ms)
        return min(max(until_ms - now_ms, 0) / 1000, _POLL_S)

    def _retry_later(self, reason: str) -> None:
        self._not_before_ns = self._clock.steady_ns() + _RETRY_NS
        if reason != self._last_failure:  # every retry fails with the same reason: log it once
            self._last_failure = reason
            logger.warning("timer.waits reason=%s", reason)

    # -- delivery -----------------------------------------------------------------------------

    def _deliver(self, stop_ns: int) -> bool:
        """Append due messages until `stop_ns`; return True if there are more.

        Raises WireError if the log accepts nothing now.
        """
        clock, core, dedup = self._clock, self._core, self._dedup
        if self._config.timer_stop_dequeue:
            return False
        assert dedup is not None
        if core.queue_offset < self._begin_at and not core.crowded:
            assert self._intake is not None
            return not (self._intake.paused or core.is_ahead(clock.wall_ms()))
        if not dedup.visible:
            self._not_before_ns = clock.steady_ns() + _VISIBLE_NS
            return False
        while True:
            now_ms = clock.wall_ms()
            due, dropped = core.take(now_ms, BATCH)
            for timed in dropped:
                self._count(timed, now_ms, recalled=True)
            if due:
                try:
                    if not dedup.prepare(due, stop_ns):
                        core.give_back(due)
                        return True
                    for timed in dedup.remove_delivered(due):
                        core.settled(timed, dedup.log_end)
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
        """Deliver a batch. Raises WireError; then nothing was appended."""
        messages = [self._copies.copy(timed, now_ms) for timed in due]
        sent = [message for message in messages if message is not None]
        results = iter(self._appender.append_internal(sent))
        self._last_failure = ""
        refused = []
        for timed, message in zip(due, messages, strict=True):
            end = 0
            if message is not None:
                result = next(results)
                if result.status is PutStatus.PUT_OK:
                    end = result.end
                elif result.status in _PERMANENT:
                    self._undeliverable(timed, result.status)
                else:
                    refused.append(timed)  # the log accepted only a part of the batch
                    continue
            self._core.settled(timed, end)
            self._count(timed, now_ms)
        if refused:
            self._core.give_back(refused)
            self._retry_later("the log accepts no records now")

    def _count(self, timed: Timed, now_ms: int, *, recalled: bool = False) -> None:
        self.stats.dequeued(timed.topic)
        if self._timers is None or self._recalled is None or timed.number >= 0:
            return
        if timed.rolled:
            self._recalled.rolled(timed)
        if self.is_of_present(timed.topic, timed.physical_offset) and (
            not recalled or self._recalled.dropped(timed)
        ):
            self._timers.metrics.add(timed.topic, -1, now_ms)

    def _undeliverable(self, timed: Timed, status: PutStatus) -> None:
        self.stats.undeliverable += 1
        logger.error(
            "timer.undeliverable topic=%s status=%s record=%d",
            timed.topic,
            status.value,
            timed.physical_offset,
        )
