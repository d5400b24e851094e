"""Sessions: Heartbeat and NotifyClientTermination.

Promises: a client without settings (after a restart of this node they may arrive minutes later) is
registered from its heartbeat; a termination is idempotent and always OK, and ends the client's long
polls at once (docs/formats/grpc-api.md, sections 5.3 and 5.4). A follower applies both and forwards
them to the leader, whose deliveries depend on whether the client is alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...proto import paths, v2
from ...proto.errors import WireError
from ..messages.validation import check_group, require_client_id
from .telemetry import CONSUMER_TYPES, ensured_group

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...front.clock import Clock
    from ...front.context import RequestContext
    from ..base.leadership import Leadership
    from ..metadata.tables import Metadata
    from .registry import ClientRegistry

    Relay = Callable[[str, bytes, RequestContext], None]

_KNOWN_TYPES = CONSUMER_TYPES | {v2.PRODUCER}


class Sessions:
    """Handlers of the two RPCs."""

    def __init__(
        self,
        *,
        clock: Clock,
        metadata: Metadata,
        clients: ClientRegistry,
        leadership: Leadership,
        client_gone: Callable[[str], None],
        relay: Relay,
    ) -> None:
        """`client_gone` ends a client's polls; `relay` sends a request to the leader, without
        waiting."""
        self._clock = clock
        self._metadata = metadata
        self._clients = clients
        self._leadership = leadership
        self._client_gone = client_gone
        self._relay = relay

    def heartbeat(self, request: v2.HeartbeatRequest, ctx: RequestContext) -> v2.HeartbeatResponse:
        """Handler of Heartbeat."""
        require_client_id(ctx)
        known = self._clients.get(ctx.client_id)
        has_settings = known is not None and known.has_settings
        if not has_settings and request.client_type not in _KNOWN_TYPES:
            raise WireError(
                v2.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client"
            )
        client_type = known.client_type if known is not None and has_settings else 0
        client_type = client_type or request.client_type
        # The group of a request of a producer is not one that its user needs a right on.
        as_consumer = client_type in CONSUMER_TYPES and request.client_type != v2.PRODUCER
        if as_consumer and (request.HasField("group") or not has_settings):
            check_group(request.group.name)
            ensured_group(self._metadata, request.group.name)
        client = self._clients.seen(ctx, self._clock.steady_ns())
        if not has_settings:
            client.client_type = request.client_type
            client.group = request.group.name
        self._forward(paths.HEARTBEAT, request, ctx)
        return v2.HeartbeatResponse(status=v2.Status(code=v2.OK, message="OK"))

    def notify_client_termination(
        self, request: v2.NotifyClientTerminationRequest, ctx: RequestContext
    ) -> v2.NotifyClientTerminationResponse:
        """Handler of NotifyClientTermination."""
        require_client_id(ctx)
        self._clients.forget(ctx.client_id)
        self._client_gone(ctx.client_id)
        self._forward(paths.NOTIFY_CLIENT_TERMINATION, request, ctx)
        return v2.NotifyClientTerminationResponse(status=v2.Status(code=v2.OK, message="OK"))

    def _forward(
        self,
        path: str,
        request: v2.HeartbeatRequest | v2.NotifyClientTerminationRequest,
        ctx: RequestContext,
    ) -> None:
        if not self._leadership.is_leader and not ctx.forwarded:
            self._relay(path, request.SerializeToString(), ctx)
