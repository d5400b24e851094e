"""Codec between `cometmq.v1` messages and the group state of the pure core.

Used for the replicas' copies, the stream's hello, the nameservers and the operators' commands. Only
protobuf's own checks apply here; `GroupState.validate` checks the invariants.
"""

from ...proto import v1
from ..core.group_state import Addresses, GroupState, Member, Policy, Ref


def state_message(state: GroupState) -> v1.GroupState:
    """Return the message of a state, as on the wire and on disk."""
    return v1.GroupState(
        cluster=state.cluster,
        group=state.group,
        version=state.version,
        epoch=state.epoch,
        leader=None if state.leader is None else ref_message(state.leader),
        in_sync=[ref_message(ref) for ref in state.in_sync],
        eligible=[ref_message(ref) for ref in state.eligible],
        members=[member_message(member) for member in state.members],
        last_proposal_seq=state.last_proposal_seq,
        confirm_floor=state.confirm_floor,
        hold_reason=state.hold_reason,
        hold_since_ms=state.hold_since_ms,
        policy=policy_message(state.policy),
        drain=state.drain,
        accept_loss=state.accept_loss,
        epoch_floor=state.epoch_floor,
    )


def state_from(message: v1.GroupState) -> GroupState:
    """Return the state of a message; version 0 for an empty one."""
    return GroupState(
        cluster=message.cluster,
        group=message.group,
        version=message.version,
        epoch=message.epoch,
        leader=ref_from(message.leader) if message.HasField("leader") else None,
        in_sync=tuple(ref_from(ref) for ref in message.in_sync),
        eligible=tuple(ref_from(ref) for ref in message.eligible),
        members=tuple(member_from(member) for member in message.members),
        last_proposal_seq=message.last_proposal_seq,
        confirm_floor=message.confirm_floor,
        hold_reason=message.hold_reason,
        hold_since_ms=message.hold_since_ms,
        policy=policy_from(message.policy),
        drain=message.drain,
        accept_loss=message.accept_loss,
        epoch_floor=message.epoch_floor,
    )


def ref_message(ref: Ref) -> v1.ReplicaRef:
    """Return the message of an incarnation."""
    return v1.ReplicaRef(broker_id=ref.broker_id, incarnation=ref.incarnation)


def ref_from(message: v1.ReplicaRef) -> Ref:
    """Return the incarnation of a message."""
    return Ref(message.broker_id, message.incarnation)


def member_message(member: Member) -> v1.GroupMember:
    """Return the message of a member."""
    addresses = member.addresses
    return v1.GroupMember(
        broker_id=member.broker_id,
        replica_uuid=member.replica_uuid,
        addresses=v1.ReplicaAddresses(
            client=addresses.client, ha=addresses.ha, metrics=addresses.metrics
        ),
        suspect=member.suspect,
        partial=member.partial,
    )


def member_from(message: v1.GroupMember) -> Member:
    """Return the member of a message."""
    return Member(
        message.broker_id,
        message.replica_uuid,
        addresses_from(message.addresses),
        message.suspect,
        message.partial,
    )


def addresses_from(message: v1.ReplicaAddresses) -> Addresses:
    """Return the addresses of a message."""
    return Addresses(message.client, message.ha, message.metrics)


def policy_message(policy: Policy) -> v1.GroupPolicy:
    """Return the message of a policy."""
    return v1.GroupPolicy(
        sync=policy.sync, sync_flush=policy.sync_flush, min_in_sync=policy.min_in_sync
    )


def policy_from(message: v1.GroupPolicy) -> Policy:
    """Return the policy of a message; an unset minimum is 1."""
    return Policy(message.sync, message.sync_flush, max(1, message.min_in_sync))
