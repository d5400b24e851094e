"""Short gaps without a supervisor: exits found by the host, lost hosts, lost quorums, restarts.

The goals are measured on a quiet machine (docs/design/replication.md). The limits here leave room
for a busy one and still exclude the behaviour without the rule, which costs a lease or more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.drills.run import perform
from cometmq.drills.settings import Setup
from cometmq.drills.stage import Stage
from cometmq.drills.verdict import Verdict
from cometmq.tests.drills.judging import settle
from cometmq.tests.harness.pace import paced_ms

#: A lease that no test waits for: an election within it has other evidence.
LONG_LEASE = {"controllerLeaseMs": "20000"}
THREE = Setup(brokers=3, nameservers=3, default_timers=True, report_exits=False)
SLOW = replace(THREE, conf=LONG_LEASE, namesrv_conf=LONG_LEASE)


def gap_within(s: Stage, limit_ms: int) -> None:
    """Finish, and compare the longest time without an OK with the limit."""
    s.finish()
    gap_ms = s.verdict.max_gap_ms
    s.check(f"no gap of {limit_ms} ms", gap_ms < paced_ms(limit_ms), gap_ms)


def killed_leader(s: Stage) -> None:
    """The leader is killed without a supervisor; its host lives, and the lease is 20 s."""
    s.load()
    s.more_acks(200)
    leader = s.plant.leader()
    s.plant.kill(leader)
    s.plant.wait_leader(but=leader)
    s.more_acks(200)
    gap_within(s, 5_000)


def lost_host(s: Stage) -> None:
    """The hosts of the leader and of the active nameserver are lost together."""
    s.load()
    s.more_acks(200)
    leader = s.plant.leader()
    active = next(
        name
        for name in s.plant.nameservers
        if "controller.active" in s.plant.log(name)
        and "controller.not_active" not in s.plant.log(name)
    )
    s.plant.isolate(leader, clients=True)
    s.plant.isolate(active, clients=True)
    s.plant.wait_leader(but=leader)
    s.more_acks(200)
    gap_within(s, 7_000)


def lost_quorum(s: Stage) -> None:
    """The leader is cut off from both followers; they take over, and it returns."""
    s.load()
    s.more_acks(200)
    leader = s.plant.leader()
    for follower in s.plant.followers():
        s.plant.cut(leader, follower)
    s.plant.wait_leader(but=leader)
    s.more_acks(200)
    gap_within(s, 12_000)


def whole_group(s: Stage) -> None:
    """All brokers are killed and restarted; the one that led is last."""
    s.load()
    s.more_acks(200)
    leader = s.plant.leader()
    for name in s.plant.brokers:
        s.plant.kill(name)
    for name in sorted(s.plant.brokers, key=lambda name: name == leader):
        s.plant.start_node(name)
    before_s = time.monotonic()
    s.more_acks(1)
    waited_s = time.monotonic() - before_s
    s.check("the first OK within 5 s of the last start", waited_s < 5.0, waited_s)
    s.more_acks(100)
    s.finish()


@pytest.mark.slow  # the limits are times: run it on a machine that does nothing else
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("body", "setup", "mode"),
    [
        pytest.param(killed_leader, SLOW, "sync", id="refused connections"),
        pytest.param(killed_leader, replace(SLOW, watch_exits=True), "async", id="process watched"),
        pytest.param(lost_host, THREE, "sync", id="lost host"),
        pytest.param(lost_quorum, replace(THREE, min_in_sync=2), "sync", id="lost quorum"),
        pytest.param(whole_group, THREE, "sync", id="whole group"),
    ],
)
def test_a_gap_is_short(
    body: Callable[[Stage], None], setup: Setup, mode: str, tmp_path: Path
) -> None:
    result = Verdict(body.__name__, (body.__doc__ or "").strip(), mode)
    settle(perform(tmp_path, result, setup.with_mode(mode), body), tmp_path)
