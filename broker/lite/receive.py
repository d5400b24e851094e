"""ReceiveMessage of lite topics: any of those that the client subscribes to, each in its own order.

Source: broker semantics, section 12.2; gRPC API, section 5.13. A lite topic is consumed like one queue of
a FIFO group: a batch of it is out at a time, its handles name queue 0 and revive queue 999, there is no
retry topic, and what used all its attempts goes to the dead letters. An answer may hold messages of
several lite topics. Promises: an answer as soon as one of the client's lite topics has a message that may
go out; who waits is woken by arrivals, acknowledgements, expiries and new subscriptions; state that says
no more than the consumer offset is dropped at once, so that a lite topic costs nothing while it is idle.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from ...proto import v2
from ...proto.errors import WireError
from ..pop.delivery import UNDELIVERED_MS
from ..pop.fifo.ordered_group import OrderedGroup, OrderedQueue
from ..pop.handles import FIFO_REVIVE_QUEUE
from ..pop.reader import PopReader
from ..pop.request import PopRequest, checked, poll_time_ms
from ..pop.retry import NORMAL
from ..pop.subscription import Subscription, Waiter
from ..pop.turn import PopTurn
from .names import bound_topic, is_parent, parse_queue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...front.context import RequestContext
    from ..node import Node
    from ..pop.delivery import DeliveryRef, Key, Outcome
    from .core import Key as ClientKey
    from .core import LiteClient, LiteTable

QUEUE: Key = (NORMAL, 0)
"""The one queue of a lite topic."""
_LOOKS_MAX = 256
"""Lite topics that one poll looks at before the loop gets its turn."""
_ATTEMPT_QUEUES_MAX = 32
"""Lite topics of a client's last answer that are remembered: as many as it can hold messages of."""


@dataclass(slots=True)
class LiteTurn:
    """One poll's answer, and where its messages are from."""

    turn: PopTurn
    given: list[tuple[OrderedGroup, list[tuple[int, int]]]] = field(default_factory=list)
    """Offsets and pop times."""
    more: bool = False
    """There is more to look at."""


@dataclass(slots=True)
class _Polls:
    """The polls of one client that are held."""

    waiters: dict[int, Waiter] = field(default_factory=dict)
    scheduled: bool = False


