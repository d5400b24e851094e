"""A successor that fails while it takes over, so that the group continues with the old leader's own
tail."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from cometmq.ha.core.group_state import GroupState

from .scheduler import MS

if TYPE_CHECKING:
    from cometmq.tests.sim.replica.node import Node

    from .world import World

STORY_MS = 3000


class FailingSuccessor:
    """The part of the faults that waits for an election."""

    world: "World"
    rng: random.Random
    over: bool
    _in: Callable[..., None]
    _leader: Callable[[], "Node"]
    _cut_for: Callable[..., None]
    _until_ns = 0
    _former: "Node | None" = None  #: its successor is to fail

    def _heir_fails(self) -> None:
        """Let the leader write bytes that no other replica has, then kill it briefly. One at a
        time."""
        if self.world.scheduler.now < self._until_ns:
            return
        self._until_ns = self.world.scheduler.now + STORY_MS * MS
        leader = self._leader()
        others = [node.name for node in self.world.nodes if node is not leader]
        edges = [(leader.name, name) for name in others] + [(name, leader.name) for name in others]
        self._cut_for(edges, 650, 750)  # until the streams are closed, with everything in flight
        self._in(150, 230, self._fell, leader)

    def _fell(self, leader: "Node") -> None:
        if leader.alive and not self.over:
            self._former = leader
            leader.crash(False)
            self._in(1500, 1700, leader.start)

    def elected(self, state: GroupState) -> None:
        """Kill the elected successor during its promotion; it returns when the old leader leads
        again."""
        former, self._former = self._former, None
        if former is None or state.leader is None or self.over:
            return
        successor = self.world.nodes[state.leader.broker_id]
        if successor is former or not successor.alive:
            return
        successor.steps_to_death = self.rng.randint(2, 9)
        successor.dies_without_power = False
        self._in(20, 60, former.start)
        self._in(800, 1000, successor.start)
        edges = [(successor.name, former.name), (former.name, successor.name)]
        self._in(1200, 1500, self._cut_for, edges, 350, 500)
