"""The decisions of one controller, rule by rule (docs/formats/ha.md, sections 6.3 to 6.8)."""

import pytest

from cometmq.ha.core.controller.directives import phase
from cometmq.ha.core.controller.events import (
    AlterIsr,
    CasDone,
    CompareAndSet,
    Direct,
    ForceElect,
    OperationAnswer,
    Order,
    Outcome,
    ProcessExited,
    ProposalAnswer,
    RefusalCode,
    Refuse,
    Switchover,
    Tick,
)
from cometmq.ha.core.group_state import Policy, Ref
from cometmq.tests.nameserver.core.desk import MS, A, B, C, Desk, state


def in_sync(desk: Desk) -> tuple[Ref, ...]:
    """Of variable length: each heartbeat may change it."""
    return desk.store.in_sync


def eligible(desk: Desk) -> tuple[Ref, ...]:
    """Of variable length: each heartbeat may change it."""
    return desk.store.eligible


def test_the_longest_log_of_the_newest_epoch_is_elected() -> None:
    desk = Desk(state())
    desk.all_send_heartbeats()
    desk.heartbeat(1, log_end=300, flushed_end=300, last_epoch=4)
    desk.heartbeat(2, log_end=200, flushed_end=150, last_epoch=5)
    desk.tell(ProcessExited(0, "u0", 1))
    assert desk.store.leader == C
    assert desk.store.epoch == 6
    assert desk.store.in_sync == (B, C), "live members stay in sync"


def test_sync_flush_groups_compare_flushed_ends_and_priority_breaks_ties() -> None:
    desk = Desk(state(policy=Policy(sync=True, sync_flush=True, min_in_sync=1)))
    desk.heartbeat(0, leads=True)
    desk.heartbeat(1, log_end=300, flushed_end=100)
    desk.heartbeat(2, log_end=200, flushed_end=150)
    desk.tell(ProcessExited(0, "", 0))
    assert desk.store.leader == C
    desk = Desk(state())
    desk.heartbeat(0, leads=True)
    desk.heartbeat(1)
    desk.heartbeat(2, priority=1)
    desk.tell(ProcessExited(0, "", 0))
    assert desk.store.leader == C


def test_an_exit_report_of_another_incarnation_is_ignored() -> None:
    desk = Desk(state())
    desk.all_send_heartbeats()
    desk.tell(ProcessExited(0, "u0", 9))
    desk.tell(ProcessExited(0, "another", 1))
    assert desk.store.leader == A


def test_heartbeats_after_a_reported_exit_revive_the_replica() -> None:
    desk = Desk(state(in_sync=(A,)))
    desk.all_send_heartbeats()
    desk.tell(ProcessExited(0, "u0", 1))
    desk.pass_ms(50)
    desk.heartbeat(0, leads=True)
    assert not any(isinstance(e, Direct) and e.lease_for_seq == desk.seq for e in desk.effects)
    desk.pass_ms(1_000)
    desk.heartbeat(0, leads=True)
    desk.heartbeat(0, leads=False)
    assert desk.store.leader == A
    assert desk.store.epoch == 6, "it was held meanwhile, so it leads again in a new epoch"


def test_no_election_in_the_grace_time_without_proof() -> None:
    desk = Desk(state())
    desk.heartbeat(1)
    desk.heartbeat(2)
    desk.pass_ms(1_150)
    desk.heartbeat(1)
    desk.heartbeat(2)
    assert desk.store.leader == A
    desk.pass_ms(100)
    desk.heartbeat(1)
    assert desk.store.leader == B


def test_a_suspended_controller_waits_for_the_grace_time() -> None:
    desk = Desk(state())
    desk.all_send_heartbeats()
    desk.pass_ms(2_000)
    desk.all_send_heartbeats()
    desk.now_ns += 60_000 * MS
    desk.heartbeat(1)  # was queued in its stream, and is read before the leader's
    desk.tell(Tick())
    desk.heartbeat(1)
    assert desk.store.leader == A
    desk.heartbeat(0, leads=True)
    desk.pass_ms(50)
    assert phase(desk.core, desk.now_ns) == "stable"


