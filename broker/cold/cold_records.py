"""Cold records: old messages for ReceiveMessage, fetched from a follower instead of the leader's
disk.

The leader keeps the pop state and reads the records from a follower when a pop reaches a message
that lies far behind the log's end (`cold_reads.py` defines how far). Fetched records are
delivered; a record that is not fetched yet counts as not arrived: a piece of the queue is fetched,
and its arrival wakes the polls of the queue.

Promises: a delivered record has the position, size and checksum that the queue and the record
state.
If the follower does not answer, or sends other data, the leader reads its own log, and fetches
nothing for a while. Derived data, bounded; a loss costs another fetch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ...ha.record_reads import PeerRecordReads
from ...ha.scrub.peer import PeerError
from ...store.format.errors import RecordFormatError
from ...store.format.results import GetResult, GetStatus, StoredRecord
from ...store.scan.single import inspect
from .cold_reads import in_sync_followers

if TYPE_CHECKING:
    from ...ha.engine import Replication
    from ...store.format.results import ColdUnit
    from ...store.message_store import MessageStore
    from ..base.cluster_view import ClusterView
    from ..base.runtime import Runtime

logger = logging.getLogger(__name__)

#: Read ahead of one queue: some batches, so that a long backlog does not cost a round trip for
#: each.
_AHEAD_COUNT: Final = 256
_AHEAD_BYTES: Final = 1 << 20
#: Concurrent fetches; further queues are read from the own log meanwhile.
_FETCHES_MAX: Final = 8
#: Cache: many times the data of all fetches, so that records are delivered before they are evicted.
_KEPT_BYTES: Final = 32 << 20
#: No fetch for this time after a failure.
_BACKOFF_NS: Final = 5_000_000_000


class ColdRecords:
    """Fetches and caches old records, on a leader."""

    def __init__(
        self,
        runtime: Runtime,
        store: MessageStore,
        replication: Replication,
        cluster: ClusterView,
    ) -> None:
        self._loop = runtime.loop
        self._clock = runtime.clock
        self._counters = runtime.counters
        self._enabled = runtime.config.slave_read_enable
        self._store = store
        self._replication = replication
        self._cluster = cluster
        self._arrived: Callable[[str, int], None] | None = None
        self._kept: dict[int, bytes] = {}  # by physical offset, the oldest fetch first
        self._kept_bytes = 0
        self._fetches: dict[tuple[str, int, int], asyncio.Task[None]] = {}
        self._peers: dict[str, PeerRecordReads] = {}  # by address
        self._turn = 0
        self._backoff_until_ns = 0

    def on_arrival(self, listener: Callable[[str, int], None]) -> None:
        """Call `listener` with topic and queue id after every fetch, also after a failed one."""
        self._arrived = listener

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count: int,
        bytes_max: int,
        *,
        tag_codes: frozenset[int] | None,
    ) -> GetResult | None:
        """Return the fetched part of what `store.get` would return; None: read the own log."""
        if not self._enabled:
            return None
        store = self._store
        cold = store.reader.cold_units(
            topic, queue_id, offset, count, bytes_max, tag_codes=tag_codes
        )
        if cold is None:
            return None
        units, following = cold
        result = GetResult(
            GetStatus.NO_MATCHED_MESSAGE,
            following,
            store.min_offset(topic, queue_id),
            store.max_offset(topic, queue_id),
        )
        for unit in units:
            data = self._kept.get(unit.physical_offset)
            if data is None:
                if not self._fetching(topic, queue_id, unit, tag_codes) and not result.records:
                    return None
                result.next_offset = unit.queue_offset
                break
            result.records.append(
                StoredRecord(unit.queue_offset, unit.physical_offset, data, unit.tags_code)
            )
            result.size += unit.size
        if result.records:
            result.status = GetStatus.FOUND
            store.meter.get(len(result.records), result.size)
        return result

    def forget(self) -> None:
        """Drop the cache at a step-down: other records may get these positions."""
        for task in self._fetches.values():
            task.cancel()
        self._fetches.clear()
        self._kept.clear()
        self._kept_bytes = 0

    async def close(self) -> None:
        """Close the connections."""
        tasks = list(self._fetches.values())
        self.forget()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in self._peers.values():
            await peer.close()

    def _fetching(
        self, topic: str, queue_id: int, unit: ColdUnit, tag_codes: frozenset[int] | None
    ) -> bool:
        """Return whether a fetch of the queue from this unit is running; start one if possible."""
        key = topic, queue_id, unit.physical_offset
        if key in self._fetches:
            return True
        if self._clock.steady_ns() < self._backoff_until_ns or len(self._fetches) >= _FETCHES_MAX:
            return False
        followers = [ha for _, ha in in_sync_followers(self._replication, self._cluster) if ha]
        ahead = self._store.reader.cold_units(
            topic, queue_id, unit.queue_offset, _AHEAD_COUNT, _AHEAD_BYTES, tag_codes=tag_codes
        )
        if not followers or ahead is None:
            return False
        self._turn += 1
        address = followers[self._turn % len(followers)]
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = PeerRecordReads(address, self._replication.links)
        self._fetches[key] = self._loop.create_task(self._fetch(key, peer, ahead[0]))
        return True

    async def _fetch(
        self, key: tuple[str, int, int], peer: PeerRecordReads, units: list[ColdUnit]
    ) -> None:
        try:
            wanted = [unit for unit in units if unit.physical_offset not in self._kept]
            records = await peer.read([(unit.physical_offset, unit.size) for unit in wanted])
            for unit, record in zip(wanted, records, strict=True):
                inspect(memoryview(record), 0, unit.physical_offset, check_crc=True)
                self._keep(unit.physical_offset, record)
            self._counters.cold["fetched"] += len(records)
        except (PeerError, RecordFormatError) as error:
            self._counters.cold["refused"] += 1
            self._backoff_until_ns = self._clock.steady_ns() + _BACKOFF_NS
            logger.warning("pop.cold_records_refused topic=%s error=%s", key[0], error)
        finally:
            if self._fetches.get(key) is asyncio.current_task():
                del self._fetches[key]
        if self._arrived is not None:
            self._arrived(key[0], key[1])

    def _keep(self, offset: int, record: bytes) -> None:
        if offset in self._kept:
            return  # two groups read the same messages
        self._kept[offset] = record
        self._kept_bytes += len(record)
        while self._kept_bytes > _KEPT_BYTES:
            self._kept_bytes -= len(self._kept.pop(next(iter(self._kept))))
