"""The replication of a broker group, for the page of high availability. Pure.

Health, rows and sentences are those of `cometmq ha status`.
"""

from typing import Any

from ..operations.replication import GroupView, Replica, group_fields, replica_rows
from ..proto import v1
from .overview import BAD, OK, WARNING

_LEVELS = {"healthy": OK, "degraded": WARNING, "draining": WARNING, "unknown": WARNING}
# The newest epochs of a history that a leader keeps from the start of its log.
_EPOCHS_SHOWN = 12


def view_of(answer: v1.DescribeReplicationResponse) -> GroupView:
    """Return a group as `cometmq ha status` sees it."""
    report = answer.report if answer.HasField("report") else None
    reported = {int(one.replica.broker_id): one for one in report.replicas} if report else {}
    replicas = []
    for one in answer.replicas:
        found = Replica(
            group=answer.group,
            broker_id=int(one.broker_id),
            ha=one.addresses.ha,
            client=one.addresses.client,
            known_leader=one.leads,
            error=one.error,
        )
        row = reported.get(found.broker_id)
        if row is not None:
            found.incarnation = int(row.replica.incarnation)
            found.overdue = row.overdue
            if report is not None and report.active:
                found.heartbeat_age_ms = int(row.silent_ms)
        if one.HasField("status"):
            found.take(one.status)
        replicas.append(found)
    return GroupView(answer.group, replicas, report, list(answer.silent_nameservers))


def group_values(view: GroupView) -> dict[str, Any]:
    """Return what the page shows of a group."""
    absent = {"problems": [], "phase": "", "policy": "", "hold": "", "cuts": []}
    fields = absent | group_fields(view)
    rows = replica_rows(view)
    ends = [row["log_end"] for row in rows if row["log_end"] is not None]
    end = max(ends, default=0)
    for row in rows:
        row["behind"] = None if row["log_end"] is None else end - row["log_end"]
    report, leader = view.report, view.leader()
    return {
        "fields": fields,
        "level": _LEVELS.get(fields["health"], BAD),
        "replicas": rows,
        "has_controller": report is not None,
        "policy": view.state.policy,
        "is_drained": view.state.drain,
        "lease": lease(leader),
        "epochs": epochs(leader),
        "tails": tails(view),
        "followers": [
            row["broker_id"] for row in rows if row["role"] == "follower" and row["in_sync"]
        ],
    }


def lease(leader: Replica | None) -> int | None:
    """Return the milliseconds for which the leader may write; -1: without a lease, None:
    unknown."""
    if leader is None or leader.status is None:
        return None
    return int(leader.status.may_write_ms)


def epochs(leader: Replica | None) -> list[dict[str, int | None]]:
    """Return the newest epochs of the leader's log, the newest first, each with its range."""
    if leader is None or leader.status is None:
        return []
    points = list(leader.status.epochs)[-_EPOCHS_SHOWN:]
    ends = [*(int(one.start) for one in points[1:]), None]
    found: list[dict[str, int | None]] = [
        {"epoch": int(one.epoch), "start": int(one.start), "end": end}
        for one, end in zip(points, ends, strict=True)
    ]
    return found[::-1]


def tails(view: GroupView) -> list[dict[str, Any]]:
    """Return the archived diverged tails of all replicas that answer, the newest first."""
    found = [
        {"broker_id": one.broker_id, "tail": tail}
        for one in view.replicas
        if one.status is not None
        for tail in one.status.tails
    ]
    return sorted(found, key=lambda row: -int(row["tail"].cut_at_ms))
