"""Job reconcile: compares a store with another store or with an archive.

Replicas have identical bytes, so one CRC-32 per 64 MiB of the common range is compared first; where
digests differ, the records are compared and the first difference is reported. An archive stores the
digest of the source bytes of each unit; where it differs, or where a file is damaged, rows and
records are compared. A shorter beginning (retention) or end (a replica that is behind) is reported
but is not a difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..archive.checking import check_unit
from ..archive.coverage import ranges_of
from ..archive.manifest import (
    Manifest,
    all_manifests,
    finish,
    missing_files,
    replaced,
    strays,
)
from ..archive.planning import StoreSnapshot, grid_splits, snapshot, split_of
from ..archive.splits import KIND, source_crc
from ..decode import decode
from ..splits import Split
from .running import Report, run_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIGEST_BYTES: Final = 64 << 20
_IDENTITY: Final = (
    *("physicalOffset", "size", "topic", "queueId", "queueOffset", "bodyCRC", "storeTimestamp"),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """The same range of two logs."""

    one: Split
    other: Split


def reconcile_stores(
    spark: SparkSession | None, first: str, second: str, *, digest_bytes: int = DIGEST_BYTES
) -> Report:
    """Compare two logs. Raises UnreachableError, OSError."""
    one, other = snapshot(first, "first"), snapshot(second, "second")
    begin, end = max(one.start, other.start), min(one.end, other.end)
    pairs = list(_pairs(one, other, (begin, end), digest_bytes))
    found = run_parts(spark, pairs, compare, "reconcile")
    report = Report("reconcile", {"first": one.root, "second": other.root})
    report.summary |= {
        "compared_from": begin,
        "compared_to": end,
        "digests": len(pairs),
        "different": sum(bool(text) for text in found),
        "only_first_bytes": max(one.end - max(end, one.start), 0),
        "only_second_bytes": max(other.end - max(end, other.start), 0),
    }
    report.problems = [text for text in found if text]
    if begin >= end:
        report.problems.append("The two logs have no common range.")
    return report


def _pairs(
    one: StoreSnapshot, other: StoreSnapshot, part: tuple[int, int], step: int
) -> Iterator[Pair]:
    begin, end = part
    for cell in grid_splits(one, step, live=True):
        start, stop = max(cell.start, begin), min(cell.end, end)
        if start >= stop:
            continue
        left, right = split_of(one, start, stop), split_of(other, start, stop)
        if left is not None and right is not None:
            yield Pair(left, right)


def compare(pair: Pair) -> str:
    """Return the difference of two ranges; "" if they are equal. Raises OSError."""
    if source_crc(pair.one) == source_crc(pair.other):
        return ""
    extent = f"[{pair.one.start}, {pair.one.end})"
    left, right = (_records(split) for split in (pair.one, pair.other))
    for a, b in zip(left, right, strict=False):
        if a != b:
            return f"The logs differ in {extent}. First difference: {_text(a)} and {_text(b)}."
    if len(left) != len(right):
        extra = (left if len(left) > len(right) else right)[min(len(left), len(right))]
        side = "first" if len(left) > len(right) else "second"
        return f"The logs differ in {extent}. Only the {side} has {_text(extra)}."
    return (
        f"The logs differ in {extent}: the records are equal, other bytes in or between them are "
        "not."
    )


def _records(split: Split) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for batch in decode(split, _IDENTITY, on_corrupt="skip"):
        columns = [batch[name].to_pylist() for name in _IDENTITY]
        found += zip(*columns, strict=True)
    return found


def _text(record: tuple[Any, ...]) -> str:
    offset, _, topic, queue_id, number = record[:5]
    return f"{topic}/{queue_id}/{number} at {offset} (body checksum {record[5]})"


@dataclass(frozen=True, slots=True)
class _Unit:
    root: str
    manifest: Manifest
    split: Split
    moved: dict[str, tuple[str, ...]]


def reconcile_archive(
    spark: SparkSession | None, store: str, archive: str, *, broker: str = ""
) -> Report:
    """Compare a log with its archived ranges. Raises PipelineError, OSError."""
    found = snapshot(store, broker)
    finish(archive)
    manifests = all_manifests(archive)
    units = []
    moved = replaced(manifests)
    for one in manifests:
        if one.about.get("kind") == KIND and one.about["broker"] == found.broker:
            split = split_of(found, one.about["start"], one.about["end"])
            if split is not None:
                units.append(_Unit(archive, one, split, moved))
    results = run_parts(spark, units, _check, "reconcile")
    report = Report("reconcile", {"store": found.root, "archive": archive})
    report.problems = [text for texts in results for text in texts]
    report.problems += [f"{path} is missing." for path in missing_files(archive, manifests)]
    report.problems += [f"{path} is in no commit record." for path in strays(archive, manifests)]
    ranges = ranges_of(manifests, found.broker)
    report.summary |= {
        "units": len(units),
        "archived": ", ".join(f"[{begin}, {end})" for begin, end in ranges),
        "log_start": found.start,
        "log_end": found.end,
    }
    if not units:
        report.problems.append(
            f"The archive has no range of broker {found.broker} that is still in the store."
        )
    return report


def _check(unit: _Unit) -> list[str]:
    return check_unit(unit.root, unit.manifest, unit.split, None, unit.moved)
