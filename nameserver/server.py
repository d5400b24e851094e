"""Nameserver process: the route tables behind a gRPC port, and the expiry of dead replicas.

One port serves `cometmq.v1.NameServer` to brokers and `QueryRoute` to clients. Brokers are admitted
as nodes (`nodes/node_links.py`). A refused registration is a gRPC failure whose text is a sentence
for the broker's operator. The tables are in memory (`routes.py`); the names of known groups and the
in-sync sets of static groups are in files.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..auth.secret_file import read_token
from ..front.clock import Clock
from ..front.config import DoorConfig
from ..front.door import check_certificates, choose_door
from ..front.metrics.families import Families, page_of
from ..front.metrics.http import MetricsServer
from ..front.metrics.probes import OK, Check
from ..front.metrics.process import LoopWatch
from ..front.service import Kind, Method, status_failure
from ..front.shared.handover import Handover
from ..ha.core.group_state import GroupState
from ..nodes.addresses import host_port
from ..nodes.node_links import NodeLinks
from ..nodes.setting_keys import entries
from ..nodes.tls_config import TlsConfig
from ..proto import paths, v1, v2
from ..proto.errors import RpcFailure, WireError, absent_topic
from ..proto.request_limits import RequestLimits
from ..proto.route_queues import check_repeated
from ..remoting.ports import check_remoting, shares_port
from .classic.kv import KvConfig
from .config import NameserverConfig
from .controller_host import make_controller_host
from .known_groups import InSyncSets, KnownGroups
from .messages import decision_from, group_route, registration_from, replica_from
from .metrics import NameserverCounts, nameserver_families
from .node_method import node_method
from .query_route import check_topic, message_queues
from .routes import RouteTable
from .rows import DuplicateReplica, GroupAliveError, InSyncSet, RegistrationRefused

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from ..front.context import RequestContext
    from ..remoting.connection import Handler
    from ..remoting.server import RemotingServer

logger = logging.getLogger(__name__)

_NS_PER_MS = 1_000_000
_ALREADY_EXISTS = 6
_FAILED_PRECONDITION = 9
_UNAVAILABLE = 14
# Versions of one run start at its wall clock and so never repeat those of an earlier run: a run
# would need 2**20 changes per millisecond.
_VERSION_SHIFT = 20
# A complete topic table: 100,000 topics (the default of `maxTopics`) with names of 127 bytes take
# 15 MB; an operator may double that limit. A stranger's request is in memory twice until it is
# refused.
_TABLE_BYTES = 32 << 20
# A topic, a namespace and the addresses of one endpoint.
_QUERY_BYTES = 64 << 10


class NameserverServer:
    """One nameserver; `start` opens it, `stop` closes it."""

    def __init__(
        self,
        config: NameserverConfig,
        clock: Clock | None = None,
        door: DoorConfig | None = None,
        *,
        tls: TlsConfig | None = None,
    ) -> None:
        """Raises ValueError for contradictory settings."""
        self._config = config
        check_remoting(config.remoting_listen_port)
        links = self.links = NodeLinks(config.cluster_token, tls)
        links.check_addresses(config.peers())
        door = door or DoorConfig()
        check_certificates(door, links)
        self._clock = clock or Clock()
        self._known = KnownGroups(config.namesrv_data_dir)
        self._known_names: frozenset[str] = frozenset()
        self._sets = InSyncSets(config.namesrv_data_dir)
        self._table = self._new_table()
        self._controller_host = (
            make_controller_host(config, self._clock, self._on_state, links)
            if config.controller
            else None
        )
        shared = shares_port(config.remoting_listen_port, config.listen_port)
        self._handover = Handover() if shared else None
        make_door = choose_door(door.accepting(_TABLE_BYTES), links, self._handover)
        self._door = make_door(self._services(), self._clock)
        self._kv = KvConfig(config.namesrv_data_dir)
        self._remoting = self._make_remoting(door, links) if config.remoting_listen_port else None
        #: Port of the remoting protocol, once started; 0: off.
        self.remoting_port = 0
        self._scan_task: asyncio.Task[None] | None = None
        self._counts = NameserverCounts()
        self._watch = LoopWatch(self._clock.steady_ns)
        self._metrics: MetricsServer | None = None
        self._families = Families("", "nameserver", "")
        #: HOST:PORT of /metrics; empty without one.
        self.metrics_address = ""

    async def start(self) -> str:
        """Open the port; returns HOST:PORT.

        Raises PortInUseError, DirectoryLockedError, OSError, ValueError.
        """
        try:
            self._known_names = self._known.open()
            self._table = self._new_table()
            self._sets.open()
            self._kv.open()
            if self._controller_host is not None:
                self._controller_host.open()
            port = await self._door.start(self._config.bind_address, self._config.listen_port)
            await self._start_remoting()
            await self._open_metrics(port)
        except BaseException:
            self._known.close()
            raise
        self._scan_task = asyncio.get_running_loop().create_task(self._scan())
        host = self._config.bind_address
        address = host_port(host, port)
        if self._controller_host is not None:
            await self._controller_host.start(address)
        logger.info(
            "nameserver.started address=%s remoting=%d known_groups=%d controller=%s",
            address,
            self.remoting_port,
            len(self._known_names),
            self._config.controller,
        )
        return address

    async def stop(self, grace_s: float) -> None:
        """Finish calls in progress within the grace time, and close."""
        if self._scan_task is not None:
            self._scan_task.cancel()
            await asyncio.gather(self._scan_task, return_exceptions=True)
            self._scan_task = None
        if self._metrics is not None:
            await self._metrics.stop()
        self._watch.stop()
        if self._controller_host is not None:
            await self._controller_host.stop()
        if self._remoting is not None:
            await self._remoting.drain(grace_s)
        await self._door.drain(grace_s)
        self._sets.close()
        self._known.close()
        logger.info("nameserver.stopped")

    async def _open_metrics(self, port: int) -> None:
        """Open the port of /metrics if one is set. Raises DoorError, ValueError, OSError."""
        config = self._config
        if config.namesrv_metrics_port < 0:
            return
        self._families = Families("", "nameserver", host_port(socket.gethostname(), port))
        token = read_token(config.metrics_bearer_token_file)
        server = MetricsServer(self._scrape, self.checks, self._clock, token)
        bound = await server.start(config.bind_address, config.namesrv_metrics_port)
        self._metrics = server
        self._watch.start()
        self.metrics_address = host_port(config.bind_address, bound)

    @property
    def remoting_address(self) -> str:
        """HOST:PORT of the remoting protocol; empty: off."""
        port = self.remoting_port
        return host_port(self._config.bind_address, port) if port else ""

    @property
    def remoting_connections(self) -> int:
        """Number of open connections of classic clients."""
        return self._remoting.connections if self._remoting is not None else 0

    def metric_families(self) -> "list[Metric]":
        """Read all metrics."""
        host = self._controller_host
        return nameserver_families(
            groups=self._table.groups(),
            absent=self._table.absent(),
            counts=self._counts,
            door=self._door.statistics(),
            controller=None if host is None else host.controller,
            watch=self._watch,
            kept=self.links.kept,
            families=self._families,
        )

    def _scrape(self) -> Callable[[], bytes]:
        families = self.metric_families()
        return lambda: page_of(families)

    def checks(self) -> dict[str, Check]:
        """Return the checks of /readyz."""
        ready = self._table.ready(self._clock.steady_ns())
        return {
            "routes": OK if ready else Check("failed", "waiting for the groups of the last run")
        }

    async def _start_remoting(self) -> None:
        """Open the port of classic clients, if there is one. Raises PortInUseError."""
        config = self._config
        if self._remoting is None:
            return
        if self._handover is not None:
            self._remoting.share(self._handover)
            self.remoting_port = config.remoting_listen_port
            return
        try:
            self.remoting_port = await self._remoting.start(
                config.bind_address, config.remoting_listen_port
            )
        except BaseException:
            await self._door.drain(0)
            raise

    def _make_remoting(self, door: DoorConfig, links: NodeLinks) -> "RemotingServer":
        from ..remoting.server import RemotingServer

        return RemotingServer(self._classic_handlers(), door, self._clock, links)

    def _classic_handlers(self) -> "dict[int, Handler]":
        from .classic.admin import ClassicAdmin
        from .classic.routes import ClassicRoutes

        def table() -> RouteTable:
            return self._table

        ordered = self._kv if self._config.order_message_enable else None
        routes = ClassicRoutes(table, self._clock.steady_ns, ordered)
        admin = ClassicAdmin(
            table,
            self._kv,
            entries((self._config,), {}),
            local_changes=bool(self._config.cluster_token),
        )
        if self._config.authentication_enabled:
            # Signatures cannot be checked here, as there are no users: clients get their routes.
            return routes.handlers(of_clients=True)
        return {**routes.handlers(), **admin.handlers()}

    def _new_table(self) -> RouteTable:
        config = self._config
        return RouteTable(
            expiry_ns=config.broker_not_active_timeout * _NS_PER_MS,
            retention_ns=config.dead_member_retention * _NS_PER_MS,
            first_version=max(1, self._clock.wall_ms()) << _VERSION_SHIFT,
            known_groups=self._known_names,
            ready_at_ns=self._clock.steady_ns() + config.wait_for_known_groups * _NS_PER_MS,
            stored_set=self._sets.of,
        )

    def _services(self) -> dict[str, Method]:
        links = self.links
        register, query = v1.RegisterRequest, v2.QueryRouteRequest
        cluster, unregister = v1.GetClusterRequest, v1.UnregisterRequest
        methods = (
            node_method(
                paths.REGISTER, register, v1.RegisterResponse, self.register, links, _TABLE_BYTES
            ),
            node_method(
                paths.UNREGISTER, unregister, v1.UnregisterResponse, self.unregister, links
            ),
            node_method(paths.GET_CLUSTER, cluster, v1.GetClusterResponse, self.get_cluster, links),
            node_method(
                paths.FORGET_GROUP,
                v1.ForgetGroupRequest,
                v1.ForgetGroupResponse,
                self.forget_group,
                links,
                fail=status_failure(v1.ForgetGroupResponse),
            ),
            Method(
                paths.QUERY_ROUTE,
                Kind.UNARY,
                query.FromString,
                self.query_route,
                status_failure(v2.QueryRouteResponse),
                request_bytes_max=_QUERY_BYTES,
                limits=RequestLimits(query),
            ),
        )
        deciding = self._controller_host.methods() if self._controller_host is not None else []
        return {method.path: method for method in (*methods, *deciding)}

    def _on_state(self, state: GroupState) -> None:
        """Adopt a committed group state in the routes."""
        self._table.state_decided(decision_from(state))

    def register(self, request: v1.RegisterRequest, ctx: "RequestContext") -> Any:
        """Handle a broker's registration or heartbeat; return the response, or a task of it while
        an in-sync set is written."""
        registration = registration_from(request)
        replica = registration.replica
        try:
            answer = self._table.register(registration, self._clock.steady_ns())
        except RegistrationRefused as refusal:
            self._counts.members["refused"] += 1
            logger.warning(
                "registration.refused group=%s broker_id=%d address=%s reason=%s",
                replica.group,
                replica.broker_id,
                registration.addresses.client,
                refusal,
            )
            raise RpcFailure(_grpc_code(refusal), str(refusal)) from None
        self._counts.members["registered"] += 1
        if answer.changed:
            logger.info(
                "member.registered group=%s broker_id=%d role=%s epoch=%d address=%s topics=%d",
                replica.group,
                replica.broker_id,
                registration.role.value,
                registration.epoch,
                registration.addresses.client,
                len(registration.topics),
            )
            self._remember(replica.group)
        response = v1.RegisterResponse(need_full=answer.need_full, cluster_version=answer.version)
        in_sync = self._table.in_sync(replica.group) if registration.in_sync is not None else None
        if in_sync is None or in_sync == self._sets.of(replica.group):
            return response
        return asyncio.get_running_loop().create_task(
            self._once_durable(replica.group, in_sync, response)
        )

    async def _once_durable(
        self, group: str, in_sync: InSyncSet, response: v1.RegisterResponse
    ) -> v1.RegisterResponse:
        """Return the response once the in-sync set is on disk."""
        try:
            await self._sets.put(group, in_sync)
        except OSError as error:
            text = f"the in-sync set of {group} cannot be stored: {error}"
            logger.warning("in_sync_set.not_saved group=%s error=%s", group, error)
            raise RpcFailure(_UNAVAILABLE, text) from error
        return response

    def unregister(
        self, request: v1.UnregisterRequest, ctx: "RequestContext"
    ) -> v1.UnregisterResponse:
        """Handle the stop of a broker."""
        replica = replica_from(request.replica)
        taken = self._table.unregister(replica, request.registration_seq)
        self._counts.members["unregistered"] += taken
        logger.info(
            "member.unregistered group=%s broker_id=%d taken=%s",
            replica.group,
            replica.broker_id,
            taken,
        )
        return v1.UnregisterResponse()

    def get_cluster(
        self, request: v1.GetClusterRequest, ctx: "RequestContext"
    ) -> v1.GetClusterResponse:
        """Return the tables, unless the caller has this version already."""
        version = self._table.version
        if request.known_version == version:
            return v1.GetClusterResponse(version=version, unchanged=True)
        groups = [group_route(group) for group in self._table.groups()]
        return v1.GetClusterResponse(
            version=version,
            groups=groups,
            incomplete=not self._table.ready(self._clock.steady_ns()),
            absent_groups=self._table.absent(),
        )

    def forget_group(
        self, request: v1.ForgetGroupRequest, ctx: "RequestContext"
    ) -> v1.ForgetGroupResponse:
        """Remove a group that is gone for good. Raises WireError."""
        name = request.group
        try:
            known = self._table.forget(name)
        except GroupAliveError as error:
            raise WireError(v2.FORBIDDEN, str(error)) from None
        if not known:
            raise WireError(v2.NOT_FOUND, f"no broker group {name} has registered here")
        self._known_names -= {name}
        try:
            self._known.save(self._known_names)
        except OSError as error:
            text = f"{name} is expected again after a restart: the names cannot be stored: {error}"
            raise WireError(v2.INTERNAL_ERROR, text) from error
        logger.info("group.forgotten group=%s", name)
        return v1.ForgetGroupResponse(code=v2.OK, message="OK")

    def query_route(
        self, request: v2.QueryRouteRequest, ctx: "RequestContext"
    ) -> v2.QueryRouteResponse:
        """Handle a client's query for the route of a topic."""
        self._counts.route_queries += 1
        if self._config.authentication_enabled:
            raise WireError(
                v2.UNAUTHORIZED,
                "this nameserver answers no clients (authenticationEnabled): connect to a broker "
                "or a proxy",
            )
        if not ctx.client_id.strip():
            raise WireError(v2.CLIENT_ID_REQUIRED, "client id cannot be empty")
        check_topic(request.topic.name)
        check_repeated(request.topic)
        routes = self._table.routes(request.topic.name)
        queues = message_queues(request.topic, routes, ctx.language, ctx.tls)
        if not queues and not self._table.ready(self._clock.steady_ns()):
            raise RpcFailure(
                _UNAVAILABLE, "the nameserver has just started and waits for its brokers; try again"
            )
        if not queues and (absent := self._table.absent()):
            raise absent_topic(request.topic.name, absent)
        if not queues:
            raise WireError(
                v2.TOPIC_NOT_FOUND,
                f"no route for topic {request.topic.name}: create it with"
                f" `cometmq topic create {request.topic.name}`",
            )
        answer = v2.QueryRouteResponse(status=v2.Status(code=v2.OK, message="OK"))
        answer.MergeFromString(queues)
        return answer

    def _remember(self, group: str) -> None:
        if group in self._known_names:
            return
        self._known_names |= {group}
        try:
            self._known.save(self._known_names)
        except OSError as error:
            # For the next start only: no reason to refuse the broker.
            logger.warning("known_groups.not_saved group=%s error=%s", group, error)

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(self._config.scan_not_active_broker_interval / 1_000)
            for member in self._table.expire(self._clock.steady_ns()):
                self._counts.members["expired"] += 1
                logger.warning(
                    "member.expired group=%s broker_id=%d address=%s",
                    member.replica.group,
                    member.replica.broker_id,
                    member.addresses.client,
                )


def _grpc_code(refusal: RegistrationRefused) -> int:
    return _ALREADY_EXISTS if isinstance(refusal, DuplicateReplica) else _FAILED_PRECONDITION
