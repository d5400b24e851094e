"""Change of the leader of a static group, without a controller (docs/formats/ha.md, section 6.14).

Steps: read the status of all reachable replicas; require one of the in-sync set among them; fence
all with the next epoch; continue only if the old leader cannot write any more (it is fenced, its
ports refuse connections, or the operator confirms its end); unless it is fenced, ask the
nameservers for the in-sync set that it registered last, because the stored one may name a replica
that it has dropped since; choose the most advanced replica of that set; write the state
(version + 1); Promote; Follow; wait until the first record of the epoch is confirmed.
Each step is reported. Nothing changes before the fence, and without an answer of the old leader
nothing is fenced unless another one can lead; a loss of messages needs `accept_loss`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...operations.errors import CliError, Exit
from ...operations.replication import Replica, in_sync_ids, newest_state
from ...proto import paths, v1
from .replicas import call, refresh

PROMOTE_S = 30.0
_POLL_S = 0.1
Say = Callable[[str], None]
#: Asks for the in-sync set that the leader registered last; None and a reason: not known.
LastSet = Callable[[], tuple[v1.InSyncSet | None, str]]


@dataclass(frozen=True, slots=True)
class PromotionRequest:
    """The operator's request: target, accepted risks, timeouts."""

    to: int = -1  # broker id; -1: the most advanced
    accept_loss: bool = False
    leader_is_dead: bool = False
    dry_run: bool = False
    max_wait_ms: int = 10_000
    timeout_s: float = PROMOTE_S


def next_epoch(replicas: Sequence[Replica], state: v1.GroupState) -> int:
    """Return an epoch above all that were promised or written."""
    seen = [int(state.epoch), *(one.known_epoch for one in replicas)]
    for one in replicas:
        if one.status is not None:
            beat = one.status.beat
            seen += [int(beat.promised_epoch), int(beat.last_epoch), int(one.status.state.epoch)]
    return max(seen) + 1


def old_leader(replicas: Sequence[Replica], state: v1.GroupState) -> Replica | None:
    """Return the leader according to the routes if these know a newer epoch than the state, to the
    state, or else to the replicas and routes.

    The state is the newest of the replicas that answer: one that was down during the last promotion
    has a former state, which may name itself.
    """
    last = _last_known(replicas)
    if last is not None and last.known_epoch > state.epoch:
        return last
    if state.version and state.HasField("leader"):
        for one in replicas:
            if one.broker_id == state.leader.broker_id:
                return one
    return next((one for one in replicas if one.leads), None)


def _last_known(replicas: Sequence[Replica]) -> Replica | None:
    """Return the leader of the newest epoch according to the routes, where the dead stay listed."""
    led = [one for one in replicas if one.known_leader]
    return max(led, key=lambda one: one.known_epoch, default=None)


def require_in_sync(
    replicas: Sequence[Replica], state: v1.GroupState, request: PromotionRequest
) -> str:
    """Require a reachable replica that holds all confirmed messages. Raises CliError."""
    answering = {one.broker_id for one in replicas if one.status is not None}
    if not answering:
        raise CliError("No replica of the group is reachable.", Exit.UNHEALTHY)
    if not state.version:
        return "no replica has stored an in-sync set yet: the log ends decide"
    members = in_sync_ids(state)
    if members & answering:
        return f"reachable of the in-sync set {sorted(members)}: {sorted(members & answering)}"
    if request.accept_loss:
        return f"no replica of the in-sync set {sorted(members)} is reachable; loss is accepted"
    raise CliError(
        f"No replica of the in-sync set {sorted(members)} is reachable: confirmed messages could "
        "be lost. Start one of them, or use --accept-loss."
    )


