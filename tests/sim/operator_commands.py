"""Operator commands during faults, and conditions that make a controller switch over."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from cometmq.ha.core.controller import (
    events as heard,
)

from .scheduler import MS

if TYPE_CHECKING:
    from cometmq.tests.sim.replica.node import Node

    from .nameserver import Nameserver
    from .world import World

#: Weight of each command among all faults, and in the biased schedule.
ORDERS = {
    **{"switchover": 4, "switchover_and_more": 4, "drain": 2, "full_disk": 2, "policy": 2},
    "failover": 2,
}
MANY_ORDERS = {"switchover": 30, "switchover_and_more": 60, "full_disk": 15, "policy": 30}


class OperatorCommands:
    """The part of the faults that calls the active nameservers."""

    world: "World"
    rng: random.Random
    _in: Callable[..., None]
    _leader: Callable[[], "Node"]
    _cut_for: Callable[..., None]

    def _switchover(self) -> None:
        """Switch over to any fit replica, or to a random one."""
        to = -1 if self.rng.random() < 0.5 else self.rng.choice(self.world.nodes).broker_id
        wait_ns = self.rng.choice((50, 300, 2000)) * MS
        for nameserver in self._active_nameservers():
            nameserver.feed(heard.Switchover(self.world.new_number(), to, wait_ns))

    def _switchover_and_more(self) -> None:
        """Switch over, with another fault in the middle of it."""
        self._switchover()
        self._in(0, 250, self._in_the_middle())

    def _in_the_middle(self) -> Callable[[], None]:
        kind = self.rng.choice(("kill", "isolate", "pause", "nameserver", "slow_link", "cut_pair"))
        return cast("Callable[[], None]", getattr(self, f"_{kind}"))

    def _failover(self) -> None:
        """Elect a follower although the leader lives, which may not receive the decision."""
        leader = self._leader()
        if self.rng.random() < 0.7:
            edges = [(n.name, leader.name) for n in self.world.nameservers]
            edges += [(n.name, leader.name) for n in self.world.nodes if n is not leader]
            self._cut_for(edges, 500, 1500)
        for nameserver in self._active_nameservers():
            for node in self.world.nodes:
                if node is not leader and node.alive:
                    order = heard.ForceElect(self.world.new_number(), node.broker_id)
                    nameserver.feed(order)

    def _drain(self) -> None:
        for nameserver in self._active_nameservers():
            nameserver.feed(heard.SetDrain(self.world.new_number(), True))
        self._in(100, 900, self._undrain)

    def _undrain(self) -> None:
        for nameserver in self._active_nameservers():
            nameserver.feed(heard.SetDrain(self.world.new_number(), False))

    def _policy(self) -> None:
        """Change the minimum of in-sync replicas, perhaps with another fault in the middle of
        it."""
        minimum = self.rng.choice((1, 1, 2, 3))
        for nameserver in self._active_nameservers():
            nameserver.feed(heard.SetPolicy(self.world.new_number(), None, minimum))
        if self.rng.random() < 0.5:
            self._in(0, 250, self._in_the_middle())

    def _full_disk(self) -> None:
        """Fill the leader's disk for a while: it refuses writes, and hands over."""
        handover = self._leader().handover
        handover.no_room = True
        self._in(300, 1500, setattr, handover, "no_room", False)

    def _active_nameservers(self) -> list["Nameserver"]:
        return [n for n in self.world.nameservers if n.alive and n.core.active]
