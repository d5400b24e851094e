"""Group state: the leader and epoch of a broker group, its in-sync set, and its policy.

It mirrors `cometmq.v1.GroupState` without protobuf, for the pure core and the simulation.
Immutable: every change is a new value with a higher `version`, committed by compare-and-set in the
controllers' store before it is sent anywhere (docs/formats/ha.md, sections 6.2, 6.6 and 6.8, rules
R2 and R3).

    leader      the incarnation that leads in `epoch`, or None: no replica may write
    in_sync     the incarnations that hold everything confirmed, including the leader. Without a
                leader it is the last such set: the next leader comes from it
    eligible    incarnations that left `in_sync` while it was below `policy.min_in_sync`: nothing
                was confirmed since, so they still hold everything confirmed
    hold_reason set: no election until an operator decides or a candidate returns; text for
                operators
    epoch_floor later elections use only higher epochs (set when a lost store was rebuilt)
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

#: Limit of replicas per group, as in the leader's stream and the nameserver's tables.
MEMBERS_MAX = 16


class Ref(Struct, frozen=True, order=True):
    """One incarnation of a replica in its group."""

    broker_id: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.broker_id}/{self.incarnation}"


class Addresses(Struct, frozen=True):
    """Addresses of a replica, each HOST:PORT or empty."""

    client: str = ""
    ha: str = ""
    metrics: str = ""


NO_ADDRESSES = Addresses()


class Member(Struct, frozen=True):
    """A replica of the group, in sync or not."""

    broker_id: int
    replica_uuid: str = ""
    addresses: Addresses = NO_ADDRESSES
    suspect: bool = False  #: may have lost acknowledged bytes
    partial: bool = False  #: its log begins above the leader's: not electable


class Policy(Struct, frozen=True):
    """The meaning of an OK in this group, fixed for a whole epoch.

    The first one comes from the configuration of the group's first leader, the others from
    operators (`core/controller/policy_change.py`).
    """

    sync: bool = False  #: an OK waits for the in-sync set
    sync_flush: bool = False  #: acknowledgements count flushed ends
    min_in_sync: int = 1  #: the leader included


class GroupState(Struct, frozen=True):
    """State of one group; `version` 0: no state yet."""

    cluster: str
    group: str
    version: int = 0
    epoch: int = 0
    leader: Ref | None = None
    in_sync: tuple[Ref, ...] = ()  #: ascending, one incarnation per replica
    eligible: tuple[Ref, ...] = ()  #: ascending, no replica of `in_sync`
    members: tuple[Member, ...] = ()  #: ascending by broker id
    last_proposal_seq: int = 0  #: of this epoch's leader; a proposal at or below it is late
    confirm_floor: int = 0  #: synchronous group: the log of a new leader must reach this offset
    hold_reason: str = ""
    hold_since_ms: int = 0
    policy: Policy = Policy()
    drain: bool = False
    #: a forced election: followers may cut below their own confirm offset
    accept_loss: bool = False
    epoch_floor: int = 0

    def with_(self, **changes: Any) -> "GroupState":
        """Return the next version with these changes."""
        changes.setdefault("version", self.version + 1)
        return replace(self, **changes)

    def with_member(self, member: Member) -> "GroupState":
        """Return the same version with this member added or replaced."""
        others = [m for m in self.members if m.broker_id != member.broker_id]
        ordered = sorted([*others, member], key=lambda m: m.broker_id)
        return replace(self, members=tuple(ordered))

    def member(self, broker_id: int) -> Member | None:
        """Return the member with this id."""
        return next((m for m in self.members if m.broker_id == broker_id), None)

    def in_sync_ref(self, broker_id: int) -> Ref | None:
        """Return the in-sync incarnation of this replica."""
        return ref_of(self.in_sync, broker_id)

    def eligible_ref(self, broker_id: int) -> Ref | None:
        """Return the eligible incarnation of this replica."""
        return ref_of(self.eligible, broker_id)

    @property
    def is_new(self) -> bool:
        """Whether no decision was ever made for this group."""
        return self.version == 0

    def validate(self) -> None:
        """Assert the invariants of one state."""
        for refs in (self.in_sync, self.eligible):
            assert refs == ordered_refs(refs), f"not ascending or one replica twice: {refs}"
        in_sync_ids = {ref.broker_id for ref in self.in_sync}
        assert not in_sync_ids & {ref.broker_id for ref in self.eligible}, "in sync and eligible"
        ids = [member.broker_id for member in self.members]
        assert ids == sorted(set(ids)), f"members not ascending: {ids}"
        assert in_sync_ids <= set(ids), "an in-sync incarnation of an unknown member"
        if self.leader is not None:
            assert self.leader in self.in_sync, f"leader {self.leader} is not in sync"
            assert self.epoch > 0, "a leader without an epoch"
        if self.version:
            assert self.in_sync, "an empty in-sync set leaves no candidate"
        assert self.policy.min_in_sync >= 1
        assert bool(self.hold_reason) or not self.hold_since_ms, "held since, without a reason"
        assert len(self.members) <= MEMBERS_MAX

    def assert_follows(self, old: "GroupState") -> None:
        """Assert that this state may replace `old`."""
        assert self.version > old.version, (old.version, self.version)
        assert self.epoch >= old.epoch, (old.epoch, self.epoch)
        assert self.epoch_floor >= old.epoch_floor
        if old.leader is not None and self.epoch == old.epoch:
            assert self.leader in (old.leader, None), "two leaders in one epoch"
        if self.epoch == old.epoch:
            assert self.last_proposal_seq >= old.last_proposal_seq


def ref_of(refs: Iterable[Ref], broker_id: int) -> Ref | None:
    """Return the incarnation of this replica among `refs`."""
    return next((ref for ref in refs if ref.broker_id == broker_id), None)


def ordered_refs(refs: Iterable[Ref]) -> tuple[Ref, ...]:
    """Return the newest incarnation of each replica, ascending."""
    newest: dict[int, Ref] = {}
    for ref in sorted(refs):
        newest[ref.broker_id] = ref
    return tuple(newest[broker_id] for broker_id in sorted(newest))


def without(refs: Iterable[Ref], *broker_ids: int) -> tuple[Ref, ...]:
    """Return `refs` without these replicas."""
    return tuple(ref for ref in refs if ref.broker_id not in broker_ids)


def names(refs: Iterable[Ref]) -> str:
    """Return the broker ids as text: `0, 2`, or `none`."""
    return ", ".join(str(ref.broker_id) for ref in refs) or "none"
