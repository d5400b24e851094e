"""One broker's session with the controller: beats in, directives out, for as long as the stream lives.

A session speaks for one replica, the one of its first beat. It ends with a gRPC status and a sentence: for
strangers, nonsense, a broker id that somebody else holds, a broker that does not read what it is told, and
silence.
"""

from typing import TYPE_CHECKING, Any

from ..front.service import Outbound, OutboundFull
from ..ha.core.controller.events import BeatArrived
from ..proto import v1
from ..proto.errors import RpcFailure
from .controller_messages import beat_from

if TYPE_CHECKING:
    from .controller import Controller, Group

_INVALID_ARGUMENT = 3
_RESOURCE_EXHAUSTED = 8
_DEADLINE_EXCEEDED = 4
#: A session without a beat for this long (or three leases) is nobody's.
SILENCE_MIN_NS = 10_000_000_000


class BrokerSession:
    """`front.service.Session` for `GroupController.Session`."""

    def __init__(
        self, controller: "Controller", number: int, peer: str, outbound: Outbound
    ) -> None:
        self.number = number
        self.peer = peer
        self.group: Group | None = None
        self._controller = controller
        self._outbound = outbound
        self._replica: tuple[str, str, int, str] | None = None
        self._heard_ns = controller.clock.steady_ns()

    def receive(self, message: v1.BrokerBeat) -> None:
        """A beat. Raises RpcFailure, which ends the stream."""
        identity = message.replica
        replica = (
            identity.cluster,
            identity.group,
            identity.broker_id,
            identity.replica_uuid,
        )
        if self._replica is None:
            self.group = self._controller.group_for(identity.cluster, identity.group)
            self._replica = replica
        elif self._replica != replica:
            raise RpcFailure(_INVALID_ARGUMENT, "a session speaks for one replica only")
        self._heard_ns = self._controller.clock.steady_ns()
        self._controller.heard(self, BeatArrived(self.number, beat_from(message)))

    def send(self, directive: v1.Directive) -> None:
        """Tell the broker; one that does not read is let go, and comes back when it does."""
        try:
            self._outbound.send(directive)
        except OutboundFull:
            text = "this broker does not read its directives"
            self.drop(RpcFailure(_RESOURCE_EXHAUSTED, text))

    def check_silence(self, now_ns: int) -> None:
        """End a session on which nobody has spoken for long."""
        lease_ns = self._controller.config.controller_lease_ms * 1_000_000
        if now_ns - self._heard_ns > max(SILENCE_MIN_NS, 3 * lease_ns):
            self.drop(RpcFailure(_DEADLINE_EXCEEDED, "no beat came for a long time"))

    def drop(self, error: RpcFailure) -> None:
        """End the stream from this side."""
        self._outbound.finish(error)
        self._controller.closed(self)

    def close(self, reason: str) -> Any:
        """The stream has ended."""
        del reason
        self._controller.closed(self)
