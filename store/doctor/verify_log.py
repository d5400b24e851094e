"""Check of the log's structure: lost ranges, blanks at segment ends, the tail, consecutive files.

A position without a whole record is judged by the rules of recovery (`recovery/rules.py`): what a
start would cut is a note (a torn tail after a kill, pages lost in a power loss in front of records
that were never promised). What was durable, or lies in a cleanly stopped store, is a problem
(docs/formats/store-format.md, section 6).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ..format.checkpoint import FILE_BYTES, Checkpoint
from ..format.record_layout import (
    BLANK_BYTES,
)
from ..recovery.rules import Finding as Question
from ..recovery.rules import StopKind, Verdict, bytes_missing, flushed_beyond, judge
from ..scan.files import open_bytes
from ..scan.walk import LostRange, StopReason
from .layout import Layout
from .log_walk import SegmentEnd, record_at
from .problems import NOTE, PROBLEM, Findings

_CHECKPOINT_BYTES_MIN = 48


@dataclass(slots=True)
class LogVerdict:
    """The end of the records, what is cut behind it, and what is lost before it."""

    end: int  #: offset behind the last whole record
    torn_end: int  #: offset behind the last byte of a torn tail; `end` without one
    lost: list[LostRange]  #: inside the log: valid records follow


def read_checkpoint(layout: Layout) -> Checkpoint:
    """Return the checkpoint's values; all unknown without a whole one."""
    if layout.checkpoint is None:
        return Checkpoint()
    with open(layout.checkpoint, "rb") as file:
        data = file.read(FILE_BYTES)
    return Checkpoint.decode(data) if len(data) >= _CHECKPOINT_BYTES_MIN else Checkpoint()


def judge_log(
    layout: Layout, ends: list[SegmentEnd], findings: Findings, torn_from: int = -1
) -> LogVerdict:
    """Report errors in the walked segments and their files. From `torn_from` on (unless -1) no
    record is whole although the lengths of the last ones are right."""
    missing = list(_check_files(layout, findings))
    last = max((i for i, end in enumerate(ends) if end.records), default=-1)
    verdict = LogVerdict(layout.log.start, layout.log.start, missing)
    checkpoint = read_checkpoint(layout)
    killed = not layout.clean or layout.in_use
    for index, end in enumerate(ends):
        name = layout.name(end.file.path)
        middle = [lost for lost in end.lost if index < last or _records_follow(end, lost)]
        for lost in middle:
            begin, stop = lost.begin - end.file.start, lost.end - end.file.start
            what = f"No whole record at offset {lost.begin}: {lost.reason} Valid records follow."
            severity = PROBLEM
            if killed and _is_lost_page(layout, end, lost, checkpoint):
                what += " They were never promised: the next start cuts here and keeps a copy."
                severity = NOTE
            findings.add(name, begin, stop, what, "record", severity=severity)
        verdict.lost += middle
        if index < last:
            _check_segment_end(end, name, layout.log.size, findings)
        if index == last:
            verdict.end = end.file.start + end.position
            if end.stop is StopReason.BLANK and last + 1 < len(ends):
                verdict.end = end.file.start + layout.log.size
        tail = [lost for lost in end.lost if lost not in middle]
        if index == last and killed and torn_from >= end.file.start:
            stop = max([verdict.end, *(lost.end for lost in tail)])
            tail = [LostRange(torn_from, stop, "it was not written whole.")]
            verdict.end = torn_from
        if tail:
            flushed = killed and flushed_beyond(checkpoint, tail[-1].begin, None)
            _report_tail(layout, tail[-1], end, findings, flushed=flushed)
            verdict.torn_end = max(verdict.torn_end, tail[-1].end)
    verdict.torn_end = max(verdict.torn_end, verdict.end)
    return verdict


def _is_lost_page(layout: Layout, end: SegmentEnd, lost: LostRange, checkpoint: Checkpoint) -> bool:
    """Return whether recovery would cut here although records follow."""
    following = record_at(layout, lost.end)
    following_ms = int(following.store_timestamp[0]) if following is not None else None
    durable = flushed_beyond(checkpoint, lost.begin, following_ms)
    base = end.file.start
    data = open_bytes(end.file.path)
    missing = bytes_missing(data, lost.begin - base, base, min(lost.end - base, len(data)))
    return judge(Question(StopKind.DAMAGED, True, durable, missing)) is Verdict.LOST_PAGES


def _records_follow(end: SegmentEnd, lost: LostRange) -> bool:
    """Return whether the walk continued behind the range in the same segment."""
    return lost.end <= end.file.start + end.position


def _check_segment_end(end: SegmentEnd, name: str, size: int, findings: Findings) -> None:
    """Report a segment that others follow and that does not end with its blank."""
    if end.stop is StopReason.BLANK or end.file.length < size:
        return  # `_check_files` reports a cut file
    covered = end.lost and end.lost[-1].end > end.file.start + end.position
    if covered:
        return
    begin = end.position
    what = "The segment does not end with a blank, but another one follows it."
    findings.add(name, begin, min(begin + BLANK_BYTES, size), what, "blank")


def _report_tail(
    layout: Layout, lost: LostRange, end: SegmentEnd, findings: Findings, *, flushed: bool
) -> None:
    name, start = layout.name(end.file.path), end.file.start
    killed = not layout.clean or layout.in_use
    kind, severity = "torn_tail", NOTE if killed else PROBLEM
    what = f"The log ends in a torn record at offset {lost.begin}: {lost.reason}"
    if flushed:
        kind, severity = "flushed_tail", PROBLEM
        what += " According to the checkpoint it was flushed."
    else:
        what += " The next start cuts it off." if killed else " The store was stopped cleanly."
    findings.add(name, lost.begin - start, lost.end - start, what, kind, severity=severity)


def _check_files(layout: Layout, findings: Findings) -> Iterator[LostRange]:
    """Check that every segment has its full size and is followed by the next one; yield missing
    ranges."""
    size = layout.log.size
    files = layout.log.files
    for index, file in enumerate(files):
        name = layout.name(file.path)
        is_last = index + 1 == len(files)
        if file.length != size:
            unfinished = is_last and file.length < size and not layout.clean
            what = f"The segment has {file.length} bytes, the others have {size}."
            begin, end = sorted((file.length, size))
            findings.add(
                name, begin, end, what, "segment_size", severity=NOTE if unfinished else PROBLEM
            )
            if not unfinished and file.length < size:
                yield LostRange(file.start + file.length, file.start + size, what)
        if not is_last and files[index + 1].start != file.start + size:
            what = f"The segment at offset {file.start + size} is missing."
            findings.add(name, file.length, file.length, what, "segment_missing")
            yield LostRange(file.start + size, files[index + 1].start, what)
