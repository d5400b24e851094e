"""Dispatch: builds the consume queues from the log, in log order.

The appender adds a hint for every write, so that the hot path does not parse what was just written.
All other records (a leader's bytes, records after a recovery, records written while the hints were
full) are read from the log: by the native crate where it can (`native/src/store/log_units.rs`),
otherwise in Python. All produce the same units; tests compare them. Lost hints lose nothing.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct

from .format.errors import CorruptLogError
from .format.lmq_queues import NUMBERS, lmq_units
from .format.record import tags_code
from .format.record_layout import (
    BLANK,
    BLANK_BYTES,
    BODY_LENGTH,
    FIXED,
    FIXED_V4,
    HOSTS_V6,
    MAGIC,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET,
    QUEUE_ID,
    QUEUE_OFFSET,
    SIZE,
    STORE_TIMESTAMP,
    SYS_FLAG,
    TRANSACTION_MASK,
    UNIT,
    UNQUEUED,
)
from .format.results import Arrival, PutStatus
from .log.commit_log import CommitLog
from .log.segment import Segment
from .queue.consume_queue import ConsumeQueue
from .queue.table import NewUnits, QueueTable, packed

#: Maximum number of records in hints while dispatch is held back (synchronous modes).
HINTS_MAX: Final = 65_536
#: From this many bytes on the log is parsed in columns; below, record by record is faster.
BULK_BYTES_MIN: Final = 512 << 10
BULK_RECORDS_MIN: Final = 512

if TYPE_CHECKING:
    from .queue.building import ArrivalReader

_end_of = attrgetter("end")


@lru_cache(maxsize=4096)
def _topic(data: bytes) -> str:
    return data.decode()


def parse_arrivals(segment: Segment, position: int) -> tuple[list[Arrival], int]:
    """Return the arrivals of the whole record at `position`, that of its own queue first, and its
    system flag.

    The record's lengths are not validated: recovery, the appender or raw append has done so.
    """
    data = segment.map
    fixed = FIXED_V4
    values = fixed.unpack_from(data, position)
    if values[SYS_FLAG] & HOSTS_V6:
        fixed = FIXED[values[SYS_FLAG] >> 4 & 3]
        values = fixed.unpack_from(data, position)
    size, magic = values[SIZE], values[MAGIC]
    if magic not in (MAGIC_V1, MAGIC_V2):
        offset = segment.start + position
        raise CorruptLogError(segment.path, offset, "a record should begin here.")
    topic_at = position + fixed.size + values[BODY_LENGTH]
    if magic == MAGIC_V1:
        topic_at += 1
        topic_end = topic_at + data[topic_at - 1]
    else:
        topic_at += 2
        topic_end = topic_at + int.from_bytes(data[topic_at - 2 : topic_at], "big")
    topic = _topic(data[topic_at:topic_end])
    properties = data[topic_end + 2 : position + size]
    offset, number = values[PHYSICAL_OFFSET], values[QUEUE_OFFSET]
    stored_ms = values[STORE_TIMESTAMP]
    code = tags_code(topic, properties, stored_ms)
    ok = PutStatus.PUT_OK
    arrivals = [Arrival(ok, offset, size, number, stored_ms, topic, values[QUEUE_ID], code)]
    if NUMBERS in properties:
        for name, light in lmq_units(topic, properties):
            arrivals.append(Arrival(ok, offset, size, light, stored_ms, name, 0, code))
    return arrivals, values[SYS_FLAG]


class NativeUnits(Protocol):
    """Reads units of records of the common form in the native crate (`queue_units`)."""

    def __call__(
        self, data: Any, base: int, range: tuple[int, int], records_max: int
    ) -> tuple[list[tuple[str, int, int, bytes]], int, bytes, int]:
        """Return the units of each queue (topic, queue id, number of the first one, encoded units),
        the position behind the last record, the store times of all units in log order (i64), and
        the log offset of the last record with a unit. Ends in front of a record that is left to
        Python."""


def _arrivals(units: Mapping[ConsumeQueue, NewUnits], times_ms: Iterable[int]) -> list[Arrival]:
    """Return arrivals in log order, that of a record's own queue first. `times_ms`: their store
    times."""
    rows = [
        (offset, size, number, queue, code)
        for queue, (first, data) in units.items()
        for number, (offset, size, code) in enumerate(UNIT.iter_unpack(data), first)
    ]
    rows.sort(key=itemgetter(0))
    ok = PutStatus.PUT_OK
    return [
        Arrival(ok, offset, size, number, time_ms, queue.topic, queue.queue_id, code)
        for (offset, size, number, queue, code), time_ms in zip(rows, times_ms, strict=False)
    ]


class Hint(Struct, frozen=True):
    """One write of the appender: at least one record, no gap."""

    begin: int
    end: int
    #: Start of the last record, and the store time of all.
    last: int
    store_timestamp_ms: int
    units: Mapping[ConsumeQueue, NewUnits]
    #: Number of units: a record may have several, in light queues.
    count: int

    @classmethod
    def of(cls, arrivals: list[Arrival], queues: Iterable[ConsumeQueue]) -> "Hint":
        """Return the hint of adjacent records in these queues."""
        by_name = {(queue.topic, queue.queue_id): queue for queue in queues}
        units: dict[ConsumeQueue, list[int]] = {}
        for arrival in arrivals:
            queue = by_name[arrival.topic, arrival.queue_id]
            flat = units.setdefault(queue, [arrival.queue_offset])
            flat += (arrival.physical_offset, arrival.size, arrival.tags_code)
        first, last = arrivals[0], arrivals[-1]
        return cls(
            first.physical_offset,
            last.end,
            last.physical_offset,
            last.store_timestamp_ms,
            packed(units),
            len(arrivals),
        )

    def arrivals(self) -> list[Arrival]:
        """Return the arrivals in log order, that of a record's own queue first."""
        return _arrivals(self.units, repeat(self.store_timestamp_ms))

    def split(self, up_to: int, count_max: int) -> tuple["Hint", "Hint"] | None:
        """Split before the first record that ends behind `up_to`, into at most `count_max` units
        and the rest; None if the first part would be empty."""
        arrivals = self.arrivals()
        count = min(bisect_right(arrivals, up_to, key=_end_of), count_max)
        if not count:
            return None
        return Hint.of(arrivals[:count], self.units), Hint.of(arrivals[count:], self.units)


