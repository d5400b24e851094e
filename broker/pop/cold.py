"""Old records for ReceiveMessage, fetched from a follower: the leader keeps the state, and spares its disk.

    a pop comes to a message that lies far behind the log's end (`cold_reads.py` says how far)
        what was fetched                 is given out
        what was not                     counts as not there yet; a piece of the queue is asked for, and when it
                                         has come whoever waits for the queue is served, as if it had arrived

Promises: what is given out has the place, the size and the checksum that the queue and the record say; it is never
anything that this leader would not have read itself. When the follower does not answer, or answers something else,
the leader reads for itself, and asks nobody for a while. Derived, and bounded: a loss costs another fetch.
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
from ..pull.cold_reads import in_sync_followers

if TYPE_CHECKING:
    from ...store.format.results import ColdUnit
    from ..node import Node

_logger = logging.getLogger(__name__)

#: Of one queue at a time: some batches ahead, so that a long backlog does not pay a way there and back for each.
_AHEAD_COUNT: Final = 256
_AHEAD_BYTES: Final = 1 << 20
#: Fetches under way; further queues are read here meanwhile.
_FETCHES_MAX: Final = 8
#: Kept: what is under way many times over, so that it is given out before it is pushed out.
_KEPT_BYTES: Final = 32 << 20
#: After a failure everything is read here for so long.
_HERE_NS: Final = 5_000_000_000


class ColdRecords:
    """Of one leader."""

    def __init__(self, node: Node, arrived: Callable[[str, int], None]) -> None:
        """`arrived`: told of topic and queue when there is more to read, or nothing to wait for."""
        self._node = node
        self._arrived = arrived
        self._kept: dict[int, bytes] = {}  # by place, the oldest fetch first
        self._kept_bytes = 0
        self._fetches: dict[tuple[str, int, int], asyncio.Task[None]] = {}
        self._peers: dict[str, PeerRecordReads] = {}  # by address: as many as there are followers
        self._turn = 0
        self._here_until_ns = 0

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
        """What `store.get` would read, as far as it was fetched; None: read it here."""
        node = self._node
        if not node.config.slave_read_enable:
            return None
        found = node.store.cold_units(
            topic, queue_id, offset, count, bytes_max, tag_codes=tag_codes
        )
        if found is None:
            return None
        units, following = found
        result = GetResult(
            GetStatus.NO_MATCHED_MESSAGE,
            following,
            node.store.min_offset(topic, queue_id),
            node.store.max_offset(topic, queue_id),
        )
        for unit in units:
            data = self._kept.get(unit.physical_offset)
            if data is None:
                if not self._ask(topic, queue_id, unit, tag_codes) and not result.records:
                    return None
                result.next_offset = unit.queue_offset
                break
            result.records.append(
                StoredRecord(unit.queue_offset, unit.physical_offset, data, unit.tags_code)
            )
            result.size += unit.size
        if result.records:
            result.status = GetStatus.FOUND
            node.store.meter.get(len(result.records), result.size)
        return result

    def forget(self) -> None:
        """This replica leads no more: other records may come to lie at these places."""
        for task in self._fetches.values():
            task.cancel()
        self._fetches.clear()
        self._kept.clear()
        self._kept_bytes = 0

    async def close(self) -> None:
        """Let the connections go."""
        tasks = list(self._fetches.values())
        self.forget()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in self._peers.values():
            await peer.close()

    def _ask(
        self, topic: str, queue_id: int, unit: ColdUnit, tag_codes: frozenset[int] | None
    ) -> bool:
        """Whether the queue is being fetched from this unit on."""
        key = topic, queue_id, unit.physical_offset
        if key in self._fetches:
            return True
        node = self._node
        if node.clock.steady_ns() < self._here_until_ns or len(self._fetches) >= _FETCHES_MAX:
            return False
        followers = [ha for _, ha in in_sync_followers(node) if ha]
        ahead = node.store.cold_units(
            topic, queue_id, unit.queue_offset, _AHEAD_COUNT, _AHEAD_BYTES, tag_codes=tag_codes
        )
        if not followers or ahead is None:
            return False
        self._turn += 1
        address = followers[self._turn % len(followers)]
        peer = self._peers.get(address)
        if peer is None:
            token = node.replication.config.cluster_token
            peer = self._peers[address] = PeerRecordReads(address, token)
        self._fetches[key] = node.loop.create_task(self._fetch(key, peer, ahead[0]))
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
            self._node.counters.cold["fetched"] += len(records)
        except (PeerError, RecordFormatError) as error:
            self._node.counters.cold["refused"] += 1
            self._here_until_ns = self._node.clock.steady_ns() + _HERE_NS
            _logger.warning("pop.cold_records_refused topic=%s error=%s", key[0], error)
        finally:
            if self._fetches.get(key) is asyncio.current_task():
                del self._fetches[key]
        self._arrived(key[0], key[1])

    def _keep(self, place: int, record: bytes) -> None:
        if place in self._kept:
            return  # two groups that read the same messages
        self._kept[place] = record
        self._kept_bytes += len(record)
        while self._kept_bytes > _KEPT_BYTES:
            self._kept_bytes -= len(self._kept.pop(next(iter(self._kept))))
