"""The timers of a store: the wheel, the timer log, and the progress of both.

    enqueue   timer topic -> `slot_for` (rules.py) -> `put`    unit appended, slot points to it
    dequeue   second by second -> `units_at` -> delivered            nothing is cleared
    go back   the clock was set back -> `go_back`          delivered units stay, and do not count
    flush     timer log, wheel, timercheck, timermetrics             each durable before the next

The caller owns two numbers: how far slots were read (`read_ms`) and how far the timer topic was
enqueued (`queue_offset`); `flush` makes them durable after the data that they cover. Derived data:
the messages lie in the timer topic of the commit log (docs/formats/store-format.md, section 11.4).

State after a crash, and what `recover` does (`recovery.py`):

| crash                             | on disk                            | next start            |
| --------------------------------- | ---------------------------------- | --------------------- |
| process killed                    | all units; slots and numbers of the| slots rebuilt from    |
|                                   | last flush                         | units, nothing lost   |
| power lost before the log's flush | some units of the last second,     | cut at the first bad  |
|                                   | perhaps torn                       | unit, enqueued again  |
| between log and wheel             | units without slots                | slots rebuilt         |
| within the wheel's flush          | each slot old or new               | slots rebuilt         |
| between wheel and timercheck      | old numbers: slots read since the  | delivered again, at   |
|                                   | last flush                         | most a flush interval |
| timercheck, timermetrics          | old or new                         | the same              |
| roll of the log                   | an empty file with no end mark before| removed               |

A message that is enqueued again and has its unit already (the saved queue offset is older than the
log) is not put twice: `put` searches the log. Units whose message the commit log has lost are cut.

Limits: one slot is read into memory at once, about 200 bytes per unit.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from ..config.store_config import StoreConfig
from ..format.disk import Disk
from ..format.errors import OffsetOutOfRangeError, RecordFormatError
from ..format.properties import decode_properties, java_hash
from ..format.record import decode
from .checkpoint import TimerCheckpoint, TimerCheckpointFile
from .log import TimerLog
from .messages import TimerMessages
from .metrics import TimerMetrics
from .recovery import TimerFiles, TimerRecovery, recover, units_of_slot
from .rules import DELETE_KEY, REAL_TOPIC, cancellation, slot_for
from .unit import DEFAULT, DELETE, ROLL, UNIT_BYTES, TimerUnit
from .wheel import NONE, Slot, TimerWheel

logger = logging.getLogger(__name__)

#: Results of `put` without a unit.
KNOWN: Final = -1  #: the message has its unit already
DUE: Final = -2  #: its time has passed, or its place is taken: deliver it when it is due
TAKEN: Final = -3  #: an earlier slot is at its place and not done: put it again later
_ALL_MS: Final = 1 << 62
#: Batches of units that `oldest` examines in one call: some milliseconds.
_BATCHES: Final = 4


class SlotUnits(Struct, frozen=True):
    """The units of one slot."""

    #: To deliver, or to enqueue again when `rolled` (cancellations that roll, too); oldest first.
    units: list[TimerUnit] = field(default_factory=list)
    #: To process before the units; oldest first.
    cancellations: list[TimerUnit] = field(default_factory=list)


class TimerFlush(Struct, frozen=True):
    """One flush. `run` may be called on another thread."""

    log: TimerLog
    wheel: TimerWheel
    check_file: TimerCheckpointFile
    metrics: TimerMetrics
    descriptors: tuple[int, ...]
    slots: Mapping[int, Slot]
    check: TimerCheckpoint
    counts: str

    def run(self) -> None:
        """Write in the order that recovery relies on. Raises OSError; do not call it again then."""
        self.log.sync(self.descriptors)
        self.wheel.write_out(self.slots)
        self.check_file.save(self.check)
        self.metrics.write(self.counts)


class TimerStore:
    """The timers; one thread, only `TimerFlush.run` may run on another, one at a time."""

    def __init__(
        self, root: Path, config: StoreConfig, disk: Disk, messages: TimerMessages
    ) -> None:
        self._config = config
        self._messages = messages
        self.wheel = TimerWheel(str(root / "timerwheel"), config.timer_precision_ms, disk)
        self.log = TimerLog(str(root / "timerlog"), config.mapped_file_size_timer_log, disk)
        self.metrics = TimerMetrics(root / "config" / "timermetrics", disk)
        self._check_file = TimerCheckpointFile(str(root / "config" / "timercheck"), disk)
        self._disk = disk
        self.check = TimerCheckpoint()
        #: Physical offset of the newest message that has a unit; -1 without one.
        self.newest = -1
        self._examined = 0  # no unit before it waits
        self._oldest = (-1, -1)  # slot and log offset of the unit there
        #: A slot or a chain of units was found damaged: `recover` in a new object repairs them.
        self.damaged = False

    # -- life ---------------------------------------------------------------------------------

    def recover(
        self, now_ms: int, since_of: Callable[[str], int] = lambda _topic: 0
    ) -> TimerRecovery:
        """Load and repair; return where enqueueing and reading resume. The store must be open.
        `since_of` returns the log offset from which on messages of a topic count.

        Raises UnsupportedLayoutError or ConfigFileError (nothing was changed) or OSError.
        """
        files = TimerFiles(self.wheel, self.log, self.wheel.load())
        unfinished = self.log.load()
        self.check = self._check_file.load() or TimerCheckpoint()
        # Offsets behind the log's end will be those of other messages.
        log_last = self._messages.log_end - 1
        self.check.done = tuple((end_ms, min(last, log_last)) for end_ms, last in self.check.done)
        self.metrics.load()
        if unfinished:
            self._disk.unlink(unfinished)
        flushed = self.check.last_timer_log_flush_pos
        report = recover(files, self.check, self._config, self._messages, now_ms, since_of=since_of)
        self.log.mark_unflushed(flushed)
        # Durable now: an emptied slot must not reappear when the log has grown again.
        self.log.sync(self.log.take_dirty())
        self.wheel.write_out(self.wheel.take_changes())
        self.newest = report.newest
        self.check.last_read_ms = report.read_ms
        self.check.last_timer_queue_offset = report.queue_offset
        return report

    def close(self) -> None:
        """Close the files; call `flush` before."""
        self.wheel.close()
        self.log.close()
        self._check_file.close()

    # -- enqueue and dequeue ------------------------------------------------------------------

    def put(
        self,
        out_ms: int,
        write_ms: int,
        physical_offset: int,
        size: int,
        *,
        done_ms: int = _ALL_MS,
        real_topic: str = "",
        cancels: bool = False,
    ) -> int:
        """Put a message of the timer topic into its slot; return the position of its unit, or
        KNOWN, DUE or TAKEN. Messages come in the order of the topic. All slots before `done_ms`
        are delivered, and the deliveries on disk. Raises DiskFullError, StoreError, OSError."""
        if physical_offset <= self.newest and self.log.find(physical_offset) >= 0:
            return KNOWN
        where = slot_for(out_ms, write_ms, self._config)
        if where is None:
            return DUE
        if self.wheel.lost(where.slot_ms):
            self._restore(where.slot_ms)
        slot = self.wheel.at(self.wheel.index(where.slot_ms))
        time = where.slot_ms // self.wheel.precision_ms
        if slot.time > time and slot.last >= 0:
            return DUE  # messages of weeks later wait here: the clock was set back
        if done_ms <= slot.time * self.wheel.precision_ms < where.slot_ms and slot.last >= 0:
            return TAKEN  # messages of weeks ago: a long stop, or the clock was set forward
        if slot.time != time:
            slot = NONE
        magic = DEFAULT | (ROLL if where.rolled else 0) | (DELETE if cancels else 0)
        delay_ms = where.slot_ms - write_ms
        topic_hash = java_hash(real_topic) if real_topic else 0
        position = self.log.append(
            TimerUnit(
                slot.last, magic, write_ms, delay_ms, physical_offset, size, topic_hash
            ).sealed()
        )
        first = position if slot.last < 0 else slot.first
        self.wheel.put(where.slot_ms, first, position, slot.num + (-1 if cancels else 1))
        self.newest = max(self.newest, physical_offset)
        self._oldest = (self._oldest[0], min(self._oldest[1], physical_offset))
        return position

    def units_at(self, slot_ms: int) -> SlotUnits:
        """Return the units in the slot of this time."""
        found = SlotUnits()
        for unit in self.units(slot_ms):
            (found.cancellations if unit.cancels and not unit.rolled else found.units).append(unit)
        found.units.reverse()
        found.cancellations.reverse()
        return found

    def units(self, slot_ms: int) -> Iterator[TimerUnit]:
        """Yield the units one by one, newest first: for slots that are too large to be read at
        once. Units that are put after the first was yielded are not included."""
        slot = self.wheel.slot(slot_ms)
        if self.wheel.lost(slot_ms):
            yield from reversed(self._restore(slot_ms))
        elif slot.last >= 0:
            units = units_of_slot(self.log, slot, self.wheel.precision_ms, self._note_damage)
            is_done = self.check.is_done
            yield from (unit for unit in units if not is_done(slot_ms, unit.physical_offset))

    def go_back(self, end_ms: int) -> None:
        """Note that reading goes on at an earlier time, and that the units so far of slots before
        `end_ms` are delivered."""
        kept = (pair for pair in self.check.done if pair[0] > end_ms)
        self.check.done = (*kept, (end_ms, self.newest))

    def went_back(self, queue_offset: int, read_ms: int) -> bool:
        """Return whether the saved progress went back from this progress, or from a later one.
        Then new units are in slots before `read_ms`."""
        check = self.check
        return queue_offset <= check.last_timer_queue_offset and any(
            read_ms <= end_ms for end_ms, _ in check.done
        )

    def _restore(self, slot_ms: int) -> list[TimerUnit]:
        """Write a damaged slot again; return its units, found in the timer log, oldest first."""
        self.damaged = True
        logger.warning("timer.slot_damaged time_ms=%d: it is rebuilt from the timer log.", slot_ms)
        wheel = self.wheel
        found = self.log.units_of(slot_ms // wheel.precision_ms, wheel.precision_ms)
        if found:
            num = sum(-1 if unit.cancels else 1 for _, unit in found)
            wheel.put(slot_ms, found[0][0], found[-1][0], num)
        else:
            wheel.clear(wheel.index(slot_ms))
        return [unit for _, unit in found]

    def _note_damage(self) -> None:
        self.damaged = True

    def cancelled_keys(self, cancellations: Iterable[TimerUnit]) -> frozenset[str]:
        """Return what they cancel, for `rules.is_cancelled`; deleted messages are skipped."""
        keys = set()
        for unit in cancellations:
            try:
                record = decode(self._messages.record_at(unit.physical_offset))
            except (OffsetOutOfRangeError, RecordFormatError):
                continue
            properties = decode_properties(record.properties)
            key = properties.get(DELETE_KEY)
            if key:
                mark = record.prepared_transaction_offset
                keys.add(cancellation(key, properties.get(REAL_TOPIC, ""), mark))
        return frozenset(keys)

    def oldest(self, read_ms: int) -> int | None:
        """Return the log offset of the oldest message in the slots from `read_ms` on; None without
        one. `read_ms` is the time up to which messages are delivered. While units are left that no
        call has examined, the answer is that of an older message; 0 if a damaged unit hides
        others."""
        import numpy as np

        if self._oldest[0] >= read_ms:
            return self._oldest[1]
        number, last = 0, None
        walk = self.log.walk(self._examined)
        batches = islice(walk.batches(), _BATCHES)
        for number, (position, rows) in enumerate(batches, 1):  # noqa: B007
            slots = rows["write_ms"].astype(np.int64) + rows["delay_ms"]
            waiting = slots >= read_ms
            if waiting.any():
                first = int(waiting.argmax())
                self._examined = position + first * UNIT_BYTES
                oldest = int(rows["physical_offset"][waiting].min())
                self._oldest = (int(slots[first]), oldest)
                return oldest
            self._examined = position + len(rows) * UNIT_BYTES
            last = int(rows["physical_offset"][-1])
        if number == _BATCHES:
            return last
        if walk.end < self.log.end:
            self.damaged = True
            return 0
        return None

    def number_at(self, slot_ms: int) -> int:
        """Return the number of messages in the slot of this time (for `rules.congested`)."""
        return max(self.wheel.slot(slot_ms).num, 0)

    # -- flush and retention ------------------------------------------------------------------

    def begin_flush(self, read_ms: int, queue_offset: int, now_ms: int) -> TimerFlush:
        """Collect the changes. All slots before `read_ms` are delivered, all messages before
        `queue_offset` enqueued or delivered. Run the flush before beginning another one."""
        check = self.check
        check.last_read_ms = read_ms
        check.done = tuple(pair for pair in check.done if pair[0] > read_ms)
        check.last_timer_log_flush_pos = self.log.end
        check.last_timer_queue_offset = check.master_timer_queue_offset = queue_offset
        check.counter = (check.counter + 1) % (1 << 63)
        check.version_ms = now_ms
        return TimerFlush(
            self.log,
            self.wheel,
            self._check_file,
            self.metrics,
            self.log.take_dirty(),
            self.wheel.take_changes(),
            TimerCheckpoint.decode(check.encode()),
            self.metrics.take_text(),
        )

    def flush(self, read_ms: int, queue_offset: int, now_ms: int) -> None:
        """Run a whole flush. Raises OSError."""
        self.begin_flush(read_ms, queue_offset, now_ms).run()

    def trim(self, log_start: int) -> int:
        """Remove timer log files whose messages retention has deleted; return how many. Not while a
        flush runs. Raises OSError."""
        return self.log.trim(log_start)


def has_timers(root: Path) -> bool:
    """Return whether the directory holds timers (the wheel alone may be empty)."""
    return os.path.isdir(root / "timerlog") and bool(os.listdir(root / "timerlog"))
