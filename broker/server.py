"""One broker process: opens the parts in their order, serves, and closes them in reverse.

Order: the store (lock, recovery), topics and groups out of the log, replication, the services, the
front door, metrics, registration. Whatever fails on the way closes what was open and comes out as a
typed error with a sentence. Promises: settings that contradict each other are refused before anything
is opened; nothing is served before the store is recovered; a stop finishes what is in flight within
the grace time and leaves a clean store (design, sections 2-4).
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial

from ..front.access_point import AccessPoint
from ..front.clock import Clock
from ..front.config import DoorConfig
from ..front.door import Door, choose_door
from ..front.faults import FaultTable
from ..ha.config import HaConfig
from ..ha.engine import Identity, Replication
from ..store.config import StoreConfig
from ..store.disk import Disk
from ..store.message_store import MessageStore
from ..store.record import pack_host
from . import services
from .admin import removal
from .admin.message_queries import MessageQueries
from .admin.service import Admin
from .clients.registry import ClientRegistry
from .clients.relay import Relay
from .clients.sessions import Sessions
from .clients.telemetry_forward import open_telemetry_forward
from .cluster import Registrar
from .cluster_view import ClusterView
from .config import BrokerConfig
from .delay.levels import open_delay_levels
from .delay.timer_service import open_timers
from .durability import DurabilityGate
from .journal.service import open_journal
from .lite.service import LiteService
from .locate import Locator
from .membership import client_of_leader, join, own_view
from .metadata.files import MetaFiles
from .metadata.log import MetaLog
from .metadata.tables import Metadata
from .metrics.counters import Counters
from .metrics.http import MetricsServer
from .metrics.scrape import Metrics
from .node import Node
from .offset_recent import RecentOffsets
from .offsets import ConsumerOffsets
from .pop.ack import AckService
from .pop.receive import PopService
from .pull import PullService
from .routes import Routes
from .sending.sender import Sender
from .settings import check_settings, entries
from .store_keeper import StoreKeeper
from .test_service import TestService
from .trace.service import open_trace
from .transactions.service import open_transactions

log = logging.getLogger(__name__)

_OFFSETS_FILE = "consumerOffset.json"
_FAULT_SEED = 20_240
# New objects between two looks of the collector at the young ones. A turn brings thousands that end with
# it, none of them in a ring; Python's 700 would have it walk them again and again in mid-turn.
_YOUNG_OBJECTS = 10_000


@dataclass(frozen=True, slots=True)
class Bound:
    """Where the process really listens, each as HOST:PORT."""

    client: str
    ha: str
    metrics: str
    door: str
    """grpcio or native."""


class BrokerServer:
    """Made anywhere; started and stopped once, on one event loop."""

    def __init__(
        self,
        broker: BrokerConfig,
        store: StoreConfig,
        ha: HaConfig,
        door: DoorConfig,
        clock: Clock | None = None,
        *,
        origins: Mapping[str, str] | None = None,
    ) -> None:
        """`origins` tells where each key's value came from. Raises ValueError."""
        check_settings(broker, ha)
        self._config = broker
        self._store_config = store
        self._ha = ha
        self._door_config = door
        self._clock = clock or Clock()
        self._settings = entries((broker, store, ha, door), origins or {})
        self._stack = AsyncExitStack()
        self._node: Node | None = None
        self._door: Door | None = None
        self._access: AccessPoint | None = None
        self._registrar: Registrar | None = None
        self._stopping = False

    async def start(self) -> Bound:
        """Recover, open everything, register. Raises StoreError, DoorError, HaError, ValueError."""
        try:
            return await self._start()
        except BaseException:
            if self._door is not None:
                await self._door.drain(0)
            await self._stack.aclose()
            raise

    async def stop(self, grace_s: float) -> None:
        """Finish what is in flight, flush and close."""
        self._stopping = True
        if self._registrar is not None:
            await self._registrar.stop()
        if self._door is not None and self._node is not None:
            draining = asyncio.ensure_future(self._door.drain(grace_s))
            # The door takes no more calls from here on; open long polls are answered at once.
            await asyncio.sleep(0)
            self._node.pop.close()
            await draining
            self._node.close()
        await self._stack.aclose()
        log.info("broker.stopped name=%s id=%d", self._config.broker_name, self._config.broker_id)

    @property
    def node(self) -> Node:
        """The parts, for tests and benchmarks in the same process."""
        assert self._node is not None, "the broker is not started"
        return self._node

    async def _start(self) -> Bound:
        faults = FaultTable(_FAULT_SEED, self._clock) if self._config.test_hooks else None
        node = self._node = self._open(faults)
        files = MetaFiles(node.metadata, self._store_config.root / "config", self._clock.wall_ms)
        node.offsets.load()
        node.offsets.load_recent()
        node.store.start()
        self._stack.push_async_callback(self._close_files, node, files)
        ha_port = await node.replication.start()
        self._stack.push_async_callback(node.replication.stop)
        # The last flush, in the store's own close, has nobody to tell any more.
        self._stack.callback(setattr, node.store, "on_flushed", None)
        self._stack.callback(setattr, node.store, "on_committed", None)
        files.import_into(node.meta_log, write=node.is_leader)
        node.offsets.start()
        node.pop.open(self._stack)
        node.lite.open(self._stack)
        node.schedule_pump()
        node.keeper.start()
        self._stack.callback(node.keeper.stop)
        open_timers(node, self._stack)
        open_delay_levels(node, self._stack)
        await open_journal(node, self._stack)
        open_transactions(node, self._stack)
        open_telemetry_forward(node, self._door_config, self._stack)
        open_trace(node, self._stack)
        client_port = await self._open_door(node, faults)
        metrics_port = await self._open_metrics(node)
        self._name_host(node, client_port)
        bound = self._bound(client_port, ha_port, metrics_port)
        await self._join(node, bound, files)
        self._watch_clients(node)
        # What is there now stays: the collector need not walk it again and again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_YOUNG_OBJECTS)
        log.info(
            "broker.started name=%s id=%d role=%s client=%s ha=%s metrics=%s door=%s topics=%d",
            self._config.broker_name,
            self._config.broker_id,
            "leader" if node.is_leader else "follower",
            bound.client,
            bound.ha,
            bound.metrics,
            bound.door,
            len(node.metadata.topics),
        )
        return bound

    def _open(self, faults: FaultTable | None) -> Node:
        """The store, what it holds of topics and groups, and the parts that hang on it."""
        config, ha, clock = self._config, self._ha, self._clock
        disk = Disk()
        if faults is not None:
            disk.fault = faults.disk_fault
        store = MessageStore(self._store_config, clock.wall_ms, disk)
        for line in store.open().lines():
            log.info("store.report %s", line)
        self._stack.callback(store.close)
        metadata = Metadata(
            config.auto_create_subscription_group, config.max_topics, config.max_groups
        )
        node = Node(
            config=config,
            clock=clock,
            loop=asyncio.get_running_loop(),
            store=store,
            counters=Counters(),
            metadata=metadata,
            clients=ClientRegistry(config.channel_expired_timeout, config.max_clients),
            cluster=ClusterView(config.broker_name, clock.steady_ns),
            sync_flush=self._store_config.sync_flush,
            sync_replication=ha.is_sync,
            slave_timeout_ms=ha.slave_timeout,
            flush_timeout_ms=self._store_config.sync_flush_timeout,
            min_in_sync_replicas=ha.min_in_sync_replicas,
        )
        node.meta_log = MetaLog(metadata, store, clock.wall_ms)
        node.meta_log.load()
        removal.watch(node)
        node.replication = Replication(
            ha,
            Identity(config.broker_cluster_name, config.broker_name, config.broker_id),
            store,
            clock.steady_ns,
            directory=self._store_config.root / "ha",
            segment_size=self._store_config.mapped_file_size_commit_log,
            sync_flush=node.sync_flush,
            bind_address=config.bind_address,
        )
        node.offsets = ConsumerOffsets(
            self._store_config.root / "config" / _OFFSETS_FILE,
            clock.wall_ms,
            config.flush_consumer_offset_interval,
        )
        node.offsets.log = store
        node.offsets.recent = RecentOffsets(self._store_config.root / "ha" / "offsets-recent")
        node.durability = DurabilityGate(node)
        self._stack.callback(node.durability.close)
        node.sender = Sender(node)
        node.pop = PopService(node)
        node.lite = LiteService(node)
        node.keeper = StoreKeeper(node)
        self._name_host(node, config.grpc_server_port)
        self._connect(node)
        return node

    def _name_host(self, node: Node, port: int) -> None:
        """The address that records carry as their store host."""
        try:
            host = pack_host(self._config.broker_ip1, port)
        except OSError:
            # A host name; records hold addresses only.
            host = pack_host("0.0.0.0", port)
        node.sender.store_host = host
        node.meta_log.host = host

    def _connect(self, node: Node) -> None:
        """Who tells whom."""
        loop, replication = node.loop, node.replication
        node.store.on_flushed = partial(_from_store_thread, loop, node.flushed)
        node.store.on_committed = partial(_from_store_thread, loop, node.appended)
        node.store.on_refused = lambda reason: log.error("store.refused reason=%s", reason)
        replication.on_confirm = node.confirmed
        replication.on_data = node.schedule_pump
        replication.on_leader_change = partial(_leader_changed, node)
        replication.offsets_snapshot = node.keeper.offsets_snapshot
        replication.offsets_apply = node.keeper.offsets_apply
        if node.is_leader:
            node.store.on_new_segment = node.meta_log.snapshot
            node.metadata.record_group = node.record_group

    async def _open_door(self, node: Node, faults: FaultTable | None) -> int:
        relay = Relay(lambda: client_of_leader(node.cluster))
        self._stack.push_async_callback(relay.close)
        admin = Admin(node, lambda: self._door.name if self._door else "", self._settings)
        methods = [
            *services.messaging(
                node, Routes(node), Sessions(node, relay.send), AckService(node), PullService(node)
            ),
            *services.administration(admin, node.keeper, MessageQueries(node)),
        ]
        if faults is not None:
            methods += services.testing(TestService(node, faults))
        locator = Locator(node)
        access = self._access = AccessPoint(
            services.table(methods),
            self._door_config,
            self._clock,
            locator.locate,
            locator.unreachable,
        )
        self._stack.push_async_callback(access.close)
        self._door = choose_door(self._door_config)(access.services, self._clock, faults)
        node.sender.gathers = not self._door.batches
        return await self._door.start(self._config.bind_address, self._config.grpc_server_port)

    async def _open_metrics(self, node: Node) -> int:
        assert self._access is not None
        metrics = Metrics(
            node, lambda: self._door.statistics() if self._door else None, self._access.statistics
        )
        server = MetricsServer(metrics.scrape, self._unready)
        self._stack.push_async_callback(server.stop)
        return await server.start(
            self._config.bind_address, self._config.metrics_prom_exporter_port
        )

    async def _join(self, node: Node, bound: Bound, files: MetaFiles) -> None:
        own = own_view(node, bound.client, bound.ha, bound.metrics)
        follow = not node.is_leader and not self._ha.ha_master_address
        registrar = self._registrar = await join(node, own, self._ha.cluster_token, follow)
        self._stack.push_async_callback(registrar.stop)

        def tables_changed() -> None:
            files.changed()
            registrar.changed()

        node.metadata.on_change = tables_changed
        tables_changed()

    async def _close_files(self, node: Node, files: MetaFiles) -> None:
        node.metadata.on_change = None
        await node.offsets.close()
        await files.close()

    def _watch_clients(self, node: Node) -> None:
        """Let go of clients that fell silent; a quarter of the expiry time is soon enough."""
        period_s = self._config.channel_expired_timeout / 4_000

        async def watch() -> None:
            while True:
                await asyncio.sleep(period_s)
                for client_id in node.clients.expire(node.clock.steady_ns()):
                    # Not in this task: one that fails must not be the last.
                    node.loop.call_soon(node.pop.on_client_gone, client_id)

        self._stack.callback(asyncio.create_task(watch()).cancel)

    def _unready(self) -> str | None:
        """Why this broker should get no traffic, or None."""
        node = self._node
        if node is None or self._stopping:
            return "starting or stopping"
        if not node.store.writable and not node.store.paused:
            return node.store.refusal  # on a full disk it serves readers, and waits for room
        if node.is_leader:
            return None
        # A leader that refuses this replica is alive, too.
        refused = node.replication.refused
        return refused or (None if node.replication.leader_alive else "the leader is not heard")

    def _bound(self, client_port: int, ha_port: int, metrics_port: int) -> Bound:
        host = self._config.broker_ip1
        name = f"[{host}]" if ":" in host else host
        door = self._door.name if self._door else ""
        return Bound(f"{name}:{client_port}", f"{name}:{ha_port}", f"{name}:{metrics_port}", door)


def _from_store_thread(
    loop: asyncio.AbstractEventLoop, news: Callable[[], None], _offset: int
) -> None:
    # A flush may end while the loop is being closed; its news is of no use then.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(news)


def _leader_changed(node: Node, alive: bool) -> None:
    log.info("leader.%s group=%s", "heard" if alive else "lost", node.config.broker_name)
    node.pop.leader_changed(alive)
