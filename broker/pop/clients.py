"""Receivers: the queues from which each client has received, for clients that leave. Pure, bounded.

Client ids are chosen by clients, so beyond the limit the oldest is removed: its messages then come
back at the end of their invisible time instead of a second after it left.
"""

from __future__ import annotations

from collections.abc import Collection

#: Topic and group.
Pair = tuple[str, str]


class Receivers:
    """Clients, with the topics and groups for which they have received."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pairs: dict[str, set[Pair]] = {}

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._pairs

    def add(self, client_id: str, topic: str, group: str) -> None:
        """Record a receive of a client."""
        pairs = self._pairs.get(client_id)
        if pairs is None:
            if len(self._pairs) >= self._limit:
                self._pairs.pop(next(iter(self._pairs)))
            pairs = self._pairs[client_id] = set()
        pairs.add((topic, group))

    def take(self, client_ids: Collection[str]) -> set[Pair]:
        """Remove clients; return where they may hold messages."""
        return {pair for client_id in client_ids for pair in self._pairs.pop(client_id, ())}

    def clear(self) -> None:
        """Remove all clients."""
        self._pairs.clear()
