"""What a broker is told, and what people are told of the group (pure; HA note, 6.6 and 6.7).

    the state names this life as leader, it leads                NONE, with a lease
    ... and it is to hand over                                   STEP_DOWN, without a lease
    ... and it does not lead yet                                 PROMOTE, repeated with every answer
    ... and it has led this epoch, and does not any more         NONE: an election is due
    it leads and the state names somebody else, or nobody        STEP_DOWN
    the state names another replica                              FOLLOW
    nobody leads, and the group is held                          HOLD
    nobody leads, or an earlier life of the same replica         NONE: wait

Every beat is answered with one directive; every change of the state is pushed. A lease is only given by the
active nameserver, for a state that its store has confirmed.
"""

from .events import Direct, Order, Replica
from .group_view import GroupView
from .leader_watch import heard_by_others

_NS_PER_MS = 1_000_000


def directive(group: GroupView, replica: Replica, now_ns: int, answers: int = 0) -> Direct:
    """The directive for this replica; `answers` is the number of the beat, 0 for a push."""
    state = group.state
    if not group.active or not group.is_read:
        return Direct(replica.session, replica.beat.broker_id, Order.NONE, state, active=False)
    order = order_for(group, replica)
    leased = answers and _deserves_lease(group, replica)
    handing_over = order is Order.STEP_DOWN and state.leader == replica.ref
    return Direct(
        replica.session,
        replica.beat.broker_id,
        order,
        state,
        active=True,
        lease_for_seq=answers if leased else 0,
        lease_ms=group.limits.lease_ns // _NS_PER_MS if leased else 0,
        old_leader_is_dead=order is Order.PROMOTE and group.proven_epoch == state.epoch,
        drain_ms=group.operations.drain_ms(now_ns) if handing_over else 0,
        next=group.operations.next_leader if handing_over else state.leader,
        detail=state.hold_reason,
    )


def order_for(group: GroupView, replica: Replica) -> Order:
    """The order alone; see the table above."""
    state, beat = group.state, replica.beat
    leader = state.leader
    if leader is not None and leader == replica.ref:
        if group.operations.stepping_down:
            return Order.STEP_DOWN
        leads = beat.leads and beat.last_epoch >= state.epoch
        # Who led this epoch and stepped down cannot lead it again: an election is due.
        return Order.NONE if leads or replica.led_epoch >= state.epoch else Order.PROMOTE
    if beat.leads:
        return Order.STEP_DOWN
    if leader is None:
        return Order.HOLD if state.hold_reason else Order.NONE
    return Order.NONE if leader.broker_id == beat.broker_id else Order.FOLLOW


def _deserves_lease(group: GroupView, replica: Replica) -> bool:
    if group.state.leader != replica.ref or replica.dead or group.operations.stepping_down:
        return False
    return group.pending is None or group.pending.state.leader == replica.ref


def phase(group: GroupView, now_ns: int) -> str:
    """The word that operators see."""
    state = group.state
    if state.hold_reason:
        return "hold"
    if state.is_new:
        return "no_leader"
    if state.drain or group.operations.stepping_down:
        return "draining"
    row = group.leader_row(state)
    if row is None or not row.alive(now_ns, group.limits):
        return "electing" if state.leader is None else "suspect_leader"
    return "stable" if row.beat.leads else "electing"


def explain(group: GroupView, now_ns: int) -> str:
    """One sentence for people: what the group waits for, or that all is well."""
    state = group.state
    word = phase(group, now_ns)
    if word == "hold":
        return f"held: {state.hold_reason}"
    known = group.newest_known()
    if known.version > state.version:
        return (
            f"the store of states was lost; waiting for a replica that was in sync in version"
            f" {known.version}"
        )
    if word == "no_leader":
        return "nobody has led this group yet; a broker with brokerId 0 begins at once"
    if word == "draining":
        return "no new messages are taken" if state.drain else "the leader hands over"
    leader = state.leader
    if leader is None:
        return "no leader; waiting for a replica that was in sync"
    if word == "electing":
        return f"broker {leader.broker_id} was elected for epoch {state.epoch} and takes over"
    if word == "stable":
        return f"broker {leader.broker_id} leads epoch {state.epoch}"
    if heard_by_others(group, state, now_ns):
        return f"broker {leader.broker_id} is silent here, but its followers hear it: no election"
    return f"broker {leader.broker_id} is silent"
