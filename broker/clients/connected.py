"""Clients of the gRPC protocol for tools: the connected clients, their settings and stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ...proto import v1, v2
from ...proto.errors import WireError
from ..messages.validation import duration_ms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Iterator

    from ...front.clock import Clock
    from .registry import Client, ClientRegistry
    from .stacks import ClientStacks

#: Names of each kind in the status of one client.
NAMES_MAX = 100
#: Characters of a filter expression in it.
EXPRESSION_MAX = 1_024
NS_PER_MS = 1_000_000
_TYPES: dict[int, str] = {
    number: name.lower().replace("_", " ") for name, number in v2.ClientType.items()
}
_KINDS = {v2.TAG: "TAG", v2.SQL: "SQL"}


class ConnectedClients(Protocol):
    """The clients of one protocol."""

    def ids(self) -> Iterable[str]:
        """Return the ids of the clients that were heard of lately."""

    def status(self, client_id: str, *, detailed: bool) -> v1.ClientStatus | None:
        """Return what is known of a client; `detailed`: with its settings."""

    def stack(self, client_id: str) -> Awaitable[str] | None:
        """Ask a client for the stack of its threads; None if it is not one of these."""


class GrpcClients:
    """The clients of the registry."""

    def __init__(self, clock: Clock, clients: ClientRegistry, stacks: ClientStacks) -> None:
        self._clock = clock
        self._clients = clients
        self._stacks = stacks

    def ids(self) -> Iterable[str]:
        """Return the ids of the clients that were heard of lately."""
        return self._clients.alive_ids(self._clock.steady_ns())

    def status(self, client_id: str, *, detailed: bool) -> v1.ClientStatus | None:
        """Return what is known of a client; `detailed`: with its settings."""
        client = self._clients.get(client_id)
        if client is None:
            return None
        # In place: a list has thousands of clients, and a nested message costs a copy.
        found = v1.ClientStatus(kind=kind_of(client))
        _fill(found.client, client, self._clock.steady_ns())
        if client.group:
            found.groups.append(client.group)
        if client.topics or client.sent:
            found.topics.extend([*dict.fromkeys((*client.topics, *client.sent))][:NAMES_MAX])
        if detailed and client.settings:
            settings = v2.Settings.FromString(client.settings)
            found.subscriptions.extend(_subscriptions(settings))
            for key, value in _settings(settings):
                found.settings.add(key=key, value=value)
        return found

    def stack(self, client_id: str) -> Awaitable[str] | None:
        """Ask a client for the stack of its threads; None if it is not one of these."""
        client = self._clients.get(client_id)
        return None if client is None else self._stacks.ask(client)


def member_of(client: Client, now_ns: int) -> v1.GroupClient:
    """Return a client as a member of its group."""
    member = v1.GroupClient()
    _fill(member, client, now_ns)
    return member


def _fill(member: v1.GroupClient, client: Client, now_ns: int) -> None:
    member.client_id = client.client_id
    member.language = client.language
    member.version = client.version
    member.peer = client.peer
    member.last_seen_ms_ago = (now_ns - client.last_seen_ns) // NS_PER_MS
    member.protocol = "grpc"


def kind_of(client: Client) -> str:
    """Return the kind of a client in words; "" if it is unknown."""
    if not client.client_type:
        return "producer" if client.topics or client.sent else ""
    return _TYPES.get(client.client_type, "")


def unknown_client(client_id: str) -> WireError:
    """Return the error of a client that is not connected."""
    return WireError(v2.NOT_FOUND, f"client {client_id[:256]} is not connected")


def _subscriptions(settings: v2.Settings) -> Iterator[v1.ClientSubscription]:
    for entry in settings.subscription.subscriptions[:NAMES_MAX]:
        expression = entry.expression
        yield v1.ClientSubscription(
            topic=entry.topic.name,
            expression=expression.expression[:EXPRESSION_MAX],
            kind=_KINDS.get(expression.type, ""),
        )


def _settings(settings: v2.Settings) -> Iterator[tuple[str, str]]:
    """Yield the settings that a client has sent, as names and values."""
    points = settings.access_point.addresses
    if points:
        yield "access point", ", ".join(f"{one.host}:{one.port}" for one in points)
    for name in ("platform", "hostname"):
        if value := getattr(settings.user_agent, name):
            yield name, value
    if wait_ms := duration_ms(settings.request_timeout):
        yield "request timeout", f"{wait_ms} ms"
    if settings.HasField("publishing"):
        publishing = settings.publishing
        yield "checks message types", "yes" if publishing.validate_message_type else "no"
    subscription = settings.subscription
    if poll_ms := duration_ms(subscription.long_polling_timeout):
        yield "long polling", f"{poll_ms} ms"
    if subscription.receive_batch_size:
        yield "receive batch", str(subscription.receive_batch_size)
    if subscription.fifo:
        yield "in order", "yes"
    for key, value in sorted(settings.client_properties.items())[:NAMES_MAX]:
        yield key, value
