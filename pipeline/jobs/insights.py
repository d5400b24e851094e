"""Job insights: statistics of a log: rates, sizes, latency, lag, hot keys, skew.

    insights(spark, "/data/store", "/report")

Only the fixed parts of records and their keys are read. Each task counts its split; the driver adds
up the counts and writes a Parquet table per statistic and a self-contained HTML page with charts.
Latency is store time minus born time, from the clocks of broker and sender. Lag is the end of a
queue in the log minus the offset in `config/consumerOffset.json`. Hot keys are the sums of the most
frequent keys of each split; keys that are infrequent in every split are not counted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...store.format.json_file import loads
from ...store.format.layout import CONFIG_FOLDER
from ...store.scan.properties import by_queue, value_spans
from ...store.scan.raw import BytesTable
from ..archive.planning import grid_splits, snapshot
from ..errors import PipelineError
from ..selection import is_system_topic
from ..splits import SPLIT_BYTES, Split
from .insights_html import page
from .running import Report, run_parts
from .walking import RecordColumns, SplitWalk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MINUTE_MS: Final = 60_000
SIZE_EDGES: Final = tuple(1 << power for power in range(6, 24, 2))
LATENCY_EDGES: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000),
    *(600_000, 3_600_000),
)
#: Keys kept per part of the log, and keys in the report.
_KEYS_KEPT: Final = 256
_KEYS_SHOWN: Final = 50


@dataclass(slots=True)
class InsightsDone:
    """Counts of one task."""

    records: int = 0
    queues: dict[tuple[str, int], list[int]] = field(default_factory=dict)  #: count, bytes, end
    rates: dict[tuple[str, int], list[int]] = field(default_factory=dict)  #: by topic and minute
    sizes: dict[str, Any] = field(default_factory=dict)
    latencies: dict[str, Any] = field(default_factory=dict)
    keys: Counter[tuple[str, str]] = field(default_factory=Counter)


def insights(
    spark: SparkSession | None,
    root: str,
    out: str,
    *,
    include_system: bool = False,
    split_bytes: int = SPLIT_BYTES,
) -> Report:
    """Collect the statistics and write tables and page to `out`. Raises PipelineError, OSError."""
    store = snapshot(root)
    out = os.path.abspath(out)
    if out.startswith(store.root + os.sep):
        raise PipelineError(f"{out} is inside the store. Use a folder outside it.")
    parts = [(split, include_system) for split in grid_splits(store, split_bytes, live=True)]
    done = _added(run_parts(spark, parts, insights_part, "insights"))
    tables = {
        "rates": _rates(done),
        "queues": _queues(done),
        "sizes": _histogram(done.sizes, SIZE_EDGES, "below_bytes"),
        "latency": _histogram(done.latencies, LATENCY_EDGES, "below_ms"),
        "keys": _keys(done),
        "lag": _lag(store.root, done, include_system),
        "skew": _skew(done),
    }
    os.makedirs(out, exist_ok=True)
    for name, rows in tables.items():
        table = pa.Table.from_pylist(rows) if rows else pa.table({})
        pq.write_table(table, os.path.join(out, f"{name}.parquet"))
    path = os.path.join(out, "report.html")
    summary = {"store": store.root, "records": done.records, "out": out}
    with open(path, "w", encoding="utf-8") as file:
        file.write(page(store.root, done.records, tables))
    return Report("insights", summary | {"page": path}, _overview(tables))


def insights_part(part: tuple[Split, bool]) -> InsightsDone:
    """Count one split; runs in a task. Raises OSError."""
    split, include_system = part
    done = InsightsDone()
    for rows in SplitWalk(split):
        _count(rows, done, include_system)
    return done


def _count(rows: RecordColumns, done: InsightsDone, include_system: bool) -> None:
    columns = rows.columns
    minutes = columns.store_timestamp // _MINUTE_MS
    latency = np.maximum(columns.store_timestamp - columns.born_timestamp, 0)
    for topic_id, queue_id, which in by_queue(columns):
        topic = rows.topics.names[topic_id]
        if not include_system and is_system_topic(topic) and not topic.startswith("%"):
            continue
        done.records += len(which)
        sizes = columns.body_length[which]
        known = done.queues.setdefault((topic, queue_id), [0, 0, 0])
        known[0] += len(which)
        known[1] += int(sizes.sum())
        known[2] = max(known[2], int(columns.queue_offset[which].max()) + 1)
        found, group = np.unique(minutes[which], return_inverse=True)
        counts = np.bincount(group)
        volume = np.bincount(group, weights=sizes)
        for minute, count, size in zip(
            found.tolist(), counts.tolist(), volume.tolist(), strict=True
        ):
            rate = done.rates.setdefault((topic, minute), [0, 0])
            rate[0] += count
            rate[1] += int(size)
        _bump(done.sizes, topic, sizes, SIZE_EDGES)
        _bump(done.latencies, topic, latency[which], LATENCY_EDGES)
        done.keys.update(_frequent(rows, topic, which))


def _bump(found: dict[str, Any], topic: str, values: Any, edges: tuple[int, ...]) -> None:
    counts = np.bincount(np.searchsorted(edges, values, "right"), minlength=len(edges) + 1)
    found[topic] = found[topic] + counts if topic in found else counts


def _frequent(rows: RecordColumns, topic: str, which: Any) -> dict[tuple[str, str], int]:
    """Return the most frequent keys of these records."""
    columns = rows.columns
    starts, lengths = columns.properties_start[which], columns.properties_length[which]
    at, sizes = value_spans(rows.raw, starts, lengths, b"KEYS")
    keyed = np.flatnonzero(sizes)
    if not len(keyed):
        return {}
    table = BytesTable()
    counts = np.bincount(table.numbers(rows.raw, at[keyed], sizes[keyed]))
    found: Counter[tuple[str, str]] = Counter()
    for number in np.argsort(counts)[::-1][:_KEYS_KEPT].tolist():
        for key in table.values[number].decode(errors="replace").split():
            found[topic, key] += int(counts[number])
    return found


def _added(parts: Iterable[InsightsDone]) -> InsightsDone:
    done = InsightsDone()
    for part in parts:
        done.records += part.records
        done.keys.update(part.keys)
        for queue, (count, size, end) in part.queues.items():
            known = done.queues.setdefault(queue, [0, 0, 0])
            known[0] += count
            known[1] += size
            known[2] = max(known[2], end)
        for minute, (count, size) in part.rates.items():
            rate = done.rates.setdefault(minute, [0, 0])
            rate[0] += count
            rate[1] += size
        for mine, theirs in ((done.sizes, part.sizes), (done.latencies, part.latencies)):
            for topic, counts in theirs.items():
                mine[topic] = mine[topic] + counts if topic in mine else counts
    return done


def _rates(done: InsightsDone) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "minute_ms": minute * _MINUTE_MS, "messages": count, "bytes": size}
        for (topic, minute), (count, size) in sorted(done.rates.items())
    ]


def _queues(done: InsightsDone) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "queue": queue, "messages": count, "bytes": size, "end": end}
        for (topic, queue), (count, size, end) in sorted(done.queues.items())
    ]


def _histogram(found: dict[str, Any], edges: tuple[int, ...], column: str) -> list[dict[str, Any]]:
    return [
        {"topic": topic, column: edge, "messages": int(count)}
        for topic, counts in sorted(found.items())
        for edge, count in zip((*edges, -1), counts.tolist(), strict=True)
        if count
    ]


def _keys(done: InsightsDone) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "key": key, "messages": count}
        for (topic, key), count in done.keys.most_common(_KEYS_SHOWN)
    ]


def _skew(done: InsightsDone) -> list[dict[str, Any]]:
    """Return the imbalance of each topic's queues."""
    topics: dict[str, list[int]] = {}
    for (topic, _), (count, _, _) in done.queues.items():
        topics.setdefault(topic, []).append(count)
    return [
        {
            "topic": topic,
            "queues": len(counts),
            "messages": sum(counts),
            "largest_share": max(counts) / sum(counts),
            "largest_to_mean": max(counts) * len(counts) / sum(counts),
        }
        for topic, counts in sorted(topics.items())
    ]


