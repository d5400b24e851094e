"""The plan of `store repair` for the findings of `store verify`; made before anything is changed.

The log is authoritative. Derived data (queues, index, checkpoint, wheel) is rebuilt; a torn tail is
cut. Damage with valid records behind it is never cut and never filled: only another replica or a
backup has the bytes (docs/formats/store-format.md, section 6; recovery follows the same rules).
"""

import enum
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from .layout import Layout
from .problems import Finding
from .verify import Report


class Action(enum.StrEnum):
    """Kinds of steps, in the order in which they run."""

    CUT_TAIL = "cut the torn tail"
    REBUILD_QUEUE = "rebuild the queue"
    REBUILD_INDEX = "rebuild the index"
    RESET_CHECKPOINT = "write an empty checkpoint"
    REBUILD_SLOTS = "write the slots of the timer wheel again"
    RESTORE_BACKUP = "take the backup of the file"


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

    def document(self) -> dict[str, Any]:
        return {
            "steps": [step.document() for step in self.steps],
            "refused": [one.document() for one in self.refused],
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
#: Disagreements of a record with derived data, reported for the record: rebuilding the derived data
#: resolves them if the record is otherwise whole.
_WITNESS_KINDS: Final = frozenset(("record_tags", "record_keys"))


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
    for one in findings.problems:
        if one.kind in _QUEUE_KINDS:
            queues.setdefault(_queue_of(one.file), []).append(one)
        elif one.kind in _INDEX_KINDS:
            index.append(one)
        elif one.kind not in _WITNESS_KINDS and one.kind != "torn_tail":
            _plan_other(layout, plan, one)
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
    kinds = {one.kind for one in problems}
    if not layout.clean:
        return "checkpoint_ahead" in kinds
    return "queue_ahead" in kinds and (torn or "checkpoint_ahead" in kinds)


def _plan_other(layout: Layout, plan: Plan, one: Finding) -> None:
    if one.kind in _CHECKPOINT_KINDS:
        if not any(step.action is Action.RESET_CHECKPOINT for step in plan.steps):
            plan.steps.append(Step(Action.RESET_CHECKPOINT, one.file, one.what))
    elif one.kind in _WHEEL_KINDS:
        if not any(step.action is Action.REBUILD_SLOTS for step in plan.steps):
            plan.steps.append(Step(Action.REBUILD_SLOTS, one.file, one.what))
    elif one.kind == "json" and (layout.root / f"{one.file}.bak").is_file():
        plan.steps.append(Step(Action.RESTORE_BACKUP, one.file, one.what))
    else:
        plan.refused.append(one)


def _queue_of(file: str) -> str:
    """Return `consumequeue/<topic>/<queue>` of a file in it, or of its extension."""
    kind, topic, queue_id, *_ = file.split("/")
    return f"{kind.removesuffix('_ext')}/{topic}/{queue_id}"


def _first(found: list[Finding]) -> str:
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return found[0].what + more
