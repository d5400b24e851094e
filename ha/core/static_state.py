"""State of a static group as its leader keeps it: the live in-sync set (pure).

A static leader decides alone which followers are in sync. It stores that set as a new version of
the group's state before it confirms anything without a former member, and its followers store it,
too: the next promotion chooses among those that hold everything confirmed. A group without a state
was never promoted; there, brokerId and brokerRole decide.

States of a static group have no common store, so two leaders may have used the same version: the
epoch compares first.
"""

from collections.abc import Iterable

from .group_state import GroupState, Member, Policy, Ref, ordered_refs


def is_newer(state: GroupState, than: GroupState) -> bool:
    """Return whether a state replaces another one of the same group."""
    return (state.epoch, state.version) > (than.epoch, than.version)


def live_state(
    known: GroupState,
    epoch: int,
    me: Ref,
    own: Member,
    followers: Iterable[tuple[Ref, str]],
    *,
    policy: Policy,
) -> GroupState:
    """Return the state with this leader, its policy and the in-sync `followers` (reference and
    replica uuid); `known` if it says that already.

    A replica that returns with another broker id (its roles were rewritten) keeps one entry.
    """
    in_sync = dict(followers)
    uuids = {own.replica_uuid, *in_sync.values()}
    ids = {me.broker_id, *(ref.broker_id for ref in in_sync)}
    addresses = {member.replica_uuid: member.addresses for member in known.members}
    members = [own] + [
        Member(ref.broker_id, uuid, addresses.get(uuid, Member(0).addresses))
        for ref, uuid in in_sync.items()
    ]
    members += [
        member
        for member in known.members
        if member.broker_id not in ids and member.replica_uuid not in uuids
    ]
    changed = known.with_(
        version=known.version,
        epoch=epoch,
        leader=me,
        policy=policy,
        in_sync=ordered_refs([me, *in_sync]),
        eligible=(),
        members=tuple(sorted(members, key=lambda member: member.broker_id)),
    )
    return known if changed == known else changed.with_()
