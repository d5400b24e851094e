"""The one truth about a broker group: who leads in which epoch, and who holds everything confirmed.

Mirrors `cometmq.v1.GroupState` without protobuf, so that the pure cores and the simulation can use it.
Immutable: every change is a new value with a higher `version`, entered by compare-and-set in the
controllers' store, and only then told to anybody. Source: HA note, sections 6.2, 6.6 and 6.8 (R2, R3).

    leader      the life that leads in `epoch`, or None (nobody does, and nobody may write)
    in_sync     lives that hold everything confirmed, the leader among them. Without a leader it is
                the last such set: whoever is elected comes from it
    eligible    lives that left `in_sync` while it was below `policy.min_in_sync`: nothing was
                confirmed since, so they still hold everything confirmed
    hold_reason nobody is elected until an operator or a candidate decides; the text is for people
    epoch_floor no later election takes an epoch at or below it (set when a lost store was rebuilt)
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

#: Replicas of one group at most, as in the leader's stream and the nameserver's tables.
MEMBERS_MAX = 16


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """One life of a replica, inside its group."""

    broker_id: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.broker_id}/{self.incarnation}"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a replica is reached, each as HOST:PORT or empty."""

    client: str = ""
    ha: str = ""
    metrics: str = ""


NO_ADDRESSES = Addresses()


@dataclass(frozen=True, slots=True)
class Member:
    """A replica that belongs to the group, in sync or not."""

    broker_id: int
    replica_uuid: str = ""
    addresses: Addresses = NO_ADDRESSES
    suspect: bool = False  #: may have lost bytes that it acknowledged
    partial: bool = False  #: its log begins above the leader's: not electable


@dataclass(frozen=True, slots=True)
class Policy:
    """What an OK means in this group, the same for a whole epoch; the founder's configuration says the first one, operators
    the others (`core/controller/policy_change.py`)."""

    sync: bool = False  #: an OK waits for the in-sync set
    sync_flush: bool = False  #: acknowledgements count flushed ends
    min_in_sync: int = 1  #: the leader included


@dataclass(frozen=True, slots=True)
class GroupState:
    """See the module's docstring. `version` 0 means: there is none yet."""

    cluster: str
    group: str
    version: int = 0
    epoch: int = 0
    leader: Ref | None = None
    in_sync: tuple[Ref, ...] = ()  #: ascending, one life of each replica
    eligible: tuple[Ref, ...] = ()  #: ascending, no replica of `in_sync`
    members: tuple[Member, ...] = ()  #: ascending by broker id
    last_proposal_seq: int = 0  #: of this epoch's leader; a proposal at or below is late
    confirm_floor: int = 0  #: in a synchronous group an elected log must reach this far
    hold_reason: str = ""
    hold_since_ms: int = 0
    policy: Policy = Policy()
    drain: bool = False
    accept_loss: bool = False  #: an election was forced: followers may cut below their own confirm
    epoch_floor: int = 0

    def with_(self, **changes: Any) -> "GroupState":
        """The next version with these changes."""
        changes.setdefault("version", self.version + 1)
        return replace(self, **changes)

    def with_member(self, member: Member) -> "GroupState":
        """The same version with this member added or replaced."""
        others = [m for m in self.members if m.broker_id != member.broker_id]
        ordered = sorted([*others, member], key=lambda m: m.broker_id)
        return replace(self, members=tuple(ordered))

    def member(self, broker_id: int) -> Member | None:
        """The member of this id."""
        return next((m for m in self.members if m.broker_id == broker_id), None)

    def in_sync_ref(self, broker_id: int) -> Ref | None:
        """The life of this replica that is in sync."""
        return ref_of(self.in_sync, broker_id)

    def eligible_ref(self, broker_id: int) -> Ref | None:
        """The life of this replica that is eligible."""
        return ref_of(self.eligible, broker_id)

    @property
    def is_new(self) -> bool:
        """Nothing was ever decided about this group."""
        return self.version == 0

    @property
    def below_min(self) -> bool:
        """Too few in sync: nothing is confirmed meanwhile."""
        return len(self.in_sync) < self.policy.min_in_sync

    def validate(self) -> None:
        """Assert what every reader relies on."""
        for refs in (self.in_sync, self.eligible):
            assert refs == ordered_refs(refs), f"not ascending or one replica twice: {refs}"
        in_sync_ids = {ref.broker_id for ref in self.in_sync}
        assert not in_sync_ids & {ref.broker_id for ref in self.eligible}, "in sync and eligible"
        ids = [member.broker_id for member in self.members]
        assert ids == sorted(set(ids)), f"members not ascending: {ids}"
        assert in_sync_ids <= set(ids), "a life in sync of which nothing is known"
        if self.leader is not None:
            assert self.leader in self.in_sync, f"leader {self.leader} is not in sync"
            assert self.epoch > 0, "a leader without an epoch"
        if self.version:
            assert self.in_sync, "an empty in-sync set names nobody who could be elected"
        assert self.policy.min_in_sync >= 1
        assert bool(self.hold_reason) or not self.hold_since_ms, "held since, without a reason"
        assert len(self.members) <= MEMBERS_MAX

    def assert_follows(self, old: "GroupState") -> None:
        """Assert that this may replace `old`: what a decision may never take back."""
        assert self.version > old.version, (old.version, self.version)
        assert self.epoch >= old.epoch, (old.epoch, self.epoch)
        assert self.epoch_floor >= old.epoch_floor
        if old.leader is not None and self.epoch == old.epoch:
            assert self.leader in (old.leader, None), "two leaders in one epoch"
        if self.epoch == old.epoch:
            assert self.last_proposal_seq >= old.last_proposal_seq


def ref_of(refs: Iterable[Ref], broker_id: int) -> Ref | None:
    """The life of this replica among `refs`."""
    return next((ref for ref in refs if ref.broker_id == broker_id), None)


def ordered_refs(refs: Iterable[Ref]) -> tuple[Ref, ...]:
    """Ascending, the newest life of each replica."""
    newest: dict[int, Ref] = {}
    for ref in sorted(refs):
        newest[ref.broker_id] = ref
    return tuple(newest[broker_id] for broker_id in sorted(newest))


def without(refs: Iterable[Ref], *broker_ids: int) -> tuple[Ref, ...]:
    """`refs` without these replicas."""
    return tuple(ref for ref in refs if ref.broker_id not in broker_ids)


def names(refs: Iterable[Ref]) -> str:
    """Broker ids as people read them: `0, 2`, or `none`."""
    return ", ".join(str(ref.broker_id) for ref in refs) or "none"
