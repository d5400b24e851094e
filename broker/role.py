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
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ..proto import v1
from ..proto.errors import WireError
from .metadata.group_recorder import GroupRecorder

if TYPE_CHECKING:
    from .assembly.parts import Broker

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

    def __init__(self, broker: Broker, fatal: Callable[[str], None]) -> None:
        """`fatal` ends the process, for a reason."""
        trace = () if broker.trace is None else (broker.trace,)
        #: They start to lead in this order.
        self._parts: tuple[RolePart, ...] = (
            broker.users,
            broker.levels,
            broker.transactions,
            *trace,
        )
        self._groups = GroupRecorder(broker.store, broker.leadership, broker.meta_log, broker.pump)
        self._broker = broker
        self._fatal = fatal
        #: Set while the timer files are being recovered, or still in use after a step-down.
        self._timers_move: asyncio.Task[bool] | None = None
        self._timers_lead = broker.leadership.is_leader  #: when `_timers_move` has ended
        self._opened = self._closed = False
        #: The last change that arrived while the parts were being opened.
        self._early: Callable[[], None] | None = None
        self._listeners: list[Callable[[], None]] = []
        self._leader_listeners: list[LeaderListener] = []
        self._leader = ""
        self._leader_is_silent = False
        self._start_again: asyncio.TimerHandle | None = None
        broker.pop_roles.on_failure(partial(self._fail, "this leader cannot deliver messages"))
        broker.timers.on_failure(partial(self._fail, _TIMERS_UNUSABLE))
        if broker.leadership.is_leader:
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
        clock = self._broker.runtime.clock
        begin_ns = clock.steady_ns()
        try:
            led_before = self._broker.leadership.is_leader
            self._begin_epoch(epoch)
            if not led_before:
                self._lead_parts()
        except Exception as error:
            # A leader with half of its parts would break its promises to clients.
            self._fail("this replica was elected and cannot lead", error)
            raise
        self._broker.pump.appended()
        took_ms = (clock.steady_ns() - begin_ns) / 1e6
        logger.info(
            "role.leads epoch=%d end=%d took_ms=%.1f", epoch, self._broker.store.log_end, took_ms
        )
        self.changed()

    def _begin_epoch(self, epoch: int) -> None:
        """Apply what the log holds, and append the first record of the epoch."""
        broker = self._broker
        broker.pump.run_to_limit()
        broker.meta_log.catch_up()
        broker.offsets.drop_waiting()
        broker.maintenance.lead()
        policy = broker.replication.policy
        broker.leadership.lead(
            sync_replication=policy.sync, min_in_sync_replicas=policy.min_in_sync
        )
        broker.durability.set_policy(broker.leadership.policy)
        self._write_metadata()
        self._write_epoch_start(epoch)

    def _write_epoch_start(self, epoch: int) -> None:
        """Append EPOCH_START; without disk space, refuse all writes and try again later."""
        broker = self._broker
        self._end_waiting()
        meta, store = broker.replication.replica.meta, broker.store
        start = v1.EpochStart(
            epoch=epoch,
            leader_id=broker.runtime.config.broker_id,
            leader_uuid=meta.replica_uuid,
            incarnation=meta.incarnation,
        )
        try:
            broker.meta_log.begin_epoch(start)
            broker.meta_files.write_unknown(broker.meta_log)
        except WireError:
            if not (store.paused or store.writer.allocation_failure):
                raise
            reason = store.refusal or store.writer.allocation_failure
            store.gate.pause(_NO_EPOCH_START, f"Epoch {epoch} cannot begin: {reason}")
            self._wait_for_room(epoch)

    def _wait_for_room(self, epoch: int) -> None:
        self._start_again = self._broker.runtime.loop.call_later(_AGAIN_S, self._try_again, epoch)

    def _try_again(self, epoch: int) -> None:
        if not self._broker.store.retention.may_resume(_NO_EPOCH_START):
            self._wait_for_room(epoch)
            return
        try:
            self._write_epoch_start(epoch)
        except Exception as error:
            self._fail("this leader cannot begin its epoch", error)
            raise
        self._broker.pump.appended()

    def _end_waiting(self) -> None:
        if self._start_again is not None:
            self._start_again.cancel()
            self._start_again = None
            self._broker.store.gate.resume(_NO_EPOCH_START)

    def _write_metadata(self) -> None:
        """Write a metadata snapshot at the head of every segment, and groups that clients bring."""
        self._broker.meta_log.heads_segments = True
        self._broker.metadata.record_groups(self._groups.record)

    def _lead_parts(self) -> None:
        self._broker.sender.lead()
        self._move_timers()
        for part in self._parts:
            part.lead()
        self._broker.pop_roles.lead()

    # -- following --------------------------------------------------------------------------

    def follow(self, reason: str) -> None:
        """Stop to lead; on return this replica appends nothing."""
        if not self._opened:
            self._early = partial(self.follow, reason)  # replication already refuses writes
            return
        if not self._broker.leadership.is_leader:
            return
        self._broker.leadership.follow()
        self._end_waiting()
        logger.warning("role.steps_down reason=%s end=%d", reason, self._broker.store.log_end)
        try:
            self._stop_parts()
        except Exception as error:
            # A part that continues to lead would write beside the next leader.
            self._fail("this replica cannot step down", error)
            raise
        self.changed()

    def _stop_parts(self) -> None:
        broker = self._broker
        # Sends that were collected are held for the next leader, not appended.
        broker.sender.append_pending()
        broker.meta_log.heads_segments = False
        broker.metadata.record_groups(None)
        broker.timers.halt()
        self._move_timers()
        for part in self._parts:
            part.follow()
        broker.pop_roles.follow()
        broker.lite.follow()
        broker.durability.abandon()

    def _move_timers(self) -> None:
        """Let the timers lead or follow as this replica does, one change after the other."""
        leads = self._broker.leadership.is_leader
        if self._timers_move is None and leads != self._timers_lead and not self._closed:
            timers = self._broker.timers
            change = timers.promote() if leads else timers.follow()
            self._timers_move = self._broker.runtime.loop.create_task(change)
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
        self._broker.leadership.drain(begin)
        if not begin:
            self.changed()

    def changed(self) -> None:
        """The role or the known leader changed: notify the listeners."""
        address = self._broker.leadership.leader_client() or ""
        if self._leader not in ("", address):
            for listener in self._leader_listeners:
                listener(self._leader, self._leader_is_silent)
        self._leader = address
        for notify in self._listeners:
            notify()
