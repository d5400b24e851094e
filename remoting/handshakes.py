"""Turns of TLS handshakes on the event loop: strangers must not take all of its time with them.

A handshake takes about a millisecond of the loop. Addresses take turns, so that a client does not
wait for those that another address has begun.
"""

from __future__ import annotations

import asyncio
from collections import deque

#: 200 a second: about a fifth of the loop's time.
_INTERVAL_S = 0.005


class Handshakes:
    """The handshakes of one port. Used on the event loop only; the port bounds their number."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._pause: asyncio.TimerHandle | None = None

    async def turn(self, address: str) -> None:
        """Wait until a handshake with a client at an address may begin."""
        loop = asyncio.get_running_loop()
        if self._pause is None:
            self._pause = loop.call_later(_INTERVAL_S, self._next)
            return
        future = loop.create_future()
        self._waiting.setdefault(address, deque()).append(future)
        await future

    def _next(self) -> None:
        self._pause = None
        while self._waiting:
            address = next(iter(self._waiting))
            queue = self._waiting.pop(address)
            future = queue.popleft()
            if queue:
                self._waiting[address] = queue  # behind the other addresses
            if not future.done():  # its client has not been given up
                future.set_result(None)
                self._pause = asyncio.get_running_loop().call_later(_INTERVAL_S, self._next)
                return
