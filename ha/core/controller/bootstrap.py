"""The first state of a group: a new group's first leader, and a lost store rebuilt (pure).

A new group (no replica has a state on its disk) is founded with one leader alone in the in-sync set; the
others join it by the ordinary proposals. Broker 0 is the founder when it is there and nobody has more.

A store that was lost (HA note, 6.3 and drill 22) is rebuilt from the copies on the replicas: the highest
version, provided that a replica which was in sync in that version is among those that answered, and
that others had the grace time to say more. What the lost store may have decided after that is kept apart
from what comes now: versions and epochs jump, so that no number is given out twice.
"""

from collections.abc import Iterable, Mapping

from ..group_state import GroupState, Member, Policy
from .events import Limits, Replica

#: Far more decisions than a group can have made between the newest copy on a replica and the loss.
JUMP = 1_000


def newest_known(replicas: Iterable[Replica]) -> GroupState | None:
    """The highest version that any replica has on its disk."""
    known = [r.known for r in replicas if r.known is not None and not r.known.is_new]
    return max(known, key=lambda state: state.version, default=None)


def may_rebuild(
    known: GroupState, replicas: Mapping[int, Replica], now_ns: int, limits: Limits
) -> bool:
    """A replica that was in sync in the highest known version answers now."""
    return any(r.alive(now_ns, limits) and _was_in_sync(known, r) for r in replicas.values())


def _was_in_sync(known: GroupState, replica: Replica) -> bool:
    ref = known.in_sync_ref(replica.beat.broker_id)
    member = known.member(replica.beat.broker_id)
    same_disk = member is not None and member.replica_uuid in ("", replica.beat.replica_uuid)
    return ref is not None and same_disk and replica.beat.incarnation >= ref.incarnation


def all_answered(
    known: GroupState, replicas: Mapping[int, Replica], now_ns: int, limits: Limits
) -> bool:
    """Nobody is left who could know more."""
    return all(
        m.broker_id in replicas and replicas[m.broker_id].alive(now_ns, limits)
        for m in known.members
    )


def rebuilt(known: GroupState, replicas: Iterable[Replica]) -> GroupState:
    """`known` as the store's first entry; numbers jump over what may have been lost."""
    epochs = [known.epoch, known.epoch_floor]
    for replica in replicas:
        epochs += (replica.beat.promised_epoch, replica.beat.last_epoch)
    return known.with_(version=known.version + JUMP, epoch_floor=max(epochs) + JUMP)


def founder(
    replicas: Mapping[int, Replica], now_ns: int, limits: Limits, *, grace_over: bool
) -> Replica | None:
    """Who leads a new group first, or None while it is not clear."""
    alive = {i: r for i, r in replicas.items() if r.alive(now_ns, limits) and not r.beat.learner}
    best = max(alive.values(), key=_weight, default=None)
    if best is None:
        return None
    zero = alive.get(0)
    if zero is not None and (best is zero or _weight(best)[:4] == _weight(zero)[:4]):
        waited = now_ns - zero.first_ns >= 2 * limits.beat_ns and zero.beats >= 2
        if zero.beat.log_is_empty or waited or grace_over:
            return zero
        return None
    return best if grace_over else None


def _weight(replica: Replica) -> tuple[int, ...]:
    """The larger founds the group: whoever is whole, has the newest epoch and the longer log."""
    beat = replica.beat
    whole = int(not beat.suspect)
    content = int(not beat.log_is_empty)
    return (content, whole, beat.last_epoch, beat.log_end, beat.priority, -beat.broker_id)


def founded(
    cluster: str, group: str, leader: Replica, replicas: Iterable[Replica], epoch: int
) -> GroupState:
    """The first state: the founder alone is in sync."""
    beat = leader.beat
    state = GroupState(
        cluster=cluster,
        group=group,
        version=1,
        epoch=epoch,
        leader=beat.ref,
        in_sync=(beat.ref,),
        policy=beat.policy or Policy(),
    )
    for replica in replicas:
        other = replica.beat
        state = state.with_member(
            Member(other.broker_id, other.replica_uuid, other.addresses, other.suspect)
        )
    return state
