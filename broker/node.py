"""One replica of a broker group, as its services see it: every part, and the turn that moves messages on.

`Node` holds the parts and wires their events: an append, a flush, a confirm and data from the leader
all end in `pump`, which builds the consume queues up to what may be read and wakes who waits for it.
Promises: nothing here waits; the pump runs at most once a loop turn; whoever reads sees what was
appended before; what readers may see never passes `readable_limit` (design, sections 3 and 4; HA,
rule R10).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..proto.errors import WireError
from .journal.api import Journal, NullJournal
from .metadata.log import META_TOPIC

if TYPE_CHECKING:
    import asyncio

    from ..front.clock import Clock
    from ..ha.engine import Replication
    from ..store.message_store import MessageStore
    from .clients.registry import ClientRegistry
    from .clients.telemetry_forward import TelemetryForward
    from .config import BrokerConfig
    from .delay.levels import DelayLevels
    from .delay.timer_service import TimerService
    from .lite.service import LiteService
    from .maintenance.store_maintenance import StoreMaintenance
    from .metadata.log import MetaLog
    from .metadata.tables import Group, Metadata
    from .metrics.counters import Counters
    from .offsets.consumer_offsets import ConsumerOffsets
    from .pop.receive import PopService
    from .routing.cluster_view import ClusterView
    from .sending.durability import DurabilityGate
    from .sending.sender import Sender
    from .trace.service import TraceService
    from .transactions.service import Transactions

# One turn of dispatch: long enough to catch up quickly, short enough (about 20 ms) for the loop.
_DISPATCH_RECORDS = 2_000
# How long new messages may stay out of the queues while no poll waits for any.
_NOBODY_WAITS_S = 0.002


@dataclass(slots=True)
class Node:
    """The composition object; `server.py` fills it, in the order of the fields, before the door opens."""

    config: BrokerConfig
    clock: Clock
    loop: asyncio.AbstractEventLoop
    store: MessageStore
    counters: Counters
    metadata: Metadata
    clients: ClientRegistry
    cluster: ClusterView
    sync_flush: bool
    sync_replication: bool
    slave_timeout_ms: int
    flush_timeout_ms: int
    min_in_sync_replicas: int
    meta_log: MetaLog = field(init=False)
    replication: Replication = field(init=False)
    offsets: ConsumerOffsets = field(init=False)
    durability: DurabilityGate = field(init=False)
    sender: Sender = field(init=False)
    pop: PopService = field(init=False)
    keeper: StoreMaintenance = field(init=False)
    journal: Journal = field(default_factory=NullJournal)
    """What makes the pop state survive; opened on a leader."""
    timers: TimerService = field(init=False)
    levels: DelayLevels = field(init=False)
    transactions: Transactions = field(init=False)
    lite: LiteService = field(init=False)
    telemetry_forward: TelemetryForward | None = None
    trace: TraceService | None = None
    """Writes down what happens to every message, where that is asked for, on a leader."""
    tracer: TraceService | None = None
    """The same, whoever leads."""
    clock_listeners: list[Callable[[], None]] = field(default_factory=list)
    """Called when a test moved the wall clock: what is due may have changed."""
    closers: list[Callable[[], None]] = field(default_factory=list)
    """Called when the broker stops, while the log still takes what they write."""
    watchers: dict[str, Callable[[], None]] = field(default_factory=dict)
    """By topic: called in the turn in which records of it became visible."""
    stale_route: tuple[str, int] | None = None
    """A test's: what routes name for every group instead of the truth."""
    is_leader: bool = False
    """Whether the parts of this replica lead: `role.py` alone changes it."""
    pop_leads: bool = False
    """Whether the pop state here is the leader's, with its journal; a moment after the promotion."""
    pausing: bool = False
    """The sender has met a refusal that another leader, or this one, will soon lift."""
    draining: str | None = None
    """Why writes are refused before a planned change of leader; `role.py` sets it."""
    _pump_scheduled: bool = False
    _pump_timer: asyncio.TimerHandle | None = None

    def write_refusal(self) -> str | None:
        """Why nothing may be appended here now, whatever the disk says, or None."""
        return self.draining or self.replication.write_refusal()

    def writes_elsewhere(self) -> bool:
        """Whether a refused write may soon be taken: by another leader, or by this one again."""
        return not self.is_leader or self.draining is not None or not self.replication.may_write

    def leader_client(self) -> str | None:
        """The clients' address of this group's leader, if that is another node and anybody knows it."""
        hint = self.replication.leader_hint
        if hint is not None:
            return hint[1] if hint[0] != self.config.broker_id else None
        leader = self.cluster.own().leader()
        if leader is None or leader.broker_id == self.config.broker_id:
            return None
        return leader.client

    def readable_limit(self) -> int:
        """The log offset up to which consumers may see messages."""
        if not self.is_leader:
            return min(self.replication.confirm, self.store.log_end)
        limit = self.store.flushed_offset if self.sync_flush else self.store.log_end
        return min(limit, self.replication.confirm) if self.sync_replication else limit

    def appended(self) -> None:
        """The log grew: replication sends it on, and readers see it in this turn or when it is safe."""
        self.replication.appended()
        self.schedule_pump()

    def flushed(self) -> None:
        """The flush thread's news, already on the loop."""
        self.replication.flushed()
        self.durability.advance()
        self.schedule_pump()

    def confirmed(self) -> None:
        """The confirm offset moved."""
        self.durability.advance()
        self.schedule_pump()

    def record_group(self, group: Group) -> bool:
        """Write a group that a client has just brought; without the log it lives in memory only."""
        if not self.store.writable or self.write_refusal() is not None:
            return False
        try:
            self.meta_log.write_group(group)
        except WireError:
            # The disk is full: those who would read need no new record for it.
            return False
        self.appended()
        return True

    def schedule_pump(self) -> None:
        """Ask for a pump: in this loop turn when a poll waits, a moment later when nobody does.

        However many events ask for it, it runs once; a later one writes the queues of many turns at
        once, which saves most of its cost. Who reads calls `catch_up` first.
        """
        if self._pump_scheduled:
            return
        if self.pop.waiting:
            self._pump_scheduled = True
            self.loop.call_soon(self.pump)
        elif self._pump_timer is None:
            self._pump_timer = self.loop.call_later(_NOBODY_WAITS_S, self.pump)

    def catch_up(self) -> None:
        """Before a read: what was appended before it can be seen by it."""
        if self._pump_timer is not None:
            self.pump()

    def close(self) -> None:
        """Nothing comes any more: build the queues to the end, so that the store stops cleanly."""
        for closer in self.closers:
            closer()
        self.store.commit()
        before = -1
        while before < self.store.dispatched_offset < self.readable_limit():
            before = self.store.dispatched_offset
            self.pump()
        if self._pump_timer is not None:
            self._pump_timer.cancel()
            self._pump_timer = None
        # Replication goes on for a moment; the store does not.
        self._pump_scheduled = True

    def pump(self) -> None:
        """Build the consume queues up to what may be read, apply metadata, wake long polls."""
        self._pump_scheduled = False
        if self._pump_timer is not None:
            self._pump_timer.cancel()
            self._pump_timer = None
        limit = self.readable_limit()
        if self.store.dispatched_offset >= limit:
            return
        arrivals = self.store.dispatch(limit, _DISPATCH_RECORDS)
        woken: set[tuple[str, int]] = set()
        for arrival in arrivals:
            if arrival.topic == META_TOPIC:
                self.meta_log.apply(arrival)
            else:
                woken.add((arrival.topic, arrival.queue_id))
        for topic, queue_id in woken:
            self.pop.notify(topic, queue_id)
            if topic in self.watchers:
                self.watchers[topic]()
        if len(arrivals) >= _DISPATCH_RECORDS:
            self.schedule_pump()