class ReadUnits(Struct, frozen=True):
    """Units that the native crate read from the log."""

    units: Mapping[ConsumeQueue, NewUnits]
    #: Store times in log order.
    times_ms: "memoryview[int]"

    @property
    def count(self) -> int:
        return len(self.times_ms)

    def arrivals(self) -> list[Arrival]:
        """Return the arrivals in log order."""
        return _arrivals(self.units, self.times_ms)


class Dispatched:
    """Records that became visible, in log order."""

    def __init__(self) -> None:
        self._parts: list[Hint | ReadUnits | list[Arrival]] = []
        self._count = 0

    def add(self, part: Hint | ReadUnits | list[Arrival]) -> None:
        """Add the next records."""
        self._parts.append(part)
        self._count += len(part) if isinstance(part, list) else part.count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Arrival]:
        for part in self._parts:
            yield from part if isinstance(part, list) else part.arrivals()

    def queues(self) -> set[tuple[str, int]]:
        """Return topic and queue id of the queues that got records."""
        found: set[tuple[str, int]] = set()
        for part in self._parts:
            queues = part if isinstance(part, list) else part.units
            found.update([(queue.topic, queue.queue_id) for queue in queues])
        return found


class Dispatcher:
    """Moves `offset` along the log; all records before it are in the queues."""

    def __init__(
        self, log: CommitLog, queues: QueueTable, native: NativeUnits | None = None
    ) -> None:
        self.offset = 0
        #: Start and store time of the last record with a unit, for the checkpoint.
        self.last: tuple[int, int] = (0, 0)
        self._hints: deque[Hint] = deque()
        self._hinted = 0  # records in the hints
        self._hints_end = -1  # where the next hint must begin; -1: the log is ahead of the hints
        self._log = log
        self._queues = queues
        self._native = native
        self._reader: ArrivalReader | None = None

    def begin_hints(self) -> None:
        """Accept hints from now on, if the queues have caught up with the log."""
        if not self._hints and self.offset == self._log.end:
            self._hints_end = self.offset

    def add_hint(self, hint: Hint) -> None:
        """Add the hint of the appender's next write."""
        if self._hints_end == hint.begin and self._hinted < HINTS_MAX:
            self._hints.append(hint)
            self._hinted += hint.count
            self._hints_end = hint.end

    def drop_hints(self) -> None:
        """Drop all hints and parse the log instead: after a failed write some queues may already
        hold units of the first hint."""
        self._hints.clear()
        self._hinted = 0
        self._hints_end = -1

    def skip_blank(self, begin: int) -> None:
        """Skip the blank that was written at `begin`; the next record begins at the log end."""
        if self._hints_end == begin:
            self._hints_end = self._log.end

    def dispatch(self, up_to: int, records_max: int, found: Dispatched) -> None:
        """Write units for records that end at or before `up_to`, and add these records to `found`.

        Raises OSError, ValueError or CorruptLogError; `found` has the records of the steps before
        the failed one.
        """
        up_to = min(up_to, self._log.readable_end)
        self.offset = max(self.offset, self._log.start)
        while self.offset < up_to and len(found) < records_max:
            before = self.offset
            if self._hints:
                self._take_hint(up_to, records_max - len(found), found)
            elif not self._take_common(up_to, records_max - len(found), found):
                parsed, self.offset = self._parse_next(up_to, records_max - len(found))
                if parsed:
                    self.last = (parsed[-1].physical_offset, parsed[-1].store_timestamp_ms)
                    found.add(parsed)
            if self.offset == before:
                break

    def _take_common(self, up_to: int, records_max: int, found: Dispatched) -> bool:
        """Write the units of the next records with the native crate; return false, with no unit
        written, if Python must read them."""
        if self._native is None or self._queues.write_ext:
            return False
        begin, segment = self.offset, self._log.segment_at(self.offset)
        limit = min(up_to, segment.end) - segment.start
        with segment.hold() as data:
            units, end, times, last = self._native(
                data, segment.start, (begin - segment.start, limit), records_max
            )
        if segment.start + end == begin:
            return False
        written = self._queues.continue_with(units)
        if written is None:
            return False
        self.offset = segment.start + end
        if written:
            times_ms = memoryview(times).cast("q")
            self.last = (last, times_ms[-1])
            found.add(ReadUnits(written, times_ms))
        return True

    def _parse_next(self, up_to: int, records_max: int) -> tuple[list[Arrival], int]:
        parsed, end = self.parse(self.offset, up_to, records_max)
        self._queues.write(parsed)
        return parsed, end

    def _take_hint(self, up_to: int, records_max: int, found: Dispatched) -> None:
        """Write the units of the first hint, or of its part before `up_to`."""
        hint = self._hints[0]
        # The units of one record, in light queues, are not split.
        if hint.end > up_to or (hint.count > records_max and hint.begin < hint.last):
            parts = hint.split(up_to, records_max)
            if parts is None:
                return
            hint, rest = parts
            self._hints[0] = rest
            self._hints.appendleft(hint)
        if self._queues.write_ext:
            self._queues.write(hint.arrivals())
        else:
            self._queues.write_units(hint.units)
        self._hints.popleft()
        self._hinted -= hint.count
        self.offset = hint.end
        self.last = (hint.last, hint.store_timestamp_ms)
        found.add(hint)

    def _read_many(self, begin: int, up_to: int, records_max: int) -> tuple[list[Arrival], int]:
        if self._reader is None:
            # Loads NumPy; needed for many records that the crate has not read.
            from .queue.building import ArrivalReader

            self._reader = ArrivalReader(self._log)
        return self._reader.read(begin, up_to, records_max)

    def parse(self, begin: int, up_to: int, records_max: int) -> tuple[list[Arrival], int]:
        """Return the arrivals of the queued records in [begin, up_to), and the start of the next
        record.

        `begin` is a record boundary. Parses at most `records_max` records.
        """
        if up_to - begin >= BULK_BYTES_MIN and records_max >= BULK_RECORDS_MIN:
            arrivals, end = self._read_many(begin, up_to, records_max)
            if end > begin:
                return arrivals, end
        arrivals = []
        for _ in range(records_max):
            if up_to - begin < BLANK_BYTES:
                break
            segment = self._log.segment_at(begin)
            position = begin - segment.start
            size, magic = BLANK.unpack_from(segment.map, position)
            if begin + size > up_to:
                break
            begin += size
            if magic != MAGIC_BLANK:
                found, sys_flag = parse_arrivals(segment, position)
                if sys_flag & TRANSACTION_MASK not in UNQUEUED:
                    arrivals += found
        return arrivals, begin
