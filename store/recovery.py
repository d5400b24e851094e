"""Recovery: what the files of a stopped or killed store are worth, decided before they are changed.

1. Choose the segment to begin with. After a clean stop: the newest one that begins at or before the
   end of what the queues know. Else: the newest one that the checkpoint vouches for.
2. Walk its records to the first place where none stands (`walk`).
3. Judge that place by the table below.
4. Cut the log there and zero what follows; drop queue units that point behind it.
5. After an unclean stop drop all units from the segment of step 1 on, and write them again from the
   log, up to where the queues had been. Readers then see what they saw before, and no more: the owner
   of the store decides what else may be seen, and calls `dispatch`.

| at the place      | valid record behind it | queues know a record there | verdict          |
|-------------------|------------------------|----------------------------|------------------|
| nothing           | no                     | no                         | the log's end    |
| damaged           | no                     | no                         | torn tail: cut   |
| nothing / damaged | yes                    | -                          | corrupt: refuse  |
| nothing / damaged | no                     | yes                        | corrupt: refuse  |

The third column counts after a clean stop only: then everything had been written and flushed. A torn
tail is what a killed process leaves of its last append; records are written one by one in log order,
so nothing valid can follow it. The log is the truth: it is never cut in front of a valid record.
(store format, sections 6.2-6.5; the differences are in README.md.)
"""

import enum
import logging
from dataclasses import dataclass
from typing import Final

from .checkpoint import Checkpoint
from .commit_log import CommitLog
from .consume_queue import FILLER_SIZE, ConsumeQueue
from .dispatch import Dispatcher, parse_arrival
from .errors import CorruptLogError, RecordFormatError, StoreError
from .queue_table import QueueGapError, QueueTable
from .results import RecoveryReport
from .scan import find_record, inspect, is_empty, step_over
from .segment import Segment

logger = logging.getLogger(__name__)
#: Topics whose units point to records of other topics (store format, section 3.9).
_LIGHT_QUEUE_PREFIX: Final = "%LMQ%"
_DISPATCH_STEP: Final = 10_000


class Place(enum.Enum):
    """What stands where the walk stopped."""

    NOTHING = "nothing"
    DAMAGED = "damaged"


class Verdict(enum.Enum):
    END = "end of the log"
    TORN_TAIL = "torn tail"
    CORRUPT = "corrupt"


#: (place, a valid record follows, the queues know a record there) -> verdict
VERDICTS: Final[dict[tuple[Place, bool, bool], Verdict]] = {
    (Place.NOTHING, False, False): Verdict.END,
    (Place.DAMAGED, False, False): Verdict.TORN_TAIL,
    (Place.NOTHING, False, True): Verdict.CORRUPT,
    (Place.DAMAGED, False, True): Verdict.CORRUPT,
    (Place.NOTHING, True, False): Verdict.CORRUPT,
    (Place.DAMAGED, True, False): Verdict.CORRUPT,
    (Place.NOTHING, True, True): Verdict.CORRUPT,
    (Place.DAMAGED, True, True): Verdict.CORRUPT,
}


@dataclass(slots=True)
class Walk:
    """The whole records from `begin` on, and why they end at `end`."""

    begin: int
    end: int
    records: int = 0
    last_start: int = 0
    place: Place = Place.NOTHING
    reason: str = "nothing is written here."
    behind: int = 0  #: where to look for records that follow
    zero_ended: bool = False  #: the last record's properties end in zero, and nothing follows it
    before_last: int = 0  #: start of the record before the last

    def note(self, last_start: int, records: int) -> None:
        """Some whole records, the last of which begins at `last_start`."""
        self.before_last = self.last_start
        self.last_start = last_start
        self.records += records


def walk(segments: list[Segment], check_crc: bool, torn: bool) -> Walk:
    """Walk the records of `segments`, which are in a row. `torn` allows that the last one is."""
    result = Walk(segments[0].start, segments[0].start)
    for segment in segments:
        result.end = segment.start
        if not _walk_segment(segment, result, check_crc) or segment is segments[-1]:
            break
    if torn and result.place is Place.NOTHING and result.zero_ended:
        # Properties have no checksum. The last record of a killed process may lack their end,
        # which a writer never leaves as zero.
        result.place = Place.DAMAGED
        result.reason = "the properties of the last record end in zeros."
        result.behind = result.end
        result.end = result.last_start
        result.records -= 1
        result.last_start = result.before_last
    result.behind = max(result.behind, result.end)
    return result


