"""Group controller: the state machine that elects the leader of one group (pure: no clock, no I/O).

    event + time -> effects

    NO_LEADER -> ELECTING -> STABLE -> SUSPECT_LEADER -> ELECTING, plus HOLD and DRAINING (`phase`)

Every change of the group's state is a `CompareAndSet` effect. No directive reflects the change
before its `CasDone` confirms it. Two controllers that are active at the same time do no harm: each
decision is a compare-and-set on the version it was made from. A controller that stops or is
suspended stops no group: brokers continue with the last state, and after a start or a long gap the
controller collects heartbeats for the grace time before silence counts (docs/formats/ha.md,
sections 6.3, 6.7 and 6.8; rules R2, R3, R12). The rules are in `membership.py`, `election.py`,
`proposals.py`, `bootstrap.py` and `operations.py`.
"""

from ..group_state import GroupState, names
from . import bootstrap, proposals
from .directives import directive
from .doubts import Doubt, Doubts
from .election import elected, find_leader, next_epoch
from .events import (
    FOREVER_NS,
    ActiveChanged,
    AlterIsr,
    CasDone,
    ClaimRenewed,
    CompareAndSet,
    Effect,
    Event,
    ForceElect,
    HeartbeatArrived,
    Limits,
    LogEvent,
    PendingChange,
    ProcessExited,
    ProposalAnswer,
    ReadState,
    Replica,
    SessionClosed,
    SetDrain,
    SetPolicy,
    Started,
    StateChanged,
    StateRead,
    Switchover,
    Tick,
)
from .leader_watch import LeaderGone, leader_gone, predecessors_are_gone
from .membership import apply_registrations, mark_partial, remove_departed
from .operations import Operations
from .replica_registry import ReplicaRegistry


