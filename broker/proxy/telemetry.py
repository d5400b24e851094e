"""Telemetry through a proxy: one client stream here, one stream on its behalf to each leader
involved.

A producer involves the groups that have its topics, a consumer those that have its subscriptions; a
client without any known topic involves the first group. Brokers store the consumer groups'
settings: the first leader's response to a client's settings is forwarded to the client, the others
are dropped. The rest is as between brokers (`clients/telemetry_forward.py`): streams are reopened
when leaders change, and transaction checks are forwarded to the producer.

The proxy does not know the users. Streams of one client id with different signatures are different
clients here, each with its own streams to the leaders, which check the signature: a leader's
command reaches only streams with the signature that the leader has accepted.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...auth.signature import AUTHORIZATION, DATE_TIME, parse_authorization
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
    from ...nodes.node_links import NodeLinks
    from ..base.cluster_view import ClusterView
    from ..clients.registry import ClientRegistry
    from .base.owners import Owners

#: Characters of a header that is no signature.
_NAME_MAX = 64


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
        #: Keys of streams (`_key`) by client id and name of the user that signed.
        self._keys: dict[tuple[str, str], dict[str, None]] = {}

    def open(self, ctx: RequestContext, outbound: Outbound) -> ProxySession:
        """Handle Telemetry."""
        return ProxySession(self, self._clock, ctx, outbound)

    def seen(self, ctx: RequestContext) -> None:
        """Record a request of a client that a broker has accepted."""
        now_ns = self._clock.steady_ns()
        if not signer(ctx):
            self._clients.seen(ctx, now_ns)
        for key in self._keys.get((ctx.client_id, signer(ctx)), ()):
            client = self._clients.get(key)
            if client is not None:
                client.last_seen_ns = now_ns

    def opened(self, ctx: RequestContext, outbound: Outbound) -> None:
        """Register a client's stream, also of a client that was removed meanwhile."""
        self._clients.attach(ctx, outbound, self._clock.steady_ns())
        client_id, user = _owner_of(ctx.client_id)
        self._keys.setdefault((client_id, user), {})[ctx.client_id] = None

    def closed(self, client_id: str, outbound: Outbound) -> None:
        """Remove an ended stream; the client stays registered until it expires."""
        if self._clients.detach(client_id, outbound):
            self._unanswered.discard(client_id)
            self.forget(client_id)
            if _owner_of(client_id)[1]:
                self.left(client_id)  # a new stream has another signature

    def terminated(self, ctx: RequestContext) -> None:
        """Remove a client whose termination a broker has accepted."""
        for key in tuple(self._keys.get((ctx.client_id, signer(ctx)), ())):
            self.left(key)

    def left(self, key: str) -> None:
        """Remove a client that terminated or expired."""
        self._clients.forget(key)
        self._unanswered.discard(key)
        owner = _owner_of(key)
        keys = self._keys.get(owner, {})
        keys.pop(key, None)
        if not keys:
            self._keys.pop(owner, None)
        self.forget(key)

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


def signer(ctx: RequestContext) -> str:
    """Return the name in a call's signature, which the proxy cannot check; empty without one."""
    header = next((value for name, value in ctx.metadata if name == AUTHORIZATION), "")
    try:
        return parse_authorization(header).user if header else ""
    except WireError:
        return header[:_NAME_MAX]  # refused by the brokers


def keyed(ctx: RequestContext) -> RequestContext:
    """Return a context whose client id stands for the id and the whole signature.

    What is sent to brokers has the metadata of the call.
    """
    signed = [value for name, value in ctx.metadata if name in (AUTHORIZATION, DATE_TIME)]
    if not signed or not ctx.client_id or ctx.client_id.isspace():
        return ctx
    digest = hashlib.sha256("\0".join(signed).encode()).hexdigest()
    return replace(ctx, client_id="\0".join((ctx.client_id, signer(ctx), digest)))


def _owner_of(key: str) -> tuple[str, str]:
    """Return client id and name of the user in a key."""
    parts = key.rsplit("\0", 2)
    return (parts[0], parts[1]) if len(parts) == 3 else (key, "")


class ProxySession:
    """One open stream of one client."""

    def __init__(
        self, owner: ProxyTelemetry, clock: Clock, ctx: RequestContext, outbound: Outbound
    ) -> None:
        self._owner = owner
        self._clock = clock
        self._rate = SettingsRate()
        self._ctx = keyed(ctx)
        self._outbound = outbound
        try:
            require_client_id(self._ctx)
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
