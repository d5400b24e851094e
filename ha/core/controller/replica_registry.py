"""Replica registry: the newest incarnation and the newest heartbeat of every replica (pure).

A heartbeat is accepted from the newest incarnation of the replica that holds its broker id:

    another disk under the same broker id, the holder is alive               refused: ID_IN_USE
    another disk, within the grace time, no heartbeat of the holder          refused: ID_IN_USE
    same incarnation from other addresses, while it is alive                 refused: copied
                                                                             directory
    older incarnation of the same disk                                       refused: STALE
    earlier or repeated heartbeat of the same incarnation                    ignored
    numbers that no log can have                                             refused: INVALID
    more than 16 replicas                                                    refused: FULL
"""

from ..group_state import MEMBERS_MAX, GroupState
from .events import (
    NUMBER_MAX,
    Effect,
    Heartbeat,
    HeartbeatArrived,
    Limits,
    LogEvent,
    ProcessExited,
    RefusalCode,
    Refuse,
    Replica,
)


class ReplicaRegistry:
    """The newest incarnation of every registered replica."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.replicas: dict[int, Replica] = {}

    def heartbeat(
        self,
        event: HeartbeatArrived,
        state: GroupState,
        now_ns: int,
        grace_until_ns: int,
        effects: list[Effect],
    ) -> bool:
        """Enter a heartbeat; returns False if it was refused or is late, and nothing changed."""
        heartbeat = event.heartbeat
        refusal = self._refusal(event, state, now_ns, grace_until_ns)
        if refusal is not None:
            effects.append(refusal)
            return False
        row = self.replicas.get(heartbeat.broker_id)
        if (
            row is None
            or row.ref != heartbeat.ref
            or row.heartbeat.replica_uuid != heartbeat.replica_uuid
        ):
            self._new_incarnation(event, row, now_ns, effects)
            return True
        if (heartbeat.sent_ns, heartbeat.seq) <= (row.heartbeat.sent_ns, row.heartbeat.seq):
            return False
        if row.session not in (0, event.session):
            reason = "the same broker opened a newer session"
            effects.append(Refuse(row.session, RefusalCode.STALE, reason))
        self._same_incarnation(row, event, now_ns, effects)
        return True

    def close(self, session: int) -> None:
        """Detach a closed session. This proves nothing about the broker's process."""
        for row in self.replicas.values():
            if row.session == session:
                row.session = 0

    def exited(self, event: ProcessExited, now_ns: int) -> bool:
        """Mark a replica dead after its supervisor reported the exit; returns False for an unknown
        incarnation."""
        row = self.replicas.get(event.broker_id)
        if row is None or event.replica_uuid not in ("", row.heartbeat.replica_uuid):
            return False
        if event.incarnation not in (0, row.heartbeat.incarnation):
            return False
        row.dead = True
        row.dead_ns = now_ns
        row.session = 0
        return True

    def _new_incarnation(
        self, event: HeartbeatArrived, row: Replica | None, now_ns: int, effects: list[Effect]
    ) -> None:
        heartbeat = event.heartbeat
        known = heartbeat.known
        if row is not None:
            if row.session not in (0, event.session):
                reason = "a newer incarnation of this broker registered"
                effects.append(Refuse(row.session, RefusalCode.STALE, reason))
            if row.known is not None and (known is None or known.version < row.known.version):
                known = row.known
        fresh = Replica(heartbeat, event.session, heard_ns=now_ns, first_ns=now_ns, known=known)
        fresh.led_epoch = heartbeat.last_epoch if heartbeat.leads else 0
        self.replicas[heartbeat.broker_id] = fresh
        life = f"broker {heartbeat.broker_id} incarnation {heartbeat.incarnation}"
        effects.append(LogEvent("replica.registered", f"{life} log_end={heartbeat.log_end}"))

    def _same_incarnation(
        self, row: Replica, event: HeartbeatArrived, now_ns: int, effects: list[Effect]
    ) -> None:
        heartbeat = event.heartbeat
        if row.dead and now_ns - row.dead_ns > 2 * self._limits.heartbeat_ns:
            # Later than any heartbeat in flight: the exit report was wrong.
            row.dead = False
            effects.append(
                LogEvent("replica.not_dead", f"broker {heartbeat.broker_id} sends heartbeats again")
            )
        if not heartbeat.lacks_quorum:
            row.lacks_quorum_ns = 0
        elif not row.lacks_quorum_ns:
            row.lacks_quorum_ns = now_ns
        row.heartbeat = heartbeat
        row.session = event.session
        row.heard_ns = now_ns
        row.heartbeats += 1
        if heartbeat.leads:
            row.led_epoch = max(row.led_epoch, heartbeat.last_epoch)
        if heartbeat.known is not None and (
            row.known is None or heartbeat.known.version >= row.known.version
        ):
            row.known = heartbeat.known

    # --- refusals ---------------------------------------------------------------------------------

    def _refusal(
        self, event: HeartbeatArrived, state: GroupState, now_ns: int, grace_until_ns: int
    ) -> Refuse | None:
        heartbeat = event.heartbeat
        row = self.replicas.get(heartbeat.broker_id)
        if wrong := _invalid(heartbeat, state):
            return Refuse(event.session, RefusalCode.INVALID, wrong)
        if row is not None:
            return self._against_holder(event, row, now_ns)
        if len(self.replicas) >= MEMBERS_MAX:
            reason = f"the group has {MEMBERS_MAX} replicas already, its limit"
            return Refuse(event.session, RefusalCode.FULL, reason)
        member = state.member(heartbeat.broker_id)
        other_disk = member is not None and member.replica_uuid not in ("", heartbeat.replica_uuid)
        if other_disk and now_ns < grace_until_ns:
            reason = (
                f"brokerId {heartbeat.broker_id} belongs to another replica of the group, which "
                "may still register; this one is accepted after the grace time"
            )
            return Refuse(event.session, RefusalCode.ID_IN_USE, reason)
        return None

    def _against_holder(self, event: HeartbeatArrived, row: Replica, now_ns: int) -> Refuse | None:
        heartbeat, held = event.heartbeat, row.heartbeat
        alive = row.alive(now_ns, self._limits)
        if held.replica_uuid != heartbeat.replica_uuid:
            if not alive:
                return None
            reason = (
                f"brokerId {heartbeat.broker_id} is held by the replica at {held.addresses.client},"
                " which is alive: give this one another brokerId, or stop the other"
            )
            return Refuse(event.session, RefusalCode.ID_IN_USE, reason)
        if heartbeat.incarnation < held.incarnation:
            reason = (
                f"a newer process of this replica (incarnation {held.incarnation}) has registered;"
                f" this one is incarnation {heartbeat.incarnation}: stop it"
            )
            return Refuse(event.session, RefusalCode.STALE, reason)
        copied = heartbeat.ref == held.ref and row.session not in (0, event.session) and alive
        if copied and held.addresses != heartbeat.addresses:
            reason = (
                f"the same replica is alive at {held.addresses.client}: was its data "
                "directory copied? Delete ha/replica.meta in the copy, or stop one of the "
                "two"
            )
            return Refuse(event.session, RefusalCode.ID_IN_USE, reason)
        return None


