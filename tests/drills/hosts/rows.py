"""Faults of the drills on hosts, with the longest time without an OK that each may cause."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from cometmq.drills.actions.moves import switchover
from cometmq.drills.ask import groups
from cometmq.drills.settings import HA_PORT
from cometmq.drills.stage import SETTLE_S, Stage

from .plant import HostPlant

QUIET_S = 2.0  # load before and after each fault
HOLD_S = 30.0  # longest time that a fault of the network lasts
DELAY_MS, LOSS_PERCENT = 50, 5
GROUP_DOWN_S = 1.0


class Round:
    """One fault and its end, under load."""

    def __init__(self, stage: Stage, plant: HostPlant) -> None:
        self.stage, self.plant = stage, plant
        self.began_s = 0.0
        self.silent: list[str] = []  #: clients that no host served while the fault lasted
        self.recovered: Callable[[float, float], list[str]] = lambda *_: []

    def fault(self, what: str) -> None:
        """Record the beginning of the fault; figures count from here."""
        self.began_s = time.monotonic()
        self.plant.note("fault", what)

    def recover(self, within_s: float = SETTLE_S) -> None:
        """Wait until all clients are served again, while the fault lasts."""
        self.silent += self.recovered(time.monotonic(), within_s)

    def lead_beside_controller(self) -> str:
        """Make the broker beside the deciding nameserver the leader; return its name."""

        def decider() -> str:
            for server in self.plant.nameservers:
                if any(one.active for one in groups(self.plant.namesrv_address(server))):
                    return f"b{self.plant.nodes[server].number}"
            return ""

        wanted: str = self.plant.wait("an active controller", decider)
        if self.plant.wait_leader() != wanted:
            switchover(self.stage, wanted)
            self.plant.wait_in_sync(len(self.plant.brokers))
        return wanted


def leader_first(r: Round) -> None:
    """Let the leader's be the first address of the clients."""
    r.plant.first = r.plant.wait_leader()


def lead_beside_controller(r: Round) -> None:
    """Make the broker beside the deciding nameserver the leader, and a follower's address first."""
    r.lead_beside_controller()
    r.plant.first = r.plant.followers()[0]


def vanishing_first(r: Round) -> None:
    """Let the first address be that of the leader, beside the deciding nameserver."""
    r.plant.first = r.lead_beside_controller()


def stop_follower(r: Round) -> None:
    _stop(r, r.plant.followers()[0])


def stop_leader(r: Round) -> None:
    _stop(r, r.plant.wait_leader())


def _stop(r: Round, name: str) -> None:
    r.fault(f"SIGTERM {name}")
    r.plant.stop(name)
    r.recover()
    r.plant.start_node(name)


def rolling_restart(r: Round) -> None:
    """Restart the followers, then the leader after a switchover."""
    leader = r.plant.wait_leader()
    followers = r.plant.followers()
    r.fault("rolling restart")
    for name in [*followers, leader]:
        if name == leader:
            switchover(r.stage, followers[0])
        r.plant.restart(name)
        r.plant.wait_in_sync(len(r.plant.brokers))
    r.recover()


def link_down(r: Round) -> None:
    host = r.plant.host(r.plant.wait_leader())
    r.fault(f"link of {host} down")
    r.plant.lab.link(host, up=False)
    r.recover(HOLD_S)


def kill_host(r: Round) -> None:
    host = r.plant.host(r.plant.wait_leader())
    r.fault(f"kill -9 on {host}")
    r.plant.kill_host(host)
    r.recover()


def kill_brokers(r: Round) -> None:
    for name in r.plant.brokers:
        r.plant.kill(name, report=False)
    time.sleep(GROUP_DOWN_S)
    for name in r.plant.brokers:
        r.plant.start_node(name, wait=False)
    r.fault("last start after kill -9 of all brokers")
    r.recover()


def one_way_drop(r: Round) -> None:
    host = r.plant.host(r.plant.wait_leader())
    r.fault(f"{host} receives nothing")
    r.plant.lab.drop_received(host)
    r.recover(HOLD_S)


def cut_leader(r: Round) -> None:
    """Cut replication between the leader and both followers; all still see the controllers."""
    leader = r.plant.wait_leader()
    others = [r.plant.host(name) for name in r.plant.followers()]
    r.fault(f"{leader} cut from its followers")
    r.plant.lab.cut_port(r.plant.host(leader), others, HA_PORT)
    r.recover(HOLD_S)


def delayed(r: Round) -> None:
    host = r.plant.host(r.plant.wait_leader())
    r.fault(f"{DELAY_MS} ms of delay at {host}")
    r.plant.lab.delay(host, DELAY_MS)
    time.sleep(HOLD_S / 3)
    r.recover()


def lossy(r: Round) -> None:
    host = r.plant.host(r.plant.wait_leader())
    r.fault(f"{LOSS_PERCENT} % of the packets of {host} lost")
    r.plant.lab.lose(host, LOSS_PERCENT)
    time.sleep(HOLD_S / 3)
    r.recover()


@dataclass(frozen=True, slots=True)
class Row:
    """A fault, and its goal."""

    name: str
    title: str
    act: Callable[[Round], None]
    goal_ms: float
    prepare: Callable[[Round], None] = leader_first
    min_in_sync: int = 1
    no_errors: bool = False  # no official client may raise an error


ROWS = (
    Row("stop-follower", "clean SIGTERM of a follower", stop_follower, 300),
    Row("stop-leader", "clean SIGTERM of the leader", stop_leader, 300),
    Row(
        "rolling", "rolling restart of three brokers, with a switchover", rolling_restart, 500,
        no_errors=True,
    ),
    Row(
        "link-down", "link of the leader's and deciding nameserver's host down", link_down, 3000,
        prepare=lead_beside_controller,
    ),
    Row(
        "vanished", "the same, and the host is the clients' first address", link_down, 3000,
        prepare=vanishing_first,
    ),
    Row(
        "kill-host", "kill -9 of broker and deciding nameserver of the leader's host", kill_host,
        2000, prepare=vanishing_first,
    ),
    Row("kill-brokers", "kill -9 of all brokers, from the last restart on", kill_brokers, 5000),
    Row("one-way", "leader's host, the clients' first, receives nothing", one_way_drop, 6000),
    Row(
        "cut-leader", "leader cut from both followers, minInSyncReplicas=2", cut_leader, 6000,
        min_in_sync=2,
    ),
    Row("delay", f"{DELAY_MS} ms of delay at the leader's host", delayed, 1000),
    Row("loss", f"{LOSS_PERCENT} % of packets of the leader's host lost", lossy, 3000),
)  # fmt: skip
