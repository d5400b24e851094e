"""Policy change of a running group: synchronous or not, and the minimum of in-sync replicas (pure).

A policy holds for whole epochs, so that every leader, follower and election of one epoch counts
alike. The leader steps down as for a switchover and is elected again for an epoch with the new
policy; no message is accepted in between. Messages of an asynchronous epoch that were answered OK
may exist on its leader alone: when a group becomes synchronous its leader starts alone in the
in-sync set, and the others rejoin when they have everything. If the leader is lost before that, the
group waits for it (docs/formats/ha.md, section 6.6).
"""

from msgspec.structs import replace

from ..group_state import GroupState, Policy, Ref
from .events import Replica, SetPolicy


def requested_policy(state: GroupState, event: SetPolicy) -> Policy:
    """Return the requested policy. Unset fields stay; an asynchronous group has minimum 1."""
    sync = state.policy.sync if event.sync is None else event.sync
    kept = state.policy.min_in_sync if sync else 1
    return replace(state.policy, sync=sync, min_in_sync=event.min_in_sync or kept)


def policy_refusal(state: GroupState, policy: Policy, live: int) -> str:
    """Return why the policy cannot be set, or an empty string. `live`: in-sync replicas alive
    now."""
    if policy.min_in_sync > 1 and not policy.sync:
        return (
            "an asynchronous group never waits for a replica, so a minimum of "
            f"{policy.min_in_sync} in sync cannot be kept"
        )
    if policy.min_in_sync > live:
        return (
            f"only {live} of {len(state.members)} replicas are in sync: with at least"
            f" {policy.min_in_sync} nothing could be written"
        )
    return ""


def reelection_state(state: GroupState, policy: Policy, leader: Ref) -> GroupState:
    """Return the state from which the leader is elected again; the version stays."""
    if policy.sync and not state.policy.sync:
        state = state.with_(version=state.version, in_sync=(leader,), eligible=())
    return state.with_(version=state.version, policy=policy)


def policy_plan(leader: Replica, old: Policy, new: Policy) -> list[str]:
    """Return the steps of a dry run."""
    broker_id = leader.heartbeat.broker_id
    return [
        f"the group is {describe_policy(old)}; it would be {describe_policy(new)}",
        f"would direct broker {broker_id} to step down when its followers have everything",
        f"would elect broker {broker_id} again, for an epoch with the new policy",
    ]


def describe_policy(policy: Policy) -> str:
    """Return a policy as text."""
    kind = "synchronous" if policy.sync else "asynchronous"
    return f"{kind}, with at least {policy.min_in_sync} in sync"
