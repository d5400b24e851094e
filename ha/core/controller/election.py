"""Election: candidates, their order, and the state after the election (pure).

A candidate is a live replica of the in-sync set; if there is none, of the eligible set. Candidates
rank by: able to lead immediately (disk not full, no failed promotion), newest epoch, log end at the
group's flush level, priority, lower broker id. The new in-sync set keeps every live member of the
old one, not only the winner: with three replicas a second failure right after the first must still
find a candidate (docs/formats/ha.md, rule R3).
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from ..group_state import GroupState, Ref, ordered_refs, without
from .events import Limits, Replica


class Verdict(Struct, frozen=True):
    """Outcome of an election."""

    winner: Replica | None
    from_eligible: bool = False
    live_in_sync: tuple[Ref, ...] = ()
    refused: tuple[str, ...] = ()  #: why each live replica cannot lead
    missing: tuple[Ref, ...] = ()  #: seats without a live replica
    #: seats of earlier incarnations whose replica returned without the data
    lost: tuple[Ref, ...] = ()

    @property
    def reason(self) -> str:
        """Why no replica can lead."""
        parts = list(self.refused)
        if self.missing:
            ids = ", ".join(str(ref.broker_id) for ref in self.missing)
            parts.append(f"waiting for broker {ids}, which may hold everything confirmed")
        return "; ".join(parts) or "no replica is connected"


def find_leader(
    state: GroupState, replicas: Mapping[int, Replica], now_ns: int, limits: Limits
) -> Verdict:
    """Return the best live candidate and the reasons against the others."""
    alive = [r for r in replicas.values() if r.alive(now_ns, limits)]
    refused = [
        f"broker {r.heartbeat.broker_id} {why}"
        for r in alive
        if (why := disqualification(state, r))
    ]
    seat_holders = {r.ref: r for r in alive if not disqualification(state, r)}
    in_sync = [seat_holders[ref] for ref in state.in_sync if ref in seat_holders]
    eligible = [seat_holders[ref] for ref in state.eligible if ref in seat_holders]
    live = {r.ref for r in alive}
    whole = {r.ref for r in alive if not (r.heartbeat.suspect or r.heartbeat.learner)}
    staying = {r.ref for r in alive if not r.heartbeat.leaving}
    seats = (*state.in_sync, *state.eligible)
    lost = tuple(ref for ref in seats if _returned_without_data(ref, replicas))
    candidates = in_sync or eligible
    winner = max(candidates, key=lambda r: rank(state, r), default=None)
    if winner is not None and winner.ref in staying:
        whole &= staying  # else all of them stop, and each may be the first to return
    return Verdict(
        winner=winner,
        from_eligible=not in_sync and bool(eligible),
        live_in_sync=tuple(ref for ref in state.in_sync if ref in whole),
        refused=tuple(refused),
        missing=tuple(ref for ref in seats if ref not in live and ref not in lost),
        lost=lost,
    )


def _returned_without_data(ref: Ref, replicas: Mapping[int, Replica]) -> bool:
    replica = replicas.get(ref.broker_id)
    return replica is not None and replica.ref != ref


def disqualification(state: GroupState, replica: Replica) -> str:
    """Return why this live replica must not lead, or an empty string."""
    heartbeat = replica.heartbeat
    member = state.member(heartbeat.broker_id)
    if heartbeat.ref not in state.in_sync and heartbeat.ref not in state.eligible:
        why = "is not in sync"
        if heartbeat.suspect:
            why += ": it may have lost messages that it had acknowledged"
        return why
    if heartbeat.suspect:
        return "may have lost messages that it had acknowledged"
    if heartbeat.learner:
        return "is a learner"
    if member is not None and member.partial:
        return "has only the newer part of the log"
    # Whether its log reaches the confirmed end is checked at registration (`membership.py`): later
    # heartbeats may be older than the proposal by which the leader added it.
    return ""


def rank(state: GroupState, replica: Replica) -> tuple[int, ...]:
    """Return the rank of a candidate; the largest wins."""
    heartbeat = replica.heartbeat
    failed = replica.failed_epoch > 0 and replica.failed_epoch >= state.epoch
    end = heartbeat.flushed_end if state.policy.sync_flush else heartbeat.log_end
    # A replica that has just drained or that stops ranks last too.
    stops = heartbeat.drained or heartbeat.leaving
    usable = not failed and not heartbeat.no_room and not stops
    return (int(usable), heartbeat.last_epoch, end, heartbeat.priority, -heartbeat.broker_id)


def next_epoch(state: GroupState, replicas: Iterable[Replica]) -> int:
    """Return an epoch above every epoch promised or written by any replica."""
    seen = [state.epoch, state.epoch_floor]
    for replica in replicas:
        heartbeat = replica.heartbeat
        seen += (heartbeat.promised_epoch, heartbeat.last_epoch, heartbeat.heard_epoch)
    return max(seen) + 1


def elected(state: GroupState, verdict: Verdict, epoch: int) -> GroupState:
    """Return the state after the election; the version stays."""
    assert verdict.winner is not None
    heartbeat = verdict.winner.heartbeat
    in_sync = ordered_refs(
        [*(() if verdict.from_eligible else verdict.live_in_sync), heartbeat.ref]
    )
    seats = (*state.in_sync, *state.eligible)
    left = [ref for ref in seats if ref not in in_sync and ref not in verdict.lost]
    policy = state.policy
    # Below the minimum nothing is confirmed, so a member that leaves keeps everything confirmed.
    eligible = ordered_refs(left) if len(in_sync) < policy.min_in_sync else ()
    eligible = without(eligible, *(ref.broker_id for ref in in_sync))
    reached = min(heartbeat.confirm, heartbeat.log_end)
    floor = state.confirm_floor
    return state.with_(
        version=state.version,
        epoch=epoch,
        leader=heartbeat.ref,
        in_sync=in_sync,
        eligible=eligible,
        last_proposal_seq=0,
        confirm_floor=max(floor, reached) if policy.sync else min(floor, heartbeat.log_end),
        hold_reason="",
        hold_since_ms=0,
        accept_loss=state.accept_loss and len(in_sync) < len(state.members),
    )


def forced(state: GroupState, target: Replica, epoch: int) -> GroupState:
    """Return the state after an operator forced `target` to lead; the version stays.

    `target` is alone in the in-sync set, because no other replica is known to hold the same log.
    """
    heartbeat = target.heartbeat
    return state.with_(
        version=state.version,
        epoch=epoch,
        leader=heartbeat.ref,
        in_sync=(heartbeat.ref,),
        eligible=(),
        last_proposal_seq=0,
        confirm_floor=min(state.confirm_floor, heartbeat.log_end),
        hold_reason="",
        hold_since_ms=0,
        accept_loss=True,
    )
