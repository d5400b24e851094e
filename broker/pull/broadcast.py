"""Offsets of broadcasting consumers: each client reads everything and stores its own offsets. Pure.

A new client sends an offset below 0 and gets the offset to start from; its later pulls contain its
position. The offset of the slowest client is committed under the pseudo-group `<group>@broadcast`,
where new clients start (docs/formats/broker-semantics.md, section 2.6). A client without pulls for
two minutes is removed, a queue that it did not read for five minutes too. Memory is bounded: beyond
the limit new clients are served but not tracked. The time is passed in, in milliseconds of a steady
clock. In memory only; a loss costs nothing that is committed.
"""

from __future__ import annotations

from msgspec import Struct, field

SUFFIX = "@broadcast"
#: Interval of commits of the slowest offsets.
COMMIT_MS = 5_000
#: A client without a pull for this long is removed.
SILENT_MS = 120_000
#: A queue that the client does not read for this long is removed.
STALE_MS = 300_000
#: Clients of all groups and topics; each takes about a KiB with a few queues.
CLIENTS_MAX = 10_000


class _Reader(Struct):
    """One client of a group on a topic."""

    seen_ms: int
    #: Queue id to the next offset and the time of the pull.
    queues: dict[int, tuple[int, int]] = field(default_factory=dict)


def broadcast_group(group: str) -> str:
    """Return the pseudo-group under which the offsets are committed."""
    return group + SUFFIX


class BroadcastOffsets:
    """The offsets of every broadcasting client."""

    def __init__(self, limit: int = CLIENTS_MAX) -> None:
        self._limit = limit
        self._readers: dict[tuple[str, str], dict[str, _Reader]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def begin(self, topic: str, group: str, client_id: str, now_ms: int) -> None:
        """Register a client that requests its start offset: it broadcasts."""
        clients = self._readers.setdefault((topic, group), {})
        if client_id in clients:
            clients[client_id].seen_ms = now_ms
        elif self._count < self._limit:
            clients[client_id] = _Reader(now_ms)
            self._count += 1

    def pulled(
        self, topic: str, group: str, client_id: str, *, queue_id: int, offset: int, now_ms: int
    ) -> None:
        """Record a pull from `offset` on; ignored unless the client broadcasts."""
        reader = self._readers.get((topic, group), {}).get(client_id)
        if reader is not None:
            reader.seen_ms = now_ms
            reader.queues[queue_id] = (offset, now_ms)

    def forget(self, topic: str | None, group: str | None) -> None:
        """Drop the clients of a deleted topic or group; they begin again with a new one."""
        for key in list(self._readers):
            if topic in (None, key[0]) and group in (None, key[1]):
                self._count -= len(self._readers.pop(key))

    def slowest(self, now_ms: int) -> list[tuple[str, str, int, int]]:
        """Return topic, group, queue and the lowest offset of its clients; remove silent
        clients.
        """
        offsets = []
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
            offsets += [(topic, group, queue_id, offset) for queue_id, offset in lowest.items()]
        return offsets
