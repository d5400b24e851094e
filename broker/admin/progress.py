"""Progress of consumer groups, queue by queue and summed up for a group. Reads only.

Lag counts the messages that a group has not consumed: those it has not received, those in flight,
and those that wait in its retry topics (docs/formats/broker-semantics.md, section 11.2). The
consumer offset alone is not enough, because it may pass messages in flight that the journal holds;
where this node holds the pop state of a queue, that state counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from ...proto import v1
from ..pop.dead_letter import dead_letter_topic
from ..pop.retry import queue_topics

if TYPE_CHECKING:
    from ...store.message_store import MessageStore
    from ..clients.registry import Client, ClientRegistry
    from ..dispatch_pump import DispatchPump
    from ..metadata.tables import Metadata
    from ..offsets.consumer_offsets import ConsumerOffsets
    from ..runtime import Runtime

_RETRY_PREFIX = "%RETRY%"
NOT_CONSUMED = -1
"""Offset of a group in a queue that it has not consumed yet."""

QueueProgress = Callable[[str, str, int], tuple[int, int] | None]
"""(topic, group, queue id) -> next offset to read and messages in flight; None without pop
state."""


class ConsumerProgress:
    """Positions, lag and clients of all groups on this broker."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        metadata: Metadata,
        offsets: ConsumerOffsets,
        clients: ClientRegistry,
        pump: DispatchPump,
        queue_progress: QueueProgress,
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._metadata = metadata
        self._offsets = offsets
        self._clients = clients
        self._pump = pump
        self._queue_progress = queue_progress

    def all_group_queues(self) -> Iterator[tuple[str, v1.GroupQueueStatus]]:
        """Group and queue for everything that was ever consumed, and for the retry topics beside
        it."""
        self._pump.catch_up()
        pairs: set[tuple[str, str]] = set()
        for topic, group, queue_id, offset in self._offsets:
            pairs.add((topic, group))
            yield group, self.queue_row(topic, group, queue_id, offset)
        for topic, group in pairs:
            if topic.startswith(_RETRY_PREFIX):
                continue
            for name in queue_topics(topic, group)[1:]:
                known = self._metadata.topics.get(name)
                if known is not None and (name, group) not in pairs:
                    for queue_id in range(known.read_queues):
                        yield group, self.queue_row(name, group, queue_id, NOT_CONSUMED)

    def group_queues(self, group: str, topic: str = "") -> list[v1.GroupQueueStatus]:
        """The queues of one group, of one topic (with its retry topics) or of all."""
        wanted = queue_topics(topic, group) if topic else ()
        rows = [
            row
            for name, row in self.all_group_queues()
            if name == group and (not topic or row.topic in wanted)
        ]
        return sorted(rows, key=lambda row: (row.retry, row.topic, row.queue_id))

    def queue_row(self, topic: str, group: str, queue_id: int, offset: int) -> v1.GroupQueueStatus:
        """One queue, as one group sees it; `offset` is its consumer offset."""
        store = self._store
        first, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        progress = self._queue_progress(topic, group, queue_id)
        read, in_flight = progress if progress is not None else (offset, 0)
        return v1.GroupQueueStatus(
            topic=topic,
            queue_id=queue_id,
            consumer_offset=max(offset, 0),
            max_offset=end,
            lag=max(0, end - max(read, first)) + in_flight,
            in_flight=in_flight,
            broker=self._runtime.config.broker_name,
            retry=topic.startswith(_RETRY_PREFIX),
            min_offset=first,
        )

    def group_progress(
        self, group: str, rows: Iterable[v1.GroupQueueStatus], clients: int
    ) -> v1.GroupProgress:
        """What the rows of one group come to."""
        progress = v1.GroupProgress(
            dead_letters=self.held_messages(dead_letter_topic(group)), clients=clients
        )
        for row in rows:
            progress.lag += row.lag
            progress.in_flight += row.in_flight
            if row.retry:
                progress.retries += row.lag
        return progress

    def all_progress(self) -> dict[str, v1.GroupProgress]:
        """Of every group of the tables, in one pass."""
        rows: dict[str, list[v1.GroupQueueStatus]] = {}
        for group, row in self.all_group_queues():
            rows.setdefault(group, []).append(row)
        clients = Counter(client.group for client in self._alive())
        return {
            group: self.group_progress(group, rows.get(group, ()), clients[group])
            for group in self._metadata.groups
        }

    def clients_of(self, group: str) -> list[Client]:
        """Its consumers that were heard of lately."""
        return [client for client in self._alive() if client.group == group]

    def held_messages(self, topic: str) -> int:
        """Messages that can be read in a topic."""
        known = self._metadata.topic(topic)
        if known is None:
            return 0
        store = self._store
        return sum(
            store.max_offset(topic, queue_id) - store.min_offset(topic, queue_id)
            for queue_id in range(max(known.read_queues, known.write_queues))
        )

    def _alive(self) -> Iterator[Client]:
        now_ns = self._runtime.clock.steady_ns()
        return (client for client in self._clients if self._clients.alive(client.client_id, now_ns))
