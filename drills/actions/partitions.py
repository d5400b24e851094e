"""Drills 7-10, 16-22, 36-40: network, controller, clocks, and combinations."""

from __future__ import annotations

import random
import time
from functools import partial

from ...proto import paths, v1
from .. import ask, verdict
from ..pace import paced_ms
from ..settings import GROUP, LEASE_MS
from ..stage import Stage
from .moves import archives, expect_limit, expect_no_cut, expect_replayed, phase, quiet, replay

HOUR_MS = 3_600_000


def controller_cut_off(s: Stage) -> None:
    """7: disconnect controller and leader only: no failover."""
    s.load()
    s.more_acks(200)
    leader = s.plant.wait_leader()
    s.plant.cut("ns0", leader)
    quiet(s, 0.5, leases=4)
    s.more_acks(300)
    s.check("no failover", s.plant.leader() == leader, s.plant.leader())
    s.plant.heal()
    quiet(s, 0.5, leases=1)
    s.more_acks(100)
    s.check("the same leader after healing", s.plant.leader() == leader, s.plant.leader())
    s.finish()


def followers_cut_off(s: Stage) -> None:
    """8: disconnect the leader from its followers; controller and clients stay connected."""
    _cut_from_followers(s, both=True)


def one_way(s: Stage) -> None:
    """10: drop only packets from leader to follower."""
    _cut_from_followers(s, both=False)


def _cut_from_followers(s: Stage, *, both: bool) -> None:
    s.load()
    s.more_acks(200)
    leader = s.plant.wait_leader()
    for follower in s.plant.followers():
        s.plant.cut(leader, follower, both=both)
    if s.setup.min_in_sync == 1:
        s.plant.wait_in_sync(1)
        s.more_acks(200)
    else:
        s.wait_refused()
    s.plant.heal()
    s.plant.wait_in_sync(2)
    s.more_acks(200)
    expect_no_cut(s)
    s.check("the same leader leads", s.plant.leader() == leader, s.plant.leader())
    s.finish()


def isolated_leader(s: Stage) -> None:
    """9: the leader is connected only to its clients."""
    s.load()
    s.more_acks(300)
    leader = s.plant.wait_leader()
    since = time.monotonic()
    s.plant.isolate(leader)
    s.plant.wait_leader(but=leader)
    s.more_acks(300)
    s.plant.heal()
    s.settle()
    if not s.setup.sync and archives(s):
        replay(s)
    s.finish()
    promises = verdict.Promises.read(s.histories)
    late = [promises.messages[one].ok_s - since for one in s.verdict.archived]
    text = f"{max(late, default=0.0):.2f} s"
    s.check(
        "OKs of the isolated one stop within a lease",
        max(late, default=0.0) * 1000 < LEASE_MS + paced_ms(1500),
        text,
    )
    if s.setup.sync:
        s.check("no OK was cut off", not s.verdict.archived, s.verdict.archived[:5])
    else:
        expect_replayed(s)


def slow_proposals(s: Stage) -> None:
    """18: messages between leader and controller are delayed, and the leader dies."""
    chance = random.Random(18)
    s.load()
    s.more_acks(200)
    for _ in range(3):
        leader = s.plant.wait_leader()
        follower = s.plant.followers()[0]
        for one, other in ((leader, "ns0"), ("ns0", leader)):
            s.plant.network.delay(one, other, chance.uniform(0.05, 0.5))
        s.plant.note("delay", f"{leader}-ns0")
        s.plant.cut(leader, follower)
        quiet(s, chance.uniform(0.2, 1.6))
        s.plant.heal()
        s.plant.network.reset(leader, "ns0")
        quiet(s, chance.uniform(0.0, 0.6))
        s.plant.kill(leader)
        s.plant.start_node(leader)
        s.more_acks(100)
        s.plant.wait_in_sync(2)
    s.finish()


