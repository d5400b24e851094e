"""Progress of consumer groups, queue by queue and summed up for a group. Reads only.

Lag counts the messages that a group has not consumed: those it has not received, those in flight,
and those that wait in its retry topics (docs/formats/broker-semantics.md, section 11.2). The
consumer offset alone is not enough, because it may pass messages in flight that the journal holds;
where this node holds the pop state of a queue, that state counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Container, Iterable, Iterator
from typing import TYPE_CHECKING

from ...proto import v1, v2
from ...proto.errors import WireError
from ..base.slices import Slices
from ..clients.connected import member_of
from ..names.lite import bound_topic, parse_queue
from ..names.retry import queue_topics
from ..pop.dead_letter import dead_letter_topic

if TYPE_CHECKING:
    from ...store.message_store import MessageStore
    from ..base.runtime import Runtime
    from ..clients.registry import Client, ClientRegistry
    from ..metadata.tables import Group, Metadata
    from ..offsets.consumer_offsets import ConsumerOffsets
    from ..visible.dispatch_pump import DispatchPump

_RETRY_PREFIX = "%RETRY%"
#: Queues in one answer: about 2 MB.
ROWS_MAX = 20_000
#: Offset of a group in a queue that it has not consumed yet.
NOT_CONSUMED = -1

#: (topic, group, queue id) -> next offset to read and messages in flight; None without pop state.
QueueProgress = Callable[[str, str, int], tuple[int, int] | None]


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
        #: Returns the members of a group that use the remoting protocol.
        self.classic_members: Callable[[str], list[v1.GroupClient]] = lambda _group: []

    async def all_group_queues(
        self, groups: Collection[str] | None = None
    ) -> AsyncIterator[tuple[str, v1.GroupQueueStatus]]:
        """Group and queue of every topic that was ever consumed, by the named groups or by all, and
        of the retry topics beside it; and of the lite topics that wildcard groups are to read.
        Other requests run between two steps, which may change offsets."""
        self._pump.catch_up()
        slices = Slices(self._runtime.clock)
        for topic, group in self._offsets.pairs():
            await slices.pause()
            if groups is not None and group not in groups:
                continue
            offsets = dict(self._offsets.queues(topic, group))
            for queue_id, offset in offsets.items():
                yield group, self.queue_row(topic, group, queue_id, offset)
                await slices.pause()
            if topic.startswith(_RETRY_PREFIX):
                continue
            consumed = self._metadata.topics.get(topic)
            for queue_id in range(consumed.read_queues if consumed is not None else 0):
                if queue_id not in offsets:
                    yield group, self.queue_row(topic, group, queue_id, NOT_CONSUMED)
                    await slices.pause()
            for name in queue_topics(topic, group)[1:]:
                known = self._metadata.topics.get(name)
                if known is not None and (name, group) not in self._offsets:
                    for queue_id in range(known.read_queues):
                        yield group, self.queue_row(name, group, queue_id, NOT_CONSUMED)
                        await slices.pause()
        for group in list(self._metadata.groups) if groups is None else list(groups):
            await slices.pause()
            for row in self._unread_classic_retries(group):
                yield group, row
        async for found in self._unread_lite_queues(groups, slices):
            yield found

    def _unread_classic_retries(self, group: str) -> Iterator[v1.GroupQueueStatus]:
        """Yield the queues with messages that classic clients sent back, if none has read any."""
        known = self._metadata.topics.get(_RETRY_PREFIX + group)
        if known is not None and (known.name, group) not in self._offsets:
            for queue_id in range(known.read_queues):
                row = self.queue_row(known.name, group, queue_id, NOT_CONSUMED)
                if row.lag:
                    yield row

    async def _unread_lite_queues(
        self, groups: Container[str] | None, slices: Slices
    ) -> AsyncIterator[tuple[str, v1.GroupQueueStatus]]:
        """Yield the queues of lite topics that wildcard groups have not read yet."""
        wildcard = [
            (known.name, parent, known.lite_since)
            for known in self._metadata.groups.values()
            if known.lite_since >= 0
            and (groups is None or known.name in groups)
            and (parent := bound_topic(known))
        ]
        for queue in self._store.queue_table.lmqs() if wildcard else ():
            lite = parse_queue(queue)
            for group, parent, since in wildcard:
                if lite is not None and lite[0] == parent and (queue, group) not in self._offsets:
                    start = self._store.reader.offset_by_position(queue, 0, since)
                    yield group, self.queue_row(queue, group, 0, start)
                await slices.pause()

    def of_lite_topic(self, queue: str, groups: Iterable[Group]) -> Iterator[v1.LiteTopicGroup]:
        """Yield the progress of the groups that have subscribed to a lite topic."""
        for known in groups:
            offset = self._offsets.get(queue, known.name, 0)
            if offset is None and known.lite_since >= 0:
                offset = self._store.reader.offset_by_position(queue, 0, known.lite_since)
            if offset is not None:
                row = self.queue_row(queue, known.name, 0, offset)
                yield v1.LiteTopicGroup(group=known.name, lag=row.lag, in_flight=row.in_flight)

    async def group_queues(
        self, group: str, topic: str = "", rows_max: int = ROWS_MAX
    ) -> list[v1.GroupQueueStatus]:
        """The queues of one group, of one topic (with its retry topics) or of all.

        Raises WireError above `rows_max`.
        """
        wanted = queue_topics(topic, group) if topic else ()
        rows = []
        async for _, row in self.all_group_queues((group,)):
            if not topic or row.topic in wanted:
                rows.append(row)
            if len(rows) > rows_max:
                raise WireError(
                    v2.PAYLOAD_TOO_LARGE,
                    f"group {group} consumes more than {rows_max} queues: name a topic",
                )
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
            missing=[
                v1.MissingMessage(offset=gap.offset, file=gap.file)
                for gap in store.blocks.gaps.of(topic, queue_id)
            ],
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

    async def progress_of(self, groups: Collection[str]) -> dict[str, v1.GroupProgress]:
        """The progress of these groups, in one pass."""
        slices = Slices(self._runtime.clock)
        rows: dict[str, list[v1.GroupQueueStatus]] = {group: [] for group in groups}
        async for group, row in self.all_group_queues(rows):
            rows[group].append(row)
        clients = Counter(client.group for client in self._alive())
        progress = {}
        for group, found in rows.items():
            members = clients[group] + len(self.classic_members(group))
            progress[group] = self.group_progress(group, found, members)
            await slices.pause()
        return progress

    def clients_of(self, group: str) -> list[Client]:
        """Its consumers of the gRPC protocol that were heard of lately."""
        return [client for client in self._alive() if client.group == group]

    def has_read(self, group: str, topic: str) -> bool:
        """Return whether the group has an offset on the topic."""
        return (topic, group) in self._offsets

    def members_of(self, group: str) -> list[v1.GroupClient]:
        """Its consumers of both protocols."""
        now_ns = self._runtime.clock.steady_ns()
        members = [member_of(client, now_ns) for client in self.clients_of(group)]
        return members + self.classic_members(group)

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
