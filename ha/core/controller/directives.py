"""Directives for brokers, and the phase and explanation of a group for operators (pure).

    Registration of the replica, against the state               Order
    named as leader, leads                                       NONE, with a lease
    named as leader, leads, must hand over                       STEP_DOWN, without a lease
    named as leader, does not lead yet                           PROMOTE, repeated in every answer
    named as leader, led this epoch and stepped down             NONE: an election is due
    leads, but is not the leader in the state                    STEP_DOWN
    another replica is leader                                    FOLLOW
    no leader, the group is held                                 HOLD
    no leader, or the leader is an earlier incarnation of it     NONE: wait

Every heartbeat is answered with one directive; every change of the state is pushed. Only the active
nameserver grants leases, and only for a state that its store confirmed (docs/formats/ha.md,
sections 6.6 and 6.7). A lease ends with the nameserver's right to decide at the latest: the next
active nameserver need not wait for it (docs/design/replication.md).
"""

from .events import Direct, Order, Replica
from .group_view import GroupView
from .leader_watch import reachable_by_others

_NS_PER_MS = 1_000_000


def directive(group: GroupView, replica: Replica, now_ns: int, answers: int = 0) -> Direct:
    """Return the directive for `replica`; `answers` is the heartbeat's number, 0 for a push."""
    state = group.state
    if not group.active or not group.is_read:
        return Direct(replica.session, replica.heartbeat.broker_id, Order.NONE, state, active=False)
    order = order_for(group, replica)
    lease_ms = 0
    if answers and _deserves_lease(group, replica):
        lease_ns = min(group.limits.lease_ns, group.claim_until_ns - now_ns)
        lease_ms = max(0, lease_ns // _NS_PER_MS)
    proven = group.proven_epoch == state.epoch
    waits = order is Order.PROMOTE and not proven
    handing_over = order is Order.STEP_DOWN and state.leader == replica.ref
    return Direct(
        replica.session,
        replica.heartbeat.broker_id,
        order,
        state,
        active=True,
        lease_for_seq=answers if lease_ms else 0,
        lease_ms=lease_ms,
        old_leader_is_dead=order is Order.PROMOTE and proven,
        wait_ms=max(0, group.leases_end_ns - now_ns) // _NS_PER_MS if waits else 0,
        drain_ms=group.operations.drain_ms(now_ns) if handing_over else 0,
        next=group.operations.next_leader if handing_over else state.leader,
        detail=state.hold_reason,
    )


def order_for(group: GroupView, replica: Replica) -> Order:
    """Return the order (see the module's table)."""
    state, heartbeat = group.state, replica.heartbeat
    leader = state.leader
    if leader is not None and leader == replica.ref:
        if group.operations.stepping_down:
            return Order.STEP_DOWN
        leads = heartbeat.leads and heartbeat.last_epoch >= state.epoch
        # A leader that stepped down in this epoch cannot lead it again: an election is due.
        return Order.NONE if leads or replica.led_epoch >= state.epoch else Order.PROMOTE
    if heartbeat.leads:
        return Order.STEP_DOWN
    if leader is None:
        return Order.HOLD if state.hold_reason else Order.NONE
    return Order.NONE if leader.broker_id == heartbeat.broker_id else Order.FOLLOW


def _deserves_lease(group: GroupView, replica: Replica) -> bool:
    if group.state.leader != replica.ref or replica.dead or group.operations.stepping_down:
        return False
    return group.pending is None or group.pending.state.leader == replica.ref


def phase(group: GroupView, now_ns: int) -> str:
    """Return the phase of the group for operators."""
    state = group.state
    if state.hold_reason:
        return "hold"
    if state.is_new:
        return "no_leader"
    if state.drain or group.operations.stepping_down:
        return "draining"
    row, limits = group.leader_row(state), group.limits
    if row is None or not row.alive(now_ns, limits) or row.overdue(now_ns, limits):
        return "electing" if state.leader is None else "suspect_leader"
    return "stable" if row.heartbeat.leads else "electing"


def explain(group: GroupView, now_ns: int) -> str:
    """Return one sentence on what the group waits for, or that it is stable."""
    state = group.state
    word = phase(group, now_ns)
    if word == "hold":
        return f"held: {state.hold_reason}"
    known = group.newest_known()
    if known.version > state.version:
        return (
            "the state store was lost; waiting for a replica that was in sync in version "
            f"{known.version}"
        )
    if word == "no_leader":
        return "no replica has led this group yet; a broker with brokerId 0 starts immediately"
    if word == "draining":
        return "new messages are refused" if state.drain else "the leader is handing over"
    leader = state.leader
    if leader is None:
        return "no leader; waiting for a replica that was in sync"
    if word == "electing":
        return f"broker {leader.broker_id} was elected for epoch {state.epoch} and is taking over"
    if word == "stable":
        return f"broker {leader.broker_id} leads epoch {state.epoch}"
    if reachable_by_others(group, state, now_ns):
        return (
            f"broker {leader.broker_id} sends no heartbeats to this nameserver, but its "
            "followers receive its frames: no election"
        )
    return f"broker {leader.broker_id} sends no heartbeats"
