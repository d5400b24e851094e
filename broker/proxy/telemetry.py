"""Telemetry through a proxy: one stream of the client here, one in its name to each leader that it concerns.

A producer concerns the groups that hold its topics, a consumer those that hold what it subscribes to; who names
nothing that is known, the first group. The brokers know the groups' settings: the first leader's answer to a client's
settings goes to the client, the others' are dropped. Everything else is as between brokers
(`clients/telemetry_forward.py`): streams are opened again when leaders change, and questions about
transactions reach the producer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...front.service import OutboundFull
from ...proto import v2
from ...proto.errors import INVALID_ARGUMENT, RpcFailure, WireError
from ..clients.telemetry_forward import Guest, TelemetryForward
from ..messages.validation import require_client_id

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from ...front.clock import Clock
    from ...front.config import DoorConfig
    from ...front.context import RequestContext
    from ...front.service import Outbound
    from ..clients.registry import ClientRegistry
    from ..routing.cluster_view import ClusterView
    from .owners import Owners

_STREAMS_MAX = 16


class ProxyTelemetry(TelemetryForward):
    """All streams of the proxy."""

    def __init__(
        self,
        *,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        clients: ClientRegistry,
        cluster: ClusterView,
        config: DoorConfig,
        owners: Owners,
    ) -> None:
        super().__init__(
            clock=clock,
            loop=loop,
            clients=clients,
            cluster=cluster,
            config=config,
            leads=lambda: False,
        )
        self._owners = owners
        self._unanswered: set[str] = set()
        """Clients whose last settings no leader has answered yet."""

    def open(self, ctx: RequestContext, outbound: Outbound) -> ProxySession:
        """Handler of Telemetry."""
        return ProxySession(self, ctx, outbound)

    def seen(self, ctx: RequestContext) -> None:
        """A client spoke."""
        self._clients.seen(ctx, self._clock.steady_ns())

    def opened(self, ctx: RequestContext, outbound: Outbound) -> None:
        """A client has a stream here, also if it was forgotten in between."""
        client = self._clients.seen(ctx, self._clock.steady_ns())
        if outbound not in client.streams:
            client.streams.append(outbound)
            del client.streams[:-_STREAMS_MAX]

    def closed(self, client_id: str, outbound: Outbound) -> None:
        """A stream has ended; the client stays known until it is silent for long."""
        client = self._clients.get(client_id)
        if client is not None and outbound in client.streams:
            client.streams.remove(outbound)
        if client is None or not client.streams:
            self._unanswered.discard(client_id)
            self.forget(client_id)

    def left(self, client_id: str) -> None:
        """A client said good-bye."""
        self._clients.forget(client_id)
        self._unanswered.discard(client_id)
        self.forget(client_id)

    def said(self, ctx: RequestContext, command: v2.TelemetryCommand) -> None:
        """A client said something."""
        if command.HasField("settings"):
            self._unanswered.add(ctx.client_id)
        super().said(ctx, command)

    def _topics_of(self, settings: v2.Settings) -> frozenset[str]:
        subscribed = [entry.topic.name for entry in settings.subscription.subscriptions]
        return super()._topics_of(settings) | frozenset(subscribed)

    def _leaders(self, guest: Guest) -> Iterable[str]:
        groups = self._owners.groups()
        concerned = [g for g in groups if not guest.topics.isdisjoint(g.topics)] or groups[:1]
        return [leader.client for g in concerned if (leader := g.leader()) is not None]

    def _settings_answered(self, guest: Guest, answer: bytes) -> None:
        if guest.client_id in self._unanswered:
            self._unanswered.discard(guest.client_id)
            self._give(guest, answer, "settings")


class ProxySession:
    """One open stream of one client."""

    def __init__(self, owner: ProxyTelemetry, ctx: RequestContext, outbound: Outbound) -> None:
        self._owner = owner
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
        """A command of the client."""
        if not self._ctx.client_id:
            return
        self._register()
        if command.WhichOneof("command") is None:
            text = "there is no command in the telemetry message"
            self._outbound.finish(RpcFailure(INVALID_ARGUMENT, text))
            return
        try:
            self._owner.said(self._ctx, command)
        except OutboundFull:
            self._outbound.finish()

    def close(self, reason: str) -> None:
        """The client half-closed or left."""
        self._owner.closed(self._ctx.client_id, self._outbound)
        self._outbound.finish()

    def _register(self) -> None:
        self._owner.opened(self._ctx, self._outbound)
