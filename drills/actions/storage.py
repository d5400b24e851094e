"""Drills 23-27 and 41: large logs, retention, partial replicas, flipped bits, full disks."""

from __future__ import annotations

import errno
import os
import time
from functools import partial
from pathlib import Path

from .. import ask
from ..logwalk import log_end, segments
from ..process import DrillError
from ..stage import Stage, Workload
from .moves import archives, disk_fault, hold_reason, phase, quiet

GIB = 1 << 30
BIG = Workload(senders=8, readers=0, official=0, pause_s=0.0, size=60_000)
STEADY = Workload(senders=8, readers=0, official=0)


def fresh_follower(s: Stage) -> None:
    """23: a new follower under load, killed halfway, resumes.

    The log to copy is written first, at full speed; during the copy only small messages are sent,
    so that the disk needs little more space than two logs.
    """
    whole = max(24 << 20, int(20 * GIB * s.scale))
    s.load(BIG)
    leader = s.plant.wait_leader()
    log = s.plant.store(leader) / "commitlog"
    s.plant.wait(f"{whole} bytes of log", lambda: _size(log) >= whole, 3600.0)
    s.unload()
    s.load(STEADY, "b")
    fresh = next(name for name in s.plant.brokers if s.plant.nodes[name].starts == 0)
    s.plant.start_node(fresh)
    half = whole // 2
    seen, end = s.plant.wait("half of it is copied", lambda: _half(s, leader, fresh, half), 3600.0)
    s.plant.kill(fresh)
    s.check("it was killed before it had caught up", seen < end, f"{seen} of {end}")
    s.plant.start_node(fresh)
    first = s.plant.wait("it answers", lambda: s.plant.status(fresh))
    s.check("it went on at its end", first.beat.log_end >= half, first.beat.log_end)
    s.plant.wait_in_sync(len(s.plant.brokers), 3600.0)
    s.check("still in order", not archives(s), archives(s))
    s.compare_queues = False
    s.finish()


def _size(log: Path) -> int:
    """Return the start of the last segments: a cheap lower bound of the log's end."""
    names = [int(path.name) for path in segments(log)] if log.exists() else []
    return sorted(names)[-3] if len(names) > 2 else 0


def _half(s: Stage, leader: str, name: str, half: int) -> tuple[int, int] | None:
    """Return the log ends of `name` and, read before it, of the leader, once half is copied."""
    whole, copy = s.plant.status(leader), s.plant.status(name)
    if whole is None or copy is None or copy.beat.log_end < half:
        return None
    if name in s.plant.in_sync():
        raise DrillError(f"{name} was in sync before it could be killed at half")
    return int(copy.beat.log_end), int(whole.beat.log_end)


def retention_passes(s: Stage) -> None:
    """24: retention deletes segments that a stopped follower needs; it reseeds."""
    s.load(Workload(senders=8, readers=0, official=0, pause_s=0.0, size=4000))
    s.more_acks(300)
    leader, follower = s.plant.wait_leader(), s.plant.followers()[0]
    s.plant.stop(follower)
    behind = log_end(s.plant.store(follower) / "commitlog")
    log = s.plant.store(leader) / "commitlog"
    s.plant.wait("three more segments", lambda: _size(log) > behind + 2 * s.setup.segment)
    old = time.time() - 100 * 3600
    for path in segments(log):
        if int(path.name) + s.setup.segment <= _size(log):
            os.utime(path, (old, old))
    s.plant.wait("they are deleted", lambda: int(segments(log)[0].name) > behind)
    s.plant.start_node(follower)
    s.plant.wait_in_sync(2)
    s.more_acks(100)
    kept = [
        p
        for p in s.plant.nodes[follower].folder.rglob("*")
        if "reseed" in p.name or "aside" in p.name
    ]
    s.check("its old directory was kept", bool(kept), kept[:3])
    s.compare_queues = False
    s.check_content = False
    s.finish()


