"""Recovery: judges the files of a stopped or killed store, then repairs them.

1. Choose the first segment. After a clean stop: the newest one that begins at or before the end of
   the queues. Else: the newest one that the checkpoint confirms. At most `commitLogRecoverMaxNum`
   segments back.
2. Walk its records to the first position without a whole record (`walk.py`).
3. Judge that position by the table in `rules.py`.
4. Cut the log there and zero what follows (lost pages are copied first); drop queue units that
   point behind it.
5. After an unclean stop drop all units from the segment of step 1 on and rebuild them from the log,
   up to the previous end of the queues. Readers then see what they saw before, and no more: the
   store's owner continues with `dispatch`.

The log is authoritative: it is never cut in front of a record that was promised to be durable.
Index and timers follow the log and the queues; they are not touched here.
(docs/formats/store-format.md, sections 6.2-6.5; the differences are in README.md.)
"""

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..config.store_config import StoreConfig
from ..digests import StoreDigests, sum_of_ends
from ..dispatch import Dispatcher, parse_arrivals
from ..format.checkpoint import Checkpoint
from ..format.disk import Disk
from ..format.errors import CorruptLogError, RecordFormatError, StoreError
from ..format.record_layout import (
    BODY_LENGTH,
    FILLER_SIZE,
    FIXED_V4,
    HOSTS_V6,
    MAGIC,
    PHYSICAL_OFFSET,
    QUEUE_ID,
    QUEUE_OFFSET,
    RECORD_BYTES_MIN,
    SIZE,
    SYS_FLAG,
)
from ..format.results import RecoveryReport
from ..holdings import HoldingsFile
from ..log.commit_log import CommitLog
from ..log.segment import Segment
from ..queue.consume_queue import ConsumeQueue
from ..queue.numbering import QueueGapError
from ..queue.table import QueueTable
from ..scan.single import inspect, is_record
from .queue_begins import lacking_begins
from .rules import (
    Checks,
    Finding,
    Verdict,
    Walked,
    bytes_missing,
    flushed_beyond,
    judge,
)

if TYPE_CHECKING:
    from ..queue.building import KeptUnits

