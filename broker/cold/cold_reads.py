"""Cold reads: a leader forwards reads of old log data to a follower, to keep its own page cache.

Source: docs/formats/ha.md, section 3.1 and rule R10. A read is cold if its message lies further
behind the log's end than `accessMessageInMemoryMaxRatio` of the machine's memory: it would come
from the disk, on the loop that also handles sends. The leader forwards read-only requests through
the access point to its in-sync followers in turn, which serve them up to the confirm offset.
Receiving stays on the leader, which holds the group's state; only the records come from the
follower (`cold_records.py`). Without a reachable follower the leader reads its own log. Promises:
while the whole log fits into that share of the memory this costs one comparison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...proto import paths, v2
from ...store.format.errors import StoreError
from ...store.format.message_id import OffsetId
from ..messages.key_query import key_query

if TYPE_CHECKING:
    from ...ha.engine import Replication
    from ...store.message_store import MessageStore
    from ..base.cluster_view import ClusterView
    from ..base.runtime import Runtime

#: Methods that may be forwarded.
COLD_READS = frozenset((paths.PULL_MESSAGE, paths.QUERY_OFFSET, paths.QUERY_MESSAGES))


class ColdReads:
    """Selects the follower for a cold read, on a leader."""

    def __init__(
        self,
        runtime: Runtime,
        store: MessageStore,
        replication: Replication,
        cluster: ClusterView,
    ) -> None:
        self._enabled = runtime.config.slave_read_enable
        self._counters = runtime.counters
        self._store = store
        self._replication = replication
        self._cluster = cluster
        self._turn = 0

    def reader(self, path: str, request: Any) -> str | None:
        """Return the client address of the follower for a read; None: read locally."""
        if not self._enabled or not self._is_cold(path, request):
            return None
        followers = in_sync_followers(self._replication, self._cluster)
        found = [client for client, _ in followers if client]
        if not found:
            return None
        self._turn += 1
        self._counters.cold["passed_on"] += 1
        return found[self._turn % len(found)]

    def _is_cold(self, path: str, request: Any) -> bool:
        store = self._store
        try:
            if path == paths.QUERY_MESSAGES:
                place = OffsetId.parse(request.message_id)
                if place is not None:
                    return store.reader.is_cold_position(place.physical_offset)
                asked = key_query(request, store.config.max_msgs_num_batch)
                return asked is not None and store.queries.is_cold(asked)
            queue = request.message_queue
            topic, queue_id = queue.topic.name, queue.id
            if path == paths.PULL_MESSAGE:
                return store.reader.is_cold(topic, queue_id, request.offset)
            # A search by time reads records from the start of the queue.
            by_time = request.query_offset_policy == v2.TIMESTAMP
            return by_time and store.reader.is_cold(
                topic, queue_id, store.min_offset(topic, queue_id)
            )
        except (OSError, ValueError, StoreError):
            return False  # the handler returns the error


def in_sync_followers(replication: Replication, cluster: ClusterView) -> list[tuple[str, str]]:
    """Return client and replica address of each connected in-sync follower, by broker id."""
    ready = {
        row.broker_id
        for row in replication.members()
        if row.role == "follower" and row.in_sync and row.connected
    }
    addresses = {m.broker_id: (m.client, m.ha) for m in cluster.own().members}
    state = replication.state
    if state is not None:
        addresses.update((m.broker_id, (m.addresses.client, m.addresses.ha)) for m in state.members)
    return [addresses[one] for one in sorted(ready) if one in addresses]
