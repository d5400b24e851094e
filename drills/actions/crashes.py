"""Drills 1-6, 11-17, 28, 29: processes that die, pause or lose power."""

from __future__ import annotations

import errno
import subprocess
import sys

from ..logwalk import log_end
from ..settings import USUAL_LEASE_MS
from ..stage import Stage
from .moves import (
    archives,
    disk_fault,
    epoch,
    exit_of,
    expect_limit,
    expect_no_cut,
    expect_replayed,
    force_elect,
    hold_reason,
    hold_tail,
    is_suspect,
    phase,
    power_loss,
    quiet,
    replay,
)

#: Answer of a nameserver to a broker whose id belongs to another one.
REJECTED = "is held by the replica"


def follower_dies(s: Stage) -> None:
    """1: kill -9 follower under load, restart."""
    s.load()
    leader = s.plant.wait_leader()
    follower = s.plant.followers()[0]
    s.more_acks(200)
    s.plant.kill(follower)
    s.plant.wait_in_sync(1)
    s.more_acks(300)
    s.plant.start_node(follower)
    s.plant.wait_in_sync(2)
    s.more_acks(100)
    s.check("the same leader leads", s.plant.leader() == leader, s.plant.leader())
    expect_no_cut(s)
    s.finish()


def follower_dies_min_two(s: Stage) -> None:
    """2: the same with minInSyncReplicas=2."""
    s.load()
    s.more_acks(200)
    follower = s.plant.followers()[0]
    s.plant.kill(follower)
    s.wait_refused()
    s.check("no acknowledged write in the gap", s.acks_within(1.0) == 0)
    s.plant.start_node(follower)
    s.more_acks(200)
    s.finish()
    refused = sum(count for why, count in s.verdict.reasons.items() if why == "50401")
    s.check(
        "refused with HA_NOT_AVAILABLE", s.verdict.refused > 0, f"{s.verdict.reasons} {refused}"
    )


def leader_dies(s: Stage) -> None:
    """3: kill -9 leader without an exit report, no restart."""
    s.load()
    s.more_acks(300)
    leader = s.plant.wait_leader()
    s.plant.wait_in_sync(len(s.plant.brokers))
    s.plant.kill(leader, report=False)
    s.plant.wait_leader(but=leader)
    s.more_acks(1000)
    s.finish()
    expect_limit(s, "kill to first OK", max(s.verdict.rto_ms, default=1e9), USUAL_LEASE_MS + 1000)


def leader_restarts(s: Stage) -> None:
    """4: kill -9 leader, restart at once."""
    s.load()
    s.more_acks(300)
    leader = s.plant.wait_leader()
    before = epoch(s, leader)
    s.plant.wait_in_sync(len(s.plant.brokers))
    s.plant.kill(leader)
    s.plant.start_node(leader)
    s.more_acks(500)
    after = epoch(s, s.plant.wait_leader())
    s.check("a new epoch", after > before, f"{before} -> {after}")
    s.finish()


def lost_tail(s: Stage) -> None:
    """5: kill -9 of an asynchronous leader with an unreplicated tail."""
    s.load()
    s.more_acks(300)
    leader = s.plant.wait_leader()
    hold_tail(s, leader)
    s.plant.wait_leader(but=leader)
    s.more_acks(300)
    s.settle()
    s.plant.wait("the tail is archived", lambda: archives(s))
    named = replay(s)
    s.finish()
    s.check("the archive holds lost OKs", bool(s.verdict.archived), len(s.verdict.archived))
    s.check("the replay names what was archived", named >= len(s.verdict.archived), named)
    expect_replayed(s)


def leader_pauses(s: Stage) -> None:
    """6: SIGSTOP leader for more than three leases, SIGCONT."""
    s.load()
    s.more_acks(300)
    leader = s.plant.wait_leader()
    s.plant.pause(leader)
    s.plant.wait_leader(but=leader)
    s.more_acks(200)
    quiet(s, 0.5, leases=3)
    s.plant.resume(leader)
    s.more_acks(300)
    s.plant.wait("the resumed one follows", lambda: s.plant.role(leader) == "follower")
    s.finish()


