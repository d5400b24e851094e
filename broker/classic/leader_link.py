"""The connection of a follower to its leader's remoting port, over which it passes requests on.

It is opened for the first request, and again after it ended or the leader changed. The leader
checks the signature of a request again, and sees the follower as the peer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...remoting.command import PASSED_ON
from ...remoting.connection import Connection, Shared
from ...remoting.passing import dial, pass_on, unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...front.clock import Clock
    from ...front.config import DoorConfig
    from ...nodes.node_links import NodeLinks
    from ...remoting.command import Command

#: How long a request waits for a leader, within the 3 s that clients give a send.
_LEADER_S = 2.0
_LOOK_S = 0.05
#: Why the outcome of a request is the leader's.
_FOLLOWS = "this replica follows, and"


class LeaderLink:
    """Passes requests on; used on the event loop only."""

    def __init__(
        self, address: Callable[[], str], links: NodeLinks, door: DoorConfig, clock: Clock
    ) -> None:
        """`address` returns HOST:PORT of the leader, or an empty string."""
        self._address = address
        self._links = links
        self._shared = Shared({}, door, clock)
        self._shared.connections_max = 1
        self._connection: Connection | None = None
        self._connected_to = ""
        self._connecting = asyncio.Lock()

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()

    async def pass_on(self, command: Command) -> Command | None:
        """Return the leader's response; None to a oneway request. Raises RemotingError."""
        connection = await self._connection_in_time()
        return await pass_on(connection, command, f"{_FOLLOWS} the leader", flag=PASSED_ON)

    async def _connection_in_time(self) -> Connection:
        """Return the connection; wait a moment for a leader. Raises RemotingError."""
        try:
            async with asyncio.timeout(_LEADER_S):
                while True:
                    try:
                        return await self._connection_now()
                    except OSError:
                        await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise unavailable(f"{_FOLLOWS} no leader of this group can be reached") from None

    async def _connection_now(self) -> Connection:
        """Return the connection to the present leader. Raises OSError."""
        async with self._connecting:
            address = self._address()
            known = self._connection
            if known is not None and not known.closed and self._connected_to == address:
                return known
            if known is not None:
                known.abort("another leader")
                self._connection = None
            if not address:
                raise ConnectionError("no leader")
            made = await dial(address, lambda: Connection(self._shared), self._links)
            self._connection, self._connected_to = made, address
            return made
