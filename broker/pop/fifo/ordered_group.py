"""Pop consumption of a FIFO group: a queue is locked while a batch of it is out. Pure.

Rules: gRPC API, section 7.4; broker semantics, section 1.9. One batch of a queue is out at a time.
The next pop of the queue starts at the first message that is not acknowledged, and is allowed when
every such message of the batch is visible again, when all are acknowledged, or when the request
carries the attempt id of the one that got the batch (its answer was lost: the same messages again,
their attempts unchanged). After an expiry the whole rest of the batch comes again, the acknowledged
ones behind the first un-acknowledged one included, as the reference does it. The lock is per queue,
not per message group: a single receiver sees the same order either way.

Handles of another replica (pop times before `since_ms`) are honoured while they have not expired.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from ..delivery import Alive, Claim, Delivery, Key, Outcome, Terms, renewal_ms
from ..retry import NORMAL


@dataclass(slots=True)
class Batch:
    """The messages of a queue that were given out last."""

    pop_ms: int
    visible_ms: int
    """For every message without an entry in `visible`."""
    attempt_id: str
    """Empty when the request had none: it then matches nothing."""
    offsets: list[int]
    next_read: int
    """What lies between the offsets and below this was filtered out: consumed."""
    attempts: dict[int, int]
    owner: str
    since_ms: int
    acked: set[int] = field(default_factory=set)
    visible: dict[int, int] = field(default_factory=dict)
    """Times of single messages whose invisibility was changed."""
    uncounted: set[int] = field(default_factory=set)
    """The next delivery of these is not counted as an attempt."""

    def unacked(self) -> list[int]:
        """In order."""
        return [offset for offset in self.offsets if offset not in self.acked]

    def unblocked_ms(self) -> int | None:
        """When the last un-acknowledged message is visible again; None when there is none."""
        times = [self.visible.get(offset, self.visible_ms) for offset in self.unacked()]
        return max(times) if times else None


@dataclass(slots=True)
class OrderedQueue:
    """One queue, as a FIFO group sees it."""

    queue_id: int
    """Within the topic."""
    committed: int
    """The consumer offset: the first message that is not acknowledged, and where a pop starts."""
    handed_out: int = 0
    """Everything below was delivered by some replica, as far as is known."""
    batch: Batch | None = None
    skips: set[int] = field(default_factory=set)
    """Offsets above `committed`, outside the batch, that another replica's handle acknowledged."""

    @property
    def key(self) -> Key:
        """As its group knows it."""
        return NORMAL, self.queue_id

    @property
    def next_read(self) -> int:
        """The end of what this node has looked at."""
        return max(self.committed, self.batch.next_read) if self.batch else self.committed

    def settle(self) -> None:
        """Move the consumer offset up to the first message that is not acknowledged."""
        if self.batch is not None:
            unacked = self.batch.unacked()
            self.committed = max(self.committed, unacked[0] if unacked else self.batch.next_read)
        while self.committed in self.skips:
            self.skips.remove(self.committed)
            self.committed += 1

    def jump(self, offset: int) -> list[int]:
        """The group starts at `offset`; the lock is gone. No journal has to be told of anything."""
        self.committed = offset
        self.batch = None
        self.skips.clear()
        return []

    def advance_to(self, offset: int) -> list[int]:
        """Another replica has consumed everything below `offset`; returns nothing, like `jump`."""
        if offset <= self.committed:
            return []
        if self.batch is not None:
            self.batch.acked.update(o for o in self.batch.offsets if o < offset)
        self.skips = {o for o in self.skips if o >= offset}
        self.committed = offset
        self.settle()
        return []


