"""The in-sync set as the group's state has it, and what is undecided of the changes that we proposed.

Rule R2 of the HA note. Until it is known what became of a proposal, the leader counts the *union* of the committed
set and of everything it proposed on top of it (mistakes of RocketMQ #5663; Kafka's "maximal ISR").

A proposal names the version of the state that it changes, and the controller accepts it only for exactly
that version. So a proposal is decided, whatever happened to its answer, once a state of a higher
version is seen: either it is part of that state's past, or it never will be. An answer that brings no newer
state decides nothing: a copy of the request may still be on its way.

Members are lives, not replicas: one that died and came back without its tail is another member (Kafka KIP-903). One that
came back with all of it fills the seat of its earlier life until a controller says so (`Member.fills`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .group_state import GroupState, Ref
from .member import Member


@dataclass(frozen=True, slots=True)
class Proposal:
    seq: int  #: strictly increasing while this leader leads
    version: int  #: of the state that it changes
    members: tuple[Ref, ...]  #: ascending, the leader included


@dataclass(slots=True)
class Proposals:
    me: Ref
    epoch: int  #: that we lead
    retry_ns: int  #: a proposal without a decision is made again after this time, as a new one
    version: int = 0  #: of the newest state seen; 0: none yet
    committed: frozenset[Ref] = frozenset()
    undecided: frozenset[Ref] = frozenset()  #: members of all proposals since that version
    has_eligible: bool = False
    uuids: dict[int, str] = field(default_factory=dict)  #: disks of the group's members
    last_seq: int = 0
    proposed_ns: int = 0  #: of the last undecided one; 0: none

    @property
    def effective(self) -> frozenset[Ref]:
        """Everyone whom an election might believe to hold what we confirm."""
        return self.committed | self.undecided

    @property
    def is_alone(self) -> bool:
        """Nobody else could be elected (R4, third permission)."""
        return self.effective == {self.me} and not self.has_eligible

    def seated(self, members: Mapping[int, Member]) -> tuple[list[Member], bool]:
        """Who holds the others' seats of the effective set, and whether that is known of every one."""
        found: list[Member] = []
        is_whole = bool(self.version)
        for ref in self.effective - {self.me}:
            member = members.get(ref.broker_id)
            uuid = self.uuids.get(ref.broker_id, "")
            if member is None or not (member.ref == ref or member.fills(ref, uuid)):
                is_whole = False
            elif member not in found:
                found.append(member)
        return found, is_whole

    def state_seen(self, state: GroupState) -> bool:
        """Take a newer state; False: it says nothing new, or is not of our epoch."""
        if state.version <= self.version or state.epoch != self.epoch or state.leader != self.me:
            return False
        self.version = state.version
        self.committed = frozenset(state.in_sync)
        self.has_eligible = bool(state.eligible)
        self.uuids = {member.broker_id: member.replica_uuid for member in state.members}
        self.last_seq = max(self.last_seq, state.last_proposal_seq)
        self.undecided = frozenset()
        self.proposed_ns = 0
        return True

    def propose(self, wanted: Iterable[Ref], now_ns: int) -> Proposal | None:
        """The proposal to make now, if one is needed and the last one had its time."""
        members = frozenset(wanted)
        assert self.me in members, (self.me, members)
        if not self.version or (members == self.committed and not self.undecided):
            return None
        if self.proposed_ns and now_ns - self.proposed_ns < self.retry_ns:
            return None
        self.last_seq += 1
        self.proposed_ns = now_ns
        self.undecided |= members
        return Proposal(self.last_seq, self.version, tuple(sorted(members)))

    def validate(self) -> None:
        assert not self.version or self.me in self.committed, (self.me, self.committed)
        assert not self.undecided or self.me in self.undecided
        assert bool(self.proposed_ns) == bool(self.undecided)
