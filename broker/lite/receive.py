"""ReceiveMessage of lite topics: messages of all that the client subscribes to, each in its order.

Source: docs/formats/broker-semantics.md, section 12.2; docs/formats/grpc-api.md, section 5.13. A
lite topic is consumed like one queue of a FIFO group: one batch is delivered at a time, its handles
have queue 0 and revive queue 999, there is no retry topic, and a message without attempts left
becomes a dead letter. An answer may hold messages of several lite topics. Promises: an answer as
soon as one of the client's lite topics has an available message; arrivals, acknowledgements,
expiries and new subscriptions wake waiting polls; a state that equals the consumer offset is
dropped at once, so that an idle lite topic costs nothing.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ...proto import v2
from ...proto.errors import WireError
from ..names.delivery import UNDELIVERED_MS
from ..names.handles import FIFO_REVIVE_QUEUE
from ..names.lite import bound_topic, is_parent, parse_queue
from ..names.retry import NORMAL
from ..pop.fifo.ordered_group import OrderedGroup, OrderedQueue
from ..pop.polls import NOT_FOUND, Polls, Waiting
from ..pop.request import PopRequest, checked, poll_time_ms
from ..pop.subscription import Subscription
from ..pop.turn import PopTurn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...front.context import RequestContext
    from ...store.message_store import MessageStore
    from ..base.runtime import Runtime
    from ..clients.registry import ClientRegistry
    from ..metadata.tables import Metadata
    from ..names.delivery import DeliveryRef, Key, Outcome
    from ..offsets.consumer_offsets import ConsumerOffsets
    from ..pop.receive import PopService
    from .core import Key as ClientKey
    from .core import LiteClient, LiteTable

#: The one queue of a lite topic.
QUEUE: Key = (NORMAL, 0)
#: Lite topics that one poll reads in one turn of the loop.
_LOOKS_MAX = 256
#: Lite topics stored of a client's last answer; an answer has at most as many messages.
_ATTEMPT_QUEUES_MAX = 32


class LiteTurn(Struct):
    """The answer of one poll, and the origin of its messages."""

    turn: PopTurn
    #: Offsets and pop times, by state.
    given: list[tuple[OrderedGroup, list[tuple[int, int]]]] = field(default_factory=list)
    #: Further lite topics may have messages.
    more: bool = False


class LiteReceive:
    """Delivers messages of lite topics and holds the states with messages in flight."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        metadata: Metadata,
        clients: ClientRegistry,
        offsets: ConsumerOffsets,
        pop: PopService,
        table: LiteTable,
    ) -> None:
        self._clock = runtime.clock
        self._loop = runtime.loop
        self._in_flight_max = runtime.config.pop_inflight_message_threshold
        self._store = store
        self._metadata = metadata
        self._clients = clients
        self._offsets = offsets
        self._pop_service = pop
        self._alive = pop.reviver.alive
        self._reader = pop.reader
        self._polls = Polls(runtime.loop, pop.limit, pop.failure)
        self.table = table
        #: States with messages in flight, by group and LMQ.
        self._cores: dict[tuple[str, str], Subscription] = {}
        #: Clients with waiting polls.
        self._waiting: dict[ClientKey, Waiting] = {}
        #: Attempt id and LMQs of each client's last answer.
        self._attempts: dict[ClientKey, tuple[str, list[str]]] = {}
        self._gone: set[str] = set()

    # Handlers and events.

    def receive(
        self, request: v2.ReceiveMessageRequest, ctx: RequestContext, now_ns: int
    ) -> list[bytes] | asyncio.Future[list[bytes]]:
        """Handle a ReceiveMessage of a lite group; `now_ns` is the steady time. Raises
        WireError."""
        poll_ms = poll_time_ms(self._clients, request, ctx, now_ns)
        asked = checked(self._metadata, request, ctx)
        key = self._check(asked)
        place = self._waiting.get(key) or Waiting()
        more = False
        if not place.waiters or asked.attempt_id:
            popped = self._pop(key, asked)
            if popped.turn.items:
                return self._deliver(popped, ctx)
            more = popped.more
        if poll_ms <= 0:
            return self._pop_service.failure(WireError(*NOT_FOUND))
        answer = self._polls.park(place, asked, ctx, poll_ms)
        answer.add_done_callback(partial(self._answered, key, place))
        self._waiting[key] = place
        if more:
            self._schedule(key)
        return answer

    def wake(self, clients: list[LiteClient]) -> None:
        """Serve the polls of these clients: a lite topic of theirs may have messages."""
        for client in clients:
            self._schedule(client.key)

    def client_gone(self, key: ClientKey) -> None:
        """End the client's polls; messages renewed for it are visible again in a second."""
        if key in self._waiting:
            self._polls.end(self._waiting[key])
        self._attempts.pop(key, None)
        if self._cores and not self._gone:
            # Clients often leave together; the states are searched once a turn.
            self._loop.call_soon(self._release_gone)
        if self._cores:
            self._gone.add(key[1])

    def left(self, key: ClientKey) -> None:
        """Forget the last answer of a client without subscriptions."""
        self._attempts.pop(key, None)

    def _release_gone(self) -> None:
        gone, self._gone = self._gone, set()
        visible_ms = self._clock.forward_ms() + UNDELIVERED_MS
        for sub in self.subscriptions():
            sub.core.clients_gone(gone, visible_ms)
            self._pop_service.watch(sub)

    def due(self, sub: Subscription) -> None:
        """Process a state whose invisible time ended."""
        core = sub.core
        if self._cores.get((core.group, core.topic)) is not sub:
            return
        core.expire(self._clock.forward_ms(), self._alive)
        self._unlocked(sub)

    def end_polls(self) -> None:
        """Answer all polls."""
        for place in self._waiting.values():
            self._polls.end(place)

    def forget(self) -> None:
        """Answer all polls and drop all states: another replica leads."""
        self.end_polls()
        self._cores.clear()
        self._attempts.clear()

    def forget_queue(self, queue: str, group: str | None = None) -> None:
        """Drop the states of a lite topic that ended, or of one group that restarts on it."""
        groups = [k[0] for k in self._cores if k[1] == queue] if group is None else [group]
        for name in groups:
            self._cores.pop((name, queue), None)
        self._pop_service.forget_order(queue, group or "")

    def forget_group(self, group: str) -> None:
        """Drop the states of a deleted group."""
        for key in [key for key in self._cores if key[0] == group]:
            del self._cores[key]

    def rewind(self, queue: str, group: str, offset: int) -> None:
        """Move a group to an offset that an operator has set; drop messages in flight and the lock.

        The state is not dropped: a new one would take the old lock from the file.
        """
        self.state(group, queue)[1].jump(offset)
        self.settle(group, queue)

    def progress(self, queue: str, group: str) -> tuple[int, int] | None:
        """Return the read offset and the messages in flight; None without a state."""
        sub = self._cores.get((group, queue))
        if sub is None or QUEUE not in sub.core.queues:
            return None
        return sub.core.progress(QUEUE, self._clock.forward_ms(), self._alive)

    def subscriptions(self) -> Iterator[Subscription]:
        """Iterate over a copy of the current states."""
        return iter(list(self._cores.values()))

    # Interface for acknowledgements.

    def state(self, group: str, queue: str) -> tuple[OrderedGroup, OrderedQueue]:
        """Return the state of a lite topic; create it if it does not exist."""
        core = self._subscription(group, queue).core
        assert isinstance(core, OrderedGroup)
        return core, self._reader.ordered(core, QUEUE)

    def ack(self, group: str, queue: str, claim: DeliveryRef, now_ms: int) -> Outcome:
        """Acknowledge a message; call `settle` afterwards."""
        return self.state(group, queue)[0].ack(claim, now_ms)

    def settle(self, group: str, queue: str) -> None:
        """Commit the offset after a change, and wake polls."""
        sub = self._subscription(group, queue)
        self._reader.save(sub.core, QUEUE)
        self._unlocked(sub)

    # Handling one request.

    def _check(self, asked: PopRequest) -> ClientKey:
        """Raise WireError if the group may not consume lite topics of this parent."""
        bound = bound_topic(asked.group)
        if not is_parent(asked.topic):
            raise WireError(v2.BAD_REQUEST, f"topic {asked.topic.name} has no lite topics")
        if bound != asked.topic.name:
            raise WireError(
                v2.BAD_REQUEST, f"group {asked.group.name} is bound to topic {bound or '(none)'}"
            )
        return asked.group.name, asked.client_id

    def _subscription(self, group: str, queue: str) -> Subscription:
        sub = self._cores.get((group, queue))
        if sub is None:
            self._begin(group, queue)
            core = OrderedGroup(queue, group, self._in_flight_max, self._clock.forward_ms())
            sub = self._cores[group, queue] = Subscription(core, on_due=self.due)
            self._pop_service.restore_order(core)
        return sub

    def _begin(self, group: str, queue: str) -> None:
        """Set the start of a wildcard group in a lite topic without an offset: its first message
        since the group subscribed."""
        known = self._metadata.group(group)
        if known is None or known.lite_since < 0 or self._offsets.position(queue, group, 0):
            return
        start = self._store.reader.offset_by_position(queue, 0, known.lite_since)
        if start:
            self._offsets.commit(queue, group, 0, start)

    def _pop(self, key: ClientKey, asked: PopRequest) -> LiteTurn:
        popped = LiteTurn(self._reader.turn(asked, FIFO_REVIVE_QUEUE))
        before, queues = self._attempts.get(key, ("", []))
        if asked.attempt_id and asked.attempt_id == before:
            for queue in queues:  # the answer was lost: deliver the same messages again
                self._pop_queue(popped, asked.group.name, queue)
        client = self.table.get(key)
        looks = 0
        while client is not None and not popped.turn.full:
            if looks == _LOOKS_MAX or (looks and popped.turn.late()):
                popped.more = True
                break
            looks += 1
            taken = self.table.take(client, partial(self._known, client.parent))
            if taken is None:
                break
            self._pop_queue(popped, asked.group.name, taken)
        popped.turn.count()
        if popped.given and asked.attempt_id:
            queues = [core.topic for core, _ in popped.given][:_ATTEMPT_QUEUES_MAX]
            self._attempts[key] = asked.attempt_id, queues
        return popped

    def _known(self, parent: str) -> list[str]:
        """Return all lite topics of a parent, for a wildcard client that missed events."""
        names = self._store.queue_table.lmqs()
        return [name for name in names if (parse_queue(name) or ("",))[0] == parent]

    def _pop_queue(self, popped: LiteTurn, group: str, queue: str) -> None:
        sub = self._subscription(group, queue)
        core, turn = sub.core, popped.turn
        assert isinstance(core, OrderedGroup)
        core.expire(turn.now_ms, self._alive)
        state = self._reader.ordered(core, QUEUE)
        turn.more = False
        self._reader.pop_ordered(core, state, turn)
        for given in turn.given.values():
            popped.given.append((core, given))
        turn.given = {}
        self._unlocked(sub, told=turn.request.client_id)
        popped.more |= turn.more

    def _unlocked(self, sub: Subscription, told: str = "") -> None:
        """Schedule the end of the lock, wake clients or drop the state, whichever applies.

        `told` is a client that needs no wake-up.
        """
        core = sub.core
        assert isinstance(core, OrderedGroup)
        state = self._reader.ordered(core, QUEUE)
        self._pop_service.watch(sub)
        if not core.open_for(state, self._clock.forward_ms(), ""):
            return
        if state.committed < self._store.max_offset(core.topic, 0):
            parent, _ = parse_queue(core.topic) or ("", "")
            clients = self.table.ready(core.topic, parent, core.group)
            self.wake([client for client in clients if client.key[1] != told])
        if core.idle():
            self._cores.pop((core.group, core.topic), None)

    def _deliver(self, popped: LiteTurn, ctx: RequestContext) -> list[bytes]:
        ctx.on_undelivered = partial(self._undelivered, popped)
        return self._pop_service.found(popped.turn.items)

    def _undelivered(self, popped: LiteTurn) -> None:
        visible_ms = self._clock.forward_ms() + UNDELIVERED_MS
        for core, given in popped.given:
            sub = self._cores.get((core.group, core.topic))
            if sub is not None and sub.core is core:
                core.release(QUEUE, given, visible_ms)
                self._pop_service.watch(sub)

    # Waiting.

    def _answered(
        self, key: ClientKey, place: Waiting, _answer: asyncio.Future[list[bytes]]
    ) -> None:
        if not place.waiters and self._waiting.get(key) is place:
            del self._waiting[key]

    def _schedule(self, key: ClientKey) -> None:
        """Serve the client's polls in this turn, once for all events."""
        place = self._waiting.get(key)
        if place is not None and place.waiters and not place.scheduled:
            place.scheduled = True
            self._loop.call_soon(self._serve, key, place)

    def _serve(self, key: ClientKey, place: Waiting) -> None:
        place.scheduled = False
        while (waiter := self._polls.oldest(place)) is not None:
            popped = self._pop(key, waiter.request)
            if not popped.turn.items:
                if popped.more:
                    self._schedule(key)
                return
            self._polls.answer(place, waiter, self._deliver(popped, waiter.ctx))
