"""Cost of archiving a log (docs/performance.md, Spark).

Prints rows of CPU time. Figure and bound are measured alternately in the same process; the best
round counts (the machine is shared). The log is in the page cache; bodies compress like orders in
JSON.

* archive_split, no Spark: log to synced Parquet (zstd 1), against zstd 1 of the bodies alone.
* the job: MB of log per CPU second of driver, JVM and workers, against Spark's own writer
  (`df.write.partitionBy("topic", "dt").parquet`) over the `rocketmq` source.
* live: rounds of the incremental archive of a broker whose store receives 50 MB/s in its process;
  the lag after each round, and the CPU of broker, driver, JVM and workers.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import process_time_ns
from typing import Any

import psutil

from cometmq.pipeline.archive.planning import grid_splits, snapshot
from cometmq.pipeline.archive.splits import SplitWork, archive_split
from cometmq.pipeline.decode import decode
from cometmq.pipeline.jobs.archive import ArchivePlan, archive
from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.bodies import zstd
from cometmq.store.format.record import Message, encode_properties
from cometmq.store.message_store import MessageStore
from cometmq.tests.bench.rows import Row, show
from cometmq.tests.broker.live import running, settings

MIB = 1 << 20
ROUNDS = 7
BATCH = 256
LIVE_RATE = 50e6
LIVE_SEGMENT = 64 * MIB
_BODY = (
    '{"order": %d, "customer": "c-%d", "items": [{"sku": "sku-%d", "count": %d, "price": %d.%02d}],'
    ' "note": "%x", "address": "%d Long Street, %d Somewhere, Country %d", "state": "created"}'
)


def message(number: int, size: int) -> Message:
    """Make an order: repetitive text, and numbers."""
    seed = number * 2654435761 % (1 << 32)
    text = "".join(
        _BODY
        % (number + at, seed % 9973, seed >> 7, seed % 9, seed % 500, at, seed**3, at, seed, at)
        for at in range(size // 400)
    )
    text += random.Random(number).randbytes(size // 4).hex()
    properties = {"UNIQ_KEY": f"{number:032X}", "KEYS": f"o-{number}", "TAGS": f"t{number % 5}"}
    return Message(
        f"topic-{number % 8}", number // 8 % 4, text.encode(), encode_properties(properties)
    )


def open_store(root: Path, segment: int) -> MessageStore:
    config = StoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=segment,
        message_index_enable=False,
    )
    store = MessageStore(config, lambda: time.time_ns() // 1_000_000)
    store.open()
    store.start()
    return store


def make(root: Path, size: int, body: int) -> float:
    """Make a store of about this many bytes; return its MB of log."""
    store = open_store(root, 256 * MIB)
    number = 0
    while store.log_end < size:
        store.writer.append_many([message(number + at, body) for at in range(BATCH)])
        number += BATCH
        store.writer.dispatch(store.log_end, BATCH)
    end = store.log_end
    store.close()
    return end / 1e6


def seconds(work: Callable[[], object]) -> float:
    begin = process_time_ns()
    work()
    return (process_time_ns() - begin) / 1e9


def compress(bodies: list[bytes]) -> int:
    """Return the compressed size."""
    compressor = zstd().ZstdCompressor(level=1)
    return sum(len(compressor.compress(body, compressor.FLUSH_FRAME)) for body in bodies)


def single(root: Path, folder: Path) -> list[Row]:
    """Measure archive_split against the compressor alone."""
    split = grid_splits(snapshot(str(root)), 256 * MIB, live=True)[0]
    bodies = [
        b"".join(body for body in batch["body"].to_pylist()) for batch in decode(split, ("body",))
    ]
    volume = sum(map(len, bodies)) / 1e6
    log = (split.end - split.start) / 1e6
    whole, checked, raw = [], [], []
    for number in range(ROUNDS):
        work = SplitWork(str(folder / f"one{number}"), split, verify_crc=False)
        whole.append(seconds(partial(archive_split, work)))
        work = SplitWork(str(folder / f"checked{number}"), split)
        checked.append(seconds(partial(archive_split, work)))
        raw.append(seconds(partial(compress, bodies)))
    figure, bound = log / min(whole), volume / min(raw)
    said = f"zstd 1 of the bodies {bound:.0f}"
    ratio = figure / bound
    slower = log / min(checked)
    size = sum(file.stat().st_size for file in (folder / "one0").rglob("*.parquet")) / 1e6
    least = compress(bodies) / 1e6
    return [
        Row("archive a split, zstd 1", figure, "MB/s/core", said, ratio, ">= 0.5", ratio >= 0.5),
        Row("the same with bodies' checksums", slower, "MB/s/core", said, slower / bound),
        Row("its files", size, "MB", f"zstd 1 of the bodies {least:.1f} MB", size / least),
    ]


ROLES = ("driver", "JVM", "workers", "broker")


class Cpu:
    """CPU seconds by role of this process and its descendants, including ended ones."""

    def __init__(self, broker: int = 0) -> None:
        self._broker = broker
        self._begin = self._now()

    def _now(self) -> dict[str, float]:
        me = psutil.Process()
        found = dict.fromkeys(ROLES, 0.0)
        for one in [me, *me.children(recursive=True)]:
            try:
                role = self._role(one, me.pid)
                times = one.cpu_times()
            except psutil.Error:
                continue
            found[role] += times.user + times.system
            if role != "driver":  # whose ended children do not belong to this measurement
                found[role] += times.children_user + times.children_system
        return found

    def _role(self, one: psutil.Process, me: int) -> str:
        if one.pid == me:
            return "driver"
        if one.pid == self._broker:
            return "broker"
        return "JVM" if one.name() == "java" else "workers"

    def by_role(self) -> dict[str, float]:
        return {role: spent - self._begin[role] for role, spent in self._now().items()}

    def spent(self) -> float:
        return sum(self.by_role().values())


def session() -> Any:
    from pyspark.sql import SparkSession

    from cometmq.pipeline.pyspark_rocketmq import configure, register

    builder = configure(SparkSession.builder.master("local[2]").appName("bench"))
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    spark.range(4).count()
    return spark


def job(spark: Any, root: Path, folder: Path, megabytes: float) -> list[Row]:
    """Measure the job against Spark's own Parquet writer."""

    def ours(number: int) -> None:
        plan = ArchivePlan(str(root), str(folder / f"ours{number}"), live=True)
        assert not archive(spark, plan).problems

    def theirs(number: int) -> None:
        frame = spark.read.format("rocketmq").option("path", str(root)).load()
        days = frame.selectExpr("*", "date_format(storeTimestamp, 'yyyy-MM-dd') as dt")
        writer = days.write.partitionBy("topic", "dt").option("compression", "zstd")
        writer.parquet(str(folder / f"theirs{number}"))

    found: dict[str, list[float]] = {"ours": [], "theirs": []}
    for number in range(2):
        for name, work in (("ours", ours), ("theirs", theirs)):
            cpu = Cpu()
            work(number)
            found[name].append(megabytes / cpu.spent())
    figure, bound = max(found["ours"]), max(found["theirs"])
    return [
        Row(
            *(
                "archive job",
                figure,
                "MB/CPU-s",
                f"Spark's own Parquet writer {bound:.0f} MB/CPU-s",
            ),
            *(figure / bound, ">= 2", figure / bound >= 2),
        )
    ]


