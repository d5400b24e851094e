"""What the broker does when something happens in its store or in replication.

Both are built before the parts that act: until `connect`, nothing is done. Threads of the store
pass its events to the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from ..ha.events import LOCKS, OFFSETS, POP

if TYPE_CHECKING:
    import asyncio

    from ..ha.engine import Replication
    from ..store.format.record import Message
    from ..store.message_store import MessageStore
    from .dispatch_pump import DispatchPump
    from .leadership import Leadership
    from .lite.service import LiteService
    from .maintenance.store_maintenance import StoreMaintenance
    from .metadata.log import MetaLog
    from .offsets.consumer_offsets import ConsumerOffsets
    from .pop.failover.roles import PopRoles
    from .role import RoleSwitch
    from .routing.membership import Membership
    from .sending.durability import DurabilityGate

logger = logging.getLogger(__name__)


class StoreParts(Struct, frozen=True):
    """What acts on events of the store."""

    loop: asyncio.AbstractEventLoop
    store: MessageStore
    replication: Replication
    durability: DurabilityGate
    pump: DispatchPump
    meta_log: MetaLog

    def flushed(self) -> None:
        """Tell the replicas; answer and dispatch what is confirmed now."""
        self.replication.flushed()
        self.durability.advance()
        self.pump.schedule()

    def on_loop(self, act: Callable[[], None]) -> None:
        """Call `act` on the event loop. Any thread."""
        with suppress(RuntimeError):  # a flush may end after the event loop was closed
            self.loop.call_soon_threadsafe(act)


class ReplicationParts(Struct, frozen=True):
    """What acts on events of replication."""

    group: str
    role: RoleSwitch
    store: MessageStore
    leadership: Leadership
    durability: DurabilityGate
    pump: DispatchPump
    offsets: ConsumerOffsets
    maintenance: StoreMaintenance
    pop_roles: PopRoles
    lite: LiteService


class StoreListener:
    """The broker's `StoreEvents`."""

    def __init__(self) -> None:
        self._parts: StoreParts | None = None
        self._closing = False

    def connect(self, parts: StoreParts) -> None:
        """Pass events to these parts from now on."""
        self._parts = parts

    def store_closes(self) -> None:
        """Ignore the last flush, which comes after the listeners have stopped."""
        self._closing = True

    def flushed(self, offset: int) -> None:
        if self._parts is not None and not self._closing:
            self._parts.on_loop(self._parts.flushed)

    def committed(self, offset: int) -> None:
        if self._parts is not None and not self._closing:
            self._parts.on_loop(self._parts.pump.appended)

    def refused(self, reason: str) -> None:
        parts = self._parts
        if parts is None:
            return
        logger.error("store.refused reason=%s", reason)
        if not parts.store.paused and parts.replication.config.enable_controller_mode:
            parts.on_loop(partial(parts.replication.disk_failed, reason))

    def resumed(self) -> None:
        if self._parts is not None and not self._closing:
            self._parts.on_loop(self._parts.pump.schedule)

    def read_stopped(self) -> None:
        if self._parts is not None:
            self._parts.pump.resume_later()

    @property
    def heads_segments(self) -> bool:
        return self._parts is not None and self._parts.meta_log.heads_segments

    def segment_heads(self, offset: int) -> list[Message]:
        return [] if self._parts is None else self._parts.meta_log.snapshot(offset)


class ReplicationListener:
    """The broker's `ReplicationEvents`."""

    def __init__(self, reopen: Callable[[str], None], fatal: Callable[[str], None]) -> None:
        """`reopen` and `fatal` close this instance, for a reason; `fatal` ends the process."""
        self._reopen = reopen
        self._fatal = fatal
        self._parts: ReplicationParts | None = None
        self._membership: Membership | None = None

    def connect(self, parts: ReplicationParts) -> None:
        """Pass events to these parts from now on."""
        self._parts = parts

    def register_with(self, membership: Membership) -> None:
        """Tell the nameservers of new followers from now on."""
        self._membership = membership

    def confirm_moved(self) -> None:
        if self._parts is not None:
            self._parts.durability.advance()
            self._parts.pump.schedule()

    def data_arrived(self) -> None:
        if self._parts is not None:
            self._parts.pump.schedule()

    def leader_changed(self, alive: bool) -> None:
        parts = self._parts
        if parts is None:
            return
        parts.role.leader_heard(alive)
        logger.info("leader.%s group=%s", "heard" if alive else "lost", parts.group)
        if alive and not parts.leadership.is_leader:
            # This replica served pops without a leader: the new leader takes them over.
            parts.pop_roles.follow()
            parts.lite.follow()

    def stream_began(self) -> None:
        if self._parts is not None:
            self._parts.offsets.drop_waiting()

    def members_changed(self) -> None:
        if self._membership is not None:
            self._membership.members_changed()

    def promoted(self, epoch: int) -> None:
        if self._parts is not None:
            self._parts.role.lead(epoch)

    def stepped_down(self, reason: str) -> None:
        if self._parts is not None:
            self._parts.role.follow(reason)

    def reopen(self, reason: str) -> None:
        self._reopen(reason)

    def role_changed(self) -> None:
        if self._parts is not None:
            self._parts.role.changed()

    def disk_failed(self, reason: str) -> None:
        self._fatal(reason)

    def draining(self, begins: bool) -> None:
        if self._parts is not None:
            self._parts.role.drain(begins)

    def state_beside(self, kind: str) -> bytes | None:
        if self._parts is None:
            return None
        if kind == OFFSETS:
            return self._parts.maintenance.offsets_snapshot()
        if kind == LOCKS:
            return self._parts.pop_roles.locks_snapshot()
        return self._parts.pop_roles.handover_snapshot() if kind == POP else None

    def state_arrived(self, kind: str, payload: bytes) -> None:
        if self._parts is None:
            return
        if kind == OFFSETS:
            self._parts.maintenance.offsets_apply(payload)
        elif kind == LOCKS:
            self._parts.pop_roles.locks_apply(payload)
        elif kind == POP:
            self._parts.pop_roles.handover_apply(payload)

    def disk_use(self) -> int:
        return -1 if self._parts is None else self._parts.store.retention.disk_use
