"""Subscriptions: the pop states by topic and group, and by retry topic.

Promises: a state is created when a group first uses a topic, from the journal (on a leader) or the
handover file (on a follower); an empty state is dropped later, so that groups tried once cost no
memory; messages in flight of a forgotten state are settled in the journal. A group that changes
between FIFO and unordered continues at its first message in flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..names.delivery import Key
from ..names.retry import NORMAL
from .fifo.ordered_group import OrderedGroup, OrderedQueue
from .group import PopGroup
from .handover import Handover
from .queue import PopQueue
from .subscription import Subscription

if TYPE_CHECKING:
    from ...store.message_store import MessageStore
    from ..base.leadership import Leadership
    from ..base.runtime import Runtime
    from ..metadata.tables import Group
    from ..offsets.consumer_offsets import ConsumerOffsets
    from .journal_api import Journal
    from .order_info import OrderInfo
    from .reader import PopReader
    from .subscription import Core

#: Number of new states after which empty ones are dropped.
_SWEEP_EVERY = 1_024


class Subscriptions:
    """The pop states of all groups on all topics."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        offsets: ConsumerOffsets,
        leadership: Leadership,
        journal: Journal,
        reader: PopReader,
        order_info: OrderInfo,
    ) -> None:
        self._clock = runtime.clock
        self._in_flight_max = runtime.config.pop_inflight_message_threshold
        self._store = store
        self._offsets = offsets
        self._leadership = leadership
        self._journal = journal
        self._reader = reader
        self._order_info = order_info
        self._topics: dict[str, dict[str, Subscription]] = {}
        #: By retry topic; with the first form of the name two groups may share one.
        self._retries: dict[str, list[Subscription]] = {}
        self._made = 0
        self.handover = Handover(runtime, store.config.root, leadership, self.__iter__)

    def __iter__(self) -> Iterator[Subscription]:
        """Iterate over a copy of the current states."""
        return iter([sub for groups in self._topics.values() for sub in groups.values()])

    def get(self, topic: str, group: str) -> Subscription | None:
        """Return the state if it exists."""
        groups = self._topics.get(topic)
        return groups.get(group) if groups else None

    def make(self, topic: str, group: Group) -> Subscription:
        """Return the state; create it if it does not exist or the group's kind has changed."""
        groups = self._topics.get(topic)
        if groups is None:
            groups = self._topics[topic] = {}
        sub = groups.get(group.name)
        if sub is None:
            self._made += 1
            if self._made % _SWEEP_EVERY == 0:
                self._sweep()
                groups = self._topics.setdefault(topic, {})
            sub = groups[group.name] = Subscription(self._new_core(topic, group))
            self._restore(sub.core)
            if isinstance(sub.core, PopGroup):
                self._add_retries(sub.core, sub)
        elif isinstance(sub.core, OrderedGroup) != group.orderly:
            self._change_kind(sub, group)
        return sub

    def of_topic(self, topic: str) -> list[Subscription]:
        """Return the states that read a topic or retry topic."""
        groups = self._topics.get(topic)
        subs = list(groups.values()) if groups else []
        return subs + self._retries.get(topic, [])

    def queues_of(
        self, topic: str, group: str, queue_id: int
    ) -> Iterator[tuple[Subscription, PopQueue | OrderedQueue]]:
        """Yield the group's states of a queue: as its topic, and as its retry topic."""
        own = self.get(topic, group)
        for sub in (*((own,) if own else ()), *self._retries.get(topic, ())):
            core = sub.core
            if core.group != group:
                continue
            kind = NORMAL
            if isinstance(core, PopGroup):
                kind = core.topics.index(topic)
            queue = core.queues.get((kind, queue_id))
            if queue is not None:
                yield sub, queue

    def open_queue(self, core: Core, key: Key) -> PopQueue | OrderedQueue:
        """Return the state of a queue; create it if it does not exist."""
        if isinstance(core, PopGroup):
            return self._reader.queue(core, key)
        return self._reader.ordered(core, key)

    def forget(self, sub: Subscription) -> None:
        """Drop a state, and settle its messages in flight."""
        core = sub.core
        self._settle_all(core)
        self._drop_retries(core, sub)
        # It may still be scheduled: nothing of it is due any more.
        sub.core = type(core)(core.topic, core.group, self._in_flight_max, self._clock.forward_ms())
        groups = self._topics.get(core.topic)
        if groups is not None and groups.get(core.group) is sub:
            del groups[core.group]
            if not groups:
                del self._topics[core.topic]

    def clear(self) -> None:
        """Drop all states; the journal keeps its part."""
        self._topics.clear()
        self._retries.clear()

    def _new_core(self, topic: str, group: Group) -> Core:
        kind = OrderedGroup if group.orderly else PopGroup
        return kind(topic, group.name, self._in_flight_max, self._clock.forward_ms())

    def _restore(self, core: Core) -> None:
        """Load earlier deliveries of a group."""
        known = self.handover.restore(core, self.open_queue)
        if isinstance(core, OrderedGroup):
            self._order_info.restore(core, self._reader)
            return
        restored = self._journal.restored(core)
        for key, delivery in restored.deliveries:
            if key in known:
                continue  # the log does not hold what this follower has acknowledged
            queue = self._reader.queue(core, key)
            end = self._store.writer.next_offset(queue.topic, queue.queue_id)
            if delivery.offset >= end and self._leadership.pop_leads:
                # A crash cut the end of the log; a new message will get this offset.
                self._journal.settled(core, queue, delivery.offset)
            else:
                core.restore(queue, delivery)
        for key, offset in restored.consumed:
            if key in known:
                continue
            queue = self._reader.queue(core, key)
            if offset >= queue.next_read and offset not in queue.unacked:
                queue.skips.add(offset)

    def _change_kind(self, sub: Subscription, group: Group) -> None:
        core = sub.core
        self._drop_retries(core, sub)
        if isinstance(core, PopGroup):
            for queue in core.queues.values():
                # The journal let the offset pass messages in flight; now they are delivered again.
                offset = min([queue.committed, *queue.unacked])
                if offset < queue.committed:
                    self._offsets.commit(queue.topic, core.group, queue.queue_id, offset)
        self._settle_all(core)
        sub.core = self._new_core(core.topic, group)
        if isinstance(sub.core, PopGroup):
            self._add_retries(sub.core, sub)

    def _settle_all(self, core: Core) -> None:
        if isinstance(core, PopGroup):
            for queue in core.queues.values():
                for offset in queue.unacked:
                    self._journal.settled(core, queue, offset)

    def _add_retries(self, core: PopGroup, sub: Subscription) -> None:
        for name in core.topics[1:]:
            self._retries.setdefault(name, []).append(sub)

    def _drop_retries(self, core: Core, sub: Subscription) -> None:
        if not isinstance(core, PopGroup):
            return
        for name in core.topics[1:]:
            readers = self._retries.get(name, [])
            if sub in readers:
                readers.remove(sub)
            if not readers:
                self._retries.pop(name, None)

    def _sweep(self) -> None:
        """Drop empty states."""
        for sub in self:
            if not sub.waiters and sub.core.idle():
                self.forget(sub)
