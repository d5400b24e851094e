"""The kill -9 drill: the master is killed repeatedly under load; nothing acknowledged may be lost.

`scripts/drill --kill9 --rounds 20 --acks 1000` starts a cluster, loads it from a separate process,
and kills and restarts the master `rounds` times with at least `acks` acknowledged sends after each
kill. Then it compares the journal with the master's log and with what a consumer receives, each
consume queue with a rebuild from the log, and the master's commit log with the slave's.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cometmq.drills.logwalk import log_difference, log_end, queue_differences, walk
from cometmq.proto import v2

from ..harness.cluster import Cluster, wait_until
from ..harness.journal import AckCounter, Promises
from ..harness.wire import Wire, receive_request
from .checker import Verdict, check_deliveries, check_log

TOPIC, GROUP = "drill", "drill-readers"
SEGMENT = 1 << 20  # small, so that many segments are used during the kills
ENV = {"COMETMQ_MAPPED_FILE_SIZE_COMMIT_LOG": str(SEGMENT)}
ROUND_S = 120.0
READERS = 8
EMPTY_POLLS = 3  # of one second each, for every reader: the topic is drained


@dataclass(frozen=True, slots=True)
class Plan:
    """Number of kills, and load between them."""

    rounds: int = 20
    acks: int = 1000
    options: tuple[str, ...] = ("--replication", "sync", "--flush", "async")
    say: Callable[[str], None] = lambda _: None


@dataclass(slots=True)
class Result:
    """The findings of the drill."""

    rounds: int = 0
    acks_after_kill: list[int] = field(default_factory=list)
    log: Verdict = field(default_factory=Verdict)
    consumed: Verdict = field(default_factory=Verdict)
    queue_differences: list[str] = field(default_factory=list)
    slave_queue_differences: list[str] = field(default_factory=list)
    log_difference: str = ""
    log_bytes: int = 0
    seconds: float = 0.0

    def broken(self) -> list[str]:
        """Return a line for every failed check."""
        found = [*self.queue_differences, *self.slave_queue_differences]
        if self.log_difference:
            found.append(self.log_difference)
        if not self.log.sound:
            found.append(f"log: {self.log}; lost {self.log.lost[:5]}, moved {self.log.moved[:5]}")
        if not self.consumed.sound:
            found.append(f"consumed: {self.consumed}; lost {self.consumed.lost[:5]}")
        return found

    def __str__(self) -> str:
        return (
            f"{self.rounds} kills, {min(self.acks_after_kill, default=0)} or more sends each "
            f"after each; {self.log_bytes} bytes of log\nlog: {self.log}\n"
            f"consumed: {self.consumed}\n{self.seconds:.0f} s; broken: {self.broken() or 'nothing'}"
        )


def run(data: Path, plan: Plan) -> Result:
    """Run the drill in `data`; asserts nothing."""
    started, result = time.monotonic(), Result()
    cluster = Cluster(data / "cluster", *plan.options, env=ENV)
    journal = data / "journal.txt"
    try:
        cluster.start().wait_in_sync()
        cluster.create_topic(TOPIC)
        cluster.create_group(GROUP)
        _load(cluster, journal, plan, result)
        promises = Promises.read(journal)
        counts = asyncio.run(_consume(cluster))
        plan.say(f"consumed {sum(counts.values())}")
        result.consumed = check_deliveries(promises, counts)
        _wait_for_slave(cluster)
    finally:
        cluster.stop()
    stores = {
        node.role: store_of(node.data) for node in cluster.nodes() if node.role != "nameserver"
    }
    _compare(result, promises, stores)
    result.seconds = time.monotonic() - started
    return result


def _load(cluster: Cluster, journal: Path, plan: Plan, result: Result) -> None:
    """Run the kills under load, then one more period of load."""
    workload = _start_workload(cluster, journal)
    counter = AckCounter(journal)
    try:
        _wait_for_acks(counter, plan.acks, workload)
        for number in range(plan.rounds):
            cluster.kill9("master")
            before = counter.poll()
            cluster.restart("master")
            _wait_for_acks(counter, before + plan.acks, workload)
            result.rounds += 1
            result.acks_after_kill.append(counter.count - before)
            plan.say(f"kill {number + 1}: {counter.count} acknowledged")
        workload.send_signal(signal.SIGTERM)
        assert workload.wait(ROUND_S) == 0, "the workload failed"
    finally:
        if workload.poll() is None:
            workload.kill()
            workload.wait()


def _start_workload(cluster: Cluster, journal: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "cometmq.tests.drills.workload"),
            *("--endpoints", cluster.endpoints, "--owner", cluster.address("master")),
            *("--topic", TOPIC, "--journal", str(journal)),
        ],
        stdin=subprocess.DEVNULL,
    )


def _wait_for_acks(counter: AckCounter, count: int, workload: subprocess.Popen[bytes]) -> None:
    def enough() -> bool:
        assert workload.poll() is None, f"the workload ended with {workload.returncode}"
        return counter.poll() >= count

    wait_until(f"{count} acknowledged sends", enough, ROUND_S)


async def _consume(cluster: Cluster) -> Counter[str]:
    """Receive and acknowledge the whole topic; return the number of deliveries per identity."""
    counts: Counter[str] = Counter()

    async def reader(wire: Wire) -> None:
        empty = 0
        while empty < EMPTY_POLLS:
            code, messages = await wire.receive(receive_request(TOPIC, GROUP))
            if not messages:
                assert code in (v2.OK, v2.MESSAGE_NOT_FOUND), f"receive was answered with {code}"
                empty += 1
                continue
            empty = 0
            counts.update(one.system_properties.message_id for one in messages)
            answer = await wire.ack(TOPIC, GROUP, messages)
            assert answer.status.code == v2.OK, f"ack was answered with {answer.status}"

    async with Wire(cluster.endpoints, "drill-reader@1") as wire:
        await asyncio.gather(*(reader(wire) for _ in range(READERS)))
    return counts


def store_of(data: Path) -> Path:
    """Return the store directory of a node: the directory with the commit log."""
    found = [data, *data.glob("*"), *data.glob("*/*")]
    return next(path for path in found if (path / "commitlog").is_dir())


def _wait_for_slave(cluster: Cluster) -> None:
    """Wait until the slave has everything, after the end of the load."""
    master, slave = (
        store_of(cluster.node(role).data) / "commitlog" for role in ("master", "slave")
    )
    wait_until("master and slave end alike", lambda: log_end(master) == log_end(slave), 30.0)


def _compare(result: Result, promises: Promises, stores: dict[str, Path]) -> None:
    master, slave = stores["master"], stores["slave"]
    result.log = check_log(promises, walk(master / "commitlog"), TOPIC)
    result.log_bytes = log_end(master / "commitlog")
    result.queue_differences = queue_differences(master)
    result.slave_queue_differences = [f"slave: {one}" for one in queue_differences(slave)]
    result.log_difference = log_difference(master / "commitlog", slave / "commitlog")


def main(options: argparse.Namespace) -> int:
    """Run the drill with options of `scripts/drill`; return 1 if a check failed."""
    with tempfile.TemporaryDirectory(prefix="cometmq-kill9-") as folder:
        how = ("--replication", options.mode or "sync", "--flush", options.flush)
        result = run(Path(folder), Plan(options.rounds, options.acks, how, print))
    print(result)
    return 1 if result.broken() else 0
