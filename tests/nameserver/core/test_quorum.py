"""A leader that is cut off from its quorum steps aside for replicas that have one (R19)."""

from typing import Any

from cometmq.ha.core.controller.events import Direct, Order
from cometmq.ha.core.group_state import Policy
from cometmq.tests.nameserver.core.desk import MS, A, B, C, Desk, state

TWO = Policy(sync=True, min_in_sync=2)


def cut_off(ms: int, followers: tuple[int, ...] = (1, 2), **more: Any) -> Desk:
    """A leader without its followers' streams for a time; these receive nothing from it."""
    desk = Desk(state(**{"policy": TWO, **more}))
    desk.pass_ms(2_000)
    desk.all_send_heartbeats()
    desk.heartbeat(0, leads=True)
    begin_ns = desk.now_ns
    for _ in range(ms // 100):
        desk.pass_ms(100)
        desk.heartbeat(0, leads=not stepped_down(desk), lacks_quorum=True, log_end=150)
        for follower in followers:
            age_ns = desk.now_ns - begin_ns
            desk.heartbeat(follower, heard_epoch=5, heard_age_ns=age_ns)
    return desk


def stepped_down(desk: Desk) -> bool:
    return any(
        isinstance(e, Direct) and e.broker_id == 0 and e.order is Order.STEP_DOWN
        for e in desk.effects
    )


def test_the_pair_takes_over_and_excludes_the_former_leader() -> None:
    desk = cut_off(900)
    assert desk.store.leader == A
    desk = cut_off(1_600)
    assert (desk.store.leader, desk.store.epoch) == (B, 6)
    assert desk.store.in_sync == (B, C)
    desk.heartbeat(1, promised_epoch=6)
    assert desk.last(Direct).old_leader_is_dead, "it has stepped down"


def test_eligible_replicas_take_over_after_they_left_the_in_sync_set() -> None:
    desk = cut_off(1_600, in_sync=(A,), eligible=(B, C))
    assert (desk.store.leader, desk.store.epoch) == (B, 6)
    assert (desk.store.in_sync, desk.store.eligible) == ((B,), (A, C))


def test_one_other_replica_is_no_quorum() -> None:
    desk = cut_off(3_000, followers=(1,))
    assert (desk.store.leader, stepped_down(desk)) == (A, False)


def test_a_leader_that_a_follower_still_receives_stays() -> None:
    desk = Desk(state(policy=TWO))
    for _ in range(40):
        desk.pass_ms(100)
        desk.heartbeat(0, leads=True, lacks_quorum=True)
        desk.heartbeat(1, heard_epoch=5, heard_age_ns=50 * MS)
        desk.heartbeat(2, heard_epoch=5, heard_age_ns=5_000 * MS)
    assert (desk.store.leader, stepped_down(desk)) == (A, False)


def test_a_group_with_a_minimum_of_one_continues_with_its_leader() -> None:
    desk = cut_off(3_000, policy=Policy(sync=True, min_in_sync=1))
    assert (desk.store.leader, stepped_down(desk)) == (A, False)
