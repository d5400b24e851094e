"""Pop group: the pop consumption of one group on one topic, without order. Pure.

The group has queues of the topic and of its retry topics (`names/retry.py`). Each has a read
position, and below it the unacknowledged messages. The consumer offset is the first of them that is
not in the journal (`journal_api.py`), or the read position; so it never passes a message that would
not be redelivered, and losing this state loses no message. Filtered messages count as consumed.

A message whose invisible time is over is `ready`: a leader copies it to the retry topic and `moves`
or `drops` it; a replica that cannot write redelivers it in place, with the next attempt number,
before new messages (docs/formats/grpc-api.md, sections 6.1 and 7; docs/formats/broker-semantics.md,
sections 1.7-1.11, 13.1). FIFO groups are in `pop/fifo/ordered_group.py`.

A handle from before `since_ms` was issued by another replica, or by this one before a restart: it
is accepted until it expires. Time is passed in, in wall milliseconds. Nothing becomes visible
early.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ..names.delivery import (
    RENEW_SLICE_MS,
    Alive,
    Delivery,
    DeliveryRef,
    Key,
    Outcome,
    PopOptions,
    next_pop_ms,
    renewal_ms,
)
from ..names.retry import queue_topics
from .queue import PopQueue

_HEAP_SLACK = 64
_ALL = 1 << 60
#: Each delivery of a message has a later pop time than the one before: several in a millisecond are
#: ahead of the clock.
_SAME_TIME_MS = 1_000


#: Deliveries of one queue that become visible together: time, queue, offsets.
Expiry = tuple[int, PopQueue, tuple[int, ...]]
Taken = tuple[PopQueue, Delivery]


def _live(entry: Expiry) -> bool:
    """Return whether any of the deliveries is still hidden until that time."""
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
    #: Per queue: the limit of messages in flight.
    in_flight_max: int
    #: Handles with earlier pop times are from another instance.
    since_ms: int
    #: By kind and id.
    topics: tuple[str, str, str] = field(init=False)
    queues: dict[Key, PopQueue] = field(default_factory=dict)
    heap: list[Expiry] = field(default_factory=list)
    heap_limit: int = _HEAP_SLACK
    ready: deque[tuple[PopQueue, int]] = field(default_factory=deque)
    #: Deliveries renewed by `expire` for active clients; the reader clears the list.
    renewed: list[Taken] = field(default_factory=list)
    #: The log has refused copies: until this time ready messages are redelivered in place.
    refused_until_ms: int = 0
    #: Deliveries renewed for three hours: hidden for a last time, until the caller sets for how
    #: long.
    given_up: list[Taken] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topics = queue_topics(self.topic, self.group)

    def add_queue(self, key: Key, committed: int, handed_out: int = 0) -> PopQueue:
        """Add a queue at its consumer offset."""
        queue = PopQueue(key, self.topics[key[0]], committed, committed, handed_out)
        self.queues[key] = queue
        return queue

    def progress(self, key: Key, _now_ms: int, _alive: Alive) -> tuple[int, int]:
        """Return the read offset and the delivered, unacknowledged messages: those below the read
        offset that are not consumed, because a due one is copied or delivered first."""
        queue = self.queues[key]
        return queue.next_read, len(queue.unacked)

    def free_slots(self, queue: PopQueue) -> int:
        """Return how many more new messages of the queue may be in flight."""
        return self.in_flight_max - len(queue.unacked)

    def expire(self, now_ms: int, alive: Alive, limit: int = _ALL) -> bool:
        """Make due messages ready, except those of active clients, which are renewed.

        Stops after about `limit` messages, acknowledged ones included; returns whether more are
        due.
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
        """Return the next ready message; pass it to `redeliver`, `postpone`, `move` or `drop`."""
        while self.ready:
            queue, offset = self.ready.popleft()
            delivery = queue.unacked.get(offset)
            if delivery is not None and delivery.ready:
                return queue, delivery
        return None

    def put_back(self, taken: Collection[Taken]) -> None:
        """Return messages that could not be processed; they stay ready, before all others."""
        self.ready.extendleft((queue, delivery.offset) for queue, delivery in reversed([*taken]))

    def redeliver(self, queue: PopQueue, delivery: Delivery, terms: PopOptions) -> None:
        """Redeliver in place a message that `take_ready` returned."""
        delivery.pop_ms = delivery.since_ms = next_pop_ms(delivery, terms.now_ms)
        delivery.visible_ms = terms.now_ms + terms.invisible_ms
        delivery.attempt = delivery.attempts + 1
        delivery.counted = True
        delivery.owner = terms.owner
        delivery.ready = False
        self._hide(queue, (delivery.offset,), delivery.visible_ms)

    def restore(self, queue: PopQueue, delivery: Delivery) -> None:
        """Add a delivery that was in flight before a restart."""
        queue.unacked[delivery.offset] = delivery
        self._hide(queue, (delivery.offset,), delivery.visible_ms)

    def postpone(self, queue: PopQueue, delivery: Delivery, visible_ms: int) -> None:
        """Retry a message that `take_ready` returned at `visible_ms`: it cannot be read now."""
        delivery.ready = False
        delivery.owner = ""
        delivery.visible_ms = visible_ms
        self._hide(queue, (delivery.offset,), visible_ms)

    def drop(self, queue: PopQueue, offset: int) -> bool:
        """Count a message that does not exist any more, or was copied, as consumed."""
        if queue.unacked.pop(offset, None) is None:
            return False
        queue.forget(offset)
        return True

    def move(self, queue: PopQueue, offset: int) -> None:
        """Record that a message was copied; the consumer offset passes it once the copy is durable
        (`moved`).

        Journalled messages may be passed before: they are open in the journal until the copy is
        durable.
        """
        delivery = queue.unacked.pop(offset, None)
        if delivery is not None:
            queue.moving[offset] = not delivery.stored
            if delivery.stored:
                queue.forget(offset)

    def moved(self, queue: PopQueue, offset: int) -> None:
        """Record that the copy is durable."""
        if queue.moving.pop(offset, False):
            queue.forget(offset)

    def stored(self, queue: PopQueue, offsets: Iterable[int]) -> None:
        """Record that the journal has these deliveries in the log: the consumer offset may pass
        them.
        """
        for offset in offsets:
            delivery = queue.unacked.get(offset)
            if delivery is not None:
                delivery.stored = True
        queue.settle()

    def wanted(self, queue: PopQueue, offset: int) -> bool:
        """Return whether a message at or above the read position is to be delivered."""
        return (
            offset not in queue.unacked and offset not in queue.skips and offset not in queue.moving
        )

    def deliver(
        self, queue: PopQueue, offsets: Sequence[int], next_read: int, terms: PopOptions
    ) -> None:
        """Deliver new messages; everything else below `next_read` counts as consumed."""
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
        """Return what `ack` would return."""
        queue = self.queues[claim.key]
        delivery = queue.unacked.get(claim.offset)
        if delivery is not None:
            if delivery.known_by(claim.pop_ms) or self._foreign(claim, now_ms):
                return Outcome.DONE
            return Outcome.STALE
        return self._judge_done(queue, claim, now_ms)

    def ack(self, claim: DeliveryRef, now_ms: int) -> Outcome:
        """Acknowledge a message."""
        outcome = self.judge(claim, now_ms)
        if outcome is Outcome.DONE:
            queue = self.queues[claim.key]
            queue.unacked.pop(claim.offset, None)
            queue.forget(claim.offset)
        return outcome

    def change(
        self, claim: DeliveryRef, now_ms: int, invisible_ms: int, count: bool = True
    ) -> tuple[Outcome, Delivery | None]:
        """Hide a message for `invisible_ms` from now; without `count` the next attempt is not
        counted.
        """
        queue = self.queues[claim.key]
        delivery = queue.unacked.get(claim.offset)
        if delivery is None:
            outcome = self._judge_done(queue, claim, now_ms)
            if outcome is not Outcome.DONE or self.free_slots(queue) <= 0:
                return (Outcome.STALE if outcome is Outcome.DONE else outcome), None
            delivery = queue.unacked[claim.offset] = Delivery(claim.offset, claim.pop_ms, 0, 1)
        elif not delivery.known_by(claim.pop_ms):
            return Outcome.STALE, None
        # The consumer controls the invisible time itself: renewals end.
        delivery.owner = ""
        delivery.counted = count
        self.hide(queue, delivery, now_ms, invisible_ms)
        return Outcome.DONE, delivery

    def hide(self, queue: PopQueue, delivery: Delivery, now_ms: int, invisible_ms: int) -> None:
        """Continue the delivery under a new pop time, for `invisible_ms` from now."""
        delivery.ready = False
        delivery.pop_ms = next_pop_ms(delivery, now_ms)
        delivery.visible_ms = max(now_ms + invisible_ms, delivery.pop_ms)
        self._hide(queue, (delivery.offset,), delivery.visible_ms)

    def release(self, key: Key, given: Iterable[tuple[int, int]], visible_ms: int) -> None:
        """Make deliveries (offset, pop time) that did not reach the client visible at
        `visible_ms`.
        """
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
        """Make messages renewed for these clients visible at `visible_ms`."""
        for queue in self.queues.values():
            theirs = [(d.offset, d.pop_ms) for d in queue.unacked.values() if d.owner in client_ids]
            self.release(queue.key, theirs, visible_ms)

    def idle(self) -> bool:
        """Return whether the state equals a fresh one and can be dropped."""
        return not any(q.unacked or q.skips or q.moving for q in self.queues.values())

    def next_visible_ms(self) -> int | None:
        """Return when something may become ready next; 0 if something is ready."""
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
        """Check the invariants; for tests and simulations."""
        hidden = {(q.key, o, visible) for visible, q, offsets in self.heap for o in offsets}
        ready = {(queue.key, offset) for queue, offset in self.ready}
        for key, queue in self.queues.items():
            assert queue.key == key and queue.topic == self.topics[key[0]], queue
            assert queue.committed <= queue.next_read, queue
            assert all(offset >= queue.next_read for offset in queue.skips), queue
            assert not queue.skips & queue.unacked.keys(), queue
            assert not queue.moving.keys() & queue.unacked.keys(), queue
            kept = {o for o, waits in queue.moving.items() if waits}
            kept |= {o for o, d in queue.unacked.items() if not d.stored}
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
        """Return the outcome for a message that is not in flight here."""
        offset = claim.offset
        if offset in queue.moving:
            return Outcome.STALE
        if offset < queue.next_read or offset in queue.skips:
            # Acknowledged before, or expired and copied: the handle itself shows which, unless the
            # time was shortened after it (`pop/copies.py`). While the clock is behind its pop time
            # (it was set back between two runs), it may be either.
            valid = claim.pop_ms - _SAME_TIME_MS <= now_ms < claim.expires_ms
            return Outcome.CONSUMED if valid else Outcome.STALE
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
            # An acknowledged batch leaves its heap entry until its time. Sweeping whenever the heap
            # has doubled bounds it by the messages in flight, at constant cost per entry.
            self.heap = [entry for entry in self.heap if _live(entry)]
            heapq.heapify(self.heap)
            self.heap_limit = _HEAP_SLACK + 2 * len(self.heap)
