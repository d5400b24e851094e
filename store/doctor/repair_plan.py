"""The plan of `store repair` for the findings of `store verify`; made before anything is changed.

The log is authoritative. Derived data (queues, index, checkpoint, wheel) is rebuilt; a torn tail is
cut. Damage with valid records behind it is never cut and never filled: only another replica or a
backup has the bytes (docs/formats/store-format.md, section 6; recovery follows the same rules). Nor
does a record whose keys or tags contradict valid derived data become the truth: it is refused.
"""

import enum
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from ..format.errors import RecordFormatError
from ..format.index_file import IndexFile, key_hash
from ..format.json_file import backup_of
from ..format.json_salvage import is_readable, readable_part
from ..format.properties import TAGS
from ..format.record import CRC_NAME, Record, decode, property_crc_ok
from ..scan.files import open_bytes
from .index_view import layouts_of
from .layout import Layout
from .log_walk import segment_of
from .problems import Finding
from .verify import Report


class Action(enum.StrEnum):
    """Kinds of steps, in the order in which they run."""

    CUT_TAIL = "cut the torn tail"
    REBUILD_QUEUE = "rebuild the queue"
    REBUILD_INDEX = "rebuild the index"
    RESET_CHECKPOINT = "write an empty checkpoint"
    LOWER_HOLDINGS = "lower the recorded end of the log"
    REBUILD_SLOTS = "write the slots of the timer wheel again"
    RESTORE_BACKUP = "take the backup of the file"
    KEEP_READABLE = "keep what can be read of the file"