def old_incarnation(s: Stage) -> None:
    """19: a follower loses its tail and returns while a delayed proposal names its old instance."""
    from .moves import power_loss

    s.load()
    s.more_acks(200)
    leader, follower = s.plant.wait_leader(), s.plant.followers()[0]
    s.plant.kill(follower)
    s.plant.wait_in_sync(1)
    s.more_acks(100)
    s.plant.network.delay(leader, "ns0", 0.4)
    s.plant.note("delay", f"{leader}>ns0")
    s.plant.start_node(follower)
    quiet(s, 0.6)
    power_loss(s, follower)
    s.plant.start_node(follower)
    quiet(s, 0.3)
    s.plant.kill(leader)
    s.plant.heal()
    quiet(s, 0.5, leases=2)
    s.plant.start_node(leader)
    s.plant.wait_leader()
    s.more_acks(200)
    s.finish()


def controller_dies(s: Stage) -> None:
    """20: no controller for ten minutes; the follower dies and returns meanwhile."""
    s.load()
    s.more_acks(200)
    leader, follower = s.plant.wait_leader(), s.plant.followers()[0]
    version = s.plant.report().state.version
    s.plant.kill("ns0")
    quiet(s, max(3.0, 600 * s.scale))
    s.more_acks(200)
    s.plant.kill(follower)
    s.plant.start_node(follower)
    s.more_acks(200)
    s.plant.start_node("ns0")
    s.plant.wait("the controller knows the group", lambda: phase(s))
    quiet(s, 1.0, leases=1)
    s.check("the same leader", s.plant.leader() == leader, s.plant.leader())
    now = s.plant.report().state
    s.check("the state was kept", now.version >= version, f"{version} -> {now.version}")
    s.more_acks(200)
    s.finish()


def controller_and_leader_die(s: Stage) -> None:
    """21: kill both together, restart the controller."""
    s.load()
    s.more_acks(200)
    leader = s.plant.wait_leader()
    s.plant.wait_in_sync(len(s.plant.brokers))
    s.plant.kill("ns0")
    s.plant.kill(leader, report=False)
    s.plant.start_node("ns0")
    s.plant.wait_leader(but=leader)
    s.more_acks(300)
    s.finish()


def state_lost(s: Stage) -> None:
    """22: the controller's file and the leader are lost."""
    s.load()
    s.more_acks(200)
    leader, follower = s.plant.wait_leader(), s.plant.followers()[0]
    before = s.plant.report().state.epoch
    s.plant.kill("ns0")
    s.plant.kill(follower)
    s.plant.kill(leader, report=False)
    for path in s.plant.nodes["ns0"].folder.rglob("groups.state*"):
        path.unlink()
    s.plant.note("fault", "groups.state deleted")
    s.plant.start_node("ns0")
    s.plant.start_node(follower)
    s.plant.start_node(leader)
    s.plant.wait_leader()
    after = s.plant.report().state.epoch
    s.check("the epoch goes on", after > before, f"{before} -> {after}")
    s.more_acks(200)
    s.finish()


def nameserver_restarts(s: Stage) -> None:
    """36: a nameserver dies during a failover; a late unregistration arrives."""
    s.load()
    s.more_acks(200)
    leader = s.plant.wait_leader()
    old = s.plant.status(leader).beat.replica
    s.plant.wait_in_sync(len(s.plant.brokers))
    s.plant.kill(leader)
    s.plant.kill("ns1")
    s.plant.wait_leader(but=leader)
    s.plant.start_node("ns1")
    s.plant.start_node(leader)
    s.plant.wait_in_sync(2)
    request = v1.UnregisterRequest(replica=old, registration_seq=1 << 40)
    for server in s.plant.nameservers:
        address = s.plant.namesrv_address(server)
        ask.quietly(address, paths.UNREGISTER, request, v1.UnregisterResponse)
    now = s.plant.leader()
    for server in s.plant.nameservers:
        s.plant.wait(f"{server} shows the leader", partial(_shows, s, server, now), 20.0)
    s.check("routes show the living leader", True)
    s.more_acks(200)
    s.finish()


