"""The grpcio door behind a listener that tells the remoting protocol from gRPC.

gRPC's core accepts by itself and cannot be given a connection, so the door has a port of its own on
this machine, and each client of gRPC gets a connection to it. A remoting frame is shorter than
16 MiB and therefore begins with 0; over TLS clients of gRPC name HTTP/2 and those of the remoting
protocol do not. A client that sends nothing within `frontHandshakeTimeout` is closed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ...nodes.addresses import host_port
from ..errors import AddressError, PortInUseError
from ..grpcio_door import GrpcioDoor
from ..process import client_connections
from .accepting import Accepting, first_bytes
from .client_hello import HANDSHAKE, HEAD, names_no_http2, record_size
from .splice import Splice

if TYPE_CHECKING:
    from ...nodes.node_links import NodeLinks
    from ..clock import Clock
    from ..config import DoorConfig
    from ..faults import FaultTable
    from ..service import ServiceTable
    from ..statistics import DoorStatistics
    from .handover import Handover

logger = logging.getLogger(__name__)

_INNER_HOST = "127.0.0.1"
_REMOTING = b"\0"
_MS_PER_S = 1_000


class SplicingDoor:
    """`door.Door`. Started and drained once each, on the event loop."""

    name = GrpcioDoor.name
    batches = GrpcioDoor.batches

    def __init__(
        self,
        services: ServiceTable,
        config: DoorConfig,
        clock: Clock,
        faults: FaultTable | None,
        links: NodeLinks,
        *,
        handover: Handover,
    ) -> None:
        self._inner = GrpcioDoor(services, config, clock, faults, links, represented=True)
        self._inner_port = 0
        self._links = links
        self._handover = handover
        self._config = config
        self._connections_max = client_connections(config)
        self._splices: set[Splice] = set()
        self._server: asyncio.Server | None = None
        self._accepting: Accepting | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the bound port. Raises PortInUseError, AddressError."""
        loop = asyncio.get_running_loop()
        try:
            # Binds every address of the host.
            server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(host, port) from error
            raise AddressError(host, port, error) from error
        try:
            self._inner_port = await self._inner.start(_INNER_HOST, 0)
        except BaseException:
            server.close()
            raise
        self._server = server
        self._accepting = Accepting(server.sockets, self._connect, self._has_room)
        bound: int = server.sockets[0].getsockname()[1]
        logger.info("door.shared port=%d inner_port=%d", bound, self._inner_port)
        return bound

    async def drain(self, grace_s: float) -> None:
        """Stop accepting, end the streams, let calls finish within the grace time, close."""
        if self._accepting is None or self._server is None:
            return
        accepting, self._accepting = self._accepting, None
        self._server.close()
        await accepting.close()
        await self._inner.drain(grace_s)
        for splice in tuple(self._splices):
            splice.abort()

    def together(self) -> AbstractContextManager[object]:
        """As `Door.together`."""
        return self._inner.together()

    def statistics(self) -> DoorStatistics:
        """Return the current counters."""
        return self._inner.statistics()

    def _has_room(self, waiting: int) -> bool:
        return len(self._splices) + waiting < self._connections_max

    async def _connect(self, accepted: socket.socket) -> None:
        """Hand a connection over, or splice it; close it if it sends nothing."""
        patience_s = self._config.front_handshake_timeout / _MS_PER_S
        try:
            host, number, *_ = accepted.getpeername()
            peer = host_port(host.removeprefix("::ffff:"), number)
            async with asyncio.timeout(patience_s):
                remoting = await self._speaks_remoting(accepted)
        except (OSError, TimeoutError):
            accepted.close()
            return
        except BaseException:
            accepted.close()
            raise
        if not remoting:
            await self._splice(accepted, peer)
            return
        tls = remoting == "tls"
        if not tls and self._inner.tls:
            accepted.close()  # plaintext where TLS is enforced
        else:
            self._handover.pass_on(accepted, peer, self._links.server_context() if tls else None)

    async def _speaks_remoting(self, accepted: socket.socket) -> str:
        """Return "plain" or "tls" for the remoting protocol, empty for gRPC. Raises OSError."""
        first = await first_bytes(accepted)
        if first == _REMOTING:
            return "plain"
        if first != bytes((HANDSHAKE,)) or not self._inner.tls:
            return ""
        size = record_size(await first_bytes(accepted, HEAD))
        return "tls" if names_no_http2(await first_bytes(accepted, size)) else ""

    async def _splice(self, accepted: socket.socket, peer: str) -> None:
        splice = Splice(self._config.front_write_timeout / _MS_PER_S, self._end)
        self._splices.add(splice)
        try:
            await splice.connect_inner(self._inner_port)
            self._inner.represent(host_port(*splice.inner_name), peer)
            await splice.connect_client(accepted)
        except OSError as error:
            logger.warning("door.not_spliced peer=%s error=%s", peer, error)
            accepted.close()
            splice.abort()
            self._end(splice)
        except BaseException:
            accepted.close()
            splice.abort()
            self._end(splice)
            raise

    def _end(self, splice: Splice) -> None:
        self._splices.discard(splice)
        self._inner.represent(host_port(*splice.inner_name), "")
