"""Unit repair: restores units of a consume queue that disagree with the log.

A unit is sound when a record of its queue, queue offset and size begins at its physical offset. The
record of another unit is searched in the log between the records of the nearest sound units, and
every unit of that range that differs from the log is written again, into the queue's file. One read
walks at most about `BUDGET_BYTES` or `BUDGET_RECORDS` (tens of milliseconds); the next one, or
`search_on` in the background, continues.

If the range holds no such record, it was deleted or the log is damaged there; the result is kept
until the log is repaired (`forget`). If a unit cannot be written, `read` inserts it into what is
read from the file.
"""

import enum
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from ..format.errors import OffsetOutOfRangeError, RecordFormatError
from ..format.queue_ext import is_address
from ..format.record_layout import (
    FILLER_SIZE,
    RECORD_BYTES_MIN,
    UNIT,
    UNIT_BYTES,
    UNIT_FIELDS,
)
from ..format.topic_names import is_lmq
from ..log.commit_log import CommitLog
from ..scan.single import inspect
from .consume_queue import ConsumeQueue
from .table import QueueTable

if TYPE_CHECKING:
    from .building import Units

logger = logging.getLogger(__name__)

#: Limits of the searches of one read.
BUDGET_BYTES: Final = 16 << 20
BUDGET_RECORDS: Final = 20_000
#: Bytes of the log that are walked between two checks of the limits.
SLICE_BYTES: Final = 1 << 20
#: Bytes of the log that one step of the unit check walks, a few milliseconds.
CHECK_BYTES: Final = 256 << 10
#: Units examined on each side for a sound one: at first, and at most.
_NEAR_UNITS: Final = 64
_FAR_UNITS: Final = 4096
#: Maximum number of units remembered as missing, and as found but not written.
_KEPT_MAX: Final = 65_536

Range = tuple[int, int]


class Found(enum.Enum):
    """Outcome of a search."""

    REPAIRED = "the unit was written again"
    PENDING = "the search continues with the next call"
    GONE = "the log holds no such record"


class _Search(Struct):
    """Units [first, stop) of a queue, searched in the log from `position` to `end`."""

    number: int
    first: int
    stop: int
    position: int
    end: int
    found: set[int] = field(default_factory=set)
    lost: list[Range] = field(default_factory=list)
    passed: bool = False  #: a record behind the range was found


