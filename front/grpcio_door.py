"""The portable front door: a grpc.aio server that maps a path to a service and bytes to bytes.

It serves plaintext HTTP/2 on one port, with the options that the official clients need (gRPC API
note, section 1.4; HA note, section 6.11: a port is never shared). The standard health and reflection
services answer on the same port. `grpcio_calls.py` is what happens to one call.
"""

import asyncio
import errno
import logging
import socket
from typing import Any
from urllib.parse import unquote

import grpc.aio

from ..proto.errors import UNAVAILABLE, RpcFailure
from .clock import Clock
from .config import DoorConfig
from .door import DoorStatistics
from .errors import AddressError, PortInUseError
from .failure import Faults
from .faults import FaultTable
from .grpcio_calls import CALLS
from .outbound import QueuedOutbound
from .service import ServiceTable
from .standard import StandardServices

logger = logging.getLogger(__name__)

# Peers come back call after call; beyond this many the memory of them starts over.
_PEERS_MAX = 10_000


class GrpcioDoor:
    """`door.Door` on grpc.aio. Made anywhere, started and drained on the event loop, once each."""

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
        #: Bidirectional streams that are open: a drain ends them, they would never end themselves.
        self.streams: set[QueuedOutbound] = set()
        self._standard = StandardServices(services)
        table = {**services, **self._standard.table()}
        self._calls = {path: (CALLS[method.kind], method) for path, method in table.items()}
        self.failures = Faults()
        self._peers: dict[str, str] = {}
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the bound port. Raises PortInUseError, AddressError."""
        await _check_free(host, port)
        server = grpc.aio.server(handlers=(self,), options=_options(self.config))
        name = f"[{host}]" if ":" in host else host
        try:
            bound: int = server.add_insecure_port(f"{name}:{port}")
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
        """Stop accepting, end the streams, finish what is in flight within the grace time, close."""
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
        """Counters as they are now."""
        return DoorStatistics(
            self.name, self.in_flight, len(self.streams), dict(self.failures.counted)
        )

    def service(self, details: Any) -> Any:
        """Named by gRPC: the handler of one call, or None for a path that is not ours."""
        found = self._calls.get(details.method)
        if found is None:
            return None
        make, method = found
        return make(self, method, details.invocation_metadata)

    def guarded(self) -> bool:
        """A call must be looked at more closely: faults are set, or the bound is reached."""
        return self.in_flight > self.in_flight_max or (
            self.faults is not None and bool(self.faults.rpc)
        )

    def peer(self, name: str) -> str:
        """gRPC's "ipv4:1.2.3.4:5" or "ipv6:%5B::1%5D:5" as host:port; "" for a unix socket."""
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
        # The library goes by this one (one minute), whatever the line above says.
        ("grpc.http2.ping_timeout_ms", config.front_keepalive_timeout),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", config.front_min_ping_interval),
        ("grpc.http2.max_ping_strikes", 0),
    ]


async def _check_free(host: str, port: int) -> None:
    """Bind and let go: the reason of a failure, which gRPC would only write to stderr."""
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
