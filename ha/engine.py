"""Replication of one broker: the face that the broker sees (design, sections 3 and 4).

Composes the side that the role needs, the port, the state files and one housekeeping task. Everything
runs on the loop that `start` was called on; nothing here waits for a replica: who promises something to
a client compares with `confirm` when `on_confirm` says that it moved.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from .config import HaConfig
from .core import follower, in_sync
from .core.follower_events import State
from .follower import FollowerSide
from .hooks import Hooks
from .leader import LeaderSide
from .log import ReplicatedLog
from .members import MemberStatus
from .positions import Positions
from .replica import Replica
from .replica_meta import Identity, start_replica
from .server import HaServer

__all__ = ["Identity", "MemberStatus", "Replication", "Role"]

_logger = logging.getLogger(__name__)

#: Housekeeping looks at beats, leases and lag this many times a beat, but not more often than needed.
_TICKS_PER_BEAT = 5
_TICK_MAX_S = 0.1
_POSITIONS_EVERY_NS = 1_000_000_000
#: Followers get this long to take the goodbye.
_STOP_GRACE_S = 0.5


class Role(Enum):
    LEADER = "leader"
    FOLLOWER = "follower"


class Replication(Hooks):
    """Create it after the log was opened (recovered), before anything is appended."""

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
        bind_address: str = "127.0.0.1",
    ) -> None:
        """`directory` is `<store>/ha`; raises WrongReplicaError and DamagedStateError."""
        super().__init__()
        self.config = config
        self.identity = identity
        self.role = Role.LEADER if config.is_leader else Role.FOLLOWER
        self.port = 0  #: of the replication port, once started
        self._steady_ns = steady_ns
        self._log = log
        self._bind_address = bind_address
        self._positions = Positions(directory)
        meta = start_replica(directory, identity)
        self.replica = Replica(config, identity, meta, log, steady_ns, segment_size)
        self.epoch = self.replica.epoch
        self._leader = self._make_leader(sync_flush) if config.is_leader else None
        self._follower = None if config.is_leader else self._make_follower()
        self._server = HaServer(self.replica, self._leader)
        self._housekeeping: asyncio.Task[None] | None = None
        self._confirm_scheduled = False
        self._offsets_sent: bytes | None = None
        self._offsets_count = 0

    def _make_leader(self, sync_flush: bool) -> LeaderSide:
        config, log = self.config, self._log
        limits = in_sync.Limits(
            is_sync=config.is_sync,
            counts_flushed=sync_flush,
            min_in_sync=config.min_in_sync_replicas,
            lag_limit_ns=config.ha_in_sync_lag_ms * 1_000_000,
            join_lag_bytes=config.ha_transfer_batch_size,
            dead_after_ns=config.dead_after_ns,
        )
        core = in_sync.InSyncSet(limits, log.log_end, log.flushed_offset, self._positions.confirm)
        return LeaderSide(self.replica, core, self)

    def _make_follower(self) -> FollowerSide:
        config, log = self.config, self._log
        limits = follower.Limits(
            dead_after_ns=config.dead_after_ns,
            ack_quiet_ns=config.ha_beat_interval_ms * 1_000_000 // 2,
            retry_min_ms=config.ha_reconnect_min_ms,
            retry_max_ms=config.ha_reconnect_max_ms,
            refused_retry_ms=config.ha_refused_retry_ms,
        )
        core = follower.Follower(
            limits, log.log_end, log.received_end, log.flushed_offset, self._positions.confirm
        )
        return FollowerSide(self.replica, core, self)

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> int:
        """Open the port and follow or serve; returns the port. Raises HaPortInUseError."""
        self.port = await self._server.start(self._bind_address)
        meta = self.replica.meta
        _logger.info(
            "ha.started role=%s port=%d uuid=%s incarnation=%d end=%d confirm=%d",
            self.role.value,
            self.port,
            meta.replica_uuid,
            meta.incarnation,
            self._log.log_end,
            self.confirm,
        )
        if self._follower is not None:
            self._follower.start()
        self._housekeeping = asyncio.get_running_loop().create_task(self._keep_house())
        return self.port

    async def stop(self) -> None:
        """Say goodbye, close the port and remember the confirm offset. The log stays open."""
        if self._housekeeping is not None:
            self._housekeeping.cancel()
            await asyncio.gather(self._housekeeping, return_exceptions=True)
            self._housekeeping = None
        if self._follower is not None:
            await self._follower.stop()
        if self._leader is not None:
            self._leader.say_goodbye()
        await self._server.stop(_STOP_GRACE_S)
        self._positions.save(self.confirm)
        self._positions.close()

    async def _keep_house(self) -> None:
        beat_s = self.config.ha_beat_interval_ms / 1000
        pause_s = min(_TICK_MAX_S, beat_s / _TICKS_PER_BEAT)
        offsets_every_ns = self.config.ha_offsets_interval_ms * 1_000_000
        offsets_ns = positions_ns = self._steady_ns()
        while True:
            now_ns = self._steady_ns()
            if self._leader is not None:
                self._leader.tick(now_ns)
                if now_ns - offsets_ns >= offsets_every_ns:
                    offsets_ns = now_ns
                    self._send_offsets(self._leader)
            elif self._follower is not None:
                self._follower.tick(now_ns)
            if now_ns - positions_ns >= _POSITIONS_EVERY_NS:
                positions_ns = now_ns
                self._positions.save(self.confirm)
            await asyncio.sleep(pause_s)

    def _send_offsets(self, leader: LeaderSide) -> None:
        if self.offsets_snapshot is None:
            return
        payload = self.offsets_snapshot()
        if payload != self._offsets_sent:
            self._offsets_sent = payload
            self._offsets_count += 1
            leader.send_offsets(self._offsets_count, payload)

    # --- told by the broker -----------------------------------------------------------------------

    def appended(self) -> None:
        """The log grew (leader). Call it once a turn, after the turn's appends."""
        if self._leader is not None and self._leader.appended() and not self._confirm_scheduled:
            # The caller may register its waits after this call: they must not miss the news.
            self._confirm_scheduled = True
            asyncio.get_running_loop().call_soon(self._tell_confirm)

    def _tell_confirm(self) -> None:
        self._confirm_scheduled = False
        self.on_confirm()

    def flushed(self) -> None:
        """The log's flushed offset moved."""
        if self._leader is not None:
            self._leader.flushed()
        elif self._follower is not None:
            self._follower.flushed()

    def set_leader(self, ha_address: str) -> None:
        """Follower: the leader's replication port as host:port; empty when none is known."""
        if self._follower is not None:
            self._follower.set_leader(ha_address)

    # --- asked by the broker ----------------------------------------------------------------------

    @property
    def confirm(self) -> int:
        """Everything below is as safe as this group promises. Never goes back while we live."""
        if self._leader is not None:
            return self._leader.core.confirm
        assert self._follower is not None
        return self._follower.core.confirm

    def write_refusal(self) -> str | None:
        """Why a write must be answered HA_NOT_AVAILABLE before anything is appended, or None."""
        if self._leader is not None:
            return self._leader.core.refusal
        return f"broker {self.identity.broker_id} is a slave: writes go to the master"

    @property
    def leader_alive(self) -> bool:
        """Whether the leader was heard within three beats; on the leader itself, always."""
        return self._follower is None or self._follower.core.leader_alive

    @property
    def diverged(self) -> str | None:
        """Why this replica's log is not a copy of its leader's, or None."""
        if self._follower is None or self._follower.core.refusal_code != "DIVERGED":
            return None
        return self._follower.core.refusal

    @property
    def refused(self) -> str | None:
        """Any refusal of the leader that stands, DIVERGED included: `CODE: sentence`, or None."""
        if self._follower is None or not self._follower.core.refusal_code:
            return None
        return f"{self._follower.core.refusal_code}: {self._follower.core.refusal}"

    @property
    def in_sync_count(self) -> int:
        """Replicas in sync, the leader included; 0 on a follower, which cannot know."""
        return 0 if self._leader is None else self._leader.core.in_sync_count

    def members(self) -> list[MemberStatus]:
        """This replica first, then what it knows of the others."""
        now_ns = self._steady_ns()
        if self._leader is not None:
            return [self._own_row("leader", "leader", True), *self._leader.members(now_ns)]
        assert self._follower is not None
        state = self._follower.core.state
        in_sync_now = state is State.IN_SYNC
        return [self._own_row("follower", state.value, in_sync_now)]

    def _own_row(self, role: str, state: str, is_in_sync: bool) -> MemberStatus:
        lag_bytes = 0
        connected = True
        if self._follower is not None:
            core = self._follower.core
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
