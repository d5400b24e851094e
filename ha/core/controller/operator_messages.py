"""Messages for operators: plans, reasons, and the possible loss of a forced election (pure).

The loss is an estimate: the newest confirm offset that was committed or reported, against the log
end of the target. Bytes that only a lost replica held and never reported are not counted
(docs/formats/ha.md, section 6.6).
"""

from ..group_state import GroupState, names
from .election import disqualification
from .events import Replica
from .group_view import GroupView

_NS_PER_MS = 1_000_000


def lost_range(group: GroupView, target: Replica) -> tuple[int, int]:
    """Return the byte range that the group has or had and the target lacks; (0, 0): none known."""
    state = group.state
    ends = [state.confirm_floor, group.confirm_seen]
    for row in group.replicas.values():
        if row.ref in state.in_sync or row.ref in state.eligible:
            ends.append(row.heartbeat.confirm if state.policy.sync else row.heartbeat.log_end)
    end = max(ends)
    start = target.heartbeat.log_end
    return (start, end) if end > start else (0, 0)


def force_steps(state: GroupState, row: Replica, why: str, lost: tuple[int, int]) -> list[str]:
    """Return the state of the group and the consequence of the election, as sentences."""
    heartbeat = row.heartbeat
    steps = [
        f"the group is at version {state.version}, epoch {state.epoch};"
        f" in sync are {names(state.in_sync)}, eligible {names(state.eligible)}",
        f"broker {heartbeat.broker_id} ends at {heartbeat.log_end}, its newest epoch is"
        f" {heartbeat.last_epoch}",
    ]
    if why:
        steps.append(
            f"broker {heartbeat.broker_id} {why}: messages that were answered OK can be lost"
        )
    if lost[1]:
        steps.append(f"missing on it: bytes {lost[0]} to {lost[1]}")
    return steps


def disqualifications(group: GroupView, now_ns: int) -> str:
    """Return why no other replica can lead."""
    state = group.state
    reasons = [
        f"broker {row.heartbeat.broker_id} {disqualification(state, row) or 'is not in sync'}"
        for row in group.replicas.values()
        if row.ref != state.leader and row.alive(now_ns, group.limits)
    ]
    return "; ".join(reasons) or "no other replica is connected"


def switchover_plan(leader: Replica, target: Replica, wait_ns: int) -> list[str]:
    old, new = leader.heartbeat.broker_id, target.heartbeat.broker_id
    return [
        f"would wait up to {wait_ns // _NS_PER_MS} ms until broker {new} has"
        f" {leader.heartbeat.log_end}",
        f"would direct broker {old} to step down when broker {new} has everything",
        f"would elect broker {new} and wait until it leads",
    ]