@dataclass(slots=True)
class OrderedGroup:
    """One FIFO group on one topic."""

    topic: str
    group: str
    in_flight_max: int
    since_ms: int
    queues: dict[Key, OrderedQueue] = field(default_factory=dict)
    """All of them of the topic itself: a FIFO group has no retry topic."""

    def add_queue(self, key: Key, committed: int, handed_out: int = 0) -> OrderedQueue:
        """Start with a queue at its consumer offset."""
        queue = self.queues[key] = OrderedQueue(key[1], committed, handed_out)
        return queue

    def in_flight(self, key: Key) -> int:
        """Messages given out and not acknowledged."""
        queue = self.queues.get(key)
        return len(queue.batch.unacked()) if queue and queue.batch else 0

    def open_for(self, queue: OrderedQueue, now_ms: int, attempt_id: str) -> bool:
        """Whether the queue may be popped by a request with this attempt id."""
        batch = queue.batch
        if batch is None or (attempt_id and attempt_id == batch.attempt_id):
            return True
        unblocked_ms = batch.unblocked_ms()
        return unblocked_ms is None or unblocked_ms <= now_ms

    def expire(self, now_ms: int, alive: Alive, last: Callable[[int], int] | None = None) -> None:
        """Keep the batches of living push consumers hidden; time alone opens the others.

        After three hours a batch is hidden once more, for what `last` says of the attempts before.
        """
        for queue in self.queues.values():
            batch = queue.batch
            if batch is None or not batch.owner or batch.visible_ms > now_ms:
                continue
            slice_ms = renewal_ms(now_ms - batch.since_ms)
            if not alive(batch.owner):
                continue
            if slice_ms == 0:
                batch.owner = ""
                if last is not None:
                    slice_ms = last(max(batch.attempts.values()) - 1)
            batch.visible_ms = now_ms + slice_ms

    def wanted(self, queue: OrderedQueue, offset: int) -> bool:
        """Whether a message at or above the read position is to be given out."""
        return offset not in queue.skips

    def pop_ms(self, queue: OrderedQueue, now_ms: int) -> int:
        """The pop time of the queue's next batch: never one that was used."""
        return max(now_ms, queue.batch.pop_ms + 1) if queue.batch else now_ms

    def attempt(self, queue: OrderedQueue, offset: int, attempt_id: str) -> int:
        """Which delivery of the message the next one is."""
        batch = queue.batch
        before = batch.attempts.get(offset, 0) if batch else 0
        if batch is None or before == 0:
            return 1
        again = attempt_id and attempt_id == batch.attempt_id
        return before if again or offset in batch.uncounted else before + 1

    def deliver(
        self, queue: OrderedQueue, offsets: list[int], next_read: int, terms: Terms
    ) -> None:
        """Give out a batch that starts at the consumer offset; it replaces the one before."""
        if not offsets:
            queue.batch = None
            queue.committed = max(queue.committed, next_read)
            queue.skips = {offset for offset in queue.skips if offset >= queue.committed}
            queue.settle()
            return
        attempts = {offset: self.attempt(queue, offset, terms.attempt_id) for offset in offsets}
        queue.batch = Batch(
            self.pop_ms(queue, terms.now_ms),
            terms.now_ms + terms.invisible_ms,
            terms.attempt_id,
            offsets,
            next_read,
            attempts,
            terms.owner,
            terms.now_ms,
        )
        queue.skips = {offset for offset in queue.skips if offset >= next_read}
        queue.committed = max(queue.committed, offsets[0])

    def judge(self, claim: Claim, now_ms: int) -> Outcome:
        """What `ack` would answer."""
        queue = self.queues[claim.key]
        batch = queue.batch
        if claim.offset < queue.committed or claim.offset in queue.skips:
            return Outcome.CONSUMED
        foreign = claim.pop_ms < self.since_ms and now_ms < claim.expires_ms
        if batch is not None and claim.offset in batch.attempts:
            if batch.pop_ms != claim.pop_ms and not foreign:
                return self._stale(claim, now_ms)
            return Outcome.CONSUMED if claim.offset in batch.acked else Outcome.DONE
        if foreign and len(queue.skips) < self.in_flight_max:
            return Outcome.DONE
        return self._stale(claim, now_ms)

    def ack(self, claim: Claim, now_ms: int) -> Outcome:
        """The consumer is done with a message."""
        outcome = self.judge(claim, now_ms)
        if outcome is Outcome.DONE:
            queue = self.queues[claim.key]
            if queue.batch is not None and claim.offset in queue.batch.attempts:
                queue.batch.acked.add(claim.offset)
            else:
                queue.skips.add(claim.offset)
            queue.settle()
        return outcome

    def change(
        self, claim: Claim, now_ms: int, invisible_ms: int, count: bool = True
    ) -> tuple[Outcome, Delivery | None]:
        """Hide a message for `invisible_ms` from now; without `count` the next attempt is free."""
        queue = self.queues[claim.key]
        batch = queue.batch
        if claim.offset < queue.committed or claim.offset in queue.skips:
            return Outcome.CONSUMED, None
        if batch is None or batch.pop_ms != claim.pop_ms or claim.offset not in batch.attempts:
            return self._stale(claim, now_ms), None
        if claim.offset in batch.acked:
            return Outcome.CONSUMED, None
        visible_ms = batch.visible[claim.offset] = now_ms + invisible_ms
        if not count:
            batch.uncounted.add(claim.offset)
        return Outcome.DONE, Delivery(
            claim.offset, batch.pop_ms, visible_ms, batch.attempts[claim.offset]
        )

    def release(self, key: Key, given: Iterable[tuple[int, int]], visible_ms: int) -> None:
        """Deliveries (offset, pop time) did not reach the client: visible at `visible_ms`."""
        batch = self.queues[key].batch
        if batch is not None:
            for offset, pop_ms in given:
                if pop_ms == batch.pop_ms and offset in batch.attempts:
                    batch.visible[offset] = visible_ms

    def clients_gone(self, client_ids: Collection[str], visible_ms: int) -> None:
        """What was renewed for these clients comes back at `visible_ms`."""
        for queue in self.queues.values():
            batch = queue.batch
            if batch is not None and batch.owner in client_ids:
                batch.owner = ""
                batch.visible_ms = min(batch.visible_ms, visible_ms)

    def idle(self) -> bool:
        """Whether nothing would be lost with this state: it is what a fresh one would be."""
        return all(
            not queue.skips and (queue.batch is None or not queue.batch.unacked())
            for queue in self.queues.values()
        )

    def next_visible_ms(self) -> int | None:
        """When a locked queue opens next by time alone."""
        times = [q.batch.unblocked_ms() for q in self.queues.values() if q.batch is not None]
        return min((time for time in times if time is not None), default=None)

    def validate(self) -> None:
        """The invariants; for tests and simulations."""
        for queue in self.queues.values():
            assert all(offset > queue.committed for offset in queue.skips), queue
            batch = queue.batch
            if batch is None:
                continue
            assert batch.offsets == sorted(batch.attempts), batch
            assert all(attempt >= 1 for attempt in batch.attempts.values()), batch
            assert batch.acked <= batch.attempts.keys(), batch
            assert batch.offsets[-1] < batch.next_read, batch
            unacked = batch.unacked()
            if unacked:
                assert queue.committed <= unacked[0], queue
            assert not queue.skips & batch.attempts.keys(), queue

    def _stale(self, claim: Claim, now_ms: int) -> Outcome:
        """A handle of an earlier batch does nothing; it is refused only when it has expired."""
        return Outcome.STALE if now_ms >= claim.expires_ms else Outcome.CONSUMED
