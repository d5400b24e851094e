"""Whether a group has to have another leader, and how sure that is (pure; HA note, rule R3).

    its process was seen to end                                              proven
    its replica came back in a new life                                      proven
    it led this epoch and says that it leads no longer                       proven
    silent for a lease, and no live in-sync replica hears it                 by time
    elected, alive, and not leading for three leases                         by time

Proven: the new leader need not wait until the old one's permission to write has run out. Silence counts only
after the grace time. A leader that only the controller cannot hear is left alone. One that stopped for want of
permission says on that it leads: it may lead on at any time, so its word would prove nothing.
"""

from dataclasses import dataclass

from ..group_state import GroupState
from .events import Replica
from .group_view import GroupView


@dataclass(frozen=True, slots=True)
class LeaderGone:
    """Why somebody else has to lead."""

    reason: str
    proven: bool  #: the former leader's life has ended, or it said itself that it does not lead


def leader_gone(group: GroupView, base: GroupState, now_ns: int) -> LeaderGone | None:
    """The verdict on the leader of `base`, the state with the newest registrations in it."""
    if base.leader is None:
        return _without_leader(group, base, now_ns)
    row = group.leader_row(base)
    if row is not None and row.dead:
        return LeaderGone("its process has ended", proven=True)
    if row is not None and row.alive(now_ns, group.limits):
        return _about_leading(group, row, now_ns)
    if now_ns < group.grace_until_ns or heard_by_others(group, base, now_ns):
        return None
    return LeaderGone("it is silent, and no in-sync replica hears it", proven=False)


def _without_leader(group: GroupView, base: GroupState, now_ns: int) -> LeaderGone | None:
    former = group.state.leader
    if former is not None:
        returned = group.replicas.get(former.broker_id)
        member = group.state.member(former.broker_id)
        same_disk = (
            returned is not None
            and member is not None
            and member.replica_uuid == returned.beat.replica_uuid
        )
        return LeaderGone("it came back in a new life", proven=same_disk)
    seats = {ref.broker_id for ref in (*base.in_sync, *base.eligible)}
    alive = {i for i, row in group.replicas.items() if row.alive(now_ns, group.limits)}
    if now_ns < group.grace_until_ns and not seats <= alive:
        return None
    return LeaderGone("there is none", proven=True)


def _about_leading(group: GroupView, row: Replica, now_ns: int) -> LeaderGone | None:
    """A live leader that does not lead: it stepped down, or does not manage to take over."""
    if row.beat.leads or group.operations.stepping_down:
        return None
    if row.led_epoch >= group.state.epoch:
        return LeaderGone("it has stepped down", proven=True)
    if now_ns - group.elected_ns < group.limits.take_over_ns:
        return None
    row.failed_epoch = group.state.epoch
    return LeaderGone("it did not take over in time", proven=False)


def heard_by_others(group: GroupView, base: GroupState, now_ns: int) -> bool:
    """A live in-sync replica still hears the leader: only the controller is cut off from it."""
    for ref in base.in_sync:
        row = group.replicas.get(ref.broker_id)
        if row is None or row.ref != ref or ref == base.leader:
            continue
        beat = row.beat
        if not row.alive(now_ns, group.limits) or beat.heard_epoch != base.epoch:
            continue
        age_ns = beat.heard_age_ns + now_ns - row.heard_ns
        if beat.heard_age_ns >= 0 and age_ns < group.limits.lease_ns:
            return True
    return False


def predecessors_are_gone(group: GroupView) -> bool:
    """Whether proof about the state's leader proves anything about those before it: who was elected and never
    led has not waited for them, so they may still write.

    `led_epoch`: the newest whose leader was seen leading; `proven_epoch`: everyone before it is known to be gone;
    `vacant_epoch`: everyone up to it is.
    """
    state = group.state
    if state.leader is None:
        return state.is_new or group.vacant_epoch == state.epoch
    return state.epoch in (group.led_epoch, group.proven_epoch)
