"""Messages of a topic in topics of its groups: dead letters, and retries of classic clients.

They are lost with the topic. At its deletion, those at the front of their queue are hidden like the
messages of a deleted topic; readers skip the others (`metadata/incarnations.py`), because the
messages of other topics between them stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from ...store.format.record import decode_delivery
from ..base.slices import Slices
from ..metadata.incarnations import has_origins, is_left_over, origin_of

if TYPE_CHECKING:
    from ...front.clock import Clock
    from ...store.message_store import MessageStore
    from ..metadata.log import MetaLog
    from ..metadata.tables import Metadata
    from ..offsets.consumer_offsets import ConsumerOffsets

_RETRY = "%RETRY%"
#: Records and bytes of one read: about a millisecond.
_RECORDS, _BYTES = 64, 256 << 10


class Found(Struct):
    """The messages of one topic."""

    messages: int = 0
    #: By topic and queue: the first offset behind those at the front of the queue.
    ends: dict[tuple[str, int], int] = field(default_factory=dict)


class LeftBehind:
    """Counts and drops them."""

    def __init__(
        self,
        clock: Clock,
        store: MessageStore,
        metadata: Metadata,
        meta_log: MetaLog,
        offsets: ConsumerOffsets,
    ) -> None:
        self._clock = clock
        self._store = store
        self._metadata = metadata
        self._meta_log = meta_log
        self._offsets = offsets

    async def find(self, topic: str) -> Found:
        """Read the retry and dead-letter topics of all groups, in slices."""
        found, slices = Found(), Slices(self._clock)
        for name in list(filter(has_origins, self._metadata.topics)):
            await slices.pause()
            for queue_id, begin in self._unfinished(name):
                await self._read(topic, (name, queue_id), begin, found, slices)
        return found

    def _unfinished(self, name: str) -> list[tuple[int, int]]:
        """Return the queues of a topic with the first offset that its group has not finished."""
        topic, group = self._metadata.topic(name), name.removeprefix(_RETRY)
        is_retry = group != name
        # The retry topics of gRPC clients are of one topic, and deleted with it.
        if topic is None or (is_retry and group not in self._metadata.groups):
            return []
        store, offsets = self._store, self._offsets
        return [
            (
                queue_id,
                max(
                    store.min_offset(name, queue_id),
                    (offsets.get(name, group, queue_id) or 0) if is_retry else 0,
                ),
            )
            for queue_id in range(topic.read_queues)
        ]

    async def _read(
        self, topic: str, queue: tuple[str, int], offset: int, found: Found, slices: Slices
    ) -> None:
        """Look for messages of a topic in one queue, from `offset` on."""
        at_front = True
        while offset < self._store.max_offset(*queue):
            result = self._store.get(*queue, offset, _RECORDS, _BYTES)
            for stored in result.records:
                properties = decode_delivery(stored.data).properties
                is_old = is_left_over(self._metadata, queue[0], properties, stored.physical_offset)
                is_own = not is_old and origin_of(queue[0], properties) == topic
                found.messages += is_own
                at_front &= is_old or is_own
                if at_front and is_own:
                    found.ends[queue] = stored.queue_offset + 1
            if result.next_offset <= offset:
                return
            offset = result.next_offset
            await slices.pause()

    def drop(self, found: Found) -> None:
        """Hide what lies at the front of queues, on every replica. Raises WireError."""
        for (name, queue_id), end in found.ends.items():
            topic = self._metadata.topic(name)
            if topic is not None:
                first_offsets = {**topic.first_offsets, queue_id: end}
                self._meta_log.write_topic(replace(topic, first_offsets=first_offsets))
