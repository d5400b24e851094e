"""Job rebuild: rebuilds consume queues and index of a store from its log, in another directory.

    rebuild(spark, RebuildPlan(store="/data/store", out="/data/again"))

Each task walks one split and writes the units of its records. A unit's position follows from its
number alone, so tasks are independent and a repeated task writes the same bytes. What needs the
order of the log is written at the end: index files, light queues, extension files. The store is not
modified. The result is byte for byte what a broker writes. Units of records below the log's start
are carried over from the store's files (carry_over.py), or replaced by fillers if those are
missing. Format: docs/formats/store-format.md, sections 3 and 4.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...store.format.index_keys import BATCH_BYTES_MAX, Entries, KeyText, indexed
from ...store.format.layout import INDEX_FOLDER
from ...store.scan.dtypes import QUEUE_UNIT
from ...store.scan.lmq import lmq_rows
from ...store.scan.properties import TagsCodes
from ...store.scan.walk import Columns
from ..archive.planning import StoreSnapshot, grid_splits, snapshot
from ..errors import PipelineError
from ..splits import SPLIT_BYTES, Split
from .carry_over import carry_units, known_queues
from .index_files import IndexSizes, index_sizes, merge_index, save_entries
from .queue_files import QueueSizes, fill_front, queue_sizes, write_units
from .queue_order import UnitRun, write_in_order
from .running import Report, run_parts
from .walking import RecordColumns, SplitBounds, SplitWalk, gaps, queue_rows, queued, unnamed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """Store, output and options of the job. Sizes of 0 are taken from the store's files."""

    store: str
    out: str
    queues: bool = True
    index: bool = True
    split_bytes: int = SPLIT_BYTES
    queue_file_bytes: int = 0
    index_slots: int = 0
    index_entries: int = 0


@dataclass(frozen=True, slots=True)
class RebuildPart:
    """Work of one task."""

    split: Split
    out: str
    sizes: QueueSizes
    queues: bool
    index: bool


@dataclass(slots=True)
class RebuildDone:
    """Result of one task: written runs by queue, and units to write at the end."""

    bounds: SplitBounds
    runs: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=dict)
    unit_runs: list[UnitRun] = field(default_factory=list)
    entries: int = 0


def rebuild(spark: SparkSession | None, plan: RebuildPlan) -> Report:
    """Rebuild queues and index. Raises PipelineError, OSError."""
    store = snapshot(plan.store)
    out = os.path.abspath(plan.out)
    if out == store.root or out.startswith(store.root + os.sep):
        raise PipelineError(f"{out} is inside the store. Use a folder outside it.")
    if os.path.isdir(out) and os.listdir(out):
        raise PipelineError(f"{out} is not empty. Use a new folder.")
    os.makedirs(out, 0o700, exist_ok=True)
    queue_size = queue_sizes(store.root, plan.queue_file_bytes)
    index_size = index_sizes(store.root, plan.index_slots, plan.index_entries)
    splits = grid_splits(store, plan.split_bytes, live=True)
    parts = [RebuildPart(split, out, queue_size, plan.queues, plan.index) for split in splits]
    done = run_parts(spark, parts, rebuild_part, "rebuild")
    report = Report("rebuild", {"store": store.root, "out": out, "splits": len(parts)})
    all_bounds = [one.bounds for one in done]
    report.problems += gaps(splits, all_bounds) + unnamed(all_bounds)
    report.summary["records"] = sum(one.bounds.records for one in done)
    if plan.queues:
        _finish_queues(store, out, queue_size, done, report)
    if plan.index:
        merge = _Merge(store.root, out, index_size, store.start)
        (carried,) = run_parts(spark, [merge], _merge, "index")
        report.summary["index_entries"] = sum(one.entries for one in done)
        report.summary["index_entries_carried"] = carried
        report.summary["index_files"] = len(os.listdir(os.path.join(out, INDEX_FOLDER)))
    return report


def rebuild_part(part: RebuildPart) -> RebuildDone:
    """Rebuild one split; runs in a task. Raises OSError."""
    walking = SplitWalk(part.split)
    done = RebuildDone(walking.bounds)
    codes = TagsCodes()
    entries: list[Entries] = []
    for rows in walking:
        if part.queues:
            _units(part, rows, codes, done)
        if part.index:
            entries += entries_of(rows)
    if part.index:
        done.entries = save_entries(part.out, part.split, entries)
    return done