class UnitRepair:
    """Repairs of the units of one store; all calls on the thread that reads."""

    def __init__(self, log: CommitLog, queues: QueueTable) -> None:
        self.repaired = 0  #: units written again
        #: Units that could not be written, by queue and queue offset.
        self.unwritten: dict[tuple[ConsumeQueue, int], tuple[int, int, int]] = {}
        self._log = log
        self._table = queues
        self._searches: dict[ConsumeQueue, _Search] = {}
        self._gone: dict[tuple[ConsumeQueue, int], list[Range]] = {}
        self._logged: set[ConsumeQueue] = set()
        self._deleted: tuple[ConsumeQueue | None, int, int] = (None, -1, -1)
        self._bytes = self._records = 0  # walked by the searches of this read
        self._last = -1  # the unit that was repaired last in this read

    # -- checks -------------------------------------------------------------------------------

    def is_sound(self, queue: ConsumeQueue, number: int, offset: int, size: int) -> bool:
        """Return whether the head of the record at `offset` matches the unit. A record does not
        hold the queue offset of a light queue's unit in its head; there only the size counts."""
        head = self._head(offset, size)
        if head is None:
            return False
        light = is_lmq(queue.topic)
        return light or head == (size, queue.queue_id, number, offset)

    def holds_record(self, offset: int, size: int) -> bool:
        """Return whether some record of this size begins at `offset`."""
        return self._head(offset, size) is not None

    def _head(self, offset: int, size: int) -> tuple[int, int, int, int] | None:
        log = self._log
        if not (size >= RECORD_BYTES_MIN and log.start <= offset <= log.readable_end - size):
            return None
        segment = log.segment_at(offset)
        if offset + size > segment.end:
            return None
        head: tuple[int, int, int, int] = UNIT_FIELDS.unpack_from(
            segment.map, offset - segment.start
        )
        return head if (head[0], head[-1]) == (size, offset) else None

    def _is_border(self, queue: ConsumeQueue, number: int, offset: int, size: int) -> bool:
        """Return whether the unit is sound and its record is whole, so that a search may begin or
        end there."""
        from ..dispatch import parse_arrivals

        if not self.is_sound(queue, number, offset, size):
            return False
        segment = self._log.segment_at(offset)
        position = offset - segment.start
        try:
            with segment.hold() as data:
                inspect(data, position, segment.start, check_crc=False)
            arrivals, _ = parse_arrivals(segment, position)
        except (RecordFormatError, UnicodeDecodeError):
            return False
        unit = (number, queue.queue_id, queue.topic)
        return any((a.queue_offset, a.queue_id, a.topic) == unit for a in arrivals)

    def is_deleted(self, queue: ConsumeQueue, number: int, offset: int, size: int) -> bool:
        """Return whether retention deleted the record of a unit that points below the log start.
        The unit is damaged instead if it follows one whose record still exists."""
        start = self._log.start
        if size < RECORD_BYTES_MIN or not 0 <= offset < start:
            return False
        if self._deleted != (queue, number - 1, start) and number > queue.min_offset:
            before = queue.read(number - 1, 1)
            if before and self.is_sound(queue, number - 1, *UNIT.unpack(before)[:2]):
                return False
        self._deleted = (queue, number, start)
        return True

    def begin_read(self) -> None:
        """Begin a read of one queue, with a new budget."""
        self._bytes = self._records = 0
        self._last = -1

    @property
    def spent(self) -> bool:
        """Whether the searches of this read have used its budget."""
        return self._bytes >= BUDGET_BYTES or self._records >= BUDGET_RECORDS

    def read(self, queue: ConsumeQueue, first: int, count: int) -> bytes:
        """Return `queue.read`, with those units inserted that could not be written."""
        units = queue.read(first, count)
        if not self.unwritten:
            return units
        patched = bytearray(units)
        for at in range(0, len(units), UNIT_BYTES):
            unit = self.unwritten.get((queue, first + at // UNIT_BYTES))
            if unit is not None:
                UNIT.pack_into(patched, at, *unit)
        return bytes(patched)

    def sound_unit(self, queue: ConsumeQueue, number: int) -> tuple[int, int]:
        """Return physical offset and size of a unit, restored from the log if it is damaged; size 0
        if the log holds no such record, or if the budget of this read does not suffice."""
        for _ in range(2):
            offset, size, _ = UNIT.unpack(self.read(queue, number, 1))
            if size == FILLER_SIZE or self.is_sound(queue, number, offset, size):
                return offset, size
            if self.is_deleted(queue, number, offset, size):
                return offset, size
            if self.spent or self.find(queue, number) is not Found.REPAIRED:
                break
        return 0, 0

    # -- search -------------------------------------------------------------------------------

    def find(self, queue: ConsumeQueue, number: int) -> Found:
        """Search the record of a unit that is not sound, and write the unit again."""
        if (queue, number) in self._gone:
            return Found.GONE
        search = self._searches.get(queue)
        if search is None or search.number != number:
            search = self._searches[queue] = self._begin(queue, number)
        while True:
            finished = self._walk_slice(queue, search)
            if number in search.found:
                del self._searches[queue]
                if number == self._last:  # the file does not keep what is written
                    return Found.PENDING
                self._last = number
                return Found.REPAIRED
            if finished:
                del self._searches[queue]
                self._note_gone(queue, search)
                return Found.GONE
            if self.spent:
                return Found.PENDING

    def searches(self, queue: ConsumeQueue) -> bool:
        """Return whether a search in the queue is not finished."""
        return queue in self._searches

    def search_on(self, queue: ConsumeQueue) -> bool:
        """Continue the queue's search by one slice; return whether it is still not finished."""
        search = self._searches[queue]
        finished = self._walk_slice(queue, search)
        if finished or search.number in search.found:
            del self._searches[queue]
            if search.number not in search.found:
                self._note_gone(queue, search)
        return queue in self._searches

    def lost_ranges(self, queue: ConsumeQueue, number: int) -> list[Range]:
        """Return the damaged ranges of the log that may have held the record of a missing unit; the
        last segment does not count, it is still written."""
        tail = self._log.tail
        ranges = self._gone.get((queue, number), [])
        return [each for each in ranges if tail is None or each[1] <= tail.start]

    def forget(self) -> None:
        """Search missing records again: the log was repaired."""
        self._gone.clear()
        self._searches.clear()

    def _note_gone(self, queue: ConsumeQueue, search: _Search) -> None:
        if len(self._gone) > _KEPT_MAX:
            self._gone.clear()
        numbers = range(search.first, search.stop)
        self._gone.update({(queue, n): search.lost for n in numbers if n not in search.found})

    def _begin(self, queue: ConsumeQueue, number: int) -> _Search:
        """Return a search between the records of the nearest sound units."""
        log = self._log
        low, high = queue.min_offset, queue.max_offset
        first, position = max(number - _FAR_UNITS, low), log.start
        for count in (_NEAR_UNITS, _FAR_UNITS):
            units = list(_units(queue, max(number - count, low), number))
            border = next((u for u in reversed(units) if self._is_border(queue, *u)), None)
            if border is not None:
                first, position = border[0] + 1, border[1] + border[2]
                break
        stop, end = min(number + 1 + _FAR_UNITS, high), log.readable_end
        for count in (_NEAR_UNITS, _FAR_UNITS):
            units = list(_units(queue, number + 1, min(number + 1 + count, high)))
            border = next((u for u in units if self._is_border(queue, *u)), None)
            if border is not None and border[1] >= position:
                stop, end = border[:2]
                break
        return _Search(number, first, stop, position, end)

    def _walk_slice(self, queue: ConsumeQueue, search: _Search) -> bool:
        """Walk the next part of the range; return whether the search is finished."""
        from ..scan.walk import StopReason, walk

        try:
            segment = self._log.segment_at(max(search.position, self._log.start))
        except OffsetOutOfRangeError:
            return True
        base = segment.start
        begin = max(search.position, base) - base
        stop = min(begin + SLICE_BYTES, search.end - base, segment.size)
        if begin >= stop:
            return True
        with segment.hold() as data:
            records = walk(data, base, begin, stop, "skip")
            try:
                for columns in records:
                    self._restore(queue, search, _units_of_queue(queue, records, columns))
            finally:
                records.close()
        self._records += records.records
        self._bytes += stop - begin
        search.lost += [(each.begin, each.end) for each in records.lost]
        if records.stop is StopReason.END:
            search.position = base + records.end
        elif records.stop is StopReason.BLANK:
            search.position = segment.end
        else:
            search.lost.append((base + records.end, base + stop))
            search.position = base + stop
        return search.passed or search.position >= search.end

    # -- writing ------------------------------------------------------------------------------

    def _restore(self, queue: ConsumeQueue, search: _Search, units: "Units | None") -> None:
        """Write those units of the search that differ from these."""
        if units is None:
            return
        found = {
            number: unit
            for number, unit in column_units(units)
            if search.first <= number < search.stop
        }
        if not is_lmq(queue.topic) and int(units.number.max()) >= search.stop:
            search.passed = True
        search.found |= found.keys()
        held = dict(_raw_units(queue, found))
        changed = {}
        for number, (offset, size, tags_code) in found.items():
            now = held.get(number, (-1, 0, 0))
            keeps = is_address(now[2]) and self._table.exts.resolve(queue, now[2]) == tags_code
            unit = (offset, size, now[2] if keeps else tags_code)
            if now != unit:
                changed[number] = unit
        self.write_units(queue, changed)

    def write_units(self, queue: ConsumeQueue, units: dict[int, tuple[int, int, int]]) -> None:
        """Write these units of the queue, by number: physical offset, size and tags code."""
        for first, run in _runs(units):
            self._write(queue, first, run)

    def _write(self, queue: ConsumeQueue, first: int, units: list[tuple[int, int, int]]) -> None:
        self.repaired += len(units)
        if queue not in self._logged:
            self._logged.add(queue)
            logger.warning(
                "queue.unit_repaired topic=%s queue=%d offset=%d units=%d physical_offset=%d: the "
                "units did not match the log; further repairs of this queue are only counted.",
                queue.topic,
                queue.queue_id,
                first,
                len(units),
                units[0][0],
            )
        try:
            self._table.overwrite(queue, first, units)
            for number in range(first, first + len(units)) if self.unwritten else ():
                self.unwritten.pop((queue, number), None)
        except OSError as error:
            logger.error(
                "queue.unit_not_written topic=%s queue=%d offset=%d error=%s",
                queue.topic,
                queue.queue_id,
                first,
                error,
            )
            if len(self.unwritten) > _KEPT_MAX:
                self.unwritten.clear()
            self.unwritten.update({(queue, first + i): unit for i, unit in enumerate(units)})


def column_units(units: "Units") -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Yield the number of every unit, and its physical offset, size and tags code."""
    columns = (units.number, units.offset, units.size, units.code)
    for number, *unit in zip(*(column.tolist() for column in columns), strict=True):
        offset, size, code = unit
        yield number, (offset, size, code)


def _units_of_queue(queue: ConsumeQueue, records: Any, columns: Any) -> "Units | None":
    """Return the units that these records have in the queue; None without any."""
    import numpy as np

    from ..scan.lmq import lmq_rows
    from ..scan.properties import TagsCodes
    from .building import units_of

    raw, topics = records.raw, records.topics
    topic_id = topics.number_of(queue.topic)
    if is_lmq(queue.topic):
        found = lmq_rows(raw, columns, topics)
        rows = np.array(sorted({row for row, name, _ in found if name == queue.topic}), np.int64)
    else:
        own = (columns.topic_id == topic_id) & (columns.queue_id == queue.queue_id)
        rows = np.flatnonzero(own)
    if not len(rows):
        return None
    units = units_of(raw, columns.take(rows), topics, TagsCodes())
    units = units.take((units.topic_id == topic_id) & (units.queue_id == queue.queue_id))
    return units if len(units) else None


def _units(queue: ConsumeQueue, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, physical offset and size of the units [first, stop), without fillers."""
    while first < stop and (units := queue.read(first, stop - first)):
        for number, (offset, size, _) in enumerate(UNIT.iter_unpack(units), first):
            if size != FILLER_SIZE:
                yield number, offset, size
        first += len(units) // UNIT_BYTES


def _raw_units(
    queue: ConsumeQueue, numbers: dict[int, Any]
) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Yield number and unit of the units from the lowest to the highest of `numbers`."""
    if not numbers:
        return
    first, stop = min(numbers), max(numbers) + 1
    while first < stop and (units := queue.read(first, stop - first)):
        yield from enumerate(UNIT.iter_unpack(units), first)
        first += len(units) // UNIT_BYTES


def _runs(
    units: dict[int, tuple[int, int, int]],
) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
    """Yield the first number and the units of every run of consecutive numbers."""
    first, run = 0, list[tuple[int, int, int]]()
    for number in sorted(units):
        if run and number != first + len(run):
            yield first, run
            run = []
        first = first if run else number
        run.append(units[number])
    if run:
        yield first, run