def test_a_leader_cut_off_only_from_the_controller_keeps_leading() -> None:
    desk = Desk(state())
    desk.all_send_heartbeats()
    for _ in range(30):
        desk.pass_ms(100)
        desk.heartbeat(1, heard_epoch=5, heard_age_ns=50 * MS)
    assert desk.store.leader == A
    assert phase(desk.core, desk.now_ns) == "suspect_leader"
    for _ in range(15):
        desk.pass_ms(100)
        desk.heartbeat(1, heard_epoch=5, heard_age_ns=1_000 * MS)
    assert desk.store.leader == B


def test_a_new_incarnation_keeps_its_seat_unless_it_lost_data() -> None:
    desk = Desk(state(confirm_floor=90))
    desk.all_send_heartbeats()
    desk.heartbeat(1, incarnation=2)
    assert in_sync(desk) == (A, Ref(1, 2), C)
    desk.heartbeat(1, incarnation=3, suspect=True)
    assert in_sync(desk) == (A, C)
    member = desk.store.member(1)
    assert member is not None
    assert member.suspect
    desk.heartbeat(2, incarnation=2, log_end=80, flushed_end=80)
    assert in_sync(desk) == (A,), "its log ends below what was confirmed"


def test_another_disk_under_the_same_id_loses_the_seat() -> None:
    desk = Desk(state())
    desk.all_send_heartbeats()
    desk.pass_ms(1_300)
    desk.heartbeat(0, leads=True)
    desk.heartbeat(2, heard_epoch=5, heard_age_ns=0)
    desk.heartbeat(1, uuid="new disk", log_end=0, flushed_end=0, log_is_empty=True)
    assert desk.store.in_sync == (A, C)


def test_the_last_seat_is_not_taken_by_a_new_disk() -> None:
    desk = Desk(state(in_sync=(A,)))
    desk.heartbeat(0, leads=True)
    desk.pass_ms(2_600)
    for life in (1, 2, 3):
        desk.heartbeat(0, incarnation=life, uuid="new disk", log_end=500)
        desk.pass_ms(1_300)
        desk.heartbeat(0, incarnation=life, uuid="new disk", log_end=500)
    assert desk.store.leader is None
    assert desk.store.epoch == 5
    assert "not in sync" in desk.store.hold_reason


def test_a_member_that_leaves_below_the_minimum_stays_eligible_and_is_elected() -> None:
    desk = Desk(state(policy=Policy(sync=True, min_in_sync=2), in_sync=(A, B)))
    desk.all_send_heartbeats()
    desk.tell(AlterIsr(1, A, 5, 10, 1, (A,), 95))
    assert in_sync(desk) == (A,)
    assert eligible(desk) == (B,)
    desk.heartbeat(0, incarnation=2, suspect=True)
    assert desk.store.leader == B
    assert in_sync(desk) == (B,)
    assert eligible(desk) == (), "a suspect is not eligible"
    assert desk.store.confirm_floor == 95


def test_the_eligible_set_ends_when_the_minimum_is_reached() -> None:
    desk = Desk(state(policy=Policy(sync=True, min_in_sync=2), in_sync=(A,), eligible=(B,)))
    desk.all_send_heartbeats()
    desk.tell(AlterIsr(1, A, 5, 10, 1, (A, C), 100))
    assert desk.store.in_sync == (A, C)
    assert desk.store.eligible == ()


def test_a_refused_proposal_stays_refused() -> None:
    desk = Desk(state(in_sync=(A,)))
    desk.heartbeat(0, leads=True)
    proposal = AlterIsr(1, A, 5, 10, 1, (A, B), 100)
    desk.tell(proposal)
    answer = desk.last(ProposalAnswer)
    assert (answer.accepted, answer.decided) == (False, True)
    assert desk.store.version == 11, "the state has advanced before the refusal was sent"
    desk.heartbeat(1)
    desk.tell(proposal)
    assert not desk.last(ProposalAnswer).accepted
    assert desk.store.in_sync == (A,)


def test_a_member_joins_with_its_current_incarnation() -> None:
    desk = Desk(state(in_sync=(A,)))
    desk.all_send_heartbeats()
    desk.tell(AlterIsr(1, A, 5, 10, 1, (A, Ref(1, 7)), 100))
    assert not desk.last(ProposalAnswer).accepted
    desk.tell(AlterIsr(2, A, 5, 11, 2, (A, B), 100))
    assert desk.last(ProposalAnswer).accepted
    assert desk.store.in_sync == (A, B)
    desk.tell(AlterIsr(3, A, 5, desk.store.version, 2, (A,), 100))
    assert "not above" in desk.last(ProposalAnswer).reason