def require_out(
    old: Replica | None, fenced: set[int], request: PromotionRequest
) -> tuple[str, bool]:
    """Check that the old leader cannot write any more; return the reason, and True if it has ended.

    Raises CliError.
    """
    if old is None:
        return "there is no leader to fence", False
    if old.broker_id in fenced:
        return f"the old leader, {old.name}, is fenced", False
    if old.is_gone:
        return f"the ports of the old leader, {old.name}, refuse connections: it has ended", True
    if request.leader_is_dead:
        return f"the operator confirms that the old leader, {old.name}, has ended", True
    raise CliError(
        f"The old leader, {old.name}, could not be fenced and may still accept writes. "
        "Stop it, or use --dead if its process has certainly ended."
    )


def require_known(
    replicas: Sequence[Replica],
    state: v1.GroupState,
    last: v1.InSyncSet | None,
    request: PromotionRequest,
) -> None:
    """Require that the leader which registered the last set is one of the replicas: nameservers
    that have started since do not know where it is, and it may live. Raises CliError."""
    if last is None or not last.leader_uuid or last.epoch < state.epoch or request.leader_is_dead:
        return
    if all(one.uuid != last.leader_uuid for one in replicas):
        raise CliError(
            f"The leader of epoch {last.epoch} has not registered since the nameservers started,"
            " and may still accept writes. Stop it, or use --dead if its process has certainly"
            " ended."
        )


def choose(
    replicas: Sequence[Replica],
    state: v1.GroupState,
    old: Replica | None,
    request: PromotionRequest,
    holders: frozenset[str] | None = None,
) -> Replica:
    """Return the most advanced eligible replica. Raises CliError.

    `holders`: uuids of the replicas that may hold everything confirmed; None: not limited.
    """
    members = in_sync_ids(state) if state.version else set()
    able = [
        one
        for one in replicas
        if one.status is not None and not one.status.beat.suspect and not one.status.beat.learner
    ]
    if members and not request.accept_loss:
        able = [one for one in able if one.broker_id in members]
    if holders is not None:
        able = [one for one in able if one.uuid in holders]
    if request.to >= 0:
        able = [one for one in able if one.broker_id == request.to]
    if old is not None and request.to < 0:
        able = [one for one in able if one is not old] or able
    if not able:
        asked = (
            f"Broker {request.to} cannot lead"
            if request.to >= 0
            else "No reachable replica can lead"
        )
        raise CliError(
            f"{asked}: not in the in-sync set that the leader had last, suspect, or unreachable."
            " Start a replica that is, or use --accept-loss."
        )
    best = max(able, key=_order)
    if request.accept_loss:
        return best
    last = _last_known(replicas) or best
    if last is not best and _order(best)[0] < last.known_epoch:
        raise CliError(
            f"{best.name} has nothing of epoch {last.known_epoch}, which {last.name} led: "
            "confirmed messages could be lost. Start that one, or use --accept-loss."
        )
    known = 0 if old is None or old is best else _confirm(old)
    if _end(best) < known:
        raise CliError(
            f"{best.name} ends at {_end(best)}, but the old leader had confirmed {known}: "
            "messages would be lost. Start the old leader, or use --accept-loss."
        )
    return best


def _confirm(old: Replica) -> int:
    """Return its own confirm offset, or the last one reported to the nameserver."""
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
    request: PromotionRequest,
) -> v1.GroupState:
    """Return the state of the new epoch; in sync are eligible replicas level with the leader."""
    assert chosen.status is not None
    beat = chosen.status.beat
    members = in_sync_ids(state)
    new = v1.GroupState()
    new.CopyFrom(state)
    new.cluster, new.group = beat.replica.cluster, beat.replica.group
    new.version, new.epoch, new.hold_reason = state.version + 1, epoch, ""
    new.accept_loss = request.accept_loss
    new.leader.CopyFrom(_ref(chosen))
    del new.in_sync[:], new.eligible[:], new.members[:]
    new.policy.CopyFrom(_policy(replicas, state, chosen))
    for one in replicas:
        if one.uuid:
            member = new.members.add(broker_id=one.broker_id, replica_uuid=one.uuid)
            member.addresses.ha, member.addresses.client = one.ha, one.client
        equal = one.status is not None and _order(one)[:2] == _order(chosen)[:2]
        if one is chosen or (equal and (one.broker_id in members or not state.version)):
            new.in_sync.append(_ref(one))
    return new


