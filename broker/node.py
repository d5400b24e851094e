"""The parts of one replica, on the way to explicit constructor parameters (`assembly.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..proto.errors import WireError

if TYPE_CHECKING:
    import asyncio

    from ..front.clock import Clock
    from ..ha.engine import Replication
    from ..store.message_store import MessageStore
    from .admin.auto_topics import AutoTopics
    from .admin.removal import Removal
    from .clients.registry import ClientRegistry
    from .clients.telemetry_forward import TelemetryForward
    from .config import BrokerConfig
    from .delay.delayed import DelayedMessages
    from .delay.levels import DelayLevels
    from .delay.recall import Recalls
    from .delay.timer_service import TimerService
    from .dispatch_pump import DispatchPump
    from .journal.service import JournalService
    from .leadership import Leadership
    from .lite.fanout import LiteFanout
    from .lite.receive_service import ReceiveService
    from .lite.service import LiteService
    from .maintenance.store_maintenance import StoreMaintenance
    from .metadata.changes import MetadataChanges
    from .metadata.log import MetaLog
    from .metadata.system_topics import SystemTopics
    from .metadata.tables import Group, Metadata
    from .metrics.counters import Counters
    from .offsets.consumer_offsets import ConsumerOffsets
    from .pop.ack import AckService
    from .pop.failover.roles import PopRoles
    from .pop.receive import PopService
    from .pull.service import PullService
    from .routing.cluster_view import ClusterView
    from .runtime import ClockListeners, Runtime
    from .sending.durability import DurabilityGate
    from .sending.sender import Sender
    from .trace.service import TraceService
    from .transactions.service import Transactions


@dataclass(slots=True)
class Node:
    """The parts; `assembly.py` and `lifecycle.py` fill it in the order of the fields."""

    runtime: Runtime
    store: MessageStore
    metadata: Metadata
    clients: ClientRegistry
    cluster: ClusterView
    meta_log: MetaLog
    replication: Replication
    leadership: Leadership
    pump: DispatchPump
    offsets: ConsumerOffsets
    durability: DurabilityGate = field(init=False)
    sender: Sender = field(init=False)
    pop: PopService = field(init=False)
    pop_roles: PopRoles = field(init=False)
    acks: AckService = field(init=False)
    pulls: PullService = field(init=False)
    receiving: ReceiveService = field(init=False)
    maintenance: StoreMaintenance = field(init=False)
    journal: JournalService = field(init=False)
    timers: TimerService = field(init=False)
    levels: DelayLevels = field(init=False)
    transactions: Transactions = field(init=False)
    lite: LiteService = field(init=False)
    lite_fanout: LiteFanout = field(init=False)
    telemetry_forward: TelemetryForward | None = None
    changes: MetadataChanges = field(init=False)
    system_topics: SystemTopics = field(init=False)
    auto_topics: AutoTopics = field(init=False)
    removal: Removal = field(init=False)
    delayed: DelayedMessages = field(init=False)
    recalls: Recalls = field(init=False)
    trace: TraceService | None = None
    closers: list[Callable[[], None]] = field(default_factory=list)

    @property
    def config(self) -> BrokerConfig:
        """See `Runtime`."""
        return self.runtime.config

    @property
    def clock(self) -> Clock:
        """See `Runtime`."""
        return self.runtime.clock

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """See `Runtime`."""
        return self.runtime.loop

    @property
    def counters(self) -> Counters:
        """See `Runtime`."""
        return self.runtime.counters

    @property
    def clock_listeners(self) -> ClockListeners:
        """See `Runtime`."""
        return self.runtime.clock_listeners

    def flushed(self) -> None:
        """The flush thread's news, already on the loop."""
        self.replication.flushed()
        self.durability.advance()
        self.pump.schedule()

    def confirmed(self) -> None:
        """The confirm offset moved."""
        self.durability.advance()
        self.pump.schedule()

    def record_group(self, group: Group) -> bool:
        """Write a group that a client has just brought; without the log it lives in memory only."""
        if not self.store.writable or self.leadership.write_refusal() is not None:
            return False
        try:
            self.meta_log.write_group(group)
        except WireError:
            # The disk is full: those who would read need no new record for it.
            return False
        self.pump.appended()
        return True

    def close(self) -> None:
        """Build the queues to the end, so that the store stops cleanly."""
        for closer in self.closers:
            closer()
        self.pump.close()
