"""Replication of one broker: the interface to the broker.

It composes the roles, the replication port, the controller link and one housekeeping task.
Everything runs on the event loop that called `start`. Nothing here waits for a replica or a
controller: a send that must be replicated compares its end with `confirm` when it is told
that `confirm` moved (`events.py`).

A static replica leads or follows from its construction. In controller mode it starts as a follower
without a leader; `announce` opens the sessions to the nameservers, and the role changes through
the events `promoted` and `stepped_down`.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from ..front.config import DoorConfig
from ..nodes.node_links import NodeLinks
from ..proto import v1
from .config import HaConfig
from .control import Control
from .core.follower_events import State
from .core.group_state import Addresses, GroupState, Policy
from .core.in_sync_events import ProposeIsr
from .core.replicated_log import ReplicatedLog
from .core.role_machine import DirectiveArrived, DiskFailed, LeaseRenewed, Role
from .events import LOCKS, OFFSETS, STATE, ReplicaServices, ReplicationEvents
from .members import MemberStatus
from .role.controller_link import ControllerLink
from .role.heartbeats import heartbeat
from .role.role_driver import RoleDriver
from .server import HaServer
from .state.replica import Replica
from .state.replica_meta import Identity
from .stream.leader import LeaderSide

__all__ = ["Identity", "MemberStatus", "Replication", "Role"]

logger = logging.getLogger(__name__)

#: Housekeeping checks heartbeats, leases and lag this often per heartbeat interval, up to a
#: maximum.
_TICKS_PER_HEARTBEAT = 5
_TICK_MAX_S = 0.1
#: Interval of the check while a promotion waits.
_TICK_PROMOTING_S = 0.01
_POSITIONS_EVERY_NS = 100_000_000
#: Time for followers to receive the goodbye.
_STOP_GRACE_S = 0.5


class Replication:
    """Replication of one broker; create it after recovery of the log, before the first append."""

    def __init__(
        self,
        config: HaConfig,
        identity: Identity,
        log: ReplicatedLog,
        steady_ns: Callable[[], int],
        *,
        directory: Path,
        segment_size: int,
        sync_flush: bool,
        events: ReplicationEvents,
        bind_address: str = "127.0.0.1",
        nameservers: Sequence[str] = (),
        links: NodeLinks | None = None,
        door: DoorConfig | None = None,
    ) -> None:
        """Open the state files in `directory` (`<store>/ha`).

        Raises WrongReplicaError, DamagedStateError, DoorError and OSError.
        """
        self.config = config
        self.identity = identity
        self.links = links or NodeLinks(config.cluster_token)
        self.port = 0  #: of the replication port, once started
        self._steady_ns = steady_ns
        self._log = log
        self._bind_address = bind_address
        self.replica = Replica(
            config,
            identity,
            log,
            steady_ns,
            directory=directory,
            segment_size=segment_size,
            sync_flush=sync_flush,
            links=self.links,
        )
        self._events = events
        self._link: ControllerLink | None = None
        self.roles = RoleDriver(self.replica, events, self, registers=bool(nameservers))
        self._control = Control(self.replica, self.roles, self.heartbeat)
        self._server = HaServer(self.replica, self.roles, self._control, door or DoorConfig())
        if config.enable_controller_mode and nameservers:
            self._link = ControllerLink(self.replica, self, nameservers)
        self._addresses = v1.ReplicaAddresses()
        self._housekeeping: asyncio.Task[None] | None = None
        self._confirm_scheduled = False
        self._meta_sent: dict[str, bytes] = {}
        self._meta_leader: LeaderSide | None = None
        self._meta_count = 0

    # --- start and stop ---------------------------------------------------------------------------

    async def start(self) -> int:
        """Open the port and start to follow or serve; returns the port. Raises HaPortInUseError."""
        self.port = await self._server.start(self._bind_address)
        meta = self.replica.meta
        logger.info(
            "ha.started role=%s port=%d uuid=%s incarnation=%d epoch=%d end=%d confirm=%d",
            self.role.value,
            self.port,
            meta.replica_uuid,
            meta.incarnation,
            self.epoch,
            self._log.log_end,
            self.confirm,
        )
        self.roles.start()
        self._housekeeping = asyncio.get_running_loop().create_task(self._run_housekeeping())
        return self.port

    def announce(self, *, client: str, ha: str, metrics: str) -> None:
        """Set the addresses of this replica, and in controller mode open the sessions to the
        nameservers.

        Call it when everything else is ready to lead.
        """
        self._addresses = v1.ReplicaAddresses(client=client, ha=ha, metrics=metrics)
        self.roles.announce(Addresses(client, ha, metrics))
        if self._link is not None:
            self._link.start()

    async def stop(self) -> None:
        """Send goodbyes, close the port and save the confirm offset. The log stays open."""
        if self._housekeeping is not None:
            self._housekeeping.cancel()
            await asyncio.gather(self._housekeeping, return_exceptions=True)
            self._housekeeping = None
        if self._link is not None:
            await self._link.stop()
        await self.roles.stop()
        await self._server.stop(_STOP_GRACE_S)
        self._save_positions()
        self.replica.close_with(self._log)

    async def _run_housekeeping(self) -> None:
        heartbeat_s = self.config.ha_beat_interval_ms / 1000
        pause_s = min(_TICK_MAX_S, heartbeat_s / _TICKS_PER_HEARTBEAT)
        meta_every_ns = self.config.ha_offsets_interval_ms * 1_000_000
        meta_ns = positions_ns = self._steady_ns()
        while True:
            now_ns = self._steady_ns()
            self.roles.tick(now_ns)
            if self._link is not None:
                self._link.log_grew()
            if now_ns - meta_ns >= meta_every_ns:
                meta_ns = now_ns
                self._send_meta(OFFSETS, STATE, LOCKS)
            else:  # a follower that was just in sync may have to show it in the next promotion
                self._send_meta(STATE)
            if now_ns - positions_ns >= _POSITIONS_EVERY_NS:
                positions_ns = now_ns
                self._save_positions()
            promoting = self.role is Role.PROMOTING
            await asyncio.sleep(min(pause_s, _TICK_PROMOTING_S) if promoting else pause_s)

    def _save_positions(self) -> None:
        leader = self.roles.leader
        # The part of the log that only an asynchronous leader has is not confirmed by the group.
        confirm = self.confirm if leader is None else leader.core.replicated
        self.replica.positions.save(confirm, self.roles.local_ok)

    def _send_meta(self, *kinds: str) -> None:
        leader = self.roles.leader
        if leader is None:
            return
        if leader is not self._meta_leader:
            # Followers had another leader meanwhile, or are new.
            self._meta_leader, self._meta_sent = leader, {}
        for kind in kinds:
            self._send_kind(leader.send_meta, kind, self.roles.state_beside(kind))

    def _send_kind(
        self, send: Callable[[str, int, bytes], None], kind: str, payload: bytes | None
    ) -> None:
        before = self._meta_sent.get(kind)
        if payload is None or payload is before or payload == before:
            return
        self._meta_sent[kind] = payload
        self._meta_count += 1
        send(kind, self._meta_count, payload)

    # --- calls of the broker ----------------------------------------------------------------------

    def serve(self, services: ReplicaServices) -> None:
        """Serve these requests of operators and other replicas from now on."""
        self._control.services = services

    @property
    def services(self) -> ReplicaServices | None:
        """What `serve` was given."""
        return self._control.services

    def appended(self) -> None:
        """Handle growth of the log (leader). Call it once per loop turn, after the turn's
        appends."""
        leader = self.roles.leader
        if leader is None:
            return
        moved = leader.appended()
        if not leader.core.limits.is_sync:
            # Before the answers: after a kill, this counts the answered messages of a diverged
            # tail.
            self.replica.positions.note_answered(leader.core.log_end)
        if moved and not self._confirm_scheduled:
            # The caller may register its waits after this call, so the callback comes in the next
            # turn.
            self._confirm_scheduled = True
            asyncio.get_running_loop().call_soon(self._notify_confirm)

    def _notify_confirm(self) -> None:
        self._confirm_scheduled = False
        self._events.confirm_moved()

    def flushed(self) -> None:
        """Handle a move of the log's flushed offset."""
        if self.roles.leader is not None:
            self.roles.leader.flushed()
        elif self.roles.follower is not None:
            self.roles.follower.flushed()

    def set_leader(self, ha_address: str) -> None:
        """Set the leader's replication port as host:port (static follower); empty: unknown.

        A group state set by an operator takes precedence.
        """
        roles = self.roles
        if roles.is_static and roles.follower is not None and roles.machine.following is None:
            roles.follower.set_leader(ha_address)

    def disk_failed(self, reason: str) -> None:
        """Handle a permanent flush or write failure: mark this replica suspect, step down, end
        the process."""
        self.roles.feed(DiskFailed(reason))

    async def leave(self, seconds: float) -> None:
        """Leave the group before a stop, within `shutdownHandoverMs` and `seconds`.

        A follower leaves the in-sync set; a leader hands over to the most advanced in-sync
        follower. Without a controller, and in a static group, nothing is done.
        """
        begin_ns = self._steady_ns()
        limit_s = min(seconds, self.config.shutdown_handover_ms / 1000)
        left = await self.roles.leave(limit_s, lambda: self.has_controller)
        took_ms = (self._steady_ns() - begin_ns) // 1_000_000
        logger.info("ha.left done=%s role=%s took_ms=%d", left, self.role.value, took_ms)

    async def hand_over(self, to: int, max_wait_ms: int) -> v1.GroupsResponse | None:
        """Ask the controller to switch over to broker `to`; None without an answer."""
        return None if self._link is None else await self._link.switch_over(to, max_wait_ms)

    # --- state for the broker ---------------------------------------------------------------------

    @property
    def role(self) -> Role:
        return self.roles.role

    @property
    def is_leader(self) -> bool:
        return self.roles.role is Role.LEADER

    @property
    def epoch(self) -> int:
        """The epoch that this replica leads or follows."""
        return self.replica.epoch

    @property
    def state(self) -> GroupState | None:
        """The newest known state of the group; None in a static group that was never changed."""
        return self.roles.machine.state

    @property
    def policy(self) -> Policy:
        """The meaning of an OK in this group."""
        return self.roles.policy

    @property
    def leader_hint(self) -> tuple[int, str, str] | None:
        """Broker id, client address and replication address of the leader in the group's state, if
        it is another replica."""
        state = self.roles.machine.state
        if state is None or state.leader is None or state.leader == self.replica.ref:
            return None
        member = state.member(state.leader.broker_id)
        if member is None:
            return None
        return member.broker_id, member.addresses.client, member.addresses.ha

    @property
    def confirm(self) -> int:
        """The end below which everything is confirmed by the group.

        It never decreases in one run, except when an asynchronous leader steps down: bytes that it
        alone has may be cut.
        """
        return self.roles.confirm

    def registered_set(self) -> v1.InSyncSet | None:
        """Return the in-sync set that the leader of a static group registers; None for others."""
        return self.roles.registered_set()

    def set_registered(self, found: v1.InSyncSet) -> None:
        """A majority of the nameservers has taken this set of `registered_set`."""
        leader = self.roles.leader
        if leader is not None and self.roles.is_static and found.epoch == self.epoch:
            leader.set_registered(found.revision)

    def write_refusal(self) -> str | None:
        """Return why a write must be refused with HA_NOT_AVAILABLE before the append, or None."""
        roles = self.roles
        leader = roles.leader
        if leader is None:
            return self._not_leading()
        if leader.core.refusal is not None:
            return leader.core.refusal
        if roles.draining:
            return "a planned change of the leader is in progress"
        if roles.is_static:
            return None
        return roles.permission_refusal()

    @property
    def may_write(self) -> bool:
        """Whether this replica leads and its lease permits writes; the in-sync minimum is not
        checked."""
        if self.roles.leader is None or self.roles.draining:
            return False
        return self.roles.is_static or self.roles.permission_refusal() is None

    def _not_leading(self) -> str:
        hint = self.leader_hint
        where = "" if hint is None else f": writes go to broker {hint[0]} at {hint[1]}"
        if self.role is Role.FOLLOWER:
            name = f"broker {self.identity.broker_id} is a slave"
            return name + (where or ": writes go to the master")
        return f"broker {self.identity.broker_id} does not lead now ({self.role.value}){where}"

    @property
    def leader_alive(self) -> bool:
        """Whether a frame of the leader came within three heartbeat intervals; on the leader always
        True."""
        follower = self.roles.follower
        return follower is None or (follower.core.leader_alive and not follower.stopped)

    @property
    def diverged(self) -> str | None:
        """Why this replica's log is not a copy of its leader's, or None."""
        follower = self.roles.follower
        if follower is None or follower.core.refusal_code != "DIVERGED":
            return None
        return follower.core.refusal

    @property
    def refused(self) -> str | None:
        """The leader's current refusal as `CODE: sentence`, DIVERGED included, or None."""
        follower = self.roles.follower
        if follower is None or not follower.core.refusal_code:
            return None
        return f"{follower.core.refusal_code}: {follower.core.refusal}"

    @property
    def in_sync_count(self) -> int:
        """Number of in-sync replicas including the leader; 0 on a follower."""
        return 0 if self.roles.leader is None else self.roles.leader.core.in_sync_count

    @property
    def has_controller(self) -> bool:
        """Whether an active nameserver answers."""
        return self._link is not None and self._link.has_controller

    @property
    def heard_ns(self) -> int | None:
        """Time of the last message of an active controller, the leader or a follower.

        None if this replica needs no other: in a static group, and as a leader when no other
        replica can be elected.
        """
        if self._link is None:
            return None
        leader, follower = self.roles.leader, self.roles.follower
        if leader is not None:
            if leader.core.is_alone:
                return None
            return max(
                [self._link.heard_ns, *(row.heard_ns for row in leader.core.members.values())]
            )
        return max(self._link.heard_ns, 0 if follower is None else follower.frame_ns)

    @property
    def counters(self) -> dict[str, int]:
        """Event counts by name since the start, for metrics."""
        return dict(self.replica.counts)

    def members(self) -> list[MemberStatus]:
        """Return this replica first, then the others it has rows for."""
        now_ns = self._steady_ns()
        leader, follower = self.roles.leader, self.roles.follower
        if leader is not None:
            return [self._own_row("leader", "leader", True), *leader.members(now_ns)]
        assert follower is not None
        state = follower.core.state
        return [self._own_row("follower", state.value, state is State.IN_SYNC)]

    def _own_row(self, role: str, state: str, is_in_sync: bool) -> MemberStatus:
        lag_bytes = 0
        connected = True
        if self.roles.follower is not None:
            core = self.roles.follower.core
            lag_bytes = max(0, core.leader_end - core.log_end)
            connected = state in ("check", "catchup", "in_sync")
        return MemberStatus(
            broker_id=self.identity.broker_id,
            replica_uuid=self.replica.meta.replica_uuid,
            incarnation=self.replica.meta.incarnation,
            role=role,
            state=state,
            connected=connected,
            in_sync=is_in_sync,
            log_end=self._log.log_end,
            flushed_end=self._log.flushed_offset,
            lag_bytes=lag_bytes,
            behind_ms=0,
        )

    # --- the controller's link --------------------------------------------------------------------

    def heartbeat(self) -> v1.BrokerBeat:
        """Return the current heartbeat of this replica."""
        refusal = self.write_refusal() if self.is_leader else None
        return heartbeat(self.replica, self.roles, self._events, self._addresses, refusal or "")

    def directive(self, event: DirectiveArrived) -> None:
        self.roles.directive(event)

    def lease(self, event: LeaseRenewed) -> None:
        self.roles.feed(event)

    def proposal_answered(self, seq: int, state: GroupState | None, *, accepted: bool) -> None:
        if state is not None and state.version:
            self.roles.state_seen(state)
        if self.roles.leader is not None:
            self.roles.leader.proposal_answered(seq, state, accepted=accepted)

    def changed(self) -> None:
        """Tell the controller soon (`RoleReports`)."""
        if self._link is not None:
            self._link.changed()

    def proposed(self, proposal: ProposeIsr) -> None:
        """Send a proposal to the controller (`RoleReports`)."""
        if self._link is not None:
            self._link.propose(proposal)
