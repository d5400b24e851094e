"""One queue of a group without order: its offsets, and the messages that are in flight. Pure.

Promises: the consumer offset never passes a message that is in flight, unless the journal has it, nor
one whose copy is not safe yet; what was looked at and is not in flight counts as consumed (broker
semantics, sections 1.7 and 1.11).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .delivery import Delivery, Key


@dataclass(slots=True, eq=False)
class PopQueue:
    """One queue, as one group sees it."""

    key: Key
    topic: str
    """The topic itself, or a retry topic of the group."""
    committed: int
    """The consumer offset: everything below is consumed, or in the journal."""
    next_read: int
    """The first offset that this node has not looked at."""
    handed_out: int = 0
    """Everything below was delivered by some replica, as far as is known."""
    unacked: dict[int, Delivery] = field(default_factory=dict)
    moving: set[int] = field(default_factory=set)
    """Copied elsewhere, and the copy is not as safe yet as it was asked to be."""
    skips: set[int] = field(default_factory=set)
    """Offsets at or above `next_read` that another replica's handle acknowledged."""

    def __lt__(self, other: PopQueue) -> bool:
        """Any order will do for deliveries that become visible together."""
        return self.key < other.key

    @property
    def queue_id(self) -> int:
        """Within its topic."""
        return self.key[1]

    def settle(self) -> None:
        """Move the consumer offset up to the first message that must not be passed."""
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
        """The group starts at `offset`: returns the messages in flight that are forgotten by it."""
        dropped = list(self.unacked)
        self.committed = self.next_read = offset
        self.unacked.clear()
        self.moving.clear()
        self.skips.clear()
        return dropped

    def advance_to(self, offset: int) -> list[int]:
        """Another replica has consumed everything below `offset`, what is in the journal excepted.

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
        """The short way: whether this ended a delivery of this replica that is in flight under this pop time."""
        delivery = self.unacked.get(offset)
        if delivery is None or not 0 < delivery.since_ms <= pop_ms <= delivery.pop_ms:
            return False
        del self.unacked[offset]
        self.forget(offset)
        return True

    def forget(self, offset: int) -> None:
        """The message is not in flight any more; called once it is out of `unacked` and `moving`."""
        if offset >= self.next_read:
            self.skips.add(offset)
        elif offset == self.committed:
            self.settle()
