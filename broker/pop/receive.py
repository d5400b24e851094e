"""Pop service: ReceiveMessage with long polling over the pop state of every group.

Promises: an answer as soon as a message is available; an empty answer only when the polling time
ends, which is before the caller's deadline; a call whose client has left pops nothing; messages
that could not be written to a client are visible again after a second (docs/formats/grpc-api.md,
sections 5.6, 7.2 and 7.3). Arrivals in a group's topic and retry topics, unlocked FIFO queues and
rewinds wake the polls of the group, the oldest first. One timer processes the due messages of all
groups in slices of a few milliseconds. The state is in memory; on a leader the journal makes it
survive.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from ...proto import v1, v2
from ...proto.errors import WireError
from ..messages.wire import STATUS_OK, status, timestamp
from ..messages.wire import field as wire_field
from ..names.delivery import UNDELIVERED_MS, Delivery, Key
from ..names.retry import is_retry_topic
from .attempts import Attempts, Given
from .clients import Receivers
from .fifo.ordered_group import OrderedGroup
from .group import PopGroup
from .held import deliveries_of
from .polls import NOT_FOUND, Polls
from .request import PopRequest, checked, consuming_group, poll_time_ms
from .timer import PopTimer
from .turn import PopTurn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...front.context import RequestContext
    from ..base.leadership import Leadership
    from ..base.runtime import Runtime
    from ..clients.registry import ClientRegistry
    from ..cold.cold_records import ColdRecords
    from ..metadata.tables import Group, Metadata
    from ..offsets.entries import Position
    from .journal_api import Journal
    from .order_info import OrderInfo
    from .polls import PollLimit
    from .reader import PopReader
    from .reviver import Reviver
    from .subscription import Core, Subscription
    from .table import Subscriptions

#: Polls of one group answered in one turn of the loop.
_SERVED_A_TURN = 64

_OK_ITEM = wire_field(b"\x0a", STATUS_OK)


class PopService:
    """Pops of ordinary groups."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        metadata: Metadata,
        leadership: Leadership,
        clients: ClientRegistry,
        journal: Journal,
        reviver: Reviver,
        reader: PopReader,
        order_info: OrderInfo,
        subscriptions: Subscriptions,
        cold: ColdRecords,
        limit: PollLimit,
    ) -> None:
        self._clock = runtime.clock
        self._loop = runtime.loop
        self._metadata = metadata
        self._leadership = leadership
        self._clients = clients
        self._journal = journal
        self.reviver = reviver
        self.reader = reader
        self._order_info = order_info
        self._subs = subscriptions
        self.cold = cold
        self.limit = limit
        self._timer = PopTimer(runtime, leadership, reviver, self._schedule)
        self._receivers = Receivers(runtime.config.max_clients)
        self._attempts = Attempts()
        self._polls = Polls(runtime.loop, limit, self.failure)
        self._gone: set[str] = set()

    # Handlers and events.

    def open(self, stack: AsyncExitStack) -> None:
        """Read the files; `stack` writes and closes them at the end."""
        stack.push_async_callback(self.cold.close)
        stack.push_async_callback(self._order_info.close)
        if self._leadership.is_leader:
            self._leadership.lead_pops()
            self._order_info.load()

    def receive(
        self, request: v2.ReceiveMessageRequest, ctx: RequestContext, now_ns: int
    ) -> list[bytes] | asyncio.Future[list[bytes]]:
        """Handle a ReceiveMessage of an ordinary group; `now_ns` is the steady time."""
        poll_ms = poll_time_ms(self._clients, request, ctx, now_ns)
        pop_request = checked(self._metadata, request, ctx)
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
        answer = self._polls.park(sub, pop_request, ctx, poll_ms)
        self._timer.arm(sub)
        if more:
            self._schedule(sub)
        return answer

    def failure(self, error: WireError) -> list[bytes]:
        """Return the stream of a ReceiveMessage without messages."""
        return [wire_field(b"\x0a", status(error.code, error.message)), self._delivery_time()]

    def notify(self, topic: str, queue_id: int) -> None:
        """Wake the polls of a queue with new messages."""
        for sub in self._subs.of_topic(topic):
            if sub.waiters:
                self._schedule(sub)

    def client_gone(self, client_id: str) -> None:
        """End the client's polls; messages renewed for it are visible again in a second."""
        self._polls.end_of_client(client_id)
        self._attempts.forget(client_id)
        if client_id in self._receivers:
            if not self._gone:
                # Clients often leave together; their groups are searched once a turn.
                self._loop.call_soon(self._release_gone)
            self._gone.add(client_id)

    def offset_merged(self, topic: str, group: str, queue_id: int, position: Position) -> None:
        """Apply a consumer offset of another replica, advanced or rewound."""
        for sub, queue in self._subs.queues_of(topic, group, queue_id):
            queue.handed_out = max(queue.handed_out, position.handed_out)
            if position.offset > queue.committed:
                self._settled(sub.core, queue.key, queue.advance_to(position.offset))
            elif position.offset < queue.committed:
                self._settled(sub.core, queue.key, queue.jump(position.offset))

    def clock_moved(self) -> None:
        """Process due messages after a test moved the wall clock."""
        self._timer.run_soon()

    def forget_everything(self) -> None:
        """End all polls and drop all states; the journal keeps its part."""
        self.end_polls()
        self._timer.stop()
        self._subs.clear()
        self._receivers.clear()
        self._attempts.clear()
        self.cold.forget()

    def end_polls(self) -> None:
        """Answer all polls: their clients poll again, here or at the leader."""
        for sub in self._subs:
            self._polls.end(sub)

    def close(self) -> None:
        """Answer all polls and stop."""
        self.end_polls()
        self._timer.stop()
        self._subs.handover.close()

    # Interface for the other services.

    def core(self, topic: str, group: Group) -> Core:
        """Return the pop state of a group; create it if it does not exist."""
        return self._subscription(topic, group).core

    def existing_core(self, topic: str, group: str) -> Core | None:
        """Return the pop state of a group if it exists."""
        sub = self._subs.get(topic, group)
        return None if sub is None else sub.core

    def open_queue(self, core: Core, key: Key) -> None:
        """Create the state of a queue if it does not exist."""
        self._subs.open_queue(core, key)

    def changed(self, core: Core, key: Key) -> None:
        """Commit the offset and wake polls: messages of a queue were acknowledged or stored."""
        self.reader.save(core, key)
        self._noted(core)
        sub = self._subs.get(core.topic, core.group)
        if sub is not None and sub.waiters and sub.core is core:
            # A FIFO queue may be unlocked, a full one below its limit, a message visible.
            self._schedule(sub)

    def rearm(self, core: Core) -> None:
        """Schedule the timer for a group whose deliveries were taken over."""
        sub = self._subs.get(core.topic, core.group)
        if sub is not None:
            self._timer.arm(sub)

    def rearm_all(self) -> None:
        """Schedule the timer for all groups."""
        for sub in self._subs:
            self._timer.arm(sub)

    def hidden(self, core: Core, key: Key, delivery: Delivery) -> None:
        """Schedule the timer for a message that was hidden again."""
        self.changed(core, key)
        sub = self._subs.get(core.topic, core.group)
        if sub is not None and (isinstance(core, PopGroup) or sub.waiters):
            self._timer.schedule(sub, delivery.visible_ms)

    def rewind(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Move a group to an offset set by an operator or client; drop messages in flight and
        locks."""
        known = self._metadata.group(group)
        if (
            self._leadership.pop_leads
            and known
            and topic in self._metadata.topics
            and not is_retry_topic(topic)
        ):
            # The journal may hold deliveries of a group without a state.
            self._subscription(topic, known)
        for sub, queue in self._subs.queues_of(topic, group, queue_id):
            self._settled(sub.core, queue.key, queue.jump(offset))
            self._noted(sub.core)
            self._schedule(sub)

    def forget(self, topic: str = "", group: str = "") -> None:
        """End the polls and drop the states of a deleted topic or group, or of one on the other."""
        self._order_info.forget(topic, group)
        for sub in self._subs:
            if topic in ("", sub.core.topic) and group in ("", sub.core.group):
                self._polls.end(sub)
                self._subs.forget(sub)

    def in_flight(self, topic: str, group: str, queue_id: int) -> int:
        """Return the number of messages that a group received and did not acknowledge."""
        queues = self._subs.queues_of(topic, group, queue_id)
        return sum(self._progress(sub, queue.key)[1] for sub, queue in queues)

    def progress(self, topic: str, group: str, queue_id: int) -> tuple[int, int] | None:
        """Return the read offset and the messages in flight; None without a state here."""
        for sub, queue in self._subs.queues_of(topic, group, queue_id):
            return self._progress(sub, queue.key)
        return None

    def _progress(self, sub: Subscription, key: Key) -> tuple[int, int]:
        return sub.core.progress(key, self._clock.forward_ms(), self.reviver.alive)

    def deliveries(self, group: str) -> Iterator[v1.GroupDelivery]:
        """Return the messages of a group in flight, on all topics."""
        for sub in self._subs:
            if sub.core.group == group:
                yield from deliveries_of(sub.core, self._clock.forward_ms(), self.reviver.alive)

    def restore_order(self, core: OrderedGroup) -> None:
        """Restore the lock of a FIFO state that another part owns."""
        self._order_info.restore(core, self.reader)

    def forget_order(self, topic: str = "", group: str = "") -> None:
        """Drop the locks of FIFO states of another part that are not restored yet."""
        self._order_info.forget(topic, group)

    def watch(self, sub: Subscription) -> None:
        """Save a changed FIFO state of another part; call `sub.on_due` when its lock ends."""
        self._order_info.changed()
        self._timer.watch(sub)

    def found(self, items: list[bytes]) -> list[bytes]:
        """Return the stream of a ReceiveMessage with these messages."""
        return [_OK_ITEM, *items, self._delivery_time()]

    @property
    def waiting(self) -> int:
        """Number of waiting ReceiveMessage polls, those of lite groups included."""
        return self.limit.waiting

    # Handling one request.

    def _subscription(self, topic: str, group: Group) -> Subscription:
        known = self._subs.get(topic, group.name)
        sub = self._subs.make(topic, group)
        if known is None:
            # Deliveries from before a restart may be due.
            self._timer.arm(sub)
        return sub

    def _noted(self, core: Core) -> None:
        if isinstance(core, OrderedGroup):
            self._order_info.changed()
        self._subs.handover.changed()

    def _settled(self, core: Core, key: Key, offsets: list[int]) -> None:
        if isinstance(core, PopGroup):
            for offset in offsets:
                self._journal.settled(core, core.queues[key], offset)

    def _release_gone(self) -> None:
        gone, self._gone = self._gone, set()
        visible_ms = self._clock.forward_ms() + UNDELIVERED_MS
        for topic, group in self._receivers.take(gone):
            sub = self._subs.get(topic, group)
            if sub is not None:
                sub.core.clients_gone(gone, visible_ms)
                self._timer.arm(sub)

    def _pop(self, sub: Subscription, request: PopRequest) -> PopTurn:
        popped = self.reader.pop(sub.core, request, sub.turn)
        sub.turn += 1
        return popped

    def _deliver(self, sub: Subscription, popped: PopTurn, ctx: RequestContext) -> list[bytes]:
        ctx.on_undelivered = partial(self._undelivered, sub, popped.given)
        request = popped.request
        if request.owner and request.attempt_id and isinstance(sub.core, PopGroup):
            self._attempts.give(request.owner, request.attempt_id, popped.given)
        self._noted(sub.core)
        self._timer.delivered(sub, popped.now_ms + request.invisible_ms)
        return self.found(popped.items)

    def _undelivered(self, sub: Subscription, given: Given) -> None:
        visible_ms = self._clock.forward_ms() + UNDELIVERED_MS
        for key, messages in given.items():
            if key in sub.core.queues:
                sub.core.release(key, messages, visible_ms)
        self._noted(sub.core)
        self._timer.arm(sub)

    def _delivery_time(self) -> bytes:
        return _delivery_item(self._clock.wall_ms())

    # Waiting.

    def _schedule(self, sub: Subscription) -> None:
        """Serve the polls of a group in this turn, once for all events."""
        if sub.waiters and not sub.scheduled:
            sub.scheduled = True
            self._loop.call_soon(self._serve, sub)

    def _serve(self, sub: Subscription) -> None:
        sub.scheduled = False
        if sub.waiters and not self._may_consume(sub):
            return
        for _ in range(_SERVED_A_TURN):
            waiter = self._polls.oldest(sub)
            if waiter is None:
                return
            popped = self._pop(sub, waiter.request)
            if not popped.items:
                # All polls of a group have the same filter: the others find nothing, either.
                if popped.more:
                    self._schedule(sub)
                self._timer.arm(sub)
                return
            self._polls.answer(sub, waiter, self._deliver(sub, popped, waiter.ctx))
        self._schedule(sub)

    def _may_consume(self, sub: Subscription) -> bool:
        """Return whether the group may still consume; apply a change of its kind."""
        try:
            group = consuming_group(self._metadata, sub.core.group)
        except WireError as error:
            self._polls.end(sub, error)
            return False
        self._subs.make(sub.core.topic, group)
        return True


@lru_cache(maxsize=16)
def _delivery_item(now_ms: int) -> bytes:
    return wire_field(b"\x1a", timestamp(now_ms))
