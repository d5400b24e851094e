"""The grpcio door: a grpc.aio server in front of a service table. Needs no compiled extension of
ours.

It serves plaintext HTTP/2 on one port, or TLS with `tlsMode=enforcing`, with the options that the
official clients need (docs/formats/grpc-api.md, section 1.4) and without SO_REUSEPORT
(docs/formats/ha.md, section 6.11). The standard health and reflection services answer on the same
port. `grpcio_calls.py` serves one call.
"""

import asyncio
import errno
import logging
import socket
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from urllib.parse import unquote

import grpc.aio

from ..nodes.addresses import bracketed
from ..nodes.node_links import NodeLinks
from ..proto.errors import UNAVAILABLE, RpcFailure
from .clock import Clock
from .config import DoorConfig
from .errors import AddressError, PortInUseError
from .failure import FailureHandler
from .faults import FaultTable
from .grpcio_calls import CALLS, Inflation
from .metrics.calls import CallTimes
from .outbound import QueuedOutbound
from .process import FreedMemory, client_connections
from .service import ServiceTable, largest_request
from .slow_clients import SlowClients, disconnect
from .standard import StandardServices
from .statistics import DoorStatistics

logger = logging.getLogger(__name__)

#: Streams on one connection that gRPC's core holds for the event loop, whatever
#: frontMaxConcurrentStreams allows. Calls that the client has reset count until the event loop took
#: them, at 0.1 ms each: the bound of what one connection can put in front of others.
STREAMS_MAX = 8_192
#: gRPC's bits of no compression and gzip; the core refuses other kinds (UNIMPLEMENTED).
_ENCODINGS = 1 << 0 | 1 << 2
# Size of the cache of decoded peer addresses; when it is full it is cleared.
_PEERS_MAX = 10_000


