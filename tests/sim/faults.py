"""Schedule of faults, drawn from one seed.

A *bias* makes some kinds of faults more likely: planted bugs are hunted with the kinds that can
reveal them. Combined scenes (isolate the leader and kill it after the election, restart all
followers and then kill the leader) complement single faults, because the worst of them never happen
by chance alone.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from cometmq.ha.core import (
    role_machine,
)
from cometmq.ha.core.group_state import GroupState

from .failing_successor import FailingSuccessor
from .operator_commands import MANY_ORDERS, ORDERS, OperatorCommands
from .scheduler import MS
from .settings import SAFETY_MS

if TYPE_CHECKING:
    from cometmq.tests.sim.replica.node import Node

    from .world import World

WEIGHTS = {
    "kill": 10,
    "stop": 8,
    "power": 8,
    "mid_step": 8,
    "pause": 7,
    "isolate": 8,
    "one_way": 6,
    "cut_pair": 6,
    "partial": 6,
    "host": 4,
    "cut_followers": 4,
    "reject": 4,
    "isolate_then_kill": 7,
    "restart_followers_kill_leader": 6,
    "two_elections": 5,
    "slow_disk": 4,
    "slow_link": 4,
    "clock_step": 3,
    "loss": 4,
    "damage": 3,
    "rot": 2,
    "nameserver": 5,
    "leader_from_nameserver": 4,
    "release_of_the_claim": 3,
    "power_all": 2,
    "fence": 2,
    "tail_then_silence": 3,
    "isr_churn": 3,
    "heir_fails": 3,
    "cut_followers_restart_nameservers": 2,
    **ORDERS,
}
BIASES: dict[str, dict[str, int]] = {
    "power": {"power": 60, "power_all": 10, "restart_followers_kill_leader": 15, "slow_disk": 10},
    "elections": {"two_elections": 40, "isolate_then_kill": 40, "kill": 20, "mid_step": 10},
    "fences": {"fence": 50, "isolate": 10},
    "cuts": {
        "tail_then_silence": 60,
        "isolate_then_kill": 30,
        "isolate": 20,
        "kill": 20,
        "power": 10,
        "mid_step": 20,
    },
    "isr": {
        "isr_churn": 80,
        "cut_pair": 40,
        "one_way": 30,
        "loss": 40,
        "slow_link": 30,
        "isolate_then_kill": 30,
        "kill": 20,
    },
    "suspects": {"power": 30, "power_all": 20, "restart_followers_kill_leader": 20, "kill": 40},
    "controllers": {
        "cut_followers_restart_nameservers": 60,
        "nameserver": 50,
        "leader_from_nameserver": 30,
        "one_way": 20,
        "pause": 20,
    },
    "handovers": {**MANY_ORDERS, "slow_link": 15},
    "heirs": {"heir_fails": 90},
    "quorums": {"cut_followers": 60, "partial": 30, "one_way": 20, "nameserver": 10, "kill": 10},
    "releases": {"release_of_the_claim": 80, "kill": 10, "one_way": 10},
    "hosts": {"host": 70, "nameserver": 10, "kill": 10, "stop": 5},
    "failovers": {"failover": 70, "kill": 10, "one_way": 10},
    "rejects": {"reject": 60, "kill": 30, "isolate": 10},
    "stops": {"stop": 80, "leader_from_nameserver": 20, "cut_pair": 20, "kill": 20, "loss": 10},
    "leases": {"isolate": 50, "pause": 40, "leader_from_nameserver": 30, "one_way": 20},
}


class Faults(OperatorCommands, FailingSuccessor):
    def __init__(self, world: "World", rng: random.Random, bias: str = "") -> None:
        self.world = world
        self.rng = rng
        weights = dict(WEIGHTS)
        if bias:
            weights = dict.fromkeys(WEIGHTS, 1) | BIASES[bias]
        settings = world.settings
        if not settings.power_losses and bias != "power":
            weights["power"] = weights["power_all"] = 0
        if not settings.clock_steps:
            weights["clock_step"] = 0
        self._kinds = sorted(weights)
        self._weights = [weights[kind] for kind in self._kinds]
        self.damage_share = 0.0
        self.over = False
        #: How often a cut, or a change of the in-sync set, is followed by a crash at the worst
        #: time.
        self._strikes_after_cuts = 0.8 if bias == "cuts" else 0.15
        self._strikes_after_changes = {"isr": 0.3, "elections": 0.4}.get(bias, 0.03)

    def plan(self) -> None:
        self.world.scheduler.after(int((0.6 + self.rng.random()) * 1000) * MS, self._next)

    def _next(self) -> None:
        now_ms = self.world.scheduler.now // MS
        if now_ms > SAFETY_MS - 500:
            return
        (kind,) = self.rng.choices(self._kinds, self._weights)
        self.world.say("fault", "%s", kind)
        getattr(self, f"_{kind}")()
        self.world.scheduler.after(int((0.1 + self.rng.random() * 1.1) * 1000) * MS, self._next)

    def _in(
        self, low_ms: float, high_ms: float, action: Callable[..., None], *args: object
    ) -> None:
        delay = int((low_ms + self.rng.random() * (high_ms - low_ms)) * MS)
        self.world.scheduler.after(delay, self._unless_over, action, args)

    def _unless_over(self, action: Callable[..., None], args: tuple[object, ...]) -> None:
        if not self.over:
            action(*args)

    # --- targets ----------------------------------------------------------------------------------

    def _any(self) -> "Node":
        """Return the leader half of the time."""
        leader = self.world.leader()
        if leader is not None and self.rng.random() < 0.5:
            return leader
        return self.rng.choice(self.world.nodes)

    def _leader(self) -> "Node":
        return self.world.leader() or self.rng.choice(self.world.nodes)

    def _others(self, node: "Node") -> list[str]:
        return [name for name in self.world.names() if name != node.name]

    # --- processes and machines -------------------------------------------------------------------

    def _die(
        self, node: "Node", without_power: bool, low_ms: float = 20, high_ms: float = 900
    ) -> None:
        if not node.alive:
            return
        incarnation = node.ref.incarnation
        node.crash(without_power)
        if not without_power and self.rng.random() < 0.5:
            self._in(5, 40, self.world.process_exited, node, incarnation)
        self._in(low_ms, high_ms, node.start)

    def _kill(self) -> None:
        self._die(self._any(), False)

    def _stop(self) -> None:
        """Stop cleanly, perhaps several replicas, and perhaps with another fault meanwhile."""
        for node in self.world.nodes:
            if node.alive and self.rng.random() < 0.4:
                node.deliver(
                    node.departure.begin, self.rng.randint(100, 900), self.rng.randint(20, 600)
                )
        if self.rng.random() < 0.4:
            self._in(0, 250, self._in_the_middle())

    def _power(self) -> None:
        self._die(self._any(), True)

    def _power_all(self) -> None:
        for node in self.world.nodes:
            self._die(node, True, 50, 1200)

    def _mid_step(self) -> None:
        """Crash between two effects of its next action."""
        node = self._any()
        if node.alive:
            node.steps_to_death = self.rng.randint(1, 60)
            node.dies_without_power = self.world.settings.power_losses and self.rng.random() < 0.4
            self._in(400, 1200, node.start)

    def _pause(self) -> None:
        node = self._any()
        node.paused_until = (
            self.world.scheduler.now + int((0.1 + self.rng.random() * 2) * 1000) * MS
        )

    def _restart_followers_kill_leader(self) -> None:
        leader = self._leader()
        without_power = self.world.settings.power_losses and self.rng.random() < 0.5
        for node in self.world.nodes:
            if node is not leader:
                self._die(node, without_power, 20, 150)
        self._in(50, 400, self._die, leader, False)

    def has_cut(self, node: "Node") -> None:
        """Rarely, but then always too early: nothing has overwritten the cut bytes."""
        if not self.over and self.rng.random() < self._strikes_after_cuts:
            self._in(1, 40, self._die, node, False)

    def committed(self, state: GroupState) -> None:
        """Kill the leader right after a change of the state, or during its promotion."""
        self.elected(state)
        strikes = not self.over and self.rng.random() < self._strikes_after_changes
        if not strikes or state.leader is None:
            return
        leader = self.world.nodes[state.leader.broker_id]
        if self.rng.random() < 0.5:
            self._in(0, 8, self._die, leader, False)
        elif leader.alive:
            leader.steps_to_death = self.rng.randint(1, 10)
            leader.dies_without_power = False
            self._in(30, 600, leader.start)

    def _fence(self) -> None:
        """Let an operator fence a replica for the next epoch without an election."""
        node = self._any()
        if node.alive:
            node.deliver(
                node.feed, role_machine.FenceOrdered(node.promised + self.rng.randint(0, 2))
            )

    # --- the network ------------------------------------------------------------------------------

    def _isolate(self) -> None:
        self._cut_off(self._any(), 300, 2500)

    def _cut_off(self, node: "Node", low_ms: float, high_ms: float) -> None:
        edges = [(node.name, other) for other in self._others(node)]
        edges += [(other, node.name) for other in self._others(node)]
        self._cut_for(edges, low_ms, high_ms)

    def _cut_for(self, edges: list[tuple[str, str]], low_ms: float, high_ms: float) -> None:
        self.world.network.cut(*edges)
        self._in(low_ms, high_ms, self.world.network.heal, *edges)

    def _one_way(self) -> None:
        node = self._any()
        outwards = self.rng.random() < 0.5
        edges = [(node.name, o) if outwards else (o, node.name) for o in self._others(node)]
        some = [edge for edge in edges if self.rng.random() < 0.7]
        self._cut_for(some, 200, 2000)

    def _cut_pair(self) -> None:
        node = self._leader()
        other = self.rng.choice(self._others(node))
        self._cut_for([(node.name, other), (other, node.name)], 200, 2000)

    def _reject(self) -> None:
        """Isolate the leader by firewalls that answer for it, where the settings allow that."""
        node = self._leader()
        network = self.world.network
        if self.world.settings.rejects:
            edges = [(other.name, node.name) for other in self.world.nodes if other is not node]
            network.rejects.update(edges)
            self._in(400, 1500, network.rejects.difference_update, edges)
        self._cut_off(node, 400, 1500)

    def _cut_followers(self) -> None:
        """Cut the leader off from its followers, and leave it its nameservers."""
        leader = self._leader()
        edges = [(leader.name, n.name) for n in self.world.nodes if n is not leader]
        self._cut_for(edges + [(b, a) for a, b in edges], 1200, 3000)

    def _host(self) -> None:
        """Isolate the host of the leader, on which the active nameserver runs too."""
        leader = self._leader()
        active = [n.name for n in self._active_nameservers()]
        host = {leader.name, *active[:1]}
        edges = [(a, b) for a in host for b in self.world.names() if b not in host]
        self._cut_for(edges + [(b, a) for a, b in edges], 900, 2000)

    def _partial(self) -> None:
        """Cut random pairs of machines, nameservers included."""
        names = self.world.names()
        pairs = [(a, b) for a in names for b in names if a < b and self.rng.random() < 0.35]
        self._cut_for(pairs + [(b, a) for a, b in pairs], 400, 2500)

    def _leader_from_nameserver(self) -> None:
        node = self._leader()
        edges = [(node.name, n.name) for n in self.world.nameservers]
        edges += [(n.name, node.name) for n in self.world.nameservers]
        self._cut_for(edges, 300, 2500)

    def _isolate_then_kill(self) -> None:
        """Let the leader write alone for a while, and return when another one leads."""
        leader = self._leader()
        self._cut_off(leader, 900, 2500)
        self._in(700, 1500, self._kill_leader_but, leader)

    def _tail_then_silence(self) -> None:
        """Give the old leader a long tail of its own, and the new one nearly nothing to write over
        it."""
        leader = self._leader()
        self._cut_off(leader, 1300, 1900)
        self._in(250, 450, self._stop_writing)
        self._in(2000, 2600, self._write_again)

    def _stop_writing(self) -> None:
        self.world.writes_until = self.world.scheduler.now

    def _isr_churn(self) -> None:
        """Let members leave and join while requests are duplicated and late."""
        network, leader = self.world.network, self._leader()
        network.doubling, network.slow_share, network.slow_ms = 0.9, 0.3, 150
        others = [node.name for node in self.world.nodes if node is not leader]
        for start_ms in (0, 700, 1400):
            other = self.rng.choice(others)
            edges = [(leader.name, other), (other, leader.name)]
            self._in(start_ms, start_ms + 100, self._cut_for, edges, 350, 550)
        self._in(2200, 2500, self._no_loss)

    def _cut_followers_restart_nameservers(self) -> None:
        """Leave the leader only the old controller's lease, which the new controller does not
        have."""
        leader = self._leader()
        edges = [(leader.name, n.name) for n in self.world.nodes if n is not leader]
        edges += [(b, a) for a, b in edges]
        self._cut_for(edges, 600, 1500)
        for nameserver in self.world.nameservers:
            self._in(150, 280, nameserver.crash)
            self._in(290, 400, nameserver.start)

    def _kill_leader_but(self, former: "Node") -> None:
        leader = self.world.leader()
        if leader is not None and leader is not former and self.rng.random() < 0.6:
            self._die(leader, False)
        elif self.rng.random() < 0.5:
            self._die(former, self.world.settings.power_losses and self.rng.random() < 0.3)

    def _two_elections(self) -> None:
        """Kill leaders as soon as they lead, without a message in between."""
        self._stop_writing()
        self._in(0, 50, self._strike_leader, self.rng.randint(2, 3))
        self._in(900, 1800, self._write_again)

    def _strike_leader(self, times: int) -> None:
        leader = self.world.leader()
        if leader is not None:
            if self.rng.random() < 0.4:
                self._cut_off(leader, 300, 900)
            else:
                self._die(leader, False, 20, 500)
            times -= 1
        if times:
            self._in(20, 300, self._strike_leader, times)

    def _write_again(self) -> None:
        self.world.writes_until = 1 << 62

    def _loss(self) -> None:
        network = self.world.network
        network.loss = self.rng.random() * 0.3
        network.doubling = self.rng.random() * 0.5
        network.slow_share, network.slow_ms = 0.2, 100
        self._in(500, 2500, self._no_loss)

    def _no_loss(self) -> None:
        network = self.world.network
        network.loss = network.doubling = 0.0
        network.slow_share, network.slow_ms = 0.02, 60

    def _slow_link(self) -> None:
        node = self._any()
        edges = [(node.name, other) for other in self._others(node) if self.rng.random() < 0.6]
        for edge in edges:
            self.world.network.slow_edges[edge] = self.rng.choice((50, 200, 400))
        self._in(500, 2500, self._fast_links, *edges)

    def _fast_links(self, *edges: tuple[str, str]) -> None:
        for edge in edges:
            self.world.network.slow_edges.pop(edge, None)

    def _damage(self) -> None:
        self.damage_share = 0.05
        self._in(200, 1000, self._no_damage)

    def _no_damage(self) -> None:
        self.damage_share = 0.0

    def on_the_wire(self, data: bytes) -> bytes:
        """Deliver a chunk, rarely with a flipped bit."""
        if not self.damage_share or self.rng.random() > self.damage_share:
            return data
        damaged = bytearray(data)
        damaged[self.rng.randrange(len(damaged))] ^= 1 << self.rng.randrange(8)
        return bytes(damaged)

    # --- disks and clocks -------------------------------------------------------------------------

    def _slow_disk(self) -> None:
        node = self._any()
        node.disk.latency_factor = self.rng.choice((20, 60, 150))
        self._in(500, 2500, self._fast_disk, node)

    def _fast_disk(self, node: "Node") -> None:
        node.disk.latency_factor = 1

    def _clock_step(self) -> None:
        self._any().clock.step(int(self.rng.random() * 5000) * MS)

    def _rot(self) -> None:
        """Flip a byte in a finished segment of a follower; the scrub finds it some time later."""
        followers = [
            n for n in self.world.nodes if n.alive and n.leader is None and n.confirm > 600
        ]
        if followers:
            node = self.rng.choice(followers)
            offset = self.rng.randrange(0, node.confirm - 500)
            self.world.damage_bit(node, offset)
            self._in(200, 1500, self.world.scrub)

    # --- nameservers ------------------------------------------------------------------------------

    def _nameserver(self) -> None:
        nameserver = self.rng.choice(self.world.nameservers)
        if self.rng.random() < 0.3:
            nameserver.paused_until = self.world.scheduler.now + self.rng.randint(100, 1600) * MS
            return
        nameserver.crash()
        self._in(50, 2000, nameserver.start)

    def _release_of_the_claim(self) -> None:
        """Stop the active nameserver, the only one that has heard the leader for a lease."""
        leader = self._leader()
        for nameserver in self._active_nameservers():
            others = [one.name for one in self.world.nameservers if one is not nameserver]
            self._cut_for([(leader.name, other) for other in others], 1300, 2500)
            self._in(700, 1200, nameserver.stop)
            self._in(1300, 2500, nameserver.start)

    # --- healing ----------------------------------------------------------------------------------

    def heal(self) -> None:
        self.over = True
        world = self.world
        world.network.heal_all()
        self._no_loss()
        self._no_damage()
        self._write_again()
        for nameserver in world.nameservers:
            nameserver.paused_until = min(nameserver.paused_until, world.scheduler.now)
            nameserver.start()
        for node in world.nodes:
            node.handover.no_room = False
            node.disk.latency_factor = 1
            node.clock.set_rate(0)
            node.steps_to_death = 0
            node.paused_until = min(node.paused_until, world.scheduler.now)
            node.start()
        world.scrub()
