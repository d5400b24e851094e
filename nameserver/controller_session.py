"""A hosted group, and one broker's session with the controller: heartbeats in, directives out.

A session serves one replica, the one of its first heartbeat. It ends with a gRPC status and a
sentence after an invalid heartbeat, a broker id held by another replica, a full outbound queue, or
silence.
"""

from collections import deque
from typing import Any, Protocol

from msgspec import Struct, field

from ..front.clock import Clock
from ..front.service import Outbound, OutboundFull
from ..ha.core.controller.events import HeartbeatArrived
from ..ha.core.controller.group_controller import GroupController
from ..proto import v1
from ..proto.errors import RpcFailure
from .config import NameserverConfig
from .controller_messages import heartbeat_from

_INVALID_ARGUMENT = 3
_RESOURCE_EXHAUSTED = 8
_DEADLINE_EXCEEDED = 4
#: A session without a heartbeat for the longer of this time and three leases is closed.
SILENCE_MIN_NS = 10_000_000_000


#: Reports of archived diverged tails that are kept of a group.
CUTS_KEPT = 16


class HostedGroup(Struct):
    """One group: its state machine and the newest reports of archived diverged tails."""

    core: GroupController
    cuts: deque[v1.ReportCutRequest] = field(default_factory=lambda: deque(maxlen=CUTS_KEPT))


class SessionHost(Protocol):
    """The part of the controller that sessions call."""

    @property
    def config(self) -> NameserverConfig: ...
    @property
    def clock(self) -> Clock: ...
    def group_for(self, cluster: str, name: str) -> HostedGroup:
        """Return the group, created if it is new. Raises RpcFailure."""
        ...

    def on_heartbeat(self, session: "BrokerSession", event: HeartbeatArrived) -> None:
        """Handle a heartbeat of a session whose group is set."""
        ...

    def watch(self, message: v1.BrokerBeat) -> None:
        """Watch the broker's process if it runs on this host."""
        ...

    def on_closed(self, session: "BrokerSession") -> None:
        """Remove the session."""
        ...


class BrokerSession:
    """`front.service.Session` for `GroupController.Session`."""

    def __init__(self, host: SessionHost, number: int, peer: str, outbound: Outbound) -> None:
        self.number = number
        self.peer = peer
        self.group: HostedGroup | None = None
        self._host = host
        self._outbound = outbound
        self._replica: tuple[str, str, int, str] | None = None
        self._heard_ns = host.clock.steady_ns()

    def receive(self, message: v1.BrokerBeat) -> None:
        """Handle a heartbeat. Raises RpcFailure, which ends the stream."""
        identity = message.replica
        replica = (
            identity.cluster,
            identity.group,
            identity.broker_id,
            identity.replica_uuid,
        )
        if self._replica is None:
            self.group = self._host.group_for(identity.cluster, identity.group)
            self._replica = replica
        elif self._replica != replica:
            raise RpcFailure(_INVALID_ARGUMENT, "a session serves one replica only")
        self._heard_ns = self._host.clock.steady_ns()
        self._host.watch(message)
        self._host.on_heartbeat(self, HeartbeatArrived(self.number, heartbeat_from(message)))

    def send(self, directive: v1.Directive) -> None:
        """Send a directive, or drop the session when its outbound queue is full; the broker
        reconnects."""
        try:
            self._outbound.send(directive)
        except OutboundFull:
            text = "this broker does not read its directives"
            self.drop(RpcFailure(_RESOURCE_EXHAUSTED, text))

    def check_silence(self, now_ns: int) -> None:
        """Drop the session when its last heartbeat is too old."""
        lease_ns = self._host.config.controller_lease_ms * 1_000_000
        if now_ns - self._heard_ns > max(SILENCE_MIN_NS, 3 * lease_ns):
            self.drop(RpcFailure(_DEADLINE_EXCEEDED, "no heartbeat came for a long time"))

    def drop(self, error: RpcFailure) -> None:
        """End the stream with `error`."""
        self._outbound.finish(error)
        self._host.on_closed(self)

    def close(self, reason: str) -> Any:
        """Handle the end of the stream."""
        del reason
        self._host.on_closed(self)