def _walk_segment(segment: Segment, result: Walk, check_crc: bool) -> bool:
    """Whether the segment ends with its blank, so that the walk goes on in the next one."""
    base = segment.start
    position = 0
    with segment.hold() as data:
        try:
            while True:
                steps = step_over(data, position, base, check_crc)
                position = steps.position
                if steps.records > 1:
                    result.last_start = base + steps.before_last
                if steps.records:
                    result.note(base + steps.last, steps.records)
                found = inspect(data, position, base, check_crc)
                if found.blank:
                    result.end = base + position
                    return True
                result.note(base + position, 1)
                position += found.size
        except RecordFormatError as error:
            if not is_empty(data, position):
                result.place = Place.DAMAGED
                result.reason = str(error)
            result.end = base + position
            if position > 0:
                last = inspect(data, result.last_start - base, base, check_crc=False)
                result.zero_ended = last.properties_bytes > 0 and not data[position - 1]
    return False


def record_behind(segments: list[Segment], offset: int) -> int:
    """Offset of the first valid record that begins behind `offset`, or -1."""
    for segment in segments:
        if segment.end <= offset:
            continue
        begin = max(offset - segment.start, 0)
        with segment.hold() as data:
            position = find_record(data, begin, segment.used_end(begin), segment.start)
        if position >= 0:
            return segment.start + position
    return -1


def unit_matches(log: CommitLog, queue: ConsumeQueue, number: int, offset: int, size: int) -> bool:
    """Whether the record that a unit points to is whole and says the same.

    Fillers match; so do units of deleted records and of light queues, which cannot be compared.
    """
    if size == FILLER_SIZE or offset < log.start or queue.topic.startswith(_LIGHT_QUEUE_PREFIX):
        return True
    if offset + size > log.end:
        return False
    segment = log.segment_at(offset)
    position = offset - segment.start
    try:
        with segment.hold() as data:
            found = inspect(data, position, segment.start, check_crc=False)
        if found.blank:
            return False
        arrival, _ = parse_arrival(segment, position)
    except (RecordFormatError, UnicodeDecodeError):
        return False
    return (
        arrival.size == size
        and arrival.queue_offset == number
        and arrival.queue_id == queue.queue_id
        and arrival.topic == queue.topic
    )


