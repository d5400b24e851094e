"""The sending side of a bidirectional stream: a bounded queue between a service and the grpcio
door.

The bound protects the broker's memory from a client that stops reading: `send` raises OutboundFull,
and the service decides what to drop. Used on the event loop; messages queued when the client leaves
are lost.
"""

import asyncio
from collections import deque
from typing import Any

from ..proto.errors import RpcFailure
from .service import OutboundFull, encode


class QueuedOutbound:
    """`service.Outbound` of the grpcio door: services `send`, the door `take`s."""

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
        """True after the service ended the stream or the client left."""
        return self._finished

    def send(self, message: Any) -> None:
        """Queue one message; dropped after the end. Raises OutboundFull at the bound."""
        if self._finished:
            return
        data = encode(message)
        # An empty queue accepts a message of any size.
        full = len(self._items) >= self._items_max or self._bytes + len(data) > self._bytes_max
        if full and self._items:
            text = f"{len(self._items)} messages ({self._bytes} bytes) are already queued"
            raise OutboundFull(text)
        self._items.append(data)
        self._bytes += len(data)
        self._wake()

    def finish(self, error: RpcFailure | None = None) -> None:
        """End the stream after the queued messages. Only the first call has an effect."""
        if not self._finished:
            self._finished = True
            self._error = error
            self._wake()

    def drained(self) -> "asyncio.Future[None]":
        """Return a future that is done when the queue is empty, or the stream has ended."""
        if self._drained is None or self._drained.done():
            self._drained = asyncio.get_running_loop().create_future()
            if not self._items or self._finished:
                self._drained.set_result(None)
        return self._drained

    async def take(self) -> bytes | None:
        """Return the next message, or None at the end; raises the stream's error. For the door."""
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
        """Discard the queue after the client has left. For the door."""
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
