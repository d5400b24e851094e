"""Operator commands: switchover, forced election, drain, policy change (pure).

Switchover: wait until the target holds the leader's log end as of the start; direct the leader to
step down (it refuses writes, and reports role FOLLOWER when the target has everything); elect the
target with that proof; wait until it leads. Nothing is cut and no write is accepted in between.
When a step does not complete in time the leader is elected again and the command fails with the
reason. A policy change is a switchover to the leader itself (`policy_change.py`).

At most one operation per group. It is not persistent; each step leaves a state from which the
ordinary rules continue.
"""

from ..group_state import Ref, names
from . import quorum
from .directives import directive
from .election import Verdict, disqualification, elected, find_leader, forced, next_epoch, rank
from .events import (
    Effect,
    ForceElect,
    OperationAnswer,
    Outcome,
    Replica,
    SetDrain,
    SetPolicy,
    Switchover,
)
from .group_view import GroupChanges
from .operation import Operation, answer, refuse
from .operator_messages import disqualifications, force_steps, lost_range, switchover_plan
from .policy_change import (
    describe_policy,
    policy_plan,
    policy_refusal,
    reelection_state,
    requested_policy,
)

_NS_PER_MS = 1_000_000
DEFAULT_WAIT_NS = 10_000_000_000
#: Longest wait that a command may request: the answer must arrive before its caller times out.
WAIT_MAX_NS = 60_000_000_000
#: A draining leader refuses writes, so its time is bounded.
DRAIN_MAX_NS = 3_000_000_000


