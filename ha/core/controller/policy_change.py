"""Another meaning of OK for a group that runs: synchronous or not, how many have to be in sync (pure; HA note, 6.6).

A policy holds for whole epochs, so that every leader, follower and election of one epoch counts alike. The leader steps
down as for a switchover and is elected again, for an epoch with the new policy; no message is taken in between. What
an asynchronous epoch answered OK may be on its leader alone: when a group becomes synchronous its leader is alone in
the in-sync set at first, and the others come back to it as soon as they have everything. Should it be lost in that
moment, the group waits for it.
"""

from dataclasses import replace

from ..group_state import GroupState, Policy, Ref
from .events import Replica, SetPolicy


def wanted(state: GroupState, event: SetPolicy) -> Policy:
    """The policy that an operator asks for; what he does not name stays, and an asynchronous group waits for nobody."""
    sync = state.policy.sync if event.sync is None else event.sync
    kept = state.policy.min_in_sync if sync else 1
    return replace(state.policy, sync=sync, min_in_sync=event.min_in_sync or kept)


def policy_refusal(state: GroupState, policy: Policy, live: int) -> str:
    """Why it cannot be; empty: it can. `live`: how many of the in-sync set are there now."""
    if policy.min_in_sync > 1 and not policy.sync:
        return (
            f"an asynchronous group never waits for a replica, so at least {policy.min_in_sync} in sync"
            " could not be kept"
        )
    if policy.min_in_sync > live:
        return (
            f"only {live} of {len(state.members)} replicas are in sync: with at least"
            f" {policy.min_in_sync} nothing could be written"
        )
    return ""


def seated_for(state: GroupState, policy: Policy, leader: Ref) -> GroupState:
    """The state from which the leader is elected again; the version is not moved."""
    if policy.sync and not state.policy.sync:
        state = state.with_(version=state.version, in_sync=(leader,), eligible=())
    return state.with_(version=state.version, policy=policy)


def policy_plan(leader: Replica, old: Policy, new: Policy) -> list[str]:
    """What would be done, for people."""
    broker_id = leader.beat.broker_id
    return [
        f"the group is {words(old)}; it would be {words(new)}",
        f"would tell broker {broker_id} to step down when its followers have everything",
        f"would elect broker {broker_id} again, for an epoch with the new policy",
    ]


def words(policy: Policy) -> str:
    """A policy as people read it."""
    kind = "synchronous" if policy.sync else "asynchronous"
    return f"{kind}, with at least {policy.min_in_sync} in sync"