def partial_survivor(s: Stage) -> None:
    """25: a replica that started at the last segment is the only survivor: it is not elected."""
    s.load(Workload(senders=8, readers=0, official=0, pause_s=0.0, size=4000))
    leader = s.plant.wait_leader()
    log = s.plant.store(leader) / "commitlog"
    s.plant.wait("some segments", lambda: _size(log) >= 2 * s.setup.segment)
    fresh = next(name for name in s.plant.brokers if s.plant.nodes[name].starts == 0)
    s.plant.start_node(fresh, conf={"syncFromLastFile": "true"})
    s.plant.wait("it has the end of the log", lambda: _is_partial(s, fresh))
    s.unload()
    quiet(s, 0.5)
    s.plant.kill(leader)
    quiet(s, 1.0, leases=4)
    s.check("the partial one was not elected", not s.plant.leader(), s.plant.leader())
    s.check("the group is held or waits", phase(s) != "stable", f"{phase(s)} {hold_reason(s)}")
    s.plant.start_node(leader)
    s.plant.wait_leader()
    s.load(run="z")
    s.more_acks(100)
    s.compare_queues = False
    s.finish(settle=False)


def _is_partial(s: Stage, name: str) -> bool:
    answer = s.plant.status(name)
    return answer is not None and answer.beat.log_start > 0 and answer.beat.log_end > 0


def flipped_bit(s: Stage) -> None:
    """26: one bit flips in a finished segment of a follower, then of the leader."""
    s.load(Workload(senders=4, readers=0, official=0, pause_s=0.01, size=8000))
    leader, follower = s.plant.wait_leader(), s.plant.followers()[0]
    log = s.plant.store(leader) / "commitlog"
    s.plant.wait("sealed segments", lambda: _size(log) >= 3 * s.setup.segment)
    quiet(s, 2.5)  # a scrub round has computed digests: earlier damage is only seen as a difference
    for at, victim in enumerate((follower, leader)):
        path = segments(s.plant.store(victim) / "commitlog")[at]
        good = (
            s.plant.store(leader if at == 0 else follower) / "commitlog" / path.name
        ).read_bytes()
        place = s.setup.segment // 2
        _flip(path, place)
        s.plant.note("fault", f"{victim} bit at {path.name}+{place}")
        s.plant.wait(f"{victim} is repaired", partial(_same, path, good), 60.0)
    s.check("repaired from the good side", True)
    s.check("nothing was cut", not archives(s), archives(s))
    s.more_acks(50)
    s.finish()


def _same(path: Path, good: bytes) -> bool:
    return path.read_bytes() == good


def _flip(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 4]))


def full_disk(s: Stage) -> None:
    """27: full disk on the follower, then on the leader."""
    s.load(Workload(senders=8, readers=1, official=1, pause_s=0.0, size=4000))
    s.more_acks(100)
    leader, follower = s.plant.wait_leader(), s.plant.followers()[0]
    for call in ("fallocate", "write_log"):
        disk_fault(s, follower, call, errno.ENOSPC)
    s.plant.wait_in_sync(1)
    s.more_acks(100)
    s.check("writes go on without the follower", s.plant.leader() == leader)
    ask.clear_faults(s.plant.client_address(follower, direct=True))
    s.plant.wait_in_sync(2)
    # A segment is allocated in full: a full disk is seen at the next allocation. (A write into
    # allocated space that fails is a damaged disk: drill 28.)
    disk_fault(s, leader, "fallocate", errno.ENOSPC)
    s.plant.wait_leader(but=leader)
    s.more_acks(100)
    ask.clear_faults(s.plant.client_address(leader, direct=True))
    s.finish()


def full_group(s: Stage) -> None:
    """41: the disks of all replicas are full, and have space again."""
    s.load(Workload(senders=8, readers=1, official=1, pause_s=0.0, size=4000))
    s.more_acks(100)
    for name in s.plant.brokers:
        disk_fault(s, name, "fallocate", errno.ENOSPC)
    s.plant.wait("no write is acknowledged", lambda: s.acks_within(1.0) == 0)
    epochs = s.plant.status(s.plant.wait_leader()).beat.last_epoch
    s.acks_within(2.0)
    s.check("one replica leads, for those who read", len(s.plant.leaders()) == 1)
    last = s.plant.status(s.plant.wait_leader()).beat.last_epoch
    s.check("it stays the leader", last == epochs, f"{epochs} -> {last}")
    for name in s.plant.brokers:
        ask.clear_faults(s.plant.client_address(name, direct=True))
    s.more_acks(100)
    s.plant.wait_in_sync(2)
    s.finish()
