"""Cost of reading a log for Spark (docs/performance.md, Spark).

Prints rows of CPU time. Every figure has a bound measured in the same process, in alternating
rounds; the best round counts (the machine is shared). The log is in the page cache.

* decoder, no Spark: against `memcpy` of the same mapped bytes, and against a plain struct loop.
* Spark: MB of log per CPU second of driver, JVM and Python workers together; the bound is a source
  of ready-made batches of the same schema and size.
* network: the same scan through `Admin.ReadLog`, including the broker's CPU.
"""

from __future__ import annotations

import argparse
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import process_time_ns
from typing import Any

import numpy as np
import psutil

from cometmq.pipeline.decode import decode
from cometmq.pipeline.schema import COLUMNS, METADATA_COLUMNS, arrow_schema, ddl
from cometmq.pipeline.splits import SPLIT_BYTES, Split, plan
from cometmq.store.format.record_layout import (
    FIXED_V4,
)
from cometmq.tests.bench.rows import Row, show
from cometmq.tests.bench.spark.logs import MIB, BrokerOn, make_log

ROUNDS = 5
SPARK_ROUNDS = 3
#: Splits of the log, to measure the cost of one more.
SPLITS = 20
#: The measured columns: all fields of the record itself.
FOURTEEN = tuple(
    name
    for name in COLUMNS
    if name not in ("brokerName", "msgId", "tags", "keys", "bornHost", "storeHost")
)


def seconds(work: Callable[[], object]) -> float:
    begin = process_time_ns()
    work()
    return (process_time_ns() - begin) / 1e9


def drain(split: Split, columns: Sequence[str], form: Any) -> None:
    for _ in decode(split, columns, properties=form):
        pass


