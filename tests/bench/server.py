"""Benchmarks of a whole broker process, driven by `loadgen` (Go), against an empty handler.

`python -m cometmq.tests.bench.server [--seconds S]` prints rows: cost of a message in the broker's
process, single, in batches, and received and acknowledged; the same with a slave; cost of a
forwarded call; messages per fdatasync. The client uses most of a core: compare CPU per message,
and ratios of one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cometmq.proto import paths, v1

from ..harness.cluster import Cluster, temporary
from ..harness.wire import Wire
from .rows import Row, show

LOADGEN = Path(__file__).with_name("loadgen") / "loadgen"
ASYNC = ("--replication", "async", "--flush", "async")
TOPIC, GROUP = "bench", "bench-group"
CPU = "server_cpu_us_per_message"
UNARY = ("-inflight", "64")
SHAPES = {
    "unary": UNARY,
    "batch": ("-inflight", "8", "-batch", "32"),
    # The two loads before sent more than this one reads.
    "receive": ("-mode", "recv", "-inflight", "8", "-batch", "32"),
}


def loadgen(endpoint: str, pid: int, *options: str, seconds: float) -> dict[str, Any]:
    """Run loadgen once; return its JSON. Builds it if it is not there."""
    if not LOADGEN.exists():
        subprocess.run(["go", "build", "-o", LOADGEN.name, "."], cwd=LOADGEN.parent, check=True)
    done = subprocess.run(
        [
            *(str(LOADGEN), "-endpoint", endpoint, "-pid", str(pid), "-seconds", str(seconds)),
            *("-topic", TOPIC, "-group", GROUP, *options),
        ],
        capture_output=True,
        text=True,
        timeout=seconds + 60,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"loadgen {' '.join(options)}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    if found["errors"]:
        raise RuntimeError(f"loadgen {' '.join(options)}: {found['errors']} errors")
    return found


@contextmanager
def empty_server(items: int = 32, door: str = "grpcio") -> Iterator[tuple[str, int]]:
    """Provide the bound: the same door with an empty handler; its address and process id."""
    process = subprocess.Popen(
        [
            *(
                sys.executable,
                "-m",
                "cometmq.tests.bench.empty_server",
                "--port",
                "0",
                "--door",
                door,
            ),
            *("--items", str(items)),
        ],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().split()[-1].rsplit(":", 1)[-1])
        yield f"127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait(10)


def prepared(cluster: Cluster) -> Cluster:
    """Create the topic and the group of the load."""
    cluster.create_topic(TOPIC)
    cluster.create_group(GROUP)
    return cluster


def single_broker(seconds: float, rounds: int) -> tuple[list[Row], float]:
    """Measure the process of `up --single`, asynchronous, against the empty handler.

    Both are measured alternately, so that a busy machine slows both; medians are taken. Returns
    the rows, and the cost of an empty unary call.
    """
    runs: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {name: [] for name in SHAPES}
    with empty_server() as (empty, empty_pid), temporary("--single", *ASYNC) as cluster:
        node, address = prepared(cluster).node("master"), cluster.address("master")
        for name, options in SHAPES.items():
            for _ in range(rounds):
                bound = loadgen(empty, empty_pid, "-bare", *options, seconds=seconds)
                runs[name].append((bound, loadgen(address, node.pid, *options, seconds=seconds)))
    unary, batch, receive = (_median(pairs) for pairs in runs.values())
    empty_us = float(unary[0][CPU])
    return [
        _row("send 1 KiB, 64 in flight", unary, empty_us + 45, "empty + 45"),
        _row("send, batches of 32", batch, 16, "16"),
        _row("receive and ack, 32 at a time", receive, 80, "80"),
    ], empty_us


def _median(
    pairs: list[tuple[dict[str, Any], dict[str, Any]]],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the pair with the median difference."""
    ordered = sorted(pairs, key=lambda pair: float(pair[1][CPU] - pair[0][CPU]))
    return ordered[len(ordered) // 2]


def _row(
    name: str, pair: tuple[dict[str, Any], dict[str, Any]], limit: float = 0, words: str = ""
) -> Row:
    empty, run = float(pair[0][CPU]), pair[1]
    cpu = float(run[CPU])
    return Row(
        name,
        cpu,
        "us CPU",
        f"empty handler {empty:.0f} us; {run['messages_per_s']:.0f}/s p50 {run['p50_ms']} ms",
        cpu / empty if empty else None,
        f"at most {words} us" if words else "",
        cpu <= limit if words else None,
    )


def with_slave(empty_us: float, seconds: float) -> list[Row]:
    """Measure master, slave and nameserver: direct and forwarded calls, all processes summed."""
    with temporary(*ASYNC) as cluster:
        prepared(cluster)
        owner, other = cluster.address("master"), cluster.address("slave")
        alone = loadgen(owner, cluster.node("master").pid, *UNARY, seconds=seconds)
        everything = cluster.supervisor_pid
        direct = loadgen(owner, everything, *UNARY, seconds=seconds)
        forwarded = loadgen(other, everything, *UNARY, seconds=seconds)
    more, bound = float(forwarded[CPU] - direct[CPU]), {CPU: empty_us}
    return [
        _row("send with a slave, master alone", (bound, alone)),
        _row("send with a slave, all processes", (bound, direct)),
        Row(
            "a forwarded call costs more by",
            more,
            "us CPU",
            f"direct {direct[CPU]:.0f}, forwarded {forwarded[CPU]:.0f}, empty {empty_us:.0f}",
            more / empty_us,
            "at most 2.5 empty calls",
            more <= 2.5 * empty_us,
        ),
    ]


async def disk_calls(address: str) -> dict[str, int]:
    """Return the broker's counters of disk calls by name."""
    async with Wire(address) as wire:
        answer = await wire.call(
            paths.GET_COUNTERS, v1.GetCountersRequest(), v1.GetCountersResponse
        )
    return dict(answer.disk_calls)


def sync_flush(seconds: float) -> list[Row]:
    """Count messages per fdatasync with 64 senders in SYNC_FLUSH."""
    env = {"COMETMQ_TEST_HOOKS": "true"}
    options = ("--single", "--replication", "async", "--flush", "sync")
    with temporary(*options, env=env) as cluster:
        node, address = prepared(cluster).node("master"), cluster.address("master")
        before = asyncio.run(disk_calls(address))
        run = loadgen(address, node.pid, "-inflight", "64", "-warm", "0", seconds=seconds)
        after = asyncio.run(disk_calls(address))
    syncs = after["fdatasync"] - before["fdatasync"]
    each = run["messages"] / syncs
    return [
        Row(
            "SYNC_FLUSH, 64 senders: messages for each fdatasync",
            each,
            "",
            f"{run['messages']} messages, {syncs} fdatasync; {run['messages_per_s']:.0f}/s",
            None,
            "at least 8",
            each >= 8,
        )
    ]


def measure(seconds: float, rounds: int) -> list[Row]:
    """Return every row of this module."""
    rows, empty_us = single_broker(seconds, rounds)
    return [*rows, *with_slave(empty_us, seconds), *sync_flush(seconds)]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    show(measure(options.seconds, options.rounds))


if __name__ == "__main__":
    main()
