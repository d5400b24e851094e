"""ReceiveMessage: true long polling over the pop state of every group.

Promises: an answer as soon as there is a message; an empty answer only when the polling time is over,
which is before the caller's deadline; who has left is forgotten and nothing is popped for it; what
could not be written to a client is visible again after a second (gRPC API, sections 5.6, 7.2, 7.3).
Waiters of a group are woken by arrivals, expiries, unlocked FIFO queues and rewinds, the oldest first.
All state is in memory: after a
restart what was not acknowledged is delivered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from ..proto import v2
from ..proto.errors import WireError
from .pop import UNDELIVERED_MS, PopGroup
from .pop_fifo import OrderedGroup
from .pop_handover import Handover
from .pop_reader import Core, PopReader
from .pop_request import PopRequest, checked, poll_time_ms
from .pop_turn import PopTurn
from .subscription import Subscription, Waiter
from .validation import require_client_id
from .wire import STATUS_OK, status, timestamp
from .wire import field as wire_field

if TYPE_CHECKING:
    from ..front.context import RequestContext
    from .metadata import Group
    from .node import Node
    from .offsets import Position

WAKE_MS = 500
"""A group with waiters looks at its due times at least this often: a moved clock is seen, too."""
WAKE_MIN_MS = 5
_SERVED_A_TURN = 64
"""Waiters of one group that are answered before the loop gets its turn."""

_SWEEP_EVERY = 1_024
"""New states after which those that hold nothing are dropped."""

_OK_ITEM = wire_field(b"\x0a", STATUS_OK)
_NOT_FOUND = (v2.MESSAGE_NOT_FOUND, "no new message")


class PopService:
    """Every pop of this node, and the handler of ReceiveMessage."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._reader = PopReader(node)
        self._topics: dict[str, dict[str, Subscription]] = {}
        self._polled: dict[str, set[tuple[str, str]]] = {}
        """What each client has received from: where its messages are."""
        self._held: dict[str, dict[int, Subscription]] = {}
        """The polls of each client, by key."""
        self._gone: set[str] = set()
        self._made = 0
        self._count = 0
        self._waiting = 0
        self.listeners: list[Callable[[str, int], None]] = []
        """Told of every queue that has new messages (PullMessage waits there)."""
        self.closers: list[Callable[[], None]] = []
        """Called when no poll may wait any longer."""
        self._handover = Handover(node, self._subscriptions)
        node.offsets.on_merged = self._merged

    # Handlers and events.

    def receive(
        self, request: v2.ReceiveMessageRequest, ctx: RequestContext
    ) -> list[bytes] | asyncio.Future[list[bytes]]:
        """Handler of ReceiveMessage."""
        require_client_id(ctx)
        node = self._node
        now_ns = node.clock.steady_ns()
        node.clients.seen(ctx, now_ns)
        node.catch_up()
        poll_ms = poll_time_ms(node, request, ctx, now_ns)
        pop_request = checked(node, request, ctx)
        sub = self._subscription(pop_request.topic.name, pop_request.group)
        self._remember(ctx.client_id, pop_request)
        more = False
        if not sub.waiters or pop_request.attempt_id:
            popped = self._pop(sub, pop_request)
            if popped.items:
                return self._deliver(sub, popped, ctx)
            more = popped.more
        if poll_ms <= 0:
            return self.failure(WireError(*_NOT_FOUND))
        if self._waiting >= node.config.pop_polling_size:
            raise WireError(v2.TOO_MANY_REQUESTS, "too many polls wait: flow limit")
        answer = self._park(sub, pop_request, ctx, poll_ms)
        if more:
            self._schedule(sub)
        return answer

    def failure(self, error: WireError) -> list[bytes]:
        """The stream of a ReceiveMessage that brings no message."""
        return [wire_field(b"\x0a", status(error.code, error.message)), self._delivery_time()]

    def notify(self, topic: str, queue_id: int) -> None:
        """New messages can be read in a queue."""
        for sub in self._topics.get(topic, {}).values():
            if sub.waiters:
                self._schedule(sub)
        for listener in self.listeners:
            listener(topic, queue_id)

    def on_client_gone(self, client_id: str) -> None:
        """Its polls end now, and what was renewed for it comes back in a second."""
        for key, sub in list(self._held.get(client_id, {}).items()):
            self._give_up(sub, key)
        if client_id in self._polled:
            if not self._gone:
                # Clients often go together; their groups are searched once a turn.
                self._node.loop.call_soon(self._release_gone)
            self._gone.add(client_id)

    def clock_moved(self) -> None:
        """A test moved the wall clock: what is due may have changed."""
        for sub in self._subscriptions():
            self._schedule(sub)

    def leader_changed(self, alive: bool) -> None:
        """On a follower: it serves while the leader is gone, and forgets what it did when it is back.

        The consumer offsets go to the leader with the replication stream; deliveries that were not
        acknowledged do not (design, section 8.4): the leader delivers them again.
        """
        if not alive or self._node.is_leader:
            return
        for sub in self._subscriptions():
            for key in list(sub.waiters):
                self._give_up(sub, key)
            if sub.timer is not None:
                sub.timer.cancel()
        self._topics.clear()
        self._polled.clear()
        self._handover.discard()

    def close(self) -> None:
        """Answer every poll; nothing is popped any more."""
        for sub in self._subscriptions():
            for key in list(sub.waiters):
                self._give_up(sub, key)
            if sub.timer is not None:
                sub.timer.cancel()
                sub.timer = None
        for closer in self.closers:
            closer()
        self._handover.close()

    # What other services need.

    def core(self, topic: str, group: Group) -> Core:
        """The pop state of a group, made when there is none."""
        return self._subscription(topic, group).core

    def open_queue(self, core: Core, queue_id: int) -> None:
        """Make sure that the state of a queue exists."""
        if isinstance(core, PopGroup):
            self._reader.queue(core, queue_id)
        else:
            self._reader.ordered(core, queue_id)

    def changed(self, core: Core, queue_id: int) -> None:
        """Messages of a queue were acknowledged or hidden: save the offset, wake who may go on."""
        self._reader.save(core, queue_id)
        self._handover.changed()
        sub = self._topics.get(core.topic, {}).get(core.group)
        if sub is not None and sub.waiters:
            # A FIFO queue may be unlocked, a full one may have room, a message may be visible.
            self._schedule(sub)

    def rewind(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """The group's offset was set by hand: start there, whatever is in flight."""
        sub = self._topics.get(topic, {}).get(group)
        if sub is not None and queue_id in sub.core.queues:
            sub.core.queues[queue_id].jump(offset)
            self._schedule(sub)

    def in_flight(self, topic: str, group: str, queue_id: int) -> int:
        """Messages of a queue that a group has received and not acknowledged."""
        sub = self._topics.get(topic, {}).get(group)
        return sub.core.in_flight(queue_id) if sub is not None else 0

    @property
    def waiting(self) -> int:
        """Polls that are held."""
        return self._waiting

    def _subscriptions(self) -> list[Subscription]:
        return [sub for groups in self._topics.values() for sub in groups.values()]

    # The way of one request.

    def _subscription(self, topic: str, group: Group) -> Subscription:
        groups = self._topics.get(topic)
        if groups is None:
            groups = self._topics[topic] = {}
        sub = groups.get(group.name)
        if sub is None:
            self._made += 1
            if self._made % _SWEEP_EVERY == 0:
                self._sweep()
            sub = groups[group.name] = Subscription(self._new_core(topic, group))
            self._handover.restore(sub.core, self.open_queue)
        elif isinstance(sub.core, OrderedGroup) != group.orderly:
            # The group was altered: it goes on at its consumer offsets.
            sub.core = self._new_core(topic, group)
        return sub

    def _sweep(self) -> None:
        """Drop the states that are as good as new, so that groups tried once cost no memory."""
        for groups in self._topics.values():
            idle = [name for name, sub in groups.items() if not sub.waiters and sub.core.idle()]
            for name in idle:
                del groups[name]

    def _release_gone(self) -> None:
        gone, self._gone = self._gone, set()
        visible_ms = self._node.clock.wall_ms() + UNDELIVERED_MS
        pairs = {pair for client_id in gone for pair in self._polled.pop(client_id, ())}
        for topic, group in pairs:
            sub = self._topics.get(topic, {}).get(group)
            if sub is not None:
                sub.core.clients_gone(gone, visible_ms)
                self._arm(sub)

    def _new_core(self, topic: str, group: Group) -> Core:
        kind = OrderedGroup if group.orderly else PopGroup
        node = self._node
        limit = node.config.pop_inflight_message_threshold
        return kind(topic, group.name, limit, node.clock.wall_ms())

    def _remember(self, client_id: str, request: PopRequest) -> None:
        polled = self._polled.get(client_id)
        if polled is None:
            if len(self._polled) >= self._node.config.max_clients:
                # Ids are the caller's choice; a forgotten one loses only its early release.
                self._polled.pop(next(iter(self._polled)))
            polled = self._polled[client_id] = set()
        polled.add((request.topic.name, request.group.name))

    def _pop(self, sub: Subscription, request: PopRequest) -> PopTurn:
        popped = self._reader.pop(sub.core, request, sub.turn)
        sub.turn += 1
        return popped

    def _deliver(self, sub: Subscription, popped: PopTurn, ctx: RequestContext) -> list[bytes]:
        ctx.on_undelivered = partial(self._undelivered, sub, popped)
        self._handover.changed()
        return [_OK_ITEM, *popped.items, self._delivery_time()]

    def _undelivered(self, sub: Subscription, popped: PopTurn) -> None:
        visible_ms = self._node.clock.wall_ms() + UNDELIVERED_MS
        for queue_id, given in popped.given.items():
            if queue_id in sub.core.queues:
                sub.core.release(queue_id, given, visible_ms)
        self._arm(sub)

    def _delivery_time(self) -> bytes:
        return _delivery_item(self._node.clock.wall_ms())

    # Waiting.

    def _park(
        self, sub: Subscription, request: PopRequest, ctx: RequestContext, poll_ms: int
    ) -> asyncio.Future[list[bytes]]:
        loop = self._node.loop
        answer: asyncio.Future[list[bytes]] = loop.create_future()
        waiter = Waiter(request, ctx, answer)
        self._count += 1
        key = self._count
        sub.waiters[key] = waiter
        self._held.setdefault(request.client_id, {})[key] = sub
        self._waiting += 1
        waiter.timer = loop.call_later(poll_ms / 1000, self._give_up, sub, key)
        answer.add_done_callback(partial(self._left, sub, key))
        self._arm(sub)
        return answer

    def _left(self, sub: Subscription, key: int, answer: asyncio.Future[list[bytes]]) -> None:
        """The future is done: by us, or cancelled because the client left."""
        if answer.cancelled():
            self._remove(sub, key)

    def _remove(self, sub: Subscription, key: int) -> Waiter | None:
        waiter = sub.waiters.pop(key, None)
        if waiter is not None:
            self._waiting -= 1
            if waiter.timer is not None:
                waiter.timer.cancel()
            held = self._held[waiter.request.client_id]
            del held[key]
            if not held:
                del self._held[waiter.request.client_id]
        return waiter

    def _give_up(self, sub: Subscription, key: int) -> None:
        """The polling time is over, or the client is: answer that there is nothing."""
        waiter = self._remove(sub, key)
        if waiter is not None and not waiter.answer.done():
            waiter.answer.set_result(self.failure(WireError(*_NOT_FOUND)))

    def _schedule(self, sub: Subscription) -> None:
        """Serve the waiters of a group in this turn, once, however many events ask for it."""
        if sub.waiters and not sub.scheduled:
            sub.scheduled = True
            self._node.loop.call_soon(self._serve, sub)

    def _serve(self, sub: Subscription) -> None:
        sub.scheduled = False
        for _ in range(_SERVED_A_TURN):
            if not sub.waiters:
                return
            key, waiter = next(iter(sub.waiters.items()))
            if waiter.answer.done():
                self._remove(sub, key)
                continue
            popped = self._pop(sub, waiter.request)
            if not popped.items:
                # The oldest found nothing, so there is nothing: all of a group filter alike.
                if popped.more:
                    self._schedule(sub)
                self._arm(sub)
                return
            self._remove(sub, key)
            waiter.answer.set_result(self._deliver(sub, popped, waiter.ctx))
        self._schedule(sub)

    def _arm(self, sub: Subscription) -> None:
        """Keep one timer for the next due time of a group that somebody waits for."""
        visible_ms = sub.core.next_visible_ms() if sub.waiters else None
        if visible_ms is None:
            return
        now_ms = self._node.clock.wall_ms()
        delay_ms = visible_ms - now_ms
        if delay_ms <= 0:
            # It was looked for a moment ago and could not be had (not replicated yet, say).
            delay_ms = WAKE_MS
        delay_ms = min(max(delay_ms, WAKE_MIN_MS), WAKE_MS)
        if sub.timer is not None:
            if sub.timer_ms <= now_ms + delay_ms:
                return
            sub.timer.cancel()
        sub.timer_ms = now_ms + delay_ms
        sub.timer = self._node.loop.call_later(delay_ms / 1000, self._due, sub)

    def _due(self, sub: Subscription) -> None:
        sub.timer = None
        self._serve(sub)

    def _merged(self, topic: str, group: str, queue_id: int, position: Position) -> None:
        """Another replica was further (or was rewound)."""
        sub = self._topics.get(topic, {}).get(group)
        queue = sub.core.queues.get(queue_id) if sub is not None else None
        if queue is None:
            return
        queue.handed_out = max(queue.handed_out, position.handed_out)
        if position.offset > queue.committed:
            queue.advance_to(position.offset)
        elif position.offset < queue.committed:
            queue.jump(position.offset)


@lru_cache(maxsize=16)
def _delivery_item(now_ms: int) -> bytes:
    return wire_field(b"\x1a", timestamp(now_ms))
