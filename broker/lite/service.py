"""Lite service: expiry of lite topics and of subscriptions that are not refreshed.

A lite topic ends `lite.topic.expiration` minutes after its last message
(docs/formats/broker-semantics.md, section 12.2): its LMQ and its groups' offsets are removed;
its records stay until retention deletes them. Its next message creates it again. The leader
decides; a follower waits an hour longer before it does the same, so that the clocks need not agree.
In the first minutes after a start nothing ends, so that consumers can return. Promises: work is
done in slices of a few milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from ...proto import v2
from ...store.format.errors import StoreError
from ...store.format.record import decode_delivery
from ..names.lite import bound_topic, expiration_ms, is_lite_group, is_lite_queue, parse_queue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...store.message_store import MessageStore
    from ..base.leadership import Leadership
    from ..base.runtime import Runtime
    from ..clients.registry import ClientRegistry
    from ..metadata.tables import Metadata, Topic
    from ..offsets.consumer_offsets import ConsumerOffsets
    from .receive import LiteReceive
    from .subscribe import LiteSubscribe

logger = logging.getLogger(__name__)

#: Clients refresh their subscriptions every 30 s; older ones than this are dropped.
REFRESH_MAX_NS = 60_000_000_000
#: Minimum time that a lite topic exists after a start, or its whole expiration time.
PROTECTED_MS = 600_000
FOLLOWER_WAITS_MS = 3_600_000
#: Time until the offsets (0) of an ended lite topic are forgotten, when all replicas have them.
_POSITIONS_KEPT_MS = 86_400_000
_PERIOD_S = 5.0
#: Time of the loop in one turn; a pause follows, because removing files loads the disk.
_SLICE_NS = 4_000_000
_PAUSE_S = 0.01
_LITE_TYPES = (v2.LITE_PUSH_CONSUMER, v2.LITE_SIMPLE_CONSUMER)


class LiteService:
    """The lite topics of a broker."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        metadata: Metadata,
        clients: ClientRegistry,
        offsets: ConsumerOffsets,
        leadership: Leadership,
        receiving: LiteReceive,
        subscribing: LiteSubscribe,
    ) -> None:
        self._clock = runtime.clock
        self._loop = runtime.loop
        self._store = store
        self._metadata = metadata
        self._clients = clients
        self._offsets = offsets
        self._leadership = leadership
        self.table = receiving.table
        self.receiving = receiving
        self.subscribing = subscribing
        #: Store time of the last message of every lite topic; 0: read it from the record.
        self._last: dict[str, int] = {}
        #: Lite topics without a queue for which groups may have offsets, and since when.
        self._ended: dict[str, int] = {}
        #: Lite topics that may be of a deleted parent: its name may be in use again.
        self._suspects: set[str] = set()
        self._started_ms = self._clock.forward_ms()
        #: Groups bound to each parent, as of the last sweep.
        self._groups: dict[str, list[str]] = {}
        self._sweeping: Iterator[str] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def open(self, stack: AsyncExitStack) -> None:
        """Find the existing lite topics and start the timer; `stack` stops it."""
        self._last = {name: 0 for name in self._store.queue_table.lmqs() if is_lite_queue(name)}
        self._suspects.update(self._last)
        now_ms = self._clock.forward_ms()
        for topic, _, _, _ in self._offsets:
            if is_lite_queue(topic) and topic not in self._last:
                self._ended[topic] = now_ms
        stack.callback(self._stop)
        self._schedule(_PERIOD_S)

    def takes(self, group: str, client_id: str) -> bool:
        """Return whether a poll is for lite topics: of a lite group, or of a lite consumer.

        A lite consumer of another group gets the error that names its mistake.
        """
        if is_lite_group(self._metadata, group):
            return True
        client = self._clients.get(client_id)
        return client is not None and client.client_type in _LITE_TYPES

    # Events.

    def notify(self, topic: str, queue_id: int) -> None:
        """Wake the polls of a lite topic with new messages."""
        if not is_lite_queue(topic):
            return
        self._last[topic] = self._clock.forward_ms()
        self._ended.pop(topic, None)
        parent, _ = parse_queue(topic) or ("", "")
        self.receiving.wake(self.table.ready(topic, parent))

    def client_gone(self, client_id: str) -> None:
        """Drop the subscriptions of a client that left."""
        for client in self.table.of_client(client_id):
            self._drop(client.key)

    def follow(self) -> None:
        """Drop the states: another replica leads, and clients subscribe there."""
        self.receiving.forget()

    def clock_moved(self) -> None:
        """Sweep after a test moved the wall clock."""
        self._sweep()

    # Time.

    def _schedule(self, delay_s: float) -> None:
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._schedule(_PERIOD_S)  # first, so that an error does not end the timer
        cut_ns = self._clock.steady_ns() - REFRESH_MAX_NS
        for client in self.table:
            if client.seen_ns < cut_ns:
                self._drop(client.key)
        self._sweep()

    def _stop(self) -> None:
        self._sweeping = None
        if self._timer is not None:
            self._timer.cancel()

    def _drop(self, key: tuple[str, str]) -> None:
        client = self.table.get(key)
        queues = [] if client is None else list(client.queues)
        self.table.drop(key)
        self.receiving.client_gone(key)
        self.subscribing.dropped(queues, key[0])
        now_ms = self._clock.forward_ms()
        for queue in queues:
            if queue not in self._last:  # it never had a message
                self._ended.setdefault(queue, now_ms)

    def _sweep(self) -> None:
        """End expired lite topics, slice by slice."""
        if self._sweeping is None:
            self._sweeping = iter([*self._last])
            self._groups.clear()
            self._sweep_slice()

    def _sweep_slice(self) -> None:
        if self._sweeping is None:
            return
        clock = self._clock
        now_ms, end_ns = clock.forward_ms(), clock.steady_ns() + _SLICE_NS
        for name in self._sweeping:
            try:
                if name in self._last and self._is_over(name, now_ms):
                    self._end(name, now_ms)
            except (StoreError, OSError) as error:  # the next sweep retries; the others end now
                logger.warning("lite.not_ended queue=%s error=%s", name, error)
            if clock.steady_ns() >= end_ns:
                self._loop.call_later(_PAUSE_S, self._sweep_slice)
                return
        self._sweeping = None
        for name in [n for n, ms in self._ended.items() if now_ms - ms > _POSITIONS_KEPT_MS]:
            del self._ended[name]
            self._forget_positions(name)

    def _is_over(self, name: str, now_ms: int) -> bool:
        parent, _ = parse_queue(name) or ("", "")
        topic = self._metadata.topic(parent)
        if topic is None:
            return True
        if name in self._suspects:
            if self._is_left_over(name, topic):
                return True
            self._suspects.remove(name)
        expires_ms = expiration_ms(topic)
        if expires_ms is None:
            return False
        last_ms = self._last[name]
        if not last_ms:
            last_ms = self._last[name] = self._last_message_ms(name)
            last_ms = max(last_ms, self._started_ms + PROTECTED_MS - expires_ms)
        margin_ms = 0 if self._leadership.is_leader else FOLLOWER_WAITS_MS
        return now_ms >= last_ms + expires_ms + margin_ms

    def _is_left_over(self, name: str, parent: Topic) -> bool:
        """Return whether a lite topic is of a deleted parent of the same name."""
        store = self._store
        last = store.reader.physical_offset_of(name, 0, store.max_offset(name, 0) - 1)
        return last is not None and last < parent.since

    def _last_message_ms(self, name: str) -> int:
        """Return when a lite topic's last message was stored, in forward time; 1 if the record is
        deleted."""
        store = self._store
        records = store.get(name, 0, store.max_offset(name, 0) - 1, 1).records
        if not records:
            return 1
        age_ms = self._clock.wall_ms() - decode_delivery(records[0].data).store_timestamp_ms
        return self._clock.forward_ms() - max(age_ms, 0)

    def _end(self, name: str, now_ms: int) -> None:
        """End the lite topic."""
        store, offsets = self._store, self._offsets
        if (name, 0) in store.queue_table.queues and not store.removal.remove_lmq(name):
            return  # a new message is being dispatched to it
        del self._last[name]
        self._suspects.discard(name)
        self._ended[name] = now_ms
        self.receiving.forget_queue(name)
        if self._leadership.is_leader:
            for group in self._groups_of(name):
                position = offsets.position(name, group, 0)
                if position is not None and position.offset:
                    offsets.commit(name, group, 0, 0)
        logger.info("lite.ended queue=%s", name)

    def _groups_of(self, name: str) -> list[str]:
        """Return the groups that may have offsets of a lite topic."""
        parent, _ = parse_queue(name) or ("", "")
        groups_of_parent = self._groups.get(parent)
        if groups_of_parent is None:
            groups = self._metadata.groups.values()
            groups_of_parent = [group.name for group in groups if bound_topic(group) == parent]
            self._groups[parent] = groups_of_parent
        return groups_of_parent

    def _forget_positions(self, name: str) -> None:
        for group in self._groups_of(name):
            if not self.table.subscribers(name, (parse_queue(name) or ("", ""))[0], group):
                self._offsets.forget(name, group)

    def forget(self, topic: str | None, group: str | None) -> None:
        """Drop subscriptions of a deleted group, or end lite topics of a deleted parent."""
        if group is not None:
            self.receiving.forget_group(group)
            for client in self.table:
                if client.key[0] == group:
                    self._drop(client.key)
        elif topic is not None and not is_lite_queue(topic):
            mine = [name for name in self._last if (parse_queue(name) or ("",))[0] == topic]
            self._suspects.update(mine)
            self._sweep()
