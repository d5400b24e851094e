"""Makes remoting connections of accepted sockets: TLS or plaintext, told apart by the first byte.

A TLS handshake begins with byte 0x16, a remoting frame with 0, because it is shorter than 16 MiB. A
connection that sends none within `frontRequestTimeout`, or that speaks plaintext where TLS is
enforced, is closed. Their number counts against the connections of the port.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..front.shared.accepting import Accepting, first_bytes
from ..nodes.addresses import host_of, host_port
from .connection import Connection

if TYPE_CHECKING:
    from ..front.shared.handover import Handover
    from ..nodes.node_links import NodeLinks
    from .connection import Shared

_TLS = b"\x16"


class FirstBytes:
    """Accepts on the bound sockets of a server; starts at once."""

    def __init__(self, sockets: Sequence[Any], shared: Shared, links: NodeLinks) -> None:
        """`sockets` are not listening yet, and are closed by their owner."""
        self._shared = shared
        self._links = links
        self._accepting = Accepting(sockets, self._connect, self._has_room)

    async def close(self) -> None:
        """Accept nothing more; close what has not become a connection."""
        await self._accepting.close()

    def _has_room(self, waiting: int) -> bool:
        return _has_room(self._shared, waiting)

    async def _connect(self, accepted: socket.socket) -> None:
        await _connect(self._shared, accepted, self._context)

    async def _context(self, accepted: socket.socket) -> ssl.SSLContext | None:
        """Raise PlaintextError for plaintext where TLS is enforced, OSError."""
        if await first_bytes(accepted) == _TLS:
            return self._links.server_context()
        if self._links.tls.tls_mode == "enforcing":
            raise _PlaintextError
        return None


class HandedOver:
    """Serves the connections that the door of another port hands over; starts at once."""

    def __init__(self, handover: Handover, shared: Shared) -> None:
        self._handover = handover
        self._shared = shared
        self._waiting: set[asyncio.Task[None]] = set()
        handover.open(self._receive)

    async def close(self) -> None:
        """Take no more connections; close what has not become one."""
        self._handover.close()
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)

    def _receive(
        self,
        connection: socket.socket,
        peer: str,
        context: ssl.SSLContext | None,
        certificate: bytes,
    ) -> None:
        if not _has_room(self._shared, len(self._waiting)):
            connection.close()
            return

        async def known(_: socket.socket) -> ssl.SSLContext | None:
            return context

        work = _connect(self._shared, connection, known, peer, certificate)
        task = asyncio.get_running_loop().create_task(work)
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)


class _PlaintextError(OSError):
    """The peer speaks plaintext where TLS is enforced."""


def _has_room(shared: Shared, waiting: int) -> bool:
    if len(shared.connections) + waiting < shared.connections_max:
        return True
    shared.statistics.refused += 1
    return False


async def _connect(
    shared: Shared,
    accepted: socket.socket,
    context_of: Callable[[socket.socket], Awaitable[ssl.SSLContext | None]],
    peer: str = "",
    certificate: bytes = b"",
) -> None:
    """Make a connection of a socket; close it if it speaks neither protocol."""
    if not peer:
        try:
            peer = host_port(*accepted.getpeername()[:2])
        except OSError:  # the client has left
            accepted.close()
            return
    if not shared.take_place(peer):
        accepted.close()
        return
    limit_s = shared.config.front_request_timeout / 1_000
    connection = Connection(shared, peer, certificate, placed=True)
    taken = False
    try:
        async with asyncio.timeout(limit_s):
            context = await context_of(accepted)
            if context is not None:
                await shared.handshakes.turn(host_of(peer))
            taken = True
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=context
            )
    except TimeoutError:
        shared.statistics.timed_out += 1
    except (OSError, ssl.SSLError) as error:
        shared.statistics.malformed += 1
        shared.log_closed("no_handshake", peer, error)
    finally:
        if not taken:
            accepted.close()
        if not connection.active_ns:  # it was not made
            shared.places.leave(host_of(peer))
