"""One queue of a group without order: its offsets and messages in flight. Pure.

The consumer offset never passes a message in flight, unless the journal has it, nor one whose retry
copy is not durable yet; messages below the read position that are not in flight count as consumed
(docs/formats/broker-semantics.md, sections 1.7 and 1.11).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .delivery import Delivery, Key


@dataclass(slots=True, eq=False)
class PopQueue:
    """The state of one queue for one group."""

    key: Key
    topic: str
    """The topic itself, or a retry topic of the group."""
    committed: int
    """The consumer offset: everything below is consumed, or in the journal."""
    next_read: int
    """The first offset that this node has not read."""
    handed_out: int = 0
    """Everything below was delivered by some replica, as far as known."""
    unacked: dict[int, Delivery] = field(default_factory=dict)
    moving: set[int] = field(default_factory=set)
    """Copied to the retry topic, and the copy is not as durable yet as configured."""
    skips: set[int] = field(default_factory=set)
    """Offsets at or above `next_read` acknowledged by another replica's handle."""

    def __lt__(self, other: PopQueue) -> bool:
        """Compare in any order, for heap entries of deliveries that become visible together."""
        return self.key < other.key

    @property
    def queue_id(self) -> int:
        """Queue id within its topic."""
        return self.key[1]

    def settle(self) -> None:
        """Advance the consumer offset to the first message that must not be passed."""
        committed, end = self.committed, self.next_read
        unacked, moving = self.unacked, self.moving
        if not unacked and not moving:
            self.committed = max(committed, end)
            return
        while committed < end:
            delivery = unacked.get(committed)
            if (delivery is not None and not delivery.stored) or committed in moving:
                break
            committed += 1
        self.committed = committed

    def jump(self, offset: int) -> list[int]:
        """Restart the queue at `offset`; return the messages in flight that are dropped."""
        dropped = list(self.unacked)
        self.committed = self.next_read = offset
        self.unacked.clear()
        self.moving.clear()
        self.skips.clear()
        return dropped

    def advance_to(self, offset: int) -> list[int]:
        """Advance to `offset`: another replica has consumed everything below, except journalled
        messages.

        Returns the messages in flight that are done by it.
        """
        if offset <= self.committed:
            return []
        done = [o for o, d in self.unacked.items() if o < offset and not d.stored]
        for taken in done:
            del self.unacked[taken]
        self.moving = {o for o in self.moving if o >= offset}
        self.next_read = max(self.next_read, offset)
        self.skips = {o for o in self.skips if o >= self.next_read}
        self.committed = offset
        self.settle()
        return done

    def ack(self, offset: int, pop_ms: int) -> bool:
        """Acknowledge on the fast path; return whether a delivery of this replica with this pop
        time was in flight.
        """
        delivery = self.unacked.get(offset)
        if delivery is None or not 0 < delivery.since_ms <= pop_ms <= delivery.pop_ms:
            return False
        del self.unacked[offset]
        self.forget(offset)
        return True

    def forget(self, offset: int) -> None:
        """Remove a message that is no longer in `unacked` and `moving` from the counters."""
        if offset >= self.next_read:
            self.skips.add(offset)
        elif offset == self.committed:
            self.settle()
