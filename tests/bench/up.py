"""Benchmarks of starts: `cometmq up` and a broker until the first message; and an idle broker.

`python -m cometmq.tests.bench.up [--log-gib G]` prints rows. The start of `up` is measured twice:
on an empty directory until the ready file exists, and on an existing one until a send is answered
OK; the latter also as a ratio to one process (`--single`). A process of `up` is killed ten times,
until the next OK. A broker is measured alone, from the start of its process until a send is
answered OK: after a clean stop, and after `kill -9` with a log of G GiB (default 4.4) that is in
the page cache.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import grpc.aio

from cometmq.proto import v2

from ..harness.cluster import Cluster, temporary
from ..harness.wire import Wire, normal_message
from .processes import anonymous_mib, cpu_seconds
from .rows import Row, show
from .server import ASYNC, loadgen, prepared
from .server import TOPIC as BENCH_TOPIC

RUNS = 3
START_LIMIT_S, IDLE_LIMIT_MIB, IDLE_LIMIT_CORE = 2.0, 90.0, 2.0
BROKER_LIMIT_S, KILLED_LIMIT_S = 0.5, 2.0
#: Kills of a process; the supervisor restarts one that has served for longer than 2 s at once.
KILLS, BETWEEN_KILLS_S, AGAIN_LIMIT_S = 10, 3.0, 0.2
LOG_GIB = 4.4
RECORD_BYTES = 1_302  # of a message of loadgen
WAIT_S = 120.0
SETTLE_S, IDLE_S = 5.0, 15.0
TOPIC = "first"


async def _first_send(address: str) -> None:
    async with Wire(address) as wire:
        answer = await wire.send([normal_message(TOPIC, f"01{1:032X}", b"first")])
    assert answer.status.code == v2.OK, answer.status


def start_once(folder: Path) -> tuple[float, float]:
    """Return seconds of the first start until ready, and of the second until an OK."""
    cluster = Cluster(folder / "data", segment_size=None)
    try:
        began = time.monotonic()
        cluster.start()
        ready = time.monotonic() - began
        cluster.create_topic(TOPIC)
    finally:
        cluster.stop()
    cluster = Cluster(folder / "data", segment_size=None)
    try:
        began = time.monotonic()
        cluster.start()
        asyncio.run(_first_send(cluster.address("master")))
        return ready, time.monotonic() - began
    finally:
        cluster.stop()


def start() -> list[Row]:
    """Return the median of some starts."""
    found = []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as folder:
            found.append(start_once(Path(folder)))
    target = f"within {START_LIMIT_S:g} s"
    names = ("cometmq up: empty directory to ready file", "cometmq up: start to first message")
    rows = []
    for name, seconds in zip(names, zip(*found, strict=True), strict=True):
        middle = statistics.median(seconds)
        spread = f"{min(seconds):.2f}-{max(seconds):.2f} s in {RUNS} starts"
        rows.append(Row(name, middle, "s", spread, None, target, middle <= START_LIMIT_S))
    return rows


def _first_message_s(folder: Path, *options: str) -> float:
    """Return the seconds of a start on an existing directory until a send is answered OK."""
    cluster = Cluster(folder / "data", *options, segment_size=None)
    try:
        cluster.start().create_topic(TOPIC)
        cluster.stop()
        began = time.monotonic()
        asyncio.run(_first_send(cluster.start().address("master")))
        return time.monotonic() - began
    finally:
        cluster.stop()


def beside_single() -> list[Row]:
    """Return how the start of three processes compares with that of one, in pairs."""
    ratios = []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as folder:
            three = _first_message_s(Path(folder, "three"))
            ratios.append(three / _first_message_s(Path(folder, "one"), "--single"))
    middle = statistics.median(ratios)
    spread = f"{min(ratios):.2f}-{max(ratios):.2f} in {RUNS} pairs"
    name, target = "cometmq up: start to first message, three processes", "at most 1.2 times"
    return [Row(name, middle, "of one process", spread, None, target, middle <= 1.2)]


def again() -> list[Row]:
    """Return the time from `kill -9` of a process of `up` until a send to it is answered OK."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder, "data"), "--single", restart=True, segment_size=None)
        try:
            address = prepared(cluster.start()).address("master")
            for _ in range(KILLS):
                time.sleep(BETWEEN_KILLS_S)
                began = time.monotonic()
                cluster.kill9("master")  # returns when the old process accepts nothing any more
                asyncio.run(asyncio.wait_for(_until_ok(address), WAIT_S))
                found.append(time.monotonic() - began)
        finally:
            cluster.stop()
    middle = statistics.median(found)
    spread = f"{min(found):.3f}-{max(found):.3f} s in {KILLS} kills"
    target, good = f"within {AGAIN_LIMIT_S:g} s", middle <= AGAIN_LIMIT_S
    return [Row("cometmq up: kill -9 to the next OK", middle, "s", spread, None, target, good)]


