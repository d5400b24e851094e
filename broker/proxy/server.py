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
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...front.access_point import AccessPoint
from ...front.channels import ChannelPool
from ...front.clock import Clock
from ...front.door import Door, choose_door
from ...proto.addresses import bracketed, host_port
from ...proto.node_links import NodeLinks
from ..clients.expiry import expire_clients
from ..clients.registry import ClientRegistry
from ..metrics.http import MetricsServer, read_token
from ..routing.cluster_view import ClusterView
from ..services import AROUND_BODY_BYTES
from .broker_queries import BrokerQueries
from .owners import Owners
from .table import table
from .telemetry import ProxyTelemetry
from .watch import ClusterWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...front.config import DoorConfig
    from .config import ProxyConfig

logger = logging.getLogger(__name__)

_FIRST_ANSWERS_S = 1.0


@dataclass(frozen=True, slots=True)
class ProxyBound:
    """The addresses on which the process listens, as HOST:PORT."""

    client: str
    metrics: str
    door: str


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
        self._leaders: dict[str, str] = {}
        self._stopping = False

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
            await self._door.drain(grace_s)
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
        self._door = choose_door(self._door_config, self._links)(access.services, clock)
        port = await self._door.start(config.bind_address, config.grpc_server_port)
        token = read_token(config.metrics_bearer_token_file)
        server = MetricsServer(self._scrape, self.unready, token=token)
        self._stack.push_async_callback(server.stop)
        metrics = await server.start(config.bind_address, config.metrics_prom_exporter_port)
        expiry = expire_clients(
            clients, clock.steady_ns, config.channel_expired_timeout, self._telemetry.left
        )
        self._stack.callback(asyncio.create_task(expiry).cancel)
        host = "127.0.0.1" if config.bind_address in ("0.0.0.0", "") else config.bind_address
        name = bracketed(host)
        bound = ProxyBound(f"{name}:{port}", f"{name}:{metrics}", self._door.name)
        logger.info(
            "proxy.started client=%s metrics=%s door=%s", bound.client, bound.metrics, bound.door
        )
        return bound

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
        largest = self._door_config.front_max_receive_message_size
        access = AccessPoint(
            table(asking, telemetry, largest - AROUND_BODY_BYTES),
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
        self._access.retry_held()

    def unready(self) -> str | None:
        """Return why this proxy is not ready, or None."""
        if self._stopping or self._watch is None:
            return "starting or stopping"
        if not self._owners.groups():
            return "no broker known from any nameserver yet"
        return None

    def _scrape(self) -> Callable[[], bytes]:
        assert self._access is not None
        assert self._clients is not None
        assert self._watch is not None
        forwards = self._access.statistics
        rows = (
            ("cometmq_proxy_forwarded_total", "counter", forwards.forwarded),
            ("cometmq_proxy_held_total", "counter", forwards.held),
            ("cometmq_proxy_held_in_vain_total", "counter", forwards.held_in_vain),
            ("cometmq_proxy_holding_bytes", "gauge", forwards.holding_bytes),
            ("cometmq_proxy_clients", "gauge", len(self._clients)),
            ("cometmq_proxy_telemetry_links", "gauge", len(self._telemetry)),
            ("cometmq_proxy_groups", "gauge", len(self._owners.groups())),
            ("cometmq_proxy_nameservers", "gauge", len(self._watch.answered)),
        )
        text = "".join(f"# TYPE {name} {kind}\n{name} {number}\n" for name, kind, number in rows)
        return text.encode
