"""Clients by client id: when each was last heard of, its settings and its open telemetry streams.

Promises: a client is known by its id and never by its connection (one connection may carry every
client of a process); the end of a telemetry stream is not the end of the client; a client without
settings is fine (gRPC API, sections 2.1, 5.3, 7.5 and pitfalls 21 and 22). State is in memory and
derived: losing it costs nothing but the next heartbeat.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..front.context import RequestContext
    from ..proto import v2

_NS_PER_MS = 1_000_000


class CommandStream(Protocol):
    """What the registry needs of an open telemetry stream: somewhere to send commands."""

    def send(self, message: object) -> None:
        """Queue one command for the client."""


@dataclass(slots=True)
class Client:
    """One producer or consumer object of some process."""

    client_id: str
    language: str
    version: str
    peer: str
    last_seen_ns: int
    client_type: int = 0
    group: str = ""
    settings: v2.Settings | None = None
    topics: frozenset[str] = frozenset()
    streams: list[CommandStream] = field(default_factory=list)


class ClientRegistry:
    """Every client that this node heard of within the expiry time."""

    def __init__(self, expiry_ms: int, limit: int) -> None:
        self._expiry_ns = expiry_ms * _NS_PER_MS
        self._limit = limit
        self._clients: dict[str, Client] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._clients.values()))

    def seen(self, ctx: RequestContext, now_ns: int) -> Client:
        """Note that a client spoke; it is registered if it was unknown."""
        client = self._clients.get(ctx.client_id)
        if client is None:
            return self._register(ctx, now_ns)
        client.last_seen_ns = now_ns
        return client

    def get(self, client_id: str) -> Client | None:
        """The client, alive or about to expire."""
        return self._clients.get(client_id)

    def alive(self, client_id: str, now_ns: int) -> bool:
        """Whether the client was heard of within the expiry time."""
        client = self._clients.get(client_id)
        return client is not None and now_ns - client.last_seen_ns <= self._expiry_ns

    def settings(self, client_id: str) -> v2.Settings | None:
        """The settings that the client sent last, if it ever did."""
        client = self._clients.get(client_id)
        return client.settings if client is not None else None

    def forget(self, client_id: str) -> Client | None:
        """The client said good-bye (or expired)."""
        return self._clients.pop(client_id, None)

    def expire(self, now_ns: int) -> list[str]:
        """Forget who was not heard of for too long; the ids are returned."""
        cut = now_ns - self._expiry_ns
        gone = [c.client_id for c in self._clients.values() if c.last_seen_ns < cut]
        for client_id in gone:
            del self._clients[client_id]
        return gone

    def _register(self, ctx: RequestContext, now_ns: int) -> Client:
        if len(self._clients) >= self._limit:
            self._drop_oldest()
        client = Client(ctx.client_id, ctx.language, ctx.client_version, ctx.peer, now_ns)
        self._clients[ctx.client_id] = client
        return client

    def _drop_oldest(self) -> None:
        """Ids are the caller's choice: a loop of fresh ids must not fill the memory.

        A sixteenth goes at once, so that the scan is paid once for many registrations.
        """
        count = max(1, self._limit // 16)
        oldest = heapq.nsmallest(count, self._clients.values(), key=lambda c: c.last_seen_ns)
        for client in oldest:
            del self._clients[client.client_id]
