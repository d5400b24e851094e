"""Messages of a topic in topics of its groups: dead letters, and retries of classic clients.

They are lost with the topic. At its deletion, those at the front of their queue are hidden like the
messages of a deleted topic; readers skip the others once a topic of the name exists again
(`metadata/incarnations.py`), because the messages of other topics between them stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from ...store.format.record import decode_delivery
from ..metadata.incarnations import has_origins, is_left_over, origin_of
from ..slices import Slices

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        found = Found()
        slices = Slices(self._clock)
        for name, queue_id, begin in [*self._queues()]:
            offset = begin
            at_front = True
            while offset < self._store.max_offset(name, queue_id):
                result = self._store.get(name, queue_id, offset, _RECORDS, _BYTES)
                for stored in result.records:
                    properties = decode_delivery(stored.data).properties
                    place = name, properties, stored.physical_offset
                    is_old = is_left_over(self._metadata, *place)
                    is_own = not is_old and origin_of(name, properties) == topic
                    found.messages += is_own
                    at_front &= is_old or is_own
                    if at_front and is_own:
                        found.ends[name, queue_id] = stored.queue_offset + 1
                if result.next_offset <= offset:
                    break
                offset = result.next_offset
                await slices.pause()
        return found

    def _queues(self) -> Iterator[tuple[str, int, int]]:
        """Yield topic, queue and first offset of what groups have not finished."""
        for topic in self._metadata.topics.values():
            group = topic.name.removeprefix(_RETRY)
            is_retry = group != topic.name
            # The retry topics of gRPC clients are of one topic, and deleted with it.
            if not has_origins(topic.name) or (is_retry and group not in self._metadata.groups):
                continue
            for queue_id in range(topic.read_queues):
                first = self._store.min_offset(topic.name, queue_id)
                read = self._offsets.get(topic.name, group, queue_id) if is_retry else None
                yield topic.name, queue_id, max(first, read or 0)

    def drop(self, found: Found) -> None:
        """Hide what lies at the front of queues, on every replica. Raises WireError."""
        for (name, queue_id), end in found.ends.items():
            topic = self._metadata.topic(name)
            if topic is not None:
                first_offsets = {**topic.first_offsets, queue_id: end}
                self._meta_log.write_topic(replace(topic, first_offsets=first_offsets))
