"""One life of a broker: opens the parts in their order, serves, and closes them in reverse.

Order: what was planned for the closed store (`ha/rejoin/pending.py`), the store (lock, recovery), topics and groups out of the log, replication, the services, the
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
from ..ha.rejoin import pending
from ..ha.upkeep import Upkeep
from ..proto.addresses import bracketed
from ..store.config.store_config import StoreConfig
from . import services
from .admin.fault_service import FaultService
from .admin.groups import GroupAdmin
from .admin.message_queries import MessageQueries
from .admin.offsets import OffsetAdmin
from .admin.progress import ConsumerProgress
from .admin.read_log import LogReads
from .admin.service import Admin
from .admin.status import BrokerStatus
from .admin.topics import TopicAdmin
from .assembly import name_host, open_node
from .clients.relay import Relay
from .clients.sessions import Sessions
from .clients.telemetry import TelemetryService
from .clients.telemetry_forward import TelemetryForward
from .config import BrokerConfig
from .metadata.files import MetaFiles
from .metrics.http import MetricsServer
from .metrics.scrape import Metrics
from .node import Node
from .pull.cold_reads import ColdReads
from .role import RoleSwitch
from .routing.membership import Membership
from .routing.registrar import Registrar
from .routing.request_router import RequestRouter
from .routing.routes import Routes
from .settings import entries

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


@dataclass(frozen=True, slots=True)
class Ends:
    """Whom a life tells that it cannot go on by itself; each gets a sentence."""

    reopen: Callable[[str], None]
    """Close it, and begin another on the same directory and ports."""
    fatal: Callable[[str], None]
    """The process must end."""


class BrokerLifecycle:
    """Made anywhere; started and stopped once, on one event loop."""

    def __init__(
        self,
        broker: BrokerConfig,
        store: StoreConfig,
        ha: HaConfig,
        door: DoorConfig,
        clock: Clock,
        *,
        origins: Mapping[str, str],
        ends: Ends,
    ) -> None:
        self._config = broker
        self._store_config = store
        self._ha = ha
        self._door_config = door
        self._clock = clock
        self._ends = ends
        self._settings = entries((broker, store, ha, door), origins)
        self._stack = AsyncExitStack()
        self._node: Node | None = None
        self._door: Door | None = None
        self._access: AccessPoint | None = None
        self._registrar: Registrar | None = None
        self._stopping = False
        self.bound: Bound | None = None
        """Where it listens, once it does."""

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
            self._node.pop_roles.close()
            self._node.receiving.close()
            self._node.journal.flush_all()
            await draining
            self._node.close()
        await self._stack.aclose()
        log.info("broker.stopped name=%s id=%d", self._config.broker_name, self._config.broker_id)

    @property
    def node(self) -> Node:
        """The parts, for tests and benchmarks in the same process."""
        assert self._node is not None, "the broker is not started"
        return self._node

    @property
    def access(self) -> AccessPoint:
        """The access point, once the door is open."""
        assert self._access is not None, "the door is not open"
        return self._access

    async def _start(self) -> Bound:
        faults = FaultTable(_FAULT_SEED, self._clock) if self._config.test_hooks else None
        await self._do_pending()
        node = self._node = open_node(
            self._config, self._store_config, self._ha, self._clock, faults, self._stack
        )
        self._connect(node)
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
        elected = self._ha.enable_controller_mode
        files.import_into(node.meta_log, write=node.leadership.is_leader, elected=elected)
        self.role.files = files
        self._stack.push_async_callback(self.role.close)
        node.offsets.start()
        node.pop.open(self._stack)
        node.lite.open(self._stack)
        node.clock_listeners.add(node.lite.clock_moved)
        self._stack.push_async_callback(node.lite_fanout.close)
        node.pump.schedule()
        node.maintenance.start()
        self._stack.callback(node.maintenance.stop)
        self._start_delays(node)
        await self._open_journal(node)
        self._start_transactions(node)
        self._open_telemetry_forward(node)
        self._start_trace(node)
        self.role.open()
        client_port = await self._open_door(node, faults)
        metrics_port = await self._open_metrics(node)
        name_host(node, client_port)
        bound = self.bound = self._bound(client_port, ha_port, metrics_port)
        await self._join(node, bound, files)
        upkeep = Upkeep(node.replication, node.store, lambda: bound.client)
        upkeep.start()
        self._stack.push_async_callback(upkeep.stop)
        # From now on this replica may be elected.
        node.replication.announce(client=bound.client, ha=bound.ha, metrics=bound.metrics)
        self._watch_clients(node)
        # What is there now stays: the collector need not walk it again and again. A life before this
        # one was frozen, too, and is in rings: it must not stay.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        gc.set_threshold(_YOUNG_OBJECTS)
        log.info(
            "broker.started name=%s id=%d role=%s client=%s ha=%s metrics=%s door=%s topics=%d",
            self._config.broker_name,
            self._config.broker_id,
            "leader" if node.leadership.is_leader else "follower",
            bound.client,
            bound.ha,
            bound.metrics,
            bound.door,
            len(node.metadata.topics),
        )
        return bound

    def _start_delays(self, node: Node) -> None:
        """Raises StoreError, ConfigFileError or OSError."""
        timers, levels = node.timers, node.levels
        node.closers.append(timers.halt)
        node.store.add_close_listener(timers.finish)
        self._stack.push_async_callback(timers.stop)
        if node.leadership.is_leader:
            timers.lead()
        node.closers.append(levels.halt)
        node.store.add_close_listener(levels.finish)
        self._stack.push_async_callback(levels.stop)
        if node.leadership.is_leader:
            levels.lead()

    def _start_transactions(self, node: Node) -> None:
        transactions = node.transactions
        transactions.file.load()
        node.clock_listeners.add(transactions.clock_moved)
        node.closers.append(transactions.finish)
        self._stack.push_async_callback(transactions.close)
        if node.leadership.is_leader:
            transactions.lead()

    def _start_trace(self, node: Node) -> None:
        if node.trace is not None:
            self._stack.callback(node.trace.flush)
            if node.leadership.is_leader:
                node.trace.lead()

    async def _open_journal(self, node: Node) -> None:
        """Recover the pop journal before the broker serves; the timers must be open."""
        journal = node.journal
        node.timers.add_filter(journal.topic, journal.wants)
        node.clock_listeners.add(journal.flush_soon)
        self._stack.callback(journal.stop)
        await journal.open(node.pop.core)

    def _open_telemetry_forward(self, node: Node) -> None:
        forward = node.telemetry_forward = TelemetryForward(
            clock=node.clock,
            loop=node.loop,
            clients=node.clients,
            cluster=node.cluster,
            config=self._door_config,
            leads=lambda: node.leadership.is_leader,
        )
        node.cluster.watchers.append(forward.cluster_changed)
        self._stack.push_async_callback(forward.close)

    async def _do_pending(self) -> None:
        """What the life before left to be done with the closed store. Raises OSError, StoreError, HaError."""
        root = self._store_config.root
        if (root / "ha" / pending.PENDING_NAME).exists():
            # Archives are written and files are cut: not on the loop.
            steps = await asyncio.to_thread(pending.run, root, self._store_config)
            for step in steps:
                log.warning("broker.pending %s", step)

    def _connect(self, node: Node) -> None:
        """Who tells whom."""
        loop, replication = node.loop, node.replication
        node.store.on_flushed = partial(_from_store_thread, loop, node.flushed)
        node.store.on_committed = partial(_from_store_thread, loop, node.pump.appended)
        node.store.on_refused = partial(_store_refused, node)
        replication.on_confirm = node.confirmed
        replication.on_data = node.pump.schedule
        replication.on_leader_change = partial(_leader_changed, node)
        replication.on_stream = node.offsets.drop_waiting
        replication.offsets_snapshot = node.maintenance.offsets_snapshot
        replication.offsets_apply = node.maintenance.offsets_apply
        replication.on_reopen = self._ends.reopen
        replication.fatal = self._ends.fatal
        replication.dispatched_end = lambda: node.store.dispatched_offset
        replication.disk_use = lambda: node.store.retention.disk_use
        self.role = RoleSwitch(node, self._ends.fatal)
        self.role.connect()

    async def _open_door(self, node: Node, faults: FaultTable | None) -> int:
        relay = Relay(node.leadership.leader_client)
        self._stack.push_async_callback(relay.close)
        status, progress = _status(node), _progress(node)
        routes = Routes(node.config, node.metadata, node.cluster, node.auto_topics)
        methods = [
            *services.messaging(node, routes, self._sessions(node, relay), self._telemetry(node)),
            *services.administration(
                self._admin(node, status, progress),
                node.maintenance,
                MessageQueries(node.store, node.pump),
            ),
            *services.reading(
                LogReads(node.config.broker_name, node.store, node.cluster, node.pump)
            ),
        ]
        if faults is not None:
            tests = FaultService(node.runtime, node.store.disk, faults, routes.name_stale)
            methods += services.testing(tests)
        router = RequestRouter(
            leadership=node.leadership,
            replication=node.replication,
            metadata=node.metadata,
            cluster=node.cluster,
            cold_reads=ColdReads(node.runtime, node.store, node.replication, node.cluster),
            lite_fanout=node.lite_fanout,
        )
        access = self._access = AccessPoint(
            services.table(methods),
            self._door_config,
            self._clock,
            router.locate,
            router.unreachable,
        )
        self._stack.push_async_callback(access.close)
        self._stack.callback(node.sender.close)
        self.role.leader_gone = access.owner_gone
        self._door = choose_door(self._door_config)(access.services, self._clock, faults)
        node.sender.connect(access.hold, linger=not self._door.batches)
        return await self._door.start(self._config.bind_address, self._config.grpc_server_port)

    def _sessions(self, node: Node, relay: Relay) -> Sessions:
        return Sessions(
            clock=node.clock,
            metadata=node.metadata,
            clients=node.clients,
            leadership=node.leadership,
            client_gone=node.receiving.client_gone,
            relay=relay.send,
        )

    def _telemetry(self, node: Node) -> TelemetryService:
        return TelemetryService(
            node.clock,
            node.metadata,
            node.clients,
            node.store.config.max_message_size,
            node.telemetry_forward,
        )

    def _admin(self, node: Node, status: BrokerStatus, progress: ConsumerProgress) -> Admin:
        return Admin(
            topics=TopicAdmin(
                runtime=node.runtime,
                store=node.store,
                metadata=node.metadata,
                meta_log=node.meta_log,
                changes=node.changes,
                offsets=node.offsets,
                pump=node.pump,
                progress=progress,
                status=status,
            ),
            groups=GroupAdmin(
                runtime=node.runtime,
                metadata=node.metadata,
                meta_log=node.meta_log,
                changes=node.changes,
                progress=progress,
                removal=node.removal,
            ),
            offsets=OffsetAdmin(
                metadata=node.metadata,
                store=node.store,
                offsets=node.offsets,
                leadership=node.leadership,
                pump=node.pump,
                pop=node.pop,
                progress=progress,
            ),
            status=status,
            door=lambda: self._door.name if self._door else "",
            settings=self._settings,
        )

    async def _open_metrics(self, node: Node) -> int:
        assert self._access is not None
        metrics = Metrics(
            runtime=node.runtime,
            store=node.store,
            replication=node.replication,
            leadership=node.leadership,
            metadata=node.metadata,
            clients=node.clients,
            sender=node.sender,
            durability=node.durability,
            pop=node.pop,
            journal=node.journal,
            timers=node.timers,
            transactions=node.transactions,
            status=_status(node),
            progress=_progress(node),
            door=lambda: self._door.statistics() if self._door else None,
            forwards=self._access.statistics,
        )
        server = MetricsServer(metrics.scrape, self.unready)
        self._stack.push_async_callback(server.stop)
        return await server.start(
            self._config.bind_address, self._config.metrics_prom_exporter_port
        )

    async def _join(self, node: Node, bound: Bound, files: MetaFiles) -> None:
        membership = Membership(
            runtime=node.runtime,
            store=node.store,
            replication=node.replication,
            leadership=node.leadership,
            metadata=node.metadata,
            cluster=node.cluster,
            addresses=(bound.client, bound.ha, bound.metrics),
        )

        def role_changed() -> None:
            membership.changed()
            if self._access is not None:
                self._access.retry_held()

        self.role.on_change = role_changed
        follow = not (
            node.leadership.is_leader
            or self._ha.ha_master_address
            or self._ha.enable_controller_mode
        )
        registrar = self._registrar = await membership.join(self._ha.cluster_token, follow)
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
                    node.loop.call_soon(node.receiving.client_gone, client_id)

        self._stack.callback(asyncio.create_task(watch()).cancel)

    def unready(self) -> str | None:
        """Why this broker should get no traffic, or None."""
        node = self._node
        if node is None or self._stopping:
            return "starting or stopping"
        if not node.store.writable and not node.store.paused:
            return node.store.refusal  # on a full disk it serves readers, and waits for room
        if node.leadership.is_leader:
            return None
        # A leader that refuses this replica is alive, too.
        refused = node.replication.refused
        return refused or (None if node.replication.leader_alive else "the leader is not heard")

    def _bound(self, client_port: int, ha_port: int, metrics_port: int) -> Bound:
        host = self._config.broker_ip1
        name = bracketed(host)
        door = self._door.name if self._door else ""
        return Bound(f"{name}:{client_port}", f"{name}:{ha_port}", f"{name}:{metrics_port}", door)


def _from_store_thread(
    loop: asyncio.AbstractEventLoop, news: Callable[[], None], _offset: int
) -> None:
    # A flush may end while the loop is being closed; its news is of no use then.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(news)


def _store_refused(node: Node, reason: str) -> None:
    """On whichever thread found it out: nothing can be written any more, or for a while (a full disk)."""
    log.error("store.refused reason=%s", reason)
    if not node.store.paused and node.replication.config.enable_controller_mode:
        with suppress(RuntimeError):
            node.loop.call_soon_threadsafe(node.replication.disk_failed, reason)


def _leader_changed(node: Node, alive: bool) -> None:
    log.info("leader.%s group=%s", "heard" if alive else "lost", node.config.broker_name)
    if alive and not node.leadership.is_leader:
        # It served while no leader existed: the new leader gets the handover.
        node.pop_roles.follow()
        node.lite.follow()


def _status(node: Node) -> BrokerStatus:
    return BrokerStatus(
        runtime=node.runtime,
        store=node.store,
        replication=node.replication,
        leadership=node.leadership,
        cluster=node.cluster,
        pump=node.pump,
    )


def _progress(node: Node) -> ConsumerProgress:
    return ConsumerProgress(
        runtime=node.runtime,
        store=node.store,
        metadata=node.metadata,
        offsets=node.offsets,
        clients=node.clients,
        pump=node.pump,
        queue_progress=node.receiving.progress,
    )
