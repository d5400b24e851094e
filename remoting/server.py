"""The listener of remoting connections: opens the port, ends slow connections, drains.

A connection is closed if it is silent for `frontMaxConnectionIdle`, if a frame is not complete
within `frontRequestTimeout`, or if the client reads none of its answers for `frontWriteTimeout`.
The limits are those of the gRPC door (`front/config.py`), because they protect the same process.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from ..front.errors import AddressError, PortInUseError
from ..front.process import client_connections
from .connection import Connection, Handler, Shared, Statistics, Take
from .first_bytes import FirstBytes, HandedOver

if TYPE_CHECKING:
    from ..front.clock import Clock
    from ..front.config import DoorConfig
    from ..front.shared.handover import Handover
    from ..nodes.node_links import NodeLinks

logger = logging.getLogger(__name__)

# Share of the process's client connections: the gRPC door may take all of them, and the reserve of
# descriptors has room for a quarter more.
CONNECTIONS_SHARE = 4
_CHECK_S = 1.0
_DRAIN_LOOK_S = 0.01
_NS_PER_MS = 1_000_000


class RemotingServer:
    """Serves a table of request codes on one port; starts and stops once, on one event loop."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        config: DoorConfig,
        clock: Clock,
        links: NodeLinks | None = None,
        take: Take | None = None,
        *,
        share: int = CONNECTIONS_SHARE,
    ) -> None:
        """With certificates in `links` the port speaks TLS, and plaintext if that is allowed.
        `take` gets every frame before it is decoded; `share` is the port's part of the process's
        client connections: 4 is a quarter."""
        self._shared = Shared(handlers, config, clock, take)
        self._share = share
        self._links = links if links is not None and links.files is not None else None
        self._accepting: FirstBytes | HandedOver | None = None
        self._server: asyncio.Server | None = None
        self._checks: asyncio.TimerHandle | None = None

    @property
    def statistics(self) -> Statistics:
        """Counters since the start."""
        return self._shared.statistics

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._shared.connections)

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (0 and -1: the system chooses).

        Raises PortInUseError, AddressError.
        """
        shared = self._shared
        shared.limit(remoting_connections(shared.config, self._share))
        loop = asyncio.get_running_loop()
        links = self._links
        try:
            self._server = await loop.create_server(
                lambda: Connection(shared), host, max(port, 0), start_serving=links is None
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(host, port) from error
            raise AddressError(host, port, error) from error
        if links is not None:
            self._accepting = FirstBytes(self._server.sockets, shared, links)
        self._checks = loop.call_later(_CHECK_S, self._check)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def share(self, handover: Handover) -> None:
        """Serve what a door hands over, instead of a port of its own."""
        shared = self._shared
        shared.limit(remoting_connections(shared.config, self._share))
        self._accepting = HandedOver(handover, shared)
        self._checks = asyncio.get_running_loop().call_later(_CHECK_S, self._check)

    async def drain(self, grace_s: float) -> None:
        """Accept nothing more, finish requests in progress within `grace_s`, and close."""
        if self._checks is None:
            return
        shared = self._shared
        shared.draining = True
        self._checks.cancel()
        self._checks = None
        if self._server is not None:
            self._server.close()
        if self._accepting is not None:
            await self._accepting.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while any(  # noqa: ASYNC110 - ends with the last request
                    each.in_progress or each.unread for each in shared.connections
                ):
                    await asyncio.sleep(_DRAIN_LOOK_S)
        for connection in list(shared.connections):
            connection.abort("the server stops")
        # The transports report the end in the next turn of the loop.
        while shared.connections:  # noqa: ASYNC110 - one turn
            await asyncio.sleep(0)

    def _check(self) -> None:
        """End connections that are silent, slow to send a frame, or slow to read."""
        shared = self._shared
        self._checks = asyncio.get_running_loop().call_later(_CHECK_S, self._check)
        config, now_ns = shared.config, shared.steady_ns()
        unread = sum(each.unread for each in shared.connections)
        for each in list(shared.connections):
            reason = ""
            if _is_over(each.active_ns, now_ns, config.front_max_connection_idle):
                reason = "idle"
            elif _is_over(each.unfinished_since_ns, now_ns, config.front_request_timeout):
                reason = "a frame is not complete in time"
            elif _is_over(each.stalled_since_ns, now_ns, config.front_write_timeout) or (
                unread > config.front_unread_bytes and each.stalled_since_ns
            ):
                reason = "the client does not read its answers"
                unread -= each.unread
            if reason:
                shared.statistics.timed_out += 1
                each.abort(reason)


def remoting_connections(config: DoorConfig, share: int = CONNECTIONS_SHARE) -> int:
    """Return a part of the number of client connections of this process."""
    return max(1, client_connections(config) // share)


def _is_over(since_ns: int, now_ns: int, limit_ms: int) -> bool:
    return bool(since_ns) and now_ns - since_ns > limit_ms * _NS_PER_MS
