"""Composition of a broker: builds all parts in order, from the store to the services.

`lifecycle.py` connects and starts them. Promises: the store is recovered and the tables are read
before anything else is built; a leader by configuration leads from here on, an elected leader later
(`role.py`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from ...ha.engine import Identity, Replication
from ...nodes.addresses import host_port
from ...proto import native, v2
from ...proto.native import Native
from ...store.format.disk import Disk
from ...store.format.record import pack_host
from ...store.format.results import StoredRecord
from ...store.log.power_loss_disk import PowerLossDisk
from ...store.message_store import MessageStore
from ...store.native_parts import NativeParts
from ..access.key_source import KeySource
from ..access.quota_admin import QuotaAdmin
from ..access.quotas import Quotas
from ..access.user_admin import UserAdmin
from ..admin.progress import ConsumerProgress
from ..admin.removal import Removal
from ..admin.status import BrokerStatus
from ..base.cluster_view import ClusterView
from ..base.counters import Counters
from ..base.leadership import DurabilityPolicy, Leadership
from ..base.runtime import Runtime
from ..clients.registry import ClientRegistry
from ..clients.telemetry_forward import TelemetryForward
from ..delay.delayed import DelayedMessages, DelaySends
from ..delay.levels import DelayLevels
from ..delay.recall import Recalls
from ..delay.timer_service import TimerService
from ..maintenance.store_maintenance import StoreMaintenance
from ..metadata.auto_topics import AutoTopics
from ..metadata.changes import MetadataChanges
from ..metadata.files import MetaFiles
from ..metadata.log import MetaLog
from ..metadata.system_topics import SystemTopics
from ..metadata.tables import Metadata
from ..offsets.consumer_offsets import ConsumerOffsets
from ..offsets.recent import RecentOffsets
from ..offsets.resets import OffsetResets
from ..sending.sender import Sender
from ..trace.service import TraceService
from ..trace.spans import DeliveryTraces, Spans, exporting_tracer
from ..transactions.service import Transactions
from ..visible.dispatch_pump import DispatchPump
from ..visible.durability import DurabilityGate
from .consumption import build_consumption
from .parts import Broker, Consumption, Core, Sending

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from ...front.clock import Clock
    from ...front.config import DoorConfig
    from ...front.faults import FaultTable
    from ...ha.config import HaConfig
    from ...ha.events import ReplicationEvents
    from ...nodes.node_links import NodeLinks
    from ...store.config.store_config import StoreConfig
    from ...store.events import StoreEvents
    from ..base.config import BrokerConfig

logger = logging.getLogger(__name__)

_OFFSETS_FILE = "consumerOffset.json"
_KEY_FILE = "auth.key"


def assemble(
    config: BrokerConfig,
    store_config: StoreConfig,
    ha: HaConfig,
    clock: Clock,
    *,
    door: DoorConfig,
    links: NodeLinks,
    faults: FaultTable | None,
    events: tuple[StoreEvents, ReplicationEvents],
    stack: AsyncExitStack,
) -> Broker:
    """Open the store and build every part; `stack` closes them. Raises StoreError, HaError."""
    crate = native.load()
    store = _open_store(store_config, clock, faults, events[0], crate=crate, stack=stack)
    runtime = Runtime(config, clock, asyncio.get_running_loop(), Counters())
    core = _core(runtime, store_config, ha, store, links, door, events[1])
    stack.callback(core.durability.close)
    sending = _sending(core, crate)
    consumption = build_consumption(core, sending, crate)
    core.pump.add_listener(consumption.receiving)
    runtime.clock_listeners.add(consumption.pop.clock_moved)
    removal = Removal(core.metadata, core.offsets, consumption.pop, sending.timers)
    core.meta_log.watch_removals(removal.topic_removed, removal.group_removed)
    keys = KeySource(
        config.authentication_key_file,
        ha.cluster_token,
        store_config.root / "config" / _KEY_FILE,
    )
    broker = Broker(
        **vars(core),
        **vars(sending),
        **vars(consumption),
        keys=keys,
        users=_users(core, keys),
        quota_admin=QuotaAdmin(
            metadata=core.metadata, meta_log=core.meta_log, changes=core.changes
        ),
        removal=removal,
        maintenance=_maintenance(core),
        progress=_progress(core, consumption),
        status=_status(core),
        telemetry_forward=_telemetry_forward(core, door),
    )
    set_store_host(broker, config.broker_ip1, config.grpc_server_port)
    return broker


def set_store_host(broker: Broker, host: str, port: int) -> None:
    """Set the address that records carry as their store host.

    Offset message ids contain it, and tools of classic clients dial what an id names.
    """
    try:
        packed = pack_host(host, port)
    except OSError:
        # A host name; records hold addresses only.
        packed = pack_host("0.0.0.0", port)
    broker.sender.set_store_host(packed)
    broker.meta_log.set_host(packed)


def _core(  # noqa: PLR0917 - what the parts of the core are made of
    runtime: Runtime,
    store_config: StoreConfig,
    ha: HaConfig,
    store: MessageStore,
    links: NodeLinks,
    door: DoorConfig,
    events: ReplicationEvents,
) -> Core:
    config, clock = runtime.config, runtime.clock
    metadata = Metadata(
        config.auto_create_subscription_group,
        config.max_topics,
        config.max_groups,
        clock.steady_ns,
    )
    cluster = ClusterView(config.broker_name, clock.steady_ns)
    meta_log = MetaLog(metadata, store, clock.wall_ms)
    meta_log.load()
    replication = _replication(config, store_config, ha, store, clock, links, door, events)
    policy = _durability_policy(store_config, ha)
    leadership = Leadership(config.broker_id, replication, cluster, policy)
    pump = DispatchPump(runtime.loop, store, replication, leadership, meta_log)
    durability = DurabilityGate(runtime, store, replication, policy)
    changes = MetadataChanges(runtime, store, leadership, pump, durability)
    return Core(
        runtime=runtime,
        store=store,
        metadata=metadata,
        meta_log=meta_log,
        meta_files=MetaFiles(metadata, store_config.root / "config", clock.wall_ms),
        clients=ClientRegistry(config.channel_expired_timeout, config.max_clients),
        cluster=cluster,
        replication=replication,
        leadership=leadership,
        pump=pump,
        offsets=ConsumerOffsets(
            store_config.root / "config" / _OFFSETS_FILE,
            clock.wall_ms,
            config.flush_consumer_offset_interval,
            log=store,
            recent=RecentOffsets(store_config.root / "ha" / "offsets-recent"),
            store_id=lambda: store.id,
        ),
        resets=OffsetResets(),
        durability=durability,
        changes=changes,
        system_topics=SystemTopics(metadata, meta_log, leadership),
        auto_topics=AutoTopics(
            config=config,
            metadata=metadata,
            meta_log=meta_log,
            changes=changes,
            leadership=leadership,
            pump=pump,
            cluster=cluster,
        ),
        quotas=Quotas(
            metadata=metadata,
            steady_ns=clock.steady_ns,
            refused=runtime.counters.refused_by_quota,
        ),
    )


def _sending(core: Core, crate: Native | None) -> Sending:
    trace = None
    if core.runtime.config.trace_topic_enable:
        trace = TraceService(core.runtime, core.system_topics)
    spans, provider = _spans(core.runtime)
    sender = Sender(
        runtime=core.runtime,
        store=core.store,
        metadata=core.metadata,
        leadership=core.leadership,
        pump=core.pump,
        durability=core.durability,
        auto_topics=core.auto_topics,
        quotas=core.quotas,
        trace=trace,
        spans=spans,
        native=crate,
    )
    if trace is not None:
        trace.start(sender)
    tracing = [each for each in (trace, spans) if each is not None]
    timers = TimerService(
        runtime=core.runtime,
        store=core.store,
        metadata=core.metadata,
        offsets=core.offsets,
        pump=core.pump,
        appender=sender,
    )
    store_config = core.store.config
    delayed = DelayedMessages(store_config, core.runtime.clock, timers, core.system_topics)
    transactions = _transactions(core, sender, delayed)
    name, precision_ms = core.runtime.config.broker_name, store_config.timer_precision_ms
    sender.register(v2.DELAY, DelaySends(delayed, name, precision_ms))
    sender.register(v2.TRANSACTION, transactions)
    return Sending(
        sender=sender,
        trace=trace,
        delivery_traces=DeliveryTraces(tracing) if tracing else None,
        span_provider=provider,
        timers=timers,
        levels=_levels(core, sender),
        delayed=delayed,
        recalls=Recalls(
            runtime=core.runtime,
            store_config=store_config,
            metadata=core.metadata,
            sender=sender,
            durability=core.durability,
            timers=timers,
            delayed=delayed,
        ),
        transactions=transactions,
    )


def _spans(runtime: Runtime) -> tuple[Spans | None, Any]:
    """Return the spans and their provider, if they are enabled. Raises ValueError."""
    config = runtime.config
    if not config.trace_spans_enable:
        return None, None
    tracer, provider = exporting_tracer(f"{config.broker_name}-{config.broker_id}")
    return Spans(tracer, runtime.clock), provider


def _levels(core: Core, sender: Sender) -> DelayLevels:
    return DelayLevels(
        runtime=core.runtime,
        store=core.store,
        metadata=core.metadata,
        offsets=core.offsets,
        pump=core.pump,
        appender=sender,
    )


def _transactions(core: Core, sender: Sender, delayed: DelayedMessages) -> Transactions:
    return Transactions(
        runtime=core.runtime,
        store=core.store,
        metadata=core.metadata,
        offsets=core.offsets,
        clients=core.clients,
        pump=core.pump,
        durability=core.durability,
        appender=sender,
        system_topics=core.system_topics,
        delayed=delayed,
    )


def _telemetry_forward(core: Core, door: DoorConfig) -> TelemetryForward:
    return TelemetryForward(
        clock=core.runtime.clock,
        loop=core.runtime.loop,
        clients=core.clients,
        cluster=core.cluster,
        config=door,
        leads=lambda: core.leadership.is_leader,
        links=core.replication.links,
    )


def _users(core: Core, keys: KeySource) -> UserAdmin:
    return UserAdmin(
        metadata=core.metadata,
        meta_log=core.meta_log,
        changes=core.changes,
        keys=keys,
        first_user=core.runtime.config.first_user(),
        machine_ms=core.runtime.clock.machine_ms,
    )


def _maintenance(core: Core) -> StoreMaintenance:
    return StoreMaintenance(
        runtime=core.runtime,
        store=core.store,
        metadata=core.metadata,
        replication=core.replication,
        leadership=core.leadership,
        pump=core.pump,
        offsets=core.offsets,
    )


def _status(core: Core) -> BrokerStatus:
    return BrokerStatus(
        runtime=core.runtime,
        store=core.store,
        metadata=core.metadata,
        replication=core.replication,
        leadership=core.leadership,
        cluster=core.cluster,
        pump=core.pump,
    )


def _progress(core: Core, consumption: Consumption) -> ConsumerProgress:
    return ConsumerProgress(
        runtime=core.runtime,
        store=core.store,
        metadata=core.metadata,
        offsets=core.offsets,
        clients=core.clients,
        pump=core.pump,
        queue_progress=consumption.receiving.progress,
    )


def _durability_policy(store_config: StoreConfig, ha: HaConfig) -> DurabilityPolicy:
    """Return the configured policy; an elected leader applies the group's."""
    return DurabilityPolicy(
        sync_flush=store_config.sync_flush,
        sync_replication=ha.is_sync,
        flush_timeout_ms=store_config.sync_flush_timeout,
        slave_timeout_ms=ha.slave_timeout,
        min_in_sync_replicas=ha.min_in_sync_replicas,
    )