class Recovery:
    """One run over a loaded log and loaded queues."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        dispatcher: Dispatcher,
        checkpoint: Checkpoint,
        *,
        clean: bool,
        check_crc: bool,
    ) -> None:
        self._log = log
        self._queues = queues
        self._dispatcher = dispatcher
        self._checkpoint = checkpoint
        self._clean = clean
        self._check_crc = check_crc

    def run(self, unfinished: list[str]) -> RecoveryReport:
        """Judge, then repair. Raises CorruptLogError with nothing changed, or OSError."""
        log = self._log
        known_end, complete_end = self._queue_ends()
        if not log.segments:
            return self._recover_empty(unfinished)
        begin = self._first_segment(known_end)
        found = walk(log.segments[begin:], self._check_crc, torn=not self._clean)
        self._judge(found, known_end)
        torn = self._torn_bytes(found.end)
        self._queues.remove_unfinished(unfinished)
        removed = log.cut(found.end)
        if found.records:
            log.last_store_timestamp_ms = log.store_timestamp(found.last_start)
            self._checkpoint.confirm_physical_offset = found.last_start
        self._restore_queues(found, known_end, complete_end)
        return RecoveryReport(
            clean=self._clean,
            log_start=log.start,
            log_end=log.end,
            scanned_from=found.begin,
            records_scanned=found.records,
            torn_bytes=torn,
            dispatched_offset=self._dispatcher.offset,
            queues=len(self._queues.queues),
            segments_removed=removed,
        )

    def _recover_empty(self, unfinished: list[str]) -> RecoveryReport:
        """No log: what queues there are point to nothing."""
        self._queues.remove_unfinished(unfinished)
        self._queues.truncate(0, 0)
        return RecoveryReport(self._clean, 0, 0, 0, 0, 0, 0, len(self._queues.queues), 0)

    # -- judging ------------------------------------------------------------------------------

    def _queue_ends(self) -> tuple[int, int]:
        """End of the last record that any queue knows, and the place from which on a queue may
        lack units because its own were not believed; log start and end if there is nothing."""
        known = self._log.start
        complete = self._log.end
        for queue in self._queues.queues.values():
            end = self._log.start
            if queue.max_offset > queue.min_offset:
                offset, size, _ = queue.unit(queue.max_offset - 1)
                end = offset + size if size != FILLER_SIZE else end
            known = max(known, end)
            if queue.disbelieved:
                complete = min(complete, max(end, self._log.start))
        return known, complete

    def _first_segment(self, known_end: int) -> int:
        """Index of the segment to begin with (store format, sections 6.3 step 1 and 6.4)."""
        checkpoint = self._checkpoint
        for index in range(len(self._log.segments) - 1, 0, -1):
            segment = self._log.segments[index]
            store_timestamp_ms = self._first_store_timestamp(segment)
            if not store_timestamp_ms:
                continue
            if self._clean:
                vouched = segment.start <= known_end
            elif checkpoint.logics_physical_offset:
                vouched = segment.start <= checkpoint.logics_physical_offset
            else:
                vouched = store_timestamp_ms <= checkpoint.logics_msg_timestamp_ms
            if vouched:
                return index
        return 0

    def _first_store_timestamp(self, segment: Segment) -> int:
        with segment.hold() as data:
            try:
                return inspect(data, 0, segment.start, self._check_crc).store_timestamp_ms
            except RecordFormatError:
                return 0

    def _judge(self, found: Walk, known_end: int) -> None:
        behind = record_behind(self._log.segments, found.behind)
        known = self._clean and found.end < known_end
        if VERDICTS[found.place, behind >= 0, known] is not Verdict.CORRUPT:
            return
        if behind >= 0:
            reason = f"{found.reason} A valid record follows at offset {behind}."
        else:
            reason = f"{found.reason} The consume queues know records up to offset {known_end}."
        path = self._log.segment_at(min(found.end, self._log.end - 1)).path
        raise CorruptLogError(path, found.end, reason)

    def _torn_bytes(self, end: int) -> int:
        torn = 0
        for segment in self._log.segments_between(end, self._log.end):
            position = max(end - segment.start, 0)
            torn += segment.used_end(position) - position
        return torn

    # -- repairing ----------------------------------------------------------------------------

    def _restore_queues(self, found: Walk, known_end: int, complete_end: int) -> None:
        """Bring all queues to the place where the furthest of them had been."""
        log, dispatcher = self._log, self._dispatcher
        known_end = min(known_end, log.end)
        if self._clean:
            dispatcher.offset = min(known_end, complete_end)
            self._drop_units_behind_log()
            self._dispatch(known_end)
        else:
            for segment in log.segments_between(found.begin, log.end):
                segment.flush(log.end - segment.start)
            self._rebuild_queues(found.begin, known_end, complete_end)
        self._queues.write_out()
        for queue in self._queues.queues.values():
            queue.correct_min_offset(log.start)

    def _rebuild_queues(self, begin: int, known_end: int, complete_end: int) -> None:
        """From the segment on that the checkpoint vouches for, or all over if units are missing
        before it (somebody removed files: the checkpoint does not know)."""
        dispatcher, queues = self._dispatcher, self._queues
        if known_end >= begin > self._log.start:
            queues.truncate(begin, self._log.start)
            dispatcher.offset = min(begin, complete_end)
            queues.strict = True
            try:
                self._dispatch(known_end)
                return
            except QueueGapError as gap:
                logger.warning("queues.incomplete queue=%s", gap)
            finally:
                queues.strict = False
        queues.write_out()
        queues.truncate(0, self._log.start)
        dispatcher.offset = self._log.start
        self._dispatch(known_end)

    def _dispatch(self, end: int) -> None:
        dispatcher = self._dispatcher
        while dispatcher.offset < end:
            before = dispatcher.offset
            dispatcher.dispatch(end, _DISPATCH_STEP)
            if dispatcher.offset == before:
                raise StoreError(f"The log ends at {before}, inside of what the queues know.")

    def _drop_units_behind_log(self) -> None:
        for queue in self._queues.queues.values():
            if queue.max_offset > queue.min_offset:
                offset, size, _ = queue.unit(queue.max_offset - 1)
                if (size != FILLER_SIZE and offset + size > self._log.end) or queue.disbelieved:
                    queue.truncate(self._log.end)
