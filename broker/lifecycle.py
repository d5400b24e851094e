"""One instance of a broker: opens the parts in order, serves, and closes them in reverse.

Order: pending work on the closed store (`ha/rejoin/pending.py`), the store (lock, recovery), topics
and groups from the log, replication, the services, the front door, metrics, registration. A failure
closes what is open and surfaces as a typed error. Promises: contradictory settings are refused
before anything is opened; nothing is served before the store is recovered; a stop finishes calls in
flight within the grace time and leaves a clean store (docs/design/message-flow.md).
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ..auth.secret_file import read_token
from ..front.access_point import AccessPoint
from ..front.clock import Clock
from ..front.config import DoorConfig
from ..front.faults import FaultTable
from ..front.metrics.http import MetricsServer
from ..front.metrics.probes import OK, Check, State
from ..front.metrics.process import LoopWatch
from ..ha.config import HaConfig
from ..ha.rejoin import pending
from ..ha.state.replica_meta import Identity, check_replica
from ..ha.upkeep import Upkeep
from ..nodes.addresses import bracketed
from ..nodes.node_links import NodeLinks
from ..nodes.setting_keys import entries
from ..store.config.store_config import StoreConfig
from ..store.format.disk import NO_SPACE
from .access.guard import Guard
from .assembly.build import assemble, set_store_host
from .assembly.parts import Broker
from .base.clock_watch import ClockWatch
from .base.config import BrokerConfig, split_addresses
from .client_port import ClientPort
from .clients.expiry import expire_clients
from .listeners import ReplicationListener, StoreListener
from .metrics.scrape import Metrics
from .role import RoleSwitch
from .routing.isolation import Isolation
from .routing.membership import Membership
from .routing.registrar import Registrar
from .sql import load_parser
from .trace.spans import stop_exporting

if TYPE_CHECKING:
    from .classic.port import ClassicPort

logger = logging.getLogger(__name__)

_FAULT_SEED = 20_240
#: Number of the next instance of this process.
_instances = itertools.count()
#: The SQL parser is loaded when the start is over; an expression before then loads it itself.
_PARSER_AFTER_S = 2.0
# Part of the grace time that calls in flight keep after a handover to another replica.
_GRACE_MIN_S = 0.5
# Missing messages that `/readyz` lists.
_GAPS_SHOWN = 20
#: A start does not wait longer for the address of a name.
_RESOLVE_S = 2.0
# Allocations between two collections of the youngest generation. A loop turn allocates thousands of
# objects without cycles; Python's default of 700 would scan them several times within a turn.
_YOUNG_OBJECTS = 10_000


class Bound(Struct, frozen=True):
    """The addresses that the instance listens on, each as HOST:PORT."""

    client: str
    ha: str
    metrics: str
    #: Name of the front door: grpcio or native.
    door: str
    #: For classic clients; empty: off.
    remoting: str = ""


class InstanceCallbacks(Struct, frozen=True):
    """Callbacks for reopening or aborting the process; each gets a reason."""

    #: Close this instance and start another on the same directory and ports.
    reopen: Callable[[str], None]
    #: End the process.
    fatal: Callable[[str], None]
    #: Release the client port and the metrics port.
    before_listening: Callable[[], Awaitable[None]]
    #: Keep settings that were changed: a configuration, and its new values by field.
    settings_changed: Callable[[Any, Mapping[str, Any]], None]


class BrokerLifecycle:
    """Starts and stops one broker instance, once, on one event loop."""

    def __init__(
        self,
        broker: BrokerConfig,
        store: StoreConfig,
        ha: HaConfig,
        door: DoorConfig,
        clock: Clock,
        *,
        links: NodeLinks,
        origins: Mapping[str, str],
        callbacks: InstanceCallbacks,
    ) -> None:
        """`origins` maps configuration keys to the source of their values."""
        self._config = broker
        self._store_config = store
        self._ha = ha
        self._door_config = door
        self._links = links
        self._clock = clock
        self._callbacks = callbacks
        self._settings = entries((broker, store, ha, door, links.tls), origins)
        self._stack = AsyncExitStack()
        self._store_events = StoreListener()
        self._events = ReplicationListener(callbacks.reopen, callbacks.fatal)
        self._broker: Broker | None = None
        self._role: RoleSwitch | None = None
        self._client_port: ClientPort | None = None
        self._classic_port: ClassicPort | None = None
        self._registrar: Registrar | None = None
        self._isolation: Isolation | None = None
        self._stopping = False
        #: Set once the instance listens, as is `bound`.
        self.metrics: Metrics | None = None
        #: Set once the instance listens.
        self.bound: Bound | None = None

    async def start(self) -> Bound:
        """Recover, open everything, register. Raises StoreError, DoorError, HaError, ValueError."""
        try:
            return await self._start()
        except BaseException as error:
            if isinstance(error, OSError) and error.errno in NO_SPACE and error.filename is None:
                error.filename = str(self._store_config.root)
            if self._client_port is not None:
                await self._client_port.door.drain(0)
            await self._stack.aclose()
            raise

    async def stop(self, grace_s: float) -> None:
        """Finish calls in flight within `grace_s`, flush and close."""
        broker = self._broker
        if self._isolation is not None:
            await self._isolation.stop()
        if broker is not None:
            begin_ns = self._clock.steady_ns()
            await broker.replication.leave(grace_s)
            used_s = (self._clock.steady_ns() - begin_ns) / 1e9
            grace_s = max(min(grace_s, _GRACE_MIN_S), grace_s - used_s)
        self._stopping = True
        if self._registrar is not None:
            await self._registrar.stop()
        if self._client_port is not None and broker is not None:
            drains = [self._client_port.door.drain(grace_s)]
            if self._classic_port is not None:
                drains.append(self._classic_port.drain(grace_s))
            draining = asyncio.gather(*drains)
            # The door accepts no further calls; open long polls are answered at once.
            await asyncio.sleep(0)
            broker.pop_roles.close()
            broker.receiving.close()
            broker.journal.flush_all()
            await draining
            broker.timers.halt()
            broker.levels.halt()
            broker.transactions.finish()
            broker.pump.close()
        await self._stack.aclose()
        logger.info(
            "broker.stopped name=%s id=%d", self._config.broker_name, self._config.broker_id
        )

    @property
    def broker(self) -> Broker:
        """The parts, for tests and benchmarks in the same process."""
        assert self._broker is not None, "the broker is not started"
        return self._broker

    @property
    def role(self) -> RoleSwitch:
        """The role switch, for tests."""
        assert self._role is not None, "the broker is not started"
        return self._role

    @property
    def access(self) -> AccessPoint:
        """The access point, once the client port is open."""
        assert self._client_port is not None, "the client port is not open"
        return self._client_port.access

    def checks(self) -> dict[str, Check]:
        """Return the checks of /readyz: a failed one means that it should get no traffic."""
        broker = self._broker
        if broker is None or self._stopping:
            return {"process": Check("failed", "starting or stopping")}
        store, leads = broker.store, broker.leadership.is_leader
        # With a full disk it serves reads.
        refused: State = "degraded" if store.paused else "failed"
        writes = broker.leadership.write_refusal() if leads else None
        gaps = [f"message missing: {gap}" for gap in [*store.blocks.gaps][:_GAPS_SHOWN]]
        return {
            "process": OK,
            "store": OK if store.writable else Check(refused, store.refusal),
            "replication": OK if leads else _following(broker),
            "writes": Check.of(writes, "degraded"),
            "messages": Check.of("; ".join(gaps), "degraded"),
        }

    # -- start --------------------------------------------------------------------------------

    async def _start(self) -> Bound:
        faults = FaultTable(_FAULT_SEED, self._clock) if self._config.test_hooks else None
        await self._run_pending()
        broker = self._broker = assemble(
            self._config,
            self._store_config,
            self._ha,
            self._clock,
            door=self._door_config,
            links=self._links,
            faults=faults,
            events=(self._store_events, self._events),
            stack=self._stack,
        )
        role = self._role = RoleSwitch(broker, self._callbacks.fatal)
        self._store_events.connect(broker)
        self._events.connect(broker, role)
        ha_port = await self._open_store(broker)
        self._stack.push_async_callback(role.close)
        await self._open_parts(broker)
        role.open()
        await self._callbacks.before_listening()
        client = ClientPort(
            broker,
            links=self._links,
            door_config=self._door_config,
            settings=self._settings,
            settings_changed=self._callbacks.settings_changed,
            faults=faults,
        )
        client_port = await client.open(self._stack, role.subscribe_leader_gone)
        self._client_port = client
        metrics_port = await self._open_metrics(broker, client)
        set_store_host(broker, self._config.broker_ip1, client_port)
        remoting = await self._open_classic(broker, client.guard)
        bound = self._bound(client_port, ha_port, metrics_port, client.door.name)
        bound = self.bound = replace(bound, remoting=remoting)
        await self._join(broker, role, bound)
        upkeep = Upkeep(broker.replication, broker.store, lambda: bound.client)
        upkeep.start()
        self._stack.push_async_callback(upkeep.stop)
        # From now on this replica may be elected.
        broker.replication.announce(client=bound.client, ha=bound.ha, metrics=bound.metrics)
        self._isolation = Isolation(
            lambda: broker.replication.heard_ns,
            client.access,
            client.door,
            broker.cluster,
            bound.client,
        )
        self._expire_clients(broker)
        _freeze_heap()
        self._load_parser_later()
        logger.info(
            "broker.started name=%s id=%d role=%s client=%s ha=%s metrics=%s remoting=%s door=%s"
            " topics=%d",
            self._config.broker_name,
            self._config.broker_id,
            "leader" if broker.leadership.is_leader else "follower",
            bound.client,
            bound.ha,
            bound.metrics,
            bound.remoting or "off",
            bound.door,
            len(broker.metadata.topics),
        )
        return bound

    def _load_parser_later(self) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(_PARSER_AFTER_S, loop.run_in_executor, None, load_parser)
        self._stack.callback(timer.cancel)

    async def _run_pending(self) -> None:
        """Do the work that the last instance left for the closed store, if it is this group's.

        Raises OSError, StoreError, HaError.
        """
        root, config = self._store_config.root, self._config
        identity = Identity(config.broker_cluster_name, config.broker_name, config.broker_id)
        check_replica(root / "ha", identity)
        if (root / "ha" / pending.PENDING_NAME).exists():
            # Archives tails and truncates files: not on the event loop.
            steps = await asyncio.to_thread(pending.run, root, self._store_config)
            for step in steps:
                logger.warning("broker.pending %s", step)

    async def _open_store(self, broker: Broker) -> int:
        """Start the store, its metadata and replication; returns the replication port."""
        broker.offsets.load()
        broker.offsets.load_recent()
        broker.store.start()
        self._stack.push_async_callback(self._close_files, broker)
        ha_port = await broker.replication.start()
        self._stack.push_async_callback(broker.replication.stop)
        # The store's own close flushes once more, after the listeners have stopped.
        self._stack.callback(self._store_events.store_closes)
        broker.meta_files.import_into(
            broker.meta_log,
            write=broker.leadership.is_leader,
            elected=self._ha.enable_controller_mode,
        )
        return ha_port

    async def _close_files(self, broker: Broker) -> None:
        broker.metadata.subscribe(None)
        await broker.offsets.close()
        await broker.meta_files.close()

    async def _open_parts(self, broker: Broker) -> None:
        """Open everything behind the services. Raises StoreError, ConfigFileError, OSError."""
        stack = self._stack
        broker.offsets.start()
        broker.pop.open(stack)
        broker.lite.open(stack)
        broker.runtime.clock_listeners.add(broker.lite.clock_moved)
        stack.push_async_callback(broker.lite_fanout.close)
        broker.pump.schedule()
        if broker.leadership.is_leader:
            broker.users.lead()
        broker.maintenance.start()
        stack.callback(broker.maintenance.stop)
        clock_watch = ClockWatch(broker.runtime, broker.store)
        clock_watch.start()
        stack.callback(clock_watch.stop)
        self._start_delays(broker)
        await self._open_journal(broker)
        self._start_transactions(broker)
        broker.cluster.watchers.append(broker.telemetry_forward.cluster_changed)
        stack.push_async_callback(broker.telemetry_forward.close)
        if broker.span_provider is not None:
            stack.push_async_callback(stop_exporting, broker.span_provider)
        if broker.trace is not None:
            stack.callback(broker.trace.flush)
            if broker.leadership.is_leader:
                broker.trace.lead()

    def _start_delays(self, broker: Broker) -> None:
        """Open the timers and the delay levels."""
        broker.store.add_close_listener(broker.timers.finish)
        self._stack.push_async_callback(broker.timers.stop)
        broker.store.add_close_listener(broker.levels.finish)
        self._stack.push_async_callback(broker.levels.stop)
        if broker.leadership.is_leader:
            broker.timers.lead()
            broker.levels.lead()

    async def _open_journal(self, broker: Broker) -> None:
        """Recover the pop journal; it needs the timers."""
        broker.timers.add_filter(broker.journal.topic, broker.journal.wants)
        broker.runtime.clock_listeners.add(broker.journal.flush_soon)
        self._stack.callback(broker.journal.stop)
        await broker.journal.open(broker.pop.core)

    def _start_transactions(self, broker: Broker) -> None:
        """Load the counts and, on a leader, recover the table."""
        broker.transactions.file.load()
        broker.runtime.clock_listeners.add(broker.transactions.clock_moved)
        self._stack.push_async_callback(broker.transactions.close)
        if broker.leadership.is_leader:
            broker.transactions.lead()

    async def _open_metrics(self, broker: Broker, client: ClientPort) -> int:
        watch = LoopWatch(self._clock.steady_ns)
        watch.start()
        self._stack.callback(watch.stop)
        metrics = self.metrics = Metrics(
            runtime=broker.runtime,
            store=broker.store,
            replication=broker.replication,
            leadership=broker.leadership,
            metadata=broker.metadata,
            clients=broker.clients,
            sender=broker.sender,
            quotas=broker.quotas,
            durability=broker.durability,
            pop=broker.pop,
            journal=broker.journal,
            timers=broker.timers,
            transactions=broker.transactions,
            status=broker.status,
            progress=broker.progress,
            door=client.door.statistics,
            forwards=client.access.statistics,
            watch=watch,
        )
        token = read_token(self._config.metrics_bearer_token_file)
        server = MetricsServer(metrics.scrape, self.checks, self._clock, token)
        self._stack.push_async_callback(server.stop)
        return await server.start(
            self._config.bind_address, self._config.metrics_prom_exporter_port
        )

    async def _open_classic(self, broker: Broker, guard: Guard | None) -> str:
        """Serve classic clients if there is a port for them; return its address, or empty."""
        if not self._config.remoting_listen_port:
            return ""
        assert self._client_port is not None, "the client port is not open"
        from .classic.port import ClassicPort  # a tenth of the broker's modules

        classic = self._classic_port = ClassicPort(
            broker,
            self._door_config,
            admin=self._client_port.admin,
            audit=self._client_port.audit,
            guard=guard,
            links=self._links,
        )
        address = await classic.open(self._stack, self._client_port.handover)
        ((_, port),) = split_addresses(address)
        host, port = split_addresses(self._config.remoting_advertised(port))[0]
        set_store_host(broker, await _resolved(host), port)
        return address

    async def _join(self, broker: Broker, role: RoleSwitch, bound: Bound) -> None:
        """Register with the nameservers, and again after every change."""
        membership = Membership(
            runtime=broker.runtime,
            store=broker.store,
            replication=broker.replication,
            leadership=broker.leadership,
            metadata=broker.metadata,
            cluster=broker.cluster,
            addresses=(bound.client, bound.ha, bound.metrics),
            remoting=bound.remoting,
        )
        role.subscribe(membership.changed)
        self._events.register_with(membership)
        role.subscribe(self.access.retry_held)
        follow = not (
            broker.leadership.is_leader
            or self._ha.ha_master_address
            or self._ha.enable_controller_mode
        )
        registrar = self._registrar = await membership.join(self._links, follow)
        self._stack.push_async_callback(registrar.stop)

        def tables_changed() -> None:
            broker.meta_files.changed()
            registrar.changed()

        broker.metadata.subscribe(tables_changed)
        tables_changed()

    def _expire_clients(self, broker: Broker) -> None:
        expiry = expire_clients(
            broker.clients,
            self._clock.steady_ns,
            self._config.channel_expired_timeout,
            broker.receiving.client_gone,
        )
        self._stack.callback(asyncio.create_task(expiry).cancel)

    def _bound(self, client_port: int, ha_port: int, metrics_port: int, door: str) -> Bound:
        name = bracketed(self._config.broker_ip1)
        return Bound(f"{name}:{client_port}", f"{name}:{ha_port}", f"{name}:{metrics_port}", door)


def _following(broker: Broker) -> Check:
    """Check a follower's leader; one that refuses this replica is alive, too."""
    refused = broker.replication.refused
    if refused or broker.replication.leader_alive:
        return Check.of(refused)
    return Check("failed", "the leader is not reachable")


async def _resolved(host: str) -> str:
    """Return an address of a host, for records, which hold no names; a name that is not known
    stays."""
    loop = asyncio.get_running_loop()
    try:
        found = await asyncio.wait_for(
            loop.getaddrinfo(host, None, type=socket.SOCK_STREAM), _RESOLVE_S
        )
    except (OSError, TimeoutError):
        return host
    return str(found[0][4][0])


def _freeze_heap() -> None:
    """Exclude what exists now from garbage collection; it stays until the instance stops.

    Objects of an earlier instance are frozen too and contain cycles: collect them first. The first
    instance of a process saves this pass over all that the process has imported (30 ms).
    """
    if next(_instances):
        gc.unfreeze()
        gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)
