"""Check of the queues against the log, in both directions, in bulk.

From the log: every queued record has its unit, with its offset, size and tags code. From the
queues: every unit belongs to such a record. Confirmed units are stored as ranges of numbers,
usually one per queue, so the second half only reads the rest.

If a unit points to a record whose header names another queue or number, where its unit is missing,
then the record's header is reported (docs/formats/store-format.md, sections 3.1-3.9).
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..format.record_layout import (
    FILLER_SIZE,
    TRANSACTION_MASK,
    UNQUEUED,
)
from ..format.topic_names import is_lmq, is_queue_name
from ..scan.dtypes import QUEUE_UNIT
from ..scan.lmq import lmq_rows
from ..scan.properties import TagsCodes, by_queue
from ..scan.raw import Integers
from ..scan.walk import Columns
from .layout import Layout, QueueFolder
from .log_walk import Batch, locate, segment_of
from .problems import FINDINGS_MAX, NOTE, PROBLEM, Findings, span
from .queue_view import OpenFiles, Units, read_units, unit_ranges, written_units
from .verify_ext import ExtCheck
from .verify_log import LogVerdict

#: Mismatches kept per queue, to be compared with unconfirmed units.
_MISMATCHES_MAX: Final = 10_000
_INT_MIN: Final = -(1 << 31)
_CODE_AT: Final = 12  # position of the tags code in a unit
_NUMBER_END: Final = 1 << 58
_SPAN_UNITS: Final = 64  # maximum number of units read to compare one


@dataclass(slots=True)
class _Queue:
    """The state of one queue during the walk."""

    topic: str
    queue_id: int
    folder: QueueFolder | None
    confirmed: list[list[int]] = field(default_factory=list)  # [first, end) of unit numbers
    absent: list[list[int]] = field(default_factory=list)  # records without a unit

    @staticmethod
    def note(ranges: list[list[int]], numbers: Integers) -> None:
        """Add numbers, in log order, to the ranges."""
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        for part in np.split(numbers, breaks):
            first, end = int(part[0]), int(part[-1]) + 1
            if ranges and ranges[-1][1] == first:
                ranges[-1][1] = end
            else:
                ranges.append([first, end])


@dataclass(frozen=True, slots=True)
class _UnmatchedUnit:
    """A unit without a matching record."""

    folder: QueueFolder
    number: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class _Mismatch:
    """A record whose unit does not match."""

    topic: str
    queue_id: int
    number: int
    offset: int
    size: int
    present: bool  #: the unit is not empty


class QueueCheck:
    """Takes batches in log order, then `finish`."""

    def __init__(self, layout: Layout, findings: Findings) -> None:
        self._layout = layout
        self._findings = findings
        self._folders = {(q.topic, q.queue_id): q for q in layout.of_kind("consumequeue")}
        self._batch_topics = {q.topic for q in layout.of_kind("batchconsumequeue")}
        self._light = any(is_lmq(name) for name, _ in self._folders)
        self._lmq_last: dict[str, int] = {}
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._opened = OpenFiles()
        self._codes = TagsCodes()
        self._claims: list[_Mismatch] = []
        self._ext = ExtCheck(layout, findings, self._opened)

    # -- from the log -------------------------------------------------------------------------

    def add_batch(self, batch: Batch) -> None:
        columns = batch.columns
        kinds = columns.sys_flag & TRANSACTION_MASK
        queued = ~np.isin(kinds, UNQUEUED)
        if not queued.all():
            columns = columns.take(queued)
        codes = self._codes.of(batch.raw, columns, batch.topics)
        for topic_id, queue_id, rows in by_queue(columns):
            topic = batch.topics.names[topic_id]
            if topic in self._batch_topics:
                continue
            queue = self._queue(topic, queue_id)
            self._compare(queue, columns.take(rows), codes[rows])
        if self._light:
            for row, name, number in lmq_rows(batch.raw, columns, batch.topics):
                if (name, 0) in self._folders:
                    one = columns.take(slice(row, row + 1))
                    one.queue_offset = np.array([number], np.int64)
                    self._compare(self._lmq(name, number), one, codes[row : row + 1])

    def _lmq(self, name: str, number: int) -> _Queue:
        """Return the queue's state, reset where the numbers restart: the queue was removed in
        between."""
        queue = self._queue(name, 0)
        if number <= self._lmq_last.get(name, -1):
            queue.confirmed.clear()
            queue.absent.clear()
            self._claims = [claim for claim in self._claims if claim.topic != name]
        self._lmq_last[name] = number
        return queue

    def _queue(self, topic: str, queue_id: int) -> _Queue:
        key = (topic, queue_id)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(topic, queue_id, self._folders.get(key))
        return queue

    def _compare(self, queue: _Queue, columns: Columns, codes: Integers) -> None:
        """Compare records of one queue with its units."""
        numbers, offsets, sizes = columns.queue_offset, columns.physical_offset, columns.size
        if queue.folder is None:
            queue.note(queue.absent, numbers)
            self._claim(queue, numbers, offsets, sizes, np.zeros(len(numbers), np.bool_))
            return
        units = self._units_of(queue.folder, numbers)
        here = (units["offset"] == offsets) & (units["size"] == sizes)
        if here.all():
            queue.note(queue.confirmed, numbers)
        else:
            if here.any():
                queue.note(queue.confirmed, numbers[here])
            there = units["size"] != 0
            self._claim(queue, numbers[~here], offsets[~here], sizes[~here], there[~here])
            absent = ~here & ~there
            if absent.any():
                queue.note(queue.absent, numbers[absent])
        other = np.flatnonzero(here & (units["code"] != codes))
        if len(other):
            self._ext.compare(
                queue.folder, units[other], codes[other], columns.store_timestamp[other]
            )
            plain = other[units["code"][other] >= _INT_MIN]
            for at in plain.tolist():
                self._report_code(queue.folder, int(numbers[at]), int(offsets[at]))

    def _units_of(self, folder: QueueFolder, numbers: Integers) -> Units:
        first, count = int(numbers[0]), len(numbers)
        last = int(numbers[-1])
        if last - first + 1 == count and (np.diff(numbers) == 1).all():
            return read_units(self._opened, folder, first, count)
        low, high = int(numbers.min()), int(numbers.max())
        if low >= 0 and high - low < _SPAN_UNITS * count:
            return read_units(self._opened, folder, low, high - low + 1)[numbers - low]
        one_by_one: list[Units] = [
            read_units(self._opened, folder, number, 1)
            if 0 <= number < _NUMBER_END
            else np.zeros(1, QUEUE_UNIT)
            for number in numbers.tolist()
        ]
        return np.concatenate(one_by_one)

    def _claim(
        self, queue: _Queue, numbers: Integers, offsets: Integers, sizes: Integers, there: Any
    ) -> None:
        for number, offset, size, present in zip(
            numbers.tolist(), offsets.tolist(), sizes.tolist(), there.tolist(), strict=True
        ):
            if len(self._claims) >= _MISMATCHES_MAX:
                return
            self._claims.append(
                _Mismatch(queue.topic, queue.queue_id, number, offset, size, present)
            )

    def _report_code(self, folder: QueueFolder, number: int, offset: int) -> None:
        what = f"Unit {number} and the record at offset {offset} have different tags."
        for path, begin, end in unit_ranges(folder, number, number + 1):
            name = self._layout.name(path)
            self._findings.add(name, begin + _CODE_AT, end, what, "queue_tags", record=offset)
        record = locate(self._layout, offset, "properties")
        if record is not None:
            self._findings.add(*record, what, "record_tags", record=offset)

    # -- from the queues ----------------------------------------------------------------------

    def finish(self, verdict: LogVerdict) -> None:
        """Match the mismatches of both sides, and report them."""
        unmatched = self._unmatched_units(verdict)
        at_offset: dict[int, list[_UnmatchedUnit]] = {}
        for unit in unmatched:
            at_offset.setdefault(unit.offset, []).append(unit)
        known = {(unit.folder, unit.number) for unit in unmatched}
        claimed: set[tuple[str, int, int]] = set()
        explained: set[tuple[QueueFolder, int]] = set()
        wrong: dict[QueueFolder, list[int]] = {}
        for claim in self._claims:
            key = (claim.topic, claim.queue_id)
            owner = self._folders.get(key)
            witnesses = [w for w in at_offset.get(claim.offset, ()) if w.size == claim.size]
            if owner is not None and (owner, claim.number) in known:
                # The unit is taken by one without a matching record.
                wrong.setdefault(owner, []).append(claim.number)
            elif len(witnesses) == 1:
                explained.add((witnesses[0].folder, witnesses[0].number))
                claimed.add((*key, claim.number))
                self._report_header(claim, witnesses[0])
            elif claim.present and owner is not None:
                wrong.setdefault(owner, []).append(claim.number)
        for queue_folder, numbers in wrong.items():
            explained |= {(queue_folder, number) for number in numbers}
            for first, end in runs(numbers):
                what = f"Wrong content of {span('unit', first, end)}: the log has other records."
                self._report_units(queue_folder, first, end, what, "queue_unit")
        left = [unit for unit in unmatched if (unit.folder, unit.number) not in explained]
        self._report_unmatched(left, verdict)
        self._report_lost(verdict)
        for queue in self._queues.values():
            self._report_absent(queue, claimed)

    def _unmatched_units(self, verdict: LogVerdict) -> list[_UnmatchedUnit]:
        """Return unconfirmed units of all queues, as many as can be reported."""
        unmatched: list[_UnmatchedUnit] = []
        for key, folder in self._folders.items():
            left = self._left_over(folder, self._queue(*key), verdict)
            unmatched += itertools.islice(left, FINDINGS_MAX - len(unmatched))
        return unmatched

    def _left_over(
        self, folder: QueueFolder, queue: _Queue, verdict: LogVerdict
    ) -> Iterator[_UnmatchedUnit]:
        """Yield unconfirmed units that should have a record."""
        start = self._layout.log.start
        for first, end in _gaps(queue.confirmed):
            for number, units in written_units(self._opened, folder, first, end):
                offsets, sizes = units["offset"], units["size"]
                left = ((sizes != 0) | (offsets != 0) | (units["code"] != 0)) & (
                    sizes != FILLER_SIZE
                )
                left &= (offsets >= start) | (offsets < 0) | (sizes <= 0)
                for lost in verdict.lost:
                    left &= (offsets < lost.begin) | (offsets >= lost.end)
                for at in np.flatnonzero(left).tolist():
                    yield _UnmatchedUnit(folder, number + at, int(offsets[at]), int(sizes[at]))

    def _report_header(self, claim: _Mismatch, witness: _UnmatchedUnit) -> None:
        folder = witness.folder
        what = f"The header of the record at offset {claim.offset} names "
        what += f"{claim.topic}/{claim.queue_id}/{claim.number}, but the unit "
        what += f"{folder.topic}/{folder.queue_id}/{witness.number} points to it."
        part = "queue_offset"
        if claim.queue_id != folder.queue_id:
            part = "queue_id"
        if claim.topic != folder.topic:
            part = "topic"
        record = locate(self._layout, claim.offset, part)
        if record is not None:
            self._findings.add(*record, what, "record_header")

    def _report_units(
        self,
        folder: QueueFolder,
        first: int,
        end: int,
        what: str,
        kind: str,
        *,
        severity: str = PROBLEM,
    ) -> None:
        for path, begin, stop in unit_ranges(folder, first, end):
            self._findings.add(self._layout.name(path), begin, stop, what, kind, severity=severity)

    def _report_unmatched(self, unmatched: list[_UnmatchedUnit], verdict: LogVerdict) -> None:
        """Report units without a record; the next start drops those behind the log's end."""
        killed = not self._layout.clean or self._layout.in_use
        groups: dict[tuple[QueueFolder, bool], list[int]] = {}
        for unit in unmatched:
            behind = unit.offset >= verdict.end
            groups.setdefault((unit.folder, behind), []).append(unit.number)
        for (folder, behind), numbers in groups.items():
            for first, end in runs(numbers):
                what = f"No record for {span('unit', first, end)}"
                what += ", which would lie behind the log's end." if behind else "."
                kind = "queue_ahead" if behind else "queue_orphan"
                severity = NOTE if behind and killed else PROBLEM
                self._report_units(folder, first, end, what, kind, severity=severity)

    def _report_lost(self, verdict: LogVerdict) -> None:
        """Name the messages whose records lie in damaged ranges of the log."""
        if not verdict.lost:
            return
        for (topic, queue_id), folder in self._folders.items():
            for first, units in written_units(self._opened, folder):
                offsets = units["offset"]
                gone = np.zeros(len(units), np.bool_)
                for lost in verdict.lost:
                    gone |= (offsets >= lost.begin) & (offsets < lost.end)
                for at in np.flatnonzero(gone & (units["size"] > 0)).tolist():
                    offset = int(offsets[at])
                    file = segment_of(self._layout, offset)
                    where = self._layout.name(file.path) if file else "a missing segment"
                    what = f"Message {first + at} of queue {topic}/{queue_id} is lost: its record "
                    what += f"at offset {offset} in {where} is damaged."
                    self._report_units(
                        folder, first + at, first + at + 1, what, "queue_lost", severity=NOTE
                    )

    def _report_absent(self, queue: _Queue, claimed: set[tuple[str, int, int]]) -> None:
        """Report records without a unit: the queue is behind, or has a hole."""
        killed = not self._layout.clean or self._layout.in_use
        name = f"{queue.topic}/{queue.queue_id}"
        ranges = list(_without(queue, claimed))
        if not ranges:
            return
        if queue.folder is None:
            count = sum(end - first for first, end in ranges)
            if not is_queue_name(queue.topic, queue.queue_id):
                what = f"{count} records have the topic {queue.topic[:80]!r} and the queue id "
                what += f"{queue.queue_id}, which cannot name a queue."
                self._findings.add("commitlog", 0, 0, what, "record_topic")
                return
            what = f"The queue has no files; {count} records of the log belong to it."
            folder = str(self._layout.root / "consumequeue" / queue.topic / str(queue.queue_id))
            path = self._layout.name(Path(folder))
            self._findings.add(
                path, 0, 0, what, "queue_behind", severity=NOTE if killed else PROBLEM
            )
            return
        written_end = self._written_end(queue.folder)
        for first, end in ranges:
            behind = first >= written_end
            what = f"No unit for {span('record', first, end)} of queue {name}."
            kind = "queue_behind" if behind else "queue_unit"
            severity = NOTE if behind and killed else PROBLEM
            self._report_units(queue.folder, first, end, what, kind, severity=severity)

    def end(self, topic: str, queue_id: int) -> int:
        """Return the number behind the last record of a queue, or its last unit; 0 without a
        queue."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0
        known = [end for _, end in (*queue.confirmed, *queue.absent)]
        if known:
            return max(known)
        return self._written_end(queue.folder) if queue.folder is not None else 0

    def ends(self) -> dict[tuple[str, int], int]:
        """Return `end` of all queues."""
        ends = {key: self.end(*key) for key in self._queues}
        self._opened.close()
        return ends

    def _written_end(self, folder: QueueFolder) -> int:
        """Return the number behind the last non-zero unit."""
        end = 0
        for number, units in written_units(self._opened, folder):
            used = np.flatnonzero(units["size"] != 0)
            if len(used):
                end = number + int(used[-1]) + 1
        return end


def _gaps(ranges: list[list[int]]) -> Iterator[tuple[int, int]]:
    """Yield the gaps between, before and behind ranges of numbers."""
    at = 0
    for first, end in sorted(ranges):
        if first > at:
            yield at, first
        at = max(at, end)
    yield at, _NUMBER_END


def runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield [first, end) of each run of consecutive numbers."""
    ordered = sorted(set(numbers))
    first = 0
    for at, number in enumerate(ordered):
        if at + 1 == len(ordered) or ordered[at + 1] != number + 1:
            yield ordered[first], number + 1
            first = at + 1


def _without(queue: _Queue, claimed: set[tuple[str, int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of absent units, except single ones that are explained already."""
    for first, end in queue.absent:
        if end - first == 1 and (queue.topic, queue.queue_id, first) in claimed:
            continue
        yield first, end
