"""Benchmarks of `cometmq up`: time from process start to the first message, and an idle broker.

`python -m cometmq.tests.bench.up` prints rows. The start is measured twice: on an empty directory
until the ready file exists, and on an existing one until a send is answered OK.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from cometmq.proto import v2

from ..harness.cluster import Cluster, temporary
from ..harness.wire import Wire, normal_message
from .processes import anonymous_mib, cpu_seconds
from .rows import Row, show

RUNS = 3
START_LIMIT_S, IDLE_LIMIT_MIB, IDLE_LIMIT_CORE = 2.0, 90.0, 2.0
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
    show([*start(), *idle()])


if __name__ == "__main__":
    main()
