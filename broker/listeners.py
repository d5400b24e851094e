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

from ..ha.events import LOCKS, OFFSETS, POP

if TYPE_CHECKING:
    from ..store.format.record import Message
    from .assembly.parts import Broker
    from .role import RoleSwitch
    from .routing.membership import Membership

logger = logging.getLogger(__name__)


def _flushed(broker: Broker) -> None:
    """Tell the replicas; answer and dispatch what is confirmed now."""
    broker.replication.flushed()
    broker.durability.advance()
    broker.pump.schedule()


def _on_loop(broker: Broker, act: Callable[[], None]) -> None:
    """Call `act` on the event loop. Any thread."""
    with suppress(RuntimeError):  # a flush may end after the event loop was closed
        broker.runtime.loop.call_soon_threadsafe(act)


class StoreListener:
    """The broker's `StoreEvents`."""

    def __init__(self) -> None:
        self._broker: Broker | None = None
        self._closing = False

    def connect(self, broker: Broker) -> None:
        """Pass events to its parts from now on."""
        self._broker = broker

    def store_closes(self) -> None:
        """Ignore the last flush, which comes after the listeners have stopped."""
        self._closing = True

    def flushed(self, offset: int) -> None:
        if self._broker is not None and not self._closing:
            _on_loop(self._broker, partial(_flushed, self._broker))

    def committed(self, offset: int) -> None:
        if self._broker is not None and not self._closing:
            _on_loop(self._broker, self._broker.pump.appended)

    def refused(self, reason: str) -> None:
        broker = self._broker
        if broker is None:
            return
        logger.error("store.refused reason=%s", reason)
        if not broker.store.paused and broker.replication.config.enable_controller_mode:
            _on_loop(broker, partial(broker.replication.disk_failed, reason))

    def resumed(self) -> None:
        if self._broker is not None and not self._closing:
            _on_loop(self._broker, self._broker.pump.schedule)

    def read_stopped(self) -> None:
        if self._broker is not None:
            self._broker.pump.resume_later()

    @property
    def heads_segments(self) -> bool:
        return self._broker is not None and self._broker.meta_log.heads_segments

    def segment_heads(self, offset: int) -> list[Message]:
        return [] if self._broker is None else self._broker.meta_log.snapshot(offset)


class ReplicationListener:
    """The broker's `ReplicationEvents`."""

    def __init__(self, reopen: Callable[[str], None], fatal: Callable[[str], None]) -> None:
        """`reopen` and `fatal` close this instance, for a reason; `fatal` ends the process."""
        self._reopen = reopen
        self._fatal = fatal
        self._broker: Broker | None = None
        self._role: RoleSwitch | None = None
        self._membership: Membership | None = None

    def connect(self, broker: Broker, role: RoleSwitch) -> None:
        """Pass events to the role and the broker's parts from now on."""
        self._broker = broker
        self._role = role

    def register_with(self, membership: Membership) -> None:
        """Tell the nameservers of new followers from now on."""
        self._membership = membership

    def confirm_moved(self) -> None:
        if self._broker is not None:
            self._broker.durability.advance()
            self._broker.pump.schedule()

    def data_arrived(self) -> None:
        if self._broker is not None:
            self._broker.pump.schedule()

    def leader_changed(self, alive: bool) -> None:
        broker, role = self._broker, self._role
        if broker is None or role is None:
            return
        role.leader_heard(alive)
        group = broker.runtime.config.broker_name
        logger.info("leader.%s group=%s", "heard" if alive else "lost", group)
        if alive and not broker.leadership.is_leader:
            # This replica served pops without a leader: the new leader takes them over.
            broker.pop_roles.follow()
            broker.lite.follow()

    def stream_began(self) -> None:
        if self._broker is not None:
            self._broker.offsets.drop_waiting()

    def members_changed(self) -> None:
        if self._membership is not None:
            self._membership.members_changed()

    def promoted(self, epoch: int) -> None:
        if self._role is not None:
            self._role.lead(epoch)

    def stepped_down(self, reason: str) -> None:
        if self._role is not None:
            self._role.follow(reason)

    def reopen(self, reason: str) -> None:
        self._reopen(reason)

    def role_changed(self) -> None:
        if self._role is not None:
            self._role.changed()

    def disk_failed(self, reason: str) -> None:
        self._fatal(reason)

    def draining(self, begins: bool) -> None:
        if self._role is not None:
            self._role.drain(begins)

    def state_beside(self, kind: str) -> bytes | None:
        if self._broker is None:
            return None
        if kind == OFFSETS:
            return self._broker.maintenance.offsets_snapshot()
        if kind == LOCKS:
            return self._broker.pop_roles.locks_snapshot()
        return self._broker.pop_roles.handover_snapshot() if kind == POP else None

    def state_arrived(self, kind: str, payload: bytes) -> None:
        if self._broker is None:
            return
        if kind == OFFSETS:
            self._broker.maintenance.offsets_apply(payload)
        elif kind == LOCKS:
            self._broker.pop_roles.locks_apply(payload)
        elif kind == POP:
            self._broker.pop_roles.handover_apply(payload)

    def disk_use(self) -> int:
        return -1 if self._broker is None else self._broker.store.retention.disk_use
