"""The role switch: starts and stops leading in place, while ports and clients stay.

Promotion (docs/formats/ha.md, section 6.7): replication has flushed the log and assigned the epoch.
The switch dispatches the rest of the log (topics created just before a failover), appends
EPOCH_START as the first record of the epoch, and from then on this replica may write. Offsets that
wait for log bytes that will not come are dropped. Then the parts with state start to lead, each
from the log or from state replicated beside it: sent message ids, delay levels, timers,
transactions, traces, and last the pops with their journal and the locks of FIFO queues. No part
waits; long reads run in slices of a few milliseconds. The timer files are recovered on a thread.
Without disk space for EPOCH_START the replica leads all the same: it serves readers, and the store
refuses messages until that record is written.

Step-down runs in the opposite direction: nothing is appended once it has begun; polls are answered,
and appends that wait for durability end with an *unknown* outcome, never with *failed*. Drain:
before a planned change of leader, writes are held for the next leader (`front/access_point.py`),
not refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ..proto import v1
from ..proto.errors import WireError

if TYPE_CHECKING:
    from ..ha.engine import Replication
    from ..store.message_store import MessageStore
    from .base.leadership import Leadership
    from .base.runtime import Runtime
    from .delay.timer_service import TimerService
    from .maintenance.store_maintenance import StoreMaintenance
    from .metadata.files import MetaFiles
    from .metadata.group_recorder import GroupRecorder
    from .metadata.log import MetaLog
    from .metadata.tables import Metadata
    from .offsets.consumer_offsets import ConsumerOffsets
    from .pop.failover.roles import PopRoles
    from .sending.sender import Sender
    from .visible.dispatch_pump import DispatchPump
    from .visible.durability import DurabilityGate

logger = logging.getLogger(__name__)

_TIMERS_UNUSABLE = "the timer files cannot be used"
#: Pause cause of the store: the epoch has no first record.
_NO_EPOCH_START = "epoch"
#: Between two attempts to write it; the disk is measured once a second.
_AGAIN_S = 0.5


class RolePart(Protocol):
    """A part whose work differs between leader and follower."""

    def lead(self) -> None:
        """Start to lead; read state from the log."""

    def follow(self) -> None:
        """Stop to lead; append nothing more."""


#: Called with the client address of a former leader, and whether it was silent.
LeaderListener = Callable[[str, bool], None]


class RoleSwitch:
    """Switches the role of one broker instance."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        metadata: Metadata,
        meta_log: MetaLog,
        meta_files: MetaFiles,
        groups: GroupRecorder,
        replication: Replication,
        leadership: Leadership,
        pump: DispatchPump,
        offsets: ConsumerOffsets,
        maintenance: StoreMaintenance,
        durability: DurabilityGate,
        sender: Sender,
        timers: TimerService,
        parts: Sequence[RolePart],
        pop_roles: PopRoles,
        stop_lite: Callable[[], None],
        fatal: Callable[[str], None],
    ) -> None:
        """`parts` start to lead in this order; `fatal` ends the process."""
        self._runtime = runtime
        self._store = store
        self._metadata = metadata
        self._meta_log = meta_log
        self._meta_files = meta_files
        self._groups = groups
        self._replication = replication
        self._leadership = leadership
        self._pump = pump
        self._offsets = offsets
        self._maintenance = maintenance
        self._durability = durability
        self._sender = sender
        self._timers = timers
        self._parts = parts
        self._pop_roles = pop_roles
        self._stop_lite = stop_lite
        self._fatal = fatal
        #: Set while the timer files are being recovered, or still in use after a step-down.
        self._timers_move: asyncio.Task[bool] | None = None
        self._timers_lead = leadership.is_leader  #: when `_timers_move` has ended
        self._opened = self._closed = False
        #: The last change that arrived while the parts were being opened.
        self._early: Callable[[], None] | None = None
        self._listeners: list[Callable[[], None]] = []
        self._leader_listeners: list[LeaderListener] = []
        self._leader = ""
        self._leader_is_silent = False
        self._start_again: asyncio.TimerHandle | None = None
        pop_roles.on_failure(partial(self._fail, "this leader cannot deliver messages"))
        timers.on_failure(partial(self._fail, _TIMERS_UNUSABLE))
        if leadership.is_leader:
            self._write_metadata()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every change of the role or of the known leader."""
        self._listeners.append(listener)

    def subscribe_leader_gone(self, listener: LeaderListener) -> None:
        """Call `listener` with the client address of a node that stopped to lead, and whether no
        frames of it arrived any more."""
        self._leader_listeners.append(listener)

    def leader_heard(self, alive: bool) -> None:
        """Frames of the leader arrive again, or have not arrived for three heartbeats."""
        self._leader_is_silent = not alive

    def open(self) -> None:
        """All parts are open: apply the change that arrived before."""
        self._opened = True
        early, self._early = self._early, None
        if early is not None:
            early()

    async def close(self) -> None:
        """Wait until the timers have followed the last change of the role."""
        self._closed = True
        self._end_waiting()
        if self._timers_move is not None:
            await asyncio.gather(self._timers_move, return_exceptions=True)

    # -- leading ----------------------------------------------------------------------------

    def lead(self, epoch: int) -> None:
        """Start to lead; the caller allows writes next. Ends the process if a part cannot."""
        if not self._opened:
            self._early = partial(self.lead, epoch)
            return
        clock = self._runtime.clock
        begin_ns = clock.steady_ns()
        try:
            led_before = self._leadership.is_leader
            self._begin_epoch(epoch)
            if not led_before:
                self._lead_parts()
        except Exception as error:
            # A leader with half of its parts would break its promises to clients.
            self._fail("this replica was elected and cannot lead", error)
            raise
        self._pump.appended()
        took_ms = (clock.steady_ns() - begin_ns) / 1e6
        logger.info("role.leads epoch=%d end=%d took_ms=%.1f", epoch, self._store.log_end, took_ms)
        self.changed()

    def _begin_epoch(self, epoch: int) -> None:
        """Apply what the log holds, and append the first record of the epoch."""
        self._pump.run_to_limit()
        self._meta_log.catch_up()
        self._offsets.drop_waiting()
        self._maintenance.lead()
        policy = self._replication.policy
        self._leadership.lead(sync_replication=policy.sync, min_in_sync_replicas=policy.min_in_sync)
        self._durability.set_policy(self._leadership.policy)
        self._write_metadata()
        self._write_epoch_start(epoch)

    def _write_epoch_start(self, epoch: int) -> None:
        """Append EPOCH_START; without disk space, refuse all writes and try again later."""
        self._end_waiting()
        meta, store = self._replication.replica.meta, self._store
        start = v1.EpochStart(
            epoch=epoch,
            leader_id=self._runtime.config.broker_id,
            leader_uuid=meta.replica_uuid,
            incarnation=meta.incarnation,
        )
        try:
            self._meta_log.begin_epoch(start)
            self._meta_files.write_unknown(self._meta_log)
        except WireError:
            if not (store.paused or store.writer.allocation_failure):
                raise
            reason = store.refusal or store.writer.allocation_failure
            store.gate.pause(_NO_EPOCH_START, f"Epoch {epoch} cannot begin: {reason}")
            self._wait_for_room(epoch)

    def _wait_for_room(self, epoch: int) -> None:
        self._start_again = self._runtime.loop.call_later(_AGAIN_S, self._try_again, epoch)

    def _try_again(self, epoch: int) -> None:
        if not self._store.retention.may_resume(_NO_EPOCH_START):
            self._wait_for_room(epoch)
            return
        try:
            self._write_epoch_start(epoch)
        except Exception as error:
            self._fail("this leader cannot begin its epoch", error)
            raise
        self._pump.appended()

    def _end_waiting(self) -> None:
        if self._start_again is not None:
            self._start_again.cancel()
            self._start_again = None
            self._store.gate.resume(_NO_EPOCH_START)

    def _write_metadata(self) -> None:
        """Write a metadata snapshot at the head of every segment, and groups that clients bring."""
        self._meta_log.heads_segments = True
        self._metadata.record_groups(self._groups.record)

    def _lead_parts(self) -> None:
        self._sender.lead()
        self._move_timers()
        for part in self._parts:
            part.lead()
        self._pop_roles.lead()

    # -- following --------------------------------------------------------------------------

    def follow(self, reason: str) -> None:
        """Stop to lead; on return this replica appends nothing."""
        if not self._opened:
            self._early = partial(self.follow, reason)  # replication already refuses writes
            return
        if not self._leadership.is_leader:
            return
        self._leadership.follow()
        self._end_waiting()
        logger.warning("role.steps_down reason=%s end=%d", reason, self._store.log_end)
        try:
            self._stop_parts()
        except Exception as error:
            # A part that continues to lead would write beside the next leader.
            self._fail("this replica cannot step down", error)
            raise
        self.changed()

    def _stop_parts(self) -> None:
        # Sends that were collected are held for the next leader, not appended.
        self._sender.append_pending()
        self._meta_log.heads_segments = False
        self._metadata.record_groups(None)
        self._timers.halt()
        self._move_timers()
        for part in self._parts:
            part.follow()
        self._pop_roles.follow()
        self._stop_lite()
        self._durability.abandon()

    def _move_timers(self) -> None:
        """Let the timers lead or follow as this replica does, one change after the other."""
        leads = self._leadership.is_leader
        if self._timers_move is None and leads != self._timers_lead and not self._closed:
            timers = self._timers
            change = timers.promote() if leads else timers.follow()
            self._timers_move = self._runtime.loop.create_task(change)
            self._timers_move.add_done_callback(self._timers_moved)

    def _timers_moved(self, end: asyncio.Task[bool]) -> None:
        self._timers_move = None
        try:
            self._timers_lead = end.result()
            self._move_timers()
        except asyncio.CancelledError:
            pass  # the event loop stops
        except Exception as error:
            self._fail(_TIMERS_UNUSABLE, error)

    def _fail(self, what: str, error: Exception) -> None:
        logger.exception("role.failed what=%s", what)
        self._fatal(f"{what}: {error}")

    def drain(self, begin: bool) -> None:
        """Hold writes before a planned change of leader (True), or accept them again."""
        self._leadership.drain(begin)
        if not begin:
            self.changed()

    def changed(self) -> None:
        """The role or the known leader changed: notify the listeners."""
        address = self._leadership.leader_client() or ""
        if self._leader not in ("", address):
            for listener in self._leader_listeners:
                listener(self._leader, self._leader_is_silent)
        self._leader = address
        for notify in self._listeners:
            notify()
