"""Passes requests on to another server: opens the connection, and returns the server's response.

A request is passed on with its fields and its body, so the signature of a client stays valid. Only
its number is the connection's own.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from ..nodes.addresses import host_of
from .codes import Reply
from .command import Command
from .connection import Connection, PeerGoneError, RemotingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..nodes.node_links import NodeLinks

#: A client gives up before: the longest polls take half a minute.
ANSWER_S = 35.0

_Made = TypeVar("_Made", bound=Connection)


async def dial(
    address: str, make: Callable[[], _Made], links: NodeLinks, limit_s: float = 2.0
) -> _Made:
    """Return a new connection to a server at HOST:PORT. Raises OSError."""
    port = int(address.rpartition(":")[2])
    context = links.client_context()
    name = links.tls.tls_node_name if context is not None else None
    async with asyncio.timeout(limit_s):
        _, made = await asyncio.get_running_loop().create_connection(
            make, host_of(address), port, ssl=context, server_hostname=name
        )
    return made


async def pass_on(
    connection: Connection,
    command: Command,
    server: str,
    *,
    flag: int = 0,
    limit_s: float = ANSWER_S,
) -> Command | None:
    """Return the server's response; None to a oneway request.

    `server` names it in errors, with which clients look for another one. Raises RemotingError.
    """
    asked = replace(command)
    if command.is_oneway:
        connection.notify(asked, flag)
        return None
    try:
        answer = await asyncio.wait_for(connection.call(asked, flag), limit_s)
    except TimeoutError:
        raise unavailable(f"{server} did not answer in time") from None
    except PeerGoneError:
        raise unavailable(f"{server} has gone; the outcome is unknown") from None
    return Command(answer.code, dict(answer.fields), answer.body, remark=answer.remark)


def unavailable(reason: str) -> RemotingError:
    """Return the error upon which clients fetch the route and try again."""
    return RemotingError(Reply.SERVICE_NOT_AVAILABLE, reason)
