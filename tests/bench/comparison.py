"""The same loads on this broker, on Apache RocketMQ 5.5.0 and on NATS JetStream, in turn.

`python -m cometmq.tests.bench.comparison [--rounds R] [--seconds S] [--json FILE]` prints a table
of medians. All servers run at the same time and only one is loaded at a time; each round measures
every load on every server, so that a machine whose speed changes affects all of them. Apache is
warmed for a minute first. CPU is that of the server's process. The goals are those of the native
core: a ratio to Apache, and a figure for two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..harness.cluster import Cluster, temporary
from . import nats
from .native_door import NATIVE, disk_syncs_per_s
from .reference.run import ReferenceMissing, running
from .server import ASYNC, CPU, GROUP, TOPIC, loadgen, prepared

WARM_S = 60.0
RATE, P50, P99 = "messages_per_s", "p50_ms", "p99_ms"
SINGLE = ("--single", "--replication", "async")
HERE, APACHE, NATS = "here", "Apache", "NATS"
Run = dict[str, Any]
#: Runs a load with these options for that many seconds.
Server = Callable[[Sequence[str], float], Run]


@dataclass(frozen=True, slots=True)
class Load:
    """One row of the table."""

    name: str
    options: tuple[str, ...]
    figure: str = CPU
    unit: str = "us"
    goal_ratio: float | None = None  #: to Apache
    goal: float | None = None  #: on two quiet cores
    nats: tuple[str, ...] = ()  #: options of the NATS publisher with the same load
    nats_ratio: float | None = None
    more_is_better: bool = False


LOADS = (
    Load(
        "send, 64 in flight", ("-inflight", "64"), goal_ratio=0.28, goal=24.0,
        nats=("-inflight", "64"), nats_ratio=1.2,
    ),
    Load(
        "send, one in flight, p50", ("-inflight", "1"), P50, "ms", 0.60, 0.22,
        nats=("-inflight", "1"),
    ),
    Load(
        "send, 32 a request", ("-inflight", "8", "-batch", "32"), goal_ratio=0.22, goal=4.0,
        nats=("-pipeline", "256"), nats_ratio=1.0,
    ),
    Load(
        "receive and ack, 32 at a time", ("-mode", "recv", "-inflight", "8", "-batch", "32"),
        goal_ratio=0.10, goal=12.0,
    ),
    Load(
        "receive and ack, one at a time", ("-mode", "recv", "-inflight", "8"),
        goal_ratio=0.16, goal=110.0,
    ),
    Load("open loop, 4,000/s, p99", ("-rate", "4000"), P99, "ms", goal=2.0),
)  # fmt: skip
SYNC_FLUSH = Load(
    "SYNC_FLUSH, 64 in flight", ("-inflight", "64"), RATE, "/s", 3.0, more_is_better=True
)
#: Goal: times the cost of one process without replication.
REPLICATED = Load("synchronous replication, 64 in flight, all processes", ("-inflight", "64"))
REPLICATED_RATIO = 1.8


@dataclass(slots=True)
class Compared:
    """Figures of one load, by server; one a round."""

    load: Load
    figures: dict[str, list[float]] = field(default_factory=dict)
    rates: dict[str, list[float]] = field(default_factory=dict)

    def add(self, server: str, run: Run) -> None:
        self.figures.setdefault(server, []).append(float(run[self.load.figure]))
        self.rates.setdefault(server, []).append(float(run[RATE]))

    def median(self, server: str) -> float | None:
        found = self.figures.get(server)
        return statistics.median(found) if found else None

    def ratio(self, server: str) -> float | None:
        """Return the median of the ratios of each round."""
        pairs = zip(self.figures.get(HERE, ()), self.figures.get(server, ()), strict=False)
        found = [here / there for here, there in pairs if there]
        return statistics.median(found) if found else None


def rocketmq(endpoint: str, pid: int) -> Server:
    """Return a server that loadgen loads."""
    return lambda options, seconds: loadgen(endpoint, pid, *options, seconds=seconds)


def of_cluster(cluster: Cluster, *, whole: bool = False) -> Server:
    """Return a cluster as a server; `whole` counts the CPU of all its processes."""
    pid = cluster.supervisor_pid if whole else cluster.node("master").pid
    return rocketmq(cluster.address("master"), pid)


@contextmanager
def apache(flush: str, warm_s: float) -> Iterator[Server | None]:
    """Provide the warmed reference; None if it cannot be started, after a line with the reason."""
    with ExitStack() as stack:
        server: Server | None = None
        try:
            found = stack.enter_context(running(TOPIC, GROUP, flush=flush))
            server = rocketmq(found.endpoint, found.pid)
            server(("-inflight", "64"), warm_s)
        except ReferenceMissing as missing:
            print(f"Without Apache: {missing}.", file=sys.stderr)
        yield server


def in_turn(load: Load, servers: Mapping[str, Server], seconds: float, found: Compared) -> None:
    """Measure one load on every server once."""
    for name, server in servers.items():
        found.add(name, server(load.options, seconds))
    words = {name: round(values[-1], 2) for name, values in found.figures.items()}
    print(f"{load.name}: {words}", file=sys.stderr, flush=True)


def asynchronous(rounds: int, seconds: float, warm_s: float) -> list[Compared]:
    """Measure all loads with ASYNC_FLUSH."""
    results = [Compared(load) for load in LOADS]
    with ExitStack() as stack:
        cluster = prepared(stack.enter_context(temporary("--single", *ASYNC, env=NATIVE)))
        servers = {HERE: of_cluster(cluster)}
        if (other := stack.enter_context(apache("ASYNC_FLUSH", warm_s))) is not None:
            servers[APACHE] = other
        stream = None
        try:
            stream = stack.enter_context(nats.running())
        except nats.NatsMissing as missing:
            print(f"Without NATS: {missing}.", file=sys.stderr)
        for _ in range(rounds):
            for one in results:
                if stream and one.load.nats:
                    one.add(NATS, stream.publish(*one.load.nats, seconds=seconds))
                in_turn(one.load, servers, seconds, one)
    return results


def synchronous_flush(rounds: int, seconds: float, warm_s: float) -> tuple[Compared, float]:
    """Measure SYNC_FLUSH; return it and the fdatasyncs per second of the disk alone."""
    result = Compared(SYNC_FLUSH)
    with ExitStack() as stack:
        cluster = stack.enter_context(temporary(*SINGLE, "--flush", "sync", env=NATIVE))
        servers = {HERE: of_cluster(prepared(cluster))}
        if (other := stack.enter_context(apache("SYNC_FLUSH", warm_s))) is not None:
            servers[APACHE] = other
        disk = []
        for _ in range(rounds):
            disk.append(disk_syncs_per_s(1.0))
            in_turn(SYNC_FLUSH, servers, seconds, result)
    return result, statistics.median(disk)


def replicated(rounds: int, seconds: float) -> tuple[Compared, float]:
    """Measure a synchronous pair; return it and its cost in processes without replication."""
    result, alone = Compared(REPLICATED), Compared(REPLICATED)
    with (
        temporary("--replication", "sync", env=NATIVE) as pair,
        temporary("--single", *ASYNC, env=NATIVE) as single,
    ):
        prepared(pair).wait_in_sync()
        servers = {HERE: of_cluster(pair, whole=True)}
        one_process = {HERE: of_cluster(prepared(single))}
        for _ in range(rounds):
            in_turn(REPLICATED, servers, seconds, result)
            in_turn(REPLICATED, one_process, seconds, alone)
    ratios = zip(result.figures[HERE], alone.figures[HERE], strict=True)
    return result, statistics.median(pair / one for pair, one in ratios)


def table(results: Sequence[Compared]) -> str:
    """Return the table in Markdown."""
    lines = [
        "| work | here | Apache | ratio | goal | quiet goal | NATS | ratio | goal | messages/s "
        "here, Apache, NATS |",
        "|" + " --- |" * 10,
    ]
    for one in results:
        load = one.load
        cells = [
            load.name,
            _figure(one.median(HERE), load.unit),
            _figure(one.median(APACHE), load.unit),
            _against(one.ratio(APACHE), load.goal_ratio, more=load.more_is_better),
            _plain(load.goal_ratio),
            _plain(load.goal),
            _figure(one.median(NATS), load.unit),
            _against(one.ratio(NATS), load.nats_ratio, more=False),
            _plain(load.nats_ratio),
            ", ".join(
                f"{statistics.median(one.rates[server]):,.0f}" if server in one.rates else "-"
                for server in (HERE, APACHE, NATS)
            ),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def _against(ratio: float | None, goal: float | None, *, more: bool) -> str:
    if ratio is None:
        return "-"
    if goal is None:
        return f"{ratio:.2f}"
    met = ratio >= goal if more else ratio <= goal
    return f"{ratio:.2f}{'' if met else ' (missed)'}"


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each measurement")
    parser.add_argument(
        "--warm", type=float, default=WARM_S, help="seconds of load before Apache's"
    )
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    options = parser.parse_args()
    results = asynchronous(options.rounds, options.seconds, options.warm)
    flushed, disk = synchronous_flush(options.rounds, options.seconds, options.warm)
    pair, times = replicated(options.rounds, options.seconds)
    results += [flushed, pair]
    print(table(results))
    print(f"\nThe disk alone: {disk:,.0f} fdatasync/s. Synchronous replication costs {times:.2f} ")
    print(f"times one process (goal {REPLICATED_RATIO}).")
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
