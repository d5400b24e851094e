"""Rows of `cometmq ha status`: groups and replicas, reported by a controller or the replicas."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...proto import v1
from .replicas import Nameservers, Replica, find, from_report
from .static_groups import in_sync_ids, newest_state, old_leader

_ROLES = {v1.LEADER: "leader", v1.FOLLOWER: "follower"}


@dataclass(slots=True)
class GroupView:
    """One group: its replicas, and the report of its controller if it has one."""

    group: str
    replicas: list[Replica]
    report: v1.GroupReport | None


def states(namesrv: str, group: str, named: Sequence[str]) -> list[GroupView]:
    """Return the selected groups with the status of each replica."""
    found: list[GroupView] = []
    if not named:
        reports = [r for r in Nameservers(namesrv).groups(group) if r.state.version > 0]
        found = [GroupView(r.state.group, from_report(r), r) for r in reports]
    led = {view.group for view in found}
    if named:
        replicas, _ = find(namesrv, group, named)
    else:
        replicas = Nameservers(namesrv).replicas(group)
    for name in sorted({one.group for one in replicas} - led):
        found.append(GroupView(name, [one for one in replicas if one.group == name], None))
    for view in found:
        for one in view.replicas:
            if one.status is None:
                one.refresh()
    return found


def group_fields(view: GroupView) -> dict[str, Any]:
    """Return the fields of a group."""
    state = view.report.state if view.report is not None else newest_state(view.replicas)
    if view.report is not None:
        leader = str(state.leader.broker_id) if state.HasField("leader") else "none"
        decider = view.report.controller or "controller"
        if not view.report.active:
            decider += " (not active)"
    else:
        old = old_leader(view.replicas, state)
        leader = str(old.broker_id) if old is not None and old.status is not None else "none"
        decider = "operator (static group)"
    fields = {
        "group": view.group,
        "leader": leader,
        "epoch": max([int(state.epoch), *(_epoch(one) for one in view.replicas)]),
        "version": int(state.version),
        "in_sync": sorted(in_sync_ids(state)),
        "decided_by": decider,
    }
    if view.report is not None:
        fields["phase"] = view.report.phase
        fields["policy"] = _policy(state.policy)
        fields["cuts"] = [f"{c.replica.broker_id}: {c.start}..{c.end}" for c in view.report.cuts]
    if state.hold_reason:
        fields["hold"] = state.hold_reason
    return fields


def _epoch(one: Replica) -> int:
    return int(one.status.beat.last_epoch) if one.status is not None else 0


def _policy(policy: v1.GroupPolicy) -> str:
    how = "sync" if policy.sync else "async"
    flush = "sync" if policy.sync_flush else "async"
    return f"{how}, {flush} flush, at least {policy.min_in_sync} in sync"


def replica_rows(view: GroupView) -> list[dict[str, Any]]:
    """Return one row for each replica."""
    state = view.report.state if view.report is not None else newest_state(view.replicas)
    members = in_sync_ids(state)
    return [_row(one, one.broker_id in members) for one in view.replicas]


def _row(one: Replica, in_sync: bool) -> dict[str, Any]:
    if one.status is None:
        unknown = dict.fromkeys(("epoch", "log_end", "flushed", "confirm", "tails"), 0)
        return {
            "broker_id": one.broker_id,
            "role": "unreachable",
            "in_sync": in_sync,
            **unknown,
            "address": one.ha,
            "note": one.error,
        }
    status, beat = one.status, one.status.beat
    notes = [word for word, on in (("suspect", beat.suspect), ("learner", beat.learner)) if on]
    notes += [text for text in (status.detail, beat.write_refusal) if text]
    return {
        "broker_id": one.broker_id,
        "role": status.role or _ROLES.get(beat.role, "unknown"),
        "in_sync": in_sync,
        "epoch": int(beat.last_epoch),
        "log_end": int(beat.log_end),
        "flushed": int(beat.flushed_end),
        "confirm": int(beat.confirm),
        "tails": len(status.tails),
        "address": one.ha,
        "note": "; ".join(notes),
    }
