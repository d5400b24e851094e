"""Drills of static groups: `ha failover` or `scripts/promote` changes the leader."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import ask
from ..settings import GROUP
from ..stage import Stage
from .moves import archives, epoch, expect_no_cut, ha, quiet, replay

TIMES = 10


def planned(s: Stage) -> None:
    """Switch over forth and back under load."""
    s.load()
    for _ in range(2):
        s.more_acks(200)
        leader = s.plant.wait_leader()
        s.plant.note("switchover", leader)
        ha(s, "switchover")
        s.plant.wait_leader(but=leader)
        s.plant.wait_in_sync(2)
    s.more_acks(200)
    expect_no_cut(s)
    s.finish()


def failover(s: Stage) -> None:
    """kill -9 of the master, `ha failover`, and return of the old master as a slave."""
    s.load()
    s.more_acks(300)
    leader = s.plant.wait_leader()
    before = epoch(s, leader)
    s.plant.kill(leader)
    answer = ha(s, "failover")
    follower = s.plant.wait_leader(but=leader)
    s.check("a new epoch", answer["epoch"] > before, answer["epoch"])
    s.more_acks(300)
    s.plant.start_node(leader, conf={"brokerRole": "SLAVE", "brokerId": "2"})
    s.plant.wait_in_sync(2)
    s.check("the new master leads on", s.plant.leader() == follower, s.plant.leader())
    if archives(s):
        replay(s)
    s.finish()


def ten_failovers(s: Stage) -> None:
    """Ten times: kill -9 of the master, `ha failover`, and its return as a slave."""
    s.load()
    first = epoch(s, s.plant.wait_leader())
    for number in range(TIMES):
        s.more_acks(50)
        leader = s.plant.wait_leader()
        s.plant.kill(leader)
        ha(s, "failover")
        s.plant.wait_leader(but=leader)
        s.more_acks(50)
        free = 2 + number  # a returning master gets a broker id of its own
        s.plant.start_node(leader, conf={"brokerRole": "SLAVE", "brokerId": str(free)})
        s.plant.wait("both replicas store that both are in sync", lambda: _is_stored(s))
    last = epoch(s, s.plant.wait_leader())
    s.check("ten promotions", last >= first + TIMES, f"{first} -> {last}")
    s.finish()


def ten_watched(s: Stage) -> None:
    """Ten times: kill -9 of the master; `scripts/promote --watch` promotes and writes the files."""
    s.load()
    with _watch(s) as watch:
        for _ in range(TIMES):
            s.more_acks(50)
            leader = s.plant.wait_leader()
            s.plant.kill(leader)
            s.plant.wait_leader(but=leader)
            s.more_acks(50)
            s.plant.start_node(leader)
            s.plant.wait("both replicas store that both are in sync", lambda: _is_stored(s))
        s.check("the watch goes on", watch.poll() is None, watch.returncode)
    s.finish()


def _is_stored(s: Stage) -> bool:
    """Return whether what the next promotion reads names both: each replica's own state, and the
    set that the leader registered."""
    found = [s.plant.status(name) for name in s.plant.brokers]
    registered = ask.registered_set(s.plant.namesrv_address("ns0"), GROUP)
    return len(registered) == 2 and all(
        status is not None and len(status.state.in_sync) == 2 for status in found
    )


def _role(file: Path) -> str:
    lines = (line.partition("=") for line in file.read_text().splitlines())
    return next((value for key, _, value in lines if key == "brokerRole"), "")


@contextmanager
def _watch(s: Stage, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run `scripts/promote --watch` for a `with` block."""
    nodes = [s.plant.nodes[name] for name in s.plant.brokers]
    files = [f"--conf={node.number}={node.folder / 'broker.conf'}" for node in nodes]
    watch = subprocess.Popen(
        [*(sys.executable, "-P", "-m", "cometmq.cli.ha.promote", "--watch", *words),
         *("--after", "0.5", "--every", "0.1", *files),
         *("--namesrv", s.plant.namesrv_address("ns0"))],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        yield watch
    finally:
        if watch.poll() is None:
            watch.kill()
            watch.wait()


def watched(s: Stage) -> None:
    """`scripts/promote --watch` detects a dead master, promotes, and writes the files."""
    s.load()
    s.more_acks(300)
    leader, follower = s.plant.wait_leader(), s.plant.followers()[0]
    with _watch(s, "--once") as watch:
        quiet(s, 2.0)
        s.plant.kill(leader)
        text, _ = watch.communicate(timeout=60.0)
    s.check("the watch promoted a replica", watch.returncode == 0, text[-800:])
    s.plant.wait_leader(but=leader)
    roles = {name: _role(s.plant.nodes[name].folder / "broker.conf") for name in (leader, follower)}
    s.check("the files say who leads", roles == {leader: "SLAVE", follower: "SYNC_MASTER"}, roles)
    s.more_acks(200)
    s.plant.start_node(leader)
    s.plant.wait_in_sync(2)
    s.more_acks(100)
    s.plant.restart(follower)  # its file keeps it the master
    s.plant.wait_leader()
    s.plant.wait_in_sync(2)
    s.check(
        "the promoted one leads after a restart", s.plant.leader() == follower, s.plant.leader()
    )
    s.more_acks(100)
    s.finish()
