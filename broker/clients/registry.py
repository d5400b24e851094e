"""Client registry: last activity, settings and open telemetry streams of each client, by client id.

Promises: a client is identified by its id, never by its connection (one connection may carry all
clients of a process); the end of a telemetry stream does not remove the client; settings are
optional (docs/formats/grpc-api.md, sections 2.1, 5.3, 7.5 and pitfalls 21 and 22). The producers of
a topic come from the settings and, for clients that add topics later, from their first transaction
(pitfall 40). Of large settings only the parts that the broker uses are kept. State is in memory
and derived: the next heartbeat restores it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

from ...proto import v2
from ...proto.errors import WireError

if TYPE_CHECKING:
    from ...front.context import RequestContext

    #: Whether a client of a user, at an address, may get what needs rights now.
    May = Callable[[str, tuple[tuple[str, str, int], ...], str], bool]

_NS_PER_MS = 1_000_000
#: Characters kept of a client's language and version, which metadata allows 16 KiB for.
LABEL_MAX = 64
#: Topics of one client known from its transactions only; its settings name them in minutes.
SENT_TOPICS_MAX = 1_000
#: Concurrent streams of one client; some clients leave old ones open.
STREAMS_MAX = 16
#: Settings of at most this size are always accepted: some tens of topics.
SMALL_SETTINGS_BYTES = 4 << 10
#: Total size of larger settings: callers choose their ids, so each id must not cost 256 KiB.
LARGE_SETTINGS_BYTES_MAX = 64 << 20
#: Total size of the settings that are kept for tools: those of 50,000 usual clients.
KEPT_SETTINGS_BYTES_MAX = 16 << 20


class CommandStream(Protocol):
    """An open telemetry stream, to send commands."""

    @property
    def finished(self) -> bool:
        """Whether the stream has ended."""

    def send(self, message: object) -> None:
        """Queue one command for the client."""

    def finish(self) -> None:
        """End the stream after the queued commands."""


class Client(Struct):
    """One producer or consumer object of a process."""

    client_id: str
    language: str
    version: str
    peer: str
    last_seen_ns: int
    #: The user that registered it, whose it is while it is alive; empty without authentication.
    user: str = ""
    client_type: int = 0
    group: str = ""
    has_settings: bool = False
    #: Size of its settings if they are large.
    large_bytes: int = 0
    #: Its last settings, for tools; empty if they are large or too many clients have some.
    settings: bytes = b""
    #: From its settings; 0: unknown.
    request_timeout_ms: int = 0
    #: Topics to which it produces, with their namespaces, from its settings.
    topics: Mapping[str, str] = field(default_factory=dict)
    #: Topics to which it sent transactions.
    sent: dict[str, None] = field(default_factory=dict)
    streams: list[CommandStream] = field(default_factory=list)


class ClientRegistry:
    """The clients that were active within the expiry time."""

    def __init__(self, expiry_ms: int, limit: int) -> None:
        self._expiry_ns = expiry_ms * _NS_PER_MS
        self._limit = limit
        self._clients: dict[str, Client] = {}
        self._producers: dict[str, dict[str, Client]] = {}
        self._turns: Counter[str] = Counter()
        self._large_bytes = 0
        self._kept_bytes = 0
        #: Returns whether clients of another protocol consume in a group, so that this one's may
        #: not.
        self.is_taken: Callable[[str], bool] = lambda _group: False
        #: Returns the user of a checked call.
        self.user_of: Callable[[RequestContext], str] = lambda _ctx: ""
        self.may: May = lambda _user, _needs, _peer: True

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._clients.values()))

    def seen(self, ctx: RequestContext, now_ns: int) -> Client:
        """Record activity of a client; register an unknown one."""
        client = self._clients.get(ctx.client_id)
        if client is None:
            return self._register(ctx, now_ns)
        client.last_seen_ns = now_ns
        return client

    def consumes(self, client_id: str, group: str) -> None:
        """Record that a client without settings receives messages of a group: it is a member."""
        client = self._clients.get(client_id)
        if client is not None and not client.has_settings:
            client.client_type = client.client_type or v2.SIMPLE_CONSUMER
            client.group = group

    def attach(self, ctx: RequestContext, stream: CommandStream, now_ns: int) -> Client:
        """Return the client of a stream, with the stream; register it if it was forgotten."""
        client = self.seen(ctx, now_ns)
        if stream not in client.streams:
            client.streams.append(stream)
            del client.streams[:-STREAMS_MAX]
        return client

    def detach(self, client_id: str, stream: CommandStream) -> bool:
        """Remove an ended stream; return whether the client has no other one.

        The client stays registered until it expires.
        """
        client = self._clients.get(client_id)
        if client is not None and stream in client.streams:
            client.streams.remove(stream)
        return client is None or not client.streams

    def get(self, client_id: str) -> Client | None:
        """Return the client, also if it is about to expire."""
        return self._clients.get(client_id)

    def alive(self, client_id: str, now_ns: int) -> bool:
        """Return whether the client was active within the expiry time."""
        client = self._clients.get(client_id)
        return client is not None and now_ns - client.last_seen_ns <= self._expiry_ns

    def alive_ids(self, now_ns: int) -> list[str]:
        """Return the ids of the clients that were active within the expiry time."""
        since_ns = now_ns - self._expiry_ns
        return [name for name, client in self._clients.items() if client.last_seen_ns >= since_ns]

    def request_timeout_ms(self, client_id: str) -> int:
        """Return the request timeout in the client's settings; 0 if unknown."""
        client = self._clients.get(client_id)
        return client.request_timeout_ms if client is not None else 0

    def forget(self, client_id: str) -> Client | None:
        """Remove a client that terminated or expired."""
        client = self._clients.pop(client_id, None)
        if client is not None:
            self._large_bytes -= client.large_bytes
            self._kept_bytes -= len(client.settings)
            self._unlist(client, (*client.topics, *client.sent))
        return client

    def reserve(self, client: Client, size: int) -> None:
        """Count settings of `size` bytes for the client. Raises TOO_MANY_REQUESTS."""
        large = size if size > SMALL_SETTINGS_BYTES else 0
        total = self._large_bytes - client.large_bytes + large
        if large and total > LARGE_SETTINGS_BYTES_MAX:
            raise WireError(
                v2.TOO_MANY_REQUESTS, "the settings of all clients are too large: name fewer topics"
            )
        self._large_bytes, client.large_bytes = total, large

    def keep(self, client: Client, settings: v2.Settings) -> None:
        """Keep the client's settings for tools, if they are small and there is room."""
        data = settings.SerializeToString()
        others = self._kept_bytes - len(client.settings)
        if len(data) > SMALL_SETTINGS_BYTES or others + len(data) > KEPT_SETTINGS_BYTES_MAX:
            data = b""
        client.settings, self._kept_bytes = data, others + len(data)

    def publishes(self, client: Client, topics: Mapping[str, str]) -> None:
        """Set the topics to which the client produces, and their namespaces, from its settings."""
        self._unlist(client, client.topics)
        client.topics = topics
        for topic in (*client.topics, *client.sent):
            self._producers.setdefault(topic, {})[client.client_id] = client

    def sends(self, client: Client, topic: str) -> None:
        """Add a topic to which the client sends a transaction: it can answer checks there."""
        if topic in client.sent:
            return
        client.sent[topic] = None
        if len(client.sent) > SENT_TOPICS_MAX:
            oldest = next(iter(client.sent))
            del client.sent[oldest]
            if oldest not in client.topics:
                self._unlist(client, (oldest,))
        self._producers.setdefault(topic, {})[client.client_id] = client

    def producers(self, topic: str, now_ns: int) -> list[Client]:
        """Return live producers of the topic with an open stream, rotated by one at each call."""
        producers = [
            client
            for client in self._producers.get(topic, {}).values()
            if now_ns - client.last_seen_ns <= self._expiry_ns
            and any(not stream.finished for stream in client.streams)
        ]
        if len(producers) > 1:
            first = self._turns[topic] % len(producers)
            self._turns[topic] += 1
            producers = producers[first:] + producers[:first]
        return producers

    def expire(self, now_ns: int) -> list[str]:
        """Remove expired clients; return their ids."""
        cut = now_ns - self._expiry_ns
        gone = [c.client_id for c in self._clients.values() if c.last_seen_ns < cut]
        for client_id in gone:
            self.forget(client_id)
        return gone

    def _register(self, ctx: RequestContext, now_ns: int) -> Client:
        if len(self._clients) >= self._limit:
            self._drop_oldest()
        language, version = ctx.language[:LABEL_MAX], ctx.client_version[:LABEL_MAX]
        user = self.user_of(ctx)
        client = Client(ctx.client_id, language, version, ctx.peer, now_ns, user)
        self._clients[ctx.client_id] = client
        return client

    def _drop_oldest(self) -> None:
        """Remove the sixteenth that was inactive longest; one scan serves many registrations.

        Callers choose their ids: a loop of new ids must not fill the memory.
        """
        count = max(1, self._limit // 16)
        oldest = heapq.nsmallest(count, self._clients.values(), key=lambda c: c.last_seen_ns)
        for client in oldest:
            self.forget(client.client_id)

    def _unlist(self, client: Client, topics: Iterable[str]) -> None:
        for topic in topics:
            listed = self._producers.get(topic)
            if listed is not None:
                listed.pop(client.client_id, None)
                if not listed:
                    del self._producers[topic]
                    del self._turns[topic]
