"""Heartbeat and NotifyClientTermination: who is alive, and who has left.

Promises: lenient. A client without settings (after a restart of this node they may be minutes away)
is registered from what the heartbeat says; termination is idempotent and always OK, and ends the
client's long polls at once (gRPC API, sections 5.3 and 5.4). On a follower both count here and are
passed on to the leader, which holds the deliveries that depend on the client's life.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...proto import paths, v2
from ...proto.errors import WireError
from ..messages.validation import check_group, require_client_id
from .telemetry import CONSUMER_TYPES, known_group

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...front.context import RequestContext
    from ..node import Node

    Relay = Callable[[str, bytes, RequestContext], None]

_KNOWN_TYPES = CONSUMER_TYPES | {v2.PRODUCER}


class Sessions:
    """The two services; `relay` passes a request on to the leader and waits for nothing."""

    def __init__(self, node: Node, relay: Relay) -> None:
        self._node = node
        self._relay = relay

    def heartbeat(self, request: v2.HeartbeatRequest, ctx: RequestContext) -> v2.HeartbeatResponse:
        """A client lives."""
        require_client_id(ctx)
        known = self._node.clients.get(ctx.client_id)
        has_settings = known is not None and known.settings is not None
        if not has_settings and request.client_type not in _KNOWN_TYPES:
            raise WireError(
                v2.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client"
            )
        client_type = known.client_type if known is not None and has_settings else 0
        client_type = client_type or request.client_type
        if client_type in CONSUMER_TYPES and (request.HasField("group") or not has_settings):
            check_group(request.group.name)
            known_group(self._node, request.group.name)
        client = self._node.clients.seen(ctx, self._node.clock.steady_ns())
        if not has_settings:
            client.client_type = request.client_type
            client.group = request.group.name
        self._pass_on(paths.HEARTBEAT, request, ctx)
        return v2.HeartbeatResponse(status=v2.Status(code=v2.OK, message="OK"))

    def notify_client_termination(
        self, request: v2.NotifyClientTerminationRequest, ctx: RequestContext
    ) -> v2.NotifyClientTerminationResponse:
        """A client says good-bye."""
        require_client_id(ctx)
        self._node.clients.forget(ctx.client_id)
        self._node.pop.on_client_gone(ctx.client_id)
        self._pass_on(paths.NOTIFY_CLIENT_TERMINATION, request, ctx)
        return v2.NotifyClientTerminationResponse(status=v2.Status(code=v2.OK, message="OK"))

    def _pass_on(
        self,
        path: str,
        request: v2.HeartbeatRequest | v2.NotifyClientTerminationRequest,
        ctx: RequestContext,
    ) -> None:
        if not self._node.leadership.is_leader and not ctx.forwarded:
            self._relay(path, request.SerializeToString(), ctx)
