"""What lets a controller elect early: claims of other nameservers, refusals, proof after the
election (docs/design/replication.md, R16 to R18)."""

from typing import Any

from cometmq.ha.core.controller.events import (
    ActiveChanged,
    ClaimRenewed,
    Direct,
    Order,
    ProcessExited,
    SessionClosed,
)
from cometmq.ha.core.group_state import Policy
from cometmq.tests.nameserver.core.desk import MS, A, B, C, Desk, state

ASYNC = Policy(sync=False)


def silent_leader(desk: Desk, ms: int, **more: Any) -> None:
    """Let time pass in which only the followers send heartbeats."""
    for _ in range(ms // 100):
        desk.pass_ms(100)
        for follower in (1, 2):
            age_ns = desk.now_ns - desk.core.replicas[0].heard_ns
            desk.heartbeat(follower, heard_epoch=5, heard_age_ns=age_ns, **more)


# --- claims (R17) ---------------------------------------------------------------------------------


def passive() -> Desk:
    desk = Desk(state(), active=False)
    desk.pass_ms(2_000)
    desk.all_send_heartbeats()
    return desk


def test_a_new_controller_counts_the_silence_that_it_observed_while_inactive() -> None:
    desk = passive()
    silent_leader(desk, 900)
    desk.tell(ActiveChanged(True, desk.now_ns + 500 * MS, leases_are_over=True))
    assert desk.store.leader == A
    silent_leader(desk, 200)
    assert desk.store.leader in (B, C)


def test_after_a_released_claim_a_new_controller_waits_for_one_lease() -> None:
    desk = passive()
    silent_leader(desk, 900)
    desk.tell(ActiveChanged(True, desk.now_ns + 10_000 * MS))
    silent_leader(desk, 800)
    assert desk.store.leader == A
    silent_leader(desk, 300)
    assert desk.store.leader in (B, C)


def test_no_lease_outlives_the_claim() -> None:
    desk = passive()
    desk.tell(ActiveChanged(True, desk.now_ns + 700 * MS, leases_are_over=True))
    desk.heartbeat(0, leads=True)
    assert desk.last(Direct).lease_ms == 700
    desk.tell(ClaimRenewed(desk.now_ns + 5_000 * MS))
    desk.heartbeat(0, leads=True)
    assert desk.last(Direct).lease_ms == 1_000
    desk.tell(ClaimRenewed(desk.now_ns - 1))
    desk.heartbeat(0, leads=True)
    assert (desk.last(Direct).lease_ms, desk.last(Direct).lease_for_seq) == (0, 0)


# --- refused connections (R16) --------------------------------------------------------------------


def refused(desk: Desk, *followers: int, epoch: int = 5) -> None:
    for follower in followers:
        desk.heartbeat(follower, heard_epoch=epoch, heard_age_ns=50 * MS, leader_refused=True)


def test_a_leader_that_refuses_every_in_sync_replica_is_replaced_at_once() -> None:
    desk = Desk(state())
    desk.all_send_heartbeats()
    desk.tell(SessionClosed(11))
    refused(desk, 1)
    assert desk.store.leader == A
    refused(desk, 2)
    assert desk.store.leader in (B, C)
    desk.heartbeat(desk.store.leader.broker_id)
    order = desk.last(Direct)
    assert (order.order, order.old_leader_is_dead) == (Order.PROMOTE, True)


def test_refusals_do_not_count_while_the_leader_sends_heartbeats() -> None:
    desk = Desk(state())
    desk.all_send_heartbeats()
    refused(desk, 1, 2)
    assert desk.store.leader == A
    desk.pass_ms(250)
    refused(desk, 1, 2)
    assert desk.store.leader in (B, C)


def test_refusals_do_not_count_for_another_epoch_or_in_an_asynchronous_group() -> None:
    desk = Desk(state())
    desk.all_send_heartbeats()
    desk.tell(SessionClosed(11))
    refused(desk, 1, 2, epoch=4)
    assert desk.store.leader == A
    desk = Desk(state(policy=ASYNC))
    desk.all_send_heartbeats()
    desk.tell(SessionClosed(11))
    refused(desk, 1, 2)
    assert desk.store.leader == A


# --- proof after the election (R18) ---------------------------------------------------------------


def elected_by_silence(**more: Any) -> Desk:
    desk = Desk(state(**more))
    desk.pass_ms(2_000)
    desk.all_send_heartbeats()
    desk.heartbeat(0, leads=True)
    silent_leader(desk, 1_100, log_end=200, flushed_end=200)
    assert (desk.store.leader, desk.store.epoch) == (B, 6)
    assert not desk.last(Direct).old_leader_is_dead
    return desk


def promote_order(desk: Desk) -> Direct:
    desk.heartbeat(1, promised_epoch=6, log_end=200, flushed_end=200)
    order: Direct = desk.last(Direct)
    assert (order.broker_id, order.order) == (1, Order.PROMOTE)
    return order


def test_the_return_of_the_former_leader_ends_the_wait_of_the_new_one() -> None:
    desk = elected_by_silence()
    assert not promote_order(desk).old_leader_is_dead
    desk.heartbeat(0, incarnation=2)
    assert promote_order(desk).old_leader_is_dead


def test_a_reported_exit_ends_the_wait_too() -> None:
    desk = elected_by_silence()
    desk.tell(ProcessExited(0, "u0", 1))
    assert promote_order(desk).old_leader_is_dead


def test_a_former_leader_that_promised_the_new_epoch_ends_the_wait() -> None:
    desk = elected_by_silence()
    desk.heartbeat(0, leads=False, promised_epoch=5)
    assert not promote_order(desk).old_leader_is_dead
    desk.heartbeat(0, leads=False, promised_epoch=6)
    assert promote_order(desk).old_leader_is_dead


def test_another_disk_under_its_id_proves_nothing() -> None:
    desk = elected_by_silence()
    desk.pass_ms(1_100)
    desk.heartbeat(1, promised_epoch=6)
    desk.heartbeat(0, incarnation=2, uuid="another")
    assert not promote_order(desk).old_leader_is_dead


def test_doubts_pass_on_to_the_successor_of_a_leader_that_never_led() -> None:
    desk = elected_by_silence()
    desk.tell(ProcessExited(1, "u1", 1))  # it never led epoch 6
    assert (desk.store.leader, desk.store.epoch) == (C, 7)
    desk.heartbeat(2, promised_epoch=7, log_end=200, flushed_end=200)
    assert not desk.last(Direct).old_leader_is_dead
    desk.heartbeat(0, incarnation=2)
    desk.heartbeat(2, promised_epoch=7, log_end=200, flushed_end=200)
    assert desk.last(Direct).old_leader_is_dead
