"""The in-sync set under a controller: which members count while a proposal is undecided (R2)."""

from msgspec.structs import replace

from cometmq.ha.core.group_state import GroupState, Member, Policy, Ref
from cometmq.ha.core.in_sync import (
    JOIN_HOLD_NS,
    Acked,
    Appended,
    CloseSession,
    ConfirmMoved,
    Effect,
    Event,
    InSyncSet,
    IsrAnswered,
    Limits,
    MemberJoined,
    MemberLeft,
    MemberState,
    ProposeIsr,
    SessionClosed,
    SessionOpened,
    StateSeen,
    Tick,
)

MS = 1_000_000
ME, ONE, TWO = Ref(0, 7), Ref(1, 3), Ref(2, 5)
RETRY_MS = 200


class Group:
    """A leader of epoch 4 from offset 100 on, whose in-sync set a controller decides."""

    def __init__(self, *in_sync: Ref, min_in_sync: int = 1, is_sync: bool = True) -> None:
        limits = Limits(
            is_sync, False, min_in_sync, 5000 * MS, 1000, 1500 * MS, False, RETRY_MS * MS
        )
        self.core = InSyncSet(limits, 100, 100, 80, me=ME, epoch=4, epoch_start=100)
        self.now_ns = 1_000_000 * MS
        self.version = 10
        self.policy = Policy(is_sync, False, min_in_sync)
        self.send(Tick())
        if in_sync:
            self.state(*in_sync)

    def send(self, event: Event) -> list[Effect]:
        effects = self.core.on_event(event, self.now_ns)
        self.core.validate()
        return effects

    def make_state(self, *in_sync: Ref, eligible: tuple[Ref, ...] = ()) -> GroupState:
        self.version += 1
        return GroupState(
            "c",
            "g",
            version=self.version,
            epoch=4,
            leader=ME,
            in_sync=(ME, *in_sync),
            eligible=eligible,
            members=tuple(Member(broker_id) for broker_id in (0, 1, 2)),
            policy=self.policy,
        )

    def state(self, *in_sync: Ref, eligible: tuple[Ref, ...] = ()) -> list[Effect]:
        return self.send(StateSeen(self.make_state(*in_sync, eligible=eligible)))

    def open(self, ref: Ref, written: int = 0) -> list[Effect]:
        session = ref.broker_id * 100 + ref.incarnation
        return self.send(
            SessionOpened(session, ref.broker_id, f"u{ref.broker_id}", ref.incarnation, written, 0)
        )

    def ack(self, ref: Ref, written: int, echo_ns: int = 0) -> list[Effect]:
        session = ref.broker_id * 100 + ref.incarnation
        return self.send(Acked(session, written, 0, self.core.log_end, echo_ns))

    def close(self, ref: Ref) -> list[Effect]:
        return self.send(SessionClosed(ref.broker_id * 100 + ref.incarnation))

    def wait(self, milliseconds: int, *acking: Ref) -> list[Effect]:
        effects = []
        for _ in range(milliseconds // 100):
            self.now_ns += 100 * MS
            effects += self.send(Tick())
            for ref in acking:
                effects += self.ack(ref, self.core.log_end)
        return effects


def proposals(effects: list[Effect]) -> list[ProposeIsr]:
    return [effect for effect in effects if isinstance(effect, ProposeIsr)]


def in_sync_pair() -> Group:
    group = Group(ONE)
    group.open(ONE, 100)
    group.ack(ONE, 100)
    assert group.core.confirm == 100
    return group


def joining() -> Group:
    """Alone by the state; broker 1 has arrived and its membership is proposed."""
    group = Group()
    group.state()
    group.open(ONE, 100)
    assert proposals(group.ack(ONE, 100)) == [ProposeIsr(1, 11, (ME, ONE), 100)]
    return group


def test_nothing_is_confirmed_before_the_first_state() -> None:
    group = Group()
    assert group.core.confirm == 80
    assert not group.core.is_alone
    assert ConfirmMoved(100) in group.state()
    assert group.core.is_alone


def test_a_member_named_by_the_state_counts_before_its_first_hello() -> None:
    group = Group(ONE)
    assert group.core.confirm == 80
    group.open(ONE, 100)
    assert group.core.confirm == 80
    assert ConfirmMoved(90) in group.ack(ONE, 90)


def test_a_member_counts_from_its_proposal_on_and_joins_with_the_state() -> None:
    group = joining()
    assert group.core.in_sync_count == 1
    assert group.send(Appended(200)) == []  # the union waits for it
    effects = group.state(ONE)
    assert effects == [MemberJoined(1)]
    assert group.core.in_sync_count == 2
    assert group.ack(ONE, 200) == [ConfirmMoved(200)]


def test_a_proposed_member_counts_until_the_proposal_is_decided() -> None:
    group = joining()
    group.send(Appended(200))
    group.close(ONE)
    assert group.wait(JOIN_HOLD_NS // MS + 500) != []
    assert group.core.confirm == 100  # the controller may have accepted it
    effects = group.state()
    assert ConfirmMoved(200) in effects


def test_an_answer_without_a_newer_state_decides_nothing() -> None:
    group = joining()
    group.send(Appended(200))
    group.close(ONE)
    group.send(IsrAnswered(1, False, None))
    refused_for_an_old_state = group.make_state()
    group.send(IsrAnswered(1, False, refused_for_an_old_state))
    assert group.core.confirm == 200
    group.send(IsrAnswered(1, True, group.make_state(ONE)))
    assert group.core.members[1].state is MemberState.IN_SYNC
    assert group.core.confirm == 200


def test_every_retry_is_a_new_proposal() -> None:
    group = joining()
    again = proposals(group.wait(RETRY_MS * 2, ONE))
    assert [proposal.seq for proposal in again] == [2, 3]
    assert {proposal.version for proposal in again} == {11}


def test_a_member_that_leaves_before_the_answer_is_proposed_for_removal() -> None:
    group = joining()
    group.close(ONE)
    (proposal,) = proposals(group.wait(RETRY_MS))
    assert proposal.members == (ME,)
    assert proposal.seq == 2
    group.send(IsrAnswered(2, True, group.make_state()))
    assert proposals(group.wait(1000)) == []


def test_sequence_numbers_continue_above_the_states() -> None:
    group = Group()
    state = group.make_state()
    group.send(StateSeen(replace(state, last_proposal_seq=41)))
    group.open(ONE, 100)
    (proposal,) = proposals(group.ack(ONE, 100))
    assert proposal.seq == 42


def test_a_disconnected_member_counts_until_the_controller_removes_it() -> None:
    group = in_sync_pair()
    group.close(ONE)
    group.send(Appended(200))
    effects = group.wait(5100)
    (proposal, *_) = proposals(effects)
    assert proposal.members == (ME,)
    assert group.core.confirm == 100
    effects = group.state(eligible=(ONE,))
    assert MemberLeft(1, "gone for 5000 ms") in effects
    assert ConfirmMoved(200) in effects
    assert not group.core.is_alone  # it may still be elected


def test_a_member_that_caught_up_before_its_removal_is_kept() -> None:
    group = in_sync_pair()
    group.send(Appended(200))
    group.wait(5100)
    assert group.core.members[1].removal_reason
    group.open(Ref(1, 3), 200)
    group.ack(ONE, 200)
    assert not group.core.members[1].removal_reason
    assert proposals(group.wait(RETRY_MS, ONE))[-1].members == (ME, ONE)


def test_another_incarnation_of_a_member_is_another_member() -> None:
    group = in_sync_pair()
    reborn = Ref(1, 4)
    effects = group.open(reborn, 60)
    assert MemberLeft in [type(effect) for effect in effects]
    assert proposals(effects)[0].members == (ME,)
    group.send(Appended(200))
    assert ConfirmMoved not in [type(effect) for effect in group.ack(reborn, 200)]
    assert group.core.confirm == 100  # the state still names the old incarnation
    effects = group.state()
    assert ConfirmMoved(200) in effects
    assert proposals(group.wait(RETRY_MS, reborn))[0].members == (ME, reborn)


def test_acknowledgements_of_an_older_incarnation_do_not_count_for_a_newer_one() -> None:
    group = in_sync_pair()
    group.send(Appended(200))
    reborn = Ref(1, 4)
    effects = group.state(reborn)  # the controller has replaced the old incarnation by the new one
    assert CloseSession(103, "a newer incarnation of it registered") in effects
    group.ack(ONE, 200)  # a late frame of the old one
    assert group.core.confirm == 100
    group.open(reborn, 100)
    assert ConfirmMoved(200) in group.ack(reborn, 200)


def test_the_stream_of_an_older_incarnation_is_closed() -> None:
    group = Group(Ref(1, 4))
    effects = group.open(ONE, 100)
    assert effects == [CloseSession(103, "a newer incarnation of it is known")]
    assert group.ack(ONE, 100) == []


def test_a_follower_without_all_bytes_of_former_epochs_does_not_join() -> None:
    group = Group()
    group.core.replicated = 80
    group.open(ONE, 90)
    assert proposals(group.ack(ONE, 90)) == []
    group.state()
    group.core.log_end = 200
    assert proposals(group.ack(ONE, 99)) == []


def test_a_learner_never_joins() -> None:
    group = Group()
    group.state()
    group.send(SessionOpened(103, 1, "u1", 3, 100, 0, learner=True))
    assert group.ack(ONE, 100) == []


def test_the_minimum_counts_committed_members() -> None:
    group = Group(min_in_sync=2)
    group.state()
    assert group.core.refusal is not None
    group.open(ONE, 100)
    group.ack(ONE, 100)
    assert group.core.refusal is not None
    assert group.core.confirm == 80
    assert ConfirmMoved(100) in group.state(ONE)
    assert group.core.refusal is None


def test_older_states_and_states_of_other_epochs_change_nothing() -> None:
    group = in_sync_pair()
    old = group.make_state()
    group.state(ONE)
    assert group.send(StateSeen(old)) == []
    other = replace(group.make_state(), epoch=5, leader=ONE, in_sync=(ONE,))
    assert group.send(StateSeen(other)) == []
    assert group.core.in_sync_count == 2


def test_oldest_echo_is_the_minimum_over_all_counted_members() -> None:
    group = Group(ONE, TWO)
    assert group.core.oldest_echo_ns is None
    for ref in (ONE, TWO):
        group.open(ref, 100)
    opened_ns = group.now_ns
    group.now_ns += 50 * MS
    group.ack(ONE, 100, opened_ns + 40 * MS)
    assert group.core.oldest_echo_ns is None
    group.ack(TWO, 100, opened_ns + 30 * MS)
    assert group.core.oldest_echo_ns == opened_ns + 30 * MS
    group.ack(TWO, 100, opened_ns + 20 * MS)
    assert group.core.oldest_echo_ns == opened_ns + 30 * MS


def test_an_echo_of_another_leaders_clock_proves_nothing() -> None:
    group = in_sync_pair()
    group.ack(ONE, 100, group.now_ns + 1)
    group.ack(ONE, 100, group.now_ns - 10 * MS)
    assert group.core.oldest_echo_ns is None


def test_alone_there_is_no_echo() -> None:
    group = Group()
    group.state()
    assert group.core.oldest_echo_ns is None


def test_echoes_permit_nothing_while_another_replica_is_eligible() -> None:
    # Found by the simulation: an election from the eligible set needs no member that had echoed.
    group = Group(ONE, min_in_sync=3)
    group.open(ONE, 100)
    group.ack(ONE, 100, group.now_ns)
    assert group.core.oldest_echo_ns is not None
    group.state(ONE, eligible=(TWO,))
    assert group.core.oldest_echo_ns is None
