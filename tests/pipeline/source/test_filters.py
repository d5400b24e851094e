"""Filters that Spark pushes, and reads by queue: the same rows as a walk of the whole log."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from cometmq.pipeline.selection import NO_END
from cometmq.pipeline.source import store_log
from cometmq.pipeline.source.options import parse
from cometmq.pipeline.source.reader import FilteringLogReader
from cometmq.pipeline.splits import Split
from cometmq.tests.pipeline.logs import BORN_MS, MadeLog, message

TOPICS = ("common", "other", "rare")
COUNT = 300
OPERATORS: dict[type[spark.Filter], Callable[[Any, Any], bool]] = {
    spark.EqualTo: operator.eq,
    spark.In: lambda value, many: value in many,
    spark.GreaterThan: operator.gt,
    spark.GreaterThanOrEqual: operator.ge,
    spark.LessThan: operator.lt,
    spark.LessThanOrEqual: operator.le,
}
EVERY: dict[str, list[dict[str, Any]]] = {}  # rows without filters, by startingOffsets


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> MadeLog:
    made = MadeLog(tmp_path_factory.mktemp("filters") / "b")
    for n in range(COUNT):
        topic = "rare" if n % 97 == 0 else TOPICS[n % 2]
        made.later_ms = n // 50 * 1000
        made.append(message(n, topic, n % 3, body=b"x" * 400))
    assert made.base
    return made


def reader(log: MadeLog, **options: str) -> FilteringLogReader:
    return FilteringLogReader(parse({"path": str(log.root), **options}))


def rows(source: FilteringLogReader) -> list[dict[str, Any]]:
    return [
        row
        for part in source.partitions()
        for batch in source.read(part)
        for row in batch.to_pylist()
    ]


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["msgId"], 16) for row in found)


def matches(row: dict[str, Any], one: Any) -> bool:
    value = row[one.attribute[0]]
    return value is not None and OPERATORS[type(one)](value, one.value)


def values(column: str) -> Any:
    start = datetime.fromtimestamp((BORN_MS + 1_000) / 1000, UTC)
    return {
        "topic": st.sampled_from((*TOPICS, "absent")),
        "tags": st.sampled_from(("T0", "T1", "T2", "none")),
        "queueId": st.integers(0, 3),
        "queueOffset": st.integers(0, 60) | st.just((1 << 63) - 1),
        "storeTimestamp": st.integers(0, 7_000_000).map(
            lambda us: start + timedelta(microseconds=us)
        ),
        "msgId": st.integers(0, COUNT).map(lambda n: f"{n:032X}"),
    }[column]


@st.composite
def filters(draw: Callable[[Any], Any]) -> Any:
    column = draw(
        st.sampled_from(("topic", "tags", "queueId", "queueOffset", "storeTimestamp", "msgId"))
    )
    kind = draw(st.sampled_from(list(OPERATORS)))
    if kind is spark.In:
        return spark.In((column,), draw(st.lists(values(column), min_size=1, max_size=3)))
    return kind((column,), draw(values(column)))


@pytest.mark.parametrize("start", ["", "earliest", '{"b":{"common":{"0":5,"1":-2}}}'])
@settings(max_examples=40, deadline=None)
@given(pushed=st.lists(filters(), min_size=1, max_size=4))
def test_rows_are_those_of_a_read_without_pushed_filters(
    log: MadeLog, start: str, pushed: list[Any]
) -> None:
    options = {"startingOffsets": start} if start else {}
    if start not in EVERY:
        EVERY[start] = rows(reader(log, **options))
    expected = [row for row in EVERY[start] if all(matches(row, one) for one in pushed)]
    source = reader(log, **options)
    left = list(source.pushFilters(pushed))
    found = [row for row in rows(source) if all(matches(row, one) for one in left)]
    assert numbers(found) == numbers(expected)


@pytest.mark.parametrize("column", ["topic", "tags", "queueId"])
def test_values_are_taken_by_the_source_and_others_left_to_spark(log: MadeLog, column: str) -> None:
    value: Any = 1 if column == "queueId" else "rare"
    taken = spark.EqualTo((column,), value)
    nulls = spark.IsNotNull((column,))
    assert list(reader(log).pushFilters([taken, nulls])) == [nulls]


def test_a_rare_topic_is_read_by_its_queues(log: MadeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_log, "_PICK_BYTES", 4096)
    source = reader(log, subscribe="rare", startingOffsets="earliest")
    splits = [part.planned.split for part in source.partitions()]  # type: ignore[attr-defined]
    picked = [split.picked for split in splits if isinstance(split, Split)]
    assert sum(len(one or ()) for one in picked) == 4
    assert numbers(rows(source)) == [n for n in range(COUNT) if n % 97 == 0]
    monkeypatch.setattr(store_log, "_PICK_BYTES", NO_END)
    walked = reader(log, subscribe="rare", startingOffsets="earliest")
    assert rows(walked) == rows(source)


def test_a_queue_that_points_to_no_record_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_log, "_PICK_BYTES", 1)
    made = MadeLog(tmp_path / "b").append(*(message(n, TOPICS[n % 3]) for n in range(60)))
    made.change(made.starts[32] + 28, b"\xff")
    with pytest.raises(Exception, match=r"damaged at offset"):
        rows(reader(made, subscribe="rare", startingOffsets="earliest"))
    kept = reader(made, subscribe="rare", startingOffsets="earliest", onCorrupt="skip")
    assert numbers(rows(kept)) == [n for n in range(60) if n % 3 == 2 and n != 32]