def copy(split: Split) -> None:
    """Copy the same bytes out of a fresh map: the bound."""
    with (
        open(split.path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view,
    ):
        source = np.frombuffer(view, np.uint8)[: split.end - split.base]
        target = np.empty(8 * MIB, np.uint8)
        for at in range(0, len(source), len(target)):
            part = source[at : at + len(target)]
            target[: len(part)] = part
        del source, part


def struct_loop(split: Split) -> None:
    """Read record by record with `struct`, properties as a dict: a reader without NumPy."""
    with open(split.path, "rb") as file:
        data = file.read(split.end - split.base)
    unpack, size = FIXED_V4.unpack_from, len(data)
    position = 0
    rows = []
    while position < size:
        fixed = unpack(data, position)
        body_at = position + FIXED_V4.size
        body_end = body_at + fixed[14]
        topic_end = body_end + 1 + data[body_end]
        text = data[topic_end + 2 : position + fixed[0]].decode()
        properties = dict(pair.split("\x01", 1) for pair in text.split("\x02") if pair)
        topic = data[body_end + 1 : topic_end].decode()
        rows.append((topic, data[body_at:body_end], properties, *fixed))
        position += fixed[0]
        if len(rows) == 8192:
            rows = []


def best(rounds: int, *works: Callable[[], float]) -> list[float]:
    found = [[work() for work in works] for _ in range(rounds)]
    return [min(column) for column in zip(*found, strict=True)]


def decoder_rows(root: Path, label: str, targets: dict[str, float]) -> Iterator[Row]:
    (split,) = plan([str(root)], 1 << 40)
    mb = (split.end - split.start) / 1e6
    cases: dict[str, tuple[Sequence[str], str]] = {
        "metadata, 7 columns": (METADATA_COLUMNS, "none"),
        "14 columns, raw properties": (FOURTEEN, "string"),
        "14 columns, map": (FOURTEEN, "map"),
        "all 20 columns, map": (COLUMNS, "map"),
    }
    drain(split, COLUMNS, "map")
    works = [lambda: seconds(lambda: copy(split))]
    works += [
        lambda columns=columns, form=form: seconds(lambda: drain(split, columns, form))  # type: ignore[misc]
        for columns, form in cases.values()
    ]
    found = best(ROUNDS, *works)
    loop = seconds(lambda: struct_loop(split))
    bound = mb / found[0]
    for name, took in zip(cases, found[1:], strict=True):
        target = targets.get(name)
        ratio = found[0] / took
        yield Row(
            f"{label}: {name}",
            mb / took,
            "MB/cpu-s",
            f"memcpy {bound:,.0f}",
            ratio,
            f">= {target}" if target else "",
            ratio >= target if target else None,
        )
    for name, took in list(zip(cases, found[1:], strict=True))[1:3]:
        yield Row(
            f"{label}: {name} against a struct loop",
            loop / took,
            "x",
            f"{mb / loop:,.0f} MB/cpu-s",
            None,
            ">= 3",
            loop / took >= 3,
        )


class Meter:
    """CPU seconds of this process, its children (JVM and workers), and others."""

    def __init__(self, *others: int) -> None:
        self._others = others

    def cpu(self) -> float:
        total = 0.0
        for process in [psutil.Process(), *map(psutil.Process, self._others)]:
            for one in [process, *process.children(recursive=True)]:
                try:
                    times = one.cpu_times()
                except psutil.Error:
                    continue
                # Including ended children, because workers are replaced.
                total += times.user + times.system + times.children_user + times.children_system
        return total

    def of(self, work: Callable[[], object]) -> float:
        begin = self.cpu()
        work()
        return self.cpu() - begin


def scan(spark: Any, mb: float, meter: Meter, **options: str) -> Callable[[], float]:
    def run() -> float:
        reader = spark.read.format("rocketmq")
        for name, value in options.items():
            reader = reader.option(name, value)
        frame = reader.load()
        return meter.of(lambda: frame.write.format("noop").mode("overwrite").save())

    run()
    return run


def constant_source(rows_total: int, sample: Any, splits: int) -> type:
    """Make a source of ready-made batches: the cost of the transfer to the JVM."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    batches = max(round(rows_total / len(sample) / splits), 1)
    import pyarrow as pa

    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, sample.schema) as writer:
        writer.write_batch(sample)
    data = out.getvalue().to_pybytes()

    class Reader(DataSourceReader):
        def partitions(self) -> list[Any]:
            return [InputPartition(number) for number in range(splits)]

        def read(self, partition: Any) -> Iterator[Any]:
            import pyarrow

            batch = pyarrow.ipc.open_stream(data).read_next_batch()
            for _ in range(batches):
                yield batch

    class Constant(DataSource):
        @classmethod
        def name(cls) -> str:
            return "constant"

        def schema(self) -> str:
            return ddl()

        def reader(self, schema: Any) -> Any:
            return Reader()

    return Constant


def session() -> Any:
    from pyspark.sql import SparkSession

    from cometmq.pipeline.pyspark_rocketmq import configure, register

    builder = configure(SparkSession.builder.master("local[2]").appName("spark_scan"))
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def spark_rows(root: Path, mb: float) -> Iterator[Row]:
    spark = session()
    meter = Meter()
    split_bytes = str(SPLIT_BYTES)  # the default; the cost of a split is a separate row
    splits = plan([str(root)], int(split_bytes))
    sample = next(decode(splits[0]))
    assert sample.schema == arrow_schema()
    count = sum(len(batch) for split in splits for batch in decode(split, ("queueId",)))
    spark.dataSource.register(constant_source(count, sample, len(splits)))

    def constant() -> float:
        frame = spark.read.format("constant").load()
        return meter.of(lambda: frame.write.format("noop").mode("overwrite").save())

    constant()
    path = {"path": str(root), "splitBytes": split_bytes}
    whole = scan(spark, mb, meter, **path)
    metadata = scan(spark, mb, meter, columns=",".join(METADATA_COLUMNS), properties="none", **path)
    took = best(SPARK_ROUNDS, constant, whole, metadata)
    ratio = took[0] / took[1]
    yield Row(
        "Spark scan, all columns",
        mb / took[1],
        "MB/cpu-s",
        f"constant {mb / took[0]:,.0f}",
        ratio,
        ">= 0.6",
        ratio >= 0.6,
    )
    ratio = took[1] / took[2]
    yield Row(
        "Spark scan, metadata",
        mb / took[2],
        "MB/cpu-s",
        f"all columns {mb / took[1]:,.0f}",
        ratio,
        ">= 2",
        ratio >= 2,
    )
    yield from split_rows(spark, root, mb, meter)
    with BrokerOn(root) as (address, pid):
        with_broker = Meter(pid) if not _is_child(pid) else Meter()
        wire = scan(
            spark,
            mb,
            with_broker,
            endpoints=address,
            includeSystemTopics="true",
            splitBytes=split_bytes,
        )
        files, over_wire = best(SPARK_ROUNDS, whole, wire)
        ratio = files / over_wire
        yield Row(
            "wire source, all columns, the broker's CPU added",
            mb / over_wire,
            "MB/cpu-s",
            f"files {mb / files:,.0f}",
            ratio,
            ">= 0.4",
            ratio >= 0.4,
        )
    yield from stream_rows(spark, root)
    spark.stop()


def split_rows(spark: Any, root: Path, mb: float, meter: Meter) -> Iterator[Row]:
    """Measure the cost of one more split, also relative to a split of the default size."""
    few, many = (str(int(mb * 1e6) // count + 1) for count in (2, SPLITS))
    meta = {"columns": ",".join(METADATA_COLUMNS), "properties": "none"}
    works = [
        scan(spark, mb, meter, path=str(root), splitBytes=size, **more)
        for more in (meta, {})
        for size in (few, many)
    ]
    meta_few, meta_many, all_few, all_many = best(SPARK_ROUNDS, *works)
    extra = (meta_many - meta_few) / (SPLITS - 2)
    yield Row(
        f"one more split: 2 against {SPLITS} splits, metadata",
        extra * 1e3,
        "CPU-ms",
        f"{meta_few:.2f} s against {meta_many:.2f} s, "
        f"all columns {all_few:.2f} and {all_many:.2f} s",
    )
    default = SPLIT_BYTES / 1e6 / mb  # of the log
    yield Row(
        "of a split of the default size that is, metadata",
        100 * extra / (meta_few * default),
        "%",
        f"all columns {100 * extra / (all_few * default):.1f} %, {SPLIT_BYTES // MIB} MiB",
        None,
        "splitBytes >= 256 MiB",
        SPLIT_BYTES >= 256 * MIB,
    )


def _is_child(pid: int) -> bool:
    return pid in {one.pid for one in psutil.Process().children(recursive=True)}


def stream_rows(spark: Any, root: Path) -> Iterator[Row]:
    """Measure a micro-batch of 100 messages: the fixed cost of a batch."""
    with tempfile.TemporaryDirectory() as folder:
        stream = (
            spark.readStream.format("rocketmq")
            .option("path", str(root))
            .option("subscribe", "topic-00")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "100")
            .load()
        )
        query = stream.writeStream.format("noop").option("checkpointLocation", folder).start()
        stop = time.monotonic() + 40
        while time.monotonic() < stop and len(query.recentProgress) < 25:
            time.sleep(0.2)
        took = sorted(one["durationMs"]["triggerExecution"] for one in query.recentProgress[3:])
        query.stop()
    middle = took[len(took) // 2]
    yield Row(
        "a micro-batch of 100 messages, wall, median",
        middle,
        "ms",
        "",
        None,
        "<= 600",
        middle <= 600,
    )


def main() -> int:
    """`python -m cometmq.tests.bench.spark.scan [--mib N] [--no-spark]`"""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512, help="log of 1 KiB bodies")
    parser.add_argument("--no-spark", action="store_true")
    arguments = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        large, small = Path(folder) / "c1k", Path(folder) / "c128"
        mb = make_log(large, 1024, arguments.mib * MIB)
        make_log(small, 128, arguments.mib * MIB // 4)
        rows += decoder_rows(
            large,
            "1 KiB",
            {
                "metadata, 7 columns": 0.20,
                "14 columns, raw properties": 0.12,
                "14 columns, map": 0.09,
            },
        )
        rows += decoder_rows(small, "128 B", {"14 columns, map": 0.04})
        if not arguments.no_spark:
            rows += spark_rows(large, mb)
    show(rows)
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
