"""Codec between `cometmq.v1` messages and the rows of `routes.py`; pure."""

from ..ha.core.group_state import GroupState
from ..proto import v1
from .rows import (
    Addresses,
    Decision,
    Group,
    InSyncSet,
    Member,
    Registration,
    Replica,
    Role,
    Topic,
)


def replica_from(message: v1.ReplicaIdentity) -> Replica:
    """Return the replica identity of a message."""
    return Replica(
        message.cluster,
        message.group,
        message.broker_id,
        message.replica_uuid,
        message.incarnation,
    )


def registration_from(request: v1.RegisterRequest) -> Registration:
    """Return the registration of a message."""
    addresses = request.addresses
    return Registration(
        replica=replica_from(request.replica),
        addresses=Addresses(
            addresses.client,
            addresses.ha,
            addresses.metrics,
            addresses.remoting,
            addresses.remoting_advertised,
        ),
        role=Role.LEADER if request.role == v1.LEADER else Role.FOLLOWER,
        epoch=request.epoch,
        sequence=request.registration_seq,
        table_version=request.table_version,
        full=request.full,
        topics=tuple(
            Topic(t.name, t.read_queues, t.write_queues, t.perm, t.message_type)
            for t in request.topics
        ),
        log_end=request.log_end,
        confirm=request.confirm,
        in_sync=in_sync_from(request.in_sync) if request.HasField("in_sync") else None,
    )


def in_sync_from(message: v1.InSyncSet) -> InSyncSet:
    """Return the in-sync set of a message."""
    return InSyncSet(
        message.epoch,
        message.incarnation,
        message.revision,
        message.leader_uuid,
        tuple(message.replica_uuids),
        message.nameservers,
    )


def in_sync_message(found: InSyncSet) -> v1.InSyncSet:
    """Return the message of an in-sync set."""
    return v1.InSyncSet(
        epoch=found.epoch,
        leader_uuid=found.leader_uuid,
        incarnation=found.incarnation,
        revision=found.revision,
        replica_uuids=found.replica_uuids,
        nameservers=found.nameservers,
    )


def group_route(group: Group) -> v1.GroupRoute:
    """Return the message of a group."""
    return v1.GroupRoute(
        group=group.name,
        members=[_member(member) for member in group.in_order()],
        topics=[
            v1.TopicRoute(
                name=t.name,
                read_queues=t.read_queues,
                write_queues=t.write_queues,
                perm=t.perm,
                message_type=t.message_type,
            )
            for t in group.topics().values()
        ],
        epoch=group.leader_epoch,
        read_only=bool(note := group.why_read_only()),
        note=note,
        in_sync=None if group.in_sync is None else in_sync_message(group.in_sync),
    )


def decision_from(state: GroupState) -> Decision:
    """Return the routes' part of a group's state."""
    leader = state.leader
    return Decision(
        state.cluster,
        state.group,
        state.epoch,
        leader=None if leader is None else (leader.broker_id, leader.incarnation),
        hold=state.hold_reason,
        drain=state.drain,
    )


def _member(member: Member) -> v1.Member:
    replica = member.replica
    addresses = member.addresses
    return v1.Member(
        replica=v1.ReplicaIdentity(
            cluster=replica.cluster,
            group=replica.group,
            broker_id=replica.broker_id,
            replica_uuid=replica.uuid,
            incarnation=replica.incarnation,
        ),
        addresses=v1.ReplicaAddresses(
            client=addresses.client,
            ha=addresses.ha,
            metrics=addresses.metrics,
            remoting=addresses.remoting,
            remoting_advertised=addresses.remoting_advertised,
        ),
        role=v1.LEADER if member.role is Role.LEADER else v1.FOLLOWER,
        alive=member.alive,
        epoch=member.epoch,
        log_end=member.log_end,
        confirm=member.confirm,
    )
