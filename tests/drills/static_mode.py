"""Drills of static groups: `ha failover` or `scripts/promote` changes the leader."""

from __future__ import annotations

import subprocess
import sys

from cometmq.cli.ha.promote import value_of

from .moves import archives, epoch, expect_no_cut, ha, quiet, replay
from .stage import Stage


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


def watched(s: Stage) -> None:
    """`scripts/promote --watch` detects a dead master, promotes, and writes the files."""
    s.load()
    s.more_acks(300)
    leader, follower = s.plant.wait_leader(), s.plant.followers()[0]
    files = {
        s.plant.nodes[name].number: s.plant.nodes[name].folder / "broker.conf"
        for name in s.plant.brokers
    }
    words = [word for number, path in files.items() for word in ("--conf", f"{number}={path}")]
    watch = subprocess.Popen(
        [*(sys.executable, "-P", "-m", "cometmq.cli.ha.promote", "--watch", "--once"),
         *("--after", "0.5", "--every", "0.1", *words),
         *("--namesrv", s.plant.namesrv_address("ns0"))],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        quiet(s, 2.0)
        s.plant.kill(leader)
        text, _ = watch.communicate(timeout=60.0)
    finally:
        if watch.poll() is None:
            watch.kill()
            watch.wait()
    s.check("the watch promoted a replica", watch.returncode == 0, text[-800:])
    s.plant.wait_leader(but=leader)
    roles = {
        name: value_of(s.plant.nodes[name].folder / "broker.conf", "brokerRole")
        for name in (leader, follower)
    }
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
