"""Departure of replicas: a stopping or dead follower leaves the in-sync set at once, a stopping
leader hands over."""

from cometmq.ha.core.controller.events import (
    AlterIsr,
    CompareAndSet,
    Direct,
    Order,
    ProcessExited,
    ProposalAnswer,
)
from cometmq.ha.core.group_state import Policy
from cometmq.tests.nameserver.core.desk import A, B, C, Desk, state


def desk(**more: object) -> Desk:
    found = Desk(state(**more))
    found.all_send_heartbeats()
    return found


def test_a_stopping_follower_leaves_the_in_sync_set_with_one_change() -> None:
    group = desk()
    before = len([e for e in group.effects if isinstance(e, CompareAndSet)])
    group.heartbeat(1, heard_epoch=5, heard_age_ns=0, leaving=True)
    assert group.store.in_sync == (A, C)
    assert (group.store.leader, group.store.epoch, group.store.eligible) == (A, 5, ())
    group.all_send_heartbeats_but(1)
    changes = [e for e in group.effects if isinstance(e, CompareAndSet)]
    assert len(changes) == before + 1


def test_below_the_minimum_a_stopping_follower_stays_eligible() -> None:
    group = desk(policy=Policy(sync=True, min_in_sync=3))
    group.heartbeat(1, leaving=True)
    assert (group.store.in_sync, group.store.eligible) == ((A, C), (B,))


def test_a_stopping_follower_stays_a_candidate_while_its_leader_is_silent() -> None:
    group = desk()
    group.pass_ms(1_100)
    group.heartbeat(1, leaving=True)
    assert B in group.store.in_sync


def test_a_stopping_follower_cannot_join_again() -> None:
    group = desk()
    group.heartbeat(1, leaving=True)
    version = group.store.version
    group.tell(AlterIsr(1, A, 5, version, group.store.last_proposal_seq + 1, (A, B, C)))
    answer = group.last(ProposalAnswer)
    assert (answer.accepted, answer.decided) == (False, True)
    assert "is stopping" in answer.reason
    assert group.store.in_sync == (A, C)


def test_a_dead_follower_leaves_the_in_sync_set_when_its_exit_is_reported() -> None:
    group = desk()
    group.tell(ProcessExited(1, "u1", 1))
    group.tell(ProcessExited(2, "u2", 99))  # an incarnation that is not known
    assert set(group.store.in_sync) == {A, B, C}, "all may have been killed together"
    group.pass_ms(50)
    group.heartbeat(0, leads=True)
    assert set(group.store.in_sync) == {A, C}


def test_a_stopping_leader_hands_over_to_the_most_advanced_follower_and_loses_its_seat() -> None:
    group = desk()
    group.heartbeat(2, heard_epoch=5, heard_age_ns=0, log_end=150, flushed_end=150)
    group.heartbeat(0, leads=True, leaving=True, log_end=150, flushed_end=150)
    order = group.last(Direct)
    assert (order.broker_id, order.order, order.next) == (0, Order.STEP_DOWN, C)
    group.heartbeat(0, leaving=True, drained=True, log_end=150, flushed_end=150)
    assert (group.store.leader, group.store.epoch) == (C, 6)
    assert group.store.in_sync == (B, C)


def test_a_follower_that_stops_too_is_no_successor() -> None:
    group = desk()
    group.heartbeat(1, heard_epoch=5, heard_age_ns=0, leaving=True)
    group.heartbeat(2, heard_epoch=5, heard_age_ns=0, leaving=True)
    group.heartbeat(0, leads=True, leaving=True)
    assert (group.store.leader, group.store.in_sync) == (A, (A,))
    assert not group.core.operations.stepping_down


def test_an_election_excludes_a_stopping_replica_unless_all_stop() -> None:
    group = desk(in_sync=(A, B, C))
    group.tell(ProcessExited(0, "u0", 1))
    assert group.store.leader == B
    some = desk()
    some.core.replicas[0].heard_ns -= 10**10
    some.heartbeat(1, leaving=True, log_end=500, flushed_end=500)
    some.tell(ProcessExited(0, "u0", 1))
    assert (some.store.leader, some.store.in_sync) == (C, (C,))
    all_stop = desk()
    all_stop.core.replicas[0].heard_ns -= 10**10
    all_stop.heartbeat(1, leaving=True)
    all_stop.heartbeat(2, leaving=True)
    all_stop.tell(ProcessExited(0, "u0", 1))
    assert all_stop.store.in_sync == (B, C)
