"""Old parts of the log are read on a follower, so that a busy leader keeps its memory for what is new.

Source: HA, section 3.1 and rule R10; issue 6, item 9. A read counts as cold when its message lies further behind
the log's end than `accessMessageInMemoryMaxRatio` of the machine's memory: it would come from the disk, on the
loop on which everybody sends. The leader then passes it on, as the access point passes everything on: to an
in-sync follower, each in its turn, which serves it up to the confirm offset. Without one, or when that one
cannot be reached, the leader serves it itself. Only reads that change nothing take this way: receiving keeps its
state where the leader is. Promises: while the whole log fits into that share of the memory this costs a comparison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..proto import paths, v2
from ..store.message_id import OffsetId

if TYPE_CHECKING:
    from .node import Node

COLD_READS = frozenset((paths.PULL_MESSAGE, paths.QUERY_OFFSET, paths.QUERY_MESSAGES))
"""What may be read elsewhere."""


class ColdReads:
    """Of one leader."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._turn = 0
        self.passed_on = 0
        """Reads that a follower was asked for."""

    def reader(self, path: str, request: Any) -> str | None:
        """The clients' address of the follower that is to serve a read; None: read it here."""
        if not self._node.config.slave_read_enable or not self._is_cold(path, request):
            return None
        address = self._follower()
        self.passed_on += address is not None
        return address

    def _is_cold(self, path: str, request: Any) -> bool:
        store = self._node.store
        try:
            if path == paths.QUERY_MESSAGES:
                place = OffsetId.parse(request.message_id)
                return place is not None and store.is_cold_place(place.physical_offset)
            queue = request.message_queue
            topic, queue_id = queue.topic.name, queue.id
            if path == paths.PULL_MESSAGE:
                return store.is_cold(topic, queue_id, request.offset)
            # A search by time looks at records from the queue's begin on.
            by_time = request.query_offset_policy == v2.TIMESTAMP
            return by_time and store.is_cold(topic, queue_id, store.min_offset(topic, queue_id))
        except (OSError, ValueError):
            return False  # the handler says what is wrong with it

    def _follower(self) -> str | None:
        node = self._node
        ready = {
            row.broker_id
            for row in node.replication.members()
            if row.role == "follower" and row.in_sync and row.connected
        }
        addresses = {m.broker_id: m.client for m in node.cluster.own().members}
        state = node.replication.state
        if state is not None:
            addresses.update((m.broker_id, m.addresses.client) for m in state.members)
        found = [addresses[one] for one in sorted(ready) if addresses.get(one)]
        if not found:
            return None
        self._turn += 1
        return found[self._turn % len(found)]
