"""Membership: changes of a group's state by registrations of replicas (pure).

A replica that returns in a new incarnation keeps its seat in the in-sync or eligible set only if
the data it acknowledged survived; otherwise it loses the seat and has to catch up
(docs/formats/ha.md, rule R2):

    suspect: it may have lost bytes                         loses its seat
    another disk registers under its broker id              loses its seat
    synchronous group, log ends below the confirmed end     loses its seat
    otherwise (page cache survived, or all was flushed)     keeps it, under the new incarnation

A follower that stops (`Heartbeat.leaving`), or whose process is proven to have ended, leaves the
in-sync set at once while its leader is alive, so that no send waits for it.

The last member keeps its seat under an incarnation that no live replica has: no replica is
electable then, and the group is held until an operator decides.
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
from .events import NUMBER_MAX, Heartbeat, Replica

#: Incarnation of a seat whose disk was replaced: larger than that of any replica.
LOST_DISK = NUMBER_MAX + 1


def apply_registrations(state: GroupState, replicas: Iterable[Replica]) -> GroupState:
    """Return the state updated by the registrations; the version stays."""
    for replica in sorted(replicas, key=lambda r: r.heartbeat.broker_id):
        state = _seats(state, replica.heartbeat)
        state = _members(state, replica.heartbeat)
    return state


def seat_loss(state: GroupState, heartbeat: Heartbeat) -> str:
    """Return why this incarnation cannot keep the seat of the earlier one, or an empty string."""
    if _other_disk(state, heartbeat):
        return "has another disk than before"
    if heartbeat.suspect:
        return "may have lost messages that it had acknowledged (it did not shut down cleanly)"
    if heartbeat.learner:
        return "is a learner now"
    if state.policy.sync and heartbeat.log_end < state.confirm_floor:
        return (
            f"ends at {heartbeat.log_end}, below {state.confirm_floor}, which the group has "
            "confirmed"
        )
    return ""


def remove_departed(state: GroupState, departed: Iterable[Ref]) -> GroupState:
    """Return the state without these followers in its in-sync set; the version stays.

    Only a leader that is alive makes this right: without it they are the candidates. Below the
    minimum nothing is confirmed, so they stay eligible, as after a proposal of the leader.
    """
    gone = [ref for ref in departed if ref in state.in_sync and ref != state.leader]
    if not gone:
        return state
    in_sync = tuple(ref for ref in state.in_sync if ref not in gone)
    below = len(in_sync) < state.policy.min_in_sync
    eligible = ordered_refs([*state.eligible, *gone]) if below else ()
    return state.with_(version=state.version, in_sync=in_sync, eligible=eligible)


def _seats(state: GroupState, heartbeat: Heartbeat) -> GroupState:
    """Return the state with the in-sync and eligible sets updated by one registration."""
    broker_id = heartbeat.broker_id
    other_disk = _other_disk(state, heartbeat)
    held = state.in_sync_ref(broker_id)
    if held is not None and (other_disk or held.incarnation < heartbeat.incarnation):
        return _in_sync_seat(state, heartbeat, held)
    eligible = state.eligible_ref(broker_id)
    if eligible is not None and (other_disk or eligible.incarnation < heartbeat.incarnation):
        others = without(state.eligible, broker_id)
        kept = () if seat_loss(state, heartbeat) else (heartbeat.ref,)
        return state.with_(version=state.version, eligible=ordered_refs([*others, *kept]))
    return state


def _in_sync_seat(state: GroupState, heartbeat: Heartbeat, held: Ref) -> GroupState:
    others = without(state.in_sync, heartbeat.broker_id)
    led = state.leader == held  # the former incarnation led and has ended: a new epoch is due
    leader = None if led else state.leader
    if not seat_loss(state, heartbeat):
        in_sync = ordered_refs([*others, heartbeat.ref])
        return state.with_(version=state.version, in_sync=in_sync, leader=leader)
    # Incarnations count per disk: the new disk's number must not pass for the old one's.
    kept = Ref(heartbeat.broker_id, LOST_DISK) if _other_disk(state, heartbeat) else held
    in_sync = others or (kept,)
    return state.with_(version=state.version, in_sync=in_sync, leader=leader)


def _other_disk(state: GroupState, heartbeat: Heartbeat) -> bool:
    member = state.member(heartbeat.broker_id)
    return member is not None and member.replica_uuid not in ("", heartbeat.replica_uuid)


def _members(state: GroupState, heartbeat: Heartbeat) -> GroupState:
    known = state.member(heartbeat.broker_id)
    member = Member(
        heartbeat.broker_id,
        heartbeat.replica_uuid,
        heartbeat.addresses,
        # A member in sync in this incarnation has reached the leader's confirm offset (I11): the
        # suspect flag in its last heartbeat is older than that.
        suspect=heartbeat.suspect and heartbeat.ref not in state.in_sync,
        partial=_partial(known, heartbeat),
    )
    if known == member:
        return state
    if known is None and len(state.members) >= MEMBERS_MAX:
        state = _drop_idle_member(state, heartbeat.broker_id)
        if len(state.members) >= MEMBERS_MAX:
            return state
    return state.with_member(member)


def _partial(known: Member | None, heartbeat: Heartbeat) -> bool:
    """Return the partial mark of the same disk; `mark_partial` compares it with the leader's
    log."""
    return known is not None and known.replica_uuid == heartbeat.replica_uuid and known.partial


def _drop_idle_member(state: GroupState, keep: int) -> GroupState:
    """Return the state without the first member that holds no seat."""
    seats = {ref.broker_id for ref in (*state.in_sync, *state.eligible)} | {keep}
    idle = [member for member in state.members if member.broker_id not in seats]
    if not idle:
        return state
    members = tuple(member for member in state.members if member is not idle[0])
    return state.with_(version=state.version, members=members)


def mark_partial(
    state: GroupState, leader_start: int | None, replicas: Iterable[Replica]
) -> GroupState:
    """Set the partial mark of replicas whose log begins above the leader's, and clear outdated
    marks (R8).

    A replica with a seat never gets the mark: two replicas delete old segments at slightly
    different times, and the group must stay able to fail over in between. While the leader's log
    start is unknown (`leader_start` None) no replica gets it, and only a log that starts at 0 is
    known to be complete.
    """
    for replica in replicas:
        heartbeat = replica.heartbeat
        member = state.member(heartbeat.broker_id)
        if member is None or heartbeat.log_is_empty or heartbeat.ref == state.leader:
            continue
        above = heartbeat.log_start > (leader_start or 0)
        seat_holders = heartbeat.ref in state.in_sync or heartbeat.ref in state.eligible
        may_mark = leader_start is not None and not seat_holders
        partial = above and (member.partial or may_mark)
        if partial != member.partial:
            changed = Member(
                member.broker_id, member.replica_uuid, member.addresses, member.suspect, partial
            )
            state = state.with_member(changed)
    return state
