"""Rows of `cometmq ha status`: groups and replicas, reported by a controller or the replicas.

The health of a group:

    healthy      the leader accepts writes; all replicas answer, send heartbeats and are in sync
    degraded     the leader accepts writes; a replica is missing, or no nameserver decides
    draining     an operator ended sends to the group, or a switchover is in progress
    no writes    there is no leader, or the leader refuses writes or has stopped
    unknown      the leader does not answer this command, but sends heartbeats
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from ...proto import paths, v1
from ..errors import CliError
from .parallel import Calls
from .replicas import (
    CALL_S,
    Nameservers,
    Replica,
    decides,
    find,
    from_report,
    members,
    newest_only,
    newest_reports,
)
from .static_groups import in_sync_ids, newest_state

HEALTHY, DEGRADED, DRAINING, NO_WRITES, UNKNOWN = (
    "healthy",
    "degraded",
    "draining",
    "no writes",
    "unknown",
)
#: Each of the two steps (nameservers, replicas) waits this long for the others after the first
#: answer: status takes less than a second beside nodes that do not answer.
STATUS_S = 0.4
_POLL_S = 0.2
_ROLES = {v1.LEADER: "leader", v1.FOLLOWER: "follower"}


@dataclass(slots=True)
class GroupView:
    """One group: its replicas, and the report of its controller if it has one."""

    group: str
    replicas: list[Replica]
    report: v1.GroupReport | None
    silent_nameservers: list[str] = field(default_factory=list)
    unreported: str = ""  #: why no nameserver reported the group; empty: it is reported, or static

    @property
    def state(self) -> v1.GroupState:
        """The state according to the controller, or else the newest of the replicas."""
        return self.report.state if self.report is not None else newest_state(self.replicas)

    def leader(self) -> Replica | None:
        """Return the leader of the state, or else the replica that leads the newest epoch."""
        state = self.state
        if state.version:
            wanted = state.leader.broker_id if state.HasField("leader") else -1
            return next((one for one in self.replicas if one.broker_id == wanted), None)
        leading = [one for one in self.replicas if one.status is not None and one.leads]
        return max(leading, key=_epoch, default=None)


def states(namesrv: str, group: str, named: Sequence[str]) -> list[GroupView]:
    """Return the selected groups with the status of each replica. Raises CliError."""
    if named:
        replicas, _ = find(namesrv, group, named)
        return [
            GroupView(name, [one for one in replicas if one.group == name], None)
            for name in sorted({one.group for one in replicas})
        ]
    servers = Nameservers(namesrv).addresses
    with ExitStack() as stack:
        request = v1.GetGroupRequest(group=group)
        reports = stack.enter_context(Calls(servers, paths.GET_GROUPS, request, v1.GroupsResponse))
        routes = stack.enter_context(
            Calls(servers, paths.GET_CLUSTER, v1.GetClusterRequest(), v1.GetClusterResponse)
        )
        limit_s = reports.first(CALL_S) + STATUS_S
        reports.wait(limit_s, decides)
        routes.wait(limit_s, lambda _: True)
        found = _views(reports, routes, group)
        _refresh([one for view in found for one in view.replicas])
        routes.wait(limit_s)  # of those nameservers that no answer was needed from
    for view in found:
        view.silent_nameservers = [address for address in servers if address in routes.errors]
    return found


def settled(look: Callable[[], list[GroupView]], wait_s: float) -> list[GroupView]:
    """Return the groups once all are healthy, or as they are after `wait_s`.

    Errors (no nameserver answers) count as not healthy until then.
    """
    end_s = time.monotonic() + wait_s
    while True:
        is_last = time.monotonic() >= end_s
        try:
            found = look()
        except CliError:
            if is_last:
                raise
        else:
            if is_last or (found and all(health(view)[0] == HEALTHY for view in found)):
                return found
        time.sleep(_POLL_S)


def _views(reports: Calls, routes: Calls, group: str) -> list[GroupView]:
    """Return the groups of the controllers' reports, then those that only the routes have."""
    best = [r for r in newest_reports(reports.answers, group) if r.state.version > 0]
    found = [GroupView(r.state.group, from_report(r), r) for r in best]
    if not routes.answers and not found:
        raise next(iter(routes.errors.values()))
    led = {view.group for view in found}
    error = reports.failed()
    unreported = "" if error is None else str(error)
    for address, answer in list(routes.answers.items())[:1]:
        replicas = newest_only(members(address, answer, group))
        for name in sorted({one.group for one in replicas} - led):
            own = [one for one in replicas if one.group == name]
            found.append(GroupView(name, own, None, unreported=unreported))
    return found


def _refresh(replicas: list[Replica]) -> None:
    """Read the status of all replicas at the same time."""
    request = v1.StatusRequest()
    addresses = [one.ha for one in replicas]
    with Calls(addresses, paths.REPLICA_STATUS, request, v1.ReplicaStatus) as calls:
        calls.wait(calls.first(CALL_S) + STATUS_S)
        for one in replicas:
            if one.ha in calls.answers:
                one.take(calls.answers[one.ha])
            else:
                one.error = str(calls.errors[one.ha])