class Operations:
    """The operation of one group, driven by its controller."""

    def __init__(self, controller: GroupChanges) -> None:
        self._group = controller
        self.current: Operation | None = None
        self._drains: list[SetDrain] = []

    @property
    def stepping_down(self) -> bool:
        """Whether the leader was directed to step down."""
        return self.current is not None and self.current.phase == "step_down"

    @property
    def next_leader(self) -> Ref | None:
        """The leader after the step-down."""
        return self.current.target if self.current is not None else None

    def drain_ms(self, now_ns: int) -> int:
        """Return the milliseconds that the leader has left to step down."""
        if self.current is None:
            return 0
        return max(1, (self.current.drain_until_ns - now_ns) // _NS_PER_MS)

    def begin(
        self,
        event: Switchover | ForceElect | SetDrain | SetPolicy,
        now_ns: int,
        effects: list[Effect],
    ) -> None:
        """Start an operator's command, or refuse it."""
        group = self._group
        refusal = ""
        if not group.active or not group.is_read:
            refusal = "this nameserver is not active: send the command to the active one"
        elif group.state.is_new:
            refusal = f"group {group.state.group} has no state yet: no replica has led it"
        elif self.current is not None and not isinstance(event, SetDrain):
            refusal = "another switchover or election of this group is in progress: wait for it"
        if refusal:
            refuse(event.request, refusal, effects)
        elif isinstance(event, SetDrain):
            self._begin_drain(event, effects)
        elif isinstance(event, Switchover):
            self._begin_switchover(event, now_ns, effects)
        elif isinstance(event, SetPolicy):
            self._begin_policy(event, now_ns, effects)
        else:
            self._begin_force(event, now_ns, effects)

    def abandon(self, reason: str, effects: list[Effect]) -> None:
        """Fail the operation because this nameserver is no longer active."""
        operation, self.current = self.current, None
        if operation is not None:
            operation.steps.append(reason)
            answer(operation, Outcome.FAILED, reason, effects)
        for drain in self._drains:
            refuse(drain.request, reason, effects)
        self._drains.clear()

    def step(self, now_ns: int, effects: list[Effect]) -> None:
        """Continue the operation; called after every event when no change is pending."""
        if self._drains:
            self._step_drain(effects)
            return
        if self.current is None:
            self._hand_over_unfit(now_ns)
        if self.current is None:
            self._step_aside(now_ns, effects)
        if self.current is not None:
            self._step(self.current, now_ns, effects)

    # --- drain ------------------------------------------------------------------------------------

    def _begin_drain(self, event: SetDrain, effects: list[Effect]) -> None:
        if len(self._drains) >= 16:
            refuse(event.request, "too many commands in progress: wait", effects)
            return
        self._drains.append(event)

    def _step_drain(self, effects: list[Effect]) -> None:
        state = self._group.state
        wanted = self._drains[-1].drain
        if state.drain != wanted:
            why = "drained by an operator" if wanted else "accepts messages again"
            self._group.cas(state.with_(drain=wanted), why, effects)
            return
        what = (
            "is drained: producers use other groups"
            if wanted
            else "accepts messages from producers"
        )
        for drain in self._drains:
            message = f"group {state.group} {what}"
            steps = (f"state version {state.version} is committed",)
            effects.append(OperationAnswer(drain.request, Outcome.DONE, message, steps))
        self._drains.clear()

    # --- switchover -------------------------------------------------------------------------------

    def _begin_switchover(self, event: Switchover, now_ns: int, effects: list[Effect]) -> None:
        state = self._group.state
        leader = self._live_leader(now_ns)
        if leader is None:
            reason = (
                "the group has no live leader to hand over from: use failover, or wait for "
                "an election"
            )
            refuse(event.request, reason, effects)
            return
        target = self._target(event.to, now_ns)
        if isinstance(target, str):
            refuse(event.request, target, effects)
            return
        wait_ns = min(event.max_wait_ns or DEFAULT_WAIT_NS, WAIT_MAX_NS)
        operation = Operation(event.request, target.ref, now_ns + wait_ns)
        operation.mark_end = leader.heartbeat.log_end
        operation.why = "switchover by an operator"
        behind = max(0, leader.heartbeat.log_end - target.heartbeat.log_end)
        operation.steps.append(
            f"broker {leader.heartbeat.broker_id} leads epoch {state.epoch}; broker"
            f" {target.heartbeat.broker_id} is in sync and {behind} bytes behind"
        )
        if event.dry_run:
            operation.steps += switchover_plan(leader, target, wait_ns)
            answer(operation, Outcome.DONE, "nothing was changed (dry run)", effects)
            return
        self.current = operation

    def _begin_policy(self, event: SetPolicy, now_ns: int, effects: list[Effect]) -> None:
        group = self._group
        state = group.state
        leader = self._live_leader(now_ns)
        if leader is None:
            refuse(event.request, "the group has no live leader: wait for an election", effects)
            return
        policy = requested_policy(state, event)
        live = find_leader(state, group.replicas, now_ns, group.limits).live_in_sync
        refusal = policy_refusal(state, policy, len(live))
        if refusal:
            refuse(event.request, refusal, effects)
            return
        operation = Operation(event.request, leader.ref, now_ns + DEFAULT_WAIT_NS, policy=policy)
        operation.why = f"by an operator: {describe_policy(policy)}"
        if policy == state.policy:
            operation.steps.append(f"the group is {describe_policy(policy)} already")
            answer(operation, Outcome.DONE, operation.steps[-1], effects)
        elif event.dry_run:
            operation.steps += policy_plan(leader, state.policy, policy)
            answer(operation, Outcome.DONE, "nothing was changed (dry run)", effects)
        else:
            operation.steps.append(f"the group is {describe_policy(state.policy)}")
            self.current = operation

    def _live_leader(self, now_ns: int) -> Replica | None:
        """Return the registration of the leader if it is alive and leads."""
        row = self._group.leader_row(self._group.state)
        if row is None or not row.heartbeat.leads or not row.alive(now_ns, self._group.limits):
            return None
        return row

    def _target(self, to: int, now_ns: int) -> Replica | str:
        """Return the replica to switch over to, or a sentence why none can take over."""
        group = self._group
        state = group.state
        leader_id = state.leader.broker_id if state.leader is not None else -1
        if to == leader_id:
            return f"broker {to} leads already"
        good = [
            row
            for row in group.replicas.values()
            if row.alive(now_ns, group.limits)
            and row.heartbeat.broker_id != leader_id
            and row.ref in state.in_sync
            and not disqualification(state, row)
        ]
        if to < 0:
            best = max(good, key=lambda row: rank(state, row), default=None)
            if best is not None and best.heartbeat.no_room:
                return f"{_unfitness(best)}, and no other replica can take over"
            return (
                best or f"no replica can take over without loss: {disqualifications(group, now_ns)}"
            )
        row = group.replicas.get(to)
        if row is None or not row.alive(now_ns, group.limits):
            return f"broker {to} is not connected"
        if row not in good:
            why = disqualification(state, row) or "is not in sync"
            return f"broker {to} {why}: in sync are {names(state.in_sync)}"
        if row.heartbeat.no_room:
            return f"{_unfitness(row)}: it could only serve readers; free space there first"
        return row

    def _hand_over_unfit(self, now_ns: int) -> None:
        """Hand over from a leader that stops, or whose disk is full, to a fit in-sync replica."""
        leader = self._live_leader(now_ns)
        why = "" if leader is None else _unfitness(leader)
        if leader is None or not why:
            return
        target = self._target(-1, now_ns)
        if isinstance(target, str) or _unfitness(target):
            return
        operation = Operation(0, target.ref, now_ns + DEFAULT_WAIT_NS)
        operation.mark_end = leader.heartbeat.log_end
        operation.why = why
        self.current = operation

    def _step_aside(self, now_ns: int, effects: list[Effect]) -> None:
        """Let a leader without its quorum step down for a replica that can have one."""
        leader = self._live_leader(now_ns)
        target = None if leader is None else quorum.successor(self._group, leader, now_ns)
        if leader is None or target is None:
            return
        operation = Operation(0, target.ref, now_ns + DEFAULT_WAIT_NS, phase="step_down")
        operation.is_step_aside = True
        operation.drain_until_ns = now_ns
        operation.why = f"broker {leader.heartbeat.broker_id} is cut off from its quorum"
        self.current = operation
        if leader.session:
            effects.append(directive(self._group, leader, now_ns))

    def _step(self, operation: Operation, now_ns: int, effects: list[Effect]) -> None:
        if operation.phase == "catch_up":
            self._catch_up(operation, now_ns, effects)
        if operation.phase == "step_down":
            self._step_down(operation, now_ns, effects)
        elif operation.phase == "electing":
            self._elect_forced(operation, now_ns, effects)
        elif operation.phase == "taking_over":
            self._taking_over(operation, now_ns, effects)

    def _catch_up(self, operation: Operation, now_ns: int, effects: list[Effect]) -> None:
        group = self._group
        leader = group.leader_row(group.state)
        if leader is None or not leader.alive(now_ns, group.limits):
            self._fail(operation, "the leader disconnected", effects)
            return
        target = self._live_target(operation, now_ns)
        if target is None:
            self._fail(
                operation, f"broker {operation.target.broker_id} is not in sync now", effects
            )
            return
        if target is not leader and target.heartbeat.no_room:
            self._fail(operation, _unfitness(target), effects)
            return
        if target.heartbeat.log_end < operation.mark_end:
            if now_ns >= operation.deadline_ns:
                behind = operation.mark_end - target.heartbeat.log_end
                self._fail(operation, f"the target was still {behind} bytes behind", effects)
            return
        operation.phase = "step_down"
        operation.drain_until_ns = now_ns + DRAIN_MAX_NS
        directed = f"broker {leader.heartbeat.broker_id} was directed to step down"
        if target is not leader:  # a change of the policy elects the leader again
            caught_up = f"broker {target.heartbeat.broker_id} has everything up to"
            directed = f"{caught_up} {operation.mark_end}; {directed}"
        operation.steps.append(directed)
        if leader.session:
            effects.append(directive(group, leader, now_ns))

    def _step_down(self, operation: Operation, now_ns: int, effects: list[Effect]) -> None:
        group = self._group
        leader = group.leader_row(group.state)
        target = self._live_target(operation, now_ns)
        if leader is None or target is None:
            self._fail(operation, "a replica disconnected while the leader stepped down", effects)
            return
        patience_ns = group.limits.heartbeat_ns * (3 if operation.is_step_aside else 1)
        overdue = now_ns >= operation.drain_until_ns + patience_ns
        if leader.heartbeat.leads:
            if overdue:
                self._fail(operation, "the leader did not step down in time", effects)
            return
        complete = leader.heartbeat.drained or target.heartbeat.log_end >= leader.heartbeat.log_end
        # Nothing was confirmed without a quorum: every candidate has all that was.
        complete = complete or operation.is_step_aside
        if not complete and not overdue:
            return
        if not complete and not group.state.policy.sync:
            reason = "the target did not get the leader's last messages; the leader continues"
            self._elect(operation, leader, now_ns, effects)
            self._fail(operation, reason, effects)
            return
        operation.steps.append(
            f"broker {leader.heartbeat.broker_id} stepped down at {leader.heartbeat.log_end}"
        )
        self._elect(operation, target, now_ns, effects)

    def _elect(
        self,
        operation: Operation,
        winner: Replica,
        now_ns: int,
        effects: list[Effect],
        *,
        proven: bool = True,
    ) -> None:
        group = self._group
        state = group.state
        if operation.policy is not None:
            state = reelection_state(state, operation.policy, winner.ref)
        seen = find_leader(state, group.replicas, now_ns, group.limits)
        in_sync = seen.live_in_sync
        if operation.is_step_aside:
            in_sync = tuple(ref for ref in in_sync if ref != group.state.leader)
        verdict = Verdict(winner, live_in_sync=in_sync, lost=seen.lost)
        operation.epoch = next_epoch(state, group.replicas.values())
        state = elected(state, verdict, operation.epoch)
        operation.phase = "taking_over"
        operation.deadline_ns = now_ns + group.limits.take_over_ns
        group.cas(state, operation.why, effects, proven=proven)

    def _taking_over(self, operation: Operation, now_ns: int, effects: list[Effect]) -> None:
        group = self._group
        state = group.state
        if state.leader != operation.target or state.epoch < operation.epoch:
            self._fail(operation, "another decision took effect first", effects)
            return
        row = group.leader_row(state)
        if row is not None and row.heartbeat.leads and row.heartbeat.last_epoch >= state.epoch:
            message = f"broker {row.heartbeat.broker_id} leads epoch {state.epoch}"
            if operation.policy is not None:
                message = f"the group is {describe_policy(state.policy)}: {message}"
            operation.steps.append(message)
            self.current = None
            answer(operation, Outcome.DONE, message, effects)
        elif now_ns >= operation.deadline_ns:
            message = f"broker {operation.target.broker_id} was elected but has not taken over yet"
            self._fail(operation, message, effects)

    def _live_target(self, operation: Operation, now_ns: int) -> Replica | None:
        group = self._group
        row = group.replicas.get(operation.target.broker_id)
        if row is None or row.ref != operation.target or not row.alive(now_ns, group.limits):
            return None
        is_candidate = row.ref in group.state.in_sync or operation.is_step_aside
        return row if is_candidate and not disqualification(group.state, row) else None

    def _fail(self, operation: Operation, reason: str, effects: list[Effect]) -> None:
        self.current = None
        operation.steps.append(reason)
        answer(operation, Outcome.FAILED, reason, effects)

    # --- forced election --------------------------------------------------------------------------

    def _begin_force(self, event: ForceElect, now_ns: int, effects: list[Effect]) -> None:
        group = self._group
        state = group.state
        row = group.replicas.get(event.to)
        if row is None or not row.alive(now_ns, group.limits):
            refuse(event.request, f"broker {event.to} is not connected", effects)
            return
        leader = group.leader_row(state)
        if leader is row and row.heartbeat.leads and row.heartbeat.last_epoch >= state.epoch:
            refuse(event.request, f"broker {event.to} leads already", effects)
            return
        operation = Operation(event.request, row.ref, now_ns, phase="electing", is_forced=True)
        why = disqualification(state, row)
        if why or not state.policy.sync:
            # A member in sync of a synchronous group has everything confirmed, whatever its last
            # heartbeat reports.
            operation.lost = lost_range(group, row)
        operation.loses = bool(why) or operation.lost[1] > 0
        operation.why = f"forced by an operator: {event.reason or 'no reason given'}"
        operation.steps += force_steps(state, row, why, operation.lost)
        if operation.loses and not event.accept_loss:
            reason = f"broker {event.to} {why or 'does not have the newest messages'}"
            answer(operation, Outcome.REFUSED, f"{reason}: needs accept-loss", effects)
        elif event.dry_run:
            answer(operation, Outcome.DONE, "nothing was changed (dry run)", effects)
        else:
            self.current = operation

    def _elect_forced(self, operation: Operation, now_ns: int, effects: list[Effect]) -> None:
        group = self._group
        row = group.replicas.get(operation.target.broker_id)
        if row is None or row.ref != operation.target:
            self._fail(
                operation, "the broker restarted meanwhile: check its state and try again", effects
            )
            return
        former = group.leader_row(group.state)
        proven = former is not None and former.dead
        if not operation.loses:
            self._elect(operation, row, now_ns, effects, proven=proven)
            operation.steps.append(f"elected for epoch {operation.epoch}")
            return
        operation.epoch = next_epoch(group.state, group.replicas.values())
        operation.phase = "taking_over"
        operation.deadline_ns = now_ns + group.limits.take_over_ns
        state = forced(group.state, row, operation.epoch)
        operation.steps.append(f"elected for epoch {operation.epoch}, alone in the in-sync set")
        group.cas(state, operation.why, effects, proven=proven)


def _unfitness(replica: Replica) -> str:
    """Return why this replica should not lead, or an empty string."""
    heartbeat = replica.heartbeat
    if heartbeat.leaving:
        return f"broker {heartbeat.broker_id} is stopping"
    return f"the disk of broker {heartbeat.broker_id} is full" if heartbeat.no_room else ""
