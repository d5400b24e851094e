"""What every PySpark of the matrix must do, for `scripts/spark_matrix`: reads, streams, sinks.

    python -m cometmq.tests.pipeline.version_driver

Prints a line for each check, and the version at the end.
"""

from __future__ import annotations

import copy
import io
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pyspark
from pyspark.sql import SparkSession, datasource

from cometmq.client.testing.broker import TestBroker
from cometmq.pipeline.pyspark_rocketmq import configure, register
from cometmq.pipeline.spark_api import HAS_LIMITS
from cometmq.tests.pipeline.logs import MadeLog, message
from cometmq.tests.pipeline.reading import whole_topic

T = TypeVar("T")
HAS_FILTERS = hasattr(datasource, "EqualTo")


def patiently(step: Callable[[], T]) -> T:
    """Repeat a step for which a busy machine did not start a Python process in Spark's ten
    seconds."""
    for _ in range(9):
        try:
            return step()
        except Exception as error:
            if "Python worker failed to connect back" not in str(error):
                raise
    return step()


@dataclass(slots=True)
class Query:
    """One streaming query with a checkpoint."""

    spark: Any
    folder: Path
    source: dict[str, str]
    sink: str
    options: dict[str, str]

    def drain(self, **more: str) -> list[dict[str, Any]]:
        """Run it up to the present end. Return the progress of batches with rows."""
        return patiently(lambda: self._drain(**more))

    def _drain(self, **more: str) -> list[dict[str, Any]]:
        query = self._writer(**more).trigger(availableNow=True).start()
        assert query.awaitTermination(300)
        return [one for one in query.recentProgress if one["numInputRows"]]

    def run(self, **more: str) -> list[int]:
        """Run it until it has nothing to do. Return the rows of each batch."""
        return patiently(lambda: self._run(**more))

    def _run(self, **more: str) -> list[int]:
        query = self._writer(**more).start()
        try:
            query.processAllAvailable()
            return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]
        finally:
            query.stop()

    def _writer(self, **more: str) -> Any:
        stream = self.spark.readStream.format("rocketmq")
        for name, value in {"startingOffsets": "earliest", **self.source, **more}.items():
            stream = stream.option(name, value)
        writer = stream.load().writeStream.format(self.sink)
        for name, value in self.options.items():
            writer = writer.option(name, value)
        return writer.option("checkpointLocation", str(self.folder / "checkpoint"))


def pushed_filters(frame: Any) -> str:
    """Return the list of pushed filters that `EXPLAIN FORMATTED` prints."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        frame.explain("formatted")
    (line,) = re.findall(r"^PushedFilters: (.*)$", printed.getvalue(), re.MULTILINE)
    return str(line)


def batch_reads(spark: Any, folder: Path) -> None:
    """A batch gives all rows, with and without filters."""
    log = MadeLog(folder / "store").append(*(message(n, "ab"[n % 2], n % 3) for n in range(300)))
    frame = spark.read.format("rocketmq").option("path", str(log.root))
    assert frame.load().count() == 300
    for pushed in ("false", "true"):
        rows = frame.option("filterPushdown", pushed).load().filter("topic = 'a' and queueId = 2")
        assert rows.count() == 50, pushed
    if HAS_FILTERS:
        where = (
            "topic = 'a' and tags in ('T0', 'T1') and queueId = 2 and queueOffset < 40 "
            "and storeTimestamp > timestamp '2020-01-01'"
        )
        found = pushed_filters(frame.option("filterPushdown", "true").load().filter(where))
        print(f"pushed: {found}", flush=True)
        columns = ("topic", "tags", "queueId", "queueOffset", "storeTimestamp")
        assert all(name in found for name in columns), found


def stream_reads(spark: Any, folder: Path) -> None:
    """Each message once over restarts, limits of a running query, and a loss is reported."""
    log = MadeLog(folder / "store").append(*(message(n, "t", n % 4) for n in range(200)))
    place = {"path": str(folder / "out")}
    query = Query(spark, folder, {"path": str(log.root), "brokerName": "b"}, "parquet", place)
    query.drain()
    assert not query.drain(), "nothing is new"
    log.append(*(message(n, "t", n % 5) for n in range(200, 260)))
    backup = shutil.copytree(log.root, folder / "backup"), copy.deepcopy(log)
    query.drain()
    log.append(*(message(n, "t", n % 4) for n in range(260, 300)))
    query.run(maxOffsetsPerTrigger="7")
    shutil.rmtree(log.root)
    log = replace(backup[1], root=Path(shutil.copytree(backup[0], log.root)), later_ms=10_000)
    log.append(*(message(n, "t", n % 4) for n in range(300, 400)))
    try:
        query.drain()
    except Exception as error:
        assert "not the one of the checkpoint" in str(error), error
    else:
        raise AssertionError("a loss without a word")
    query.drain(failOnDataLoss="false")
    table = spark.read.parquet(str(folder / "out")).select("msgId").collect()
    assert sorted(int(row[0], 16) for row in table) == list(range(400))
    fresh = Query(spark, folder / "limit", query.source, "parquet", {"path": f"{folder}/limited"})
    sizes = fresh.run(maxOffsetsPerTrigger="100")
    assert sum(sizes) == 360, sizes
    assert max(sizes) <= 100 or not HAS_LIMITS, sizes


def sinks(spark: Any, folder: Path) -> None:
    """Rows become messages and files of an archive, from batches and streams."""
    with TestBroker() as broker:
        for topic in ("made", "copy"):
            broker.create_topic(topic, type="normal", queues=2)
        rows = spark.range(60).selectExpr("concat('body ', id) as body", "'made' as topic")
        rows.write.format("rocketmq").mode("append").option("endpoints", broker.endpoints).save()
        source = {"endpoints": broker.endpoints, "subscribe": "made"}
        to = {"endpoints": broker.endpoints, "topic": "copy"}
        Query(spark, folder / "copy", source, "rocketmq", to).drain()
        assert len(whole_topic(broker.endpoints, "copy", 60)) == 60
        to = {"path": str(folder / "archive")}
        Query(spark, folder / "files", source, "rocketmq-archive", to).drain()
        found = spark.read.parquet(str(folder / "archive"))
        assert found.where("storeTimestamp > '2020-01-01' and topic = 'made'").count() == 60
        times = "abs(unix_millis(storeTimestamp) - unix_millis(bornTimestamp)) < 3600000"
        assert found.where(times).count() == 60, "times keep their zone"


CHECKS: tuple[Callable[[Any, Path], None], ...] = (batch_reads, stream_reads, sinks)


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="versions-"))
    builder = configure(SparkSession.builder.master("local[2]").appName("versions"))
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "768m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    try:
        for check in CHECKS:
            check(spark, folder / check.__name__)
            print(f"held: {check.__name__}", flush=True)
    finally:
        spark.stop()
    shutil.rmtree(folder)
    print(f"PySpark {pyspark.__version__}: {len(CHECKS)} checks held")


if __name__ == "__main__":
    main()
