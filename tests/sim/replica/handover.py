"""Planned step-down of a simulated leader, as in `ha/role/role_driver.py`: refuse writes, drain,
step down."""

from typing import TYPE_CHECKING

from cometmq.ha.core import (
    role_machine,
)
from cometmq.ha.core.controller import (
    events as heard,
)
from cometmq.ha.core.drain import Drain
from cometmq.tests.sim.scheduler import MS

if TYPE_CHECKING:
    from cometmq.tests.sim.replica.node import Node

POLL_MS = 5


class Handover:
    """The step-down of one incarnation of a replica."""

    def __init__(self, node: "Node") -> None:
        self.node = node
        self.draining = False
        self.drained = False  #: stepped down as ordered, and the next leader has everything
        self.no_room = False

    @property
    def takes_writes(self) -> bool:
        return not self.draining and not self.no_room

    def begin(self, event: heard.Direct) -> None:
        """Start a drain, as the controller directs."""
        node = self.node
        if self.draining or node.leader is None:
            return
        self.draining = True
        rules = node.world.parts.rules
        limit_ns = event.drain_ms * MS if rules.drains_before_a_planned_change else 0
        node.say("drains for %s", event.next)
        self._look(Drain(event.next, node.now(), limit_ns), event.detail)

    def _look(self, drain: Drain, reason: str) -> None:
        node, leader = self.node, self.node.leader
        verdict = False
        if leader is not None and self.draining:
            looked = drain.verdict(leader.core, node.log_end, node.now())
            if looked is None:
                node.later(POLL_MS * MS, self._look, drain, reason)
                return
            verdict = looked or not node.world.parts.rules.drains_before_a_planned_change
        self.draining = False
        node.feed(role_machine.StepDownOrdered(0, reason or "ordered by the controller"))
        self.drained = verdict
        if verdict and drain.successor is not None:
            node.world.oracle.handed_over(node, drain.successor)
        node.link.reconnect_now()

    def over(self) -> None:
        """Reset: the replica leads or follows again."""
        self.draining = self.drained = False
