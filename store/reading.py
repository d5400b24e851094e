"""Queue reads: from queue offsets to copies of records.

| status | when | next offset |
| --- | --- | --- |
| NO_MATCHED_LOGIC_QUEUE | illegal topic or queue id, or queues of the batch form | 0 |
| NO_MESSAGE_IN_QUEUE | the queue never held a message, or does not exist | 0 |
| OFFSET_TOO_SMALL | before the first unit | the first unit |
| OFFSET_OVERFLOW_ONE | equal to the next unit's offset | the same |
| OFFSET_OVERFLOW_BADLY | above that | the next unit's offset |
| FOUND | at least one record | behind the last unit examined |
| NO_MATCHED_MESSAGE | units were examined, none matched (or all were fillers) | the same |
| MESSAGE_WAS_REMOVING | units were examined, none had a record | the same |

A damaged record of a finished segment is never returned: the batch ends in front of it while it can
be repaired from another replica (blocks.py), else it is skipped. A unit that does not match the log
is restored from the log (queue/unit_repair.py); the batch ends in front of it while the search for
its record is not finished. So are the units of a missing or a cut queue file: their bytes are read
as zeros.

Statuses and next offsets are RocketMQ's (docs/formats/store-format.md, section 9.1), without
OFFSET_RESET, which only a broker returns, and OFFSET_FOUND_NULL (a queue file is missing). A unit
whose record retention has deleted is skipped; so is one whose record is missing because of damage
(`gaps`).

Limits: `bytes_max` of the caller. Without it RocketMQ's limits apply (section 9.2: 32 records or
256 KiB from memory, less from the disk), chosen by the first record, the oldest of the batch. The
broker's pop and pull always pass `bytes_max`, so that a batch of 32 records of up to 4 MiB is not
cut. Unlike in RocketMQ (`travelCqFileNumWhenGetMessage`) a read may cross queue files:
`maxFilterMessageSize` bounds the units examined.

Records are copied out of the map, so a result does not depend on a segment.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from msgspec import Struct

from .config.store_config import StoreConfig
from .events import NO_EVENTS, StoreEvents
from .format.checksum import crc32
from .format.record_layout import (
    FILLER_SIZE,
    RECORD_BYTES_MIN,
    SIZE_AND_OFFSET,
    UNIT,
    UNIT_BYTES,
    UNIT_FIELDS,
    with_place,
)
from .format.results import ColdUnit, GetResult, GetStatus, StoredRecord
from .format.topic_names import check_topic, is_lmq
from .gaps import Gaps
from .guard import BlockGuard
from .log.commit_log import CommitLog
from .queue.consume_queue import ConsumeQueue
from .queue.table import QueueTable
from .queue.unit_repair import Found, UnitRepair
from .record_check import RecordCheck

logger = logging.getLogger(__name__)
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
#: Later than all store times.
_NEVER_MS: Final = (1 << 63) - 1
_COMPARED_MAX: Final = 4096


#: Outcomes of `_without_record`, else the size of the record that was added.
_STOP: Final = -1  # end the batch in front of the unit
_AGAIN: Final = -2  # the unit was repaired: read it again


def machine_memory() -> int:
    """Return the bytes of memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def tags_match(tags_code: int, wanted: frozenset[int]) -> bool:
    """Return whether a record with this tags code may match. A code outside of 32 bits is the
    address of an extension unit, a time (delay levels of RocketMQ) or damaged: it may."""
    return tags_code in wanted or not _INT_MIN <= tags_code <= _INT_MAX


class NativeRecords(Protocol):
    """Reads records of units of the common form in the native crate (`QueueRecords`)."""

    def read(
        self,
        units: bytes,
        at: int,
        number: int,
        *,
        segment: tuple[mmap.mmap | bytes, int, int],
        queue: tuple[int, bytes],
        tags: frozenset[int] | None,
        room: tuple[int, int, int],
    ) -> tuple[int, list[StoredRecord], bool, int]:
        """Return the number of examined units, their records, whether the batch is full, and the
        log offset of the last unit (-1: none)."""