def power_loss_of_leader(s: Stage) -> None:
    """11: the leader loses power; the other replica leads; the suspect catches up."""
    s.load()
    s.more_acks(300)
    leader = s.plant.wait_leader()
    power_loss(s, leader)
    s.plant.wait_leader(but=leader)
    s.more_acks(300)
    s.plant.start_node(leader)
    s.plant.wait_in_sync(2)
    s.plant.wait("the suspect mark is gone", lambda: is_suspect(s, leader) is False)
    s.check("it was suspect", "suspect" in s.plant.log(leader))
    s.finish()


def power_loss_of_last(s: Stage) -> None:
    """12: the only in-sync replica loses power; with 2 required the eligible one is elected."""
    s.load()
    s.more_acks(300)
    leader, follower = s.plant.wait_leader(), s.plant.followers()[0]
    s.plant.kill(follower)
    if s.setup.min_in_sync == 1:
        s.plant.wait_in_sync(1)
        s.more_acks(200)
    else:
        s.plant.wait("writes are refused", lambda: s.acks_within(0.5) == 0)
    power_loss(s, leader)
    s.plant.start_node(leader)
    s.plant.start_node(follower)
    if s.setup.min_in_sync == 1:
        s.plant.wait("the group is held", lambda: hold_reason(s) or phase(s) == "hold")
        quiet(s, 0.5, leases=3)
        s.check("no replica was elected", not s.plant.leaders(), s.plant.leaders())
        answer = force_elect(s, leader)
        s.check("the loss is said", "lost_end" in answer or "lost" in str(answer), answer)
        s.verdict.allowed_loss = (
            "the only in-sync memory lost power; the operator accepted the loss"
        )
    s.plant.wait_leader()
    s.more_acks(100)
    s.finish()


def suspect_dies(s: Stage) -> None:
    """13: a suspect replica dies before it has caught up."""
    s.load()
    s.more_acks(200)
    leader, follower = s.plant.wait_leader(), s.plant.followers()[0]
    power_loss(s, follower)
    s.plant.wait_in_sync(1)
    s.plant.cut(leader, follower)
    s.plant.start_node(follower)
    s.plant.wait("it is suspect", lambda: is_suspect(s, follower))
    s.plant.kill(follower)
    s.plant.start_node(follower)
    s.plant.wait("it answers", lambda: is_suspect(s, follower) is not None)
    s.check("still suspect after kill -9", is_suspect(s, follower) is True)
    s.plant.heal()
    s.plant.wait_in_sync(2)
    s.plant.wait("the mark is gone", lambda: is_suspect(s, follower) is False)
    s.finish()


def power_loss_of_all(s: Stage) -> None:
    """14 and 15: all replicas lose power at once."""
    s.load()
    s.more_acks(400)
    power_loss(s, *s.plant.brokers, seed=15)
    if not s.setup.sync_flush:
        s.verdict.allowed_loss = "ASYNC_FLUSH: what no disk had is gone, at most the flush window"
    for name in s.plant.brokers:
        s.plant.start_node(name)
    if not s.setup.sync_flush:
        s.plant.wait(
            "the group is held", lambda: hold_reason(s) or phase(s) == "hold" or s.plant.leader()
        )
        if not s.plant.leader():
            best = max(s.plant.brokers, key=lambda name: log_end(s.plant.store(name) / "commitlog"))
            force_elect(s, best)
    s.plant.wait_leader()
    s.more_acks(200)
    s.finish()


