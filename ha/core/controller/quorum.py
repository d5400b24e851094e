"""Quorum rule: which replica takes over from a leader that cannot confirm anything (pure).

A leader of a synchronous group that is cut off from its followers, but not from the controller,
keeps its lease and answers nothing. When other replicas that hold everything confirmed can form a
quorum without it, it steps aside for one of them:

    it has reported that it lacks its quorum for a lease, and was elected before that
    as many live candidates as the minimum receive no frames of it

The others then stay in the in-sync set without it. So a second change needs as many further
candidates, and leadership does not rotate among replicas that are cut off from each other
(docs/design/replication.md).
"""

from ..group_state import GroupState
from .election import disqualification, rank
from .events import Replica
from .group_view import GroupView


def successor(group: GroupView, leader: Replica, now_ns: int) -> Replica | None:
    """Return the replica for which the leader must step aside, or None."""
    state, limits = group.state, group.limits
    policy = state.policy
    since_ns = leader.lacks_quorum_ns
    if not policy.sync or policy.min_in_sync < 2 or not since_ns:
        return None
    if now_ns - max(since_ns, group.elected_ns) < limits.lease_ns:
        return None
    others = [
        row
        for row in group.replicas.values()
        if row is not leader and _can_replace(group, state, row, now_ns)
    ]
    if len(others) < policy.min_in_sync:
        return None
    in_sync = [row for row in others if row.ref in state.in_sync]
    return max(in_sync or others, key=lambda row: rank(state, row))


def _can_replace(group: GroupView, state: GroupState, row: Replica, now_ns: int) -> bool:
    heartbeat = row.heartbeat
    if not row.alive(now_ns, group.limits) or disqualification(state, row):
        return False
    if heartbeat.leaving or heartbeat.no_room:
        return False
    age_ns = heartbeat.heard_age_ns + now_ns - row.heard_ns
    receives = heartbeat.heard_epoch == state.epoch and heartbeat.heard_age_ns >= 0
    return not receives or age_ns >= group.limits.lease_ns