class _Batch(Struct):
    """A read in progress: the next unit, the room that is left, and the segment in use."""

    queue: ConsumeQueue
    result: GetResult
    count_max: int
    bytes_left: int
    tag_codes: frozenset[int] | None
    #: The next unit, and the one at which the read ends.
    number: int
    end: int
    #: Log offset of the last unit.
    seen: int
    #: Bounds of the segment that `data` maps.
    begin: int = 0
    stop: int = 0
    data: mmap.mmap | bytes = b""
    #: The segment is finished and its bodies are checked.
    cold: bool = False

    @property
    def has_count(self) -> bool:
        """Whether the batch has the maximum of records; the first may always be added."""
        return bool(self.result.records) and len(self.result.records) >= self.count_max


class QueueReader:
    """Reads queues; a queue that does not exist is treated as empty."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        config: StoreConfig,
        memory_bytes: Callable[[], int] = machine_memory,
        *,
        native: NativeRecords | None = None,
        events: StoreEvents = NO_EVENTS,
        wall_ms: Callable[[], int] = lambda: _NEVER_MS,
    ) -> None:
        """`native`: reads units of the common form."""
        self._native = native
        self._log = log
        self._table = queues
        self._queues = queues.queues
        self._config = config
        units = config.max_filter_message_size // UNIT_BYTES
        self._filter_units_max = max(units, 1)
        #: Records within this distance of the log end count as being in memory.
        self._memory_span = memory_bytes() * config.access_message_in_memory_max_ratio // 100
        self._compared: dict[int, int] = {}  # damaged records that a scrub has seen, by offset
        self.check = RecordCheck(sealed=config.enabled_append_prop_crc)
        #: Messages that were skipped because of damage.
        self.gaps = Gaps(log)
        self.guard: BlockGuard | None = None
        #: Damaged ranges of the log, withheld from readers.
        self.damaged: set[tuple[int, int]] = set()
        self.units = UnitRepair(log, queues)
        #: Queues in which a read ended in front of a unit that a search or a repair may restore.
        self.stopped: set[tuple[str, int]] = set()
        self._events = events
        self._wall_ms = wall_ms

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get((topic, queue_id))
        return queue.min_offset if queue else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get((topic, queue_id))
        return queue.max_offset if queue else 0

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        bytes_max: int | None,
        *,
        tag_codes: frozenset[int] | None,
    ) -> GetResult:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return GetResult(self._status_of_none(topic, queue_id), 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if not high:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        result = GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, low, high)
        if bytes_max is None:
            count_max, bytes_max = self._limits(queue, offset, count_max)
        self.units.begin_read()
        self._collect(queue, result, count_max, bytes_max, tag_codes)
        return result

    def _status_of_none(self, topic: str, queue_id: int) -> GetStatus:
        try:
            check_topic(topic)
        except ValueError:
            return GetStatus.NO_MATCHED_LOGIC_QUEUE
        if queue_id < 0 or topic in self._table.batch_topics:
            return GetStatus.NO_MATCHED_LOGIC_QUEUE
        return GetStatus.NO_MESSAGE_IN_QUEUE

    def is_cold(self, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether a message lies further behind the log end than
        `accessMessageInMemoryMaxRatio` of the machine's memory, so that reading it may wait for the
        disk. Raises OSError when the queue's file cannot be read."""
        log = self._log
        if log.readable_end - log.start <= self._memory_span:
            return False
        place = self.physical_offset_of(topic, queue_id, offset)
        return place is not None and self.is_cold_position(place)

    def physical_offset_of(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the physical offset of a visible message, else None."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return None
        unit = queue.read(offset, 1)
        return int(UNIT.unpack(unit)[0]) if unit else None

    def position_from(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the physical offset of the first visible message from a queue offset on."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return None
        return self.physical_offset_of(topic, queue_id, max(offset, queue.min_offset))

    def is_cold_position(self, physical_offset: int) -> bool:
        """Return whether a physical offset lies that far behind the log end."""
        return self._log.readable_end - physical_offset > self._memory_span

    def cold_units(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        bytes_max: int,
        *,
        tag_codes: frozenset[int] | None = None,
    ) -> tuple[list[ColdUnit], int] | None:
        """Return the units of the cold records that `get` would read, and the queue offset behind
        the last unit examined; None if the record at `offset` is not cold or does not exist."""
        log = self._log
        border = log.readable_end - self._memory_span
        queue = self._queues.get((topic, queue_id))
        if border <= log.start or queue is None:
            return None
        if not queue.min_offset <= offset < queue.max_offset:
            return None
        step = count_max if tag_codes is None else max(self._filter_units_max, count_max)
        units: list[ColdUnit] = []
        number = offset
        raw = queue.read(offset, min(step, queue.max_offset - offset))
        for place, size, code in UNIT.iter_unpack(raw):
            if size != FILLER_SIZE:
                if not log.start <= place < border or size < RECORD_BYTES_MIN:
                    break
                tags_code = code if code >= _INT_MIN else self._table.exts.resolve(queue, code)
                if tag_codes is None or tags_match(tags_code, tag_codes):
                    if units and (len(units) >= count_max or size > bytes_max):
                        break
                    bytes_max -= size
                    units.append(ColdUnit(number, place, size, tags_code))
            number += 1
        return (units, number) if number > offset else None

    def _limits(self, queue: ConsumeQueue, offset: int, count_max: int) -> tuple[int, int]:
        """Return RocketMQ's limits (count, bytes) for a batch that begins at `offset`."""
        config = self._config
        unit = queue.read(offset, 1)
        place = UNIT.unpack(unit)[0] if unit else 0
        if self._log.readable_end - place <= self._memory_span:
            count = config.max_transfer_count_on_message_in_memory
            return min(count_max, count), config.max_transfer_bytes_on_message_in_memory
        count = config.max_transfer_count_on_message_in_disk
        return min(count_max, count), config.max_transfer_bytes_on_message_in_disk

    def _collect(
        self,
        queue: ConsumeQueue,
        result: GetResult,
        count_max: int,
        bytes_max: int,
        tag_codes: frozenset[int] | None,
    ) -> None:
        """Examine units until the batch is full."""
        span = max(self._filter_units_max, count_max)
        batch = _Batch(
            queue,
            result,
            count_max,
            bytes_max,
            tag_codes,
            number=result.next_offset,
            end=min(result.next_offset + span, result.max_offset),
            seen=self._log.readable_end,
        )
        step = max(count_max, 1) if tag_codes is None else self._filter_units_max
        while batch.number < batch.end and not (tag_codes is None and batch.has_count):
            count = min(step, batch.end - batch.number)
            self._examine(batch, self.units.read(queue, batch.number, count))
        result.size = bytes_max - batch.bytes_left
        behind = self._log.readable_end - batch.seen
        result.suggest_pulling_from_slave = behind > self._memory_span
        if result.records:
            result.status = GetStatus.FOUND
        result.next_offset = batch.number

    def _examine(self, batch: _Batch, units: bytes) -> None:
        """Examine units from the batch's number on; return early if they were repaired."""
        common = not (is_lmq(batch.queue.topic) or self.check.sealed or self.damaged)
        native = self._native if common else None
        at = 0
        while at < len(units) and batch.number < batch.end:
            if native is not None:
                examined = self._examine_common(batch, units, at, native)
                if at and not examined:
                    native = None  # two units of another form: the rest is likely to be the same
                at += examined
                if at == len(units) or batch.number == batch.end:
                    return
            offset, size, code = UNIT.unpack_from(units, at)
            if (size != FILLER_SIZE or offset) and not self._examine_one(batch, offset, size, code):
                return
            batch.number += 1
            at += UNIT_BYTES

    def _examine_common(self, batch: _Batch, units: bytes, at: int, native: NativeRecords) -> int:
        """Examine units of the common form in the segment of the first; return their bytes."""
        self._enter_segment(batch, UNIT.unpack_from(units, at)[0])
        queue, records = batch.queue, batch.result.records
        examined, found, full, seen = native.read(
            units,
            at,
            batch.number,
            segment=(batch.data, batch.begin, batch.stop),
            queue=(queue.queue_id, queue.topic_field),
            tags=batch.tag_codes,
            room=(len(records), batch.count_max, batch.bytes_left),
        )
        records += found
        batch.bytes_left -= sum(len(record.data) for record in found)
        batch.number += examined
        if seen >= 0:
            batch.seen = seen
        if full:
            batch.end = batch.number
        return examined * UNIT_BYTES

    def _examine_one(self, batch: _Batch, offset: int, size: int, code: int) -> bool:
        """Add the record of a unit to the batch if it matches; return False if the unit must be
        read again, or if the batch ends in front of it."""
        queue, number = batch.queue, batch.number
        tags_code = code if code >= _INT_MIN else self._table.exts.resolve(queue, code)
        # The tags code of a unit without a possible size means nothing.
        damaged = size < RECORD_BYTES_MIN
        wanted = batch.tag_codes
        if wanted is None or damaged or tags_match(tags_code, wanted):
            # A full batch ends here, at the next matching unit.
            if batch.result.records and (batch.has_count or size > batch.bytes_left):
                batch.end = number
                return False
            self._enter_segment(batch, offset)
            record = b"" if damaged else self._sound_record(batch, offset, size, tags_code)
            if record:
                batch.result.records.append(StoredRecord(number, offset, record, tags_code))
                taken = size
            else:
                unit = number, offset, size, tags_code
                taken = self._without_record(queue, unit, batch.result, batch.cold)
            if taken == _STOP:
                batch.end = number
                self._stop(queue)
            if taken < 0:
                return False
            batch.bytes_left -= taken
        batch.seen = offset
        return True

    def _enter_segment(self, batch: _Batch, offset: int) -> None:
        """Map the segment that holds a log offset, if there is one and it is another."""
        log = self._log
        if batch.begin <= offset < batch.stop or not log.start <= offset < log.readable_end:
            return
        segment = log.segments[(offset - log.start) // log.segment_bytes]
        batch.begin, batch.data = segment.start, segment.map
        batch.stop = min(segment.end, log.readable_end)
        batch.cold = self.guard is not None and segment is not log.tail

    def _sound_record(self, batch: _Batch, offset: int, size: int, tags_code: int) -> bytes:
        """Return the record of a unit in the batch's segment; b"" if it is not there, or damaged
        (docs/formats/store-format.md, section 9.4)."""
        queue, at = batch.queue, offset - batch.begin
        if at < 0 or offset + size > batch.stop:
            return b""
        if is_lmq(queue.topic):  # queue id and queue offset are those of the message's own queue
            same = SIZE_AND_OFFSET.unpack_from(batch.data, at) == (size, offset)
        else:
            head = UNIT_FIELDS.unpack_from(batch.data, at)
            same = head == (size, queue.queue_id, batch.number, offset)
        if not same:
            return b""
        record = batch.data[at : at + size]
        if self.check.wrong_part(queue, record, tags_code) or self._is_withheld(offset, size):
            return b""
        return record

    def _without_record(
        self, queue: ConsumeQueue, unit: tuple[int, int, int, int], result: GetResult, cold: bool
    ) -> int:
        """Handle a unit whose record is damaged or does not match it: return _AGAIN, _STOP, or the
        bytes added to the batch (0: the unit is skipped)."""
        number, offset, size, tags_code = unit
        repair = self.units
        sound = repair.is_sound(queue, number, offset, size)
        if not sound and not repair.is_deleted(queue, number, offset, size):
            if repair.spent and number > result.next_offset:
                return _STOP
            found = repair.find(queue, number)
            if found is not Found.GONE:
                return _AGAIN if found is Found.REPAIRED else _STOP
            for begin, end in repair.lost_ranges(queue, number):
                if self._waits(begin, end - begin):
                    return _STOP
            # Only the queue id or the queue offset differs, and no other record matches better.
            if repair.holds_record(offset, size):
                record = self._with_unit(queue, number, offset, size)
                if record and not self.check.wrong_part(queue, record, tags_code):
                    result.records.append(StoredRecord(number, offset, record, tags_code))
                    return size
                sound = True
        if sound:
            record = self._log.read(offset, size)
            part = self.check.wrong_part(queue, record, tags_code)
            if part:
                self.check.mismatches[part] += 1
            if cold and self._waits_for_record(offset, record):
                return _STOP
        self._miss(queue, number, offset, size, result)
        return 0

    def _stop(self, queue: ConsumeQueue) -> None:
        self.stopped.add((queue.topic, queue.queue_id))
        self._events.read_stopped()

    def is_damaged(self, queue: ConsumeQueue, record: bytes, offset: int, tags_code: int) -> bool:
        """Return whether the record lies in a damaged block or is not as it was stored."""
        return self._is_withheld(offset, len(record)) or bool(
            self.check.wrong_part(queue, record, tags_code)
        )

    def _with_unit(self, queue: ConsumeQueue, number: int, offset: int, size: int) -> bytes:
        """Return a record with the queue id and the queue offset of the unit in place of its own;
        b"" for a record that has its own unit."""
        record = self._log.read(offset, size)
        _, queue_id, own_number, _ = UNIT_FIELDS.unpack_from(record)
        other = self._queues.get((queue.topic, queue_id))
        if (
            other is not None
            and other.min_offset <= own_number < other.max_offset
            and other.unit(own_number)[:2] == (offset, size)
        ):
            return b""
        self.check.mismatches["queue"] += 1
        return with_place(record, queue.queue_id, number)

    def _is_withheld(self, offset: int, size: int) -> bool:
        """Return whether the record lies in a damaged block."""
        stop = offset + size
        return any(begin < stop and offset < end for begin, end in self.damaged)

    def _waits_for_record(self, offset: int, record: bytes) -> bool:
        """Return whether a damaged record of a finished segment will be repaired: no longer if a
        scrub saw the same bytes and found its block intact."""
        size, crc = len(record), crc32(record)
        if self._compared.get(offset) == crc and not self._is_withheld(offset, size):
            return False
        if not self._waits(offset, size):
            return False
        if self._is_withheld(offset, size):  # else the block has no digest yet
            if len(self._compared) >= _COMPARED_MAX:
                self._compared.clear()
            self._compared[offset] = crc
        return True

    def _waits(self, offset: int, size: int) -> bool:
        """Return whether a damaged record will be repaired, so that readers must not skip it."""
        return (
            offset >= self._log.start
            and offset + size <= self._log.readable_end
            and self.guard is not None
            and self.guard.will_repair(offset, size)
        )

    def _miss(
        self, queue: ConsumeQueue, number: int, offset: int, size: int, result: GetResult
    ) -> None:
        """Note a unit without its record: deleted by retention, or damaged."""
        result.status = GetStatus.MESSAGE_WAS_REMOVING
        if offset < self._log.start and size >= RECORD_BYTES_MIN:
            return
        if self.gaps.note(queue.topic, queue.queue_id, number, offset):
            logger.warning(
                "queue.record_missing topic=%s queue=%d offset=%d physical_offset=%d size=%d",
                queue.topic,
                queue.queue_id,
                number,
                offset,
                size,
            )

    def record_range(self, topic: str, queue_id: int, offset: int) -> tuple[int, int] | None:
        """Return physical offset and size of a message's record; None without such a message."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return None
        self.units.begin_read()
        physical_offset, size = self.units.sound_unit(queue, offset)
        return None if size in (0, FILLER_SIZE) else (physical_offset, size)

    def offset_by_position(self, topic: str, queue_id: int, physical_offset: int) -> int:
        """Return the first queue offset whose record lies at `physical_offset` or above; the end
        of the queue without one."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0
        self.units.begin_read()
        return queue.first_with(partial(self._position_of, queue), physical_offset)

    def search_offset(
        self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False
    ) -> int:
        """Return `offset_by_time` for a client: the end for a time to come, although the clock was
        ahead of it when messages were stored."""
        asked_ms = _NEVER_MS if timestamp_ms > self._wall_ms() else timestamp_ms
        return self.offset_by_time(topic, queue_id, asked_ms, upper)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False
    ) -> int:
        """Return the first offset stored at or after the time; with `upper` the last at or before
        it.

        Where the clock was set back, the store times of a queue are not in order: the result is a
        message stored at or after the time whose predecessor was stored before it (the first
        message has none). There may be several such places; one of them is found, as in Apache.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None or queue.max_offset <= queue.min_offset:
            return queue.max_offset if queue else 0
        self.units.begin_read()
        log = self._log

        def time_of(number: int) -> int:
            position = self._position_of(queue, number)
            if position >= log.readable_end:
                return _NEVER_MS
            # A deleted record is earlier than all.
            return log.store_timestamp(position) if position >= log.start else -1

        last_ms = time_of(queue.max_offset - 1)
        if last_ms < timestamp_ms or (upper and last_ms == timestamp_ms):
            found = queue.max_offset  # also if earlier messages have later times
        else:
            found = queue.first_with(time_of, timestamp_ms, above=upper)
        return max(found - 1, queue.min_offset) if upper else found

    def _position_of(self, queue: ConsumeQueue, number: int) -> int:
        """Return the physical offset of a unit's record, or that of the next unit that has one, so
        that the sequence never decreases; the log end without one."""
        while number < queue.max_offset:
            position, size = self.units.sound_unit(queue, number)
            if size not in (0, FILLER_SIZE):
                return position
            number = queue.after_fillers(number + 1)
        return self._log.readable_end
