"""The state of a static group through promotions: the set that its leader stores."""

from __future__ import annotations

from cometmq.ha.core.group_state import Addresses, GroupState, Member, Ref
from cometmq.ha.core.static_state import is_newer, live_state

A, B = Addresses("a"), Addresses("b")


def promoted(leader: Ref, uuid: str, *others: tuple[Ref, str]) -> GroupState:
    members = sorted(
        [Member(leader.broker_id, uuid), *(Member(ref.broker_id, other) for ref, other in others)],
        key=lambda member: member.broker_id,
    )
    return GroupState("c", "g", 1, 2, leader, (leader,), members=tuple(members))


def test_a_returned_replica_joins_the_stored_set_under_its_new_broker_id() -> None:
    state = promoted(Ref(1, 1), "ub", (Ref(0, 1), "ua"))
    own = Member(1, "ub", B)
    alone = live_state(state, 2, Ref(1, 1), own, [], policy=state.policy)
    assert alone.in_sync == (Ref(1, 1),)
    joined = live_state(alone, 2, Ref(1, 1), own, [(Ref(2, 2), "ua")], policy=alone.policy)
    joined.validate()
    assert joined.in_sync == (Ref(1, 1), Ref(2, 2))
    assert [member.replica_uuid for member in joined.members] == ["ub", "ua"]
    assert (
        live_state(joined, 2, Ref(1, 1), own, [(Ref(2, 2), "ua")], policy=joined.policy) is joined
    )
    left = live_state(joined, 2, Ref(1, 1), own, [], policy=joined.policy)
    assert (left.in_sync, left.version) == ((Ref(1, 1),), joined.version + 1)
    assert left.member(2) is not None, "it stays a member"


def test_a_leader_that_restarts_as_broker_0_stays_the_leader_of_the_state() -> None:
    state = promoted(Ref(1, 1), "ub", (Ref(0, 1), "ua"))
    renamed = live_state(state, 2, Ref(0, 2), Member(0, "ub", B), [], policy=state.policy)
    renamed.validate()
    assert renamed.leader == Ref(0, 2)
    assert renamed.members == (Member(0, "ub", B),)
    with_a = live_state(
        renamed, 2, Ref(0, 2), Member(0, "ub", B), [(Ref(2, 3), "ua")], policy=renamed.policy
    )
    with_a.validate()
    assert [member.broker_id for member in with_a.members] == [0, 2]


def test_the_epoch_of_a_state_counts_before_its_version() -> None:
    old = promoted(Ref(0, 1), "ua").with_(version=9)
    new = promoted(Ref(1, 1), "ub").with_(version=2, epoch=3)
    assert is_newer(new, old)
    assert not is_newer(old, new)
    assert is_newer(new.with_(), new)
