"""The connection of a follower to its leader's remoting port, over which it passes requests on.

It is opened for the first request, and again after it ended or the leader changed. A request is
passed on with its fields and its body, so the signature of a client stays valid: the leader checks
it again. The leader sees the follower as the peer.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from ...proto.addresses import host_of
from ...remoting.codes import Reply
from ...remoting.command import PASSED_ON, Command
from ...remoting.connection import Connection, PeerGoneError, RemotingError, Shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...front.clock import Clock
    from ...front.config import DoorConfig
    from ...proto.node_links import NodeLinks

#: A client gives up before: the longest polls take half a minute.
_ANSWER_S = 35.0
_CONNECT_S = 2.0
#: How long a request waits for a leader, within the 3 s that clients give a send.
_LEADER_S = 2.0
_LOOK_S = 0.05


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
        asked = replace(command)
        if command.is_oneway:
            connection.notify(asked, PASSED_ON)
            return None
        try:
            answer = await asyncio.wait_for(connection.call(asked, PASSED_ON), _ANSWER_S)
        except TimeoutError:
            raise _unavailable("the leader did not answer in time") from None
        except PeerGoneError:
            raise _unavailable("the leader has gone; the outcome is unknown") from None
        return Command(answer.code, dict(answer.fields), answer.body, remark=answer.remark)

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
            raise _unavailable("no leader of this group can be reached") from None

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
            port = int(address.rpartition(":")[2])
            context = self._links.client_context()
            name = self._links.tls.tls_node_name if context is not None else None
            async with asyncio.timeout(_CONNECT_S):
                _, made = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self._shared),
                    *(host_of(address), port),
                    ssl=context,
                    server_hostname=name,
                )
            self._connection, self._connected_to = made, address
            return made


def _unavailable(reason: str) -> RemotingError:
    return RemotingError(
        Reply.SERVICE_NOT_AVAILABLE, f"this replica follows, and {reason}: look for its leader"
    )