def _invalid(heartbeat: Heartbeat, state: GroupState) -> str:
    """Return why the heartbeat is invalid, or an empty string."""
    numbers = (
        heartbeat.incarnation,
        heartbeat.promised_epoch,
        heartbeat.last_epoch,
        heartbeat.heard_epoch,
        heartbeat.log_end,
        heartbeat.confirm,
    )
    if not heartbeat.replica_uuid or heartbeat.broker_id < 0 or heartbeat.incarnation == 0:
        return (
            "a heartbeat needs a replica uuid, an incarnation and a brokerId that is not negative"
        )
    if max(numbers) > NUMBER_MAX:
        return "an epoch or a position is larger than any log can have"
    if not heartbeat.log_start <= heartbeat.log_end or heartbeat.flushed_end > heartbeat.log_end:
        return (
            f"log start {heartbeat.log_start}, flushed end {heartbeat.flushed_end} and end "
            f"{heartbeat.log_end} contradict each other"
        )
    known = heartbeat.known
    if known is not None and not known.is_new:
        if (known.cluster, known.group) != (state.cluster, state.group):
            return f"its state on disk is of group {known.group} in cluster {known.cluster}"
        try:
            known.validate()
        except AssertionError as error:
            return f"its state on disk is damaged: {error}"
    return ""
