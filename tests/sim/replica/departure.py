"""Clean stop of a simulated replica, as in `ha/role/role_driver.py`: leave, then end."""

from typing import TYPE_CHECKING

from cometmq.ha.core import follower_events
from cometmq.ha.core.departure import has_left
from cometmq.tests.sim.scheduler import MS

if TYPE_CHECKING:
    from cometmq.tests.sim.replica.node import Node

POLL_MS = 5


class Departure:
    """The stop of one incarnation of a replica."""

    def __init__(self, node: "Node") -> None:
        self.node = node
        self.leaving = False

    def begin(self, limit_ms: int, down_ms: int) -> None:
        """Leave within the limit, end the process, and start it again later."""
        node = self.node
        if self.leaving:
            return
        self.leaving = True
        node.say("stops")
        node.link.reconnect_now()
        if node.leader is None:
            # The acknowledgement that the real follower sends for it.
            node.follower.feed(follower_events.Flushed(node.flushed_end))
        self._look(node.now() + limit_ms * MS, down_ms)

    def _look(self, until_ns: int, down_ms: int) -> None:
        node = self.node
        left = has_left(node.machine)
        if not left and node.now() < until_ns:
            node.later(POLL_MS * MS, self._look, until_ns, down_ms)
            return
        node.say("has left" if left else "stops without having left")
        node.world.oracle.stops += left
        node.disk.flush(node.log_end)
        node.crash(False)
        node.world.scheduler.after(down_ms * MS, node.start)
