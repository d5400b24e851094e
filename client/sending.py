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
from .errors import CometError, ConnectionFailed, NotFound, OutcomeUnknown, refused
from .message import Receipt
from .retrying import RetryableError, until_done
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
    began_s = steady_s()
    await _known(session, first.topic, timeout_s)
    request = v2.SendMessageRequest(messages=[message.proto for message in messages])
    tries, unsure = 0, False

    async def once(left_s: float) -> list[Result]:
        nonlocal tries, unsure
        tries += 1
        if tries > 1:
            session.statistics.send_retries += 1
        try_s = steady_s()
        queue = await _queue(session, first)
        for message in request.messages:
            message.system_properties.queue_id = queue.queue_id
        session.statistics.send_requests += 1
        try:
            answer = await session.ask(
                queue.target, paths.SEND_MESSAGE, request, v2.SendMessageResponse, left_s
            )
        except RetryableError as error:
            unsure = unsure or error.maybe_done
            if tries > 1:  # it may be gone for good, and its successor somewhere else
                await _ask_route_again(session, first.topic, try_s, left_s)
            raise
        code = answer.status.code
        if code in (v2.OK, v2.MULTIPLE_RESULTS):
            return _results(messages, answer, queue, unsure)
        if code == v2.CODE_UNSPECIFIED:
            said = f"{queue.target} answered a send without saying what became of it"
            raise OutcomeUnknown(said, first.message_id)
        refusal = refused(code, answer.status.message)
        if code in _ROUTE_AGAIN:
            await _ask_route_again(session, first.topic, try_s, left_s)
        if is_retriable(code):
            unsure = unsure or CODES[code].outcome_unknown
            raise RetryableError(refusal, maybe_done=CODES[code].outcome_unknown)
        raise refusal

    try:
        left_s = max(timeout_s - (steady_s() - began_s), 0.0)
        results = await until_done(once, left_s, first.message_id)
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


async def _known(session: Session, topic: str, timeout_s: float) -> None:
    """Have a route; without one nothing was sent."""
    try:
        async with asyncio.timeout(timeout_s):
            await session.route(topic)
    except TimeoutError:
        raise ConnectionFailed(f"no route of topic {topic} came in time") from None


async def _ask_route_again(session: Session, topic: str, since_s: float, left_s: float) -> None:
    """Once for all the sends that failed together: not when it was asked for since this try began."""
    if (await session.route(topic)).asked_s > since_s:
        return
    try:
        patience_s = min(session.request_timeout_s, left_s)
        await asyncio.wait_for(session.refresh(topic), patience_s)
    except NotFound:
        raise
    except (CometError, TimeoutError) as error:
        # The known route stays; the next try may find its endpoints well again.
        log.info("client.route_not_refreshed topic=%s error=%s", topic, error)


def _results(
    messages: Sequence[Outgoing], answer: v2.SendMessageResponse, queue: Queue, unsure: bool
) -> list[Result]:
    """`unsure`: a try before this one may have stored the messages."""
    entries = answer.entries
    if len(entries) == len(messages):
        return [
            _result(message, entry, queue, unsure)
            for message, entry in zip(messages, entries, strict=True)
        ]
    if len(entries) == 1 and entries[0].status.code in (v2.OK, v2.CODE_UNSPECIFIED):
        # Apache's proxy answers once for all messages of a request.
        first = entries[0].offset
        return [
            Receipt(message.message_id, message.topic, queue.broker, first + step)
            for step, message in enumerate(messages)
        ]
    said = f"{len(entries)} results came for {len(messages)} messages"
    return [OutcomeUnknown(said, message.message_id) for message in messages]


def _result(message: Outgoing, entry: v2.SendResultEntry, queue: Queue, unsure: bool) -> Result:
    code = entry.status.code
    if code not in (v2.OK, v2.CODE_UNSPECIFIED):
        error = refused(code, entry.status.message)
        if unsure or (code in CODES and CODES[code].outcome_unknown):
            return OutcomeUnknown(f"it may have been stored: {error}", message.message_id)
        return error
    return Receipt(
        entry.message_id or message.message_id,
        message.topic,
        queue.broker,
        entry.offset,
        entry.transaction_id,
        entry.recall_handle,
    )
