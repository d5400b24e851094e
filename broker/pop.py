"""Pop consumption of one group on one topic: who holds which message, until when. Pure.

Each queue has a read position, and the messages below it that are not acknowledged. The consumer
offset is the first of them (or the read position), so it never passes an un-acknowledged message and
nothing is lost with this state: it is in memory, and a restart delivers again. What was filtered out
counts as consumed. Redelivery is in place: when its invisible time is over, a message is given out
again, its attempt counted, before new ones (gRPC API, sections 6.1 and 7; broker semantics, sections
1.9-1.11, 13.1). FIFO groups are in `pop_fifo.py`.

A delivery is known by queue, offset and pop time; extending or ending its invisibility keeps the pop
time, so every handle of a delivery works for as long as the delivery lasts. A handle from before
`since_ms` was given out by another replica, or by this one before a restart: while it has not
expired, it is honoured.

Time is passed in, in wall milliseconds. Nothing becomes visible early.
"""

from __future__ import annotations

import enum
import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

RENEW_SLICE_MS = 60_000
"""A message of a push consumer stays hidden in slices of this, while the client is alive."""
RENEW_MAX_MS = 3 * 3_600_000
UNDELIVERED_MS = 1_000
"""What could not be written to the client, or belonged to one that left, comes back after this."""
_HEAP_SLACK = 64

Alive = Callable[[str], bool]


class Outcome(enum.Enum):
    """Of an acknowledgement or a change of the invisible time."""

    DONE = "done"
    CONSUMED = "consumed"
    """It had been acknowledged before: fine, nothing changed."""
    STALE = "stale"
    """Expired or redelivered: the handle is of no use any more."""


@dataclass(slots=True)
class Claim:
    """What a receipt handle says about a delivery."""

    queue_id: int
    offset: int
    pop_ms: int
    expires_ms: int


@dataclass(slots=True)
class Terms:
    """How one request gets its messages."""

    now_ms: int
    invisible_ms: int
    owner: str = ""
    """The client for which the invisible time is renewed while it lives."""
    attempt_id: str = ""
    """Of the request; only FIFO groups look at it."""


@dataclass(slots=True)
class Delivery:
    """A message that was given out and is not acknowledged."""

    offset: int
    pop_ms: int
    """Identity of the delivery; later ones of the same message have later times."""
    visible_ms: int
    attempt: int
    """1 for the first delivery."""
    owner: str = ""
    """The push consumer for which the invisible time is renewed."""
    since_ms: int = 0
    """When the owner got it: renewal ends three hours later."""
    ready: bool = False
    """The invisible time is over and it waits to be given out again."""


@dataclass(slots=True)
class PopQueue:
    """One queue, as one group sees it."""

    queue_id: int
    committed: int
    """The consumer offset: everything below is consumed."""
    next_read: int
    """The first offset that this node has not looked at."""
    handed_out: int = 0
    """Everything below was delivered by some replica, as far as is known."""
    unacked: dict[int, Delivery] = field(default_factory=dict)
    skips: set[int] = field(default_factory=set)
    """Offsets at or above `next_read` that another replica's handle acknowledged."""

    def settle(self) -> None:
        """Move the consumer offset up to the first message that is not acknowledged."""
        committed = self.committed
        if not self.unacked:
            self.committed = max(committed, self.next_read)
            return
        while committed < self.next_read and committed not in self.unacked:
            committed += 1
        self.committed = committed

    def jump(self, offset: int) -> None:
        """The group starts at `offset`: what was known about messages in flight is dropped."""
        self.committed = self.next_read = offset
        self.unacked.clear()
        self.skips.clear()

    def advance_to(self, offset: int) -> None:
        """Another replica has consumed everything below `offset`."""
        if offset <= self.committed:
            return
        for taken in [o for o in self.unacked if o < offset]:
            del self.unacked[taken]
        self.next_read = max(self.next_read, offset)
        self.skips = {o for o in self.skips if o >= self.next_read}
        self.committed = offset
        self.settle()


Expiry = tuple[int, int, PopQueue, Iterable[int]]
"""Deliveries of one queue that become visible together: when, a counter, the queue, the offsets."""


def _live(entry: Expiry) -> bool:
    """Whether any of the deliveries is still hidden until then."""
    visible_ms, _, queue, offsets = entry
    for offset in offsets:
        delivery = queue.unacked.get(offset)
        if delivery is not None and delivery.visible_ms == visible_ms and not delivery.ready:
            return True
    return False


