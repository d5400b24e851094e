"""Resume of a leader that stopped because its permission to write expired (pure).

A leader without a controller depends on its followers' echoes (rule R4). When the last follower
fails it stops, and without a controller no other replica can be elected. Returning followers send
their hello to the leader that the group's state names. When every other seat holder has done so, as
the incarnation that the state names or as a later one of the same disk without loss, the leader
resumes the same epoch. That alone permits no write: the echoes on the new streams do
(`InSyncSet.oldest_echo_ns`), and without them the leader stops again.

Every seat holder is required: a leader that cannot reach one of two followers must stay silent, or
the controller, informed by the other follower that the leader is alive, would not elect another
(docs/formats/ha.md, rule R4).
"""

from msgspec import Struct, field

from .group_state import GroupState, Ref
from .hello import FollowerFacts
from .pending_isr import Proposals
from .role_machine import RoleMachine


class LeaderResume(Struct):
    """The recent hellos that a stopped leader refused; one per member, so they are bounded."""

    window_ns: int  #: older hellos do not count
    _leader_age: dict[int, tuple[FollowerFacts, int]] = field(default_factory=dict)

    def hello_received(
        self, facts: FollowerFacts, machine: RoleMachine, proposals: Proposals | None, now_ns: int
    ) -> bool:
        """Enter a hello of this group and return whether `machine` may resume. `proposals`: of its
        epoch."""
        state = machine.state
        if not machine.may_resume or state is None or proposals is None or state.eligible:
            return False
        if state.member(facts.broker_id) is None:
            return False
        self._leader_age[facts.broker_id] = facts, now_ns
        seats = (proposals.effective | set(state.in_sync)) - {machine.me}
        return bool(seats) and all(
            self._is_back(seat, state, machine.epoch, now_ns) for seat in seats
        )

    def _is_back(self, seat: Ref, state: GroupState, epoch: int, now_ns: int) -> bool:
        facts, heard_ns = self._leader_age.get(seat.broker_id, (None, 0))
        member = state.member(seat.broker_id)
        if facts is None or member is None or now_ns - heard_ns > self.window_ns:
            return False
        is_same_disk = bool(member.replica_uuid) and member.replica_uuid == facts.replica_uuid
        keeps_seat = facts.incarnation == seat.incarnation or (
            facts.incarnation > seat.incarnation and not facts.suspect and not facts.learner
        )
        knows_no_newer = max(facts.promised_epoch, facts.last_epoch) <= epoch
        return is_same_disk and keeps_seat and knows_no_newer
