"""The sending side of a bidirectional stream: a bounded queue between a service and its door.

A client that stops reading must not fill the broker's memory: at the bound `send` raises
OutboundFull, and the service decides what to drop. Lives on the event loop; what is queued when the
client leaves is lost, as it would be on the wire.
"""

import asyncio
from collections import deque
from typing import Any

from ..proto.errors import RpcFailure
from .service import OutboundFull, encode


class QueuedOutbound:
    """`service.Outbound` as the doors implement it: services put in, the door takes out."""

    __slots__ = (
        "_bytes",
        "_bytes_max",
        "_drained",
        "_error",
        "_finished",
        "_items",
        "_items_max",
        "_waiter",
    )

    def __init__(self, items_max: int, bytes_max: int) -> None:
        self._items: deque[bytes] = deque()
        self._items_max = items_max
        self._bytes = 0
        self._bytes_max = bytes_max
        self._finished = False
        self._error: RpcFailure | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None

    @property
    def finished(self) -> bool:
        """No more can be sent: the service ended the stream, or the client left."""
        return self._finished

    def send(self, message: Any) -> None:
        """Queue one message; after the end it is dropped. Raises OutboundFull at the bound."""
        if self._finished:
            return
        data = encode(message)
        # One message is always let in, however large: the bound on bytes is against many.
        full = len(self._items) >= self._items_max or self._bytes + len(data) > self._bytes_max
        if full and self._items:
            raise OutboundFull(f"{len(self._items)} messages, {self._bytes} bytes wait already")
        self._items.append(data)
        self._bytes += len(data)
        self._wake()

    def finish(self, error: RpcFailure | None = None) -> None:
        """End the stream after what is queued. Only the first call counts."""
        if not self._finished:
            self._finished = True
            self._error = error
            self._wake()

    def drained(self) -> "asyncio.Future[None]":
        """Done when all that was queued has been written, or the stream has ended."""
        if self._drained is None or self._drained.done():
            self._drained = asyncio.get_running_loop().create_future()
            if not self._items or self._finished:
                self._drained.set_result(None)
        return self._drained

    async def take(self) -> bytes | None:
        """For the door: the next message, or None at the end. Raises the error it ended with."""
        while not self._items:
            self._release()
            if self._finished:
                if self._error is not None:
                    raise self._error
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        data = self._items.popleft()
        self._bytes -= len(data)
        return data

    def abandon(self) -> None:
        """For the door: the client has left; nothing more will be taken."""
        self._finished = True
        self._items.clear()
        self._bytes = 0
        self._release()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _release(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
