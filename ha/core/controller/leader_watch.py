"""Leader watch: whether a group needs another leader, and how certain that is (pure; rule R3).

    its process ended                                          proven
    its replica returned in a new incarnation                  proven
    it led this epoch and reports that it stepped down         proven
    silent, and every live in-sync replica's connection to its
    replication port is refused (synchronous groups only)      proven
    silent for a lease, no live in-sync replica receives it    by time
    elected and alive, but not leading for three leases        by time

Proven: the new leader need not wait until the permission to write of the old one expires. Silence
counts only after the grace time. A leader cut off only from the controller keeps leading. A leader
that stopped writing without permission still reports that it leads: it may continue at any time, so
its report would prove nothing (docs/formats/ha.md, rule R3).

A refused connection shows that a live host has no process on that port. A firewall can forge it, so
it counts only where the election is safe without any clock: in a synchronous group the former
leader can confirm nothing without the replicas that elect another one (rule R5).
"""

from msgspec import Struct

from ..group_state import GroupState
from .events import Replica
from .group_view import GroupView


class LeaderGone(Struct, frozen=True):
    """Reason for a new election."""

    reason: str
    proven: bool  #: the former incarnation ended, or reported that it stepped down


def leader_gone(group: GroupView, base: GroupState, now_ns: int) -> LeaderGone | None:
    """Return why the leader of `base`, the state with all registrations absorbed, must be
    replaced."""
    if base.leader is None:
        return _without_leader(group, base, now_ns)
    row = group.leader_row(base)
    if row is not None and row.dead:
        return LeaderGone("its process has ended", proven=True)
    if _refused_by_all(group, base, row, now_ns):
        if row is not None:
            row.dead, row.dead_ns = True, now_ns
        return LeaderGone("its replication port refuses all in-sync replicas", proven=True)
    if row is not None and row.alive(now_ns, group.limits):
        return _about_leading(group, row, now_ns)
    if now_ns < group.grace_until_ns or reachable_by_others(group, base, now_ns):
        return None
    return LeaderGone("no heartbeats, and no in-sync replica receives its frames", proven=False)


def _without_leader(group: GroupView, base: GroupState, now_ns: int) -> LeaderGone | None:
    former = group.state.leader
    if former is not None:
        returned = group.replicas.get(former.broker_id)
        member = group.state.member(former.broker_id)
        same_disk = (
            returned is not None
            and member is not None
            and member.replica_uuid == returned.heartbeat.replica_uuid
        )
        return LeaderGone("it returned in a new incarnation", proven=same_disk)
    seats = {ref.broker_id for ref in (*base.in_sync, *base.eligible)}
    alive = {i for i, row in group.replicas.items() if row.alive(now_ns, group.limits)}
    if now_ns < group.grace_until_ns and not seats <= alive:
        return None
    return LeaderGone("the group has no leader", proven=True)


def _about_leading(group: GroupView, row: Replica, now_ns: int) -> LeaderGone | None:
    """Judge a live replica that was elected but does not lead."""
    if row.heartbeat.leads or group.operations.stepping_down:
        return None
    if row.led_epoch >= group.state.epoch:
        return LeaderGone("it has stepped down", proven=True)
    if now_ns - group.elected_ns < group.limits.take_over_ns:
        return None
    row.failed_epoch = group.state.epoch
    return LeaderGone("it did not take over in time", proven=False)


def _refused_by_all(
    group: GroupView, base: GroupState, leader: Replica | None, now_ns: int
) -> bool:
    """Return whether the leader of a synchronous group is silent here and its port refuses every
    other live replica that could be elected."""
    if not group.state.policy.sync or (
        leader is not None and not _is_silent(group, leader, now_ns)
    ):
        return False
    seats = {*base.in_sync, *base.eligible} - {base.leader}
    others = [row for row in group.replicas.values() if row.ref in seats]
    live = [row.heartbeat for row in others if row.alive(now_ns, group.limits)]
    return bool(live) and all(
        heartbeat.leader_refused and heartbeat.heard_epoch == base.epoch for heartbeat in live
    )


def _is_silent(group: GroupView, row: Replica, now_ns: int) -> bool:
    """Return whether its session ended, or two heartbeats are overdue."""
    return not row.session or now_ns - row.heard_ns > 2 * group.limits.heartbeat_ns


def reachable_by_others(group: GroupView, base: GroupState, now_ns: int) -> bool:
    """Return whether a live in-sync replica receives the leader: only the controller is cut off."""
    for ref in base.in_sync:
        row = group.replicas.get(ref.broker_id)
        if row is None or row.ref != ref or ref == base.leader:
            continue
        heartbeat = row.heartbeat
        if not row.alive(now_ns, group.limits) or heartbeat.heard_epoch != base.epoch:
            continue
        age_ns = heartbeat.heard_age_ns + now_ns - row.heard_ns
        if heartbeat.heard_age_ns >= 0 and age_ns < group.limits.lease_ns:
            return True
    return False


def predecessors_are_gone(group: GroupView) -> bool:
    """Return whether proof about the current leader also covers every leader before it.

    A leader that was elected and never led has not waited for its predecessors, so they may still
    write. `led_epoch`: the newest epoch whose leader reported that it leads; `proven_epoch`: every
    leader before it is proven gone; `vacant_epoch`: every leader up to and including it is.
    """
    state = group.state
    if state.leader is None:
        return state.is_new or group.vacant_epoch == state.epoch
    return state.epoch in (group.led_epoch, group.proven_epoch)
