"""One SendMessage and all its tries: the queue, the request, what the answer means.

Promises: one receipt for each message, in order, or the error of that message; every try carries the
same message ids; a try goes to another endpoint when one failed, and asks for the route again when
the server says that it does not lead (gRPC API, section 5.5; client wire, section 2).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..proto import paths, v2
from ..proto.errors import CODES, is_retriable
from .clock import steady_s
from .errors import CometError, NotFound, refused
from .message import Receipt
from .retrying import Again, until_done
from .routes import Queue, next_queue, queue_of_group

if TYPE_CHECKING:
    from .outgoing import Outgoing
    from .session import Session

log = logging.getLogger(__name__)

Result = Receipt | CometError
_ROUTE_AGAIN = frozenset((v2.HA_NOT_AVAILABLE, v2.FORBIDDEN, v2.TOPIC_NOT_FOUND))


async def send_together(
    session: Session, messages: Sequence[Outgoing], timeout_s: float
) -> list[Result]:
    """Send messages of one topic in one request. Raises when the request failed as a whole."""
    first = messages[0]
    await session.route(first.topic)
    request = v2.SendMessageRequest(messages=[message.proto for message in messages])
    tries = 0

    async def once() -> list[Result]:
        nonlocal tries
        tries += 1
        if tries > 1:
            session.statistics.send_retries += 1
        queue = await _queue(session, first)
        for message in request.messages:
            message.system_properties.queue_id = queue.queue_id
        session.statistics.send_requests += 1
        answer = await session.ask(
            queue.target, paths.SEND_MESSAGE, request, v2.SendMessageResponse
        )
        code = answer.status.code
        if code in (v2.OK, v2.MULTIPLE_RESULTS):
            return _results(messages, answer, queue)
        error = refused(code, answer.status.message)
        if code in _ROUTE_AGAIN:
            await _ask_route_again(session, first.topic)
        if is_retriable(code):
            raise Again(error, maybe_done=CODES[code].outcome_unknown)
        raise error

    try:
        results = await until_done(once, timeout_s, first.message_id)
    except CometError:
        session.statistics.send_failures += len(messages)
        raise
    session.statistics.sent += sum(isinstance(result, Receipt) for result in results)
    return results


async def _queue(session: Session, message: Outgoing) -> Queue:
    route = await session.route(message.topic)
    if message.group:
        queue = queue_of_group(route.writable, message.group)
    else:
        queue = next_queue(route.writable, route, session.isolation, steady_s())
    if queue is None:
        raise refused(v2.FORBIDDEN, f"topic {message.topic} has no writable queue")
    return queue


async def _ask_route_again(session: Session, topic: str) -> None:
    try:
        await asyncio.wait_for(session.refresh(topic), session.request_timeout_s)
    except NotFound:
        raise
    except (CometError, TimeoutError) as error:
        # The known route stays; the next try may find its endpoints well again.
        log.info("client.route_not_refreshed topic=%s error=%s", topic, error)


def _results(
    messages: Sequence[Outgoing], answer: v2.SendMessageResponse, queue: Queue
) -> list[Result]:
    entries = answer.entries
    if len(entries) == len(messages):
        return [
            _result(message, entry, queue) for message, entry in zip(messages, entries, strict=True)
        ]
    if len(entries) == 1 and entries[0].status.code in (v2.OK, v2.CODE_UNSPECIFIED):
        # Apache's proxy answers once for all messages of a request.
        first = entries[0].offset
        return [
            Receipt(message.message_id, message.topic, queue.broker, first + step)
            for step, message in enumerate(messages)
        ]
    error = refused(v2.INTERNAL_ERROR, f"{len(entries)} results came for {len(messages)} messages")
    return [error for _ in messages]


def _result(message: Outgoing, entry: v2.SendResultEntry, queue: Queue) -> Result:
    code = entry.status.code
    if code not in (v2.OK, v2.CODE_UNSPECIFIED):
        return refused(code, entry.status.message)
    return Receipt(
        entry.message_id or message.message_id,
        message.topic,
        queue.broker,
        entry.offset,
        entry.transaction_id,
        entry.recall_handle,
    )
