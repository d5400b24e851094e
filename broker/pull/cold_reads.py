"""Old parts of the log are read on a follower, so that a busy leader keeps its memory for what is new.

Source: HA, section 3.1 and rule R10; issue 6, item 9. A read counts as cold when its message lies further behind
the log's end than `accessMessageInMemoryMaxRatio` of the machine's memory: it would come from the disk, on the
loop on which everybody sends. Reads that change nothing the leader passes on, as the access point passes everything
on: to an in-sync follower, each in its turn, which serves them up to the confirm offset. Receiving stays with the
leader, where the group's state is; only the records come from the follower (`pop/cold.py`). Without a follower, or
when it cannot be reached, the leader reads for itself. Promises: while the whole log fits into that share of the
memory this costs a comparison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...proto import paths, v2
from ...store.format.errors import StoreError
from ...store.format.message_id import OffsetId
from ..admin.message_queries import key_query

if TYPE_CHECKING:
    from ..node import Node

COLD_READS = frozenset((paths.PULL_MESSAGE, paths.QUERY_OFFSET, paths.QUERY_MESSAGES))
"""What may be read elsewhere."""


class ColdReads:
    """Of one leader."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._turn = 0

    def reader(self, path: str, request: Any) -> str | None:
        """The clients' address of the follower that is to serve a read; None: read it here."""
        if not self._node.config.slave_read_enable or not self._is_cold(path, request):
            return None
        found = [client for client, _ in in_sync_followers(self._node) if client]
        if not found:
            return None
        self._turn += 1
        self._node.counters.cold["passed_on"] += 1
        return found[self._turn % len(found)]

    def _is_cold(self, path: str, request: Any) -> bool:
        store = self._node.store
        try:
            if path == paths.QUERY_MESSAGES:
                place = OffsetId.parse(request.message_id)
                if place is not None:
                    return store.is_cold_position(place.physical_offset)
                asked = key_query(request, store.config.max_msgs_num_batch)
                return asked is not None and store.queries.is_cold(asked)
            queue = request.message_queue
            topic, queue_id = queue.topic.name, queue.id
            if path == paths.PULL_MESSAGE:
                return store.is_cold(topic, queue_id, request.offset)
            # A search by time looks at records from the queue's begin on.
            by_time = request.query_offset_policy == v2.TIMESTAMP
            return by_time and store.is_cold(topic, queue_id, store.min_offset(topic, queue_id))
        except (OSError, ValueError, StoreError):
            return False  # the handler says what is wrong with it


def in_sync_followers(node: Node) -> list[tuple[str, str]]:
    """Addresses of the followers that have what is confirmed, for clients and for replicas, by broker id."""
    ready = {
        row.broker_id
        for row in node.replication.members()
        if row.role == "follower" and row.in_sync and row.connected
    }
    addresses = {m.broker_id: (m.client, m.ha) for m in node.cluster.own().members}
    state = node.replication.state
    if state is not None:
        addresses.update((m.broker_id, (m.addresses.client, m.addresses.ha)) for m in state.members)
    return [addresses[one] for one in sorted(ready) if one in addresses]
