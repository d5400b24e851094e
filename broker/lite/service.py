"""Lite topics of one node: its parts, their timers, and the end of lite topics that nobody uses.

A lite topic ends `lite.topic.expiration` minutes after its last message (broker semantics, section 12.2):
its light queue goes, and where its groups were with it; its records stay until retention takes them. It
begins anew with its next message. The leader decides; a follower waits an hour longer before it does the
same, so that its clock need not agree. After a start, nothing ends in the first minutes, for consumers
that come back. Promises: work is done in slices of a few milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from ...proto import v2
from ...store.format.errors import StoreError
from ...store.format.record import decode_delivery
from .ack import LiteAcks
from .core import LiteTable
from .fanout import LiteFanout
from .names import bound_topic, expiration_ms, is_lite_queue, parse_queue
from .receive import LiteReceive
from .send import LiteSends
from .subscribe import LiteSubscribe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..node import Node

log = logging.getLogger(__name__)

REFRESH_MAX_NS = 60_000_000_000
"""Clients refresh their subscriptions every 30 s; what is older than this is dropped."""
PROTECTED_MS = 600_000
"""After a start a lite topic that should end has at least so much time left, or its whole time."""
FOLLOWER_WAITS_MS = 3_600_000
_POSITIONS_KEPT_MS = 86_400_000
"""Where groups were in a lite topic that has ended (at its begin) is forgotten a day later, when all
replicas know it."""
_PERIOD_S = 5.0
_SLICE_NS = 4_000_000
"""Of the loop, before others get it; then a pause, because removing files takes a disk's time."""
_PAUSE_S = 0.01
_LITE_TYPES = (v2.LITE_PUSH_CONSUMER, v2.LITE_SIMPLE_CONSUMER)


