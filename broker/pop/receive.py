"""ReceiveMessage: true long polling over the pop state of every group.

Promises: an answer as soon as there is a message; an empty answer only when the polling time is over,
which is before the caller's deadline; who has left is forgotten and nothing is popped for it; what
could not be written to a client is visible again after a second (gRPC API, sections 5.6, 7.2, 7.3).
Waiters of a group are woken by arrivals in its topic and its retry topics, by unlocked FIFO queues and
by rewinds, the oldest first. What is due again is looked for by one timer for all groups, in slices of
a few milliseconds. The state is in memory; the journal makes it survive on a leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from ...proto import v2
from ...proto.errors import WireError
from ..messages.validation import require_client_id
from ..messages.wire import STATUS_OK, status, timestamp
from ..messages.wire import field as wire_field
from .attempts import Attempts, Given
from .clients import Receivers
from .cold import ColdRecords
from .delivery import UNDELIVERED_MS, Delivery, Key
from .failover.roles import PopRoles
from .fifo.order_info import OrderInfo
from .fifo.ordered_group import OrderedGroup
from .group import PopGroup
from .polls import NOT_FOUND, Polls
from .reader import Core, PopReader
from .request import PopRequest, checked, known_group, poll_time_ms
from .retry import is_retry_topic
from .reviver import Reviver
from .subscription import Subscription
from .table import Subscriptions
from .timer import PopTimer
from .turn import PopTurn

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ..metadata.tables import Group
    from ..node import Node
    from ..offsets.consumer_offsets import Position

_SERVED_A_TURN = 64
"""Waiters of one group that are answered before the loop gets its turn."""

_OK_ITEM = wire_field(b"\x0a", STATUS_OK)


class PopService:
    """Every pop of this node, and the handler of ReceiveMessage."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.reviver = Reviver(node)
        self._reader = PopReader(node, self.reviver)
        self._order_info = OrderInfo(node, self._ordered)
        self.also_ordered: list[Callable[[], Iterable[Subscription]]] = []
        """Further states whose locks survive a restart (lite topics)."""
        self._subs = Subscriptions(node, self._reader, self._order_info)
        self._timer = PopTimer(node, self.reviver, self._schedule)
        self._receivers = Receivers(node.config.max_clients)
        self._attempts = Attempts()
        self._polls = Polls(node.loop, self.failure)
        self._gone: set[str] = set()
        self.listeners: list[Callable[[str, int], None]] = []
        """Told of every queue that has new messages (PullMessage waits there)."""
        self.closers: list[Callable[[], None]] = []
        """Called when no poll may wait any longer."""
        node.offsets.on_merged = self._merged
        self.cold = ColdRecords(node, self.notify)
        self.roles = PopRoles(node, self, self._subs, self._timer, self._order_info)

    # Handlers and events.

    def open(self, stack: AsyncExitStack) -> None:
        """Take over what the files hold; `stack` writes them at the end."""
        stack.push_async_callback(self.cold.close)
        stack.push_async_callback(self._order_info.close)
        if self._node.leadership.is_leader:
            self._node.leadership.lead_pops()
            self._order_info.load()

    def receive(
        self, request: v2.ReceiveMessageRequest, ctx: RequestContext
    ) -> list[bytes] | asyncio.Future[list[bytes]]:
        """Handler of ReceiveMessage."""
        require_client_id(ctx)
        node = self._node
        now_ns = node.clock.steady_ns()
        node.clients.seen(ctx, now_ns)
        node.pump.catch_up()
        if node.lite.takes(request.group.name, ctx.client_id):
            return node.lite.receiving.receive(request, ctx)
        poll_ms = poll_time_ms(node, request, ctx, now_ns)
        pop_request = checked(node, request, ctx)
        pop_request.may_wait = poll_ms > 0
        sub = self._subscription(pop_request.topic.name, pop_request.group)
        self._receivers.add(ctx.client_id, sub.core.topic, sub.core.group)
        more = False
        if pop_request.owner and pop_request.attempt_id:
            lost = self._attempts.ask(pop_request.owner, pop_request.attempt_id)
            if lost is not None:
                self._undelivered(sub, lost)
        if not sub.waiters or pop_request.attempt_id:
            popped = self._pop(sub, pop_request)
            if popped.items:
                return self._deliver(sub, popped, ctx)
            more = popped.more
        if poll_ms <= 0:
            return self.failure(WireError(*NOT_FOUND))
        if self.waiting >= node.config.pop_polling_size:
            raise WireError(v2.TOO_MANY_REQUESTS, "[POLLING_FULL] too many polls wait: flow limit")
        answer = self._polls.park(sub, pop_request, ctx, poll_ms)
        self._timer.arm(sub)
        if more:
            self._schedule(sub)
        return answer

    def failure(self, error: WireError) -> list[bytes]:
        """The stream of a ReceiveMessage that brings no message."""
        return [wire_field(b"\x0a", status(error.code, error.message)), self._delivery_time()]

    def notify(self, topic: str, queue_id: int) -> None:
        """New messages can be read in a queue."""
        for sub in self._subs.of_topic(topic):
            if sub.waiters:
                self._schedule(sub)
        for listener in self.listeners:
            listener(topic, queue_id)

    def on_client_gone(self, client_id: str) -> None:
        """Its polls end now, and what was renewed for it comes back in a second."""
        self._node.lite.client_gone(client_id)
        self._polls.end_of_client(client_id)
        self._attempts.forget(client_id)
        if client_id in self._receivers:
            if not self._gone:
                # Clients often go together; their groups are searched once a turn.
                self._node.loop.call_soon(self._release_gone)
            self._gone.add(client_id)

    def clock_moved(self) -> None:
        """A test moved the wall clock: what is due may have changed."""
        self._timer.look()

    def forget_everything(self) -> None:
        """Polls end, and nothing of any group is known here any more; the journal keeps its part."""
        self.end_polls()
        self._timer.stop()
        self._subs.clear()
        self._receivers.clear()
        self._attempts.clear()
        self.cold.forget()

    def end_polls(self) -> None:
        """Answer every poll: their clients ask again, here or where the leader is."""
        for sub in self._subs:
            self._polls.end(sub)

    def close(self) -> None:
        """Answer every poll; nothing is popped any more."""
        self.end_polls()
        self.roles.close()
        self._timer.stop()
        for closer in self.closers:
            closer()
        self._subs.handover.close()

    # What other services need.

    def core(self, topic: str, group: Group) -> Core:
        """The pop state of a group, made when there is none."""
        return self._subscription(topic, group).core

    def open_queue(self, core: Core, key: Key) -> None:
        """Make sure that the state of a queue exists."""
        self._subs.open_queue(core, key)

    def changed(self, core: Core, key: Key) -> None:
        """Messages of a queue were acknowledged or stored: save the offset, wake who may go on."""
        self._reader.save(core, key)
        self._noted(core)
        sub = self._subs.get(core.topic, core.group)
        if sub is not None and sub.waiters and sub.core is core:
            # A FIFO queue may be unlocked, a full one may have room, a message may be visible.
            self._schedule(sub)

    def rearm(self, core: Core) -> None:
        """Deliveries of a group were taken over: look at them when their time is over."""
        sub = self._subs.get(core.topic, core.group)
        if sub is not None:
            self._timer.arm(sub)

    def hidden(self, core: Core, key: Key, delivery: Delivery) -> None:
        """A message was hidden anew: it is looked for when its time is over."""
        self.changed(core, key)
        sub = self._subs.get(core.topic, core.group)
        if sub is not None and (isinstance(core, PopGroup) or sub.waiters):
            self._timer.ask(sub, delivery.visible_ms)

    def rewind(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """The group's offset was set by hand: start there, whatever is in flight or locked."""
        node = self._node
        known = node.metadata.group(group)
        if (
            node.leadership.pop_leads
            and known
            and topic in node.metadata.topics
            and not is_retry_topic(topic)
        ):
            # The journal may know deliveries of a group that nobody has asked for yet.
            self._subscription(topic, known)
        for sub, queue in self._subs.queues_of(topic, group, queue_id):
            self._settled(sub.core, queue.key, queue.jump(offset))
            self._noted(sub.core)
            self._schedule(sub)

    def forget(self, topic: str = "", group: str = "") -> None:
        """A topic, a group or one on the other is gone: their polls end, nothing is in flight."""
        for sub in self._subs:
            if topic in ("", sub.core.topic) and group in ("", sub.core.group):
                self._polls.end(sub)
                self._subs.forget(sub)

    def in_flight(self, topic: str, group: str, queue_id: int) -> int:
        """Messages of a queue that a group has received and not acknowledged."""
        queues = self._subs.queues_of(topic, group, queue_id)
        return sum(sub.core.in_flight(queue.key) for sub, queue in queues)

    def progress(self, topic: str, group: str, queue_id: int) -> tuple[int, int] | None:
        """How far a group has read in a queue, and what is in flight; None: nothing is known here."""
        for sub, queue in self._subs.queues_of(topic, group, queue_id):
            return queue.next_read, sub.core.in_flight(queue.key)
        return self._node.lite.receiving.progress(topic, group)

    def restore_order(self, core: OrderedGroup) -> None:
        """Lock a state again that is not one of these, as the file says."""
        self._order_info.restore(core, self._reader)

    def watch(self, sub: Subscription) -> None:
        """A state that is not one of these has changed; `sub.on_due` is told when its lock ends."""
        self._order_info.changed()
        self._timer.watch(sub)

    def found(self, items: list[bytes]) -> list[bytes]:
        """The stream of a ReceiveMessage that brings these."""
        return [_OK_ITEM, *items, self._delivery_time()]

    @property
    def waiting(self) -> int:
        """Polls that are held."""
        return self._polls.waiting + self._node.lite.receiving.waiting

    # The way of one request.

    def _subscription(self, topic: str, group: Group) -> Subscription:
        known = self._subs.get(topic, group.name)
        sub = self._subs.make(topic, group)
        if known is None:
            # What was taken over from before a restart may be due.
            self._timer.arm(sub)
        return sub

    def _ordered(self) -> Iterator[Subscription]:
        yield from self._subs
        for others in self.also_ordered:
            yield from others()

    def _noted(self, core: Core) -> None:
        if isinstance(core, OrderedGroup):
            self._order_info.changed()
        self._subs.handover.changed()

    def _settled(self, core: Core, key: Key, offsets: list[int]) -> None:
        if isinstance(core, PopGroup):
            for offset in offsets:
                self._node.journal.settled(core, core.queues[key], offset)

    def _release_gone(self) -> None:
        gone, self._gone = self._gone, set()
        visible_ms = self._node.clock.wall_ms() + UNDELIVERED_MS
        for topic, group in self._receivers.take(gone):
            sub = self._subs.get(topic, group)
            if sub is not None:
                sub.core.clients_gone(gone, visible_ms)
                self._timer.arm(sub)

    def _pop(self, sub: Subscription, request: PopRequest) -> PopTurn:
        popped = self._reader.pop(sub.core, request, sub.turn)
        sub.turn += 1
        return popped

    def _deliver(self, sub: Subscription, popped: PopTurn, ctx: RequestContext) -> list[bytes]:
        ctx.on_undelivered = partial(self._undelivered, sub, popped.given)
        request = popped.request
        if request.owner and request.attempt_id and isinstance(sub.core, PopGroup):
            self._attempts.give(request.owner, request.attempt_id, popped.given)
        self._noted(sub.core)
        self._timer.given(sub, popped.now_ms + request.invisible_ms)
        return self.found(popped.items)

    def _undelivered(self, sub: Subscription, given: Given) -> None:
        visible_ms = self._node.clock.wall_ms() + UNDELIVERED_MS
        for key, messages in given.items():
            if key in sub.core.queues:
                sub.core.release(key, messages, visible_ms)
        self._noted(sub.core)
        self._timer.arm(sub)

    def _delivery_time(self) -> bytes:
        return _delivery_item(self._node.clock.wall_ms())

    # Waiting.

    def _schedule(self, sub: Subscription) -> None:
        """Serve the waiters of a group in this turn, once, however many events ask for it."""
        if sub.waiters and not sub.scheduled:
            sub.scheduled = True
            self._node.loop.call_soon(self._serve, sub)

    def _serve(self, sub: Subscription) -> None:
        sub.scheduled = False
        if sub.waiters and not self._may_consume(sub):
            return
        for _ in range(_SERVED_A_TURN):
            if not sub.waiters:
                return
            key, waiter = next(iter(sub.waiters.items()))
            if waiter.answer.done():
                self._polls.remove(sub, key)
                continue
            popped = self._pop(sub, waiter.request)
            if not popped.items:
                # The oldest found nothing, so there is nothing: all of a group filter alike.
                if popped.more:
                    self._schedule(sub)
                self._timer.arm(sub)
                return
            self._polls.remove(sub, key)
            waiter.answer.set_result(self._deliver(sub, popped, waiter.ctx))
        self._schedule(sub)

    def _may_consume(self, sub: Subscription) -> bool:
        """Whether the group still may: it may have been switched off, or have changed its kind."""
        try:
            group = known_group(self._node, sub.core.group)
        except WireError as error:
            self._polls.end(sub, error)
            return False
        self._subs.make(sub.core.topic, group)
        return True

    def _merged(self, topic: str, group: str, queue_id: int, position: Position) -> None:
        """Another replica was further (or was rewound)."""
        for sub, queue in self._subs.queues_of(topic, group, queue_id):
            queue.handed_out = max(queue.handed_out, position.handed_out)
            if position.offset > queue.committed:
                self._settled(sub.core, queue.key, queue.advance_to(position.offset))
            elif position.offset < queue.committed:
                self._settled(sub.core, queue.key, queue.jump(position.offset))


@lru_cache(maxsize=16)
def _delivery_item(now_ms: int) -> bytes:
    return wire_field(b"\x1a", timestamp(now_ms))
