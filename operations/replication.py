"""The replication of a broker group as operators see it: replicas, health, rows. Pure.

The health of a group:

    healthy      the leader accepts writes; all replicas answer, send heartbeats and are in sync
    degraded     the leader accepts writes; a replica is missing, or no nameserver decides
    draining     an operator ended sends to the group, or a switchover is in progress
    no writes    there is no leader, or the leader refuses writes or has stopped
    unknown      the leader does not answer the program, but sends heartbeats
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..proto import v1

HEALTHY, DEGRADED, DRAINING, NO_WRITES, UNKNOWN = (
    "healthy",
    "degraded",
    "draining",
    "no writes",
    "unknown",
)
_ROLES = {v1.LEADER: "leader", v1.FOLLOWER: "follower"}


@dataclass(slots=True)
class Replica:
    """One replica of a group: its addresses, the nameserver's data, and its own status."""

    group: str
    broker_id: int
    ha: str
    client: str = ""
    uuid: str = ""
    incarnation: int = 0
    known_leader: bool = False  # according to the routes
    known_end: int = 0
    known_confirm: int = 0
    known_epoch: int = 0
    status: v1.ReplicaStatus | None = None
    error: str = ""
    heartbeat_age_ms: int | None = None  # according to the controller; -1: never
    overdue: bool = False
    #: Its ports refuse connections: the process has ended.
    is_gone: bool = False

    @property
    def name(self) -> str:
        return f"broker {self.broker_id} ({self.ha})"

    @property
    def leads(self) -> bool:
        """True for a leader by its own status; by the routes if it is unreachable."""
        return self.known_leader if self.status is None else self.status.role == "leader"

    def take(self, status: v1.ReplicaStatus) -> None:
        """Enter the replica's own status."""
        self.status, self.error, self.is_gone = status, "", False
        own = status.beat.replica
        self.broker_id, self.uuid = int(own.broker_id), own.replica_uuid
        self.incarnation = int(own.incarnation)
        self.group = own.group or self.group


@dataclass(slots=True)
class GroupView:
    """One group: its replicas, and the report of its controller if it has one."""

    group: str
    replicas: list[Replica]
    report: v1.GroupReport | None
    silent_nameservers: list[str] = field(default_factory=list)
    unreported: str = ""  #: why no nameserver reported the group; empty: it is reported, or static
    expected: int = 0  #: replicas that the operator expects; 0: those that are known

    @property
    def state(self) -> v1.GroupState:
        """The state according to the controller, or else the newest of the replicas."""
        return self.report.state if self.report is not None else newest_state(self.replicas)

    def leader(self) -> Replica | None:
        """Return the leader of the state, or else the replica that leads the newest epoch."""
        state = self.state
        if state.version:
            wanted = state.leader.broker_id if state.HasField("leader") else -1
            return next((replica for replica in self.replicas if replica.broker_id == wanted), None)
        leading = [
            replica for replica in self.replicas if replica.status is not None and replica.leads
        ]
        return max(leading, key=_epoch, default=None)


def health(view: GroupView) -> tuple[str, list[str]]:
    """Return the health of a group and a sentence for every problem."""
    state, leader = view.state, view.leader()
    problems = [f"nameserver {address} does not answer" for address in view.silent_nameservers]
    if view.unreported:
        problems.append(f"no nameserver reported this group: {view.unreported.rstrip('.')}")
    if view.report is not None and not view.report.active:
        problems.append("no nameserver decides for this group")
    if len(view.replicas) < view.expected:
        problems.append(f"{len(view.replicas)} of {view.expected} replicas have registered")
    if state.hold_reason:
        problems.append(f"held: {state.hold_reason}")
    elif leader is None:
        problems.append("no leader")
    if not view.replicas:
        problems.append(
            "no replica has registered: start the group, or, if it is gone for good, run"
            f" `cometmq cluster forget {view.group}`"
        )
    for replica in view.replicas:
        problems += _problems(replica, bool(state.version) and not _is_in_sync(replica, state))
    phase = view.report.phase if view.report is not None else ""
    writes = _writes(leader, problems)
    if writes:
        return writes, problems
    if phase == DRAINING:
        return DRAINING, problems
    return (DEGRADED if problems else HEALTHY), problems


def _is_in_sync(replica: Replica, state: v1.GroupState) -> bool:
    """Return whether this incarnation of the replica is in the in-sync set."""
    seat = int(replica.broker_id), replica.incarnation
    return any((int(ref.broker_id), int(ref.incarnation)) == seat for ref in state.in_sync)


def _problems(replica: Replica, is_out: bool) -> list[str]:
    name = f"broker {replica.broker_id}"
    problems = [f"{name} does not answer"] if replica.status is None else []
    if replica.overdue:
        age = replica.heartbeat_age_ms or 0
        late = f" for {age / 1000:.1f} s" if age > 0 else ""
        problems.append(f"{name} sends no heartbeats{late}")
    if is_out:
        problems.append(f"{name} is not in sync")
    return problems


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
        "epoch": max([int(state.epoch), *(_epoch(replica) for replica in view.replicas)]),
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


def _epoch(replica: Replica) -> int:
    return int(replica.status.beat.last_epoch) if replica.status is not None else 0


def _policy(policy: v1.GroupPolicy) -> str:
    how = "sync" if policy.sync else "async"
    flush = "sync" if policy.sync_flush else "async"
    return f"{how}, {flush} flush, at least {policy.min_in_sync} in sync"


def replica_rows(view: GroupView) -> list[dict[str, Any]]:
    """Return one row for each replica; what is unknown is None."""
    state, leader = view.state, view.leader()
    return [
        _row(replica, _is_in_sync(replica, state), replica is leader) for replica in view.replicas
    ]


def _row(replica: Replica, in_sync: bool, is_leader: bool) -> dict[str, Any]:
    start = {"broker_id": replica.broker_id}
    heartbeat = {"heartbeat_age_ms": replica.heartbeat_age_ms}
    if replica.status is None:
        unknown = dict.fromkeys(("epoch", "log_end", "flushed", "confirm", "tails"))
        return {
            **start,
            "role": "unreachable",
            "in_sync": in_sync,
            **unknown,
            **heartbeat,
            "address": replica.ha,
            "note": replica.error,
        }
    status, beat = replica.status, replica.status.beat
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
        "address": replica.ha,
        "note": "; ".join(notes),
    }


def newest_state(replicas: Sequence[Replica]) -> v1.GroupState:
    """Return the newest stored state; version 0 if no replica has one."""
    states = [replica.status.state for replica in replicas if replica.status is not None]
    return max(states, key=lambda state: (state.epoch, state.version), default=v1.GroupState())


def in_sync_ids(state: v1.GroupState) -> set[int]:
    """Return the broker ids of the in-sync set."""
    return {int(ref.broker_id) for ref in state.in_sync}
