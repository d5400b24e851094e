"""FIFO group: pop consumption with a queue lock while a batch is in flight. Pure.

Rules: docs/formats/grpc-api.md, section 7.4; docs/formats/broker-semantics.md, section 1.9. A queue
has one batch in flight at a time. The next pop of the queue starts at the first unacknowledged
message, and is allowed when all unacknowledged messages of the batch are visible again, when all
messages are acknowledged, or when the request has the attempt id of the pop that got the batch (its
response was lost: it gets the same messages, with unchanged attempts). After an expiry the whole
rest of the batch is delivered again, including acknowledged messages after the first unacknowledged
one, as in the reference; those never become dead letters. The lock is per queue, not per message
group: a single receiver gets the same order either way.

Handles of another replica (pop times before `since_ms`) are accepted until they expire.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from msgspec import Struct, field

from ...names.delivery import Alive, Delivery, DeliveryRef, Key, Outcome, PopOptions, renewal_ms
from ...names.retry import NORMAL


class Batch(Struct):
    """The messages of a queue that were delivered last."""

    pop_ms: int
    #: For every message without an entry in `visible`.
    visible_ms: int
    #: Empty if the request had none; then it matches no other request.
    attempt_id: str
    offsets: list[int]
    #: Offsets in between and below this were filtered out: consumed.
    next_read: int
    attempts: dict[int, int]
    owner: str
    since_ms: int
    acked: set[int] = field(default_factory=set)
    #: Visible times of single messages whose invisible time was changed.
    visible: dict[int, int] = field(default_factory=dict)
    #: The next delivery of these is not counted as an attempt.
    uncounted: set[int] = field(default_factory=set)
    #: Offsets that were acknowledged in earlier batches, with the first or above it: delivered
    #: again, but never dead letters.
    acked_before: set[int] = field(default_factory=set)

    def unacked(self) -> list[int]:
        """Ascending."""
        return [offset for offset in self.offsets if offset not in self.acked]

    def unblocked_ms(self) -> int | None:
        """Return when the last unacknowledged message becomes visible again; None if there is
        none.
        """
        times = [self.visible.get(offset, self.visible_ms) for offset in self.unacked()]
        return max(times) if times else None

    def is_locked(self, now_ms: int, alive: Alive) -> bool:
        """Return whether the queue waits for it: an unacknowledged message is hidden, or the next
        pop renews it for an active client."""
        unblocked_ms = self.unblocked_ms()
        return unblocked_ms is not None and (
            unblocked_ms > now_ms or (self.owner != "" and alive(self.owner))
        )


class OrderedQueue(Struct):
    """One queue of a FIFO group."""

    #: Queue id within the topic.
    queue_id: int
    #: The consumer offset: the first unacknowledged message, where a pop starts.
    committed: int
    #: Messages below this offset were delivered at least once, by this or another replica.
    handed_out: int = 0
    batch: Batch | None = None
    #: Offsets above `committed`, outside the batch, acknowledged by handles of another replica.
    skips: set[int] = field(default_factory=set)

    @property
    def key(self) -> Key:
        """Key within its group."""
        return NORMAL, self.queue_id

    @property
    def next_read(self) -> int:
        """Return the end of what this node has delivered or filtered."""
        return max(self.committed, self.batch.next_read) if self.batch else self.committed

    def settle(self) -> None:
        """Move the consumer offset to the first unacknowledged message."""
        if self.batch is not None:
            unacked = self.batch.unacked()
            self.committed = max(self.committed, unacked[0] if unacked else self.batch.next_read)
        while self.committed in self.skips:
            self.skips.remove(self.committed)
            self.committed += 1

    def was_acked(self, offset: int) -> bool:
        """Return whether the message was acknowledged and is delivered again with its batch."""
        batch = self.batch
        return batch is not None and (offset in batch.acked or offset in batch.acked_before)

    def jump(self, offset: int) -> list[int]:
        """Restart the queue at `offset` and release the lock. There is no journal to update."""
        self.committed = offset
        self.batch = None
        self.skips.clear()
        return []

    def advance_to(self, offset: int) -> list[int]:
        """Skip everything below `offset`, which another replica has consumed; returns nothing, like
        `jump`.
        """
        if offset <= self.committed:
            return []
        if self.batch is not None:
            self.batch.acked.update(o for o in self.batch.offsets if o < offset)
        self.skips = {o for o in self.skips if o >= offset}
        self.committed = offset
        self.settle()
        return []


class OrderedGroup(Struct):
    """One FIFO group on one topic."""

    topic: str
    group: str
    in_flight_max: int
    since_ms: int
    #: Queues of the topic itself: a FIFO group has no retry topic.
    queues: dict[Key, OrderedQueue] = field(default_factory=dict)

    def add_queue(self, key: Key, committed: int, handed_out: int = 0) -> OrderedQueue:
        """Add a queue at its consumer offset."""
        queue = self.queues[key] = OrderedQueue(key[1], committed, handed_out)
        return queue

    def progress(self, key: Key, now_ms: int, alive: Alive) -> tuple[int, int]:
        """Return the read offset and the messages in flight: none after the lock ended, when the
        next pop reads again from the first unacknowledged one."""
        queue = self.queues[key]
        batch = queue.batch
        if batch is None or not batch.is_locked(now_ms, alive):
            return queue.committed, 0
        return queue.next_read, len(batch.unacked())

    def open_for(self, queue: OrderedQueue, now_ms: int, attempt_id: str) -> bool:
        """Return whether a request with this attempt id may pop the queue."""
        batch = queue.batch
        if batch is None or (attempt_id and attempt_id == batch.attempt_id):
            return True
        unblocked_ms = batch.unblocked_ms()
        return unblocked_ms is None or unblocked_ms <= now_ms

    def expire(self, now_ms: int, alive: Alive, last: Callable[[int], int] | None = None) -> None:
        """Renew the batches of active push consumers; other batches expire.

        After three hours a batch is hidden once more, for the time that `last` returns for its
        attempts.
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
        """Return whether a message at or above the read position is to be delivered."""
        return offset not in queue.skips

    def pop_ms(self, queue: OrderedQueue, now_ms: int) -> int:
        """Return the pop time of the queue's next batch, one that was not used before."""
        return max(now_ms, queue.batch.pop_ms + 1) if queue.batch else now_ms

    def attempt(self, queue: OrderedQueue, offset: int, attempt_id: str) -> int:
        """Return the delivery number of the message's next delivery."""
        batch = queue.batch
        before = batch.attempts.get(offset, 0) if batch else 0
        if batch is None or before == 0:
            return 1
        again = attempt_id and attempt_id == batch.attempt_id
        return before if again or offset in batch.uncounted else before + 1

    def deliver(
        self, queue: OrderedQueue, offsets: list[int], next_read: int, terms: PopOptions
    ) -> None:
        """Deliver a batch that starts at the consumer offset; it replaces the one before."""
        batch = queue.batch
        acked = batch.acked | batch.acked_before if batch is not None else set()
        if not offsets:
            queue.batch = None
            queue.committed = max(queue.committed, next_read)
            queue.skips |= acked
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
            acked_before={offset for offset in acked if offset >= offsets[0]},
        )
        queue.skips = {offset for offset in queue.skips if offset >= next_read}
        queue.committed = max(queue.committed, offsets[0])

    def judge(self, claim: DeliveryRef, now_ms: int) -> Outcome:
        """Return what `ack` would return."""
        queue = self.queues[claim.key]
        batch = queue.batch
        if claim.offset < queue.committed or claim.offset in queue.skips:
            return Outcome.CONSUMED
        foreign = claim.pop_ms < self.since_ms and now_ms < claim.expires_ms
        if batch is not None and claim.offset in batch.attempts:
            if batch.pop_ms != claim.pop_ms and not foreign:
                return Outcome.STALE
            return Outcome.CONSUMED if claim.offset in batch.acked else Outcome.DONE
        if foreign and len(queue.skips) < self.in_flight_max:
            return Outcome.DONE
        return Outcome.STALE

    def ack(self, claim: DeliveryRef, now_ms: int) -> Outcome:
        """Acknowledge a message."""
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
        self, claim: DeliveryRef, now_ms: int, invisible_ms: int, count: bool = True
    ) -> tuple[Outcome, Delivery | None]:
        """Hide a message for `invisible_ms` from now; without `count` the next attempt is not
        counted.
        """
        queue = self.queues[claim.key]
        batch = queue.batch
        if claim.offset < queue.committed or claim.offset in queue.skips:
            return Outcome.CONSUMED, None
        if batch is None or batch.pop_ms != claim.pop_ms or claim.offset not in batch.attempts:
            return Outcome.STALE, None
        if claim.offset in batch.acked:
            return Outcome.CONSUMED, None
        visible_ms = batch.visible[claim.offset] = now_ms + invisible_ms
        if not count:
            batch.uncounted.add(claim.offset)
        return Outcome.DONE, Delivery(
            claim.offset, batch.pop_ms, visible_ms, batch.attempts[claim.offset]
        )

    def release(self, key: Key, given: Iterable[tuple[int, int]], visible_ms: int) -> None:
        """Make deliveries (offset, pop time) that did not reach the client visible at
        `visible_ms`.
        """
        batch = self.queues[key].batch
        if batch is not None:
            for offset, pop_ms in given:
                if pop_ms == batch.pop_ms and offset in batch.attempts:
                    batch.visible[offset] = visible_ms

    def clients_gone(self, client_ids: Collection[str], visible_ms: int) -> None:
        """Make the batches renewed for these clients visible at `visible_ms`."""
        for queue in self.queues.values():
            batch = queue.batch
            if batch is not None and batch.owner in client_ids:
                batch.owner = ""
                batch.visible_ms = min(batch.visible_ms, visible_ms)

    def idle(self) -> bool:
        """Return whether the state equals a fresh one and can be dropped."""
        return all(
            not queue.skips and (queue.batch is None or not queue.batch.unacked())
            for queue in self.queues.values()
        )

    def next_visible_ms(self) -> int | None:
        """Return when a locked queue opens next without further requests."""
        times = [q.batch.unblocked_ms() for q in self.queues.values() if q.batch is not None]
        return min((time for time in times if time is not None), default=None)

    def validate(self) -> None:
        """Check the invariants; for tests and simulations."""
        for queue in self.queues.values():
            assert all(offset > queue.committed for offset in queue.skips), queue
            batch = queue.batch
            if batch is None:
                continue
            assert batch.offsets == sorted(batch.attempts), batch
            assert all(attempt >= 1 for attempt in batch.attempts.values()), batch
            assert batch.acked <= batch.attempts.keys(), batch
            assert all(offset >= batch.offsets[0] for offset in batch.acked_before), batch
            assert batch.offsets[-1] < batch.next_read, batch
            unacked = batch.unacked()
            if unacked:
                assert queue.committed <= unacked[0], queue
            assert not queue.skips & batch.attempts.keys(), queue