class LiteReceive:
    """Gives out messages of lite topics, and knows what is out."""

    def __init__(self, node: Node, table: LiteTable) -> None:
        self._node = node
        self._table = table
        self._reader = PopReader(node, node.pop.reviver)
        self._cores: dict[tuple[str, str], Subscription] = {}
        """By group and light queue: those of which something is out."""
        self._polls: dict[ClientKey, _Polls] = {}
        self._attempts: dict[ClientKey, tuple[str, list[str]]] = {}
        """The attempt id of each client's last answer, and the light queues that it came from."""
        self._gone: set[str] = set()
        self._count = 0
        self.waiting = 0

    # Handlers and events.

    def receive(
        self, request: v2.ReceiveMessageRequest, ctx: RequestContext
    ) -> list[bytes] | asyncio.Future[list[bytes]]:
        """ReceiveMessage for a lite group. Raises WireError."""
        node = self._node
        poll_ms = poll_time_ms(node, request, ctx, node.clock.steady_ns())
        asked = checked(node, request, ctx)
        key = self._check(asked)
        polls = self._polls.get(key)
        more = False
        if polls is None or asked.attempt_id:
            popped = self._pop(key, asked)
            if popped.turn.items:
                return self._deliver(popped, ctx)
            more = popped.more
        if poll_ms <= 0:
            return node.pop.failure(WireError(v2.MESSAGE_NOT_FOUND, "no new message"))
        if self.waiting + node.pop.waiting >= node.config.pop_polling_size:
            raise WireError(v2.TOO_MANY_REQUESTS, "[POLLING_FULL] too many polls wait: flow limit")
        answer = self._park(key, asked, ctx, poll_ms)
        if more:
            self._schedule(key)
        return answer

    def wake(self, clients: list[LiteClient]) -> None:
        """These have something to look at."""
        for client in clients:
            self._schedule(client.key)

    def client_gone(self, key: ClientKey) -> None:
        """The client's polls end now; what was renewed for it comes back in a second."""
        for number in list(self._polls[key].waiters) if key in self._polls else ():
            self._give_up(key, number)
        self._attempts.pop(key, None)
        if self._cores and not self._gone:
            # Clients often go together; what is out is searched once a turn.
            self._node.loop.call_soon(self._release_gone)
        if self._cores:
            self._gone.add(key[1])

    def left(self, key: ClientKey) -> None:
        """The client subscribes to nothing any more: its last answer counts no more."""
        self._attempts.pop(key, None)

    def _release_gone(self) -> None:
        gone, self._gone = self._gone, set()
        visible_ms = self._node.clock.wall_ms() + UNDELIVERED_MS
        for sub in self.subscriptions():
            sub.core.clients_gone(gone, visible_ms)
            self._node.pop.watch(sub)

    def due(self, sub: Subscription) -> None:
        """The time of what is out is over."""
        core = sub.core
        if self._cores.get((core.group, core.topic)) is not sub:
            return
        core.expire(self._node.clock.wall_ms(), self._node.pop.reviver.alive)
        self._unlocked(sub)

    def close(self) -> None:
        """Answer every poll."""
        for key, polls in list(self._polls.items()):
            for number in list(polls.waiters):
                self._give_up(key, number)

    def forget(self) -> None:
        """Somebody else leads: nothing is out here any more."""
        self.close()
        self._cores.clear()
        self._attempts.clear()

    def forget_queue(self, queue: str, group: str | None = None) -> None:
        """A lite topic has ended, or begins anew for a group: nothing of it is out."""
        groups = [k[0] for k in self._cores if k[1] == queue] if group is None else [group]
        for name in groups:
            self._cores.pop((name, queue), None)

    def progress(self, queue: str, group: str) -> tuple[int, int] | None:
        """How far a group has read in a lite topic, and what is out; None: nothing is."""
        sub = self._cores.get((group, queue))
        if sub is None or QUEUE not in sub.core.queues:
            return None
        return sub.core.queues[QUEUE].next_read, sub.core.in_flight(QUEUE)

    def subscriptions(self) -> Iterator[Subscription]:
        """The state of every lite topic of which something is out, as of now."""
        return iter(list(self._cores.values()))

    # What acknowledgements need.

    def state(self, group: str, queue: str) -> tuple[OrderedGroup, OrderedQueue]:
        """The state of a lite topic, made when there is none."""
        core = self._subscription(group, queue).core
        assert isinstance(core, OrderedGroup)
        return core, self._reader.ordered(core, QUEUE)

    def ack(self, group: str, queue: str, claim: DeliveryRef, now_ms: int) -> Outcome:
        """The consumer is done with a message; `settle` follows."""
        return self.state(group, queue)[0].ack(claim, now_ms)

    def settle(self, group: str, queue: str) -> None:
        """After a change: save the offset, and see who may go on."""
        sub = self._subscription(group, queue)
        self._reader.save(sub.core, QUEUE)
        self._unlocked(sub)

    # The way of one request.

    def _check(self, asked: PopRequest) -> ClientKey:
        """Whether the group may consume lite topics of this parent."""
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
            node = self._node
            limit = node.config.pop_inflight_message_threshold
            core = OrderedGroup(queue, group, limit, node.clock.wall_ms())
            sub = self._cores[group, queue] = Subscription(core, on_due=self.due)
            node.pop.restore_order(core)
        return sub

    def _pop(self, key: ClientKey, asked: PopRequest) -> LiteTurn:
        now_ms = self._node.clock.wall_ms()
        popped = LiteTurn(PopTurn(self._node, asked, now_ms, FIFO_REVIVE_QUEUE))
        before, queues = self._attempts.get(key, ("", []))
        if asked.attempt_id and asked.attempt_id == before:
            for queue in queues:  # the answer was lost: the same messages again
                self._pop_queue(popped, asked.group.name, queue)
        client = self._table.get(key)
        looks = 0
        while client is not None and not popped.turn.full:
            if looks == _LOOKS_MAX:
                popped.more = True
                break
            looks += 1
            taken = self._table.take(client, partial(self._known, client.parent))
            if taken is None:
                break
            self._pop_queue(popped, asked.group.name, taken)
        popped.turn.count()
        if popped.given and asked.attempt_id:
            queues = [core.topic for core, _ in popped.given][:_ATTEMPT_QUEUES_MAX]
            self._attempts[key] = asked.attempt_id, queues
        return popped

    def _known(self, parent: str) -> list[str]:
        """Every lite topic of a parent, for a wildcard client that missed some."""
        names = self._node.store.lmqs()
        return [name for name in names if (parse_queue(name) or ("",))[0] == parent]

    def _pop_queue(self, popped: LiteTurn, group: str, queue: str) -> None:
        sub = self._subscription(group, queue)
        core, turn = sub.core, popped.turn
        assert isinstance(core, OrderedGroup)
        core.expire(turn.now_ms, self._node.pop.reviver.alive)
        state = self._reader.ordered(core, QUEUE)
        turn.more = False
        self._reader.pop_ordered(core, state, turn)
        for given in turn.given.values():
            popped.given.append((core, given))
        turn.given = {}
        self._unlocked(sub, told=turn.request.client_id)
        popped.more |= turn.more

    def _unlocked(self, sub: Subscription, told: str = "") -> None:
        """See what a lite topic needs next: its lock's end, a consumer, or nothing."""
        core = sub.core
        assert isinstance(core, OrderedGroup)
        state = self._reader.ordered(core, QUEUE)
        self._node.pop.watch(sub)
        if not core.open_for(state, self._node.clock.wall_ms(), ""):
            return
        if state.committed < self._node.store.max_offset(core.topic, 0):
            parent, _ = parse_queue(core.topic) or ("", "")
            clients = self._table.ready(core.topic, parent, core.group)
            self.wake([client for client in clients if client.key[1] != told])
        if core.idle():
            self._cores.pop((core.group, core.topic), None)

    def _deliver(self, popped: LiteTurn, ctx: RequestContext) -> list[bytes]:
        ctx.on_undelivered = partial(self._undelivered, popped)
        return self._node.pop.found(popped.turn.items)

    def _undelivered(self, popped: LiteTurn) -> None:
        visible_ms = self._node.clock.wall_ms() + UNDELIVERED_MS
        for core, given in popped.given:
            sub = self._cores.get((core.group, core.topic))
            if sub is not None and sub.core is core:
                core.release(QUEUE, given, visible_ms)
                self._node.pop.watch(sub)

    # Waiting.

    def _park(
        self, key: ClientKey, asked: PopRequest, ctx: RequestContext, poll_ms: int
    ) -> asyncio.Future[list[bytes]]:
        loop = self._node.loop
        waiter = Waiter(asked, ctx, loop.create_future())
        self._count += 1
        number = self._count
        self._polls.setdefault(key, _Polls()).waiters[number] = waiter
        self.waiting += 1
        waiter.timer = loop.call_later(poll_ms / 1000, self._give_up, key, number)
        waiter.answer.add_done_callback(partial(self._left, key, number))
        return waiter.answer

    def _left(self, key: ClientKey, number: int, answer: asyncio.Future[list[bytes]]) -> None:
        if answer.cancelled():
            self._remove(key, number)

    def _remove(self, key: ClientKey, number: int) -> Waiter | None:
        polls = self._polls.get(key)
        waiter = polls.waiters.pop(number, None) if polls is not None else None
        if polls is None or waiter is None:
            return None
        self.waiting -= 1
        if waiter.timer is not None:
            waiter.timer.cancel()
        if not polls.waiters:
            del self._polls[key]
        return waiter

    def _give_up(self, key: ClientKey, number: int) -> None:
        waiter = self._remove(key, number)
        if waiter is not None and not waiter.answer.done():
            error = WireError(v2.MESSAGE_NOT_FOUND, "no new message")
            waiter.answer.set_result(self._node.pop.failure(error))

    def _schedule(self, key: ClientKey) -> None:
        """Serve the client's polls in this turn, once."""
        polls = self._polls.get(key)
        if polls is not None and not polls.scheduled:
            polls.scheduled = True
            self._node.loop.call_soon(self._serve, key, polls)

    def _serve(self, key: ClientKey, polls: _Polls) -> None:
        polls.scheduled = False
        while polls.waiters:
            number, waiter = next(iter(polls.waiters.items()))
            if waiter.answer.done():
                self._remove(key, number)
                continue
            popped = self._pop(key, waiter.request)
            if not popped.turn.items:
                if popped.more:
                    self._schedule(key)
                return
            self._remove(key, number)
            waiter.answer.set_result(self._deliver(popped, waiter.ctx))
