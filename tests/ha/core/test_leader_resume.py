"""A leader that stopped without permission resumes its epoch when all followers return or a
controller answers."""

from typing import Any

import pytest

from cometmq.ha.core.epochs import EpochHistory
from cometmq.ha.core.group_state import GroupState, Member, Ref
from cometmq.ha.core.hello import FollowerFacts
from cometmq.ha.core.leader_resume import LeaderResume
from cometmq.ha.core.lease import Lease
from cometmq.ha.core.pending_isr import Proposals
from cometmq.ha.core.role_machine import (
    DirectiveArrived,
    FenceOrdered,
    FollowersReturned,
    Lead,
    LeaseRenewed,
    Order,
    PeerEcho,
    PromiseSaved,
    Promote,
    Promoted,
    Role,
    RoleMachine,
    StateSeen,
    StepDown,
    StepDownOrdered,
    Tick,
)

LEASE, WINDOW = 1000, 5000
ME, ONE, TWO = Ref(0, 3), Ref(1, 5), Ref(2, 2)
NOW = 10 + 3 * LEASE


def state(
    *others: Ref, version: int = 1, epoch: int = 2, leader: Ref = ME, **more: Any
) -> GroupState:
    members = tuple(Member(broker_id, f"u{broker_id}") for broker_id in (0, 1, 2))
    in_sync = tuple(sorted({leader, *others}))
    return GroupState("c", "g", version, epoch, leader, in_sync, members=members, **more)


def lapsed(*others: Ref, **more: Any) -> RoleMachine:
    machine = RoleMachine(ME, Lease(LEASE), promised_epoch=1)
    machine.on_event(DirectiveArrived(state(*others, **more), Order.PROMOTE), 10)
    machine.on_event(PromiseSaved(2), 10)
    machine.on_event(Promoted(2), 10)
    machine.on_event(LeaseRenewed(10, LEASE), 10)
    machine.on_event(Tick(), 10 + LEASE)
    effects = machine.on_event(Tick(), NOW)
    assert isinstance(effects[-1], StepDown)
    assert machine.role is Role.FENCED
    assert machine.may_resume
    return machine


def proposals_of(machine: RoleMachine) -> Proposals:
    proposals = Proposals(ME, 2, 100)
    assert machine.state is not None
    proposals.state_seen(machine.state)
    return proposals


def hello(ref: Ref, **changes: Any) -> FollowerFacts:
    known: dict[str, Any] = {
        "replica_uuid": f"u{ref.broker_id}",
        "promised_epoch": 2,
        "last_epoch": 2,
        "segment_size": 100,
        "log_start": 0,
        "log_end": 50,
        "epochs": EpochHistory(),
    }
    return FollowerFacts("c", "g", ref.broker_id, incarnation=ref.incarnation, **(known | changes))


def hello_received(machine: RoleMachine, facts: FollowerFacts) -> bool:
    return LeaderResume(WINDOW).hello_received(facts, machine, proposals_of(machine), NOW)


def test_a_fenced_leader_resumes_its_epoch_when_its_follower_returns() -> None:
    machine = lapsed(ONE)
    assert hello_received(machine, hello(Ref(1, 6)))
    assert machine.on_event(FollowersReturned(), NOW)[-1] == Promote(2)
    assert machine.may_resume  # it always reports that it may lead, so it is not taken for gone
    assert machine.on_event(Promoted(2), NOW)[-1] == Lead(2)
    machine.validate()
    assert not machine.may_write(NOW)  # that takes an echo
    machine.on_event(PeerEcho(NOW, alone=False), NOW)
    assert machine.may_write(NOW)


def test_a_resumed_leader_stops_again_without_an_echo() -> None:
    machine = lapsed(ONE)
    machine.on_event(FollowersReturned(), NOW)
    machine.on_event(Promoted(2), NOW)
    machine.on_event(Tick(), NOW)
    assert isinstance(machine.on_event(Tick(), NOW + 2 * LEASE)[-1], StepDown)


def test_the_same_incarnation_may_return() -> None:
    assert hello_received(lapsed(ONE), hello(ONE, suspect=True))


@pytest.mark.parametrize(
    "facts",
    [
        hello(Ref(1, 6), suspect=True),
        hello(Ref(1, 6), learner=True),
        hello(Ref(1, 6), replica_uuid="another disk"),
        hello(Ref(1, 6), promised_epoch=3),
        hello(Ref(1, 6), last_epoch=3),
        hello(Ref(1, 4)),
        hello(TWO),
        hello(Ref(9, 1)),
    ],
    ids=[
        "suspect",
        "learner",
        "disk",
        "promise",
        "epoch",
        "older incarnation",
        "no seat",
        "stranger",
    ],
)
def test_a_follower_that_lost_its_seat_does_not_resume_the_leader(facts: FollowerFacts) -> None:
    assert not hello_received(lapsed(ONE), facts)


def test_recent_hellos_of_all_followers_are_required() -> None:
    machine = lapsed(ONE, TWO)
    returning, proposals = LeaderResume(WINDOW), proposals_of(machine)
    assert not returning.hello_received(hello(ONE), machine, proposals, NOW)
    assert not returning.hello_received(hello(TWO), machine, proposals, NOW + WINDOW + 1)
    assert returning.hello_received(hello(ONE), machine, proposals, NOW + WINDOW + 2)


def test_a_proposed_member_is_required_too() -> None:
    machine = lapsed(ONE)
    proposals = proposals_of(machine)
    proposals.propose((ME, ONE, TWO), 20)
    assert not LeaderResume(WINDOW).hello_received(hello(ONE), machine, proposals, NOW)


def test_an_eligible_replica_prevents_a_resume() -> None:
    assert not hello_received(lapsed(ONE, eligible=(TWO,)), hello(ONE))


def test_a_controllers_answer_resumes_the_leader() -> None:
    machine = lapsed(ONE)
    assert machine.on_event(LeaseRenewed(NOW - 2 * LEASE, LEASE), NOW) == []  # too late
    assert machine.on_event(LeaseRenewed(NOW, LEASE), NOW)[-1] == Promote(2)
    assert machine.on_event(Promoted(2), NOW)[-1] == Lead(2)
    assert machine.may_write(NOW)


@pytest.mark.parametrize(
    "event",
    [
        StateSeen(state(version=2, epoch=3, leader=ONE)),
        FenceOrdered(3),
        StepDownOrdered(0, "switchover"),
        DirectiveArrived(None, Order.STEP_DOWN),
    ],
    ids=["another leads", "fenced", "stepped down", "ordered to step down"],
)
def test_a_leader_that_stopped_for_another_reason_does_not_resume(event: Any) -> None:
    machine = lapsed(ONE)
    machine.on_event(event, NOW)
    assert not machine.may_resume
    role = machine.role
    machine.on_event(FollowersReturned(), NOW)
    machine.on_event(LeaseRenewed(NOW, LEASE), NOW)
    assert machine.role is role