def live(spark: Any, folder: Path, run_s: float) -> list[Row]:
    """Run rounds of the incremental archive of a broker that receives 50 MB/s."""
    root, out = folder / "live", str(folder / "live-archive")
    command = [sys.executable, "-P", "-m", "cometmq.tests.bench.spark.archive"]
    command += ["--write", str(root), "--seconds", str(run_s)]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert writer.stdin is not None
    assert writer.stdout is not None
    writer.stdout.readline()  # ready
    cpu = Cpu(writer.pid)
    writer.stdin.write(b"go\n")
    writer.stdin.flush()
    began = time.monotonic()
    known, behind = 0, []
    while time.monotonic() - began < run_s:
        report = archive(spark, ArchivePlan(str(root), out, live=True), known_end=known)
        assert not report.problems
        known = report.summary["log_end"]
        behind.append((snapshot(str(root), known=known).end - known) / 1e6)
    took = time.monotonic() - began
    written = snapshot(str(root), known=known).end / 1e6
    spent = cpu.by_role()
    writer.stdin.close()  # kept until it was read
    writer.wait(60)
    report = archive(spark, ArchivePlan(str(root), out, live=True), known_end=known)
    assert report.summary["log_end"] == report.rows[-1]["end"]
    rate = min(written, report.summary["log_end"] / 1e6) / took
    print(f"live: behind after each round, MB: {[round(mb) for mb in behind]}", file=sys.stderr)
    return [
        Row("live: the broker is fed with", rate, "MB/s", "50 MB/s wanted", rate / 50, "", None),
        _behind(behind),
        Row(
            *(
                "live: CPU of driver, JVM, workers and broker",
                sum(spent.values()) / took,
                "cores",
            ),
            ", ".join(f"{role} {seconds / took:.2f}" for role, seconds in spent.items()),
        ),
    ]


