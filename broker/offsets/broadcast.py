"""Where broadcasting consumers are: each client reads everything and keeps its own offsets.

A client that begins asks with an offset below 0 and is told where to begin; from then on its pulls say
how far it is. The slowest client's offset is committed under the pseudo-group `<group>@broadcast`, and a
client that comes new begins there (broker semantics, section 2.6). Promises: a client that was silent for
two minutes is forgotten, a queue that it did not read for five is; what is remembered is bounded, and
beyond the bound new clients are served but not remembered. Pure: the time is passed in, in milliseconds
of a steady clock. In memory; losing it costs nothing that is committed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SUFFIX = "@broadcast"
COMMIT_MS = 5_000
"""Time between two commits of the slowest offsets."""
SILENT_MS = 120_000
"""A client that does not pull for so long is gone."""
STALE_MS = 300_000
"""A queue that a client does not read for so long is not its any more."""
CLIENTS_MAX = 10_000
"""Clients of all groups and topics; each takes about a KiB with a few queues."""


@dataclass(slots=True)
class _Reader:
    """One client of a group on a topic."""

    seen_ms: int
    queues: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Queue id to its next offset, and when it was said."""


def broadcast_group(group: str) -> str:
    """The pseudo-group under which the offsets are committed."""
    return group + SUFFIX


class BroadcastOffsets:
    """Every broadcasting client's offsets."""

    def __init__(self, limit: int = CLIENTS_MAX) -> None:
        self._limit = limit
        self._readers: dict[tuple[str, str], dict[str, _Reader]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def begin(self, topic: str, group: str, client_id: str, now_ms: int) -> None:
        """A client asked where to begin: it broadcasts."""
        clients = self._readers.setdefault((topic, group), {})
        if client_id in clients:
            clients[client_id].seen_ms = now_ms
        elif self._count < self._limit:
            clients[client_id] = _Reader(now_ms)
            self._count += 1

    def pulled(
        self, topic: str, group: str, client_id: str, *, queue_id: int, offset: int, now_ms: int
    ) -> None:
        """A client reads from `offset` on; nothing happens unless it broadcasts."""
        reader = self._readers.get((topic, group), {}).get(client_id)
        if reader is not None:
            reader.seen_ms = now_ms
            reader.queues[queue_id] = (offset, now_ms)

    def slowest(self, now_ms: int) -> list[tuple[str, str, int, int]]:
        """Topic, group, queue and the lowest offset of its clients; the silent are forgotten."""
        found = []
        for (topic, group), clients in list(self._readers.items()):
            lowest: dict[int, int] = {}
            for client_id, reader in list(clients.items()):
                if now_ms - reader.seen_ms > SILENT_MS:
                    del clients[client_id]
                    self._count -= 1
                    continue
                for queue_id, (offset, said_ms) in list(reader.queues.items()):
                    if now_ms - said_ms > STALE_MS:
                        del reader.queues[queue_id]
                    else:
                        lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
            if not clients:
                del self._readers[topic, group]
            found += [(topic, group, queue_id, offset) for queue_id, offset in lowest.items()]
        return found
