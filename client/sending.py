"""SendMessage with its retries: queue selection, request, results.

Returns one receipt or error per message, in order. Every attempt carries the same message ids. A
retry goes to another endpoint; the route is refreshed when the server refuses because it is not
the leader (docs/formats/grpc-api.md, section 5.5; docs/formats/client-wire.md, section 2).
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
from .outgoing import Outgoing, send_request
from .retrying import RetryableError, until_done
from .routes import Queue, next_queue, queue_of_group

if TYPE_CHECKING:
    from .session import Session

logger = logging.getLogger(__name__)

Result = Receipt | CometError
#: An access point that vanished delays a new route until its connection fails; the known route
#: serves the next attempt meanwhile.
ROUTE_WAIT_S = 0.1
_STALE_ROUTE = frozenset((v2.HA_NOT_AVAILABLE, v2.FORBIDDEN, v2.TOPIC_NOT_FOUND))


async def send_together(
    session: Session, messages: Sequence[Outgoing], timeout_s: float
) -> list[Result]:
    """Send messages of one topic in one request. Raises CometError if the request fails."""
    first = messages[0]
    began_s = steady_s()
    await _ensure_route(session, first, timeout_s)
    tries, maybe_stored = 0, False

    async def once(left_s: float) -> list[Result]:
        nonlocal tries, maybe_stored
        tries += 1
        if tries > 1:
            session.statistics.send_retries += 1
        try_s = steady_s()
        queue = await _queue(session, first)
        request = send_request(messages, queue.queue_id)
        session.statistics.send_requests += 1
        try:
            answer = await session.call(
                queue.target, paths.SEND_MESSAGE, request, v2.SendMessageResponse, left_s
            )
        except RetryableError as error:
            maybe_stored = maybe_stored or error.maybe_done
            if tries > 1:  # another broker may be the leader now
                await _refresh_route(session, first.topic, try_s, left_s)
            raise
        code = answer.status.code
        if code in (v2.OK, v2.MULTIPLE_RESULTS):
            return _results(messages, answer, queue, maybe_stored)
        if code == v2.CODE_UNSPECIFIED:
            text = f"the response of {queue.target} to a send has no status"
            raise OutcomeUnknown(text, first.message_id)
        refusal = refused(code, answer.status.message)
        if code in _STALE_ROUTE:
            await _refresh_route(session, first.topic, try_s, left_s)
        if is_retriable(code):
            maybe_stored = maybe_stored or CODES[code].outcome_unknown
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
    if message.sequence:
        queue = queue_of_group(route.writable, message.sequence)
    else:
        queue = next_queue(route.writable, route, session.isolation, steady_s())
    if queue is None:
        raise refused(v2.FORBIDDEN, f"topic {message.topic} has no writable queue")
    return queue


async def _ensure_route(session: Session, message: Outgoing, timeout_s: float) -> None:
    """Wait for the topic's route. Raises ConnectionFailed: without a route nothing was sent.

    The broker's advice for a missing topic gets the type of topic that the message needs.
    """
    topic = message.topic
    try:
        async with asyncio.timeout(timeout_s):
            await session.route(topic)
    except TimeoutError:
        raise ConnectionFailed(f"no route of topic {topic} within {timeout_s:g} s") from None
    except NotFound as error:
        if message.kind == v2.NORMAL:
            raise
        kind, advice = v2.MessageType.Name(message.kind).lower(), f"topic create {topic}"
        sentence = error.message.replace(advice, f"{advice} --type {kind}")
        raise NotFound(error.code, sentence) from None


async def _refresh_route(session: Session, topic: str, since_s: float, left_s: float) -> None:
    """Refresh the route, unless a concurrent send has requested it after `since_s`."""
    if (await session.route(topic)).requested_s > since_s:
        return
    try:
        await asyncio.wait_for(session.refresh(topic), min(ROUTE_WAIT_S, left_s))
    except NotFound:
        raise
    except (CometError, TimeoutError) as error:
        # Keep the known route; its endpoints may recover before the next attempt.
        logger.info("client.route_not_refreshed topic=%s error=%s", topic, error)


def _results(
    messages: Sequence[Outgoing], answer: v2.SendMessageResponse, queue: Queue, maybe_stored: bool
) -> list[Result]:
    """`maybe_stored`: an earlier attempt may have stored the messages."""
    entries = answer.entries
    if len(entries) == len(messages):
        return [
            _result(message, entry, queue, maybe_stored)
            for message, entry in zip(messages, entries, strict=True)
        ]
    if len(entries) == 1 and entries[0].status.code in (v2.OK, v2.CODE_UNSPECIFIED):
        # Apache's proxy returns one result for all messages of a request.
        first = entries[0].offset
        return [
            Receipt(message.message_id, message.topic, queue.broker, first + step)
            for step, message in enumerate(messages)
        ]
    text = f"the response has {len(entries)} results for {len(messages)} messages"
    return [OutcomeUnknown(text, message.message_id) for message in messages]


def _result(
    message: Outgoing, entry: v2.SendResultEntry, queue: Queue, maybe_stored: bool
) -> Result:
    code = entry.status.code
    if code not in (v2.OK, v2.CODE_UNSPECIFIED):
        error = refused(code, entry.status.message)
        if maybe_stored or (code in CODES and CODES[code].outcome_unknown):
            return OutcomeUnknown(f"the message may be stored: {error}", message.message_id)
        return error
    return Receipt(
        entry.message_id or message.message_id,
        message.topic,
        queue.broker,
        entry.offset,
        entry.transaction_id,
        entry.recall_handle,
    )
