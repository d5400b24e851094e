"""Heartbeats to controllers, and parts of the Status answer."""

from ...proto import v1
from ..core.group_state import Policy
from ..core.lease import FOREVER_NS
from ..events import ReplicationEvents
from ..state.replica import Replica
from ..state.state_codec import policy_message, state_message
from .role_driver import RoleDriver

#: Reported for a permission without end.
_FOREVER_MS = 1 << 31


def heartbeat(
    replica: Replica,
    roles: RoleDriver,
    events: ReplicationEvents,
    addresses: v1.ReplicaAddresses,
    write_refusal: str,
) -> v1.BrokerBeat:
    """Return the heartbeat; the sender sets its number and time."""
    log, identity, meta = replica.log, replica.identity, replica.meta
    state = replica.state
    heard_epoch, heard_age_ms = _leader_age(replica, roles)
    # A leader that only lacks permission proves no free seat: it resumes as soon as it is answered.
    is_leader = roles.leader is not None or roles.machine.may_resume
    return v1.BrokerBeat(
        replica=v1.ReplicaIdentity(
            cluster=identity.cluster,
            group=identity.group,
            broker_id=identity.broker_id,
            replica_uuid=meta.replica_uuid,
            incarnation=meta.incarnation,
        ),
        addresses=addresses,
        role=v1.LEADER if is_leader else v1.FOLLOWER,
        promised_epoch=replica.promised_epoch,
        last_epoch=replica.history.last_epoch,
        log_start=log.log_start,
        log_end=log.log_end,
        flushed_end=log.flushed_offset,
        confirm=roles.confirm if roles.leader is None else roles.leader.core.replicated,
        suspect=meta.suspect,
        heard_epoch=heard_epoch,
        heard_age_ms=heard_age_ms,
        known=None if state is None else state_message(state),
        policy=policy_message(_own_policy(replica)),
        disk_use=events.disk_use(),
        log_is_empty=log.log_end == log.log_start,
        write_refusal=write_refusal if is_leader else "",
        priority=replica.config.ha_priority,
        drained=roles.drained,
        no_room=bool(getattr(log, "no_room", False)),
        leaving=roles.leaving,
        leader_refused=roles.follower is not None and roles.follower.leader_refused,
        process=replica.process,
        lacks_quorum=roles.leader is not None and roles.leader.core.lacks_quorum,
    )


def _own_policy(replica: Replica) -> Policy:
    """Return the policy that this replica's configuration gives a new group."""
    config = replica.config
    is_sync = config.broker_role == "SYNC_MASTER"
    return Policy(is_sync, replica.sync_flush, config.min_in_sync_replicas)


def _leader_age(replica: Replica, roles: RoleDriver) -> tuple[int, int]:
    """Return the epoch of the followed leader and the age of its last frame in ms; 0 and -1:
    none."""
    side = roles.follower
    if side is None or side.stopped or not side.frame_ns:
        return 0, -1
    return side.core.epoch, (replica.steady_ns() - side.frame_ns) // 1_000_000


_AWAITS_NAMESERVERS = (
    "sends wait until a majority of the nameservers has taken the in-sync set, so that no replica"
    " without their messages is promoted: start the nameservers"
)


def status_detail(roles: RoleDriver) -> str:
    """Return the reason of a replica's state, for operators."""
    if roles.machine.hold_reason:
        return roles.machine.hold_reason
    if roles.follower is not None and roles.follower.core.refusal_code:
        return f"{roles.follower.core.refusal_code}: {roles.follower.core.refusal}"
    if roles.leader is None:
        return ""
    waiting = roles.leader.core.awaits_nameservers
    return roles.leader.core.refusal or (_AWAITS_NAMESERVERS if waiting else "")


def may_write_ms(replica: Replica, roles: RoleDriver) -> int:
    """Return the rest of a leader's permission to write; -1: none."""
    now_ns, lease = replica.steady_ns(), roles.machine.lease
    if not roles.machine.may_write(now_ns):
        return -1
    left_ms = (lease.until_ns - now_ns) // 1_000_000
    return left_ms if lease.until_ns < FOREVER_NS else _FOREVER_MS
