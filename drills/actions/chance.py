"""Random drills: kills, pauses and disconnections by a seed, under load."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from ..options import AFTER
from ..stage import Stage, Workload
from .moves import archives, expect_replayed, quiet, replay

FAULTS = ("kill", "pause", "cut")
QUIET_SHARE = 0.25


def random_faults(s: Stage, faults: Sequence[str], seconds: float, after: int = AFTER) -> None:
    """Inject faults for a time, heal, then wait for at least `after` acknowledged sends."""
    chance = random.Random(s.seed)
    s.load()
    s.more_acks(200)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if chance.random() < QUIET_SHARE:
            quiet(s, chance.uniform(0.2, 0.8))
        {"kill": _kill, "pause": _pause, "cut": _cut}[chance.choice(list(faults))](s, chance)
        s.settle()
        s.more_acks(50)
    s.settle()
    s.more_acks(after)
    if not s.setup.sync and archives(s):
        replay(s)
    s.finish()
    if not s.setup.sync:
        expect_replayed(s)


def _victim(s: Stage, chance: random.Random) -> str:
    """Choose a node; the leader with probability one half."""
    leader = s.plant.leader()
    return leader if leader and chance.random() < 0.5 else chance.choice(list(s.plant.nodes))


def _kill(s: Stage, chance: random.Random) -> None:
    victim = _victim(s, chance)
    s.plant.kill(victim, report=chance.random() < 0.5)
    quiet(s, chance.uniform(0.0, 1.5))


def _pause(s: Stage, chance: random.Random) -> None:
    victim = _victim(s, chance)
    s.plant.pause(victim)
    quiet(s, chance.uniform(0.1, 2.0))
    s.plant.resume(victim)


def _cut(s: Stage, chance: random.Random) -> None:
    victim = _victim(s, chance)
    other = chance.choice([name for name in s.plant.nodes if name != victim])
    if chance.random() < 0.4:
        s.plant.isolate(victim)
    else:
        s.plant.cut(victim, other, both=chance.random() < 0.6)
    quiet(s, chance.uniform(0.1, 2.0))
    if chance.random() < 0.3:
        s.plant.note("reset", f"{victim}-{other}")
        s.plant.network.reset(victim, other)


def kills(s: Stage, count: int) -> None:
    """Kill the leader repeatedly and measure the time to the next OK."""
    s.load()
    s.more_acks(300)
    for _ in range(count):
        leader = s.plant.wait_leader()
        s.plant.kill(leader)
        s.plant.wait_leader(but=leader)
        s.more_acks(50)
        s.plant.start_node(leader)
        s.plant.wait_in_sync(len(s.plant.brokers))
    s.finish()


def pauses(s: Stage, count: int, seconds: float) -> None:
    """Suspend the leader repeatedly (SIGSTOP) and count the elections that this causes."""
    s.load(Workload(official=0, readers=0))
    s.more_acks(300)
    elections = 0
    for _ in range(count):
        leader = s.plant.wait_leader()
        s.plant.pause(leader)
        time.sleep(seconds)
        s.plant.resume(leader)
        s.more_acks(50)
        elections += s.plant.wait_leader() != leader
        s.plant.wait_in_sync(len(s.plant.brokers))
    s.finish()
    s.check(f"elections after {count} pauses of {seconds:g} s", True, elections)
    print(f"{elections} elections after {count} pauses of {seconds:g} s")
