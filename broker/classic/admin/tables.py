"""Tables for tools: names of topics and groups, versions, tasks of handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ....proto.errors import WireError
from ....remoting.bare_json import dumps
from ....remoting.codes import Reply
from ....remoting.command import Command, reply
from ....remoting.connection import RemotingError
from ..errors import reply_code

if TYPE_CHECKING:
    from ....remoting.connection import Connection, Handler
    from ...metadata.tables import Metadata

#: Rows of one answer, about 200 bytes each: below the largest frame.
ROWS_MAX = 40_000
#: Entries of a page, as in RocketMQ.
PAGE_MAX = 2_000


def in_task(handler: Callable[[Command], Coroutine[Any, Any, Command]]) -> Handler:
    """Return a handler that runs a coroutine; its errors have response codes."""

    async def run(command: Command) -> Command:
        try:
            return await handler(command)
        except WireError as error:
            raise RemotingError(reply_code(error.code), error.message) from None

    def handle(command: Command, _: Connection) -> asyncio.Task[Command]:
        return asyncio.get_running_loop().create_task(run(command))

    return handle


def document(found: Any, fields: dict[str, str] | None = None) -> Command:
    """Return the response with a JSON document."""
    return reply(Reply.SUCCESS, fields=fields, body=dumps(found))


def data_version(metadata: Metadata, started_ms: int) -> dict[str, int]:
    """Return the version of the tables: it changes when a topic or the number of groups does."""
    counter = metadata.version + len(metadata.groups)
    return {"counter": counter, "stateVersion": 0, "timestamp": started_ms}


def too_many_rows(count: int) -> RemotingError:
    """Return the error for an answer that would be too large."""
    return RemotingError(
        Reply.SYSTEM_ERROR,
        f"the answer has more than {count} rows: ask for one topic or group",
    )