class LiteService:
    """Composition of the parts; made after `node.pop`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.table = LiteTable(node.config.max_lite_subscription_count)
        self.receiving = LiteReceive(node, self.table)
        self.subscribing = LiteSubscribe(node, self.table, self.receiving)
        self.acks = LiteAcks(node, self.receiving)
        self.spreading = LiteFanout(node)
        self._last: dict[str, int] = {}
        """Every lite topic, and when its last message came; 0: the record has to be asked."""
        self._ended: dict[str, int] = {}
        """Lite topics without a queue in which groups may still have offsets, and since when."""
        self._started_ms = node.clock.wall_ms()
        self._groups: dict[str, list[str]] = {}
        """By parent, the groups that are bound to it; as of the last sweep."""
        self._sweeping: Iterator[str] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def open(self, stack: AsyncExitStack) -> None:
        """Learn what there is, and begin; needs the running loop. `stack` ends it."""
        node = self._node
        self._last = {name: 0 for name in node.store.lmqs() if is_lite_queue(name)}
        now_ms = node.clock.wall_ms()
        for topic, _, _, _ in node.offsets:
            if is_lite_queue(topic) and topic not in self._last:
                self._ended[topic] = now_ms
        node.sender.register(v2.LITE, LiteSends())
        node.pop.listeners.append(self.notify)
        node.pop.closers.append(self.receiving.close)
        node.pop.also_ordered.append(self.receiving.subscriptions)
        node.offsets.on_forgotten.append(self._forgotten)
        node.clock_listeners.add(self.clock_moved)
        self.spreading.open(stack)
        stack.callback(self._stop)
        self._again(_PERIOD_S)

    def is_lite(self, group: str) -> bool:
        """Whether a group consumes lite topics."""
        known = self._node.metadata.groups.get(group)
        return known is not None and bool(known.attributes) and bool(bound_topic(known))

    def takes(self, group: str, client_id: str) -> bool:
        """Whether a poll is for lite topics: its group's, or a lite consumer's (who is told what is
        wrong with its group)."""
        if self.is_lite(group):
            return True
        client = self._node.clients.get(client_id)
        return client is not None and client.client_type in _LITE_TYPES

    # Events.

    def notify(self, topic: str, queue_id: int) -> None:
        """New messages can be read in a queue."""
        if not is_lite_queue(topic):
            return
        self._last[topic] = self._node.clock.wall_ms()
        self._ended.pop(topic, None)
        parent, _ = parse_queue(topic) or ("", "")
        self.receiving.wake(self.table.ready(topic, parent))

    def client_gone(self, client_id: str) -> None:
        """A client said good-bye, or fell silent."""
        for client in self.table.of_client(client_id):
            self._drop(client.key)

    def follow(self) -> None:
        """Somebody else leads: clients subscribe there, and get there what was out here."""
        self.receiving.forget()

    def clock_moved(self) -> None:
        """A test moved the wall clock."""
        self._sweep()

    # Time.

    def _again(self, delay_s: float) -> None:
        self._timer = self._node.loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._again(_PERIOD_S)  # first, so that a look that fails is not the last one
        cut_ns = self._node.clock.steady_ns() - REFRESH_MAX_NS
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
        now_ms = self._node.clock.wall_ms()
        for queue in queues:
            if queue not in self._last:  # nothing was ever sent to it
                self._ended.setdefault(queue, now_ms)

    def _sweep(self) -> None:
        """End what has to end, slice by slice."""
        if self._sweeping is None:
            self._sweeping = iter([*self._last])
            self._groups.clear()
            self._sweep_slice()

    def _sweep_slice(self) -> None:
        if self._sweeping is None:
            return
        clock = self._node.clock
        now_ms, end_ns = clock.wall_ms(), clock.steady_ns() + _SLICE_NS
        for name in self._sweeping:
            try:
                if name in self._last and self._is_over(name, now_ms):
                    self._end(name, now_ms)
            except (StoreError, OSError) as error:  # the next sweep tries again; the others end now
                log.warning("lite.not_ended queue=%s error=%s", name, error)
            if clock.steady_ns() >= end_ns:
                self._node.loop.call_later(_PAUSE_S, self._sweep_slice)
                return
        self._sweeping = None
        for name in [n for n, ms in self._ended.items() if now_ms - ms > _POSITIONS_KEPT_MS]:
            del self._ended[name]
            self._forget_positions(name)

    def _is_over(self, name: str, now_ms: int) -> bool:
        node = self._node
        parent, _ = parse_queue(name) or ("", "")
        topic = node.metadata.topic(parent)
        if topic is None:
            return True
        lives_ms = expiration_ms(topic)
        if lives_ms is None:
            return False
        last_ms = self._last[name]
        if not last_ms:
            last_ms = self._last[name] = self._last_message_ms(name)
            last_ms = max(last_ms, self._started_ms + PROTECTED_MS - lives_ms)
        margin_ms = 0 if node.leadership.is_leader else FOLLOWER_WAITS_MS
        return now_ms >= last_ms + lives_ms + margin_ms

    def _last_message_ms(self, name: str) -> int:
        """When the last message of a lite topic was stored; long ago when it is gone."""
        store = self._node.store
        records = store.get(name, 0, store.max_offset(name, 0) - 1, 1).records
        return decode_delivery(records[0].data).store_timestamp_ms if records else 1

    def _end(self, name: str, now_ms: int) -> None:
        """The lite topic is over."""
        node = self._node
        if node.store.has_lmq(name) and not node.store.remove_lmq(name):
            return  # something new is on its way to it
        del self._last[name]
        self._ended[name] = now_ms
        self.receiving.forget_queue(name)
        if node.leadership.is_leader:
            for group in self._groups_of(name):
                position = node.offsets.position(name, group, 0)
                if position is not None and position.offset:
                    node.offsets.commit(name, group, 0, 0)
        log.info("lite.ended queue=%s", name)

    def _groups_of(self, name: str) -> list[str]:
        """The groups that may have offsets in a lite topic."""
        parent, _ = parse_queue(name) or ("", "")
        found = self._groups.get(parent)
        if found is None:
            groups = self._node.metadata.groups.values()
            found = [group.name for group in groups if bound_topic(group) == parent]
            self._groups[parent] = found
        return found

    def _forget_positions(self, name: str) -> None:
        for group in self._groups_of(name):
            if not self.table.subscribers(name, (parse_queue(name) or ("", ""))[0], group):
                self._node.offsets.forget(name, group)

    def _forgotten(self, topic: str | None, group: str | None) -> None:
        """A topic or a group is gone; lite topics of a parent that is not there are over."""
        if group is not None:
            for client in self.table:
                if client.key[0] == group:
                    self._drop(client.key)
        elif topic is not None and not is_lite_queue(topic):
            self._sweep()