def test_a_proposal_is_undecided_while_the_store_has_not_answered() -> None:
    desk = Desk(state(in_sync=(A,)))
    desk.all_send_heartbeats()
    desk.slow = True
    desk.tell(AlterIsr(1, A, 5, 10, 1, (A, B), 100))
    assert not any(isinstance(e, ProposalAnswer) for e in desk.effects)
    write = desk.last(CompareAndSet)
    desk.tell(CasDone(write.ticket, False, None))
    assert not any(isinstance(e, ProposalAnswer) for e in desk.effects)
    desk.tell(Tick())  # reads: the store does not have it
    answer = desk.last(ProposalAnswer)
    assert (answer.accepted, answer.decided) == (False, False)


def test_a_partial_replica_is_not_electable() -> None:
    desk = Desk(state(in_sync=(A,)))
    desk.heartbeat(0, leads=True, log_start=0)
    desk.heartbeat(1, log_start=50)
    member = desk.store.member(1)
    assert member is not None
    assert member.partial
    desk.tell(AlterIsr(1, A, 5, desk.store.version, 1, (A, B), 100))
    assert desk.store.in_sync == (A, B)
    desk.tell(ProcessExited(0, "u0", 1))
    for _ in range(12):
        desk.heartbeat(1, log_start=50)
        desk.pass_ms(100)
    assert desk.store.leader is None
    assert "newer part" in desk.store.hold_reason
    assert desk.store.hold_since_ms == 77


def test_deleting_a_segment_before_the_leader_does_not_mark_a_member_partial() -> None:
    desk = Desk(state())
    desk.all_send_heartbeats()
    desk.heartbeat(1, log_start=50)
    member = desk.store.member(1)
    assert member is not None
    assert not member.partial


def test_a_leader_that_steps_down_is_replaced_at_once() -> None:
    desk = Desk(state())
    desk.all_send_heartbeats()
    desk.heartbeat(0, leads=False, drained=True)
    assert desk.store.leader == B
    promote = [e for e in desk.effects if isinstance(e, Direct) and e.order is Order.PROMOTE]
    assert promote[-1].old_leader_is_dead


def test_an_elected_replica_that_does_not_take_over_is_replaced() -> None:
    desk = Desk(state())
    desk.all_send_heartbeats()
    desk.tell(ProcessExited(0, "u0", 1))
    assert desk.store.leader == B
    for _ in range(35):
        desk.pass_ms(100)
        desk.heartbeat(1)
        desk.heartbeat(2)
    assert desk.store.leader == C


def test_a_full_disk_hands_over_to_a_peer_with_free_space() -> None:
    desk = Desk(state())
    desk.all_send_heartbeats()
    desk.heartbeat(1, no_room=True)
    desk.heartbeat(0, leads=True, no_room=True)
    step_down = desk.last(Direct)
    assert (step_down.order, step_down.next) == (Order.STEP_DOWN, C)
    assert step_down.lease_for_seq == 0
    desk.heartbeat(0, leads=False, drained=True, no_room=True)
    assert desk.store.leader == C


@pytest.mark.parametrize("to", [-1, 1, 2])
def test_no_switchover_elects_a_replica_with_a_full_disk(to: int) -> None:
    desk = Desk(state())
    desk.all_send_heartbeats()
    for full in (True, False):
        desk.heartbeat(1, no_room=full, log_end=60, flushed_end=60)
        desk.heartbeat(2, no_room=True)
        desk.tell(Switchover(1, to=to))
    answers = [effect for effect in desk.effects if isinstance(effect, OperationAnswer)]
    assert answers[0].outcome is Outcome.REFUSED
    assert "is full" in answers[0].message
    assert len(answers) == (2 if to == 2 else 1), "broker 1 has space again"
    if to != 2:
        desk.heartbeat(1, no_room=True)  # it catches up, but has no space any more
        assert desk.last(OperationAnswer).outcome is Outcome.FAILED
    assert desk.store.leader == A