@dataclass(frozen=True, slots=True)
class Step:
    """One step; `target` is a file or folder relative to the directory."""

    action: Action
    target: str
    why: str
    begin: int = 0
    end: int = 0

    def document(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class Plan:
    """Steps, and the problems that no step repairs."""

    steps: list[Step] = field(default_factory=list)
    refused: list[Finding] = field(default_factory=list)
    #: The log has lost its end: the whole plan is refused unless the loss is accepted.
    log_is_short: bool = False
    #: Records whose tags may be damaged: a rebuilt queue keeps the tags codes of their units.
    doubted: frozenset[int] = frozenset()

    def document(self) -> dict[str, Any]:
        return {
            "steps": [step.document() for step in self.steps],
            "refused": [finding.document() for finding in self.refused],
        }


_QUEUE_KINDS: Final = frozenset(
    (
        *("queue_unit", "queue_tags", "queue_orphan", "queue_ahead"),
        "queue_behind",
        *("queue_size", "queue_missing", "queue_ext"),
    )
)
_INDEX_KINDS: Final = frozenset(
    (
        *("index_file", "index_header", "index_entry", "index_extra", "index_missing"),
        *("index_behind", "index_slot", "index_chain", "index_time"),
    )
)
_CHECKPOINT_KINDS: Final = frozenset(("checkpoint", "checkpoint_ahead"))
_WHEEL_KINDS: Final = frozenset(("timer_slot", "timer_wheel"))
_TAGS_KINDS: Final = frozenset(("record_tags", "queue_tags"))


def plan_repair(layout: Layout, report: Report, accept_loss: bool = False) -> Plan:
    """Return steps for all problems, and for a torn tail. With `accept_loss` also for a log that
    ends before what was durable."""
    plan = Plan()
    findings = report.findings
    tails = [f for f in (*findings.problems, *findings.notes) if f.kind == "torn_tail"]
    if not accept_loss and _log_is_short(layout, findings.problems, bool(tails)):
        # The log is damaged and derived data is right: it is the only evidence of the loss.
        plan.refused += findings.problems
        plan.log_is_short = True
        return plan
    for tail in tails:
        why = "a torn record, with nothing behind it"
        plan.steps.append(Step(Action.CUT_TAIL, tail.file, why, tail.begin, tail.end))
    queues: dict[str, list[Finding]] = {}
    index: list[Finding] = []
    plan.doubted = doubted_records(layout, findings.problems)
    for finding in findings.problems:
        if finding.kind in _TAGS_KINDS and finding.record in plan.doubted:
            plan.refused.append(finding)
        elif finding.kind in _QUEUE_KINDS:
            queues.setdefault(_queue_of(finding.file), []).append(finding)
        elif finding.kind in _INDEX_KINDS:
            index.append(finding)
        elif finding.kind not in ("record_tags", "torn_tail"):
            _plan_other(layout, plan, finding)
    for target, found in sorted(queues.items()):
        if target.startswith("batchconsumequeue/"):
            plan.refused += found  # no step writes these
        else:
            plan.steps.append(Step(Action.REBUILD_QUEUE, target, _first(found)))
    if index:
        plan.steps.append(Step(Action.REBUILD_INDEX, "index", _first(index)))
    order = list(Action)
    plan.steps.sort(key=lambda step: (order.index(step.action), step.target))
    return plan


def _log_is_short(layout: Layout, problems: list[Finding], torn: bool) -> bool:
    """Return whether the log's end is missing, and not only derived data wrong. The queues of a
    cleanly stopped store are complete, so they show whether the checkpoint is right."""
    kinds = {finding.kind for finding in problems}
    if "holdings_ahead" in kinds:
        return True
    if not layout.clean:
        return "checkpoint_ahead" in kinds
    return "queue_ahead" in kinds and (torn or "checkpoint_ahead" in kinds)


def _plan_other(layout: Layout, plan: Plan, finding: Finding) -> None:
    if finding.kind in _CHECKPOINT_KINDS:
        if not any(step.action is Action.RESET_CHECKPOINT for step in plan.steps):
            plan.steps.append(Step(Action.RESET_CHECKPOINT, finding.file, finding.what))
    elif finding.kind == "holdings_ahead":
        plan.steps.append(Step(Action.LOWER_HOLDINGS, finding.file, finding.what))
    elif finding.kind in _WHEEL_KINDS:
        if not any(step.action is Action.REBUILD_SLOTS for step in plan.steps):
            plan.steps.append(Step(Action.REBUILD_SLOTS, finding.file, finding.what))
    elif finding.kind == "json" and not finding.file.endswith(".bak"):
        path = layout.root / finding.file
        if is_readable(backup_of(path)):
            plan.steps.append(Step(Action.RESTORE_BACKUP, finding.file, finding.what))
        elif readable_part(path):
            why = f"{finding.what} Its backup is not readable either."
            plan.steps.append(Step(Action.KEEP_READABLE, finding.file, why))
        else:
            plan.refused.append(finding)
    else:
        plan.refused.append(finding)


def _queue_of(file: str) -> str:
    """Return `consumequeue/<topic>/<queue>` of a file in it, or of its extension."""
    kind, topic, queue_id, *_ = file.split("/")
    return f"{kind.removesuffix('_ext')}/{topic}/{queue_id}"


def _first(findings: list[Finding]) -> str:
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return findings[0].what + more


def doubted_records(layout: Layout, problems: Iterable[Finding]) -> frozenset[int]:
    """Return the physical offsets of the records whose tags or keys may be damaged.

    Where tags differ from the queue unit, the record is right if its own checksum covers it and
    matches, or if the index has it under its tag. Otherwise the unit may be right. Raises
    OSError.
    """
    doubted = {finding.record for finding in problems if finding.kind == "record_keys"}
    asked = {
        finding.record for finding in problems if finding.kind in ("record_tags", "queue_tags")
    }
    doubted |= {offset for offset in asked if not _is_right(layout, offset)}
    return frozenset(doubted)


def _is_right(layout: Layout, offset: int) -> bool:
    data = _bytes_of(layout, offset)
    try:
        record = decode(data)
    except RecordFormatError:
        return False
    if CRC_NAME in record.properties:
        return property_crc_ok(data)
    return _is_indexed(layout, record)


def _bytes_of(layout: Layout, offset: int) -> bytes:
    file = segment_of(layout, offset)
    if file is None:
        return b""
    at = offset - file.start
    view = open_bytes(file.path)
    size = int.from_bytes(view[at : at + 4], "big")
    return bytes(view[at : at + size])


def _is_indexed(layout: Layout, record: Record) -> bool:
    """Return whether the index has the record under its tag."""
    tags = record.properties_dict.get(TAGS, "")
    wanted = key_hash(f"{record.topic}#T#{tags}")
    time_ms = record.store_timestamp_ms
    for path, sizes in zip(layout.index, layouts_of(layout.index, layout.sizes), strict=True):
        if sizes is None or path.stat().st_size != sizes.file_bytes:
            continue
        with IndexFile(str(path), sizes) as file:
            if record.physical_offset in file.find(wanted, time_ms, time_ms):
                return True
    return False
