"""`store verify`: one walk over the log; all checks consume its batches.

Read only. For a store that runs or was killed, what its next start repairs is a note. Memory is
bounded by the batches, by one number per slot of an index file, and by the timer log
(docs/formats/store-format.md; each check names its section).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ..timer.rules import TIMER_TOPIC
from .layout import Layout, QueueFolder
from .log_walk import LogWalk, SegmentEnd
from .problems import NOTE, PROBLEM, Findings
from .verify_batch import BatchCheck
from .verify_config import CheckpointCheck, check_holdings, check_json, check_offsets
from .verify_index import IndexCheck
from .verify_log import LogVerdict, judge_log
from .verify_queues import QueueCheck
from .verify_records import RecordCheck
from .verify_timers import TimerCheck, check_timercheck

#: Progress values, which move while a broker runs.
_MOVING_KINDS: Final = ("checkpoint", "consumer_offset", "holdings", "timer")
#: Called with the bytes of log walked so far.
Progress = Callable[[int], None]


@dataclass(slots=True)
class Report:
    """The result of `verify`."""

    findings: Findings
    verdict: LogVerdict
    ends: list[SegmentEnd]
    messages: int = 0
    bytes: int = 0

    def document(self) -> dict[str, Any]:
        findings = self.findings
        document: dict[str, Any] = {
            "problems": [finding.document() for finding in findings.problems],
            "notes": [finding.document() for finding in findings.notes],
            "messages": self.messages,
            "bytes": self.bytes,
        }
        if findings.left_out:
            document["left_out"] = findings.left_out
        return document


def verify(layout: Layout, progress: Progress | None = None) -> Report:
    """Check everything in the directory. Raises OSError."""
    findings = Findings()
    _note_state(layout, findings)
    names = {file.start: layout.name(file.path) for file in layout.log.files}
    _check_queue_files(layout, findings)
    queues = QueueCheck(layout, findings)
    timers = TimerCheck(layout, findings)
    checkpoint = CheckpointCheck(layout, findings)
    index = IndexCheck(layout, findings)
    records = RecordCheck(findings, names)
    batch_queues = BatchCheck(layout, findings)
    checks = (
        records.add_batch,
        batch_queues.add_batch,
        queues.add_batch,
        index.add_batch,
        timers.add_batch,
        checkpoint.add_batch,
    )
    walk = LogWalk(layout, check_crc=True)
    messages = 0
    for batch in walk:
        for check in checks:
            check(batch)
        messages += len(batch.columns)
        if progress is not None:
            last = int(batch.columns.position[-1] + batch.columns.size[-1])
            progress(batch.file.start + last - layout.log.start)
    verdict = judge_log(layout, walk.ends, findings, records.torn_from)
    _demote_cut_range(layout, verdict, findings)
    queues.finish(verdict)
    batch_queues.finish(verdict)
    index.finish(verdict)
    timers.finish(verdict)
    checkpoint.finish(verdict)
    check_holdings(layout, verdict, findings)
    check_json(layout, findings)
    check_timercheck(layout, timers.found, queues.end(TIMER_TOPIC, 0), findings)
    check_offsets(layout, queues.ends(), findings)
    if layout.in_use:
        # Files that were read at different moments do not agree to the last record.
        findings.demote(lambda finding: finding.kind.startswith(_MOVING_KINDS))
    return Report(findings, verdict, walk.ends, messages, verdict.end - layout.log.start)


def _note_state(layout: Layout, findings: Findings) -> None:
    """Note states that lower the severity of findings."""
    if layout.in_use:
        what = f"A process{f' ({layout.owner})' * bool(layout.owner)} uses the store now."
        findings.add("lock", 0, 0, what, "in_use", severity=NOTE)
    elif not layout.clean:
        what = (
            "The store was not stopped cleanly: the next start of the broker repairs the findings"
            " listed as notes."
        )
        findings.add("abort", 0, 0, what, "not_stopped", severity=NOTE)


def _demote_cut_range(layout: Layout, verdict: LogVerdict, findings: Findings) -> None:
    """Turn problems in a range that the next start cuts into notes."""
    if layout.clean and not layout.in_use:
        return
    cut = [verdict.end] if verdict.torn_end > verdict.end else []
    starts = {layout.name(file.path): file.start for file in layout.log.files}
    for finding in findings.notes:
        if finding.kind == "record":
            cut.append(starts[finding.file] + finding.begin)
    if cut:
        first = min(cut)
        kinds = ("body_crc", "record_crc", "properties", "record_time", "record", "blank")
        findings.demote(
            lambda finding: (
                finding.kind in kinds and starts.get(finding.file, -1) + finding.begin >= first
            )
        )


def _check_queue_files(layout: Layout, findings: Findings) -> None:
    """Check that files of a queue have one size and are consecutive."""
    for queue in layout.queues:
        files = queue.files.files
        for index, file in enumerate(files):
            name = layout.name(file.path)
            if file.length != queue.files.size:
                _report_size(layout, queue, name, file.length, findings)
            following = files[index + 1].start if index + 1 < len(files) else None
            if following is not None and following != file.start + queue.files.size:
                what = f"Files are missing between {file.start} and {following}."
                findings.add(name, file.length, file.length, what, "queue_missing")


def _report_size(
    layout: Layout, queue: QueueFolder, name: str, length: int, findings: Findings
) -> None:
    killed = not layout.clean or layout.in_use
    size = queue.files.size
    what = f"The file has {length} bytes, the others of its kind have {size}."
    begin, end = sorted((length, size))
    severity = NOTE if killed and not length else PROBLEM
    findings.add(name, begin, end, what, "queue_size", severity=severity)