def _lag(root: str, done: InsightsDone, include_system: bool) -> list[dict[str, Any]]:
    path = os.path.join(root, CONFIG_FOLDER, "consumerOffset.json")
    try:
        with open(path, encoding="utf-8") as file:
            table = loads(file.read())["offsetTable"]
        pairs = [(name, {int(q): int(n) for q, n in one.items()}) for name, one in table.items()]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, AttributeError, TypeError):
        return []  # incompletely written: report no lag
    found = []
    for name, offsets in sorted(pairs):
        topic, _, group = name.partition("@")
        if not include_system and is_system_topic(topic) and not topic.startswith("%"):
            continue
        for queue, offset in sorted(offsets.items()):
            end = done.queues.get((topic, queue), [0, 0, offset])[2]
            row = {"group": group, "topic": topic, "queue": queue, "offset": offset, "end": end}
            found.append(row | {"lag": max(end - offset, 0)})
    return found


def _overview(tables: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    sizes: dict[str, int] = {}
    for row in tables["queues"]:
        sizes[row["topic"]] = sizes.get(row["topic"], 0) + row["bytes"]
    return [
        {
            "topic": row["topic"],
            "queues": row["queues"],
            "messages": row["messages"],
            "bytes": sizes[row["topic"]],
            "largest_to_mean": round(row["largest_to_mean"], 2),
        }
        for row in tables["skew"]
    ]
