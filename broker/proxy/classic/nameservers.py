"""The connection of a proxy to the remoting port of a nameserver, over which it asks for routes.

It is opened for the first request, and to the next nameserver after one has failed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ....remoting.command import without_credentials
from ....remoting.connection import REQUESTS_MAX, Connection, RemotingError, Shared
from ....remoting.passing import dial, pass_on, unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....front.clock import Clock
    from ....front.config import DoorConfig
    from ....nodes.node_links import NodeLinks
    from ....remoting.command import Command

_CONNECT_S = 1.0
#: A client gives a request for a route 3 s; its next one goes to the next nameserver.
_ANSWER_S = 3.0


class Nameservers:
    """Asks one nameserver after the other."""

    def __init__(
        self, addresses: Sequence[str], links: NodeLinks, door: DoorConfig, clock: Clock
    ) -> None:
        self._addresses = addresses
        self._links = links
        self._shared = Shared({}, door, clock)
        self._shared.connections_max = len(addresses) + 1  # one may not have ended yet
        self._shared.calls_max = REQUESTS_MAX
        self._turn = 0
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()

    async def ask(self, command: Command) -> Command | None:
        """Return the answer of a nameserver, which checks no signatures. Raises RemotingError."""
        command, reason = without_credentials(command), ""
        for _ in range(len(self._addresses) + 1):  # the first connection may have ended
            connection = None
            try:
                connection = await self._connected()
                return await pass_on(connection, command, "the nameserver", limit_s=_ANSWER_S)
            except (OSError, RemotingError) as error:
                reason = str(error) or type(error).__name__
                self._failed(connection)
        raise unavailable(f"no nameserver has answered: {reason}")

    async def _connected(self) -> Connection:
        """Return the connection. Raises OSError."""
        async with self._connecting:
            known = self._connection
            if known is None or known.closed:
                address = self._addresses[self._turn % len(self._addresses)]
                known = self._connection = await dial(
                    address, lambda: Connection(self._shared), self._links, _CONNECT_S
                )
            return known

    def _failed(self, connection: Connection | None) -> None:
        """Turn to the next nameserver, unless another request has done so."""
        if connection is self._connection:
            self._turn += 1
            self._connection = None
        if connection is not None:
            connection.abort("the nameserver has failed")
