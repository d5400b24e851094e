"""Job verify: verifies the log and consume queues of a store in parallel. Writes nothing.

Records: structure, physical offset and, with `crc`, the checksum of the body. Queues: every record
has a unit that points to it, and no unit points to a missing record. The task that walks a record
compares its unit, so the log is read once. Index, timers and configuration are verified by
`cometmq store verify`.

A live broker writes queues shortly after the log: missing units at the end of a queue are counted
as `behind`, and are a problem only if no broker has the store open.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...store.format.layout import ABORT_FILE, file_name
from ...store.format.queue_ext import is_address
from ...store.format.record_layout import FILLER_SIZE, UNIT_BYTES
from ...store.format.topic_names import queue_path
from ...store.scan.dtypes import QUEUE_UNIT
from ...store.scan.properties import TagsCodes
from ..archive.planning import StoreSnapshot, grid_splits, snapshot
from ..splits import SPLIT_BYTES, Split
from .queue_files import queue_sizes
from .running import Report, run_parts
from .walking import RecordColumns, SplitBounds, SplitWalk, gaps, queue_rows, queued, unnamed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Reported problems per queue.
_SENTENCES: Final = 3


@dataclass(frozen=True, slots=True)
class VerifyPart:
    """Work of one task."""

    split: Split
    crc: bool
    queue_file_bytes: int


@dataclass(slots=True)
class QueueFound:
    """Result for one queue."""

    records: int = 0
    first: int = -1
    end: int = -1
    wrong: int = 0  #: units that do not match their record
    behind: int = 0  #: missing units
    sentences: list[str] = field(default_factory=list)


@dataclass(slots=True)
class VerifyDone:
    """Result of one task."""

    bounds: SplitBounds
    queues: dict[tuple[str, int], QueueFound] = field(default_factory=dict)


def verify(
    spark: SparkSession | None,
    root: str,
    *,
    crc: bool = True,
    queues: bool = True,
    split_bytes: int = SPLIT_BYTES,
) -> Report:
    """Verify a store. Raises UnreachableError, OSError."""
    store = snapshot(root)
    splits = grid_splits(store, split_bytes, live=True)
    size = queue_sizes(store.root).file_bytes if queues else 0
    done = run_parts(
        spark, [VerifyPart(split, crc, size) for split in splits], verify_part, "verify"
    )
    all_bounds = [one.bounds for one in done]
    report = Report("verify", {"store": store.root, "log_start": store.start})
    report.summary |= {
        "log_end": store.end,
        "splits": len(splits),
        "records": sum(bounds.records for bounds in all_bounds),
        "lost_bytes": sum(one.end - one.begin for bounds in all_bounds for one in bounds.lost),
    }
    report.problems += gaps(splits, all_bounds) + unnamed(all_bounds)
    if queues:
        _report_queues(store, size, done, report)
    return report


def verify_part(part: VerifyPart) -> VerifyDone:
    """Verify one split; runs in a task. Raises OSError."""
    walking = SplitWalk(part.split, check_crc=part.crc)
    done = VerifyDone(walking.bounds)
    codes = TagsCodes()
    for rows in walking:
        if part.queue_file_bytes:
            _compare(part, rows, codes, done)
    return done


def _compare(part: VerifyPart, rows: RecordColumns, codes: TagsCodes, done: VerifyDone) -> None:
    columns = queued(rows.columns)
    tags = codes.of(rows.raw, columns, rows.topics)
    for key, which in queue_rows(rows, columns, done.bounds):
        numbers = columns.queue_offset[which]
        found = done.queues.setdefault(key, QueueFound(first=int(numbers[0])))
        found.records += len(which)
        found.first = min(found.first, int(numbers.min()))
        found.end = max(found.end, int(numbers.max()) + 1)
        units = read_units(part.split.root, part.queue_file_bytes, key, numbers)
        absent = units["size"] == 0
        wrong = (units["offset"] != columns.physical_offset[which]) | (
            units["size"] != columns.size[which]
        )
        is_code = ~np.array([is_address(code) for code in units["code"].tolist()], np.bool_)
        wrong |= is_code & (units["code"] != tags[which])
        wrong &= ~absent
        found.behind += int(absent.sum())
        found.wrong += int(wrong.sum())
        for at in np.flatnonzero(wrong)[: _SENTENCES - len(found.sentences)].tolist():
            found.sentences.append(
                f"{key[0]}/{key[1]}: unit {numbers[at]} points to {units['offset'][at]}, "
                f"its record is at {columns.physical_offset[which][at]}."
            )


def read_units(root: str, file_bytes: int, key: tuple[str, int], numbers: Any) -> Any:
    """Return the units with these numbers; zeros for missing ones."""
    folder = queue_path(root, *key)
    found = np.zeros(len(numbers), QUEUE_UNIT)
    positions = numbers * UNIT_BYTES
    starts = positions - positions % file_bytes
    for start in np.unique(starts).tolist():
        which = np.flatnonzero(starts == start)
        low, high = int(positions[which].min()), int(positions[which].max()) + UNIT_BYTES
        try:
            with open(os.path.join(folder, file_name(start)), "rb") as file:
                data = os.pread(file.fileno(), high - low, low - start)
        except FileNotFoundError:
            continue
        data = data.ljust(high - low, b"\0")
        found[which] = np.frombuffer(data, QUEUE_UNIT)[(positions[which] - low) // UNIT_BYTES]
    return found


def _report_queues(
    store: StoreSnapshot, file_bytes: int, done: Iterable[VerifyDone], report: Report
) -> None:
    queues: dict[tuple[str, int], QueueFound] = {}
    for one in done:
        for key, found in one.queues.items():
            known = queues.setdefault(key, QueueFound(first=found.first))
            known.records += found.records
            known.first = min(known.first, found.first)
            known.end = max(known.end, found.end)
            known.wrong += found.wrong
            known.behind += found.behind
            known.sentences += found.sentences
    in_use = os.path.exists(os.path.join(store.root, ABORT_FILE))
    for (topic, queue_id), found in sorted(queues.items()):
        report.rows.append(
            {
                "topic": topic,
                "queue": queue_id,
                "first": found.first,
                "end": found.end,
                "records": found.records,
                "wrong": found.wrong,
                "behind": found.behind,
            }
        )
        report.problems += found.sentences[:_SENTENCES]
        if found.wrong > _SENTENCES:
            report.problems.append(f"{topic}/{queue_id}: {found.wrong} units do not match.")
        if found.behind and not in_use:
            text = f"{topic}/{queue_id}: {found.behind} records have no unit."
            report.problems.append(text)
        report.problems += _beyond(store, file_bytes, (topic, queue_id), found.end)
    report.summary["queues"] = len(queues)
    report.summary["units_behind"] = sum(found.behind for found in queues.values())


def _beyond(store: StoreSnapshot, file_bytes: int, key: tuple[str, int], end: int) -> list[str]:
    """Return a problem if a unit after the last record points into the log."""
    units = read_units(store.root, file_bytes, key, np.arange(end, end + 64))
    inside = (units["size"] > 0) & (units["size"] != FILLER_SIZE) & (units["offset"] < store.end)
    if not inside.any():
        return []
    number = end + int(np.argmax(inside))
    return [
        f"{key[0]}/{key[1]}: unit {number} points to {units['offset'][number - end]}, which has no "
        "record of this queue."
    ]
