"""Cost of synchronous replication for a sender, against asynchronous, in the same run.

`python -m cometmq.tests.bench.sync_cost [--seconds S] [--door NAME]` prints rows: latency with one
message in flight and rate with 64, of two clusters of two brokers, alternating. Client, leader and
follower share the machine, so the lower rate includes the follower's work.
"""

from __future__ import annotations

import argparse
import statistics

from ..harness.cluster import temporary
from .rows import Row, show
from .server import loadgen, prepared

ROUNDS = 3


def rows(seconds: float, door: str) -> list[Row]:
    """Return two rows through one door."""
    env = {"COMETMQ_FRONT_DOOR": door}
    latency: dict[str, list[float]] = {"sync": [], "async": []}
    rate: dict[str, list[float]] = {"sync": [], "async": []}
    with (
        temporary("--replication", "sync", env=env) as sync,
        temporary("--replication", "async", env=env) as asynchronous,
    ):
        clusters = {"sync": prepared(sync).wait_in_sync(), "async": prepared(asynchronous)}
        for _ in range(ROUNDS):
            for name, cluster in clusters.items():
                where = cluster.address("master"), cluster.node("master").pid
                one = loadgen(*where, "-inflight", "1", seconds=seconds)
                many = loadgen(*where, "-inflight", "64", seconds=seconds)
                latency[name].append(float(one["p50_ms"]))
                rate[name].append(float(many["messages_per_s"]))
    waits = {name: statistics.median(found) for name, found in latency.items()}
    rates = {name: statistics.median(found) for name, found in rate.items()}
    slower, lost = waits["sync"] / waits["async"], 1 - rates["sync"] / rates["async"]
    return [
        Row(
            f"sync replication, one in flight ({door})",
            waits["sync"],
            "ms p50",
            f"async {waits['async']:.2f} ms",
            slower,
            "at most 2.5",
            slower <= 2.5 if door == "grpcio" else None,
        ),
        Row(
            f"sync replication, 64 in flight, rate lost ({door})",
            rates["sync"],
            "/s",
            f"async {rates['async']:.0f}/s",
            lost,
            "at most 0.3",
            lost <= 0.3 if door == "grpcio" else None,
        ),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--door", action="append", choices=("native", "grpcio"))
    arguments = parser.parse_args()
    found = []
    for door in arguments.door or ("grpcio", "native"):
        found += rows(arguments.seconds, door)
    show(found)


if __name__ == "__main__":
    main()
