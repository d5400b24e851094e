"""Conditions under which a replica stops without a pause of its group."""

import pytest

from cometmq.ha.core.departure import has_left
from cometmq.ha.core.group_state import GroupState, Member, Ref
from cometmq.ha.core.lease import Lease
from cometmq.ha.core.role_machine import Role, RoleMachine

ME, OTHER = Ref(0, 3), Ref(1, 7)
MEMBERS = (Member(0, "u0"), Member(1, "u1"))


def machine(role: Role, in_sync: tuple[Ref, ...], leader: Ref | None) -> RoleMachine:
    state = GroupState("c", "g", 4, 2, leader, in_sync, members=MEMBERS)
    return RoleMachine(ME, Lease(10**9), 2, state, role)


@pytest.mark.parametrize(
    ("role", "in_sync", "leader", "left"),
    [
        (Role.LEADER, (ME, OTHER), ME, False),
        (Role.LEADER, (ME,), ME, True),
        (Role.FENCED, (ME, OTHER), ME, False),
        (Role.PROMOTING, (ME, OTHER), ME, False),
        (Role.FOLLOWER, (ME, OTHER), OTHER, False),
        (Role.FOLLOWER, (OTHER,), OTHER, True),
        (Role.FOLLOWER, (ME, OTHER), None, False),
        (Role.HOLD, (ME,), None, True),
    ],
)
def test_a_replica_has_left_when_the_group_does_not_count_on_it(
    role: Role, in_sync: tuple[Ref, ...], leader: Ref | None, left: bool
) -> None:
    assert has_left(machine(role, in_sync, leader)) is left


def test_a_replica_without_a_state_has_left() -> None:
    assert has_left(RoleMachine(ME, Lease(10**9), 2))
