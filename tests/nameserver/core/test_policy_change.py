"""Policy change of a running group: steps, refusals, and the in-sync set afterwards."""

import pytest

from cometmq.ha.core.controller.events import (
    Direct,
    OperationAnswer,
    Order,
    Outcome,
    SetPolicy,
    Switchover,
)
from cometmq.ha.core.group_state import Policy
from cometmq.tests.nameserver.core.desk import A, B, C, Desk, state


def changed(desk: Desk, event: SetPolicy) -> OperationAnswer:
    """Let the leader step down as directed."""
    desk.tell(event)
    order = desk.last(Direct)
    assert (order.order, order.next, order.lease_for_seq) == (Order.STEP_DOWN, A, 0)
    desk.heartbeat(0, leads=False, drained=True)
    assert desk.store.epoch == 6
    order = [e for e in desk.effects if isinstance(e, Direct) and e.order is Order.PROMOTE][-1]
    assert order.old_leader_is_dead, "its own predecessor: no wait"
    desk.heartbeat(0, leads=True, last_epoch=6)
    answer: OperationAnswer = desk.last(OperationAnswer)
    return answer


def test_more_in_sync_from_the_next_epoch_on() -> None:
    desk = Desk(state())
    desk.all_send_heartbeats()
    answer = changed(desk, SetPolicy(1, min_in_sync=2))
    assert answer.outcome is Outcome.DONE
    assert answer.message == (
        "the group is synchronous, with at least 2 in sync: broker 0 leads epoch 6"
    )
    assert "broker 0 was directed to step down" in answer.steps
    assert desk.store.policy == Policy(sync=True, min_in_sync=2)
    assert desk.store.leader == A
    assert desk.store.in_sync == (A, B, C)


def test_a_member_that_left_below_the_old_minimum_is_not_eligible_under_a_lower_one() -> None:
    desk = Desk(state(policy=Policy(sync=True, min_in_sync=2), in_sync=(A,), eligible=(B, C)))
    desk.heartbeat(0, leads=True)
    changed(desk, SetPolicy(1, min_in_sync=1))
    assert desk.store.eligible == (), "the leader alone confirms from now on"


def test_a_group_that_becomes_synchronous_starts_with_its_leader_alone_in_sync() -> None:
    desk = Desk(state(policy=Policy(sync=False)))
    desk.all_send_heartbeats()
    changed(desk, SetPolicy(1, sync=True, min_in_sync=2))
    assert desk.store.policy == Policy(sync=True, min_in_sync=2)
    assert desk.store.in_sync == (A,), "others may lack messages answered OK"
    assert desk.store.eligible == ()


def test_an_asynchronous_group_refuses_a_minimum() -> None:
    desk = Desk(state(policy=Policy(sync=True, min_in_sync=2)))
    desk.all_send_heartbeats()
    changed(desk, SetPolicy(1, sync=False))
    assert desk.store.policy == Policy(sync=False, min_in_sync=1)
    assert desk.store.in_sync == (A, B, C)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (SetPolicy(1, min_in_sync=4), "only 3 of 3 replicas are in sync"),
        (SetPolicy(1, sync=False, min_in_sync=2), "never waits for a replica"),
    ],
)
def test_a_minimum_above_the_live_replicas_is_refused(event: SetPolicy, why: str) -> None:
    desk = Desk(state())
    desk.all_send_heartbeats()
    before = desk.store
    desk.tell(event)
    answer = desk.last(OperationAnswer)
    assert answer.outcome is Outcome.REFUSED
    assert why in answer.message
    assert desk.store == before


def test_without_a_leader_nothing_is_changed() -> None:
    desk = Desk(state(leader=None))
    desk.heartbeat(1)
    desk.tell(SetPolicy(1, min_in_sync=2))
    assert desk.last(OperationAnswer).outcome is Outcome.REFUSED


def test_the_same_policy_and_a_dry_run_change_nothing() -> None:
    desk = Desk(state())
    desk.all_send_heartbeats()
    before = desk.store
    desk.tell(SetPolicy(1, sync=True))
    assert desk.last(OperationAnswer).message.endswith("already")
    desk.tell(SetPolicy(2, sync=False, dry_run=True))
    assert "dry run" in desk.last(OperationAnswer).message
    assert desk.store == before


def test_a_leader_that_does_not_step_down_keeps_its_policy() -> None:
    desk = Desk(state())
    desk.all_send_heartbeats()
    desk.tell(SetPolicy(1, min_in_sync=2))
    desk.tell(Switchover(2, to=1))
    assert "in progress" in desk.last(OperationAnswer).message
    for _ in range(40):
        desk.all_send_heartbeats()
        desk.pass_ms(100)
    answers = [e for e in desk.effects if isinstance(e, OperationAnswer) and e.request == 1]
    assert answers[-1].outcome is Outcome.FAILED
    assert desk.store.policy == Policy(sync=True, min_in_sync=1)
    assert desk.store.epoch == 5
