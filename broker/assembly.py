"""Composition of a broker: builds the parts in order, from the store to the services.

`lifecycle.py` connects and starts them. Promises: the store is recovered and the tables are read
before anything else is built; a leader by configuration leads from here on, an elected leader later
(`role.py`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..ha.engine import Identity, Replication
from ..proto import v2
from ..proto.addresses import host_port
from ..store.format.disk import Disk
from ..store.format.record import pack_host
from ..store.log.power_loss_disk import PowerLossDisk
from ..store.message_store import MessageStore
from .admin.auto_topics import AutoTopics
from .admin.removal import Removal
from .clients.registry import ClientRegistry
from .consumption import build_consumption
from .delay.delayed import DelayedMessages, DelaySends
from .delay.levels import DelayLevels
from .delay.recall import Recalls
from .delay.timer_service import TimerService
from .dispatch_pump import DispatchPump
from .leadership import DurabilityPolicy, Leadership
from .maintenance.store_maintenance import StoreMaintenance
from .metadata.changes import MetadataChanges
from .metadata.log import MetaLog
from .metadata.system_topics import SystemTopics
from .metadata.tables import Metadata
from .metrics.counters import Counters
from .node import Node
from .offsets.consumer_offsets import ConsumerOffsets
from .offsets.recent import RecentOffsets
from .routing.cluster_view import ClusterView
from .runtime import Runtime
from .sending.durability import DurabilityGate
from .sending.sender import Sender
from .trace.service import TraceService
from .transactions.service import Transactions

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from ..front.clock import Clock
    from ..front.faults import FaultTable
    from ..ha.config import HaConfig
    from ..store.config.store_config import StoreConfig
    from .config import BrokerConfig

log = logging.getLogger(__name__)

_OFFSETS_FILE = "consumerOffset.json"


def open_node(  # noqa: PLR0917 - what a broker is made of
    config: BrokerConfig,
    store_config: StoreConfig,
    ha: HaConfig,
    clock: Clock,
    faults: FaultTable | None,
    stack: AsyncExitStack,
) -> Node:
    """Open the store and make the parts that hang on it; `stack` closes them. Raises StoreError,
    HaError.
    """
    store = _open_store(store_config, clock, faults, stack)
    metadata = Metadata(config.auto_create_subscription_group, config.max_topics, config.max_groups)
    runtime = Runtime(config, clock, asyncio.get_running_loop(), Counters())
    cluster = ClusterView(config.broker_name, clock.steady_ns)
    meta_log = MetaLog(metadata, store, clock.wall_ms)
    meta_log.load()
    replication = _replication(config, store_config, ha, store, clock)
    policy = _durability_policy(store_config, ha)
    leadership = Leadership(config.broker_id, replication, cluster, policy)
    pump = DispatchPump(runtime.loop, store, replication, leadership, meta_log)
    offsets = ConsumerOffsets(
        store_config.root / "config" / _OFFSETS_FILE,
        clock.wall_ms,
        config.flush_consumer_offset_interval,
    )
    offsets.log = store
    offsets.recent = RecentOffsets(store_config.root / "ha" / "offsets-recent")
    node = Node(
        runtime=runtime,
        store=store,
        metadata=metadata,
        clients=ClientRegistry(config.channel_expired_timeout, config.max_clients),
        cluster=cluster,
        meta_log=meta_log,
        replication=replication,
        leadership=leadership,
        pump=pump,
        offsets=offsets,
    )
    node.durability = DurabilityGate(runtime, store, replication, policy)
    stack.callback(node.durability.close)
    node.changes = MetadataChanges(runtime, store, leadership, pump, node.durability)
    node.system_topics = SystemTopics(metadata, meta_log, leadership)
    node.auto_topics = AutoTopics(
        config=config,
        metadata=metadata,
        meta_log=meta_log,
        changes=node.changes,
        leadership=leadership,
        pump=pump,
        cluster=cluster,
    )
    _add_sending(node)
    _add_delays(node)
    _add_transactions(node)
    build_consumption(node)
    pump.add_listener(node.receiving)
    runtime.clock_listeners.add(node.pop.clock_moved)
    node.removal = Removal(metadata, offsets, node.pop)
    meta_log.watch_removals(node.removal.topic_removed, node.removal.group_removed)
    _add_maintenance(node)
    name_host(node, config.grpc_server_port)
    return node


def _add_sending(node: Node) -> None:
    """Add the sender and the trace."""
    if node.config.trace_topic_enable:
        node.trace = TraceService(node.runtime, node.system_topics)
    node.sender = Sender(
        runtime=node.runtime,
        store=node.store,
        metadata=node.metadata,
        leadership=node.leadership,
        pump=node.pump,
        durability=node.durability,
        auto_topics=node.auto_topics,
        trace=node.trace,
    )
    if node.trace is not None:
        node.trace.start(node.sender)


def _add_delays(node: Node) -> None:
    """Add timers, delay levels and recalls."""
    store, sender = node.store, node.sender
    node.timers = TimerService(
        runtime=node.runtime,
        store=store,
        metadata=node.metadata,
        offsets=node.offsets,
        pump=node.pump,
        appender=sender,
    )
    node.levels = DelayLevels(
        runtime=node.runtime,
        store=store,
        metadata=node.metadata,
        offsets=node.offsets,
        pump=node.pump,
        appender=sender,
    )
    delayed = DelayedMessages(store.config, node.clock, node.timers, node.system_topics)
    node.delayed = delayed
    precision_ms = store.config.timer_precision_ms
    sender.register(v2.DELAY, DelaySends(delayed, node.config.broker_name, precision_ms))
    node.recalls = Recalls(
        runtime=node.runtime,
        store_config=store.config,
        metadata=node.metadata,
        sender=sender,
        durability=node.durability,
        timers=node.timers,
        delayed=delayed,
    )


def _add_transactions(node: Node) -> None:
    """Add transactions."""
    node.transactions = Transactions(
        runtime=node.runtime,
        store=node.store,
        metadata=node.metadata,
        offsets=node.offsets,
        clients=node.clients,
        pump=node.pump,
        durability=node.durability,
        appender=node.sender,
        system_topics=node.system_topics,
        delayed=node.delayed,
    )
    node.sender.register(v2.TRANSACTION, node.transactions)


def _add_maintenance(node: Node) -> None:
    """Add the periodic work on the store."""
    node.maintenance = StoreMaintenance(
        runtime=node.runtime,
        store=node.store,
        metadata=node.metadata,
        replication=node.replication,
        leadership=node.leadership,
        pump=node.pump,
        offsets=node.offsets,
    )


def name_host(node: Node, port: int) -> None:
    """The address that records carry as their store host."""
    try:
        host = pack_host(node.config.broker_ip1, port)
    except OSError:
        # A host name; records hold addresses only.
        host = pack_host("0.0.0.0", port)
    node.sender.set_store_host(host)
    node.meta_log.set_host(host)


def _durability_policy(store_config: StoreConfig, ha: HaConfig) -> DurabilityPolicy:
    """The configured policy; an elected leader takes the group's."""
    return DurabilityPolicy(
        sync_flush=store_config.sync_flush,
        sync_replication=ha.is_sync,
        flush_timeout_ms=store_config.sync_flush_timeout,
        slave_timeout_ms=ha.slave_timeout,
        min_in_sync_replicas=ha.min_in_sync_replicas,
    )


def _open_store(
    store_config: StoreConfig, clock: Clock, faults: FaultTable | None, stack: AsyncExitStack
) -> MessageStore:
    """Open and recover the store; `stack` closes it. Raises StoreError."""
    disk = Disk()
    if faults is not None:
        if PowerLossDisk.wanted(store_config.root):
            disk = PowerLossDisk(store_config.root)
        disk.fault = faults.disk_fault
    store = MessageStore(store_config, clock.wall_ms, disk)
    for line in store.open().lines():
        log.info("store.report %s", line)
    stack.callback(store.close)
    return store


def _replication(
    config: BrokerConfig, store_config: StoreConfig, ha: HaConfig, store: MessageStore, clock: Clock
) -> Replication:
    """Raises HaError."""
    return Replication(
        ha,
        Identity(config.broker_cluster_name, config.broker_name, config.broker_id),
        store,
        clock.steady_ns,
        directory=store_config.root / "ha",
        segment_size=store_config.mapped_file_size_commit_log,
        sync_flush=store_config.sync_flush,
        bind_address=config.bind_address,
        nameservers=[host_port(host, port) for host, port in config.namesrv_addresses()],
    )
