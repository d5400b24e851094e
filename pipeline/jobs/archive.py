"""Job archive: archives a log as Parquet and advances the broker's archive watermark.

    archive(spark, "/data/store", "/archive", gate="127.0.0.1:8081")

A round publishes units committed before a crash, plans the missing ranges and archives them, one
task per range. With `gate` it then reads back everything between the broker's watermark and the end
of the gapless archived range, compares it with the log, and sets the watermark. The watermark stays
below the first incorrect unit; the report names the problem.

Each record is archived exactly once, also after crashes of driver and workers (manifest.py). Only
ranges that were read back and found equal to the log are below the watermark.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ...client.transport.tls import Tls
from ..archive.checking import check_unit, is_another_log
from ..archive.coverage import Range, covered_to, left_to_do, ranges_of
from ..archive.gate import get_watermark, set_watermark
from ..archive.manifest import Manifest, all_manifests, finish, replaced, sweep
from ..archive.names import escaped
from ..archive.planning import StoreSnapshot, grid_splits, snapshot, split_of
from ..archive.row_file import FileFormat
from ..archive.settings import only_writer, open_archive
from ..archive.splits import KIND, SplitWork, archive_split
from ..errors import PipelineError
from ..source.options import Access
from ..splits import Split
from .running import Report, run_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """Store, archive and options of the job."""

    store: str
    out: str
    broker: str = ""  #: broker name in the rows; empty: the folder's name
    live: bool = False  #: up to the safe end of the log, not only complete segments
    written_before_ms: int | None = None
    topics: Any = None
    topics_said: str = ""
    file_format: FileFormat = field(default_factory=FileFormat)
    split_bytes: int | None = None
    on_corrupt: Literal["fail", "skip", "permissive"] = "fail"
    gate: str = ""  #: HOST:PORT of the broker whose watermark is set
    access_key: str = ""  #: with `secret_key`: signs the calls to `gate`
    secret_key: str = field(default="", repr=False)
    tls: Tls | None = None  #: of the calls to `gate`


@dataclass(frozen=True, slots=True)
class _Check:
    root: str
    manifest: Manifest
    split: Split | None
    topics: Any
    moved: dict[str, tuple[str, ...]]


def archive(
    spark: SparkSession | None, plan: ArchivePlan, *, dry_run: bool = False, known_end: int = 0
) -> Report:
    """Run one round. `known_end`: the log end of the previous round.

    Raises PipelineError (including the decoder's errors), OSError.
    """
    plan = replace(plan, store=os.path.abspath(plan.store), out=os.path.abspath(plan.out))
    if plan.gate and plan.topics_said:
        text = "The archive gate needs all topics in the archive. Leave the topic selection out."
        raise PipelineError(text)
    store = snapshot(plan.store, plan.broker, known_end)
    if dry_run and not os.path.isdir(plan.out):
        return _planned(
            plan, store, grid_splits(store, plan.split_bytes or 256 << 20, **_choice(plan))
        )
    settings = open_archive(plan.out, plan.split_bytes)
    with only_writer(plan.out, f"archive-{escaped(store.broker)}"):
        finish(plan.out)
        prefix = f"{escaped(store.broker)}."
        manifests = all_manifests(plan.out, prefix)
        if not known_end and is_another_log(manifests, store):
            raise PipelineError(
                f"{plan.out} contains another log under the broker name {store.broker!r}. The "
                f"default name is that of the folder {plan.store}: give each log another name with "
                "--broker (`broker` of the plan)."
            )
        ranges = ranges_of(manifests, store.broker, plan.topics_said)
        todo = left_to_do(grid_splits(store, settings.split_bytes, **_choice(plan)), ranges)
        if dry_run:
            return _planned(plan, store, todo)
        sweep(plan.out, prefix)
        report = _write(spark, plan, todo, store)
        if plan.gate:
            _advance(spark, plan, store, report)
        return report


def _gate(plan: ArchivePlan) -> Access:
    return Access(plan.gate, plan.access_key, plan.secret_key, tls=plan.tls)


def _choice(plan: ArchivePlan) -> dict[str, Any]:
    return {"live": plan.live, "written_before_ms": plan.written_before_ms}


def _planned(plan: ArchivePlan, store: StoreSnapshot, todo: Sequence[Split]) -> Report:
    rows = [{"start": one.start, "end": one.end, "segment": one.path} for one in todo]
    summary = {"store": plan.store, "archive": plan.out, "broker": store.broker, "dry_run": True}
    return Report("archive", summary | {"splits": len(rows), "log_end": store.end}, rows)


def _write(
    spark: SparkSession | None, plan: ArchivePlan, todo: Sequence[Split], store: StoreSnapshot
) -> Report:
    work = [
        SplitWork(
            plan.out,
            split,
            plan.file_format,
            plan.on_corrupt,
            topics=plan.topics,
            topics_said=plan.topics_said,
        )
        for split in todo
    ]
    done = run_parts(spark, work, archive_split, "archive")
    summary = {
        "store": plan.store,
        "archive": plan.out,
        "broker": store.broker,
        "log_end": store.end,
        "splits": len(done),
        "rows_written": sum(one.rows for one in done if one.fresh),
        "files": sum(one.files for one in done if one.fresh),
        "bytes_in": sum(one.bytes_in for one in done),
        "bytes_out": sum(one.bytes_out for one in done),
    }
    rows = [
        {
            "start": one.start,
            "end": one.end,
            "rows": one.rows,
            "files": one.files,
            "bytes": one.bytes_out,
        }
        for one in done
    ]
    return Report("archive", summary, rows)


def _advance(
    spark: SparkSession | None, plan: ArchivePlan, store: StoreSnapshot, report: Report
) -> None:
    """Check the units between the watermark and its target, then set it."""
    state = get_watermark(_gate(plan))
    if not state.gate:
        text = f"archiveGate is off at {plan.gate}: the broker's retention ignores the watermark."
        report.problems.append(text)
    manifests = all_manifests(plan.out, f"{escaped(store.broker)}.")
    ranges = ranges_of(manifests, store.broker)
    target = covered_to(ranges, max(state.log_start, store.start))
    report.problems += _never_archived(ranges, state.watermark, max(state.log_start, store.start))
    # Complete segments only: retention deletes segments.
    ends = [segment.end for segment in store.log if segment.end <= target]
    target = max(ends, default=0) if not plan.live else target
    right_to = max(state.watermark, min(state.log_start, target))
    units = [
        one
        for one in manifests
        if one.about["kind"] == KIND
        and one.about["end"] > state.watermark
        and one.about["start"] < target
    ]
    units.sort(key=lambda one: one.about["start"])
    moved = replaced(all_manifests(plan.out, "compact."))
    parts = [
        _Check(
            plan.out,
            one,
            split_of(store, one.about["start"], one.about["end"]),
            plan.topics,
            _moved_files(one, moved),
        )
        for one in units
    ]
    for unit, problems in zip(units, run_parts(spark, parts, _check, "check"), strict=True):
        if problems:
            report.problems += problems
            target = min(target, unit.about["start"])
            break
    report.summary["checked"] = len(units)
    right_to = max(right_to, target)
    if right_to > state.watermark:
        set_watermark(_gate(plan), right_to)
    report.summary["watermark"] = max(right_to, state.watermark)


def _never_archived(ranges: Sequence[Range], watermark: int, log_start: int) -> list[str]:
    """Return a problem if the broker deleted records above its watermark: its disk was too full."""
    ends = [end for begin, end in ranges if begin < log_start] or [log_start]
    end = max(ends)
    if end >= log_start or log_start <= watermark:
        return []
    return [
        f"The broker deleted [{end}, {log_start}) before it was archived: its disk was too full "
        "(archive.overridden in its log)."
    ]


def _moved_files(
    manifest: Manifest, moved: dict[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    return {file.path: moved[file.path] for file in manifest.files if file.path in moved}


def _check(part: _Check) -> list[str]:
    return check_unit(part.root, part.manifest, part.split, part.topics, part.moved)


def check_archive(
    spark: SparkSession | None, root: str, store: str = "", broker: str = ""
) -> Report:
    """Read a complete archive back; with a store, compare it with the log's remaining records."""
    root = os.path.abspath(root)
    manifests = all_manifests(root)
    moved = replaced(manifests)
    found = snapshot(store, broker) if store else None
    parts = []
    for one in manifests:
        split = None
        if found is not None and one.about.get("kind") == KIND:
            split = split_of(found, one.about["start"], one.about["end"])
            split = split if one.about["broker"] == found.broker else None
        parts.append(_Check(root, one, split, None, _moved_files(one, moved)))
    problems = [text for found in run_parts(spark, parts, _check, "check") for text in found]
    summary = {
        "archive": root,
        "units": len(manifests),
        "total_rows": sum(m.rows for m in manifests),
    }
    return Report("check", summary, [], problems)
