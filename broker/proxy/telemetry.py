"""Telemetry through a proxy: one client stream here, one stream on its behalf to each leader
involved.

A producer involves the groups that have its topics, a consumer those that have its subscriptions; a
client without any known topic involves the first group. Brokers store the consumer groups'
settings: the first leader's response to a client's settings is forwarded to the client, the others
are dropped. The rest is as between brokers (`clients/telemetry_forward.py`): streams are reopened
when leaders change, and transaction checks are forwarded to the producer.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ...front.service import OutboundFull
from ...proto import v2
from ...proto.errors import INVALID_ARGUMENT, RpcFailure, WireError
from ..clients.settings_rate import TOO_MANY_SETTINGS, SettingsRate
from ..clients.stacks import is_refusal
from ..clients.telemetry_forward import ForwardedClient, TelemetryForward
from ..messages.validation import require_client_id

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from ...front.clock import Clock
    from ...front.config import DoorConfig
    from ...front.context import RequestContext
    from ...front.service import Outbound
    from ...proto.node_links import NodeLinks
    from ..clients.registry import ClientRegistry
    from ..routing.cluster_view import ClusterView
    from .owners import Owners


class ProxyTelemetry(TelemetryForward):
    """All telemetry streams of the proxy."""

    def __init__(
        self,
        *,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        clients: ClientRegistry,
        cluster: ClusterView,
        config: DoorConfig,
        owners: Owners,
        links: NodeLinks,
    ) -> None:
        super().__init__(
            clock=clock,
            loop=loop,
            clients=clients,
            cluster=cluster,
            config=config,
            leads=lambda: False,
            links=links,
        )
        self._owners = owners
        #: Clients whose last settings no leader has answered yet.
        self._unanswered: set[str] = set()

    def open(self, ctx: RequestContext, outbound: Outbound) -> ProxySession:
        """Handle Telemetry."""
        return ProxySession(self, self._clock, ctx, outbound)

    def seen(self, ctx: RequestContext) -> None:
        """Record a request of a client."""
        self._clients.seen(ctx, self._clock.steady_ns())

    def opened(self, ctx: RequestContext, outbound: Outbound) -> None:
        """Register a client's stream, also of a client that was removed meanwhile."""
        self._clients.attach(ctx, outbound, self._clock.steady_ns())

    def closed(self, client_id: str, outbound: Outbound) -> None:
        """Remove an ended stream; the client stays registered until it expires."""
        if self._clients.detach(client_id, outbound):
            self._unanswered.discard(client_id)
            self.forget(client_id)

    def left(self, client_id: str) -> None:
        """Remove a client that terminated."""
        self._clients.forget(client_id)
        self._unanswered.discard(client_id)
        self.forget(client_id)

    def forward(self, ctx: RequestContext, command: v2.TelemetryCommand) -> None:
        """Forward a command of a client. Raises WireError if its settings are too large."""
        if command.HasField("settings"):
            client = self._clients.seen(ctx, self._clock.steady_ns())
            self._clients.reserve(client, command.settings.ByteSize())
            self._unanswered.add(ctx.client_id)
        super().forward(ctx, command)

    def _topics_of(self, settings: v2.Settings) -> frozenset[str]:
        subscribed = [entry.topic.name for entry in settings.subscription.subscriptions]
        return super()._topics_of(settings) | frozenset(subscribed)

    def _leaders(self, client: ForwardedClient) -> Iterable[str]:
        groups = self._owners.groups()
        concerned = [g for g in groups if not client.topics.isdisjoint(g.topics)] or groups[:1]
        return [leader.client for g in concerned if (leader := g.leader()) is not None]

    def _settings_answered(self, client: ForwardedClient, answer: bytes) -> None:
        if client.client_id in self._unanswered:
            self._unanswered.discard(client.client_id)
            self._send(client, answer, "settings")

    def _refused(self, client: ForwardedClient, answer: bytes) -> None:
        """Send the leader's status (UNAUTHORIZED) to the client and end its streams."""
        registered = self._clients.get(client.client_id)
        for stream in tuple(registered.streams) if registered is not None else ():
            with suppress(OutboundFull):
                stream.send(answer)
            stream.finish()
        self._unanswered.discard(client.client_id)
        self.forget(client.client_id)


class ProxySession:
    """One open stream of one client."""

    def __init__(
        self, owner: ProxyTelemetry, clock: Clock, ctx: RequestContext, outbound: Outbound
    ) -> None:
        self._owner = owner
        self._clock = clock
        self._rate = SettingsRate()
        self._ctx = ctx
        self._outbound = outbound
        try:
            require_client_id(ctx)
        except WireError as error:
            outbound.send(v2.TelemetryCommand(status=error.status()))
            outbound.finish()
            return
        self._register()

    def receive(self, command: v2.TelemetryCommand) -> None:
        """Handle a command of the client."""
        if not self._ctx.client_id or self._outbound.finished:
            return
        self._register()
        kind = command.WhichOneof("command")
        if kind == "settings" and self._rate.exceeded(self._clock.steady_ns()):
            self._outbound.finish(TOO_MANY_SETTINGS)
            return
        if kind is None and not is_refusal(command):
            text = "the telemetry message contains no command"
            self._outbound.finish(RpcFailure(INVALID_ARGUMENT, text))
            return
        try:
            self._owner.forward(self._ctx, command)
        except OutboundFull:
            self._outbound.finish()

    def close(self, reason: str) -> None:
        """Handle the end of the client's stream."""
        self._owner.closed(self._ctx.client_id, self._outbound)
        self._outbound.finish()

    def _register(self) -> None:
        self._owner.opened(self._ctx, self._outbound)
