"""Pop queue: one queue of a group without order, its offsets and its messages in flight. Pure.

Promises: the consumer offset never passes a message in flight, unless the journal has stored it,
nor a message whose copy is not durable yet; a message that was read and is not in flight counts as
consumed (docs/formats/broker-semantics.md, sections 1.7 and 1.11).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from ..names.delivery import Delivery, Key


class PopQueue(Struct, eq=False):
    """The state of one queue for one group."""

    key: Key
    #: The topic itself, or a retry topic of the group.
    topic: str
    #: The consumer offset: everything below is consumed, or stored in the journal.
    committed: int
    #: The first offset that this node has not read.
    next_read: int
    #: The known end of what any replica delivered.
    handed_out: int = 0
    unacked: dict[int, Delivery] = field(default_factory=dict)
    #: Offsets whose copies are appended and not durable yet; whether the consumer offset waits.
    moving: dict[int, bool] = field(default_factory=dict)
    #: Offsets at or above `next_read` acknowledged with handles of another replica.
    skips: set[int] = field(default_factory=set)

    def __lt__(self, other: PopQueue) -> bool:
        """Any order: breaks ties of deliveries that become visible together."""
        return self.key < other.key

    @property
    def queue_id(self) -> int:
        """The queue id within its topic."""
        return self.key[1]

    def settle(self) -> None:
        """Advance the consumer offset to the first message that it must not pass."""
        committed, end = self.committed, self.next_read
        unacked, moving = self.unacked, self.moving
        if not unacked and not moving:
            self.committed = max(committed, end)
            return
        while committed < end:
            delivery = unacked.get(committed)
            if (delivery is not None and not delivery.stored) or moving.get(committed):
                break
            committed += 1
        self.committed = committed

    def jump(self, offset: int) -> list[int]:
        """Move the group to `offset`; return the forgotten messages in flight."""
        dropped = list(self.unacked)
        self.committed = self.next_read = offset
        self.unacked.clear()
        self.moving.clear()
        self.skips.clear()
        return dropped

    def advance_to(self, offset: int) -> list[int]:
        """Advance after another replica consumed everything below `offset`, except stored
        deliveries.

        Return the messages in flight that this ends.
        """
        if offset <= self.committed:
            return []
        done = [o for o, d in self.unacked.items() if o < offset and not d.stored]
        for taken in done:
            del self.unacked[taken]
        self.moving = {o: waits for o, waits in self.moving.items() if o >= offset}
        self.next_read = max(self.next_read, offset)
        self.skips = {o for o in self.skips if o >= self.next_read}
        self.committed = offset
        self.settle()
        return done

    def ack(self, offset: int, pop_ms: int) -> bool:
        """Acknowledge by the fast path: a delivery of this replica, in flight under this pop time.

        Return whether there was one.
        """
        delivery = self.unacked.get(offset)
        if delivery is None or not 0 < delivery.since_ms <= pop_ms <= delivery.pop_ms:
            return False
        del self.unacked[offset]
        self.forget(offset)
        return True

    def holds(self, offsets: Sequence[int], pop_times_ms: Sequence[int]) -> bool:
        """Return whether `ack` would accept each of these."""
        unacked = self.unacked
        for offset, pop_ms in zip(offsets, pop_times_ms, strict=True):
            delivery = unacked.get(offset)
            if delivery is None or not 0 < delivery.since_ms <= pop_ms <= delivery.pop_ms:
                return False
        return True

    def ack_all(self, offsets: Sequence[int]) -> None:
        """Acknowledge different messages that `holds` accepted; as `ack` does for each."""
        unacked, end = self.unacked, self.next_read
        advances = self.committed < end and self.committed in offsets
        for offset in offsets:
            del unacked[offset]
            if offset >= end:
                self.skips.add(offset)
        if advances:
            self.settle()

    def forget(self, offset: int) -> None:
        """Account for a message that was removed from `unacked` or `moving`."""
        if offset >= self.next_read:
            self.skips.add(offset)
        elif offset == self.committed:
            self.settle()
