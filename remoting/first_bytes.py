"""Accepts connections that speak TLS or plaintext, told apart by their first byte.

A TLS handshake begins with byte 0x16, a remoting frame with 0, because it is shorter than 16 MiB.
The byte is looked at, not read, before the socket becomes a connection of the event loop. A
connection that sends none within `frontRequestTimeout`, or that speaks plaintext where TLS is
enforced, is closed. Their number counts against the connections of the port.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .connection import Connection

if TYPE_CHECKING:
    from ..proto.node_links import NodeLinks
    from .connection import Shared

logger = logging.getLogger(__name__)

_TLS = b"\x16"
_BACKLOG = 128
#: Pause after the process has run out of descriptors.
_PAUSE_S = 1.0


class FirstBytes:
    """Accepts on the bound sockets of a server; starts at once."""

    def __init__(self, sockets: Sequence[Any], shared: Shared, links: NodeLinks) -> None:
        """`sockets` are not listening yet, and are closed by their owner."""
        self._shared = shared
        self._links = links
        self._sockets: list[socket.socket] = [each.dup() for each in sockets]
        self._waiting: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        self._accepting = []
        for each in self._sockets:
            each.listen(_BACKLOG)
            each.setblocking(False)
            self._accepting.append(loop.create_task(self._accept(each)))

    async def close(self) -> None:
        """Accept nothing more; close what has not become a connection."""
        tasks = [*self._accepting, *self._waiting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in self._sockets:
            each.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop, shared = asyncio.get_running_loop(), self._shared
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:
                logger.warning("remoting.not_accepted error=%s", error)
                await asyncio.sleep(_PAUSE_S)
                continue
            if len(shared.connections) + len(self._waiting) >= shared.connections_max:
                shared.statistics.refused += 1
                accepted.close()
                continue
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = loop.create_task(self._connect(accepted))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        """Make a connection of a socket; close it if it speaks neither protocol."""
        shared = self._shared
        limit_s = shared.config.front_request_timeout / 1_000
        taken = False
        try:
            async with asyncio.timeout(limit_s):
                first = await _first_byte(accepted)
                context = self._context(first)
                if context is None and self._links.tls.tls_mode == "enforcing":
                    shared.statistics.malformed += 1
                    return
                taken = True
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: Connection(shared), accepted, ssl=context
                )
        except TimeoutError:
            shared.statistics.timed_out += 1
        except (OSError, ssl.SSLError) as error:
            shared.statistics.malformed += 1
            logger.info("remoting.no_handshake reason=%s", error)
        finally:
            if not taken:
                accepted.close()

    def _context(self, first: bytes) -> ssl.SSLContext | None:
        return self._links.server_context() if first == _TLS else None


async def _first_byte(accepted: socket.socket) -> bytes:
    """Return the first byte that the peer sends, and leave it to be read; empty at the end."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(accepted.fileno(), _wake, readable)
    try:
        await readable
    finally:
        loop.remove_reader(accepted.fileno())
    return accepted.recv(1, socket.MSG_PEEK)


def _wake(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)
