"""One replication stream between two simulated replicas: frames in order, until one side ends or
fails."""

from typing import TYPE_CHECKING, Any

from cometmq.tests.sim.network import Channel

if TYPE_CHECKING:
    from cometmq.tests.sim.replica.node import Node


class Stream:
    def __init__(self, number: int, follower: "Node", leader: "Node") -> None:
        self.number = number
        self.follower, self.leader = follower, leader
        self.follower_life, self.leader_life = follower.life, leader.life
        self.follower_open = self.leader_open = True
        self._down = Channel((leader.name, follower.name))
        self._up = Channel((follower.name, leader.name))
        self._network = follower.world.network

    # --- frames -----------------------------------------------------------------------------------

    def to_leader(self, kind: str, *content: Any) -> None:
        self._network.frame(self._up, self._at_leader, kind, content)

    def to_follower(self, kind: str, *content: Any) -> None:
        self._network.frame(self._down, self._at_follower, kind, content)

    def _at_leader(self, kind: str, content: tuple[Any, ...]) -> None:
        node = self.leader
        if not node.machine_up:
            return
        if node.life != self.leader_life or not node.alive:
            if self.follower_open:  # the machine answers for the dead process: reset
                self._network.frame(self._down, self._at_follower, "reset", ())
            return
        if self.leader_open:
            node.deliver(node.on_stream, self, kind, content)

    def _at_follower(self, kind: str, content: tuple[Any, ...]) -> None:
        node = self.follower
        if not node.machine_up:
            return
        if node.life == self.follower_life and node.alive and self.follower_open:
            node.deliver(node.on_leader_frame, self, kind, content)
        elif kind not in ("ended", "reset") and self.leader_open:
            self._network.frame(self._up, self._at_leader, "ended", ())

    # --- end --------------------------------------------------------------------------------------

    def end_by_leader(self, goodbye: bool, _reason: str = "") -> None:
        if self.leader_open:
            self.leader_open = False
            self.to_follower("ended", goodbye)

    def end_by_follower(self) -> None:
        if self.follower_open:
            self.follower_open = False
            self.to_leader("ended")