def health(view: GroupView) -> tuple[str, list[str]]:
    """Return the health of a group and a sentence for every problem."""
    state, leader = view.state, view.leader()
    problems = [f"nameserver {address} does not answer" for address in view.silent_nameservers]
    if view.unreported:
        problems.append(f"no nameserver reported this group: {view.unreported.rstrip('.')}")
    if view.report is not None and not view.report.active:
        problems.append("no nameserver decides for this group")
    if state.hold_reason:
        problems.append(f"held: {state.hold_reason}")
    elif leader is None:
        problems.append("no leader")
    for one in view.replicas:
        problems += _problems(one, bool(state.version) and not _is_in_sync(one, state))
    phase = view.report.phase if view.report is not None else ""
    writes = _writes(leader, problems)
    if writes:
        return writes, problems
    if phase == DRAINING:
        return DRAINING, problems
    return (DEGRADED if problems else HEALTHY), problems


def _is_in_sync(one: Replica, state: v1.GroupState) -> bool:
    """Return whether this incarnation of the replica is in the in-sync set."""
    seat = int(one.broker_id), one.incarnation
    return any((int(ref.broker_id), int(ref.incarnation)) == seat for ref in state.in_sync)


def _problems(one: Replica, is_out: bool) -> list[str]:
    name = f"broker {one.broker_id}"
    found = [f"{name} does not answer"] if one.status is None else []
    if one.overdue:
        age = one.heartbeat_age_ms or 0
        late = f" for {age / 1000:.1f} s" if age > 0 else ""
        found.append(f"{name} sends no heartbeats{late}")
    if is_out:
        found.append(f"{name} is not in sync")
    return found


def _writes(leader: Replica | None, problems: list[str]) -> str:
    """Return NO_WRITES or UNKNOWN, or an empty text if the leader accepts writes."""
    if leader is None:
        return NO_WRITES
    if leader.status is None:
        heard = leader.heartbeat_age_ms is not None and not leader.overdue
        return UNKNOWN if heard else NO_WRITES
    if leader.status.role != "leader":
        problems.append(f"broker {leader.broker_id} was elected and does not lead yet")
        return NO_WRITES
    if leader.status.beat.write_refusal:
        problems.append(f"the leader refuses writes: {leader.status.beat.write_refusal}")
        return NO_WRITES
    return ""


def group_fields(view: GroupView) -> dict[str, Any]:
    """Return the fields of a group."""
    state, leader = view.state, view.leader()
    word, problems = health(view)
    fields: dict[str, Any] = {"group": view.group, "health": word}
    if problems:
        fields["problems"] = problems
    fields |= {
        "leader": "none" if leader is None else str(leader.broker_id),
        "epoch": max([int(state.epoch), *(_epoch(one) for one in view.replicas)]),
        "version": int(state.version),
        "in_sync": sorted(in_sync_ids(state)),
        "decided_by": "unknown" if view.unreported else _decider(view.report),
    }
    if view.report is not None:
        fields["phase"] = view.report.phase
        fields["policy"] = _policy(state.policy)
        fields["cuts"] = [f"{c.replica.broker_id}: {c.start}..{c.end}" for c in view.report.cuts]
    if state.hold_reason:
        fields["hold"] = state.hold_reason
    return fields


def _decider(report: v1.GroupReport | None) -> str:
    if report is None:
        return "operator (static group)"
    return report.controller + ("" if report.active else " (not active)")


def _epoch(one: Replica) -> int:
    return int(one.status.beat.last_epoch) if one.status is not None else 0


def _policy(policy: v1.GroupPolicy) -> str:
    how = "sync" if policy.sync else "async"
    flush = "sync" if policy.sync_flush else "async"
    return f"{how}, {flush} flush, at least {policy.min_in_sync} in sync"


def replica_rows(view: GroupView) -> list[dict[str, Any]]:
    """Return one row for each replica; what is unknown is None."""
    state, leader = view.state, view.leader()
    return [_row(one, _is_in_sync(one, state), one is leader) for one in view.replicas]


def _row(one: Replica, in_sync: bool, is_leader: bool) -> dict[str, Any]:
    start = {"broker_id": one.broker_id}
    heartbeat = {"heartbeat_age_ms": one.heartbeat_age_ms}
    if one.status is None:
        unknown = dict.fromkeys(("epoch", "log_end", "flushed", "confirm", "tails"))
        return {
            **start,
            "role": "unreachable",
            "in_sync": in_sync,
            **unknown,
            **heartbeat,
            "address": one.ha,
            "note": one.error,
        }
    status, beat = one.status, one.status.beat
    notes = [word for word, on in (("suspect", beat.suspect), ("learner", beat.learner)) if on]
    notes += [text for text in (status.detail, beat.write_refusal) if text]
    role = status.role or _ROLES.get(beat.role, "unknown")
    return {
        **start,
        "role": "former leader" if role == "leader" and not is_leader else role,
        "in_sync": in_sync,
        "epoch": int(beat.last_epoch),
        "log_end": int(beat.log_end),
        "flushed": int(beat.flushed_end),
        "confirm": int(beat.confirm),
        "tails": len(status.tails),
        **heartbeat,
        "address": one.ha,
        "note": "; ".join(notes),
    }