class GroupController:
    """One group. `state` is the newest committed state known here."""

    def __init__(self, cluster: str, group: str, limits: Limits) -> None:
        self.limits = limits
        self.state = GroupState(cluster, group)
        self.active = False
        self.is_read = False  #: the store was read at least once
        self.registry = ReplicaRegistry(limits)
        self.replicas: dict[int, Replica] = self.registry.replicas  #: by broker id
        self.operations = Operations(self)
        self.grace_until_ns = 0
        self.claim_until_ns = FOREVER_NS
        self._leased_until_ns = self._former_leases_end_ns = 0
        self.wall_ms = 0
        self.elected_ns = 0
        self.confirm_seen = 0  #: newest confirm offset in a leader's heartbeat; for messages only
        self._leader_start: int | None = None  #: start of the last leader's log
        self.pending: PendingChange | None = None
        self._doubts = self._pending_doubts = Doubts()
        self._store_version = 0  #: below `state.version`: the store lost a committed state
        self._proposal: AlterIsr | None = None
        self.proven_epoch = 0  #: every leader before this epoch is proven gone
        self.led_epoch = self.vacant_epoch = 0  #: see `predecessors_are_gone`
        self._ticket = 0
        self._reading = False
        self._last_ns: int | None = None
        self._no_candidate_since_ns: int | None = None

    # --- events -----------------------------------------------------------------------------------

    def on_event(self, event: Event, now_ns: int) -> list[Effect]:
        """Handle one event; returns the effects in order."""
        effects: list[Effect] = []
        self._check_suspension(now_ns, effects)
        match event:
            case HeartbeatArrived():
                self._on_heartbeat(event, now_ns, effects)
                return effects
            case Started():
                self._on_started(event, now_ns, effects)
            case ActiveChanged():
                self._on_active_changed(event, now_ns, effects)
            case ClaimRenewed():
                self.claim_until_ns = event.until_ns
            case SessionClosed():
                self.registry.close(event.session)
            case ProcessExited():
                self.registry.exited(event, now_ns)
            case AlterIsr():
                self._on_proposal(event, effects)
            case CasDone():
                self._on_cas_done(event, now_ns, effects)
            case StateRead():
                self._on_state_read(event, now_ns, effects)
            case Switchover() | ForceElect() | SetDrain() | SetPolicy():
                self.operations.begin(event, now_ns, effects)
            case Tick():
                self._on_tick(event, effects)
        self._decide(now_ns, effects)
        return effects

    def _check_suspension(self, now_ns: int, effects: list[Effect]) -> None:
        """Extend the grace time after a gap between events: the controller was suspended."""
        last, self._last_ns = self._last_ns, now_ns
        if last is not None and now_ns - last > self.limits.tick_gap_max_ns:
            self.grace_until_ns = max(self.grace_until_ns, now_ns + self.limits.grace_ns)
            effects.append(LogEvent("controller.slept", f"{(now_ns - last) // 1_000_000} ms"))

    def _on_started(self, event: Started, now_ns: int, effects: list[Effect]) -> None:
        self.active = event.active
        self.claim_until_ns = event.claim_until_ns
        self.grace_until_ns = now_ns + self.limits.grace_ns
        if event.state is None:
            self._read(effects)
        else:
            self._on_state_read(StateRead(event.state), now_ns, effects)

    def _on_active_changed(self, event: ActiveChanged, now_ns: int, effects: list[Effect]) -> None:
        if event.active == self.active:
            return
        self.active = event.active
        if event.active:
            self.claim_until_ns = event.claim_until_ns
            if not event.leases_are_over:
                self.grace_until_ns = max(self.grace_until_ns, now_ns + self.limits.lease_ns)
            self.is_read = False
            self._read(effects)
            return
        self._refuse_proposal("another nameserver is active now", effects)
        self.operations.abandon("another nameserver is active now", effects)

    def _on_heartbeat(self, event: HeartbeatArrived, now_ns: int, effects: list[Effect]) -> None:
        taken = self.registry.heartbeat(event, self.state, now_ns, self.grace_until_ns, effects)
        if not taken:
            return
        heartbeat = event.heartbeat
        if heartbeat.leads and heartbeat.ref == self.state.leader:
            self.led_epoch = min(heartbeat.last_epoch, self.state.epoch)
            self.confirm_seen = heartbeat.confirm if self.state.policy.sync else heartbeat.log_end
            self._leader_start = heartbeat.log_start
        known = heartbeat.known
        if known is not None and known.version > self.state.version:
            if self.active:
                self._read(effects)  # the store has a newer state, or lost a committed one
            else:
                self._adopt(known, "reported by a replica", now_ns, effects)
        self._decide(now_ns, effects)
        replica = self.replicas.get(heartbeat.broker_id)
        if replica is not None and replica.session == event.session:
            answer = directive(self, replica, now_ns, answers=heartbeat.seq)
            if answer.lease_ms:
                # With the margin for clock drift that brokers use, too.
                self._leased_until_ns = now_ns + self.limits.lease_ns * 11 // 10
            effects.append(answer)

    def _on_proposal(self, event: AlterIsr, effects: list[Effect]) -> None:
        if not self.active or not self.is_read:
            self._answer(event, effects, "this nameserver is not active", decided=False)
            return
        waiting = self._proposal
        if waiting is not None and waiting.proposal_seq >= event.proposal_seq:
            self._answer(event, effects, "a newer proposal is pending", decided=False)
            return
        self._refuse_proposal("replaced by a newer proposal", effects)
        self._proposal = event

    def _on_tick(self, event: Tick, effects: list[Effect]) -> None:
        self.wall_ms = event.wall_ms
        unsettled = self.pending is not None and self.pending.ticket == 0
        if unsettled or not self.is_read:
            self._read(effects)

    # --- the store --------------------------------------------------------------------------------

    def _read(self, effects: list[Effect]) -> None:
        if not self._reading:
            self._reading = True
            effects.append(ReadState())

    def _on_state_read(self, event: StateRead, now_ns: int, effects: list[Effect]) -> None:
        self._reading = False
        state = event.state
        if state is None:
            return  # a tick retries
        self.is_read = True
        self._store_version = state.version
        if self.pending is not None and self.pending.ticket == 0:
            # The outcome was unknown; the state read now is final.
            self._settle(state == self.pending.state, state, now_ns, effects)
            return
        self._adopt(state, "read", now_ns, effects)

    def _on_cas_done(self, event: CasDone, now_ns: int, effects: list[Effect]) -> None:
        pending = self.pending
        if pending is None or pending.ticket != event.ticket:
            return
        state = pending.state if event.accepted else event.state
        if state is None:
            pending.ticket = 0  # unknown; a tick reads it
            return
        self._store_version = state.version
        self._settle(event.accepted, state, now_ns, effects)

    def _settle(
        self, accepted: bool, state: GroupState, now_ns: int, effects: list[Effect]
    ) -> None:
        """Complete the pending change; `state` is the content of the store."""
        pending, self.pending = self.pending, None
        assert pending is not None
        if accepted and pending.proven and state.epoch > self.state.epoch:
            self.proven_epoch = state.epoch
        if accepted and pending.proven and state.leader is None:
            self.vacant_epoch = state.epoch
        if accepted and state.epoch > self.state.epoch:
            self._doubts = self._pending_doubts
        self._adopt(
            state, pending.why if accepted else "decided by another controller", now_ns, effects
        )
        proposal = pending.proposal
        if proposal is None:
            return
        taken = accepted and pending.taken
        reason = "" if taken else (pending.why if accepted else "the store refused the change")
        # Without a newer version a late copy of the proposal could still be accepted.
        decided = accepted or state.version > proposal.state_version
        self._answer(proposal, effects, reason, accepted=taken, decided=decided)

    def _adopt(self, state: GroupState, why: str, now_ns: int, effects: list[Effect]) -> None:
        """Adopt a committed state if it is newer, and push it to every broker."""
        old = self.state
        if state.version <= old.version:
            return
        self.state = state
        if state.epoch != old.epoch:
            self.elected_ns = now_ns
            self._former_leases_end_ns = self._leased_until_ns
            self._no_candidate_since_ns = None
        effects.append(StateChanged(old, state, why))
        effects += (directive(self, row, now_ns) for row in self.replicas.values() if row.session)

    def cas(
        self,
        state: GroupState,
        why: str,
        effects: list[Effect],
        *,
        proven: bool = False,
        proposal: AlterIsr | None = None,
        taken: bool = False,
    ) -> None:
        """Append the effect that asks the store for `state` as the next version."""
        if state.version <= self.state.version:
            state = state.with_(version=self.state.version + 1)
        self._ticket += 1
        all_gone = predecessors_are_gone(self)
        if state.epoch > self.state.epoch:
            former = None if proven else self._doubt_of_leader()
            self._pending_doubts = self._doubts.after(
                former, self.state.epoch, state.epoch, all_gone=all_gone
            )
        proven = proven and all_gone
        self.pending = PendingChange(self._ticket, state, why, proven, proposal, taken)
        effects.append(CompareAndSet(self._ticket, self._store_version, state))

    def _doubt_of_leader(self) -> Doubt | None:
        leader = self.state.leader
        member = None if leader is None else self.state.member(leader.broker_id)
        uuid = "" if member is None else member.replica_uuid
        return None if leader is None else Doubt(leader, uuid)

    def _resolve_doubts(self, now_ns: int, effects: list[Effect]) -> None:
        """End the wait of a new leader once every former one is proven gone."""
        epoch = self.state.epoch
        row = self.leader_row(self.state)
        if row is None or self.proven_epoch >= epoch or self.led_epoch >= epoch:
            return
        if self._doubts.are_resolved(epoch, self.replicas):
            self.proven_epoch = epoch
            effects.append(LogEvent("leader.predecessors_gone", f"epoch={epoch}"))
            if row.session:
                effects.append(directive(self, row, now_ns))

    # --- decisions --------------------------------------------------------------------------------

    def _decide(self, now_ns: int, effects: list[Effect]) -> None:
        """Start at most one change; the only place that starts one."""
        if not self.active or not self.is_read or self._reading or self.pending is not None:
            return
        self._resolve_doubts(now_ns, effects)
        known = self.newest_known()
        if known.version > self._store_version:
            self._rebuild_store(known, now_ns, effects)
            return
        if self.state.is_new:
            self._bootstrap(now_ns, effects)
            return
        base, notes = self._with_registrations(now_ns)
        gone = leader_gone(self, base, now_ns)
        if gone is not None:
            base = self._replace_leader(base, gone, now_ns, notes)
        elif base.leader is not None:
            self._no_candidate_since_ns = None
            if base.hold_reason and self._leader_is_alive(base, now_ns):
                base = base.with_(version=base.version, hold_reason="", hold_since_ms=0)
                notes.append("the hold is over")
        if base != self.state:
            proven = gone is not None and gone.proven
            self.cas(base, "; ".join(notes) or "members changed", effects, proven=proven)
            return
        if self._proposal is not None:
            self._decide_proposal(self._proposal, now_ns, effects)
        if self.pending is None:
            self.operations.step(now_ns, effects)

    def _with_registrations(self, now_ns: int) -> tuple[GroupState, list[str]]:
        """Return the state updated by live registrations, and the reasons."""
        state = self.state
        alive = [r for r in self.replicas.values() if r.alive(now_ns, self.limits)]
        base = apply_registrations(state, alive)
        base = mark_partial(base, self._leader_start, alive)
        notes = []
        if base.in_sync != state.in_sync:
            notes.append("a replica returned in a new incarnation")
        leader = self.leader_row(base)
        if leader is not None and leader.heartbeat.leads and leader.alive(now_ns, self.limits):
            departed = [
                row.ref
                for row in self.replicas.values()
                # A leader that was killed with its followers sends no heartbeat after their exits.
                if row.heartbeat.leaving or (row.dead and leader.heard_ns > row.dead_ns)
            ]
            remaining = remove_departed(base, departed)
            if remaining is not base:
                gone = set(base.in_sync) - set(remaining.in_sync)
                notes.append(f"broker {names(sorted(gone))} has stopped")
                base = remaining
        return base, notes

    @property
    def leases_end_ns(self) -> int:
        """End of every lease of a former leader that a nameserver may have granted."""
        return max(self._former_leases_end_ns, self.grace_until_ns)

    def leader_row(self, state: GroupState) -> Replica | None:
        """Return the leader's registration, if it is the incarnation named by `state`."""
        if state.leader is None:
            return None
        row = self.replicas.get(state.leader.broker_id)
        return row if row is not None and row.ref == state.leader else None

    def _leader_is_alive(self, state: GroupState, now_ns: int) -> bool:
        row = self.leader_row(state)
        return row is not None and row.alive(now_ns, self.limits)

    def _replace_leader(
        self, base: GroupState, gone: LeaderGone, now_ns: int, notes: list[str]
    ) -> GroupState:
        """Return the state with a new leader, or without one when no replica may lead."""
        verdict = find_leader(base, self.replicas, now_ns, self.limits)
        if verdict.winner is not None:
            epoch = next_epoch(base, self.replicas.values())
            notes.insert(0, f"broker {verdict.winner.heartbeat.broker_id} elected: {gone.reason}")
            return elected(base, verdict, epoch)
        if self._no_candidate_since_ns is None:
            self._no_candidate_since_ns = now_ns
        waited = now_ns - self._no_candidate_since_ns >= self.limits.lease_ns
        reason = f"{verdict.reason} (the leader: {gone.reason})"
        # A hold is written once, and again when its reason changes, at most once per lease.
        if base.hold_reason == reason or not (waited or not (verdict.missing or base.hold_reason)):
            if base.leader is not None and gone.proven:
                base = base.with_(version=base.version, leader=None)
                notes.append(f"no leader: {gone.reason}")
            return base
        notes.append(f"held: {gone.reason}; {verdict.reason}")
        self._no_candidate_since_ns = now_ns
        leader = None if gone.proven else base.leader
        return base.with_(
            version=base.version,
            leader=leader,
            hold_reason=reason,
            hold_since_ms=base.hold_since_ms or max(1, self.wall_ms),
        )

    # --- the first state --------------------------------------------------------------------------

    def newest_known(self) -> GroupState:
        """Return the newest state held by this controller or any replica."""
        known = bootstrap.newest_known(self.replicas.values())
        return known if known is not None and known.version > self.state.version else self.state

    def _rebuild_store(self, known: GroupState, now_ns: int, effects: list[Effect]) -> None:
        """Rebuild a store that lost committed states."""
        replicas = self.replicas
        if not bootstrap.may_rebuild(known, replicas, now_ns, self.limits):
            return
        all_answered = bootstrap.all_answered(known, replicas, now_ns, self.limits)
        if all_answered or now_ns >= self.grace_until_ns:
            state = bootstrap.rebuilt(known, replicas.values())
            why = f"the store was lost; rebuilt from version {known.version}"
            self.cas(state, why, effects)

    def _bootstrap(self, now_ns: int, effects: list[Effect]) -> None:
        """Start a group that has no state anywhere."""
        grace_over = now_ns >= self.grace_until_ns
        leader = bootstrap.first_leader(self.replicas, now_ns, self.limits, grace_over=grace_over)
        if leader is None:
            return
        alive = [r for r in self.replicas.values() if r.alive(now_ns, self.limits)]
        epoch = next_epoch(self.state, alive)
        state = bootstrap.first_state(self.state.cluster, self.state.group, leader, alive, epoch)
        self.cas(
            state, f"new group: broker {leader.heartbeat.broker_id} leads", effects, proven=True
        )

    # --- proposals --------------------------------------------------------------------------------

    def _decide_proposal(self, proposal: AlterIsr, now_ns: int, effects: list[Effect]) -> None:
        self._proposal = None
        ruling = proposals.decide_proposal(self.state, proposal, self.replicas, now_ns, self.limits)
        if ruling.kind is proposals.DecisionKind.REFUSE:
            self._answer(proposal, effects, ruling.reason)
        elif ruling.kind is proposals.DecisionKind.BEHIND:
            self._answer(proposal, effects, ruling.reason, decided=False)
            self._read(effects)
        elif ruling.kind is proposals.DecisionKind.BURN:
            state = proposals.burned(self.state, proposal)
            self.cas(state, f"refused: {ruling.reason}", effects, proposal=proposal)
        else:
            state = proposals.accepted(self.state, proposal, self.replicas)
            why = "proposed by the leader"
            self.cas(state, why, effects, proposal=proposal, taken=True)

    def _refuse_proposal(self, reason: str, effects: list[Effect]) -> None:
        waiting, self._proposal = self._proposal, None
        if waiting is not None:
            self._answer(waiting, effects, reason, decided=False)

    def _answer(
        self,
        proposal: AlterIsr,
        effects: list[Effect],
        reason: str,
        *,
        accepted: bool = False,
        decided: bool = True,
    ) -> None:
        effects.append(ProposalAnswer(proposal.request, accepted, decided, self.state, reason))
