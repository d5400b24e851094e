"""Bootstrap of a group: the first leader of a new group, and recovery of a lost state store (pure).

A new group (no replica has a state on disk) starts with a leader alone in the in-sync set; the
other replicas join by ordinary proposals. Broker 0 becomes the first leader unless another replica
has more data.

A lost state store (docs/formats/ha.md, section 6.3 and drill 22) is rebuilt from the copies on the
replicas: the highest version, provided that a replica which was in sync in that version is alive
and the other members had the grace time to report. Versions and epochs jump, so that no number
which the lost store may have used is used twice.
"""

from collections.abc import Iterable, Mapping

from ..group_state import GroupState, Member, Policy
from .events import Limits, Replica

#: Distance of the jump: far more decisions than can separate the newest replica's copy from the
#: loss.
JUMP = 1_000


def newest_known(replicas: Iterable[Replica]) -> GroupState | None:
    """Return the state with the highest version on any replica's disk."""
    known = [r.known for r in replicas if r.known is not None and not r.known.is_new]
    return max(known, key=lambda state: state.version, default=None)


def may_rebuild(
    known: GroupState, replicas: Mapping[int, Replica], now_ns: int, limits: Limits
) -> bool:
    """Return whether a replica that was in sync in `known` is alive."""
    return any(r.alive(now_ns, limits) and _was_in_sync(known, r) for r in replicas.values())


def _was_in_sync(known: GroupState, replica: Replica) -> bool:
    ref = known.in_sync_ref(replica.heartbeat.broker_id)
    member = known.member(replica.heartbeat.broker_id)
    same_disk = member is not None and member.replica_uuid in ("", replica.heartbeat.replica_uuid)
    return ref is not None and same_disk and replica.heartbeat.incarnation >= ref.incarnation


def all_answered(
    known: GroupState, replicas: Mapping[int, Replica], now_ns: int, limits: Limits
) -> bool:
    """Return whether every member of `known` is alive."""
    return all(
        m.broker_id in replicas and replicas[m.broker_id].alive(now_ns, limits)
        for m in known.members
    )


def rebuilt(known: GroupState, replicas: Iterable[Replica]) -> GroupState:
    """Return `known` as the store's first entry, with version and epochs moved past lost
    decisions."""
    epochs = [known.epoch, known.epoch_floor]
    for replica in replicas:
        epochs += (replica.heartbeat.promised_epoch, replica.heartbeat.last_epoch)
    return known.with_(version=known.version + JUMP, epoch_floor=max(epochs) + JUMP)


def first_leader(
    replicas: Mapping[int, Replica], now_ns: int, limits: Limits, *, grace_over: bool
) -> Replica | None:
    """Return the first leader of a new group, or None while the choice is open."""
    alive = {
        i: r for i, r in replicas.items() if r.alive(now_ns, limits) and not r.heartbeat.learner
    }
    best = max(alive.values(), key=_weight, default=None)
    if best is None:
        return None
    zero = alive.get(0)
    if zero is not None and (best is zero or _weight(best)[:4] == _weight(zero)[:4]):
        waited = now_ns - zero.first_ns >= 2 * limits.heartbeat_ns and zero.heartbeats >= 2
        if zero.heartbeat.log_is_empty or waited or grace_over:
            return zero
        return None
    return best if grace_over else None


def _weight(replica: Replica) -> tuple[int, ...]:
    """Return the rank of a candidate; the largest becomes the first leader."""
    heartbeat = replica.heartbeat
    whole = int(not heartbeat.suspect)
    content = int(not heartbeat.log_is_empty)
    return (
        content,
        whole,
        heartbeat.last_epoch,
        heartbeat.log_end,
        heartbeat.priority,
        -heartbeat.broker_id,
    )


def first_state(
    cluster: str, group: str, leader: Replica, replicas: Iterable[Replica], epoch: int
) -> GroupState:
    """Return the first state, with the first leader alone in sync."""
    heartbeat = leader.heartbeat
    state = GroupState(
        cluster=cluster,
        group=group,
        version=1,
        epoch=epoch,
        leader=heartbeat.ref,
        in_sync=(heartbeat.ref,),
        policy=heartbeat.policy or Policy(),
    )
    for replica in replicas:
        other = replica.heartbeat
        state = state.with_member(
            Member(other.broker_id, other.replica_uuid, other.addresses, other.suspect)
        )
    return state