def two_elections(s: Stage) -> None:
    """16: B is elected, then C, with no message in between; B's diverged tail is truncated."""
    s.load()
    s.more_acks(200)
    s.unload()
    first = s.plant.wait_leader()
    b, c = (name for name in s.plant.brokers if name != first)
    s.plant.wait_in_sync(3)
    s.plant.cut(b, c)
    s.plant.cut(c, b)
    s.plant.kill(first)
    second = s.plant.wait("b or c is elected", lambda: _promoted(s, (b, c)))
    s.plant.kill(second)
    third = c if second == b else b
    s.plant.network.reset(b, c)
    s.plant.heal()
    s.plant.wait_leader(but=second)
    s.check("the third one leads", s.plant.leader() == third, s.plant.leader())
    s.settle()
    s.load(run="z")
    s.more_acks(100)
    s.finish()


def _promoted(s: Stage, names: tuple[str, ...]) -> str:
    return next((name for name in names if s.plant.role(name) in ("leader", "promoting")), "")


def cut_then_dies(s: Stage) -> None:
    """17: a replica dies right after its truncation, before new bytes overwrite the range."""
    s.load()
    s.more_acks(200)
    leader = s.plant.wait_leader()
    hold_tail(s, leader)
    s.plant.wait_leader(but=leader)
    s.unload()
    s.plant.start_node(leader, wait=False)
    s.plant.wait("the tail is archived", lambda: archives(s))
    s.plant.kill(leader)
    s.plant.start_node(leader)
    s.plant.wait_in_sync(2)
    s.load(run="z")
    s.more_acks(100)
    s.finish()
    s.check("one archive", len(archives(s)) == 1, archives(s))


def flush_error(s: Stage) -> None:
    """28: a disk error on the leader: it exits as suspect, and another replica leads."""
    s.load()
    s.more_acks(200)
    leader = s.plant.wait_leader()
    disk_fault(s, leader, "fdatasync", errno.EIO)
    code = exit_of(s, leader)
    s.check("the process ended with an error", code != 0, code)
    s.plant.report_exit(leader)
    s.plant.wait_leader(but=leader)
    s.more_acks(200)
    s.plant.start_node(leader)
    s.plant.wait_in_sync(2)
    s.check("it came back suspect", "suspect" in s.plant.log(leader))
    s.finish()


def same_twice(s: Stage) -> None:
    """29: two brokers with the same directory, port, or broker id."""
    s.load()
    s.more_acks(100)
    leader, follower = s.plant.wait_leader(), s.plant.followers()[0]
    own = s.plant.nodes[follower]
    other = f"{own.private.rsplit('.', 1)[0]}.200"
    code, text = _second(s, follower, {"bindAddress": other, "brokerIP1": other})
    s.check("one directory: the second refuses to start", code not in (0, None), text)
    fresh = str(s.folder / "fresh")
    code, text = _second(s, follower, {"storePathRootDir": fresh + "1"})
    s.check("one port: the second refuses to start", code not in (0, None), text)
    changes = {"storePathRootDir": fresh + "2", "bindAddress": other, "brokerIP1": other}
    code, text = _second(s, follower, changes)
    s.check("one broker id: rejected", code not in (0, None) or REJECTED in text, text)
    s.more_acks(100)
    s.check("the leader leads on", s.plant.leader() == leader, s.plant.leader())
    s.finish()


def _second(s: Stage, like: str, changes: dict[str, str]) -> tuple[int | None, str]:
    """Start a second process with a broker's settings and `changes`.

    Returns its exit, or None if it is rejected.
    """
    file, log = s.folder / "second.conf", s.folder / "second.txt"
    conf = {**s.plant.conf(like), **changes}
    file.write_text("".join(f"{key}={value}\n" for key, value in conf.items()))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "cometmq.cli.main", "broker", "-c", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        s.plant.wait(
            "the second ends or is rejected",
            lambda: process.poll() is not None or REJECTED in log.read_text(errors="replace"),
        )
    finally:
        if process.poll() is None:
            process.kill()
        code = process.wait()
    text = log.read_text(errors="replace")
    return (None if code < 0 else code), text[-900:]