def _policy(replicas: Sequence[Replica], state: v1.GroupState, chosen: Replica) -> v1.GroupPolicy:
    """Return the policy of the state or, before the first promotion, that of the old leader.

    Without its answer an OK waits for the in-sync replicas, because it may have meant that: the
    configuration of a slave does not say.
    """
    if state.version:
        return state.policy
    policy = v1.GroupPolicy()
    led = next((one.status for one in replicas if one.known_leader and one.status), None)
    assert chosen.status is not None
    policy.CopyFrom((led or chosen.status).beat.policy)
    policy.sync = policy.sync or led is None
    return policy


def _ref(one: Replica) -> v1.ReplicaRef:
    return v1.ReplicaRef(broker_id=one.broker_id, incarnation=one.incarnation)


class StaticFailover:
    """Carries out the sequence; `say` is called with each step."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        request: PromotionRequest,
        say: Say,
        last_set: LastSet,
    ) -> None:
        self._replicas, self._request, self._say = replicas, request, say
        self._last_set = last_set
        self._leading: set[int] = set()  #: broker ids of those that answered as leader
        self.chosen: Replica | None = None

    def switchover(self) -> v1.GroupState:
        """Change the leader as planned: it hands over when the next leader has caught up."""
        state = self._read()
        old = old_leader(self._replicas, state)
        if old is None or old.status is None:
            raise CliError("The leader does not answer: use `ha failover`.")
        target = choose(
            [one for one in self._replicas if one is not old], state, None, self._request
        )
        epoch = next_epoch(self._replicas, state)
        self._say(f"hand over from {old.name} to {target.name} with epoch {epoch}")
        if self._request.dry_run:
            return state
        request = v1.StepDownRequest(epoch=epoch, drain_ms=self._request.max_wait_ms)
        within_s = self._request.max_wait_ms / 1000 + 5.0
        answer = call(old, paths.STEP_DOWN, request, v1.ControlResponse, within_s)
        for step in answer.steps:
            self._say(f"{old.name}: {step}")
        return self._change(state, epoch, old)

    def failover(self) -> v1.GroupState:
        """Replace a lost leader."""
        state = self._read()
        old = old_leader(self._replicas, state)
        epoch = next_epoch(self._replicas, state)
        self._say(require_in_sync(self._replicas, state, self._request))
        if self._request.dry_run:
            self._say(f"would fence all with epoch {epoch}")
            leading = old is not None and old.broker_id in self._leading
            holders = self._holders(state, old, is_fenced=leading)
            chosen = choose(self._replicas, state, old, self._request, holders)
            self._say(f"would promote {chosen.name}, which ends at {_end(chosen)}")
            return state
        if old is None or old.status is None:
            # It may serve, out of reach from here: a fence of its followers would stop it, so what
            # is refused in the end is refused before.
            require_out(old, set(), self._request)
            holders = self._holders(state, old, is_fenced=False)
            choose(self._replicas, state, old, self._request, holders)
        return self._change(state, epoch, old)

    def _read(self) -> v1.GroupState:
        for one in self._replicas:
            refresh(one)
            self._say(f"{one.name}: {described(one)}")
            if one.status is not None and one.status.role == "leader":
                self._leading.add(one.broker_id)
        state = newest_state(self._replicas)
        self._say(f"the newest state has version {state.version} and epoch {state.epoch}")
        return state

    def _change(self, state: v1.GroupState, epoch: int, old: Replica | None) -> v1.GroupState:
        fenced = self._fence(epoch)
        why, is_dead = require_out(old, fenced, self._request)
        self._say(why)
        is_fenced = old is not None and old.broker_id in fenced & self._leading
        holders = self._holders(state, old, is_fenced=is_fenced)
        chosen = self.chosen = choose(self._replicas, state, old, self._request, holders)
        new = next_state(self._replicas, state, chosen, epoch, self._request)
        self._say(f"{chosen.name} is the most advanced, it ends at {_end(chosen)}")
        self._say(f"state version {new.version}: epoch {epoch}, in sync {sorted(in_sync_ids(new))}")
        promote = v1.PromoteRequest(state=new, old_leader_is_dead=is_dead)
        answer = call(chosen, paths.PROMOTE, promote, v1.ControlResponse, self._request.timeout_s)
        for step in answer.steps:
            self._say(f"{chosen.name}: {step}")
        self._follow(new, chosen)
        self._wait(chosen, epoch)
        return new

    def _holders(
        self, state: v1.GroupState, old: Replica | None, *, is_fenced: bool
    ) -> frozenset[str] | None:
        """Return the replicas that may hold everything confirmed, by uuid; None: the confirm offset
        of the leader decides, which answered as leader and is fenced, or loss is accepted.

        Asked when the old leader cannot write any more, so that it cannot change the set after.
        Raises CliError if the set is not known.
        """
        last, why = self._last_set()
        require_known(self._replicas, state, last, self._request)
        if self._request.accept_loss:
            return None
        if is_fenced:
            assert old is not None and old.status is not None
            if last is None or last.epoch <= old.status.beat.last_epoch:
                return None
        if last is None:
            raise CliError(
                f"The in-sync set that the leader had last is not known: {why}. Confirmed messages"
                " could be lost. Start the old leader, or use --accept-loss."
            )
        holders = frozenset(last.replica_uuids)
        names = [one.name for one in self._replicas if one.uuid in holders]
        self._say(f"in sync with the leader of epoch {last.epoch} at last: {', '.join(names)}")
        return holders

    def _fence(self, epoch: int) -> set[int]:
        fenced = set()
        for one in self._replicas:
            if one.status is None:
                continue
            try:
                one.status = call(one, paths.FENCE, v1.FenceRequest(epoch=epoch), v1.ReplicaStatus)
                fenced.add(one.broker_id)
                self._say(f"{one.name} promised epoch {epoch}")
            except CliError as error:
                one.status = None
                self._say(f"{one.name} could not be fenced: {error}")
        return fenced

    def _follow(self, state: v1.GroupState, chosen: Replica) -> None:
        for one in self._replicas:
            if one is chosen or one.status is None:
                continue
            try:
                call(one, paths.FOLLOW, v1.FollowRequest(state=state), v1.ControlResponse)
                self._say(f"{one.name} follows {chosen.name}")
            except CliError as error:
                self._say(f"{one.name} does not follow yet: {error}")

    def _wait(self, chosen: Replica, epoch: int) -> None:
        """Wait until the first record of the epoch is confirmed."""
        end = time.monotonic() + self._request.timeout_s
        while time.monotonic() < end:
            refresh(chosen)
            status = chosen.status
            if status is not None and status.role == "leader":
                start = max(
                    (point.start for point in status.epochs if point.epoch == epoch), default=None
                )
                if start is not None and status.beat.confirm > start:
                    self._say(f"{chosen.name} leads epoch {epoch} from offset {start}; confirmed")
                    return
            time.sleep(_POLL_S)
        raise CliError(
            f"{chosen.name} was promoted, but epoch {epoch} is not confirmed yet.", Exit.UNHEALTHY
        )


def described(one: Replica) -> str:
    """Describe a replica in one line."""
    if one.status is None:
        return f"unreachable{', connection refused' if one.is_gone else ''} ({one.error})"
    beat = one.status.beat
    marks = [word for word, on in (("suspect", beat.suspect), ("learner", beat.learner)) if on]
    return (
        f"{one.status.role}, epoch {beat.last_epoch} (promised {beat.promised_epoch}), "
        f"log {beat.log_start}..{beat.log_end}, flushed {beat.flushed_end}, confirm {beat.confirm}"
        + "".join(f", {mark}" for mark in marks)
        + (f", {one.status.detail}" if one.status.detail else "")
    )