class GrpcioDoor:
    """`door.Door` on grpc.aio. Started and drained once each, on the event loop."""

    name = "grpcio"
    batches = False

    def __init__(
        self,
        services: ServiceTable,
        config: DoorConfig,
        clock: Clock,
        faults: FaultTable | None,
        links: NodeLinks,
        *,
        represented: bool = False,
        nodes: bool = False,
    ) -> None:
        """`represented`: every connection stands for another peer (`represent`); `nodes` as in
        `door.choose_door`."""
        self.config = config
        self._links = links
        #: The port serves TLS alone.
        self.tls = links.tls.tls_mode == "enforcing"
        self.steady_ns = clock.steady_ns
        self.faults = faults
        self.in_flight = 0
        self.in_flight_max = config.front_max_concurrent_calls
        #: Open bidirectional streams; a drain ends them.
        self.streams: set[QueuedOutbound] = set()
        self.nodes = nodes
        self._standard = StandardServices(services)
        table = dict(services) if nodes else {**services, **self._standard.table()}
        self._calls = {path: (CALLS[method.kind], method) for path, method in table.items()}
        self._request_bytes_max = largest_request(table, config.front_max_receive_message_size)
        self.failures = FailureHandler(clock.steady_ns)
        self.times = CallTimes(clock.steady_ns)
        self._connections_max = client_connections(config)
        self.slow = SlowClients(config, clock.steady_ns)
        self.inflation = Inflation()
        self._stalled = 0  # connections of slow readers that were closed
        self._wasteful = 0  # and of clients that reset their calls
        self._disconnecting: set[asyncio.Task[None]] = set()
        self._port = 0
        self._checks: asyncio.Task[None] | None = None
        self._peers: dict[str, str] = {}
        #: HOST:PORT of connections that stand for another peer, and that peer; None: there are
        #: none. Calls may be served after their connection has ended: their peer is unknown then.
        self._represented: dict[str, str] | None = {} if represented else None
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the bound port. Raises PortInUseError, AddressError."""
        await _check_free(host, port)
        server = grpc.aio.server(
            handlers=(self,),
            options=_options(self.config, self._request_bytes_max, self._connections_max),
        )
        try:
            bound = self._add_port(server, f"{bracketed(host)}:{port}")
        except RuntimeError as error:
            raise PortInUseError(host, port) from error
        if bound == 0:
            raise PortInUseError(host, port)
        await server.start()
        self._server, self._port = server, bound
        self._checks = asyncio.get_running_loop().create_task(self._check_slow())
        self._standard.serving(True)
        logger.info(
            "door.opened door=%s host=%s port=%d connections_max=%d",
            self.name,
            host,
            bound,
            self._connections_max,
        )
        return bound

    def _add_port(self, server: grpc.aio.Server, address: str) -> int:
        if not self.tls:
            return int(server.add_insecure_port(address))
        # Clients have no certificate, and grpcio can only require one: nodes have the token.
        credentials = self._links.server_credentials(require_client=self.nodes)
        return int(server.add_secure_port(address, credentials))

    async def drain(self, grace_s: float) -> None:
        """Stop accepting, end the streams, let calls finish within the grace time, close."""
        server, self._server = self._server, None
        if server is None:
            return
        if self._checks is not None:
            self._checks.cancel()
        self._standard.serving(False)
        stopped = asyncio.ensure_future(server.stop(grace_s))
        for outbound in tuple(self.streams):
            outbound.finish(RpcFailure(UNAVAILABLE, "the server is shutting down"))
        await stopped
        logger.info("door.closed door=%s in_flight=%d", self.name, self.in_flight)

    def together(self) -> AbstractContextManager[None]:
        """Return a context without effect: gRPC's core sends each answer by itself."""
        return nullcontext()

    def statistics(self) -> DoorStatistics:
        """Return the current counters."""
        return DoorStatistics(
            self.name,
            self.in_flight,
            len(self.streams),
            self.failures.counted,
            self.counters(),
            self.times,
        )

    def counters(self) -> dict[str, int]:
        """Return counters since the start, and gauges, by name."""
        return {
            "requests_slow": self.slow.late_requests,
            "connections_stalled": self._stalled,
            "connections_wasteful": self._wasteful,
            "unread_bytes": self.slow.unread_bytes,
        }

    async def _check_slow(self) -> None:
        freed = FreedMemory()
        while True:
            await asyncio.sleep(self.slow.period_s)
            if freed.grown():
                await asyncio.to_thread(freed.give_back)
            peers = self.slow.check()
            if peers:
                self._stalled += await self._close_connections(peers)

    def disconnect(self, peer: str) -> None:
        """Close the connection of a client that resets too many calls."""
        task = asyncio.get_running_loop().create_task(self._disconnect(peer))
        self._disconnecting.add(task)
        task.add_done_callback(self._disconnecting.discard)

    async def _disconnect(self, peer: str) -> None:
        self._wasteful += await self._close_connections({peer})

    async def _close_connections(self, peers: set[str]) -> int:
        """Close connections; return how many."""
        represented = self._represented or {}
        peers = {*peers, *(own for own, peer in represented.items() if peer in peers)}
        try:
            return await asyncio.to_thread(disconnect, peers, self._port)
        except OSError:  # no descriptor to list them: a later check repeats it
            return 0

    def service(self, details: Any) -> Any:
        """Return the handler of one call, or None for an unknown path (gRPC's method name)."""
        method_handler = self._calls.get(details.method)
        if method_handler is None:
            return None
        make, method = method_handler
        return make(self, method, details.invocation_metadata)

    def guarded(self) -> bool:
        """Return True if a call needs a check: faults are set, or the bound is reached."""
        return self.in_flight > self.in_flight_max or (
            self.faults is not None and bool(self.faults.rpc)
        )

    def peer(self, name: str) -> str:
        """Convert gRPC's "ipv4:1.2.3.4:5" or "ipv6:%5B::1%5D:5" to host:port ("": unknown)."""
        peer = self._peers.get(name)
        if peer is None:
            scheme, _, rest = unquote(name).partition(":")
            peer = rest if scheme in ("ipv4", "ipv6") else ""
            if len(self._peers) >= _PEERS_MAX:
                self._peers.clear()
            self._peers[name] = peer
        return peer if self._represented is None else self._represented.get(peer, "")

    def represent(self, own: str, peer: str) -> None:
        """Take the connection from `own` for one from `peer` (HOST:PORT); empty: no more."""
        assert self._represented is not None
        if peer:
            self._represented[own] = peer
        else:
            self._represented.pop(own, None)


def _options(config: DoorConfig, request_bytes_max: int, connections: int) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", request_bytes_max),
        ("grpc.max_send_message_length", -1),
        ("grpc.compression_enabled_algorithms_bitset", _ENCODINGS),
        ("grpc.per_message_decompression", 0),  # grpcio_calls.py decompresses
        ("grpc.max_metadata_size", config.front_max_metadata_size),
        ("grpc.absolute_max_metadata_size", config.front_max_metadata_size),
        ("grpc.max_concurrent_streams", min(config.front_max_concurrent_streams, STREAMS_MAX)),
        # Refuses further streams while the calls that are held exceed the number above.
        ("grpc.http.overload_protection", 1),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.server_handshake_timeout_ms", config.front_handshake_timeout),
        ("grpc.max_connection_idle_ms", config.front_max_connection_idle),
        ("grpc.keepalive_time_ms", config.front_keepalive_time),
        ("grpc.keepalive_timeout_ms", config.front_keepalive_timeout),
        # gRPC uses this value (default: one minute) instead of the keepalive timeout above.
        ("grpc.http2.ping_timeout_ms", config.front_keepalive_timeout),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", config.front_min_ping_interval),
        ("grpc.http2.max_ping_strikes", 0),
    ]


async def _check_free(host: str, port: int) -> None:
    """Bind and release the port, to get the reason of a failure: gRPC only writes it to stderr."""
    infos = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, address = infos[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(host, port) from error
            raise AddressError(host, port, error) from error
