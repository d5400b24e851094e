"""Rules for registrations: shape, position, leadership (pure). `routes.py` has the table."""

import re

from ..nodes.addresses import host_of, is_host
from .rows import (
    DuplicateReplica,
    Group,
    Member,
    Registration,
    RegistrationRefused,
    Role,
    StaleReplica,
)

# A registration comes from a broker with the cluster token, so these limits only stop a faulty one
# from filling the memory: far above any cluster of one nameserver.
GROUPS_MAX = 1_024
REPLICAS_PER_GROUP_MAX = 16
TOPICS_PER_GROUP_MAX = 200_000
_PORT_MAX, _PORT_DIGITS = 65_535, 5


def check_shape(registration: Registration) -> None:
    replica = registration.replica
    if not (replica.cluster and replica.group and replica.uuid and registration.addresses.client):
        raise RegistrationRefused(
            "a registration needs a cluster, a group, a replica uuid and a client address."
        )
    known = registration.addresses
    for text in (known.client, known.ha, known.remoting, known.remoting_advertised):
        for address in filter(None, re.split("[;,]", text)):
            if not _is_address(address):
                raise RegistrationRefused(f"'{address}' is not an address: it must be HOST:PORT.")
    if replica.broker_id < 0:
        raise RegistrationRefused(f"brokerId is {replica.broker_id}, but must not be negative.")
    in_sync = registration.in_sync
    if in_sync is not None and len(in_sync.replica_uuids) > REPLICAS_PER_GROUP_MAX:
        raise RegistrationRefused(
            f"the in-sync set has {len(in_sync.replica_uuids)} replicas; the limit is"
            f" {REPLICAS_PER_GROUP_MAX}."
        )
    if len(registration.topics) > TOPICS_PER_GROUP_MAX:
        raise RegistrationRefused(
            f"the table has {len(registration.topics)} topics; the limit is {TOPICS_PER_GROUP_MAX}."
        )


def _is_address(address: str) -> bool:
    """Return whether it is HOST:PORT: tools dial it, and `ha rolling-restart` runs ssh with it."""
    port = address.rpartition(":")[2]
    number = int(port) if len(port) <= _PORT_DIGITS and port.isascii() and port.isdigit() else 0
    return is_host(host_of(address)) and 0 < number <= _PORT_MAX


def is_repeated(member: Member, registration: Registration) -> bool:
    return (
        member.replica == registration.replica
        and registration.sequence <= member.sequence
        and member.addresses == registration.addresses
    )


def check_position(group: Group, member: Member | None, registration: Registration) -> None:
    """Raise unless the broker id and the replica belong to this process."""
    replica = registration.replica
    for other in group.members.values():
        if other.replica.uuid == replica.uuid:
            _check_same_replica(other, registration)
    if member is None:
        if len(group.members) >= REPLICAS_PER_GROUP_MAX:
            raise RegistrationRefused(
                f"group {group.name} already has {REPLICAS_PER_GROUP_MAX} replicas, the limit."
            )
    elif member.replica.uuid != replica.uuid and member.alive:
        raise DuplicateReplica(
            f"brokerId {replica.broker_id} of group {group.name} is held by the replica at"
            f" {member.addresses.client}, which is alive: give this one another brokerId, or stop"
            " the other."
        )


def _check_same_replica(known: Member, registration: Registration) -> None:
    replica = registration.replica
    if replica.incarnation < known.replica.incarnation:
        raise StaleReplica(
            f"a newer process of this replica (incarnation {known.replica.incarnation}) has"
            f" registered from {known.addresses.client}; this one is incarnation"
            f" {replica.incarnation}: stop it."
        )
    moved = known.addresses != registration.addresses or known.replica != replica
    if replica.incarnation == known.replica.incarnation and known.alive and moved:
        raise DuplicateReplica(
            f"the same replica is alive at {known.addresses.client}: was its data directory"
            " copied? Delete ha/replica.meta in the copy, or stop one of the two."
        )


def check_leadership(group: Group, registration: Registration) -> None:
    if registration.role is not Role.LEADER:
        return
    if registration.epoch < group.leader_epoch:
        raise StaleReplica(
            f"epoch {registration.epoch} of group {group.name} is over: its epoch is"
            f" {group.leader_epoch}. A former leader must come back as a follower."
        )
    replica = registration.replica
    decision = group.decision
    if decision is not None and decision.names_another(registration.epoch, replica):
        raise StaleReplica(
            f"another replica was elected for epoch {decision.epoch} of group {group.name}."
        )
    leader = group.leader()
    if leader is None or registration.epoch > group.leader_epoch:
        return
    if leader.replica.uuid != replica.uuid and leader.replica.broker_id != replica.broker_id:
        raise DuplicateReplica(
            f"group {group.name} has a leader of epoch {group.leader_epoch} at"
            f" {leader.addresses.client}; a second one in the same epoch is refused."
        )


def needs_full(member: Member, registration: Registration) -> bool:
    return member.table_version != registration.table_version
