"""Lite subscriptions: which client subscribes to which lite topics, and which topics it must read.
Pure.

Source: docs/formats/broker-semantics.md, section 12.2; docs/formats/grpc-api.md, section 5.13. A
subscription belongs to one client of one group. A lite topic that may have messages for a group is
an event of every subscribed client of the group: the first client to poll takes the messages, the
others find the queue locked or empty. (The reference gives an event to one client and hands it on
if that client does not poll; here no client waits for another.) Each event is stored once; a client
with more events than its limit reads all its lite topics in turn.

A subscriber always has an event for a lite topic that was reported ready. An exclusive lite topic
never has two subscribers of a group, and a refresh takes no topic from another client. A removed
subscription leaves no state. Time is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from msgspec import Struct, field

#: Group and client id.
Key = tuple[str, str]


class LiteClient(Struct, eq=False):
    """The subscriptions of one client of one group."""

    key: Key
    parent: str
    events_max: int
    #: Time of its last subscription request.
    seen_ns: int
    #: It receives every lite topic of the parent.
    wildcard: bool = False
    #: The queues (LMQ) of its lite topics; empty for a wildcard client.
    queues: dict[str, None] = field(default_factory=dict)
    #: Those that may have messages for it, in the order of their events.
    events: dict[str, None] = field(default_factory=dict)
    #: Events were dropped: read all queues.
    behind: bool = False
    #: Those not yet read, the next one last.
    rest: list[str] = field(default_factory=list)
    #: Alternates between events and the rest.
    turn: bool = False

    def wants(self, queue: str) -> bool:
        """Return whether it subscribes to the queue."""
        return self.wildcard or queue in self.queues

    def note(self, queue: str) -> None:
        """Add an event: the queue may have messages."""
        if queue in self.events:
            return
        if len(self.events) >= self.events_max:
            self.behind = True
        else:
            self.events[queue] = None


class Eviction(Struct, frozen=True):
    """An exclusive lite topic that went to another client."""

    client_id: str
    queue: str


class LiteTable:
    """All lite subscriptions of one node."""

    def __init__(self, references_max: int) -> None:
        self.references_max = references_max
        #: Number of subscriptions of all clients.
        self.references = 0
        self._clients: dict[Key, LiteClient] = {}
        self._by_id: dict[str, dict[Key, LiteClient]] = {}
        #: By queue (LMQ): its subscribers without wildcard clients.
        self._queues: dict[str, dict[Key, LiteClient]] = {}
        #: By parent.
        self._wildcards: dict[str, dict[Key, LiteClient]] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[LiteClient]:
        return iter(list(self._clients.values()))

    def get(self, key: Key) -> LiteClient | None:
        """Return the client's subscriptions, or None."""
        return self._clients.get(key)

    def of_client(self, client_id: str) -> list[LiteClient]:
        """Return a client's subscriptions in all its groups (normally one)."""
        return list(self._by_id.get(client_id, {}).values())

    def open(
        self, key: Key, parent: str, events_max: int, now_ns: int, *, wildcard: bool = False
    ) -> LiteClient:
        """Return the client, created if new, with its time of activity updated."""
        client = self._clients.get(key)
        if client is not None and (client.parent, client.wildcard) != (parent, wildcard):
            self.drop(key)  # its group was bound to another parent
            client = None
        if client is None:
            client = LiteClient(key, parent, events_max, now_ns, wildcard)
            self._clients[key] = client
            self._by_id.setdefault(key[1], {})[key] = client
            if wildcard:
                self._wildcards.setdefault(parent, {})[key] = client
        client.seen_ns = now_ns
        client.events_max = events_max
        return client

    def has_capacity(self, client: LiteClient, queues: Iterable[str]) -> bool:
        """Return whether all of these can be subscribed to."""
        fresh = sum(queue not in client.queues for queue in queues)
        return self.references + fresh <= self.references_max

    def add(
        self, client: LiteClient, queues: Iterable[str], *, exclusive: bool = False
    ) -> list[Eviction]:
        """Add subscriptions; with `exclusive` other clients of the group lose them."""
        evicted = []
        for queue in queues:
            if exclusive:
                for other in self._others(client, queue):
                    self._unsubscribe(other, queue)
                    evicted.append(Eviction(other.key[1], queue))
            self._subscribe(client, queue)
        return evicted

    def remove(self, client: LiteClient, queues: Iterable[str]) -> list[str]:
        """Remove subscriptions; return those that existed."""
        gone = [queue for queue in queues if queue in client.queues]
        for queue in gone:
            self._unsubscribe(client, queue)
        return gone

    def replace(
        self, client: LiteClient, queues: Collection[str], *, exclusive: bool = False
    ) -> list[Eviction]:
        """Replace all subscriptions: a client's refresh.

        With `exclusive`, topics of another client stay with it: the refresh may be older than that
        client's subscription. The returned evictions are then the caller's own.
        """
        refused = []
        wanted = set(queues)
        self.remove(client, [queue for queue in client.queues if queue not in wanted])
        for queue in queues:
            if exclusive and queue not in client.queues and self._others(client, queue):
                refused.append(Eviction(client.key[1], queue))
            else:
                self._subscribe(client, queue)
        return refused

    def drop(self, key: Key) -> bool:
        """Remove all subscriptions of the client; return whether it had any."""
        client = self._clients.pop(key, None)
        if client is None:
            return False
        _discard(self._by_id, key[1], key)
        for queue in list(client.queues):
            self._unsubscribe(client, queue)
        if client.wildcard:
            _discard(self._wildcards, client.parent, key)
        client.events.clear()
        client.rest.clear()
        client.behind = False
        return True

    def expire(self, cut_ns: int) -> list[Key]:
        """Remove clients that have not refreshed since `cut_ns`."""
        gone = [key for key, client in self._clients.items() if client.seen_ns < cut_ns]
        for key in gone:
            self.drop(key)
        return gone

    def subscribers(self, queue: str, parent: str, group: str | None = None) -> list[LiteClient]:
        """Return the subscribers of a queue, of one group or of all."""
        clients = [*self._queues.get(queue, {}).values(), *self._wildcards.get(parent, {}).values()]
        return clients if group is None else [c for c in clients if c.key[0] == group]

    def ready(self, queue: str, parent: str, group: str | None = None) -> list[LiteClient]:
        """Add an event for a queue to the clients of one group or all; return them."""
        clients = self.subscribers(queue, parent, group)
        for client in clients:
            client.note(queue)
        return clients

    def take(self, client: LiteClient, known: Callable[[], Iterable[str]]) -> str | None:
        """Return the next queue to read, removing its event; None if there is none.

        If events were dropped, every queue of the client (of a wildcard client: `known`) is read
        once, alternating with new events.
        """
        if client.behind and not client.rest:
            client.behind = False
            client.rest = list(known() if client.wildcard else client.queues)[::-1]
        client.turn = not client.turn
        if client.turn or not client.events:
            while client.rest:
                queue = client.rest.pop()
                if client.wants(queue):
                    client.events.pop(queue, None)
                    return queue
        for queue in client.events:
            del client.events[queue]
            return queue
        return None

    def validate(self) -> None:
        """Check the invariants; for tests."""
        named = {(key, queue) for key, c in self._clients.items() for queue in c.queues}
        listed = {(key, queue) for queue, clients in self._queues.items() for key in clients}
        assert named == listed
        assert self.references == len(named) <= self.references_max
        assert all(self._queues.values()) and all(self._wildcards.values())
        assert {key for keys in self._by_id.values() for key in keys} == self._clients.keys()
        for client in self._clients.values():
            assert len(client.events) <= client.events_max
            assert all(client.wants(queue) for queue in client.events)
            assert not (client.wildcard and client.queues)

    def _others(self, client: LiteClient, queue: str) -> list[LiteClient]:
        clients = self._queues.get(queue, {})
        return [c for c in clients.values() if c is not client and c.key[0] == client.key[0]]

    def _subscribe(self, client: LiteClient, queue: str) -> None:
        if not client.wildcard and queue not in client.queues:
            client.queues[queue] = None
            self._queues.setdefault(queue, {})[client.key] = client
            self.references += 1

    def _unsubscribe(self, client: LiteClient, queue: str) -> None:
        del client.queues[queue]
        client.events.pop(queue, None)
        _discard(self._queues, queue, client.key)
        self.references -= 1


def _discard(table: dict[str, dict[Key, LiteClient]], name: str, key: Key) -> None:
    clients = table[name]
    del clients[key]
    if not clients:
        del table[name]
