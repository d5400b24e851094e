"""What the broker does when something happens in its store or in replication.

Both are built before the parts that act: until `connect`, nothing is done. Threads of the store
pass its events to the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from ..ha.events import LOCKS, OFFSETS, POP, NoReplicationEvents
from ..store.events import NoStoreEvents

if TYPE_CHECKING:
    from ..store.format.record import Message
    from .parts import Broker
    from .role import RoleSwitch
    from .routing.membership import Membership

logger = logging.getLogger(__name__)


class StoreListener(NoStoreEvents):
    """The broker's `StoreEvents`."""

    def __init__(self) -> None:
        self._broker: Broker | None = None
        self._closing = False

    def connect(self, broker: Broker) -> None:
        """Pass events to these parts from now on."""
        self._broker = broker

    def store_closes(self) -> None:
        """Ignore the last flush, which comes after the listeners have stopped."""
        self._closing = True

    def flushed(self, offset: int) -> None:
        if self._broker is not None and not self._closing:
            self._on_loop(self._broker, self._flushed)

    def _flushed(self) -> None:
        if self._broker is not None:
            self._broker.replication.flushed()
            _confirm_moved(self._broker)

    def committed(self, offset: int) -> None:
        if self._broker is not None and not self._closing:
            self._on_loop(self._broker, self._broker.pump.appended)

    def refused(self, reason: str) -> None:
        broker = self._broker
        if broker is None:
            return
        logger.error("store.refused reason=%s", reason)
        if not broker.store.paused and broker.replication.config.enable_controller_mode:
            self._on_loop(broker, lambda: broker.replication.disk_failed(reason))

    def resumed(self) -> None:
        if self._broker is not None and not self._closing:
            self._on_loop(self._broker, self._broker.pump.schedule)

    def read_stopped(self) -> None:
        if self._broker is not None:
            self._broker.pump.resume_later()

    @property
    def heads_segments(self) -> bool:
        return self._broker is not None and self._broker.meta_log.heads_segments

    def segment_heads(self, offset: int) -> list[Message]:
        return [] if self._broker is None else self._broker.meta_log.snapshot(offset)

    @staticmethod
    def _on_loop(broker: Broker, act: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # a flush may end after the event loop was closed
            broker.runtime.loop.call_soon_threadsafe(act)


class ReplicationListener(NoReplicationEvents):
    """The broker's `ReplicationEvents`."""

    def __init__(self, reopen: Callable[[str], None], fatal: Callable[[str], None]) -> None:
        """`reopen` and `fatal` close this instance, for a reason; `fatal` ends the process."""
        self._reopen = reopen
        self._fatal = fatal
        self._connected: tuple[Broker, RoleSwitch] | None = None
        self._membership: Membership | None = None

    def connect(self, broker: Broker, role: RoleSwitch) -> None:
        """Pass events to these parts from now on."""
        self._connected = broker, role

    def register_with(self, membership: Membership) -> None:
        """Tell the nameservers of new followers from now on."""
        self._membership = membership

    def confirm_moved(self) -> None:
        if self._connected is not None:
            _confirm_moved(self._connected[0])

    def data_arrived(self) -> None:
        if self._connected is not None:
            self._connected[0].pump.schedule()

    def leader_changed(self, alive: bool) -> None:
        if self._connected is None:
            return
        broker, role = self._connected
        name = broker.runtime.config.broker_name
        role.leader_heard(alive)
        logger.info("leader.%s group=%s", "heard" if alive else "lost", name)
        if alive and not broker.leadership.is_leader:
            # This replica served pops without a leader: the new leader takes them over.
            broker.pop_roles.follow()
            broker.lite.follow()

    def stream_began(self) -> None:
        if self._connected is not None:
            self._connected[0].offsets.drop_waiting()

    def member_joined(self) -> None:
        if self._membership is not None:
            self._membership.member_joined()

    def promoted(self, epoch: int) -> None:
        if self._connected is not None:
            self._connected[1].lead(epoch)

    def stepped_down(self, reason: str) -> None:
        if self._connected is not None:
            self._connected[1].follow(reason)

    def reopen(self, reason: str) -> None:
        self._reopen(reason)

    def role_changed(self) -> None:
        if self._connected is not None:
            self._connected[1].changed()

    def disk_failed(self, reason: str) -> None:
        self._fatal(reason)

    def draining(self, begins: bool) -> None:
        if self._connected is not None:
            self._connected[1].drain(begins)

    def state_beside(self, kind: str) -> bytes | None:
        if self._connected is None:
            return None
        broker = self._connected[0]
        if kind == OFFSETS:
            return broker.maintenance.offsets_snapshot()
        if kind == LOCKS:
            return broker.pop_roles.locks_snapshot()
        return broker.pop_roles.handover_snapshot() if kind == POP else None

    def state_arrived(self, kind: str, payload: bytes) -> None:
        if self._connected is None:
            return
        broker = self._connected[0]
        if kind == OFFSETS:
            broker.maintenance.offsets_apply(payload)
        elif kind == LOCKS:
            broker.pop_roles.locks_apply(payload)
        elif kind == POP:
            broker.pop_roles.handover_apply(payload)

    def disk_use(self) -> int:
        return -1 if self._connected is None else self._connected[0].store.retention.disk_use


def _confirm_moved(broker: Broker) -> None:
    """Answer what is confirmed now, and dispatch what may be read."""
    broker.durability.advance()
    broker.pump.schedule()
