"""The decider of a static group: the sequence by which a script changes its leader (HA note, 6.14).

Read the states of all replicas that answer -> insist that one of the in-sync set is among them -> fence everybody with
the next epoch -> go on only when the old leader is out (it took the fence, nobody listens at its
ports, or the operator says that it is dead) -> choose the most advanced -> write the state (version + 1) -> Promote ->
Follow -> wait until the first record of the epoch is confirmed. Every step is said as it is done. Nothing is
changed before the fence; what would lose messages needs `accept_loss`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...proto import paths, v1
from ..errors import CliError, Exit
from .doors import Replica

PROMOTE_S = 30.0
_POLL_S = 0.1
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PromotionRequest:
    """What the operator wants, and what they take upon themselves."""

    to: int = -1  # broker id; -1: the most advanced
    accept_loss: bool = False
    leader_is_dead: bool = False
    dry_run: bool = False
    max_wait_ms: int = 10_000
    timeout_s: float = PROMOTE_S


def newest_state(replicas: Sequence[Replica]) -> v1.GroupState:
    """The state of the highest version that a replica has on its disk; version 0: nobody has one."""
    states = [one.status.state for one in replicas if one.status is not None]
    return max(states, key=lambda state: state.version, default=v1.GroupState())


def next_epoch(replicas: Sequence[Replica], state: v1.GroupState) -> int:
    """Above everything that anybody promised or wrote."""
    seen = [int(state.epoch)]
    for one in replicas:
        if one.status is not None:
            beat = one.status.beat
            seen += [int(beat.promised_epoch), int(beat.last_epoch), int(one.status.state.epoch)]
    return max(seen) + 1


def old_leader(replicas: Sequence[Replica], state: v1.GroupState) -> Replica | None:
    """Who led until now: by the state, or else by what replicas and routes say."""
    if state.version and state.HasField("leader"):
        for one in replicas:
            if one.broker_id == state.leader.broker_id:
                return one
    return next((one for one in replicas if one.leads), None)


def in_sync_ids(state: v1.GroupState) -> set[int]:
    """The in-sync set of a state, by broker id."""
    return {int(ref.broker_id) for ref in state.in_sync}


def require_in_sync(
    replicas: Sequence[Replica], state: v1.GroupState, wish: PromotionRequest
) -> str:
    """Somebody who answers holds everything that was confirmed. Raises CliError."""
    answering = {one.broker_id for one in replicas if one.status is not None}
    if not answering:
        raise CliError("No replica of the group answers.", Exit.UNHEALTHY)
    if not state.version:
        return "nobody has written down the in-sync set yet: the ends of the logs decide"
    members = in_sync_ids(state)
    if members & answering:
        return f"of the in-sync set {sorted(members)} answer {sorted(members & answering)}"
    if wish.accept_loss:
        return f"nobody of the in-sync set {sorted(members)} answers; loss is accepted"
    raise CliError(
        f"Nobody of the in-sync set {sorted(members)} answers, so confirmed messages could be lost. "
        "Start one of them, or use --accept-loss."
    )


def require_out(old: Replica | None, fenced: set[int], wish: PromotionRequest) -> tuple[str, bool]:
    """The old leader can take no more writes: why, and whether its process is dead."""
    if old is None:
        return "there is no leader to be fenced", False
    if old.broker_id in fenced:
        return f"the old leader, {old.name}, is fenced", False
    if old.is_gone:
        return f"nobody listens at the ports of the old leader, {old.name}: it is dead", True
    if wish.leader_is_dead:
        return f"the operator says that the old leader, {old.name}, is dead", True
    raise CliError(
        f"The old leader, {old.name}, neither takes the fence nor is known to be dead: it could go on taking "
        "writes. Stop it, or say --dead when you are sure that it is."
    )


def choose(
    replicas: Sequence[Replica], state: v1.GroupState, old: Replica | None, wish: PromotionRequest
) -> Replica:
    """The most advanced of those who may lead. Raises CliError."""
    members = in_sync_ids(state) if state.version else set()
    able = [
        one
        for one in replicas
        if one.status is not None and not one.status.beat.suspect and not one.status.beat.learner
    ]
    if members and not wish.accept_loss:
        able = [one for one in able if one.broker_id in members]
    if wish.to >= 0:
        able = [one for one in able if one.broker_id == wish.to]
    if old is not None and wish.to < 0:
        able = [one for one in able if one is not old] or able
    if not able:
        asked = f"Broker {wish.to}" if wish.to >= 0 else "No replica that answers"
        raise CliError(f"{asked} may not lead: it is not in sync, suspect, or does not answer.")
    best = max(able, key=_order)
    known = 0 if old is None or old is best else _confirm(old)
    if not members and _end(best) < known and not wish.accept_loss:
        raise CliError(
            f"{best.name} ends at {_end(best)}, but the old leader had confirmed {known}: "
            "messages would be lost. Start the old leader, or use --accept-loss."
        )
    return best


def _confirm(old: Replica) -> int:
    """As it says itself, or as the nameserver heard last."""
    return int(old.known_confirm if old.status is None else old.status.beat.confirm)


def _order(one: Replica) -> tuple[int, int, int, int]:
    assert one.status is not None
    beat = one.status.beat
    return int(beat.last_epoch), _end(one), int(beat.priority), -one.broker_id


def _end(one: Replica) -> int:
    assert one.status is not None
    beat = one.status.beat
    return int(beat.flushed_end if beat.policy.sync_flush else beat.log_end)


def next_state(
    replicas: Sequence[Replica],
    state: v1.GroupState,
    chosen: Replica,
    epoch: int,
    wish: PromotionRequest,
) -> v1.GroupState:
    """The state of the new epoch: in sync is who has as much as the new leader and may count."""
    assert chosen.status is not None
    beat = chosen.status.beat
    members = in_sync_ids(state)
    new = v1.GroupState()
    new.CopyFrom(state)
    new.cluster, new.group = beat.replica.cluster, beat.replica.group
    new.version, new.epoch, new.hold_reason = state.version + 1, epoch, ""
    new.accept_loss = wish.accept_loss
    new.leader.CopyFrom(_ref(chosen))
    del new.in_sync[:], new.eligible[:], new.members[:]
    new.policy.CopyFrom(state.policy if state.version else beat.policy)
    for one in replicas:
        if one.uuid:
            member = new.members.add(broker_id=one.broker_id, replica_uuid=one.uuid)
            member.addresses.ha, member.addresses.client = one.ha, one.client
        equal = one.status is not None and _order(one)[:2] == _order(chosen)[:2]
        if one is chosen or (equal and (one.broker_id in members or not state.version)):
            new.in_sync.append(_ref(one))
    return new


def _ref(one: Replica) -> v1.ReplicaRef:
    return v1.ReplicaRef(broker_id=one.broker_id, incarnation=one.incarnation)


class StaticFailover:
    """The sequence itself; `say` is told every step."""

    def __init__(self, replicas: Sequence[Replica], wish: PromotionRequest, say: Say) -> None:
        self._replicas, self._wish, self._say = replicas, wish, say
        self.chosen: Replica | None = None

    def switchover(self) -> v1.GroupState:
        """Planned: the leader hands over when its followers have everything."""
        state = self._read()
        old = old_leader(self._replicas, state)
        if old is None or old.status is None:
            raise CliError("The leader does not answer: this is a case for `ha failover`.")
        target = choose([one for one in self._replicas if one is not old], state, None, self._wish)
        epoch = next_epoch(self._replicas, state)
        self._say(f"hand over from {old.name} to {target.name} with epoch {epoch}")
        if self._wish.dry_run:
            return state
        request = v1.StepDownRequest(epoch=epoch, drain_ms=self._wish.max_wait_ms)
        within_s = self._wish.max_wait_ms / 1000 + 5.0
        answer = old.call(paths.STEP_DOWN, request, v1.ControlResponse, within_s)
        for step in answer.steps:
            self._say(f"{old.name}: {step}")
        return self._change(state, epoch, old)

    def failover(self) -> v1.GroupState:
        """The leader is lost, or is to be fenced wherever it is."""
        state = self._read()
        old = old_leader(self._replicas, state)
        epoch = next_epoch(self._replicas, state)
        self._say(require_in_sync(self._replicas, state, self._wish))
        if self._wish.dry_run:
            self._say(f"would fence all with epoch {epoch}")
            chosen = choose(self._replicas, state, old, self._wish)
            self._say(f"would promote {chosen.name}, which ends at {_end(chosen)}")
            return state
        return self._change(state, epoch, old)

    def _read(self) -> v1.GroupState:
        for one in self._replicas:
            one.ask()
            self._say(f"{one.name}: {described(one)}")
        state = newest_state(self._replicas)
        self._say(f"the newest state has version {state.version} and epoch {state.epoch}")
        return state

    def _change(self, state: v1.GroupState, epoch: int, old: Replica | None) -> v1.GroupState:
        fenced = self._fence(epoch)
        why, is_dead = require_out(old, fenced, self._wish)
        self._say(why)
        chosen = self.chosen = choose(self._replicas, state, old, self._wish)
        new = next_state(self._replicas, state, chosen, epoch, self._wish)
        self._say(f"{chosen.name} is the most advanced, it ends at {_end(chosen)}")
        self._say(f"state version {new.version}: epoch {epoch}, in sync {sorted(in_sync_ids(new))}")
        promote = v1.PromoteRequest(state=new, old_leader_is_dead=is_dead)
        answer = chosen.call(paths.PROMOTE, promote, v1.ControlResponse, self._wish.timeout_s)
        for step in answer.steps:
            self._say(f"{chosen.name}: {step}")
        self._follow(new, chosen)
        self._wait(chosen, epoch)
        return new

    def _fence(self, epoch: int) -> set[int]:
        fenced = set()
        for one in self._replicas:
            if one.status is None:
                continue
            try:
                one.status = one.call(paths.FENCE, v1.FenceRequest(epoch=epoch), v1.ReplicaStatus)
                fenced.add(one.broker_id)
                self._say(f"{one.name} promised epoch {epoch}")
            except CliError as error:
                one.status = None
                self._say(f"{one.name} did not take the fence: {error}")
        return fenced

    def _follow(self, state: v1.GroupState, chosen: Replica) -> None:
        for one in self._replicas:
            if one is chosen or one.status is None:
                continue
            try:
                one.call(paths.FOLLOW, v1.FollowRequest(state=state), v1.ControlResponse)
                self._say(f"{one.name} follows {chosen.name}")
            except CliError as error:
                self._say(f"{one.name} does not follow yet: {error}")

    def _wait(self, chosen: Replica, epoch: int) -> None:
        """Until the first record of the epoch is confirmed."""
        end = time.monotonic() + self._wish.timeout_s
        while time.monotonic() < end:
            chosen.ask()
            status = chosen.status
            if status is not None and status.role == "leader":
                start = max(
                    (point.start for point in status.epochs if point.epoch == epoch), default=None
                )
                if start is not None and status.beat.confirm > start:
                    self._say(f"{chosen.name} leads epoch {epoch} from {start} on; it is confirmed")
                    return
            time.sleep(_POLL_S)
        raise CliError(
            f"{chosen.name} was promoted, but epoch {epoch} is not confirmed yet.", Exit.UNHEALTHY
        )


def described(one: Replica) -> str:
    """A replica in one line."""
    if one.status is None:
        return f"silent{', nobody listens there' if one.is_gone else ''} ({one.why_silent})"
    beat = one.status.beat
    marks = [word for word, on in (("suspect", beat.suspect), ("learner", beat.learner)) if on]
    return (
        f"{one.status.role}, epoch {beat.last_epoch} (promised {beat.promised_epoch}), "
        f"log {beat.log_start}..{beat.log_end}, flushed {beat.flushed_end}, confirm {beat.confirm}"
        + "".join(f", {mark}" for mark in marks)
        + (f", {one.status.detail}" if one.status.detail else "")
    )
