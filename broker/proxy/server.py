"""`cometmq proxy`: a stateless access point for any number of broker groups.

It reads the cluster's state from the nameservers and forwards every request to its owner; during an
election sends are held until shortly before their deadline (`front/access_point.py`). Any number of
proxies may share one name or port: clients get that address (`advertise=echo`), so they need no
route to the brokers. The proxy keeps only open streams and held requests, both bounded; responses
of brokers are forwarded unchanged.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from msgspec import Struct

from ...auth.secret_file import read_token
from ...front.access_point import AccessPoint
from ...front.channels import ChannelPool
from ...front.clock import Clock
from ...front.door import Door, choose_door
from ...front.metrics.families import Families, page_of
from ...front.metrics.http import MetricsServer
from ...front.metrics.probes import OK, Check
from ...front.metrics.process import LoopWatch, kept_family
from ...front.shared.handover import Handover
from ...nodes.addresses import bracketed, host_port
from ...nodes.node_links import NodeLinks
from ...remoting.ports import check_remoting, shares_port
from ..base.cluster_view import ClusterView
from ..clients.expiry import expire_clients
from ..clients.registry import ClientRegistry
from .base.owners import Owners
from .base.watch import ClusterWatch
from .broker_queries import BrokerQueries
from .classic.port import ClassicCounts, ClassicPort
from .table import table
from .telemetry import ProxyTelemetry

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client.metrics_core import Metric

    from ...front.config import DoorConfig
    from .base.config import ProxyConfig

logger = logging.getLogger(__name__)

_FIRST_ANSWERS_S = 1.0


class ProxyBound(Struct, frozen=True):
    """The addresses on which the process listens, as HOST:PORT."""

    client: str
    metrics: str
    door: str
    #: Of classic clients; empty if they are not served.
    remoting: str = ""


class ProxyServer:
    """The proxy process; start and stop it once, on one event loop."""

    def __init__(
        self,
        config: ProxyConfig,
        door: DoorConfig,
        clock: Clock | None = None,
        *,
        links: NodeLinks | None = None,
    ) -> None:
        """Raises ValueError for contradictory settings."""
        self._config = config
        check_remoting(config.remoting_listen_port)
        self._links = links or NodeLinks(config.cluster_token)
        self._links.check_addresses(
            host_port(host, port) for host, port in config.namesrv_addresses()
        )
        self._door_config = door
        self._clock = clock or Clock()
        self._stack = AsyncExitStack()
        self._door: Door | None = None
        self._clients: ClientRegistry | None = None
        self._watch: ClusterWatch | None = None
        self._access: AccessPoint | None = None
        self._classic: ClassicPort | None = None
        self._leaders: dict[str, str] = {}
        self._stopping = False
        self._loop_watch = LoopWatch(self._clock.steady_ns)
        self._families: Families | None = None

    async def start(self) -> ProxyBound:
        """Fetch the cluster's state and serve. Raises DoorError, ValueError, OSError."""
        try:
            return await self._start()
        except BaseException:
            if self._door is not None:
                await self._door.drain(0)
            await self._stack.aclose()
            raise

    async def stop(self, grace_s: float) -> None:
        """Finish requests in flight and close."""
        self._stopping = True
        if self._door is not None:
            draining = [self._door.drain(grace_s)]
            if self._classic is not None:
                draining.append(self._classic.drain(grace_s))
            await asyncio.gather(*draining)
        await self._stack.aclose()
        logger.info("proxy.stopped")

    async def _start(self) -> ProxyBound:
        config, clock = self._config, self._clock
        view = ClusterView("", clock.steady_ns)
        watch = self._watch = ClusterWatch(
            view, config.namesrv_addresses(), self._links, config.proxy_poll_interval
        )
        self._stack.push_async_callback(watch.stop)
        clients = ClientRegistry(config.channel_expired_timeout, config.max_clients)
        self._clients = clients
        access = self._access = self._open(clients, view, watch)
        view.watchers.append(self._cluster_changed)
        await watch.start(_FIRST_ANSWERS_S)
        shared = shares_port(config.remoting_listen_port, config.grpc_server_port)
        handover = Handover() if shared else None
        make_door = choose_door(self._door_config, self._links, handover)
        self._door = make_door(access.services, clock)
        port = await self._door.start(config.bind_address, config.grpc_server_port)
        remoting = await self._open_classic(watch, handover)
        self._families = Families("", "proxy", f"{socket.gethostname()}:{port}")
        self._loop_watch.start()
        self._stack.callback(self._loop_watch.stop)
        token = read_token(config.metrics_bearer_token_file)
        server = MetricsServer(self._scrape, self.checks, self._clock, token)
        self._stack.push_async_callback(server.stop)
        metrics = await server.start(config.bind_address, config.metrics_prom_exporter_port)
        expiry = expire_clients(
            clients, clock.steady_ns, config.channel_expired_timeout, self._telemetry.left
        )
        self._stack.callback(asyncio.create_task(expiry).cancel)
        host = "127.0.0.1" if config.bind_address in ("0.0.0.0", "") else config.bind_address
        name = bracketed(host)
        bound = ProxyBound(
            f"{name}:{port}",
            f"{name}:{metrics}",
            self._door.name,
            f"{name}:{remoting}" if remoting else "",
        )
        logger.info(
            "proxy.started client=%s metrics=%s door=%s remoting=%s",
            bound.client,
            bound.metrics,
            bound.door,
            bound.remoting or "off",
        )
        return bound

    async def _open_classic(self, watch: ClusterWatch, handover: Handover | None) -> int:
        """Open the port of classic clients; return it, 0 without one. Raises DoorError."""
        config = self._config
        if not config.remoting_listen_port:
            return 0
        self._classic = ClassicPort(
            owners=self._owners,
            watch=watch,
            config=config,
            door=self._door_config,
            clock=self._clock,
            links=self._links,
        )
        return await self._classic.open(self._stack, handover)

    def _open(self, clients: ClientRegistry, view: ClusterView, watch: ClusterWatch) -> AccessPoint:
        """Create the access point, which the proxy's own handlers use to call brokers."""
        pool = ChannelPool(self._door_config, self._links)
        self._stack.push_async_callback(pool.close)

        def failing(address: str) -> bool:
            return pool.failing(address) or (
                self._access is not None and self._access.failing(address)
            )

        owners = self._owners = Owners(view, watch, failing)
        telemetry = self._telemetry = ProxyTelemetry(
            clock=self._clock,
            loop=asyncio.get_running_loop(),
            clients=clients,
            cluster=view,
            config=self._door_config,
            owners=owners,
            links=self._links,
        )
        self._stack.push_async_callback(telemetry.close)
        asking = BrokerQueries(
            owners,
            watch,
            pool,
            self._clock,
            self._config.advertise_list(),
            telemetry,
            self._links,
            authentication=self._config.authentication_enabled,
        )
        self._stack.push_async_callback(asking.close)
        access = AccessPoint(
            table(asking, telemetry, self._door_config.front_max_receive_message_size),
            self._door_config,
            self._clock,
            owners.locate,
            owners.unreachable,
            links=self._links,
        )
        self._stack.push_async_callback(access.close)
        return access

    def _cluster_changed(self) -> None:
        """Handle a change of leaders: forward unanswered and waiting requests to the new owners."""
        assert self._access is not None
        leaders = {
            group.name: leader.client
            for group in self._owners.groups()
            if (leader := group.leader()) is not None
        }
        for name, address in self._leaders.items():
            if leaders.get(name, address) != address:
                self._access.owner_gone(address)
        self._leaders = leaders
        self._telemetry.cluster_changed()
        if self._classic is not None:
            self._classic.cluster_changed()
        self._access.retry_held()

    def checks(self) -> dict[str, Check]:
        """Return the checks of /readyz."""
        if self._stopping or self._watch is None:
            return {"process": Check("failed", "starting or stopping")}
        known = bool(self._owners.groups())
        reason = "no broker known from any nameserver yet"
        return {"process": OK, "brokers": OK if known else Check("failed", reason)}

    def _scrape(self) -> Callable[[], bytes]:
        families = self.metric_families()
        return lambda: page_of(families)

    def metric_families(self) -> list[Metric]:
        """Read all metrics; the proxy is started."""
        assert self._access is not None
        assert self._clients is not None
        assert self._watch is not None
        assert self._door is not None
        assert self._families is not None
        families = self._families
        forwards = self._access.statistics
        times = self._door.statistics().times
        assert times is not None
        classic = self._classic
        counts = classic.counts if classic is not None else ClassicCounts()
        totals = (
            ("forwarded", "Calls passed on to a broker.", forwards.forwarded),
            ("held", "Sends that waited for a leader.", forwards.held),
            ("held_in_vain", "Sends refused before their deadline.", forwards.held_in_vain),
            (
                "remoting_forwarded",
                "Requests of classic clients passed on to a broker or a nameserver.",
                counts.forwarded,
            ),
            (
                "remoting_unreachable",
                "Requests of classic clients refused because no replica could be reached.",
                counts.unreachable,
            ),
        )
        now = (
            ("holding_bytes", "Bytes of the sends that wait.", forwards.holding_bytes),
            ("clients", "Clients.", len(self._clients)),
            ("telemetry_links", "Telemetry streams to brokers.", len(self._telemetry)),
            (
                "remoting_connections",
                "Connections of classic clients.",
                classic.connections if classic is not None else 0,
            ),
            (
                "remoting_upstreams",
                "Connections to brokers on behalf of classic clients.",
                classic.upstreams if classic is not None else 0,
            ),
            ("groups", "Broker groups.", len(self._owners.groups())),
            ("nameservers", "Nameservers that answered.", len(self._watch.answered)),
        )
        return [
            families.gauge(
                "rocketmq_proxy_up",
                "1 while the process runs.",
                [(("cluster",), 1)],
                ("proxy_mode",),
            ),
            *(
                families.counter(f"cometmq_proxy_{name}", text, [((), number)])
                for name, text, number in totals
            ),
            *(families.one(f"cometmq_proxy_{name}", text, number) for name, text, number in now),
            times.family(families),
            *self._loop_watch.families(families),
            kept_family(families, self._links.kept),
        ]
