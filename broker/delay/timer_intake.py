"""Timer intake: reads slots into memory, and puts arriving messages into the wheel.

`read` walks the chain of a slot that begins soon and reads each of its records for the time and the
key. `enqueue` follows the timer topic, puts a unit for each message into the wheel, and passes
messages whose slot is already open or over to the core (docs/formats/broker-semantics.md, section
6.2). Both stop at the end of the time slice and continue in the next turn. Promises: messages are
taken in the order of the topic; a message that has a unit gets no second one; a failure (full disk)
is retried from the same message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from ...store.format.properties import property_value
from ...store.format.record import decode_delivery
from ...store.format.results import GetStatus
from ...store.timer.rules import TIMER_QUEUE, TIMER_TOPIC, cancellation, recall_key, slot_for
from ...store.timer.store import DUE, KNOWN, TAKEN, TimerStore
from .delivery_copy import DUE_BEFORE_ENQUEUED, number, timer_record
from .timer_core import Timed, TimerCore

if TYPE_CHECKING:
    from ...front.clock import Clock
    from ...store.format.record import Delivery
    from ...store.format.results import StoredRecord
    from ...store.message_store import MessageStore
    from ...store.timer.unit import TimerUnit
    from .recalled import Recalled
    from .timer_stats import TimerStats

_RECORDS = 64
_BYTES = 1 << 20
_NEVER_MS = 1 << 62
_NO_RECORDS = frozenset(
    (
        GetStatus.NO_MATCHED_LOGIC_QUEUE,
        GetStatus.NO_MESSAGE_IN_QUEUE,
        GetStatus.OFFSET_OVERFLOW_ONE,
        GetStatus.OFFSET_OVERFLOW_BADLY,
    )
)


class TimerIntake:
    """Feeds a core from the timer files and the timer topic."""

    def __init__(
        self,
        *,
        clock: Clock,
        store: MessageStore,
        timers: TimerStore,
        core: TimerCore,
        stats: TimerStats,
        recalled: Recalled,
        counts: Callable[[str, int], bool],
        delivered_before: tuple[int, int],
    ) -> None:
        """`counts` tells by topic and log offset whether a message counts as waiting.

        `delivered_before` is a queue offset and a time. Another leader has delivered the messages
        below both.
        """
        self._clock = clock
        self._store = store
        self._config = store.config
        self._timers = timers
        self._core = core
        self._stats = stats
        self._recalled = recalled
        self._counts = counts
        self._delivered_before = delivered_before
        self._reading: Iterator[TimerUnit] | None = None
        self._reading_slot = 0
        self._cancellations: list[TimerUnit] = []
        #: No message is enqueued: `rewind` has changed progress that is not saved yet.
        self.paused = False

    # -- the clock was set back ---------------------------------------------------------------

    def rewind(self) -> bool:
        """Go back with the clock; return False if that must wait for a flush of the log."""
        core = self._core
        if self._reading is not None:
            self._reading, self._cancellations = None, []
            core.reopen(self._reading_slot)
        end_ms = core.rewind(self._clock.wall_ms(), self._store.flushed_offset)
        if end_ms is None:
            return False
        self._timers.go_back(end_ms)
        self.paused = True
        return True

    # -- reading slots ------------------------------------------------------------------------

    def read(self, stop_ns: int) -> bool:
        """Open the slots that begin soon, until `stop_ns`; return True if there are more."""
        clock, core, timers = self._clock, self._core, self._timers
        while self._reading is not None or core.may_open(clock.wall_ms()):
            if self._reading is None:
                now_ms = clock.wall_ms()
                horizon_ms = core.horizon_ms(now_ms)
                core.pass_to(timers.wheel.next_used(core.open_ms, horizon_ms))
                if not core.may_open(now_ms):
                    return False
                if core.was_read():
                    core.pass_to(core.open_ms + core.precision_ms)
                    continue
                self._reading_slot = core.begin()
                self._reading = timers.units(self._reading_slot)
            try:
                for unit in self._reading:
                    if unit.cancels and not unit.rolled:
                        self._cancellations.append(unit)
                    else:
                        self._open_unit(unit)
                    if clock.steady_ns() >= stop_ns:
                        return True
                cancelled = timers.cancelled_keys(self._cancellations)
            except BaseException:
                # An iterator that raised yields nothing more: read the whole slot again.
                self._reading, self._cancellations = None, []
                core.reopen(self._reading_slot)
                raise
            self._reading, self._cancellations = None, []
            for key in cancelled:
                core.cancel(self._reading_slot, key)
            core.opened(self._reading_slot)
        return False

    def _open_unit(self, unit: TimerUnit) -> None:
        record = timer_record(self._store, unit.physical_offset, self._stats)
        if record is not None:
            self._add(record, self._reading_slot, unit.physical_offset, unit.write_ms, unit.rolled)

    def _add(
        self, record: Delivery, slot_ms: int, physical_offset: int, write_ms: int, rolled: bool
    ) -> None:
        """Add a message of an open slot to the core."""
        properties = record.properties
        timed = Timed(
            slot_ms if rolled else due_ms(properties, slot_ms, self._core.precision_ms),
            physical_offset,
            slot_ms,
            write_ms,
            _key(record),
            _topic(property_value(properties, b"REAL_TOPIC")),
            rolled,
        )
        self._core.add(timed)

    # -- enqueueing ---------------------------------------------------------------------------

    def enqueue(self, stop_ns: int) -> bool:
        """Put arrived messages into the wheel until `stop_ns`; return True if there are more."""
        clock, core = self._clock, self._core
        while not (core.crowded or self.paused or core.is_ahead(clock.wall_ms())):
            batch = self._store.get(TIMER_TOPIC, TIMER_QUEUE, core.queue_offset, _RECORDS, _BYTES)
            if batch.status in _NO_RECORDS:
                return False
            done_ms, _ = core.progress(self._store.flushed_offset)
            for stored in batch.records:
                core.queue_offset = stored.queue_offset
                self._put(stored, done_ms)
                core.queue_offset = stored.queue_offset + 1
            core.queue_offset = max(core.queue_offset, batch.next_offset)
            if clock.steady_ns() >= stop_ns:
                return True
        return False

    def _put(self, stored: StoredRecord, done_ms: int) -> None:
        """Process one message of the timer topic. All slots before `done_ms` are safe.

        Raises StoreError or OSError; then the caller retries the same message later.
        """
        core, timers = self._core, self._timers
        record = decode_delivery(stored.data)
        properties = record.properties
        topic = _topic(property_value(properties, b"REAL_TOPIC"))
        out_ms = number(property_value(properties, b"TIMER_OUT_MS"))
        if not topic or out_ms < 0:
            self._stats.gone += 1  # not a timer message
            return
        before_offset, before_ms = self._delivered_before
        if stored.queue_offset < before_offset and out_ms < before_ms:
            return
        now_ms = self._clock.wall_ms()
        write_ms = max(core.floor(now_ms), core.read_ms)
        cancelled = _text(property_value(properties, b"TIMER_DEL_UNIQKEY"))
        if cancelled:
            cancelled = cancellation(cancelled, topic, record.prepared_transaction_offset)
        done = timers.put(
            out_ms,
            write_ms,
            stored.physical_offset,
            len(stored.data),
            done_ms=done_ms,
            real_topic=topic,
            cancels=bool(cancelled),
        )
        if done == KNOWN:
            return
        core.changes += 1
        self._stats.enqueued(topic, max(out_ms - now_ms, 0))
        if done in (DUE, TAKEN):
            if cancelled:
                core.cancel(out_ms, cancelled, stored.queue_offset)
            else:
                again_ms = now_ms + core.precision_ms if done == TAKEN else _NEVER_MS
                self._put_direct(record, out_ms, stored, again_ms)
            return
        where = slot_for(out_ms, write_ms, self._config)
        assert where is not None
        if not cancelled and self._counts(topic, stored.physical_offset):
            timers.metrics.add(topic, 1, now_ms)
        self._recalled.arrived(where.slot_ms, cancels=bool(cancelled), rolled=where.rolled)
        if core.is_open(where.slot_ms):
            if cancelled and not where.rolled:
                core.cancel(where.slot_ms, cancelled)
            else:
                self._add(record, where.slot_ms, stored.physical_offset, write_ms, where.rolled)

    def _put_direct(
        self, record: Delivery, out_ms: int, stored: StoredRecord, again_ms: int
    ) -> None:
        """Add a message without a unit in the wheel: its slot is over, or has no place there. It is
        delivered when it is due; if it is not at `again_ms`, it returns to the timer topic then."""
        properties = record.properties
        at_ms = due_ms(properties, out_ms, self._core.precision_ms)
        timed = Timed(
            min(at_ms, again_ms),
            stored.physical_offset,
            out_ms,
            DUE_BEFORE_ENQUEUED,
            _key(record),
            _topic(property_value(properties, b"REAL_TOPIC")),
            rolled=again_ms < at_ms,
            number=stored.queue_offset,
        )
        self._core.add_direct(timed)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _key(record: Delivery) -> str:
    unique_key = _text(property_value(record.properties, b"UNIQ_KEY"))
    return recall_key(unique_key, record.prepared_transaction_offset)


#: Cached: few topics occur, each of them often.
_topic = lru_cache(maxsize=4096)(_text)


def due_ms(properties: bytes, slot_ms: int, precision_ms: int) -> int:
    """Return the exact due time: TIMER_DELIVER_MS if it lies in the slot, else the slot's end."""
    end_ms = slot_ms + precision_ms
    deliver_ms = number(property_value(properties, b"TIMER_DELIVER_MS"))
    return deliver_ms if slot_ms < deliver_ms <= end_ms else end_ms