def test_a_full_leader_among_full_disks_stays_and_a_dead_one_is_replaced() -> None:
    desk = Desk(state())
    for broker_id in range(3):
        desk.heartbeat(broker_id, leads=broker_id == 0, no_room=True)
    assert desk.store.leader == A
    assert Order.STEP_DOWN not in [e.order for e in desk.effects if isinstance(e, Direct)]
    desk.tell(ProcessExited(0, "u0", 1))
    assert desk.store.leader == B


def test_an_asynchronous_switchover_reverts_when_the_target_stays_behind() -> None:
    desk = Desk(state(policy=Policy(sync=False)))
    desk.all_send_heartbeats()
    desk.tell(Switchover(1, to=1))
    desk.heartbeat(0, leads=False, log_end=500, flushed_end=500)
    desk.pass_ms(3_000)
    for broker_id, end in ((0, 500), (1, 100), (2, 100)):
        desk.heartbeat(broker_id, log_end=end, flushed_end=end)
    desk.pass_ms(200)
    answer = desk.last(OperationAnswer)
    assert answer.outcome is Outcome.FAILED
    assert desk.store.leader == A
    assert desk.store.epoch == 6


def test_force_elect_needs_accept_loss_and_reports_the_loss() -> None:
    desk = Desk(state(in_sync=(A,), confirm_floor=90))
    desk.heartbeat(0, leads=True, confirm=150, log_end=150, flushed_end=150)
    desk.heartbeat(1, log_end=60, flushed_end=60)
    desk.tell(ProcessExited(0, "u0", 1))
    desk.tell(ForceElect(1, to=1, dry_run=True))
    assert desk.last(OperationAnswer).outcome is Outcome.REFUSED
    desk.tell(ForceElect(2, to=1, accept_loss=True, dry_run=True))
    assert desk.last(OperationAnswer).outcome is Outcome.DONE
    assert desk.store.leader != B
    desk.tell(ForceElect(3, to=1, accept_loss=True))
    assert desk.store.leader == B
    assert desk.store.accept_loss
    assert desk.store.confirm_floor == 60
    desk.heartbeat(1, leads=True, last_epoch=desk.store.epoch, log_end=70, flushed_end=70)
    answer = desk.last(OperationAnswer)
    assert (answer.outcome, answer.lost_start, answer.lost_end) == (Outcome.DONE, 60, 150)


def test_a_second_broker_with_the_same_id_is_refused() -> None:
    desk = Desk(state())
    desk.heartbeat(0, uuid="thief")
    assert desk.last(Refuse).code is RefusalCode.ID_IN_USE, "the holder may still come"
    desk.all_send_heartbeats()
    desk.heartbeat(0, incarnation=9, uuid="thief")
    assert desk.last(Refuse).code is RefusalCode.ID_IN_USE
    desk.heartbeat(0, incarnation=2)
    desk.heartbeat(0, incarnation=1)
    assert desk.last(Refuse).code is RefusalCode.STALE
    assert desk.store.leader == Ref(0, 2)


def test_an_inactive_controller_gives_no_orders() -> None:
    desk = Desk(state(), active=False)
    desk.all_send_heartbeats()
    desk.tell(ProcessExited(0, "u0", 1))
    desk.pass_ms(5_000)
    directs = [e for e in desk.effects if isinstance(e, Direct)]
    assert directs
    assert all(e.order is Order.NONE and not e.active and not e.lease_ms for e in directs)
    assert not any(isinstance(e, CompareAndSet) for e in desk.effects)


def test_no_lease_while_another_leader_is_being_elected() -> None:
    desk = Desk(state())
    desk.all_send_heartbeats()
    desk.slow = True
    desk.pass_ms(1_300)
    desk.heartbeat(1)
    assert desk.last(CompareAndSet).state.leader == B
    desk.heartbeat(0, leads=True)
    assert desk.last(Direct).lease_for_seq == 0


def test_a_store_with_an_older_state_is_rebuilt_from_a_replica() -> None:
    desk = Desk(state(version=3, epoch=4))
    desk.heartbeat(0, leads=True, known=state(version=12, epoch=5))
    desk.heartbeat(1)
    desk.heartbeat(2)
    assert desk.store.version > 1_000
    assert desk.store.epoch_floor > 1_000
    assert desk.store.leader == A
    desk.tell(ProcessExited(0, "u0", 1))
    assert desk.store.epoch > 1_005