__all__ = ["Recovery", "unit_matches"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Repairs:
    """Counts of what a run changed, for the report."""

    torn_bytes: int = 0
    lost_bytes: int = 0
    lost_records: int = 0
    lost_kept_at: str = ""
    segments_removed: int = 0
    units_from: int = -1
    units_rebuilt: int = 0


class Recovery:
    """One run over a loaded log and loaded queues."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        dispatcher: Dispatcher,
        checkpoint: Checkpoint,
        *,
        config: StoreConfig,
        disk: Disk,
        clean: bool,
        digests: StoreDigests,
        holdings: HoldingsFile,
    ) -> None:
        self._log = log
        self._queues = queues
        self._dispatcher = dispatcher
        self._checkpoint = checkpoint
        self._config = config
        self._root = str(config.root)
        self._disk = disk
        self._clean = clean
        self._digests = digests
        self._holdings = holdings
        body = config.check_crc_on_recover
        self._checks = Checks(body, sealed=body, record=config.force_verify_prop_crc)
        self._done = _Repairs()

    def check_present(self) -> None:
        """Raise AbsentPartError if a part is missing that the store had, with nothing changed."""
        if self._checkpoint.is_foreign:
            self._holdings.ignore()
        evidence = ""
        if self._checkpoint.physic_msg_timestamp_ms or self._checkpoint.flushed_end > 0:
            evidence = "the checkpoint shows that records were flushed"
        elif self._lost_end():
            evidence = f"the consume queues hold records up to offset {self._lost_end()}"
        self._holdings.check_log(self._log, evidence)
        self._holdings.check_parts(self._log)

    def _lost_end(self) -> int:
        """Return where a log that is missing ended at least."""
        queues = self._queues.queues.values()
        ends = [self._checkpoint.flushed_end, self._holdings.log_end]
        return max([0, *ends, *(queue.known_end() for queue in queues)])

    def run(self, unfinished: list[str]) -> RecoveryReport:
        """Judge, then repair. Raises CorruptLogError with nothing changed, ConfigFileError or
        OSError."""
        log = self._log
        if not log.segments and (end := self._lost_end()):
            # The loss was accepted: all of it counts as deleted, and no offset is used twice.
            for path in log.writable_directories:
                os.makedirs(path, exist_ok=True)
            log.add_segment(end + -end % log.segment_bytes)
        known_end, complete_end = self._queue_ends()
        if not log.segments:
            self._digests.load()
            self._queues.remove_unfinished(unfinished)
            self._queues.truncate(0, 0)
            return self._report(Walked(0, 0), Verdict.END, unfinished)
        from ..queue.building import KeptUnits
        from .walk import walk_segments

        segments = log.segments[self._first_segment(known_end) :]
        begin = self._first_record(segments[0])
        kept = None if self._clean else KeptUnits(begin)
        found = walk_segments(segments, begin, self._checks, torn=not self._clean, kept=kept)
        verdict = self._judge(found, known_end)
        self._digests.load()  # this renames an unreadable file; before, nothing was changed
        self._count_cut(found, verdict)
        self._queues.remove_unfinished(unfinished)
        self._done.segments_removed = log.cut(found.end)
        if found.records:
            log.last_store_timestamp_ms = found.last_time_ms
            self._checkpoint.confirm_physical_offset = found.last_start
        self._restore_queues(found, known_end, complete_end, kept)
        return self._report(found, verdict, unfinished)

    def _report(self, found: Walked, verdict: Verdict, unfinished: list[str]) -> RecoveryReport:
        done = self._done
        report = RecoveryReport(
            clean=self._clean,
            log_start=self._log.start,
            log_end=self._log.end,
            scanned_from=found.begin,
            records_scanned=found.records,
            torn_bytes=done.torn_bytes,
            dispatched_offset=self._dispatcher.offset,
            queues=len(self._queues.queues),
            segments_removed=done.segments_removed,
            segments=len(self._log.segments),
            verdict=verdict.value,
            reason=found.reason if verdict in (Verdict.TORN_TAIL, Verdict.LOST_PAGES) else "",
            lost_bytes=done.lost_bytes,
            lost_records=done.lost_records,
            lost_kept_at=done.lost_kept_at,
            units_from=done.units_from,
            units_rebuilt=done.units_rebuilt,
            files_unfinished=len(unfinished),
        )
        logger.info(
            "store.recovered clean=%s log_start=%d log_end=%d records_scanned=%d torn_bytes=%d",
            report.clean,
            report.log_start,
            report.log_end,
            report.records_scanned,
            report.torn_bytes,
        )
        if report.torn_bytes:
            logger.warning("log.cut offset=%d bytes=%d", report.log_end, report.torn_bytes)
        return report

    # -- judging ------------------------------------------------------------------------------

    def _queue_ends(self) -> tuple[int, int]:
        """Return the end of the last record with a queue unit, and the position from which on a
        queue may lack units because its own were not confirmed; log start and end without
        queues."""
        known = self._log.start
        complete = self._log.end
        for queue in self._queues.queues.values():
            end = max(self._log.start, queue.known_end())
            known = max(known, end)
            if queue.unconfirmed:
                complete = min(complete, end)
        return known, complete

    def _first_segment(self, known_end: int) -> int:
        """Return the index of the first segment to walk (docs/formats/store-format.md, 6.3 and
        6.4)."""
        checkpoint = self._checkpoint
        oldest = max(len(self._log.segments) - self._config.commit_log_recover_max_num, 0)
        for index in range(len(self._log.segments) - 1, oldest, -1):
            segment = self._log.segments[index]
            if not self._first_store_timestamp(segment):
                continue
            if self._clean:
                vouched = segment.start <= known_end
            elif checkpoint.queues_durable_to:
                vouched = segment.start <= checkpoint.queues_durable_to
            else:
                vouched = self._is_vouched_by_time(index)
            if vouched:
                return index
        return oldest

    def _is_vouched_by_time(self, index: int) -> bool:
        """Return whether a segment begins no later than the checkpoint's time, and no segment up to
        it begins earlier than the one before: there the clock was set back, and the time says
        nothing."""
        segments = self._log.segments[: index + 1]
        times = [self._first_store_timestamp(segment) for segment in segments]
        return times[-1] <= self._checkpoint.logics_msg_timestamp_ms and times == sorted(times)

    def _first_record(self, segment: Segment) -> int:
        """Return the start in the first segment: its begin, or the record of the last flushed queue
        unit (`enableAcceleratedRecovery`), before which log and queues are durable."""
        offset = self._checkpoint.queues_durable_to
        if (
            self._config.enable_accelerated_recovery
            and not self._clean
            and segment.start < offset < segment.end
        ):
            with segment.hold() as data:
                if is_record(data, offset - segment.start, segment.start, self._checks.body):
                    return offset
        return segment.start

    def _first_store_timestamp(self, segment: Segment) -> int:
        with segment.hold() as data:
            try:
                return inspect(data, 0, segment.start, self._checks.body).store_timestamp_ms
            except RecordFormatError:
                return 0

    def _judge(self, found: Walked, known_end: int) -> Verdict:
        """Return the verdict; raise CorruptLogError where nothing may be cut."""
        log = self._log
        from .walk import record_behind

        behind, behind_ms = record_behind(log.segments, found.behind)
        # A blank that is taken back was flushed with the end of its segment.
        position = max(found.end, found.blank_end)
        durable = flushed_beyond(self._checkpoint, position, behind_ms)
        durable = durable or self._holdings.log_end > position
        if self._clean:
            durable = durable or behind >= 0 or found.end < known_end
        missing = False
        if behind >= 0 and not durable:
            segment = log.segment_at(min(found.end, log.end - 1))
            with segment.hold() as data:
                following = min(behind - segment.start, segment.size)
                position = found.end - segment.start
                missing = bytes_missing(data, position, segment.start, following)
        verdict = judge(Finding(found.kind, behind >= 0, durable, missing))
        if verdict is Verdict.CORRUPT:
            if behind >= 0:
                reason = f"{found.reason} A valid record follows at offset {behind}."
            elif found.end < known_end:
                reason = f"{found.reason} The consume queues hold records up to offset {known_end}."
            else:
                end = max(self._checkpoint.flushed_end, self._holdings.log_end)
                reason = f"{found.reason} The log had been flushed up to offset {end}."
            path = log.segment_at(min(found.end, log.end - 1)).path
            raise CorruptLogError(path, found.end, reason)
        return verdict

    def _count_cut(self, found: Walked, verdict: Verdict) -> None:
        """Count what will be cut, and copy records among it. Raises OSError."""
        log, done = self._log, self._done
        cut = 0
        for segment in log.segments_between(found.end, log.end):
            position = max(found.end - segment.start, 0)
            cut += segment.used_end(position) - position
        if verdict is not Verdict.LOST_PAGES:
            done.torn_bytes = cut
            return
        from .salvage import count_records, keep

        done.lost_bytes = cut
        done.lost_records = count_records(log.segments, found.behind)
        done.lost_kept_at = keep(self._root, log.segments, found.end, self._disk)
        logger.warning(
            "log.lost_pages offset=%d bytes=%d records=%d kept=%s",
            found.end,
            cut,
            done.lost_records,
            os.path.relpath(done.lost_kept_at, self._root),
        )

    # -- repairing ----------------------------------------------------------------------------

    def _restore_queues(
        self, found: Walked, known_end: int, complete_end: int, kept: "KeptUnits | None"
    ) -> None:
        """Bring all queues to the end of the furthest one."""
        log, dispatcher = self._log, self._dispatcher
        known_end = min(known_end, log.end)
        if self._clean:
            begin = min(known_end, complete_end)
            ends, is_own = sum_of_ends(self._queues.ends()), self._holdings.log_end > 0
            if not self._digests.queues_match(log.end, ends, is_own=is_own):
                logger.warning(
                    "queues.ends_differ log_end=%d: queues do not end where they did at the last "
                    "stop, or that is unknown; missing units are rebuilt from the log.",
                    log.end,
                )
                begin = log.start
            dispatcher.offset = begin
            self._drop_units_behind_log()
            self._build(begin, known_end, None)
        else:
            for segment in log.segments_between(found.begin, log.end):
                segment.flush(log.end - segment.start)
            self._rebuild_queues(found.begin, known_end, complete_end, kept)
        self._queues.write_out()
        for queue in self._queues.queues.values():
            queue.correct_min_offset(log.start)
        lacking = lacking_begins(log, self._queues)
        for queue in lacking:
            logger.warning(
                "queues.begin_missing topic=%s queue=%d offset=%d: a file before it is missing; "
                "the queue is rebuilt from the log.",
                queue.topic,
                queue.queue_id,
                queue.min_offset,
            )
            self._queues.empty(queue)
        absent = self._digests.absent_queues(self._queues.queues)
        if lacking or absent:
            self._build(log.start, dispatcher.offset, None)
            self._queues.write_out()
        for topic, queue_id in absent:
            # Not restored: retention had deleted the records of the queue, and then the queue.
            if (topic, queue_id) in self._queues.queues:
                logger.warning(
                    "queues.missing topic=%s queue=%d: the files of the queue are missing; it was "
                    "rebuilt from the log.",
                    topic,
                    queue_id,
                )
        self._reach_noted_ends()

    def _reach_noted_ends(self) -> None:
        """Continue queues at their noted ends whose records retention has deleted and whose files
        were lost."""
        log, dispatcher, queues = self._log, self._dispatcher, self._queues
        missed = self._digests.ends_missed(queues.ends())
        position = dispatcher.offset
        while missed and position < log.end:  # records that will be dispatched bring their units
            arrivals, end = dispatcher.parse(position, log.end, 10_000)
            for arrival in arrivals:
                missed.pop((arrival.topic, arrival.queue_id), None)
            if end == position:
                break
            position = end
        for (topic, queue_id), end in missed.items():
            if topic in queues.batch_topics:
                continue
            logger.warning(
                "queues.end_missing topic=%s queue=%d end=%d: files of the queue are missing, and "
                "its records are deleted; it goes on at its end.",
                topic,
                queue_id,
                end,
            )
            queues.reach(topic, queue_id, end)
        if missed:
            queues.write_out()

    def _rebuild_queues(
        self, begin: int, known_end: int, complete_end: int, kept: "KeptUnits | None"
    ) -> None:
        """Rebuild from the segment that the checkpoint confirms, or from the log start if units are
        missing before it (files were removed, which the checkpoint cannot show)."""
        queues = self._queues
        if known_end >= begin > self._log.start:
            queues.truncate(begin, self._log.start)
            queues.strict = True
            try:
                self._build(min(begin, complete_end), known_end, kept)
                return
            except QueueGapError as gap:
                logger.warning("queues.incomplete queue=%s", gap)
            finally:
                queues.strict = False
        queues.write_out()
        queues.truncate(0, self._log.start)
        self._build(self._log.start, known_end, kept)

    def _build(self, begin: int, end: int, kept: "KeptUnits | None") -> None:
        """Build the units of [begin, end); the dispatcher continues behind them."""
        if begin < end:
            from ..queue.building import build

            built = build(self._log, self._queues, begin, end, kept)
            if end not in (built.end, self._log.end):
                raise StoreError(f"No record ends at {end}, where a queue unit ends.")
            self._dispatcher.last = built.last
            self._done.units_from = begin
            self._done.units_rebuilt = built.units
        self._dispatcher.offset = max(begin, end)

    def _drop_units_behind_log(self) -> None:
        for queue in self._queues.queues.values():
            if queue.known_end() > self._log.end or queue.unconfirmed:
                self._queues.truncate_queue(queue, self._log.end)


def unit_matches(log: CommitLog, queue: ConsumeQueue, number: int, offset: int, size: int) -> bool:
    """Return whether the record that a unit points to is whole and matches the unit.

    Fillers match; so do units of deleted records, which cannot be compared.
    """
    if size == FILLER_SIZE or offset < log.start:
        return True
    if offset + size > log.end:
        return False
    segment = log.segment_at(offset)
    position = offset - segment.start
    if size >= RECORD_BYTES_MIN and _is_plain(segment, offset, queue, number, size):
        return True
    try:
        with segment.hold() as data:
            found = inspect(data, position, segment.start, check_crc=False)
        if found.blank:
            return False
        arrivals, _ = parse_arrivals(segment, position)
    except (RecordFormatError, UnicodeDecodeError):
        return False
    here = (size, number, queue.queue_id, queue.topic)
    return any((a.size, a.queue_offset, a.queue_id, a.topic) == here for a in arrivals)


def _is_plain(segment: Segment, offset: int, queue: ConsumeQueue, number: int, size: int) -> bool:
    """Check the common record (IPv4 hosts) with one comparison: a start with 80,000 queues checks
    each of them. False leaves the decision to the full check."""
    data = segment.map
    position = offset - segment.start
    values = FIXED_V4.unpack_from(data, position)
    topic_at = position + FIXED_V4.size + values[BODY_LENGTH]
    topic_end = topic_at + len(queue.topic_field)
    end = position + size
    return (
        (values[SIZE], values[MAGIC]) == (size, queue.topic_magic)
        and (values[QUEUE_ID], values[QUEUE_OFFSET], values[PHYSICAL_OFFSET])
        == (queue.queue_id, number, offset)
        and not values[SYS_FLAG] & HOSTS_V6
        and values[BODY_LENGTH] >= 0
        and topic_end + 2 <= end
        and data[topic_at:topic_end] == queue.topic_field
        and topic_end + 2 + int.from_bytes(data[topic_end : topic_end + 2], "big") == end
    )
