"""Streaming source from store directories: restarts, limits, new queues, retention."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from cometmq.pipeline.errors import DataLossError
from cometmq.pipeline.source.options import parse
from cometmq.pipeline.source.stream import LogStreamReader
from cometmq.pipeline.source.stream_without_start import StreamReaderWithoutStart
from cometmq.tests.pipeline.logs import MadeLog, message


def reader(log: MadeLog, **options: str) -> LogStreamReader:
    given = {"path": str(log.root), "startingOffsets": "earliest", "brokerName": "b", **options}
    return LogStreamReader(parse(given))


def rows(source: LogStreamReader, start: Any, end: Any) -> list[int]:
    found: list[int] = []
    for part in source.partitions(start, end):
        for batch in source.read(part):
            found += [int(row["msgId"], 16) for row in batch.to_pylist()]
    return found


def test_micro_batches_give_every_message_once_within_their_limits(tmp_path: Path) -> None:
    log = MadeLog(tmp_path)
    log.append(*(message(n, "ab"[n % 2], n % 3) for n in range(500)))
    for limit, most in ((ReadMaxRows(60), 60), (ReadMaxBytes(9_000), 80), (ReadMaxRows(1), 1)):
        source = reader(log)
        at = source.initialOffset()
        found: list[int] = []
        while (end := source.latestOffset(at, limit)) != at:
            some = rows(source, at, end)
            assert 0 < len(some) <= most
            found += some
            at = end
            if most == 1 and len(found) == 5:
                break
        assert found == list(range(len(found)))
        assert most == 1 or len(found) == 500


def test_appended_messages_and_new_queues_are_read_next(tmp_path: Path) -> None:
    log = MadeLog(tmp_path).append(*(message(n) for n in range(10)))
    source = reader(log)
    start = source.initialOffset()
    first = source.latestOffset(start, ReadAllAvailable())
    assert rows(source, start, first) == list(range(10))
    assert source.latestOffset(first, ReadAllAvailable()) == first
    log.append(message(10), message(11, "t", 5), message(12, "new", 0))
    second = source.latestOffset(first, ReadAllAvailable())
    assert second["b"] == {"t": {"0": 11, "5": 1}, "new": {"0": 1}}
    assert rows(source, first, second) == [10, 11, 12]


def test_a_stream_may_start_before_its_topic_exists_and_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = MadeLog(tmp_path).append(*(message(n, "orders") for n in range(10)))
    source = reader(log, subscribe="ordesr", startingOffsets="latest")
    start = source.initialOffset()
    warning = (
        f"There is no topic 'ordesr' in {tmp_path}. Did you mean 'orders'? The query waits for it."
    )
    assert warning in caplog.text
    assert source.latestOffset(start, ReadAllAvailable()) == start
    log.append(*(message(n, "ordesr") for n in range(10, 13)))
    end = source.latestOffset(start, ReadAllAvailable())
    assert rows(source, start, end) == [10, 11, 12]


def test_a_repeated_batch_has_the_same_tasks(tmp_path: Path) -> None:
    """Another number of tasks after a restart would leave files of the first attempt."""
    log = MadeLog(tmp_path).append(*(message(n) for n in range(600)))
    source = reader(log, splitBytes="20000")
    start = source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    first = [part.planned.split for part in source.partitions(start, end)]  # type: ignore[attr-defined]
    assert len(first) > 3
    log.append(*(message(n) for n in range(600, 700)))
    again = reader(log, splitBytes="777777")
    assert [p.planned.split for p in again.partitions(start, end)] == first  # type: ignore[attr-defined]
    assert rows(again, start, end) == list(range(600))


def test_available_now_reads_up_to_the_current_ends(tmp_path: Path) -> None:
    log = MadeLog(tmp_path).append(*(message(n) for n in range(10)))
    source = reader(log, minOffsetsPerTrigger="1000")
    start = source.initialOffset()
    source.prepareForTriggerAvailableNow()
    log.append(*(message(n) for n in range(10, 20)))
    end = source.latestOffset(start, ReadAllAvailable())
    assert rows(source, start, end) == list(range(10))
    assert source.latestOffset(end, ReadAllAvailable()) == end


def test_few_messages_wait_for_more_up_to_the_maximum_delay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("cometmq.pipeline.source.stream.steady_s", lambda: now[0])
    log = MadeLog(tmp_path).append(*(message(n) for n in range(5)))
    source = reader(log, minOffsetsPerTrigger="8", maxTriggerDelay="10s")
    start = source.initialOffset()
    first = source.latestOffset(start, ReadAllAvailable())
    assert rows(source, start, first) == list(range(5)), "the first batch starts at once"
    log.append(*(message(n) for n in range(5, 10)))
    assert source.latestOffset(first, ReadAllAvailable()) == first
    now[0] += 11
    second = source.latestOffset(first, ReadAllAvailable())
    assert rows(source, first, second) == list(range(5, 10))
    log.append(*(message(n) for n in range(10, 18)))
    assert source.latestOffset(second, ReadAllAvailable()) != second


def without_start(log: MadeLog, **options: str) -> StreamReaderWithoutStart:
    """Return the reader of Spark 4.0 and 4.1."""
    given = {"path": str(log.root), "startingOffsets": "earliest", "brokerName": "b", **options}
    return StreamReaderWithoutStart(parse(given))


def test_an_older_spark_reads_each_message_once_with_limits_from_the_second_batch_on(
    tmp_path: Path,
) -> None:
    log = MadeLog(tmp_path).append(*(message(n, "t", n % 3) for n in range(100)))
    source = without_start(log, maxOffsetsPerTrigger="20")
    at = source.latestOffset()
    assert rows(source, source.initialOffset(), at) == list(range(100))
    log.append(*(message(n, "t", n % 5) for n in range(100, 200)))
    found: list[int] = []
    while (end := source.latestOffset()) != at:
        some = rows(source, at, end)
        assert 0 < len(some) <= 20
        found, at = found + some, end
    assert found == list(range(100, 200))
    again = without_start(log)
    assert rows(again, at, again.latestOffset()) == []


@pytest.mark.parametrize("strict", [True, False])
def test_an_older_spark_reports_a_loss_when_a_restarted_query_plans_its_first_batch(
    tmp_path: Path, strict: bool
) -> None:
    log = MadeLog(tmp_path).append(*(message(n) for n in range(100)))
    source = without_start(log)
    at = source.initialOffset()
    log.append(*(message(n) for n in range(100, 1000)))
    (log.root / "commitlog" / f"{0:020d}").unlink()
    again = without_start(log, failOnDataLoss=str(strict).lower())
    end = again.latestOffset()
    if strict:
        with pytest.raises(DataLossError, match=r"checkpoint is at 0: messages 0 to \d+ are lost"):
            again.partitions(at, end)
        return
    read = rows(again, at, end)
    assert read == list(range(read[0], 1000))
    log.append(message(1000))
    assert again.latestOffset()["$lost"] == read[0]


def test_messages_deleted_by_retention_are_data_loss(tmp_path: Path) -> None:
    log = MadeLog(tmp_path).append(*(message(n) for n in range(900)))
    source = reader(log)
    start = source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(DataLossError, match="Retention deleted them"):
        source.partitions(start, end)
    calm = reader(log, failOnDataLoss="false")
    found = rows(calm, start, end)
    assert found == list(range(900 - len(found), 900))
    assert 0 < len(found) < 900


def test_a_topic_deleted_and_created_again_is_data_loss(tmp_path: Path) -> None:
    """Its offsets restart at 0: the old offsets would skip its messages."""
    log = MadeLog(tmp_path / "old").append(*(message(n) for n in range(50)))
    source = reader(log)
    start = source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    new = MadeLog(tmp_path / "new").append(message(0))
    with pytest.raises(DataLossError, match=r"Queue 0 of t .b. has messages 0 to 1"):
        reader(new).partitions(start, end)


def test_a_restarted_query_continues_at_its_checkpoint(spark: Any, tmp_path: Path) -> None:
    """Also when the log was restored from a backup, and when retention was faster."""
    log = MadeLog(tmp_path / "store").append(*(message(n, "t", n % 4) for n in range(300)))

    def drain(**options: str) -> list[dict[str, Any]]:
        stream = spark.readStream.format("rocketmq").option("path", str(log.root))
        for name, value in {"startingOffsets": "earliest", **options}.items():
            stream = stream.option(name, value)
        query = (
            stream.load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(100)
        return [one for one in query.recentProgress if one["numInputRows"]]

    def rows(progress: list[dict[str, Any]]) -> list[int]:
        return [one["numInputRows"] for one in progress]

    assert max(rows(drain(maxOffsetsPerTrigger="130"))) <= 130
    backup = shutil.copytree(log.root, tmp_path / "backup"), copy.deepcopy(log)
    log.append(*(message(n, "t", n % 5) for n in range(300, 400)))
    assert sum(rows(drain(splitBytes="5000", minPartitions="2"))) == 100

    shutil.rmtree(log.root)
    log = replace(backup[1], root=Path(shutil.copytree(backup[0], log.root)), later_ms=10_000)
    log.append(*(message(n, "t", n % 4) for n in range(400, 520)))
    with pytest.raises(Exception, match=r"not the one of the checkpoint.*failOnDataLoss=false"):
        drain()
    assert sum(rows(drain(failOnDataLoss="false"))) == 120
    table = spark.read.parquet(str(tmp_path / "out")).select("msgId").collect()
    assert sorted(int(row[0], 16) for row in table) == list(range(520))

    log.append(*(message(n, "t", n % 4) for n in range(520, 1500)))
    (log.root / "commitlog" / f"{0:020d}").unlink()
    (progress,) = drain(failOnDataLoss="false")
    lost = 980 - progress["numInputRows"]
    assert 0 < lost < 980
    assert json.loads(progress["sources"][0]["endOffset"])["$lost"] == lost


def test_a_stream_with_an_end_is_refused(spark: Any, tmp_path: Path) -> None:
    MadeLog(tmp_path).append(message(0))
    stream = spark.readStream.format("rocketmq").option("path", str(tmp_path))
    with pytest.raises(Exception, match="A stream has no end"):
        stream.option("endingOffsets", "latest").load().writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "c")
        ).start().awaitTermination(60)
