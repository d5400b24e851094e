"""The walk of recovery: over whole records to the first position without one.

Built on the scanner. The units of all records are collected during the walk (`Units`), so that
rebuilding the queues does not read the log a second time, as long as they fit into memory.
"""

from collections.abc import Sequence

from ..log.segment import Segment
from ..queue.building import KeptUnits
from ..scan.walk import Columns, StopReason, find_record, walk
from .rules import Checks, StopKind, Walked


class _Last:
    """The last two records of a walk."""

    __slots__ = ("before", "before_time_ms", "start", "time_ms", "zero_ended")

    def __init__(self) -> None:
        self.start = self.before = self.time_ms = self.before_time_ms = 0
        self.zero_ended = False  # the properties of the last one end in zero

    def note(self, columns: Columns, data: memoryview) -> None:
        self.before, self.before_time_ms = self.start, self.time_ms
        if len(columns) > 1:
            self.before = int(columns.physical_offset[-2])
            self.before_time_ms = int(columns.store_timestamp[-2])
        self.start = int(columns.physical_offset[-1])
        self.time_ms = int(columns.store_timestamp[-1])
        end = int(columns.position[-1] + columns.size[-1])
        self.zero_ended = bool(columns.properties_length[-1]) and not data[end - 1]


def walk_segments(
    segments: Sequence[Segment],
    begin: int,
    checks: Checks,
    *,
    torn: bool,
    kept: KeptUnits | None = None,
) -> Walked:
    """Walk the records of consecutive `segments` from the record boundary `begin` in the first one.
    `torn` allows an incomplete last one. `kept` collects the units."""
    result = Walked(begin, begin)
    last = _Last()
    for segment in segments:
        result.end = max(segment.start, begin)
        last.zero_ended = False
        if not _walk_segment(segment, result, last, checks, kept):
            break
        if segment is segments[-1]:
            result.blank_end = segment.end
    # A damaged record may look whole to a search with fewer checks than this walk.
    result.behind = result.end + (result.kind is StopKind.DAMAGED)
    if torn and last.zero_ended and not result.blank_end:
        # Properties have no checksum. The last record of a killed process may lack their end, which
        # a writer never leaves as zero; so may the one in front of lost pages.
        result.end_at(StopKind.DAMAGED, "the properties of the last record end in zeros.")
        result.end = last.start
        result.records -= 1
        last.start, last.time_ms = last.before, last.before_time_ms
    result.last_start, result.last_time_ms = last.start, last.time_ms
    return result


def _walk_segment(
    segment: Segment, result: Walked, last: _Last, checks: Checks, kept: KeptUnits | None
) -> bool:
    """Return whether the segment ends with its blank, so that the walk continues in the next
    one."""
    begin = result.end - segment.start
    with segment.hold() as data:
        records = walk(
            data,
            segment.start,
            begin,
            # No record begins in a hole. The walk looks ahead, and what it reads of a hole becomes
            # pages that the next start after a kill would take for data.
            segment.data_end(begin),
            check_crc=checks.body,
            sealed=checks.sealed,
            record_crc=checks.record,
            topics=kept.topics if kept else None,
        )
        try:
            for columns in records:
                result.records += len(columns)
                last.note(columns, data)
                if kept is not None and records.raw is not None:
                    kept.add(records.raw, columns)
        finally:
            records.close()
    result.end = segment.start + records.end
    if records.stop is StopReason.BLANK:
        return True
    if records.stop is StopReason.DAMAGED:
        result.end_at(StopKind.DAMAGED, records.reason)
    return False


def record_behind(segments: Sequence[Segment], offset: int) -> tuple[int, int | None]:
    """Return offset and store time of the first valid record that begins behind `offset`; -1, None
    without one."""
    for segment in segments:
        if segment.end <= offset:
            continue
        position = max(offset - segment.start, 0)
        used = segment.used_end(position)
        with segment.hold() as data:
            while (position := find_record(data, position, used, segment.start)) >= 0:
                columns = next(walk(data, segment.start, position, position + 1), None)
                if columns is not None:
                    return segment.start + position, int(columns.store_timestamp[0])
                position += 1  # a topic that is not text
    return -1, None
