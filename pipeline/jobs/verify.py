"""Job verify: a store's log and queues, read once, in parallel; nothing is written.

Every record: structure, its own place, and (`crc`) the checksum of its body. Every queue: that the unit of
each record says where the record lies, and that no unit points to where there is none. The queue's unit is
compared by the task that walks the record, so that the log is read once. What only the broker's own
doctor looks at (index, timers, configuration), `cometmq store verify` does.

A live broker writes queues a moment after the log: units that are missing at the end of a queue are
counted as behind; they are a problem only in a store that nobody has open.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...store.format.layout import ABORT_FILE, QUEUE_FOLDER, file_name
from ...store.format.queue_ext import is_address
from ...store.format.queue_unit import FILLER_SIZE
from ...store.scan.properties import TagsCodes, by_queue
from ..archive.planning import StoreSnapshot, grid_splits, snapshot
from ..splits import SPLIT_BYTES, Split
from .queue_files import UNIT, UNIT_BYTES, queue_sizes
from .running import Report, run_parts
from .walking import RecordColumns, SplitBounds, SplitWalk, gaps, queued

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Sentences about one queue; more say nothing new.
_SENTENCES: Final = 3


@dataclass(frozen=True, slots=True)
class VerifyPart:
    """What one task does."""

    split: Split
    crc: bool
    queue_file_bytes: int


@dataclass(slots=True)
class QueueFound:
    """What a walk has seen of one queue."""

    records: int = 0
    first: int = -1
    end: int = -1
    wrong: int = 0  #: units that say something else
    behind: int = 0  #: units that are not there
    sentences: list[str] = field(default_factory=list)


@dataclass(slots=True)
class VerifyDone:
    """What one task found."""

    border: SplitBounds
    queues: dict[tuple[str, int], QueueFound] = field(default_factory=dict)


def verify(
    spark: SparkSession | None,
    root: str,
    *,
    crc: bool = True,
    queues: bool = True,
    split_bytes: int = SPLIT_BYTES,
) -> Report:
    """Look at all of it. Raises UnreachableError, OSError."""
    store = snapshot(root)
    splits = grid_splits(store, split_bytes, live=True)
    size = queue_sizes(store.root).file_bytes if queues else 0
    done = run_parts(
        spark, [VerifyPart(split, crc, size) for split in splits], verify_part, "verify"
    )
    borders = [one.border for one in done]
    report = Report("verify", {"store": store.root, "log_start": store.start})
    report.summary |= {
        "log_end": store.end,
        "splits": len(splits),
        "records": sum(border.records for border in borders),
        "lost_bytes": sum(one.end - one.begin for border in borders for one in border.lost),
    }
    report.problems += gaps(splits, borders)
    if queues:
        _judge(store, size, done, report)
    return report


def verify_part(part: VerifyPart) -> VerifyDone:
    """In a task. Raises OSError."""
    walking = SplitWalk(part.split, check_crc=part.crc)
    done = VerifyDone(walking.border)
    codes = TagsCodes()
    for rows in walking:
        if part.queue_file_bytes:
            _compare(part, rows, codes, done)
    return done


def _compare(part: VerifyPart, rows: RecordColumns, codes: TagsCodes, done: VerifyDone) -> None:
    columns = queued(rows.columns)
    tags = codes.of(rows.raw, columns, rows.topics)
    for topic_id, queue_id, which in by_queue(columns):
        key = (rows.topics.names[topic_id], queue_id)
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
        told = ~np.array([is_address(code) for code in units["code"].tolist()], np.bool_)
        wrong |= told & (units["code"] != tags[which])
        wrong &= ~absent
        found.behind += int(absent.sum())
        found.wrong += int(wrong.sum())
        for at in np.flatnonzero(wrong)[: _SENTENCES - len(found.sentences)].tolist():
            found.sentences.append(
                f"{key[0]}/{key[1]}: unit {numbers[at]} points to {units['offset'][at]}, the record "
                f"lies at {columns.physical_offset[which][at]}."
            )


def read_units(root: str, file_bytes: int, key: tuple[str, int], numbers: Any) -> Any:
    """The units with these numbers; zeros where there are none."""
    folder = os.path.join(root, QUEUE_FOLDER, key[0], str(key[1]))
    found = np.zeros(len(numbers), UNIT)
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
        found[which] = np.frombuffer(data, UNIT)[(positions[which] - low) // UNIT_BYTES]
    return found


def _judge(
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
            report.problems.append(f"{topic}/{queue_id}: {found.wrong} units are wrong in all.")
        if found.behind and not in_use:
            text = f"{topic}/{queue_id}: {found.behind} records have no unit."
            report.problems.append(text)
        report.problems += _beyond(store, file_bytes, (topic, queue_id), found.end)
    report.summary["queues"] = len(queues)
    report.summary["units_behind"] = sum(found.behind for found in queues.values())


def _beyond(store: StoreSnapshot, file_bytes: int, key: tuple[str, int], end: int) -> list[str]:
    """Units behind the last record that point into what was walked."""
    units = read_units(store.root, file_bytes, key, np.arange(end, end + 64))
    inside = (units["size"] > 0) & (units["size"] != FILLER_SIZE) & (units["offset"] < store.end)
    if not inside.any():
        return []
    number = end + int(np.argmax(inside))
    return [
        f"{key[0]}/{key[1]}: unit {number} points to {units['offset'][number - end]}, where no record of it lies."
    ]