def _shows(s: Stage, server: str, leader: str) -> bool:
    return _shown(s, server) == leader


def _shown(s: Stage, server: str) -> str:
    """Return the leader in a nameserver's routes, if all members in them are alive."""
    address = s.plant.namesrv_address(server)
    found = ask.quietly(address, paths.GET_CLUSTER, v1.GetClusterRequest(), v1.GetClusterResponse)
    for route in found.groups if found is not None else ():
        if route.group == GROUP and all(member.alive for member in route.members):
            leaders = [m.replica.broker_id for m in route.members if m.role == v1.LEADER]
            return f"b{leaders[0]}" if len(leaders) == 1 else ""
    return ""


def swizzle(s: Stage) -> None:
    """38: networks of random nodes stop one by one and resume in another order, with kills."""
    chance = random.Random(s.seed)
    s.load()
    s.more_acks(200)
    end = time.monotonic() + max(6.0, 1800 * s.scale)
    while time.monotonic() < end:
        victims = chance.sample([*s.plant.nodes], chance.randint(1, 3))
        for victim in victims:
            others = [other for other in s.plant.nodes if other != victim]
            s.plant.note("isolate", victim)
            s.plant.network.isolate(victim, others)
            quiet(s, chance.uniform(0.05, 0.4))
        chance.shuffle(victims)
        if chance.random() < 0.4:
            victim = chance.choice(s.plant.brokers)
            s.plant.kill(victim)
            s.plant.start_node(victim, wait=False)
        for victim in victims:
            for other in s.plant.nodes:
                if other != victim:
                    s.plant.network.heal(victim, other)
            quiet(s, chance.uniform(0.05, 0.3))
        s.plant.heal()
        s.settle()
        s.more_acks(100)
    s.finish()


def clocks(s: Stage) -> None:
    """39: the wall clock of each node steps by an hour, forward and back."""
    s.load()
    s.more_acks(200)
    leader = s.plant.wait_leader()
    for name in s.plant.brokers:
        address = s.plant.client_address(name, direct=True)
        for step in (HOUR_MS, -2 * HOUR_MS, HOUR_MS):
            s.plant.note("clock", f"{name} {step}")
            ask.set_clock(address, ask.clock(address).wall_ms + step)
            s.more_acks(50)
    s.check("no effect on roles", s.plant.leader() == leader, s.plant.leader())
    s.finish()


def suspended(s: Stage) -> None:
    """40: every process of the cluster is stopped and resumed, as on a sleeping laptop."""
    s.load()
    s.more_acks(200)
    s.plant.pause(*s.plant.nodes)
    quiet(s, max(3.0, 60 * s.scale))
    s.plant.resume(*s.plant.nodes)
    s.plant.wait_leader()
    s.more_acks(200)
    s.plant.wait("exactly one leader", lambda: len(s.plant.leaders()) == 1)
    s.finish()


def switched_under_load(s: Stage) -> None:
    """35: planned switchovers under load."""
    from .moves import switchover

    s.load()
    s.more_acks(200)
    for _ in range(max(3, round(20 * s.scale))):
        switchover(s, s.plant.followers()[0])
        s.plant.wait_in_sync(2)
        s.more_acks(100)
    expect_no_cut(s)
    s.finish()
    expect_limit(s, "write gap of a switchover", max(s.verdict.rto_ms, default=1e9), 1000)


def rolling_restart(s: Stage) -> None:
    """34: restart every broker, the leader after a switchover."""
    from .moves import switchover

    s.load()
    s.more_acks(200)
    for name in s.plant.brokers:
        if s.plant.leader() == name:
            switchover(s, s.plant.followers()[0])
        s.plant.restart(name)
        s.plant.wait_leader()
        s.plant.wait_in_sync(len(s.plant.brokers))
        s.more_acks(100)
    expect_no_cut(s)
    s.finish()
