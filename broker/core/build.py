"""Construction of the store, replication and the tables. Promises: the store is recovered, and the
tables are read, before anything else is built.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...ha.engine import Identity, Replication
from ...nodes.addresses import host_port
from ...store.format.disk import Disk
from ...store.format.results import StoredRecord
from ...store.log.power_loss_disk import PowerLossDisk
from ...store.message_store import MessageStore
from ...store.native_parts import NativeParts
from ..access.quotas import Quotas
from ..base.cluster_view import ClusterView
from ..base.leadership import DurabilityPolicy, Leadership
from ..base.runtime import Runtime
from ..clients.registry import ClientRegistry
from ..metadata.auto_topics import AutoTopics
from ..metadata.changes import MetadataChanges
from ..metadata.files import MetaFiles
from ..metadata.log import MetaLog
from ..metadata.system_topics import SystemTopics
from ..metadata.tables import Metadata
from ..offsets.consumer_offsets import ConsumerOffsets
from ..offsets.recent import RecentOffsets
from ..offsets.resets import OffsetResets
from ..visible.dispatch_pump import DispatchPump
from ..visible.durability import DurabilityGate
from .parts import Core

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from ...front.clock import Clock
    from ...front.config import DoorConfig
    from ...front.faults import FaultTable
    from ...ha.config import HaConfig
    from ...ha.events import ReplicationEvents
    from ...nodes.node_links import NodeLinks
    from ...proto.native import Native
    from ...store.config.store_config import StoreConfig
    from ...store.events import StoreEvents

logger = logging.getLogger(__name__)

_OFFSETS_FILE = "consumerOffset.json"


def build_core(
    runtime: Runtime,
    ha: HaConfig,
    store: MessageStore,
    links: NodeLinks,
    door: DoorConfig,
    *,
    events: ReplicationEvents,
) -> Core:
    """Build the parts. Raises HaError, DoorError, StoreError."""
    config, clock, root = runtime.config, runtime.clock, store.config.root
    metadata = Metadata(
        config.auto_create_subscription_group,
        config.max_topics,
        config.max_groups,
        clock.steady_ns,
    )
    cluster = ClusterView(config.broker_name, clock.steady_ns)
    meta_log = MetaLog(metadata, store, clock.wall_ms)
    meta_log.load()
    replication = _replication(runtime, ha, store, links, door, events=events)
    # An elected leader applies the policy of its group.
    policy = DurabilityPolicy(
        sync_flush=store.config.sync_flush,
        sync_replication=ha.is_sync,
        flush_timeout_ms=store.config.sync_flush_timeout,
        slave_timeout_ms=ha.slave_timeout,
        min_in_sync_replicas=ha.min_in_sync_replicas,
    )
    leadership = Leadership(config.broker_id, replication, cluster, policy)
    pump = DispatchPump(runtime.loop, store, replication, leadership, meta_log)
    durability = DurabilityGate(runtime, store, replication, policy)
    changes = MetadataChanges(runtime, store, meta_log, leadership, pump, durability=durability)
    return Core(
        runtime=runtime,
        store=store,
        metadata=metadata,
        meta_log=meta_log,
        meta_files=MetaFiles(metadata, root / "config", clock.wall_ms),
        clients=ClientRegistry(config.channel_expired_timeout, config.max_clients),
        cluster=cluster,
        replication=replication,
        leadership=leadership,
        pump=pump,
        offsets=ConsumerOffsets(
            root / "config" / _OFFSETS_FILE,
            clock.wall_ms,
            config.flush_consumer_offset_interval,
            log=store,
            recent=RecentOffsets(root / "ha" / "offsets-recent"),
            store_id=lambda: store.id,
        ),
        resets=OffsetResets(),
        durability=durability,
        changes=changes,
        system_topics=SystemTopics(metadata, meta_log, leadership),
        auto_topics=AutoTopics(
            config=config,
            metadata=metadata,
            changes=changes,
            leadership=leadership,
            pump=pump,
            cluster=cluster,
        ),
        quotas=_quotas(runtime, store, metadata),
    )


def _quotas(runtime: Runtime, store: MessageStore, metadata: Metadata) -> Quotas:
    return Quotas(
        metadata=metadata,
        steady_ns=runtime.clock.steady_ns,
        refused=runtime.counters.refused_by_quota,
        loop=runtime.loop,
        queues=store.queue_table.queues,
        authorize=runtime.config.authorization_enabled,
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


def open_store(
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


def _replication(
    runtime: Runtime,
    ha: HaConfig,
    store: MessageStore,
    links: NodeLinks,
    door: DoorConfig,
    *,
    events: ReplicationEvents,
) -> Replication:
    """Build the replication engine. Raises HaError, DoorError."""
    config, store_config = runtime.config, store.config
    return Replication(
        ha,
        Identity(config.broker_cluster_name, config.broker_name, config.broker_id),
        store,
        runtime.clock.steady_ns,
        directory=store_config.root / "ha",
        segment_size=store_config.mapped_file_size_commit_log,
        sync_flush=store_config.sync_flush,
        events=events,
        bind_address=config.bind_address,
        nameservers=[host_port(host, port) for host, port in config.namesrv_addresses()],
        links=links,
        door=door,
    )
