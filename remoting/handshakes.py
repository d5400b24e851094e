"""What one address may have of a port: connections, and turns of TLS handshakes.

Strangers must not take the places of other clients, nor all time of the event loop: a handshake
takes about a millisecond of it. Addresses take turns, so that a client does not wait for those that
another address has begun.
"""

from __future__ import annotations

import asyncio
from collections import deque

from ..nodes.addresses import is_loopback, network_of

#: 200 a second: about a fifth of the loop's time.
_INTERVAL_S = 0.005


class Places:
    """The connections of one port, by address. Addresses of this machine have no limit: behind one
    is a proxy of any number of clients, or no stranger."""

    def __init__(self) -> None:
        #: Of one address; 0: no limit.
        self.max = 0
        self._taken: dict[str, int] = {}

    def take(self, host: str) -> bool:
        """Take a place; return False if the address has as many as it may."""
        network = network_of(host)
        taken = self._taken.get(network, 0)
        if self.max and taken >= self.max and not is_loopback(host):
            return False
        self._taken[network] = taken + 1
        return True

    def leave(self, host: str) -> None:
        """Give a place back."""
        network = network_of(host)
        left = self._taken[network] - 1
        if left:
            self._taken[network] = left
        else:
            del self._taken[network]


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
