"""Who leads next: candidates, their order, and the state after the election (pure; HA note, rule R3).

A candidate is a live replica of the in-sync set; if there is none, of the eligible set. Between
candidates: one that can lead at once (has room, did not just fail to), then the newest epoch, the longer
log (as far as it counts at the group's flush level), the priority, the lower broker id. The new in-sync
set is whoever of the old one is alive, not the winner alone: with three replicas a second failure right
after the first must still find a candidate.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..group_state import GroupState, Ref, ordered_refs, without
from .events import Limits, Replica


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of looking for a leader."""

    winner: Replica | None
    from_eligible: bool = False
    live_in_sync: tuple[Ref, ...] = ()
    refused: tuple[str, ...] = ()  #: why each live replica cannot lead, for people
    missing: tuple[Ref, ...] = ()  #: seats to which nobody alive answers
    lost: tuple[Ref, ...] = ()  #: seats of former lives, whose replica came back without them

    @property
    def reason(self) -> str:
        """Why nobody can lead, for people."""
        parts = list(self.refused)
        if self.missing:
            ids = ", ".join(str(ref.broker_id) for ref in self.missing)
            parts.append(f"waiting for broker {ids}, which may hold everything confirmed")
        return "; ".join(parts) or "no replica is connected"


def find_leader(
    state: GroupState, replicas: Mapping[int, Replica], now_ns: int, limits: Limits
) -> Verdict:
    """Who of the live replicas may lead, and is the best of them."""
    alive = [r for r in replicas.values() if r.alive(now_ns, limits)]
    refused = [f"broker {r.beat.broker_id} {why}" for r in alive if (why := objection(state, r))]
    seated = {r.ref: r for r in alive if not objection(state, r)}
    in_sync = [seated[ref] for ref in state.in_sync if ref in seated]
    eligible = [seated[ref] for ref in state.eligible if ref in seated]
    live = {r.ref for r in alive}
    whole = {r.ref for r in alive if not (r.beat.suspect or r.beat.learner)}
    seats = (*state.in_sync, *state.eligible)
    lost = tuple(ref for ref in seats if _came_back_without(ref, replicas))
    candidates = in_sync or eligible
    return Verdict(
        winner=max(candidates, key=lambda r: rank(state, r), default=None),
        from_eligible=not in_sync and bool(eligible),
        live_in_sync=tuple(ref for ref in state.in_sync if ref in whole),
        refused=tuple(refused),
        missing=tuple(ref for ref in seats if ref not in live and ref not in lost),
        lost=lost,
    )


def _came_back_without(ref: Ref, replicas: Mapping[int, Replica]) -> bool:
    replica = replicas.get(ref.broker_id)
    return replica is not None and replica.ref != ref


def objection(state: GroupState, replica: Replica) -> str:
    """Why this live replica must not lead; empty: it may."""
    beat = replica.beat
    member = state.member(beat.broker_id)
    if beat.ref not in state.in_sync and beat.ref not in state.eligible:
        why = "is not in sync"
        if beat.suspect:
            why += ": it may have lost messages that it had acknowledged"
        return why
    if beat.suspect:
        return "may have lost messages that it had acknowledged"
    if beat.learner:
        return "is a learner"
    if member is not None and member.partial:
        return "has only the newer part of the log"
    # Whether its log reaches what was confirmed is asked when a life registers (`membership.py`): later
    # beats may be older than the proposal by which the leader took it in.
    return ""


def rank(state: GroupState, replica: Replica) -> tuple[int, ...]:
    """The larger leads."""
    beat = replica.beat
    failed = replica.failed_epoch > 0 and replica.failed_epoch >= state.epoch
    end = beat.flushed_end if state.policy.sync_flush else beat.log_end
    # Who has just handed everything over, perhaps because it stops, comes last too.
    usable = not failed and not beat.no_room and not beat.drained
    return (int(usable), beat.last_epoch, end, beat.priority, -beat.broker_id)


def next_epoch(state: GroupState, replicas: Iterable[Replica]) -> int:
    """Above everything that anybody has promised or written."""
    seen = [state.epoch, state.epoch_floor]
    for replica in replicas:
        beat = replica.beat
        seen += (beat.promised_epoch, beat.last_epoch, beat.heard_epoch)
    return max(seen) + 1


def elected(state: GroupState, verdict: Verdict, epoch: int) -> GroupState:
    """The state after the verdict's winner was elected for `epoch`; the version is not moved."""
    assert verdict.winner is not None
    beat = verdict.winner.beat
    in_sync = ordered_refs([*(() if verdict.from_eligible else verdict.live_in_sync), beat.ref])
    seats = (*state.in_sync, *state.eligible)
    left = [ref for ref in seats if ref not in in_sync and ref not in verdict.lost]
    policy = state.policy
    # Below the minimum nothing will be confirmed, so whoever leaves keeps holding everything.
    eligible = ordered_refs(left) if len(in_sync) < policy.min_in_sync else ()
    eligible = without(eligible, *(ref.broker_id for ref in in_sync))
    reached = min(beat.confirm, beat.log_end)
    floor = state.confirm_floor
    return state.with_(
        version=state.version,
        epoch=epoch,
        leader=beat.ref,
        in_sync=in_sync,
        eligible=eligible,
        last_proposal_seq=0,
        confirm_floor=max(floor, reached) if policy.sync else min(floor, beat.log_end),
        hold_reason="",
        hold_since_ms=0,
        accept_loss=state.accept_loss and len(in_sync) < len(state.members),
    )


def forced(state: GroupState, target: Replica, epoch: int) -> GroupState:
    """The state after an operator made `target` the leader and accepted the loss; the version is not
    moved. Nobody else holds what it holds, so it is alone in the in-sync set."""
    beat = target.beat
    return state.with_(
        version=state.version,
        epoch=epoch,
        leader=beat.ref,
        in_sync=(beat.ref,),
        eligible=(),
        last_proposal_seq=0,
        confirm_floor=min(state.confirm_floor, beat.log_end),
        hold_reason="",
        hold_since_ms=0,
        accept_loss=True,
    )
