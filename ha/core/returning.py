"""Whether a leader that stopped for want of permission may try again, because its followers are back (pure).

A leader without a controller lives on its followers' echoes (rule R4 of the HA note). When the last of them
dies it stops, and nobody else can be elected while no controller is there. Followers that come back say hello to
the leader that the group's state names. When everyone who holds a seat beside it has done so, in the life that
the state names or in a later one of the same disk that has lost nothing, it leads on in the same epoch. That permits no write yet:
the echoes on the new streams do (`InSyncSet.oldest_echo_ns`), and who does not earn them in time is left again.

Everyone is needed: a leader whom one of two followers cannot reach must stay silent, or the controller which hears from the
other one that the leader is there would not elect another.
"""

from dataclasses import dataclass, field

from .group_state import GroupState, Ref
from .hello import FollowerFacts
from .pending_isr import Proposals
from .replica import RoleMachine


@dataclass(slots=True)
class Returning:
    """The hellos that a stopped leader has refused lately; one of each member, so they are bounded."""

    window_ns: int  #: an older hello counts for nothing
    _heard: dict[int, tuple[FollowerFacts, int]] = field(default_factory=dict)

    def greeted(
        self, facts: FollowerFacts, machine: RoleMachine, proposals: Proposals | None, now_ns: int
    ) -> bool:
        """A hello of this group: whether `machine` may lead on now. `proposals`: of the time when it led."""
        state = machine.state
        if not machine.may_resume or state is None or proposals is None or state.eligible:
            return False
        if state.member(facts.broker_id) is None:
            return False
        self._heard[facts.broker_id] = facts, now_ns
        seats = (proposals.effective | set(state.in_sync)) - {machine.me}
        return bool(seats) and all(
            self._is_back(seat, state, machine.epoch, now_ns) for seat in seats
        )

    def _is_back(self, seat: Ref, state: GroupState, epoch: int, now_ns: int) -> bool:
        facts, heard_ns = self._heard.get(seat.broker_id, (None, 0))
        member = state.member(seat.broker_id)
        if facts is None or member is None or now_ns - heard_ns > self.window_ns:
            return False
        is_same_disk = bool(member.replica_uuid) and member.replica_uuid == facts.replica_uuid
        keeps_seat = facts.incarnation == seat.incarnation or (
            facts.incarnation > seat.incarnation and not facts.suspect and not facts.learner
        )
        knows_no_newer = max(facts.promised_epoch, facts.last_epoch) <= epoch
        return is_same_disk and keeps_seat and knows_no_newer
