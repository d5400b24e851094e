"""What registrations change in a group's state: new lives of replicas, lost ones, addresses (pure).

A replica that comes back in a new life keeps its seat in the in-sync or eligible set only when what it
acknowledged has survived; otherwise it loses the seat and has to catch up (HA note, rule R2):

    it says that it may have lost bytes (suspect)           loses its seat
    another disk answers under its broker id                loses its seat
    synchronous group, and its log ends below what the      loses its seat
    group has confirmed
    otherwise (the page cache survived, or all was flushed) keeps it, under its new incarnation

Whoever would be the last to leave keeps its seat under a life to which no live replica answers: nobody is electable then, and the group is held until an operator decides.
"""

from collections.abc import Iterable

from ..group_state import (
    MEMBERS_MAX,
    GroupState,
    Member,
    Ref,
    ordered_refs,
    without,
)
from .events import NUMBER_MAX, Beat, Replica

#: The life of a seat whose disk was replaced: larger than any life that a replica can have.
LOST_DISK = NUMBER_MAX + 1


def absorb(state: GroupState, replicas: Iterable[Replica]) -> GroupState:
    """The state with what the replicas say of themselves; its version is not moved."""
    for replica in sorted(replicas, key=lambda r: r.beat.broker_id):
        state = _seats(state, replica.beat)
        state = _members(state, replica.beat)
    return state


def loss_of(state: GroupState, beat: Beat) -> str:
    """Why this life cannot take the seat of the earlier one; empty: it can."""
    if _other_disk(state, beat):
        return "has another disk than before"
    if beat.suspect:
        return "may have lost messages that it had acknowledged (it did not shut down cleanly)"
    if beat.learner:
        return "is a learner now"
    if state.policy.sync and beat.log_end < state.confirm_floor:
        return f"ends at {beat.log_end}, below {state.confirm_floor}, which the group has confirmed"
    return ""


def _seats(state: GroupState, beat: Beat) -> GroupState:
    """The in-sync and eligible sets after this registration."""
    broker_id = beat.broker_id
    other_disk = _other_disk(state, beat)
    held = state.in_sync_ref(broker_id)
    if held is not None and (other_disk or held.incarnation < beat.incarnation):
        return _in_sync_seat(state, beat, held)
    eligible = state.eligible_ref(broker_id)
    if eligible is not None and (other_disk or eligible.incarnation < beat.incarnation):
        others = without(state.eligible, broker_id)
        kept = () if loss_of(state, beat) else (beat.ref,)
        return state.with_(version=state.version, eligible=ordered_refs([*others, *kept]))
    return state


def _in_sync_seat(state: GroupState, beat: Beat, held: Ref) -> GroupState:
    others = without(state.in_sync, beat.broker_id)
    led = state.leader == held  # its former life led, and is dead: a new epoch is due
    leader = None if led else state.leader
    if not loss_of(state, beat):
        in_sync = ordered_refs([*others, beat.ref])
        return state.with_(version=state.version, in_sync=in_sync, leader=leader)
    # Lives are counted by each disk: the new disk's must not pass for the old one's.
    kept = Ref(beat.broker_id, LOST_DISK) if _other_disk(state, beat) else held
    in_sync = others or (kept,)
    return state.with_(version=state.version, in_sync=in_sync, leader=leader)


def _other_disk(state: GroupState, beat: Beat) -> bool:
    member = state.member(beat.broker_id)
    return member is not None and member.replica_uuid not in ("", beat.replica_uuid)


def _members(state: GroupState, beat: Beat) -> GroupState:
    known = state.member(beat.broker_id)
    member = Member(
        beat.broker_id,
        beat.replica_uuid,
        beat.addresses,
        # Who is in sync in this very life has reached the leader's confirm offset (I11): the mark in
        # its last beat is older than that.
        suspect=beat.suspect and beat.ref not in state.in_sync,
        partial=_partial(known, beat),
    )
    if known == member:
        return state
    if known is None and len(state.members) >= MEMBERS_MAX:
        state = _with_room(state, beat.broker_id)
        if len(state.members) >= MEMBERS_MAX:
            return state
    return state.with_member(member)


def _partial(known: Member | None, beat: Beat) -> bool:
    """What was said before of the same disk; `mark_partial` compares with the leader's log."""
    return known is not None and known.replica_uuid == beat.replica_uuid and known.partial


def _with_room(state: GroupState, keep: int) -> GroupState:
    """Without the first member that holds no seat, so that a new one has room."""
    seats = {ref.broker_id for ref in (*state.in_sync, *state.eligible)} | {keep}
    idle = [member for member in state.members if member.broker_id not in seats]
    if not idle:
        return state
    members = tuple(member for member in state.members if member is not idle[0])
    return state.with_(version=state.version, members=members)


def mark_partial(
    state: GroupState, leader_start: int | None, replicas: Iterable[Replica]
) -> GroupState:
    """Mark replicas whose log begins above the leader's (R8), and clear marks that are over.

    A replica that has a seat never gets the mark: two replicas delete old segments at slightly different
    times, and a group must not become unable to fail over in between. While no leader was heard
    (`leader_start` None) nobody gets it, and only a log from the very beginning is known to be whole.
    """
    for replica in replicas:
        beat = replica.beat
        member = state.member(beat.broker_id)
        if member is None or beat.log_is_empty or beat.ref == state.leader:
            continue
        above = beat.log_start > (leader_start or 0)
        seated = beat.ref in state.in_sync or beat.ref in state.eligible
        may_mark = leader_start is not None and not seated
        partial = above and (member.partial or may_mark)
        if partial != member.partial:
            changed = Member(
                member.broker_id, member.replica_uuid, member.addresses, member.suspect, partial
            )
            state = state.with_member(changed)
    return state
