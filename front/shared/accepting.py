"""Accepts connections and looks at their first bytes without reading them.

The socket becomes a connection of the event loop only then, so that its protocol reads
everything that the client has sent.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

logger = logging.getLogger(__name__)

_BACKLOG = 128
#: Pause after the process has run out of descriptors.
_PAUSE_S = 1.0


class Accepting:
    """Accepts on the bound sockets of a server; starts at once."""

    def __init__(
        self,
        sockets: Sequence[Any],
        connect: Callable[[socket.socket], Coroutine[Any, Any, None]],
        has_room: Callable[[int], bool],
    ) -> None:
        """`sockets` are not listening yet, and are closed by their owner.

        `connect` owns the socket that it gets; `has_room` is asked with the number of calls of
        `connect` in progress, and closes the connection with False.
        """
        self._connect = connect
        self._has_room = has_room
        self._sockets: list[socket.socket] = [each.dup() for each in sockets]
        self._waiting: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        self._tasks = []
        for each in self._sockets:
            each.listen(_BACKLOG)
            each.setblocking(False)
            self._tasks.append(loop.create_task(self._accept(each)))

    async def close(self) -> None:
        """Accept nothing more; cancel `connect` where it is in progress."""
        tasks = [*self._tasks, *self._waiting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in self._sockets:
            each.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:
                logger.warning("port.not_accepted error=%s", error)
                await asyncio.sleep(_PAUSE_S)
                continue
            if not self._has_room(len(self._waiting)):
                accepted.close()
                continue
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = loop.create_task(self._connect(accepted))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)


async def first_bytes(accepted: socket.socket, size: int = 1) -> bytes:
    """Return the first bytes that the peer sends, and leave them to be read.

    Returns `size` bytes, or less at the end of what the peer sends. Raises OSError.
    """
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(accepted.fileno(), _wake, readable)
    try:
        await readable
    finally:
        loop.remove_reader(accepted.fileno())
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    return accepted.recv(size, socket.MSG_PEEK)


def _wake(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)
