"""The committed in-sync set, and the undecided proposals of the leader (pure; rule R2).

Until the outcome of a proposal is known, the leader counts the *union* of the committed set and of
everything proposed on top of it (Kafka's "maximal ISR"; RocketMQ #5663 shows the loss without it).

A proposal names the version of the state that it changes, and the controller accepts it only for
exactly that version. So a proposal is decided once a state of a higher version arrives, whatever
happened to its answer: it is either part of that state's past, or never will be. An answer without
a newer state decides nothing: a copy of the request may still be in flight.

Members are incarnations, not replicas: a replica that returns without its tail is another member
(Kafka KIP-903). One that returns with all of it fills the seat of its earlier incarnation until the
controller replaces it (`Member.fills`). See docs/formats/ha.md, rule R2.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from .group_state import GroupState, Ref
from .member import Member


class Proposal(Struct, frozen=True):
    seq: int  #: strictly increasing while this leader leads
    version: int  #: version of the state that it changes
    members: tuple[Ref, ...]  #: ascending, including the leader


class Proposals(Struct):
    me: Ref
    epoch: int  #: that this replica leads
    retry_ns: int  #: an undecided proposal is repeated as a new one after this time
    version: int = 0  #: of the newest state; 0: none yet
    committed: frozenset[Ref] = frozenset()
    undecided: frozenset[Ref] = frozenset()  #: members of all proposals since that version
    has_eligible: bool = False
    uuids: dict[int, str] = field(default_factory=dict)  #: replica uuids of the group's members
    last_seq: int = 0
    proposed_ns: int = 0  #: of the last undecided proposal; 0: none

    @property
    def effective(self) -> frozenset[Ref]:
        """Every incarnation that an election may assume to hold the confirmed data."""
        return self.committed | self.undecided

    @property
    def is_alone(self) -> bool:
        """Whether no other replica can be elected (R4, third permission)."""
        return self.effective == {self.me} and not self.has_eligible

    def seat_holders(self, members: Mapping[int, Member]) -> tuple[list[Member], bool]:
        """Return the holders of the other effective seats, and whether every seat has one."""
        holders: list[Member] = []
        is_whole = bool(self.version)
        for ref in self.effective - {self.me}:
            member = members.get(ref.broker_id)
            uuid = self.uuids.get(ref.broker_id, "")
            if member is None or not (member.ref == ref or member.fills(ref, uuid)):
                is_whole = False
            elif member not in holders:
                holders.append(member)
        return holders, is_whole

    def state_seen(self, state: GroupState) -> bool:
        """Adopt a newer state; returns False for an older one or one of another epoch."""
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
        """Return the proposal to send now, or None."""
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
