"""Broker groups on one machine: what a message costs, and how many there are, with 1, 2 and 4.

`python -m cometmq.tests.bench.groups [--rounds R] [--seconds S]` prints rows. Each group is one
broker process without a replica, pinned to a core; each has a load generator of its own with 64
sends in flight, or 8 requests of 32 messages. The load generators use the same cores, so the rate
grows only if there are more cores than the brokers and generators need; the CPU time of a message
is the figure.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from ..harness.cluster import Cluster, Node, temporary
from .native_door import NATIVE
from .rows import Row, as_json, show
from .server import CPU, loadgen

GROUPS = (1, 2, 4)
LOADS = {
    "one message a request": ("-inflight", "64"),
    "32 a request": ("-inflight", "8", "-batch", "32"),
}
MOST_RATIO = 1.1  # of the CPU time of one group; above it a message costs more
OPTIONS = ("--replicas", "1", "--controller", "--replication", "async", "--flush", "async")


def pin(pid: int, core: int) -> None:
    """Pin all threads of a process to one core."""
    for thread in psutil.Process(pid).threads():
        os.sched_setaffinity(thread.id, {core})


def brokers(cluster: Cluster) -> list[Node]:
    """Return the broker of each group, pinned to a core."""
    found = [node for node in cluster.nodes() if node.role == "master"]
    cores = sorted(os.sched_getaffinity(0))
    for number, node in enumerate(found):
        pin(node.pid, cores[number % len(cores)])
    return found


def topic_of(cluster: Cluster, node: Node) -> str:
    """Create a topic in the group of this broker only; return its name."""
    group = "broker-a" if node.name == "master" else f"broker-{node.name.removeprefix('master-')}"
    name = f"bench-{group}"
    cluster.run("topic", "create", name, "--broker", group, "--endpoint", _address(node))
    return name


def _address(node: Node) -> str:
    return f"127.0.0.1:{node.ports['client']}"


def measure(
    groups: int, options: Sequence[str], rounds: int, seconds: float
) -> tuple[float, float]:
    """Return CPU microseconds of a message and messages/s of all groups; medians."""
    with temporary("--groups", str(groups), *OPTIONS, env=NATIVE) as cluster:
        found = brokers(cluster)
        topics = [topic_of(cluster, node) for node in found]

        def load(node: Node, topic: str) -> tuple[float, float]:
            run = loadgen(_address(node), node.pid, "-topic", topic, *options, seconds=seconds)
            return float(run[CPU]), float(run["messages_per_s"])

        costs, rates = [], []
        for _ in range(rounds):
            with ThreadPoolExecutor(groups) as pool:
                runs = list(pool.map(load, found, topics))
            rate = sum(rate for _, rate in runs)
            rates.append(rate)
            costs.append(sum(cost * rate for cost, rate in runs) / rate)
    return statistics.median(costs), statistics.median(rates)


def rows(rounds: int, seconds: float) -> list[Row]:
    """Return a row for each number of groups and each load."""
    found = []
    for name, options in LOADS.items():
        first = 0.0
        for groups in GROUPS:
            cost, rate = measure(groups, options, rounds, seconds)
            first = first or cost
            found.append(
                Row(
                    f"{groups} groups, {name}",
                    cost,
                    "us CPU",
                    f"{rate:,.0f} messages/s",
                    cost / first,
                    f"at most {MOST_RATIO:g} of one group" if groups > 1 else "",
                    cost <= MOST_RATIO * first if groups > 1 else None,
                )
            )
    return found


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each measurement")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    found = rows(options.rounds, options.seconds)
    show(found)
    if options.json:
        options.json.write_text(as_json(found) + "\n")


if __name__ == "__main__":
    main()