def entries_of(rows: RecordColumns) -> Iterator[Entries]:
    """Yield the index entries of these records, in parts of bounded size."""
    columns = rows.columns
    lengths = np.cumsum(columns.properties_length)
    begin = 0
    while begin < len(columns):
        floor = int(lengths[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(lengths, floor + BATCH_BYTES_MAX, "right")), begin + 1)
        part = columns.take(slice(begin, end))
        yield KeyText(rows.raw.data, part, indexed(part)).entries()
        begin = end


def _units(part: RebuildPart, rows: RecordColumns, codes: TagsCodes, done: RebuildDone) -> None:
    columns = queued(rows.columns)
    found = codes.of(rows.raw, columns, rows.topics)
    for row, name, number in lmq_rows(rows.raw, columns, rows.topics):
        at = np.array([row])
        done.unit_runs.append(_unit_run((name, 0, True), np.array([number]), columns, found, at))
    for (name, queue_id), which in queue_rows(rows, columns, done.bounds):
        numbers = columns.queue_offset[which]
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        for run in np.split(np.arange(len(which)), breaks):
            unit_run = _unit_run((name, queue_id, False), numbers[run], columns, found, which[run])
            done.runs.setdefault((name, queue_id), []).append((unit_run.first, len(unit_run.units)))
            if (name, queue_id) in part.sizes.extended:
                done.unit_runs.append(unit_run)
            else:
                write_units(part.out, part.sizes, (name, queue_id), unit_run.first, unit_run.units)


def _unit_run(
    key: tuple[str, int, bool], numbers: Any, columns: Columns, codes: Any, which: Any
) -> UnitRun:
    units = np.empty(len(which), QUEUE_UNIT)
    units["offset"] = columns.physical_offset[which]
    units["size"] = columns.size[which]
    units["code"] = codes[which]
    name, queue_id, light = key
    return UnitRun(name, queue_id, int(numbers[0]), units, columns.store_timestamp[which], light)


def _finish_queues(
    store: StoreSnapshot, out: str, sizes: QueueSizes, done: Iterable[RebuildDone], report: Report
) -> None:
    runs: dict[tuple[str, int], list[tuple[int, int]]] = {}
    unit_runs: list[UnitRun] = []
    for one in done:
        for key, found in one.runs.items():
            runs.setdefault(key, []).extend(found)
        unit_runs += one.unit_runs
    report.summary["queues"] = len(runs)
    report.summary["units"] = sum(count for found in runs.values() for _, count in found)
    heads = _QueueHeads(store, out, sizes)
    for key, found in sorted(runs.items()):
        first = min(first for first, _ in found)
        if key not in sizes.extended:
            heads.begin(key, first)
        report.problems += _holes(key, sorted(found))
        ends = max(first + count for first, count in found)
        report.rows.append({"topic": key[0], "queue": key[1], "first": first, "end": ends})
    write_in_order(out, sizes, unit_runs, heads.begin)
    heads.idle()
    report.summary["units_carried"] = heads.carried
    report.summary["queues_of_old_units"] = heads.idle_queues


class _QueueHeads:
    """Writes what precedes the first rebuilt unit of a queue: carried-over units, else fillers."""

    def __init__(self, store: StoreSnapshot, out: str, sizes: QueueSizes) -> None:
        self.carried = 0
        self.idle_queues = 0
        self._store = store
        self._out = out
        self._sizes = sizes
        self._begun: set[tuple[str, int]] = set()

    def begin(self, key: tuple[str, int], first: int) -> None:
        """Write the beginning of a queue. Raises OSError."""
        self._begun.add(key)
        fill_front(self._out, self._sizes, key, first)
        self._carry(key, first)

    def idle(self) -> None:
        """Write queues without remaining records, so that they keep their next offset.

        Raises OSError.
        """
        for key in known_queues(self._store.root):
            if key not in self._begun and self._carry(key, -1):
                self.idle_queues += 1

    def _carry(self, key: tuple[str, int], first: int) -> int:
        store = self._store
        begin, end = carry_units(
            store.root, self._out, self._sizes, key, log_start=store.start, first=first
        )
        self.carried += end - begin
        return end - begin


def _holes(key: tuple[str, int], found: list[tuple[int, int]]) -> list[str]:
    """Return problems: unit numbers without a record, or with two."""
    problems = []
    end = found[0][0]
    for first, count in found:
        if first != end:
            what = "have no record" if first > end else "have two records"
            low, high = sorted((first, end))
            problems.append(f"{key[0]}/{key[1]}: the numbers [{low}, {high}) {what}.")
        end = max(end, first + count)
    return problems


@dataclass(frozen=True, slots=True)
class _Merge:
    store: str
    out: str
    sizes: IndexSizes
    log_start: int


def _merge(part: _Merge) -> int:
    return merge_index(part.store, part.out, part.sizes, part.log_start)
