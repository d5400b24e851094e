"""The order in which the parts of a replica begin and stop to lead, in place: ports and clients stay.

Promotion (HA, section 6.7): replication has flushed the log and assigned the epoch. What the log has beyond the
queues is applied (topics that were made a moment before the kill); then EPOCH_START is appended, as the first record
of the epoch, and from then on this replica may write. Offsets that wait for a log which will not come are
dropped. The parts that remember come behind, each from the log or from what travelled beside it: sent ids, delay
levels, timers, the journal of pops, transactions, the locks of FIFO queues; last what this replica itself
gave out while nobody led. None of them waits: what takes long is read in turns of a few milliseconds.

Stepping down goes the other way round: nothing is appended once it has begun; polls are answered, and who waits for
the log has an outcome that is *unknown*, never *failed*. Drain: before a planned change writes are kept for
the next leader (`front/access_point.py`) instead of being refused.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from ..proto import v1

if TYPE_CHECKING:
    from collections.abc import Callable

    from .metadata.files import MetaFiles
    from .node import Node

log = logging.getLogger(__name__)


class RoleSwitch:
    """Of one life of a node; `open_*` functions begin what a static leader is from its start on."""

    def __init__(self, node: Node, fatal: Callable[[str], None]) -> None:
        self._node = node
        self._fatal = fatal
        self._timers_end: asyncio.Task[None] | None = None
        """A step-down's: while it runs the timers' files are in use."""
        self._opened = self._closed = False
        self._early: Callable[[], None] | None = None
        """The last change that came while the parts were being opened."""
        self.files: MetaFiles | None = None
        """What Apache's files know and the log does not is written by the first leader."""
        self.on_change: Callable[[], None] = _nothing
        """Told after every change of role: who is told of this node tells it on."""
        self._leader = ""
        self.leader_gone: Callable[[str], None] = _no_address
        """Told the clients' address of a node that leads no more."""

    def connect(self) -> None:
        """Let replication tell this object what happens."""
        node, replication = self._node, self._node.replication
        replication.on_promote = self.lead
        replication.on_step_down = self.follow
        replication.on_role_change = self.changed
        replication.on_drain = self.drain
        node.pop_roles.on_failure(partial(self._cannot, "this leader cannot deliver messages"))
        replication.meta_snapshot["LOCKS"] = node.pop_roles.locks_snapshot
        replication.meta_apply["LOCKS"] = node.pop_roles.locks_apply
        replication.meta_snapshot["POP"] = node.pop_roles.handover_snapshot
        replication.meta_apply["POP"] = node.pop_roles.handover_apply
        if node.leadership.is_leader:
            self._write_heads()

    def open(self) -> None:
        """Every part is there: what came before is done now."""
        self._opened = True
        early, self._early = self._early, None
        if early is not None:
            early()

    async def close(self) -> None:
        """Wait for what a step-down left behind."""
        self._closed = True
        if self._timers_end is not None:
            await asyncio.gather(self._timers_end, return_exceptions=True)

    # -- leading ------------------------------------------------------------------------------

    def lead(self, epoch: int) -> None:
        """Everything that a leader does; writes come next."""
        if not self._opened:
            self._early = partial(self.lead, epoch)
            return
        node = self._node
        begin_ns = node.clock.steady_ns()
        try:
            again = node.leadership.is_leader
            self._begin(epoch)
            if not again:
                self._begin_parts()
        except Exception as error:
            # A half leader would answer clients with half of what it promises.
            self._cannot("this replica was elected and cannot lead", error)
            raise
        node.pump.appended()
        took_ms = (node.clock.steady_ns() - begin_ns) / 1e6
        log.info("role.leads epoch=%d end=%d took_ms=%.1f", epoch, node.store.log_end, took_ms)
        self.changed()

    def _begin(self, epoch: int) -> None:
        """What the log holds is known, and the first record of the epoch is in it."""
        node = self._node
        self._dispatch()
        node.meta_log.catch_up()
        node.offsets.drop_waiting()
        node.maintenance.lead()
        policy = node.replication.policy
        node.leadership.lead(sync_replication=policy.sync, min_in_sync_replicas=policy.min_in_sync)
        node.durability.set_policy(node.leadership.policy)
        self._write_heads()
        meta = node.replication.replica.meta
        node.meta_log.begin_epoch(
            v1.EpochStart(
                epoch=epoch,
                leader_id=node.config.broker_id,
                leader_uuid=meta.replica_uuid,
                incarnation=meta.incarnation,
            )
        )

    def _dispatch(self) -> None:
        """Build the queues as far as they may be built; the rest follows with the confirm offset."""
        self._node.pump.run_to_limit()

    def _write_heads(self) -> None:
        node = self._node
        node.store.on_new_segment = node.meta_log.snapshot
        node.metadata.record_group = node.record_group

    def _begin_parts(self) -> None:
        node = self._node
        if self.files is not None:
            self.files.write_unknown(node.meta_log)
        node.sender.lead()
        node.levels.lead()
        if self._timers_end is None:
            node.timers.lead()
        node.transactions.lead()
        if node.trace is not None:
            node.trace.lead()
        node.pop_roles.lead()

    # -- following ----------------------------------------------------------------------------

    def follow(self, reason: str) -> None:
        """Lead no more; the log takes nothing of this replica when this returns."""
        if not self._opened:
            self._early = partial(self.follow, reason)  # replication takes no writes any more
            return
        node = self._node
        if not node.leadership.is_leader:
            return
        node.leadership.follow()
        log.warning("role.steps_down reason=%s end=%d", reason, node.store.log_end)
        try:
            self._end_parts()
        except Exception as error:
            # Half a leader would go on with what only one may do.
            self._cannot("this replica cannot step down", error)
            raise
        self.changed()

    def _end_parts(self) -> None:
        node = self._node
        # What was collected is kept for the next leader, not appended.
        node.sender.append_pending()
        node.store.on_new_segment = None
        node.metadata.record_group = None
        if node.trace is not None:
            node.trace.follow()
        node.timers.halt()
        if self._timers_end is None:
            self._timers_end = node.loop.create_task(node.timers.follow())
            self._timers_end.add_done_callback(self._timers_ended)
        node.levels.follow()
        node.transactions.follow()
        node.pop_roles.follow()
        node.lite.follow()
        node.durability.abandon()

    def _timers_ended(self, end: asyncio.Task[None]) -> None:
        """Their files are free; who leads again meanwhile begins now."""
        self._timers_end = None
        try:
            end.result()
            if self._node.leadership.is_leader and not self._closed:
                self._node.timers.lead()
        except asyncio.CancelledError:
            pass  # the loop ends
        except Exception as error:
            self._cannot("the timers' files cannot be used", error)

    def _cannot(self, what: str, error: Exception) -> None:
        log.exception("role.failed what=%s", what)
        self._fatal(f"{what}: {error}")

    def drain(self, begin: bool) -> None:
        """Keep writes from now on (True), or take them again."""
        self._node.leadership.drain(begin)
        if not begin:
            self.changed()

    def changed(self) -> None:
        """The role, or the leader that is known, changed."""
        address = self._node.leadership.leader_client() or ""
        if self._leader not in ("", address):
            self.leader_gone(self._leader)
        self._leader = address
        self.on_change()


def _nothing() -> None:
    """Until somebody wants to know."""


def _no_address(_address: str) -> None:
    """The same."""
