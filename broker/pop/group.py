"""Pop consumption of one group on one topic: who holds which message, until when. Pure.

The group has queues of the topic and of its retry topics (`retry.py`). Each has a read position, and
the messages below it that are not acknowledged. The consumer offset is the first of them that is not in
the journal (`journal/face.py`), or the read position; so it never passes a message that nobody would deliver
again, and nothing is lost with this state. What was filtered out counts as consumed.

When its invisible time is over, a message is `ready`: a leader copies it to the retry topic and `moves`
or `drops` it; who cannot write gives it out again in place, its attempt counted, before new ones (gRPC
API, sections 6.1 and 7; broker semantics, sections 1.7-1.11, 13.1). FIFO groups are in `pop/fifo/ordered_group.py`.

A handle from before `since_ms` was given out by another replica, or by this one before a restart: while
it has not expired, it is honoured. Time is passed in, in wall milliseconds. Nothing becomes visible early.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from .delivery import (
    RENEW_MAX_MS,
    RENEW_SLICE_MS,
    UNDELIVERED_MS,
    Alive,
    Delivery,
    DeliveryRef,
    Key,
    Outcome,
    PopOptions,
    next_pop_ms,
    renewal_ms,
)
from .queue import PopQueue
from .retry import queue_topics

__all__ = [
    "RENEW_MAX_MS",
    "RENEW_SLICE_MS",
    "UNDELIVERED_MS",
    "Alive",
    "DeliveryRef",
    "Delivery",
    "Key",
    "Outcome",
    "PopGroup",
    "PopQueue",
    "PopOptions",
    "next_pop_ms",
]

_HEAP_SLACK = 64
_ALL = 1 << 60


Expiry = tuple[int, PopQueue, tuple[int, ...]]
"""Deliveries of one queue that become visible together: when, the queue, the offsets."""
Taken = tuple[PopQueue, Delivery]


def _live(entry: Expiry) -> bool:
    """Whether any of the deliveries is still hidden until then."""
    visible_ms, queue, offsets = entry
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
    topics: tuple[str, str, str] = field(init=False)
    """Of the queues, by kind."""
    queues: dict[Key, PopQueue] = field(default_factory=dict)
    heap: list[Expiry] = field(default_factory=list)
    heap_limit: int = _HEAP_SLACK
    ready: deque[tuple[PopQueue, int]] = field(default_factory=deque)
    renewed: list[Taken] = field(default_factory=list)
    """Hidden further for a living owner by `expire`; whoever reads it empties it."""
    refused_until_ms: int = 0
    """The log has just refused copies: until then what is ready is given out in place."""
    given_up: list[Taken] = field(default_factory=list)
    """Renewed for three hours: hidden for a last slice, until somebody says for how long."""

    def __post_init__(self) -> None:
        self.topics = queue_topics(self.topic, self.group)

    def add_queue(self, key: Key, committed: int, handed_out: int = 0) -> PopQueue:
        """Start with a queue at its consumer offset."""
        queue = PopQueue(key, self.topics[key[0]], committed, committed, handed_out)
        self.queues[key] = queue
        return queue

    def in_flight(self, key: Key) -> int:
        """Messages given out and not acknowledged."""
        queue = self.queues.get(key)
        return len(queue.unacked) if queue else 0

    def room(self, queue: PopQueue) -> int:
        """How many more new messages of the queue may be in flight."""
        return self.in_flight_max - len(queue.unacked)

    def expire(self, now_ms: int, alive: Alive, limit: int = _ALL) -> bool:
        """Make ready what is due; a living owner's messages stay hidden instead.

        Stops when it has looked at about `limit` messages, acknowledged ones included; returns whether
        more is due.
        """
        heap = self.heap
        while heap and heap[0][0] <= now_ms:
            if limit <= 0:
                return True
            _, queue, offsets = heapq.heappop(heap)
            limit -= len(offsets)
            for offset in offsets:
                delivery = queue.unacked.get(offset)
                if delivery is None or delivery.ready or delivery.visible_ms > now_ms:
                    continue
                if delivery.owner and alive(delivery.owner):
                    self._renew(queue, delivery, now_ms)
                else:
                    delivery.ready = True
                    self.ready.append((queue, offset))
        return False

    def take_ready(self) -> Taken | None:
        """The next message whose time is over; `redeliver`, `postpone`, `move` or `drop` it."""
        while self.ready:
            queue, offset = self.ready.popleft()
            delivery = queue.unacked.get(offset)
            if delivery is not None and delivery.ready:
                return queue, delivery
        return None

    def put_back(self, taken: Collection[Taken]) -> None:
        """Nothing could be done with these now: they stay ready, before all others."""
        self.ready.extendleft((queue, delivery.offset) for queue, delivery in reversed([*taken]))

    def redeliver(self, queue: PopQueue, delivery: Delivery, terms: PopOptions) -> None:
        """Give out in place a message that `take_ready` returned."""
        delivery.pop_ms = delivery.since_ms = next_pop_ms(delivery, terms.now_ms)
        delivery.visible_ms = terms.now_ms + terms.invisible_ms
        delivery.attempt = delivery.attempts + 1
        delivery.counted = True
        delivery.owner = terms.owner
        delivery.ready = False
        self._hide(queue, (delivery.offset,), delivery.visible_ms)

    def restore(self, queue: PopQueue, delivery: Delivery) -> None:
        """A delivery that was in flight before a restart."""
        queue.unacked[delivery.offset] = delivery
        self._hide(queue, (delivery.offset,), delivery.visible_ms)

    def postpone(self, queue: PopQueue, delivery: Delivery, visible_ms: int) -> None:
        """It was taken and cannot be had now: look again at `visible_ms`."""
        delivery.ready = False
        delivery.owner = ""
        delivery.visible_ms = visible_ms
        self._hide(queue, (delivery.offset,), visible_ms)

    def drop(self, queue: PopQueue, offset: int) -> bool:
        """The message does not exist any more, or is elsewhere: it counts as consumed."""
        if queue.unacked.pop(offset, None) is None:
            return False
        queue.forget(offset)
        return True

    def move(self, queue: PopQueue, offset: int) -> None:
        """It was copied elsewhere; the consumer offset passes it when the copy is safe (`moved`).

        What the journal has may be passed before: it is open there until the copy is safe.
        """
        delivery = queue.unacked.pop(offset, None)
        if delivery is not None and delivery.stored:
            queue.forget(offset)
        elif delivery is not None:
            queue.moving.add(offset)

    def moved(self, queue: PopQueue, offset: int) -> None:
        """The copy is safe."""
        if offset in queue.moving:
            queue.moving.remove(offset)
            queue.forget(offset)

    def stored(self, queue: PopQueue, offsets: Iterable[int]) -> None:
        """The journal has these deliveries in the log: the consumer offset may pass them."""
        for offset in offsets:
            delivery = queue.unacked.get(offset)
            if delivery is not None:
                delivery.stored = True
        queue.settle()

    def wanted(self, queue: PopQueue, offset: int) -> bool:
        """Whether a message at or above the read position is to be given out."""
        return (
            offset not in queue.unacked and offset not in queue.skips and offset not in queue.moving
        )

    def deliver(
        self, queue: PopQueue, offsets: Sequence[int], next_read: int, terms: PopOptions
    ) -> None:
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

    def judge(self, claim: DeliveryRef, now_ms: int) -> Outcome:
        """What `ack` would answer."""
        queue = self.queues[claim.key]
        delivery = queue.unacked.get(claim.offset)
        if delivery is not None:
            if delivery.known_by(claim.pop_ms) or self._foreign(claim, now_ms):
                return Outcome.DONE
            return Outcome.STALE
        return self._judge_done(queue, claim, now_ms)

    def ack(self, claim: DeliveryRef, now_ms: int) -> Outcome:
        """The consumer is done with a message."""
        outcome = self.judge(claim, now_ms)
        if outcome is Outcome.DONE:
            queue = self.queues[claim.key]
            queue.unacked.pop(claim.offset, None)
            queue.forget(claim.offset)
        return outcome

    def change(
        self, claim: DeliveryRef, now_ms: int, invisible_ms: int, count: bool = True
    ) -> tuple[Outcome, Delivery | None]:
        """Hide a message for `invisible_ms` from now; without `count` the next attempt is free."""
        queue = self.queues[claim.key]
        delivery = queue.unacked.get(claim.offset)
        if delivery is None:
            outcome = self._judge_done(queue, claim, now_ms)
            if outcome is not Outcome.DONE or self.room(queue) <= 0:
                return (Outcome.STALE if outcome is Outcome.DONE else outcome), None
            delivery = queue.unacked[claim.offset] = Delivery(claim.offset, claim.pop_ms, 0, 1)
        elif not delivery.known_by(claim.pop_ms):
            return Outcome.STALE, None
        # The consumer has taken the time into its own hands: nothing is renewed any more.
        delivery.owner = ""
        delivery.counted = count
        self.hide(queue, delivery, now_ms, invisible_ms)
        return Outcome.DONE, delivery

    def hide(self, queue: PopQueue, delivery: Delivery, now_ms: int, invisible_ms: int) -> None:
        """The delivery goes on under a new pop time, for `invisible_ms` from now."""
        delivery.ready = False
        delivery.pop_ms = next_pop_ms(delivery, now_ms)
        delivery.visible_ms = max(now_ms + invisible_ms, delivery.pop_ms)
        self._hide(queue, (delivery.offset,), delivery.visible_ms)

    def release(self, key: Key, given: Iterable[tuple[int, int]], visible_ms: int) -> None:
        """Deliveries (offset, pop time) did not reach the client: visible at `visible_ms`."""
        queue = self.queues[key]
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
            self.release(queue.key, theirs, visible_ms)

    def idle(self) -> bool:
        """Whether nothing would be lost with this state: it is what a fresh one would be."""
        return not any(q.unacked or q.skips or q.moving for q in self.queues.values())

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
        hidden = {(q.key, o, visible) for visible, q, offsets in self.heap for o in offsets}
        ready = {(queue.key, offset) for queue, offset in self.ready}
        for key, queue in self.queues.items():
            assert queue.key == key and queue.topic == self.topics[key[0]], queue
            assert queue.committed <= queue.next_read, queue
            assert all(offset >= queue.next_read for offset in queue.skips), queue
            assert not queue.skips & queue.unacked.keys(), queue
            assert not queue.moving & queue.unacked.keys(), queue
            kept = queue.moving | {o for o, d in queue.unacked.items() if not d.stored}
            below = [offset for offset in kept if offset < queue.next_read]
            assert queue.committed == min(below, default=queue.next_read), queue
            for offset, delivery in queue.unacked.items():
                assert offset == delivery.offset, (offset, delivery)
                assert delivery.attempt >= 1 and delivery.since_ms <= delivery.pop_ms, delivery
                if delivery.ready:
                    assert (key, offset) in ready, delivery
                else:
                    assert (key, offset, delivery.visible_ms) in hidden, delivery
        assert len(self.heap) <= self.heap_limit, (len(self.heap), self.heap_limit)

    def _judge_done(self, queue: PopQueue, claim: DeliveryRef, now_ms: int) -> Outcome:
        """Of a message that is not in flight here."""
        offset = claim.offset
        if offset < queue.next_read or offset in queue.skips or offset in queue.moving:
            # Acknowledged before, or its time is over and it was copied: the handle itself tells.
            return Outcome.CONSUMED if now_ms < claim.expires_ms else Outcome.STALE
        if self._foreign(claim, now_ms) and len(queue.skips) < self.in_flight_max:
            return Outcome.DONE
        return Outcome.STALE

    def _foreign(self, claim: DeliveryRef, now_ms: int) -> bool:
        return claim.pop_ms < self.since_ms and now_ms < claim.expires_ms

    def _renew(self, queue: PopQueue, delivery: Delivery, now_ms: int) -> None:
        slice_ms = renewal_ms(now_ms - delivery.since_ms)
        if slice_ms == 0:
            delivery.owner = ""
            self.given_up.append((queue, delivery))
        else:
            self.renewed.append((queue, delivery))
        self.hide(queue, delivery, now_ms, slice_ms or RENEW_SLICE_MS)

    def _hide(self, queue: PopQueue, offsets: Iterable[int], visible_ms: int) -> None:
        # A tuple is half the size of a list of one.
        heapq.heappush(self.heap, (visible_ms, queue, tuple(offsets)))
        if len(self.heap) >= self.heap_limit:
            # An acknowledged batch leaves its entry behind until its time comes. Sweeping when the
            # heap has doubled bounds it by what is in flight, at a constant cost for each entry.
            self.heap = [entry for entry in self.heap if _live(entry)]
            heapq.heapify(self.heap)
            self.heap_limit = _HEAP_SLACK + 2 * len(self.heap)
