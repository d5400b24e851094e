"""The grpcio door: a grpc.aio server in front of a service table. Needs no compiled extension of
ours.

It serves plaintext HTTP/2 on one port, with the options that the official clients need
(docs/formats/grpc-api.md, section 1.4) and without SO_REUSEPORT (docs/formats/ha.md, section 6.11).
The standard health and reflection services answer on the same port. `grpcio_calls.py` serves one
call.
"""

import asyncio
import errno
import logging
import socket
from typing import Any
from urllib.parse import unquote

import grpc.aio

from ..proto.addresses import bracketed
from ..proto.errors import UNAVAILABLE, RpcFailure
from .clock import Clock
from .config import DoorConfig
from .errors import AddressError, PortInUseError
from .failure import FailureHandler
from .faults import FaultTable
from .grpcio_calls import CALLS
from .outbound import QueuedOutbound
from .service import ServiceTable
from .standard import StandardServices
from .statistics import DoorStatistics

logger = logging.getLogger(__name__)

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
        faults: FaultTable | None = None,
    ) -> None:
        self.config = config
        self.steady_ns = clock.steady_ns
        self.faults = faults
        self.in_flight = 0
        self.in_flight_max = config.front_max_concurrent_calls
        #: Open bidirectional streams; a drain ends them.
        self.streams: set[QueuedOutbound] = set()
        self._standard = StandardServices(services)
        table = {**services, **self._standard.table()}
        self._calls = {path: (CALLS[method.kind], method) for path, method in table.items()}
        self.failures = FailureHandler()
        self._peers: dict[str, str] = {}
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the bound port. Raises PortInUseError, AddressError."""
        await _check_free(host, port)
        server = grpc.aio.server(handlers=(self,), options=_options(self.config))
        try:
            bound: int = server.add_insecure_port(f"{bracketed(host)}:{port}")
        except RuntimeError as error:
            raise PortInUseError(host, port) from error
        if bound == 0:
            raise PortInUseError(host, port)
        await server.start()
        self._server = server
        self._standard.serving(True)
        logger.info("door.opened door=%s host=%s port=%d", self.name, host, bound)
        return bound

    async def drain(self, grace_s: float) -> None:
        """Stop accepting, end the streams, let calls finish within the grace time, close."""
        server, self._server = self._server, None
        if server is None:
            return
        self._standard.serving(False)
        stopped = asyncio.ensure_future(server.stop(grace_s))
        for outbound in tuple(self.streams):
            outbound.finish(RpcFailure(UNAVAILABLE, "the server is shutting down"))
        await stopped
        logger.info("door.closed door=%s in_flight=%d", self.name, self.in_flight)

    def statistics(self) -> DoorStatistics:
        """Return the current counters."""
        return DoorStatistics(
            self.name, self.in_flight, len(self.streams), dict(self.failures.counted)
        )

    def service(self, details: Any) -> Any:
        """Return the handler of one call, or None for an unknown path (gRPC's method name)."""
        found = self._calls.get(details.method)
        if found is None:
            return None
        make, method = found
        return make(self, method, details.invocation_metadata)

    def guarded(self) -> bool:
        """Return True if a call needs a check: faults are set, or the bound is reached."""
        return self.in_flight > self.in_flight_max or (
            self.faults is not None and bool(self.faults.rpc)
        )

    def peer(self, name: str) -> str:
        """Convert gRPC's "ipv4:1.2.3.4:5" or "ipv6:%5B::1%5D:5" to host:port ("": unix socket)."""
        peer = self._peers.get(name)
        if peer is None:
            scheme, _, rest = unquote(name).partition(":")
            peer = rest if scheme in ("ipv4", "ipv6") else ""
            if len(self._peers) >= _PEERS_MAX:
                self._peers.clear()
            self._peers[name] = peer
        return peer


def _options(config: DoorConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", config.front_max_receive_message_size),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", config.front_max_metadata_size),
        ("grpc.absolute_max_metadata_size", config.front_max_metadata_size),
        ("grpc.max_concurrent_streams", config.front_max_concurrent_streams),
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
            raise AddressError(host, port, error.strerror or str(error)) from error
