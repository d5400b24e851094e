"""The role machine: orders, promises before actions, and outdated states."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cometmq.ha.core.group_state import GroupState, Ref
from cometmq.ha.core.lease import Lease
from cometmq.ha.core.role_machine import (
    DirectiveArrived,
    DiskFailed,
    Exit,
    FenceOrdered,
    Follow,
    HigherEpochSeen,
    Hold,
    HoldNeeded,
    Lead,
    LeaderHeard,
    LeaseRenewed,
    Order,
    PeerEcho,
    PromiseSaved,
    Promote,
    Promoted,
    Role,
    RoleMachine,
    RoleMoved,
    SavePromise,
    SaveState,
    StateSeen,
    StepDown,
    StepDownOrdered,
    Tick,
)

LEASE = 1000
ME, OTHER = Ref(0, 3), Ref(1, 5)


def machine(**changes: Any) -> RoleMachine:
    return RoleMachine(ME, Lease(LEASE), promised_epoch=1, **changes)


def state(version: int, epoch: int, leader: Ref | None, **changes: Any) -> GroupState:
    return GroupState("c", "g", version, epoch, leader, in_sync=(leader or OTHER,), **changes)


def kinds(effects: list[Any]) -> list[type]:
    return [type(effect) for effect in effects]


def leading(epoch: int = 2) -> RoleMachine:
    replica = machine()
    replica.on_event(DirectiveArrived(state(1, epoch, ME), Order.PROMOTE), 10)
    replica.on_event(PromiseSaved(epoch), 10)
    replica.on_event(Promoted(epoch), 10)
    assert replica.role is Role.LEADER
    replica.on_event(LeaseRenewed(10, LEASE), 10)
    return replica


def test_an_election_saves_the_promise_before_anything_else() -> None:
    replica = machine()
    effects = replica.on_event(DirectiveArrived(state(1, 2, ME), Order.PROMOTE), 10)
    assert kinds(effects) == [SaveState, RoleMoved, SavePromise]
    assert replica.on_event(PromiseSaved(2), 11) == [Promote(2)]
    assert replica.on_event(Promoted(2), 12)[-1] == Lead(2)
    assert not replica.may_write(12)
    replica.on_event(LeaseRenewed(10, LEASE), 12)
    assert replica.may_write(12)
    replica.validate()


def test_a_new_leader_waits_until_the_former_one_cannot_write() -> None:
    replica = machine(state=state(1, 1, OTHER))
    replica.on_event(LeaderHeard(1, 500), 500)
    replica.on_event(DirectiveArrived(state(2, 2, ME), Order.PROMOTE), 600)
    replica.on_event(PromiseSaved(2), 600)
    assert replica.on_event(Promoted(2), 600) == []
    assert replica.on_event(Tick(), 500 + LEASE) == []
    assert replica.on_event(Tick(), 500 + LEASE + LEASE // 10)[-1] == Lead(2)


def test_proof_of_the_former_leaders_end_stops_the_wait() -> None:
    replica = machine(state=state(1, 1, OTHER))
    replica.on_event(LeaderHeard(1, 500), 500)
    replica.on_event(DirectiveArrived(state(2, 2, ME), Order.PROMOTE), 600)
    replica.on_event(PromiseSaved(2), 600)
    replica.on_event(Promoted(2), 600)
    again = DirectiveArrived(state(2, 2, ME), Order.PROMOTE, old_leader_is_dead=True)
    assert replica.on_event(again, 610)[-1] == Lead(2)


def test_an_earlier_incarnation_of_this_replica_as_leader_needs_no_wait() -> None:
    replica = machine(state=state(1, 1, Ref(0, 2)), heard_ns=500, led_epoch=1)
    replica.on_event(DirectiveArrived(state(2, 2, ME), Order.PROMOTE), 600)
    replica.on_event(PromiseSaved(2), 600)
    assert replica.on_event(Promoted(2), 600)[-1] == Lead(2)


def test_an_earlier_incarnation_that_never_led_still_requires_the_wait() -> None:
    # Found by the simulation: the leader before that incarnation wrote with the echoes of this one.
    replica = machine(state=state(1, 1, Ref(0, 2)), heard_ns=500)
    replica.on_event(DirectiveArrived(state(2, 2, ME), Order.PROMOTE), 600)
    replica.on_event(PromiseSaved(2), 600)
    assert Lead(2) not in replica.on_event(Promoted(2), 600)


def test_an_election_of_an_earlier_incarnation_is_ignored() -> None:
    replica = machine()
    replica.on_event(DirectiveArrived(state(1, 2, Ref(0, 2)), Order.PROMOTE), 10)
    assert replica.role is Role.FOLLOWER


def test_an_election_below_the_promise_is_ignored() -> None:
    replica = machine()
    replica.on_event(FenceOrdered(7), 10)
    replica.on_event(DirectiveArrived(state(1, 6, ME), Order.PROMOTE), 10)
    assert replica.role is Role.FOLLOWER


def test_a_higher_epoch_fences_the_leader() -> None:
    for event in (HigherEpochSeen(3), FenceOrdered(3), StateSeen(state(2, 3, OTHER))):
        replica = leading()
        effects = replica.on_event(event, 20)
        assert StepDown in kinds(effects)
        assert SavePromise(3) in effects
        assert not replica.may_write(20)
        replica.validate()


def test_a_state_without_a_leader_fences_the_leader() -> None:
    replica = leading()
    assert StepDown in kinds(replica.on_event(StateSeen(state(2, 2, None)), 20))


def test_following_begins_when_the_promise_is_saved() -> None:
    replica = machine()
    effects = replica.on_event(DirectiveArrived(state(1, 4, OTHER), Order.FOLLOW), 10)
    assert kinds(effects) == [SaveState, SavePromise]
    assert replica.on_event(PromiseSaved(4), 10) == [Follow(OTHER, 4)]
    assert replica.on_event(DirectiveArrived(state(1, 4, OTHER), Order.FOLLOW), 11) == []


def test_an_old_directive_changes_nothing() -> None:
    replica = leading(epoch=5)
    assert replica.on_event(DirectiveArrived(state(0, 4, OTHER), Order.STEP_DOWN), 20) == []
    assert replica.role is Role.LEADER


def test_a_leader_without_permission_steps_down_after_two_leases() -> None:
    replica = leading()
    assert replica.on_event(Tick(), 10 + LEASE) == []
    assert not replica.may_write(10 + LEASE)
    assert replica.on_event(Tick(), 9 + 3 * LEASE) == []
    assert StepDown in kinds(replica.on_event(Tick(), 10 + 3 * LEASE))


def test_a_leader_whose_permission_expired_is_promoted_again_in_its_epoch() -> None:
    replica = leading()
    replica.on_event(Tick(), 10 + LEASE)
    replica.on_event(Tick(), 10 + 3 * LEASE)
    assert replica.role is Role.FENCED
    effects = replica.on_event(DirectiveArrived(state(1, 2, ME), Order.PROMOTE), 5000)
    assert effects[-1] == Promote(2)


def test_a_hold_ends_with_a_newer_state_only() -> None:
    replica = machine()
    replica.on_event(DirectiveArrived(state(1, 1, OTHER), Order.FOLLOW), 10)
    assert kinds(replica.on_event(HoldNeeded("a cut below confirm"), 11)) == [RoleMoved, Hold]
    replica.validate()
    replica.on_event(DirectiveArrived(state(1, 1, OTHER), Order.FOLLOW), 12)
    assert replica.role is Role.HOLD
    forced = state(2, 1, OTHER, accept_loss=True)
    assert replica.on_event(DirectiveArrived(forced, Order.FOLLOW), 13)[-1] == Follow(OTHER, 1)


def test_a_failed_disk_fences_the_leader_and_ends_the_process() -> None:
    effects = leading().on_event(DiskFailed("fdatasync"), 20)
    assert kinds(effects) == [RoleMoved, StepDown, Exit]


def test_an_ordered_step_down_promises_the_next_epoch() -> None:
    effects = leading().on_event(StepDownOrdered(3, "switchover"), 20)
    assert kinds(effects) == [RoleMoved, StepDown, SavePromise]


class Orders(RuleBasedStateMachine):
    """Random events: the invariants hold, the promise and the led epoch never decrease."""

    @initialize()
    def begin(self) -> None:
        self.now = 1
        self.version = self.epoch = 0
        self.replica = machine()
        self.waiting: list[Any] = []
        self.led = 0
        self.promised = 1

    def give(self, event: Any) -> None:
        before = self.replica.promised_epoch
        for effect in self.replica.on_event(event, self.now):
            if isinstance(effect, SavePromise):
                self.waiting.append(PromiseSaved(effect.epoch))
            elif isinstance(effect, Promote):
                assert self.replica.promised_epoch >= effect.epoch
                self.waiting.append(Promoted(effect.epoch))
            elif isinstance(effect, Lead):
                assert effect.epoch >= self.led
                assert self.replica.promised_epoch == effect.epoch
                self.led = effect.epoch
        assert self.replica.promised_epoch >= before

    @rule(elapsed=st.integers(1, 2500))
    def tick(self, elapsed: int) -> None:
        self.now += elapsed
        self.give(Tick())

    @rule(index=st.integers(0, 5))
    def finish(self, index: int) -> None:
        if self.waiting:
            self.give(self.waiting.pop(index % len(self.waiting)))

    @rule(
        leader=st.sampled_from([ME, OTHER, Ref(0, 2), None]),
        is_new=st.booleans(),
        dead=st.booleans(),
    )
    def decide(self, leader: Ref | None, is_new: bool, dead: bool) -> None:
        self.version += 1
        self.epoch += int(is_new or leader is not None)
        order = Order.PROMOTE if leader == ME else Order.FOLLOW
        self.state = state(self.version, self.epoch, leader)
        self.give(DirectiveArrived(self.state, order, dead))

    @rule(epoch=st.integers(1, 3))
    def higher(self, epoch: int) -> None:
        self.epoch += epoch
        self.give(HigherEpochSeen(self.epoch))

    @rule(order=st.sampled_from([Order.STEP_DOWN, Order.HOLD, Order.NONE, Order.RESEED]))
    def order(self, order: Order) -> None:
        self.give(DirectiveArrived(None, order))

    @rule(late=st.integers(0, 3000))
    def lease(self, late: int) -> None:
        self.give(LeaseRenewed(self.now - late, LEASE))

    @rule(alone=st.booleans())
    def echo(self, alone: bool) -> None:
        self.give(PeerEcho(self.now, alone))

    @rule()
    def held(self) -> None:
        self.give(HoldNeeded("a reason"))

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "replica"):
            self.replica.validate()


TestOrders = Orders.TestCase
TestOrders.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_frames_of_the_former_leader_during_the_promise_extend_the_wait() -> None:
    # Found by the simulation: the stream lived until then, and the former leader had its echoes.
    replica = machine(state=state(1, 1, OTHER))
    replica.on_event(LeaderHeard(1, 500), 500)
    replica.on_event(DirectiveArrived(state(2, 2, ME), Order.PROMOTE), 600)
    replica.on_event(LeaderHeard(1, 650), 650)
    replica.on_event(PromiseSaved(2), 660)
    waits_ns = replica.lease.lease_ns + replica.lease.margin_ns
    assert Lead(2) not in replica.on_event(Promoted(2), 500 + waits_ns)
    assert replica.on_event(Tick(), 650 + waits_ns)[-1] == Lead(2)
