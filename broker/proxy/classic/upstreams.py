"""Connections to brokers on behalf of one classic client.

Each is opened for the first request to its broker, and closed with the client. The broker sees a
client of its own: what it asks (checks of transactions, changed members, new offsets, replies) is
passed to that client. While a broker does not read requests, its client is not read; with more
than `frontUnreadBytes` of unread requests to all brokers, the connection to the broker ends.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ....remoting.codes import Reply, Request
from ....remoting.connection import REQUESTS_MAX, Connection, RemotingError, Shared
from ....remoting.passing import dial
from ...classic.calls import call

if TYPE_CHECKING:
    from collections.abc import Container

    from ....front.clock import Clock
    from ....front.config import DoorConfig
    from ....nodes.node_links import NodeLinks
    from ....remoting.command import Command

#: A request then still has time for another replica.
_CONNECT_S = 1.0
#: How long a broker may take to read the last requests of a client that has left.
_LAST_READ_S = 10.0


class Upstream(Connection):
    """A connection to a broker."""

    def __init__(self, shared: Shared, client: Connection, address: str) -> None:
        super().__init__(shared, address)
        self.client = client
        self._full = f"requests to {address}"

    def pause_writing(self) -> None:
        # Not its own reading: then this end and the broker could wait for each other.
        self.client.pause(self._full)
        shared = self._shared
        if sum(each.unread for each in shared.connections) > shared.config.front_unread_bytes:
            self.abort("frontUnreadBytes is reached")

    def resume_writing(self) -> None:
        self.client.resume(self._full)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.client.resume(self._full)

    def close(self) -> None:
        super().close()
        if self.unread:
            asyncio.get_running_loop().call_later(_LAST_READ_S, self._end_unread)

    def _end_unread(self) -> None:
        if not self.closed:
            self.abort("the broker does not read")


def shared_by_upstreams(door: DoorConfig, clock: Clock, connections_max: int) -> Shared:
    """Return what the connections of all clients share."""
    shared = Shared(dict.fromkeys(_ASKED_OF_CLIENTS, _to_client), door, clock)
    shared.connections_max = connections_max
    shared.calls_max = REQUESTS_MAX
    return shared


def _to_client(command: Command, broker: Connection) -> Any:
    assert isinstance(broker, Upstream)
    if command.is_oneway:
        broker.client.notify(command)
        return None
    return asyncio.get_running_loop().create_task(call(broker.client, command))


_ASKED_OF_CLIENTS = (
    Request.CHECK_TRANSACTION_STATE,
    Request.NOTIFY_CONSUMER_IDS_CHANGED,
    Request.RESET_CONSUMER_CLIENT_OFFSET,
    Request.GET_CONSUMER_RUNNING_INFO,
    Request.CONSUME_MESSAGE_DIRECTLY,
    Request.PUSH_REPLY_MESSAGE_TO_CLIENT,
)


class Upstreams:
    """The connections of one client, by the address of the broker."""

    def __init__(self, client: Connection, shared: Shared, links: NodeLinks) -> None:
        self._client = client
        self._shared = shared
        self._links = links
        self._opened: dict[str, asyncio.Task[Upstream]] = {}
        #: Names of the groups in the routes that the client has got.
        self.routed: set[str] = set()

    async def at(self, address: str) -> Upstream:
        """Return the connection to a broker. Raises OSError, RemotingError."""
        if self._client.closed:
            raise ConnectionError("the client has left")
        opened = self._opened.get(address)
        if opened is None or (opened.done() and _is_over(opened)):
            if len(self._shared.connections) >= self._shared.connections_max:
                raise RemotingError(
                    Reply.SYSTEM_BUSY,
                    f"this proxy has {self._shared.connections_max} connections to brokers",
                )
            opened = asyncio.get_running_loop().create_task(self._dial(address))
            self._opened[address] = opened
        # Other requests wait for it, too.
        return opened.result() if opened.done() else await asyncio.shield(opened)

    async def _dial(self, address: str) -> Upstream:
        def make() -> Upstream:
            return Upstream(self._shared, self._client, address)

        return await dial(address, make, self._links, _CONNECT_S)

    def keep(self, addresses: Container[str]) -> None:
        """End the connections to other brokers: they have gone."""
        for address, opened in list(self._opened.items()):
            if address not in addresses and opened.done():
                del self._opened[address]
                if not _is_over(opened):
                    opened.result().abort("the broker has gone")

    def close(self) -> None:
        """End all connections when the requests in their buffers are sent."""
        for opened in self._opened.values():
            if not opened.done():
                opened.cancel()
            elif not _is_over(opened):
                opened.result().close()
        self._opened.clear()


def _is_over(opened: asyncio.Task[Upstream]) -> bool:
    """Return whether an attempt to connect failed, or its connection has ended."""
    return opened.cancelled() or opened.exception() is not None or opened.result().closed