def _behind(behind: list[float]) -> Row:
    """Return the lag after a round."""
    worst = max(behind[1:] or behind)
    half = len(behind) // 2
    kept = worst < LIVE_RATE / 1e6 * 15 and behind[-1] <= 2 * max(behind[: half + 1])
    name = "live: most that the archive was behind after a round"
    middle = sorted(behind)[half]
    said = f"{len(behind)} rounds, median {middle:.0f}, last {behind[-1]:.0f}"
    return Row(name, worst, "MB", said, target="keeps up", met=kept)


async def write(root: Path, run_s: float) -> None:
    """Append 50 MB/s on the loop of a broker, below its services, then wait."""
    chosen = settings(root)
    config = replace(
        chosen.store, mapped_file_size_commit_log=LIVE_SEGMENT, file_reserved_time=100_000
    )
    sample = [[message(number * BATCH + at, 1000) for at in range(BATCH)] for number in range(16)]
    async with running(replace(chosen, store=config)) as broker:
        node = broker.node
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        began, first, number = time.monotonic(), node.store.log_end, 0
        while (now := time.monotonic() - began) < run_s:
            if node.store.log_end - first < now * LIVE_RATE:
                node.store.writer.append_many(sample[number % len(sample)])
                node.pump.appended()
                number += 1
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(0.002)
        print(f"fed: {(node.store.log_end - first) / 1e6 / now:.1f} MB/s", file=sys.stderr)
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512, help="of log for the job")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the live part")
    parser.add_argument("--write", type=Path, help="be the broker of the live part")
    parser.add_argument("--part", choices=["single", "job", "live"], help="only this one")
    parser.add_argument("--directory", help="where the files are made")
    options = parser.parse_args()
    if options.write:
        options.write.mkdir(parents=True)
        asyncio.run(write(options.write, options.seconds))
        return
    folder = Path(tempfile.mkdtemp(prefix="spark-archive-", dir=options.directory))
    rows: list[Row] = []
    try:
        megabytes = make(folder / "store", options.mib * MIB, 1000)
        if options.part in (None, "single"):
            rows += single(folder / "store", folder)
        if options.part in (None, "job", "live"):
            spark = session()
            if options.part in (None, "job"):
                rows += job(spark, folder / "store", folder, megabytes)
            if options.part in (None, "live"):
                rows += live(spark, folder, options.seconds)
            spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show(rows)


if __name__ == "__main__":
    main()