@dataclass(slots=True)
class PopGroup:
    """One group on one topic."""

    topic: str
    group: str
    in_flight_max: int
    """Of each queue: beyond it no new messages are given out."""
    since_ms: int
    """Handles with earlier pop times are not from this life of this node."""
    queues: dict[int, PopQueue] = field(default_factory=dict)
    heap: list[Expiry] = field(default_factory=list)
    heap_limit: int = _HEAP_SLACK
    heap_count: int = 0
    ready: deque[tuple[PopQueue, int]] = field(default_factory=deque)

    def add_queue(self, queue_id: int, committed: int, handed_out: int = 0) -> PopQueue:
        """Start with a queue at its consumer offset."""
        queue = self.queues[queue_id] = PopQueue(queue_id, committed, committed, handed_out)
        return queue

    def in_flight(self, queue_id: int) -> int:
        """Messages given out and not acknowledged."""
        queue = self.queues.get(queue_id)
        return len(queue.unacked) if queue else 0

    def room(self, queue: PopQueue) -> int:
        """How many more new messages of the queue may be in flight."""
        return self.in_flight_max - len(queue.unacked)

    def expire(self, now_ms: int, alive: Alive) -> None:
        """Make ready what is due; a living owner's messages stay hidden instead."""
        while self.heap and self.heap[0][0] <= now_ms:
            _, _, queue, offsets = heapq.heappop(self.heap)
            renewed = []
            for offset in offsets:
                delivery = queue.unacked.get(offset)
                if delivery is None or delivery.ready or delivery.visible_ms > now_ms:
                    continue
                if delivery.owner and self._renewable(delivery, now_ms, alive):
                    delivery.visible_ms = now_ms + RENEW_SLICE_MS
                    renewed.append(offset)
                else:
                    delivery.ready = True
                    self.ready.append((queue, offset))
            if renewed:
                self._hide(queue, renewed, now_ms + RENEW_SLICE_MS)

    def take_ready(self) -> tuple[PopQueue, Delivery] | None:
        """The next message that is to be given out again; `redeliver`, `postpone` or `drop` it."""
        while self.ready:
            queue, offset = self.ready.popleft()
            delivery = queue.unacked.get(offset)
            if delivery is not None and delivery.ready:
                return queue, delivery
        return None

    def redeliver(self, queue: PopQueue, delivery: Delivery, terms: Terms) -> None:
        """Give out a message that `take_ready` returned."""
        delivery.pop_ms = next_pop_ms(delivery, terms.now_ms)
        delivery.visible_ms = terms.now_ms + terms.invisible_ms
        delivery.attempt += 1
        delivery.owner = terms.owner
        delivery.since_ms = terms.now_ms
        delivery.ready = False
        self._hide(queue, (delivery.offset,), delivery.visible_ms)

    def restore(self, queue: PopQueue, delivery: Delivery) -> None:
        """A delivery that was in flight before a restart."""
        queue.unacked[delivery.offset] = delivery
        self._hide(queue, (delivery.offset,), delivery.visible_ms)

    def postpone(self, queue: PopQueue, delivery: Delivery, visible_ms: int) -> None:
        """It was taken and cannot be read now: look again at `visible_ms`."""
        delivery.ready = False
        delivery.visible_ms = visible_ms
        self._hide(queue, (delivery.offset,), visible_ms)

    def drop(self, queue: PopQueue, offset: int) -> None:
        """The message does not exist any more, or goes elsewhere: it counts as consumed."""
        if queue.unacked.pop(offset, None) is not None:
            if offset >= queue.next_read:
                queue.skips.add(offset)
            elif offset == queue.committed:
                queue.settle()

    def wanted(self, queue: PopQueue, offset: int) -> bool:
        """Whether a message at or above the read position is to be given out."""
        return offset not in queue.unacked and offset not in queue.skips

    def deliver(self, queue: PopQueue, offsets: list[int], next_read: int, terms: Terms) -> None:
        """Give out new messages; everything else below `next_read` counts as consumed."""
        now_ms, owner = terms.now_ms, terms.owner
        visible_ms = now_ms + terms.invisible_ms
        unacked = queue.unacked
        for offset in offsets:
            unacked[offset] = Delivery(offset, now_ms, visible_ms, 1, owner, now_ms)
        if queue.skips:
            queue.skips = {offset for offset in queue.skips if offset >= next_read}
        queue.next_read = next_read
        if queue.committed not in unacked:
            queue.settle()
        if offsets:
            self._hide(queue, offsets, visible_ms)

    def judge(self, claim: Claim, now_ms: int) -> Outcome:
        """What `ack` would answer."""
        queue = self.queues[claim.queue_id]
        delivery = queue.unacked.get(claim.offset)
        if delivery is not None:
            if delivery.pop_ms == claim.pop_ms or self._foreign(claim, now_ms):
                return Outcome.DONE
            return Outcome.STALE
        if claim.offset < queue.next_read or claim.offset in queue.skips:
            return Outcome.CONSUMED
        if self._foreign(claim, now_ms) and len(queue.skips) < self.in_flight_max:
            return Outcome.DONE
        return Outcome.STALE

    def ack(self, claim: Claim, now_ms: int) -> Outcome:
        """The consumer is done with a message."""
        queue = self.queues[claim.queue_id]
        offset = claim.offset
        delivery = queue.unacked.get(offset)
        if delivery is None or delivery.pop_ms != claim.pop_ms:
            outcome = self.judge(claim, now_ms)
            if outcome is not Outcome.DONE:
                return outcome
        queue.unacked.pop(offset, None)
        if offset >= queue.next_read:
            queue.skips.add(offset)
        elif offset == queue.committed:
            queue.settle()
        return Outcome.DONE

    def change(
        self, claim: Claim, now_ms: int, invisible_ms: int, count: bool = True
    ) -> tuple[Outcome, Delivery | None]:
        """Hide a message for `invisible_ms` from now; without `count` the next attempt is free."""
        queue = self.queues[claim.queue_id]
        delivery = queue.unacked.get(claim.offset)
        if delivery is None:
            if claim.offset < queue.next_read or claim.offset in queue.skips:
                return Outcome.CONSUMED, None
            if not self._foreign(claim, now_ms) or self.room(queue) <= 0:
                return Outcome.STALE, None
            delivery = queue.unacked[claim.offset] = Delivery(claim.offset, claim.pop_ms, 0, 1)
        elif delivery.pop_ms != claim.pop_ms:
            return Outcome.STALE, None
        # The consumer has taken the time into its own hands: nothing is renewed any more.
        delivery.owner = ""
        delivery.ready = False
        delivery.visible_ms = now_ms + invisible_ms
        if not count:
            delivery.attempt -= 1
        self._hide(queue, (claim.offset,), delivery.visible_ms)
        return Outcome.DONE, delivery

    def release(self, queue_id: int, given: Iterable[tuple[int, int]], visible_ms: int) -> None:
        """Deliveries (offset, pop time) did not reach the client: visible at `visible_ms`."""
        queue = self.queues[queue_id]
        hidden = []
        for offset, pop_ms in given:
            delivery = queue.unacked.get(offset)
            if delivery is not None and delivery.pop_ms == pop_ms and not delivery.ready:
                delivery.owner = ""
                delivery.visible_ms = visible_ms
                hidden.append(offset)
        if hidden:
            self._hide(queue, hidden, visible_ms)

    def clients_gone(self, client_ids: Collection[str], visible_ms: int) -> None:
        """What was renewed for these clients comes back at `visible_ms`."""
        for queue in self.queues.values():
            theirs = [(d.offset, d.pop_ms) for d in queue.unacked.values() if d.owner in client_ids]
            self.release(queue.queue_id, theirs, visible_ms)

    def idle(self) -> bool:
        """Whether nothing would be lost with this state: it is what a fresh one would be."""
        return not any(queue.unacked or queue.skips for queue in self.queues.values())

    def next_visible_ms(self) -> int | None:
        """When something may become ready next; already ready things count as now (0)."""
        while self.ready:
            queue, offset = self.ready[0]
            delivery = queue.unacked.get(offset)
            if delivery is not None and delivery.ready:
                return 0
            self.ready.popleft()
        while self.heap and not _live(self.heap[0]):
            heapq.heappop(self.heap)
        return self.heap[0][0] if self.heap else None

    def validate(self) -> None:
        """The invariants; for tests and simulations."""
        hidden = {(q.queue_id, o, visible) for visible, _, q, offsets in self.heap for o in offsets}
        ready = {(queue.queue_id, offset) for queue, offset in self.ready}
        for queue in self.queues.values():
            assert queue.committed <= queue.next_read, queue
            assert all(offset >= queue.next_read for offset in queue.skips), queue
            assert not queue.skips & queue.unacked.keys(), queue
            below = [offset for offset in queue.unacked if offset < queue.next_read]
            assert queue.committed == min(below, default=queue.next_read), queue
            for offset, delivery in queue.unacked.items():
                assert offset == delivery.offset, (offset, delivery)
                assert delivery.attempt >= 0, delivery
                if delivery.ready:
                    assert (queue.queue_id, offset) in ready, delivery
                else:
                    assert (queue.queue_id, offset, delivery.visible_ms) in hidden, delivery
        assert len(self.heap) <= self.heap_limit, (len(self.heap), self.heap_limit)

    def _foreign(self, claim: Claim, now_ms: int) -> bool:
        return claim.pop_ms < self.since_ms and now_ms < claim.expires_ms

    def _renewable(self, delivery: Delivery, now_ms: int, alive: Alive) -> bool:
        return now_ms - delivery.since_ms < RENEW_MAX_MS and alive(delivery.owner)

    def _hide(self, queue: PopQueue, offsets: Iterable[int], visible_ms: int) -> None:
        self.heap_count += 1
        heapq.heappush(self.heap, (visible_ms, self.heap_count, queue, offsets))
        if len(self.heap) >= self.heap_limit:
            # An acknowledged batch leaves its entry behind until its time comes. Sweeping when the
            # heap has doubled bounds it by what is in flight, at a constant cost for each entry.
            self.heap = [entry for entry in self.heap if _live(entry)]
            heapq.heapify(self.heap)
            self.heap_limit = _HEAP_SLACK + 2 * len(self.heap)


def next_pop_ms(delivery: Delivery, now_ms: int) -> int:
    """The pop time of the next delivery of the same message: never one that was used."""
    return max(now_ms, delivery.pop_ms + 1)
