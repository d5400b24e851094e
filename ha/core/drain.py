"""Drain: how long a leader that steps down waits for its followers (pure).

It refuses writes meanwhile and waits until every in-sync follower has everything. After half of the
time the next leader alone is enough, because then nothing has to be cut either. A leader that lost
its role while it drained has no followers any more: the result is False (docs/formats/ha.md,
section 6.6).
"""

from msgspec import Struct

from .group_state import Ref
from .in_sync import InSyncSet
from .member import MemberState


class Drain(Struct, frozen=True):
    """One drain; times are steady nanoseconds."""

    successor: Ref | None  #: next leader, if known
    begun_ns: int
    limit_ns: int

    def verdict(self, members: InSyncSet, log_end: int, now_ns: int) -> bool | None:
        """Return whether the followers have everything, or None to keep waiting."""
        if _everyone_has(members, log_end):
            return True
        waited_ns = now_ns - self.begun_ns
        if waited_ns * 2 > self.limit_ns and self._successor_has(members, log_end):
            return True
        return False if waited_ns >= self.limit_ns else None

    def _successor_has(self, members: InSyncSet, log_end: int) -> bool:
        if self.successor is None:
            return False
        row = members.members.get(self.successor.broker_id)
        return row is not None and row.ref == self.successor and members.position(row) >= log_end


def _everyone_has(members: InSyncSet, log_end: int) -> bool:
    """Return whether every in-sync follower has everything, at the group's flush level."""
    return members.confirm >= log_end and all(
        members.position(row) >= log_end
        for row in members.members.values()
        if row.state is MemberState.IN_SYNC
    )