def broker_alone(log_gib: float) -> list[Row]:
    """Return the start of a broker process until a send is answered OK, clean and after a kill."""
    with tempfile.TemporaryDirectory(prefix="cometmq-") as folder:
        data = Path(folder) / "data"
        cluster = Cluster(data, "--single", *ASYNC, segment_size=None).start()
        try:
            node, address = prepared(cluster).node("master"), cluster.address("master")
            log_bytes = 0
            while log_bytes < log_gib * (1 << 30):
                run = loadgen(address, node.pid, "-inflight", "8", "-batch", "32", seconds=2)
                log_bytes += run["messages"] * RECORD_BYTES
            cluster.kill9("master")
        finally:
            cluster.stop()
        ends = (signal.SIGKILL, signal.SIGTERM)
        killed = [_first_ok(node.command, address, end) for end in ends]
        clean = [_first_ok(node.command, address, signal.SIGTERM) for _ in range(RUNS)]
    rows = (
        ("broker: clean start to first message", clean, BROKER_LIMIT_S),
        (f"broker: the same after kill -9, {log_gib:g} GiB", killed, KILLED_LIMIT_S),
    )
    return [
        Row(name, middle, "s", spread, None, f"within {limit:g} s", middle <= limit)
        for name, found, limit in rows
        for middle in [statistics.median(found)]
        for spread in [f"{min(found):.2f}-{max(found):.2f} s in {len(found)} starts"]
    ]


def _first_ok(command: list[str], address: str, end: signal.Signals) -> float:
    """Start a broker, and end it by a signal; return the seconds until a send is answered OK."""
    with tempfile.TemporaryFile() as log:
        began = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        asyncio.run(asyncio.wait_for(_until_ok(address), WAIT_S))
        return time.monotonic() - began
    finally:
        os.kill(process.pid, end)
        process.wait(WAIT_S)


async def _until_ok(address: str) -> None:
    host, _, port = address.rpartition(":")
    while True:  # a refused connection costs less than the back-off of a gRPC channel
        try:
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            async with Wire(address) as wire:
                answer = await wire.send([normal_message(BENCH_TOPIC, f"01{1:032X}", b"first")])
        except (OSError, grpc.aio.AioRpcError):  # not yet, or a start that closes its first socket
            pass
        else:
            if answer.status.code == v2.OK:
                return
        await asyncio.sleep(0.005)


def idle() -> list[Row]:
    """Return anonymous memory and CPU of each process of an idle cluster with an empty store."""
    rows = []
    with temporary() as cluster:
        time.sleep(SETTLE_S)
        nodes = cluster.nodes()
        before, began = [cpu_seconds(node.pid) for node in nodes], time.monotonic()
        time.sleep(IDLE_S)
        passed = time.monotonic() - began
        for node, used in zip(nodes, before, strict=True):
            core = 100 * (cpu_seconds(node.pid) - used) / passed
            rows += _idle_rows(node.role, anonymous_mib(node.pid), core)
    return rows


def _idle_rows(role: str, memory: float, core: float) -> list[Row]:
    broker = role != "nameserver"
    return [
        Row(
            f"idle {role}: anonymous memory",
            memory,
            "MiB",
            "",
            None,
            f"under {IDLE_LIMIT_MIB:g} MiB" if broker else "",
            memory < IDLE_LIMIT_MIB if broker else None,
        ),
        Row(
            f"idle {role}: CPU",
            core,
            "% of a core",
            "",
            None,
            f"under {IDLE_LIMIT_CORE:g} %" if broker else "",
            core < IDLE_LIMIT_CORE if broker else None,
        ),
    ]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log-gib", type=float, default=LOG_GIB)
    options = parser.parse_args()
    show([*start(), *beside_single(), *again(), *broker_alone(options.log_gib), *idle()])


if __name__ == "__main__":
    main()