def native_parts(crate: Native | None) -> NativeParts:
    """Return what the native crate does for a store; nothing without the crate."""
    if crate is None:
        return NativeParts()
    return NativeParts(
        records=crate.queue_records(StoredRecord),
        index_entries=crate.index_entries,
        whole_records=crate.whole_records,
        queue_units=crate.queue_units,
    )


def _open_store(
    store_config: StoreConfig,
    clock: Clock,
    faults: FaultTable | None,
    events: StoreEvents,
    *,
    crate: Native | None,
    stack: AsyncExitStack,
) -> MessageStore:
    """Open and recover the store; `stack` closes it. Raises StoreError."""
    disk = Disk()
    if faults is not None:
        if PowerLossDisk.wanted(store_config.root):
            disk = PowerLossDisk(store_config.root)
        disk.fault = faults.disk_fault
    store = MessageStore(store_config, clock.wall_ms, disk, native_parts(crate), events)
    for line in store.open().lines():
        logger.info("store.report %s", line)
    stack.callback(store.close)
    return store


def _replication(  # noqa: PLR0917 - what a replica is made of
    config: BrokerConfig,
    store_config: StoreConfig,
    ha: HaConfig,
    store: MessageStore,
    clock: Clock,
    links: NodeLinks,
    door: DoorConfig,
    events: ReplicationEvents,
) -> Replication:
    """Build the replication engine. Raises HaError, DoorError."""
    return Replication(
        ha,
        Identity(config.broker_cluster_name, config.broker_name, config.broker_id),
        store,
        clock.steady_ns,
        directory=store_config.root / "ha",
        segment_size=store_config.mapped_file_size_commit_log,
        sync_flush=store_config.sync_flush,
        events=events,
        bind_address=config.bind_address,
        nameservers=[host_port(host, port) for host, port in config.namesrv_addresses()],
        links=links,
        door=door,
    )
