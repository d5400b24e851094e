"""Timer recovery: repairs the timer files on start. Derived data: no message can be lost here.

1. Walk the timer log from its start, or, if it is longer than FULL_WALK_BYTES, from one file before
   the flushed position. The end is the first position without a unit, or whose message the commit
   log does not hold any more; everything behind it is cut and cleared.
2. A walked unit behind the newest unit of its slot is added to the slot. One before it is there
   already, or the slot belongs to a later time by now.
   After a walk from the start, slots of the time to come that differ from their units in another
   way (damage) are written again.
3. Slots that point beyond the end (the log lost units that the wheel has) are emptied and rebuilt
   by a second walk, from the oldest unit they named.
4. Enqueueing resumes at the saved queue offset. If the log has lost flushed units: behind the
   message of the last unit if that is earlier, or at the start of the timer topic without units.
   Always within the bounds of the queue.
   If the first files of the log are missing while the commit log holds their messages, both files
   are emptied before step 1.
5. Reading resumes at the saved time, however long ago; without one, seven days less a minute ago.

Rules of docs/formats/store-format.md, section 11.4. Steps 1 (no wheel) and 4 (no unit) keep timers
that Apache loses; and Apache always resumes behind the last unit if that is earlier, which delivers
again what came after it and was due at once. Slots that were read are not cleared, so a rebuilt
wheel equals the lost one, except for slots of more than two weeks ago whose units are still in the
log.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..config.store_config import TIMER_SLOTS, StoreConfig
from ..format.errors import OffsetOutOfRangeError, RecordFormatError
from ..format.properties import java_hash
from ..format.record import decode
from .checkpoint import TimerCheckpoint
from .log import TimerLog
from .messages import TimerMessages
from .rules import REAL_TOPIC, TIMER_QUEUE, TIMER_TOPIC
from .unit import DELETE, UNIT_BYTES, TimerUnit
from .wheel import NONE, Slot, TimerWheel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

#: Empty slots between the oldest readable time and the wheel's wrap-around.
_BLANK_SLOTS: Final = 60
#: Logs up to this size are walked from their start: ten million units, a few seconds.
FULL_WALK_BYTES: Final = 512 << 20
#: Unit of loss in a power loss.
_PAGE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class TimerRecovery:
    """The result of a recovery."""

    #: Position in the timer log where the walk began.
    begin: int
    #: End of the timer log.
    end: int
    units_walked: int
    slots_revised: int
    #: Slots that pointed beyond the log and were rebuilt.
    slots_beyond: int
    #: Non-zero bytes behind the end.
    cut_bytes: int
    #: How far the end lies before the flushed position; 0 unless the disk lost data.
    lost_bytes: int
    #: Physical offset of the last unit's message, -1 without a unit.
    newest: int
    #: Where enqueueing the timer topic resumes.
    queue_offset: int
    #: Where reading slots resumes.
    read_ms: int
    #: Messages that wait, by topic (by the hash of its name). None: only a part of the timer log
    #: was walked.
    waiting: Counter[str] | None
    #: Slots to read that hold recalls.
    recalled_slots: list[int]


@dataclass(frozen=True, slots=True)
class TimerFiles:
    """The wheel and the log, loaded."""

    wheel: TimerWheel
    log: TimerLog
    had_wheel: bool


def recover(
    files: TimerFiles,
    check: TimerCheckpoint,
    config: StoreConfig,
    messages: TimerMessages,
    now_ms: int,
    *,
    since_of: Callable[[str], int],
) -> TimerRecovery:
    """Repair as described in the module docstring. `since_of` returns the log offset from which on
    messages of a topic count. Raises OSError."""
    wheel, log = files.wheel, files.log
    flushed = check.last_timer_log_flush_pos
    read_ms = check.last_read_ms or oldest_read_ms(now_ms, config.timer_precision_ms)
    missing = _begin_missing(files, read_ms, messages)
    if missing:
        _empty(files)
    begin = log.start
    if files.had_wheel and log.end - log.start > FULL_WALK_BYTES:
        begin = _file_start(log, flushed - log.file_bytes)
    pending = _Pending(
        read_ms // wheel.precision_ms,
        wheel,
        check,
        lambda offset: _since(offset, messages, since_of),
    )
    last: TimerUnit | None = None
    walk = log.walk(begin)
    walked = revised = 0
    newest = -1
    for position, rows in walk.batches():
        good = _count_confirmed(rows, position, flushed, log.file_bytes, messages)
        if good:
            revised += revise_all(wheel, position, rows[:good])
            pending.add(position, rows[:good])
            walked += good
            newest = max(newest, int(rows["physical_offset"][:good].max()))
            last = TimerUnit._make(rows[good - 1].item()[1:])
        if good < len(rows):
            walk.end = position + good * UNIT_BYTES
            walk.reason = f"the message of the unit at {walk.end} is not in the commit log."
            break
    if walk.reason:
        logger.warning("timer.log_cut position=%d reason=%s", walk.end, walk.reason)
    cut = log.truncate(walk.end)
    beyond = _remake_beyond(wheel, log)
    if begin == log.start:
        pending.correct(log.start)
    if last is None:
        last = _last_unit_before(log, begin)
        newest = -1 if last is None else last.physical_offset
    lost = max(flushed - log.end, 0)
    return TimerRecovery(
        begin,
        log.end,
        walked,
        revised,
        beyond,
        cut,
        lost,
        newest,
        _queue_offset(last, check, messages, lost=lost > 0 or missing),
        read_ms,
        pending.waiting if begin == log.start else None,
        pending.recalled_slots(),
    )


def _empty(files: TimerFiles) -> None:
    """Empty both files: they are rebuilt from the commit log."""
    logger.warning(
        "timer.begin_missing position=%d: the wheel names units before it; the timer files are "
        "rebuilt from the log, which may deliver messages again.",
        files.log.start,
    )
    for index, _ in list(files.wheel.occupied()):
        files.wheel.clear(index)
    files.log.truncate(files.log.start)


def _begin_missing(files: TimerFiles, read_ms: int, messages: TimerMessages) -> bool:
    """Return whether files were lost from the begin of the log: a slot that is still to be read
    names units before it, and the timer topic holds messages before that of the first unit.
    Retention deletes a file only after its messages."""
    log, wheel = files.log, files.wheel
    if log.start == 0 or not files.had_wheel:
        return False
    try:
        first = decode(messages.record_at(log.read(log.start).physical_offset))
    except (OffsetOutOfRangeError, RecordFormatError):
        return False
    if first.queue_offset <= messages.min_offset(TIMER_TOPIC, TIMER_QUEUE):
        return False
    first_time = read_ms // wheel.precision_ms
    return any(slot.time >= first_time and slot.first < log.start for _, slot in wheel.occupied())


class _Pending:
    """The units of slots that are not read yet, and a comparison of the wheel with them."""

    def __init__(
        self,
        first_time: int,
        wheel: TimerWheel,
        check: TimerCheckpoint,
        since: Callable[[int], tuple[str, int]],
    ) -> None:
        """`since` returns by log offset the topic of a message, and the log offset from which on
        its messages count."""
        self._first_time = first_time
        self._wheel = wheel
        self._check = check
        self._since = since
        #: By the hash of a topic's name.
        self._topics: dict[int, tuple[str, int]] = {}
        self.waiting: Counter[str] = Counter()
        self._parts: list[NDArray[np.int64]] = []  # time, position, 1 or -1

    def add(self, position: int, rows: "NDArray[np.void]") -> None:
        """Add consecutive units."""
        import numpy as np

        times = (rows["write_ms"].astype(np.int64) + rows["delay_ms"]) // self._wheel.precision_ms
        positions = position + UNIT_BYTES * np.arange(len(rows), dtype=np.int64)
        counts = np.where(rows["magic"] & DELETE, -1, 1).astype(np.int64)
        later = times >= self._first_time
        self._parts.append(np.column_stack((times, positions, counts))[later])
        offsets = rows["physical_offset"].astype(np.int64)
        for end_ms, last in self._check.done:
            later &= (times * self._wheel.precision_ms >= end_ms) | (offsets > last)
        later &= counts > 0
        hashes, offsets = rows["topic_hash"][later], offsets[later]
        for topic_hash in np.unique(hashes).tolist():
            of_topic = offsets[hashes == topic_hash]
            if topic_hash not in self._topics:
                self._topics[topic_hash] = self._since(int(of_topic[-1]))
            topic, since = self._topics[topic_hash]
            if topic:
                self.waiting[topic] += int((of_topic >= since).sum())

    def recalled_slots(self) -> list[int]:
        """Return the times of the slots with recalls."""
        precision_ms = self._wheel.precision_ms
        times = {int(time) for part in self._parts for time in part[part[:, 2] < 0, 0].tolist()}
        return [time * precision_ms for time in sorted(times)]

    def correct(self, log_start: int) -> None:
        """Write the slots again that differ from their units."""
        import numpy as np

        wheel = self._wheel
        wrong = 0
        units = np.concatenate(self._parts) if self._parts else np.empty((0, 3), np.int64)
        if len(units):
            units = units[np.argsort(units[:, 0], kind="stable")]
            times, begins = np.unique(units[:, 0], return_index=True)
            ends = [*begins[1:].tolist(), len(units)]
            _, slot_of, sharing = np.unique(
                times % wheel.slots, return_inverse=True, return_counts=True
            )
            alone = (sharing[slot_of] == 1).tolist()
            for time, begin, end, is_alone in zip(
                times.tolist(), begins.tolist(), ends, alone, strict=True
            ):
                if not is_alone:
                    continue  # the slot belongs to one of several times
                there = wheel.at(wheel.index(time * wheel.precision_ms))
                first, last = int(units[begin, 1]), int(units[end - 1, 1])
                if there.time == time and there.last == last and there.first < log_start:
                    continue  # its oldest units were deleted
                num = int(units[begin:end, 2].sum())
                if (there.time, there.first, there.last, there.num) != (time, first, last, num):
                    wheel.put(time * wheel.precision_ms, first, last, num)
                    wrong += 1
        if wrong:
            logger.warning(
                "timer.slots_corrected slots=%d: they did not match the timer log.", wrong
            )


def _count_confirmed(
    rows: "NDArray[np.void]", position: int, flushed: int, file_bytes: int, messages: TimerMessages
) -> int:
    """Return how many rows have their message, before the first that has not."""
    import numpy as np

    good = rows["physical_offset"] <= messages.log_end - rows["size"].astype(np.int64)
    count = len(rows) if good.all() else int(good.argmin())
    for index in range(max(flushed - position, 0) // UNIT_BYTES, count):
        place = (position + index * UNIT_BYTES) % file_bytes
        if place // _PAGE_BYTES == (place + UNIT_BYTES - 1) // _PAGE_BYTES:
            continue
        if _torn(TimerUnit._make(rows[index].item()[1:]), messages):
            return index
    return count


def _torn(unit: TimerUnit, messages: TimerMessages) -> bool:
    """Return whether one page of an unflushed unit across two pages is older. Lengths and offsets
    show that alone, the hash of the topic only by comparison with the message."""
    try:
        record = decode(messages.record_at(unit.physical_offset))
    except OffsetOutOfRangeError:
        return False
    except RecordFormatError:
        return True
    topic = record.properties_dict.get(REAL_TOPIC, "")
    return unit.topic_hash != (java_hash(topic) if topic else 0) or unit.size != record.size


def _since(
    physical_offset: int, messages: TimerMessages, since_of: Callable[[str], int]
) -> tuple[str, int]:
    """Return the destination of a waiting message ("" if its record cannot be read), and the log
    offset from which on its messages count."""
    try:
        record = decode(messages.record_at(physical_offset))
    except (OffsetOutOfRangeError, RecordFormatError):
        return "", 0
    topic = record.properties_dict.get(REAL_TOPIC, "")
    return topic, since_of(topic)


def oldest_read_ms(now_ms: int, precision_ms: int) -> int:
    """Return where reading begins without saved progress."""
    return now_ms - now_ms % precision_ms - (TIMER_SLOTS // 2 - _BLANK_SLOTS) * precision_ms


def _file_start(log: TimerLog, position: int) -> int:
    position = max(position, log.start)
    return position - position % log.file_bytes


def _last_unit_before(log: TimerLog, begin: int) -> TimerUnit | None:
    """Return the newest unit of the files before `begin`, when no later file has one."""
    last = None
    starts = [start for start in log.starts if start < begin]
    for _, unit in log.walk(starts[-1]) if starts else ():
        last = unit
    return last


def revise_all(wheel: TimerWheel, position: int, rows: "NDArray[np.void]") -> int:
    """Apply `revise` to consecutive units, most of them at once; return how many were added."""
    import numpy as np

    slot_ms = rows["write_ms"].astype(np.int64) + rows["delay_ms"]
    times = slot_ms // wheel.precision_ms
    _, first, group_of = np.unique(times, return_index=True, return_inverse=True)
    indexes = times[first] % wheel.slots
    if len(np.unique(indexes)) < len(first):  # two times share a slot
        return _revise_each(wheel, position, rows)
    last = np.zeros_like(first)
    np.maximum.at(last, group_of, np.arange(len(rows)))
    counts = np.bincount(group_of)
    cancels = np.bincount(group_of, weights=(rows["magic"] & DELETE) != 0).astype(np.int64)
    order = np.argsort(indexes)
    groups = np.column_stack((first, last, counts, cancels, times[first]))[order].tolist()
    partly = False
    added = 0
    known = list(wheel.many(indexes[order].tolist()))
    for (begin, end, count, cancelled, time), there in zip(groups, known, strict=True):
        oldest, newest = position + begin * UNIT_BYTES, position + end * UNIT_BYTES
        if there.time != 0 and there.last >= newest:
            continue
        if there.time != 0 and there.last >= oldest:
            partly = True
            continue
        had = there if there.time == time else NONE
        num = had.num + count - 2 * cancelled
        first_of_slot = oldest if had.last < 0 else had.first
        wheel.put(time * wheel.precision_ms, first_of_slot, newest, num)
        added += count
    return added + (_revise_each(wheel, position, rows) if partly else 0)


def revise(wheel: TimerWheel, position: int, unit: TimerUnit) -> bool:
    """Add the unit to its slot unless the slot holds it or a later one; return true if it was
    added."""
    slot_ms = unit.slot_ms
    there = wheel.at(wheel.index(slot_ms))
    if there.time != 0 and there.last >= position:
        return False
    slot = wheel.slot(slot_ms)
    first = position if slot.last < 0 else slot.first
    wheel.put(slot_ms, first, position, slot.num + (-1 if unit.cancels else 1))
    return True


def _revise_each(wheel: TimerWheel, position: int, rows: "NDArray[np.void]") -> int:
    added = 0
    for index, (_, *values) in enumerate(rows.tolist()):
        added += revise(wheel, position + index * UNIT_BYTES, TimerUnit._make(values))
    return added


def _remake_beyond(wheel: TimerWheel, log: TimerLog) -> int:
    beyond = {index: slot for index, slot in wheel.occupied() if slot.last >= log.end}
    if not beyond:
        return 0
    for index in beyond:
        wheel.clear(index)
    begin = _file_start(log, min(max(slot.first, 0) for slot in beyond.values()))
    for position, unit in log.walk(begin):
        if wheel.index(unit.slot_ms) in beyond:
            revise(wheel, position, unit)
    logger.warning("timer.slots_remade slots=%d from=%d", len(beyond), begin)
    return len(beyond)


def _queue_offset(
    last: TimerUnit | None, check: TimerCheckpoint, messages: TimerMessages, *, lost: bool
) -> int:
    first = messages.min_offset(TIMER_TOPIC, TIMER_QUEUE)
    offset = min(check.last_timer_queue_offset, check.master_timer_queue_offset)
    if lost:
        offset = min(offset, first if last is None else _offset_behind(last, messages, first))
    return max(first, min(offset, messages.max_offset(TIMER_TOPIC, TIMER_QUEUE)))


def _offset_behind(unit: TimerUnit, messages: TimerMessages, unknown: int) -> int:
    try:
        record = decode(messages.record_at(unit.physical_offset))
    except (OffsetOutOfRangeError, RecordFormatError) as error:
        logger.warning("timer.message_gone offset=%d error=%s", unit.physical_offset, error)
        return unknown
    return record.queue_offset + 1


def units_of_slot(
    log: TimerLog, slot: Slot, precision_ms: int, on_damage: Callable[[], None]
) -> Iterator[TimerUnit]:
    """Yield the units of a slot, newest first: along the chain, or by a search through the log
    where chain and slot disagree (`on_damage` is called). The log may grow meanwhile."""
    end = log.end
    seen: set[int] = set()
    count = 0
    try:
        for position, unit in log.chain(slot.last):
            if unit.slot_ms // precision_ms != slot.time:
                raise RecordFormatError(f"a unit of {unit.slot_ms} is in the chain of {slot}.")
            seen.add(position)
            count += -1 if unit.cancels else 1
            yield unit
        if slot.first >= log.start and slot.num != count:
            raise RecordFormatError(f"the chain of {slot} has {count} units.")
    except RecordFormatError as error:
        logger.warning("timer.chain_broken slot=%d error=%s", slot.time, error)
        on_damage()
        for position, unit in reversed(log.units_of(slot.time, precision_ms)):
            if position < end and position not in seen:
                yield unit
