"""What handlers for topics and for groups share: lists, pages, versions, attributes, tasks."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ....proto import v2
from ....proto.errors import WireError
from ....remoting.bare_json import dumps
from ....remoting.codes import Reply
from ....remoting.command import Command, reply
from ....remoting.connection import RemotingError
from ...base.slices import Slices
from ..base.bodies import ITEMS_MAX, items_of, json_object, malformed, value_of
from ..base.errors import reply_code

if TYPE_CHECKING:
    from ....front.clock import Clock
    from ....remoting.connection import Connection, Handler
    from ...metadata.tables import Metadata

#: Rows of one answer, about 200 bytes each: below the largest frame.
ROWS_MAX = 40_000
#: Entries of a page, as in RocketMQ.
PAGE_MAX = 2_000
#: Refused entries of a list that the answer names.
_REFUSED_MAX = 20
#: Topics or groups that are created in one turn of the event loop: 10 ms.
_CREATED_A_TURN = 100


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


async def create_each(
    body: bytes,
    name: str,
    request_of: Callable[[Any], Any],
    create: Callable[[Any], Awaitable[None]],
) -> Command:
    """Create what the list `name` of a body has; one that is refused does not stop the others.

    `request_of` returns the request for an entry. Raises RemotingError if the body has no list,
    WireError with the reason of each that was refused or cannot be read.
    """

    def made(number: int, bean: Any) -> tuple[str, Any]:
        try:
            if number > ITEMS_MAX:
                raise malformed(f"{name} has over {ITEMS_MAX} entries")
            request = request_of(bean)
        except RemotingError as error:
            return f"entry {number}", WireError(v2.BAD_REQUEST, error.remark)
        return request.name, request

    async def act(request: Any) -> None:
        if isinstance(request, WireError):
            raise request
        await create(request)

    beans = items_of(json_object(body), name, sys.maxsize)
    return await do_each([made(number, bean) for number, bean in enumerate(beans, 1)], act)


async def do_each(
    objects: Sequence[tuple[str, Any]], act: Callable[[Any], Awaitable[None]]
) -> Command:
    """Act on each of the objects, which have names; one that is refused does not stop the others.

    Raises WireError with the reason of each that was refused.
    """
    refused: list[tuple[str, WireError]] = []
    for number, (name, each) in enumerate(objects, 1):
        try:
            await act(each)
        except WireError as error:
            refused.append((name, error))
        if number % _CREATED_A_TURN == 0:  # not each of them waits
            await asyncio.sleep(0)
    if refused:
        named = "; ".join(f"{each}: {error}" for each, error in refused[:_REFUSED_MAX])
        more = "; ..." if len(refused) > _REFUSED_MAX else ""
        text = f"{len(refused)} of {len(objects)} were refused, the others are done: {named}{more}"
        raise WireError(refused[0][1].code, text)
    return reply(Reply.SUCCESS)


def page_of(names: Iterable[str], first: int, count: int | None) -> list[str]:
    """Return a page of names, of at most PAGE_MAX; without `count` all of them."""
    listed = list(names)
    if count is None:
        return listed
    first = max(first, 0)
    return listed[first : first + min(max(count, 0), PAGE_MAX)]


async def beans_of(
    names: Iterable[str], clock: Clock, bean: Callable[[str], dict[str, Any] | None]
) -> bytes:
    """Return `"name":{...}` of each name with commas between them; None: removed meanwhile."""
    slices = Slices(clock)
    parts = []
    for name in names:
        made = bean(name)
        if made is not None:
            parts.append(json.dumps(name).encode() + b":" + dumps(made))
        await slices.pause()
    return b",".join(parts)


def attribute_changes(bean: Any) -> list[str]:
    """Return `+key=value` and `-key` for the attributes of a configuration; a bare key is set.

    Raises RemotingError.
    """
    attributes = value_of(bean, "attributes", dict, {})
    if len(attributes) > ITEMS_MAX:
        raise malformed(f"attributes has more than {ITEMS_MAX} entries")
    changes = []
    for name, value in attributes.items():
        key = str(name)  # fastjson's documents have numbers as keys, too
        if key.startswith("-"):
            changes.append(key)
        else:
            changes.append(f"+{key.removeprefix('+')}={value}")
    return changes


def too_many_rows(count: int) -> RemotingError:
    """Return the error for an answer that would be too large."""
    return RemotingError(
        Reply.SYSTEM_ERROR,
        f"the answer has more than {count} rows: ask for one topic or group",
    )
