"""Sends messages: one at a time, many together, in order, later, by priority.

    async with Producer("127.0.0.1:8081") as producer:
        await producer.send("orders", b"...", tag="new", keys=["o-1"])

Promises: a returned receipt means what the broker's durability settings say; sends of one message group
reach the broker in the order in which they were called; leaving the context sends what still waits. A
failure that may have stored the message is `OutcomeUnknown`, with the message id to look for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Self, TypedDict, Unpack

from ..proto import paths, v2
from .base import Client
from .batching import Batcher
from .clock import wall_ms
from .errors import Closed, CometError, OutcomeUnknown
from .identity import MessageIds
from .interceptors import Interceptor, call_all
from .message import Receipt
from .outgoing import Outgoing, outgoing, outgoing_like
from .sending import Result, send_together
from .session import Options, Session

log = logging.getLogger(__name__)

BATCH_SIZE = 32
REQUESTS_MAX = 64
"""Requests of batches under way: enough for any latency, few enough to be fair to a broker."""


_CLOSE_MORE_S = 5.0
"""Beyond the time of one request: how long a close waits for sends."""


class Extras(TypedDict, total=False):
    """What a message may carry besides topic and body."""

    tag: str
    keys: Iterable[str] | str
    properties: Mapping[str, str]
    group: str
    """Message group: messages of one group keep their order."""
    deliver_at: datetime
    deliver_in: timedelta | float
    priority: int


class Producer(Client):
    """Open it with `async with`, or with `start` and `close`."""

    def __init__(
        self,
        endpoints: str,
        *,
        topics: Sequence[str] = (),
        linger: float = 0.0,
        batch_size: int = BATCH_SIZE,
        interceptors: Sequence[Interceptor] = (),
        **options: Unpack[Options],
    ) -> None:
        """With `linger` seconds above 0, `send` shares requests as `send_many` does."""
        self._session = Session(endpoints, v2.PRODUCER, self._describe, options)
        self._session.on_settings = self._settled
        self._topics = list(topics)
        self._interceptors = tuple(interceptors)
        self._ids = MessageIds()
        self._linger_s = linger
        self._batcher = Batcher(self._send_batch, batch_size, linger, REQUESTS_MAX)
        self._turns: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._body_max = 4 << 20
        self._closing = False
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> Self:
        """Connect. Raises ConnectionFailed, or NotFound for a topic that was named and is not there."""
        await self._session.start(self._topics, settle=True)
        self._closing = False
        return self

    async def close(self) -> None:
        """Take no more, finish what was called before, then say good-bye."""
        self._closing = True
        try:
            async with asyncio.timeout(self._session.timeout_s + _CLOSE_MORE_S):
                await self._batcher.flush()
                await self._idle.wait()
        except TimeoutError:
            # Sends of one group behind each other, and nobody there: they raise Closed now.
            log.warning("producer.closed_under_sends count=%d", self._under_way)
        finally:
            await self._session.close()

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        message_id: str = "",
        within: float | None = None,
        **extras: Unpack[Extras],
    ) -> Receipt:
        """Send one message; done when the broker has it.

        `within`: seconds for all tries. `message_id` repeats a send whose outcome was unknown. Raises
        ValueError, RequestRefused, ConnectionFailed, OutcomeUnknown.
        """
        message = self._message(topic, body, message_id, extras)
        with self._work():
            if message.group:
                return await self._in_turn(message, within)
            if self._linger_s and message.kind == v2.NORMAL:
                return await (await self._batcher.add(message))
            return _one(await self._send([message], within))

    async def send_many(
        self, topic: str, bodies: Iterable[bytes], **extras: Unpack[Extras]
    ) -> list[Receipt | CometError]:
        """Send many messages together; for each, in order, its receipt or its error."""
        rest = iter(bodies)
        body = next(rest, None)
        if body is None:
            return []
        first = self._message(topic, body, "", extras, ready=False)
        messages = [first, *outgoing_like(first, rest, self._ids.make)]
        for message in messages:
            self._fits(message)
        with self._work():
            if first.kind != v2.NORMAL:
                return await self._one_by_one(messages)
            return await self._batcher.send_all(messages)

    async def recall(self, receipt: Receipt) -> str:
        """Take a delayed message back before its time; its message id. Raises RequestRefused."""
        if not receipt.recall_handle:
            raise ValueError("only a delayed message can be recalled: the receipt has no handle")
        request = v2.RecallMessageRequest(
            topic=self._session.resource(receipt.topic), recall_handle=receipt.recall_handle
        )
        answer = await self._session.ask_until_done(
            None, paths.RECALL_MESSAGE, request, v2.RecallMessageResponse
        )
        return answer.message_id

    async def flush(self) -> None:
        """Wait until nothing lingers and every batch is answered."""
        await self._batcher.flush()

    # Inside.

    @contextmanager
    def _work(self) -> Iterator[None]:
        """A close waits for what is done within."""
        if self._closing:
            raise Closed("the producer is being closed")
        self._under_way += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    def _message(
        self,
        topic: str,
        body: bytes,
        message_id: str,
        extras: Extras,
        *,
        transactional: bool = False,
        ready: bool = True,
    ) -> Outgoing:
        self._session.check()
        message = outgoing(
            topic,
            body,
            message_id or self._ids.make(),
            wall_ms(),
            transactional=transactional,
            **extras,
        )
        if self._session.namespace:
            message.proto.topic.resource_namespace = self._session.namespace
        if ready:
            self._fits(message)
        return message

    def _fits(self, message: Outgoing) -> None:
        if len(message.proto.body) > self._body_max:
            raise ValueError(f"the body is larger than the server's {self._body_max} bytes")

    async def _send(self, messages: Sequence[Outgoing], within: float | None) -> list[Result]:
        budget_s = self._session.timeout_s if within is None else within
        if self._interceptors:
            for message in messages:
                call_all(self._interceptors, "sending", message.proto)
        try:
            results = await send_together(self._session, messages, budget_s)
        except BaseException as error:
            for message in messages:
                call_all(self._interceptors, "sent", message.proto, _failure(error, message))
            raise
        if self._interceptors:
            for message, result in zip(messages, results, strict=True):
                call_all(self._interceptors, "sent", message.proto, result)
        return results

    async def _send_batch(self, messages: list[Outgoing]) -> list[Result]:
        return await self._send(messages, None)

    async def _in_turn(self, message: Outgoing, within: float | None) -> Receipt:
        """Sends of a group wait for each other: two requests under way could change places."""
        key = (message.topic, message.group)
        before = self._turns.get(key)
        mine = self._turns[key] = asyncio.get_running_loop().create_future()

        def done(_: object = None) -> None:
            mine.set_result(None)
            if self._turns.get(key) is mine:
                del self._turns[key]

        try:
            if before is not None:
                await asyncio.wait([before])
            return _one(await self._send([message], within))
        finally:
            if before is None or before.done():
                done()
            else:  # cancelled while it waited: whoever is behind it waits on for the one before
                before.add_done_callback(done)

    async def _one_by_one(self, messages: list[Outgoing]) -> list[Receipt | CometError]:
        found: list[Receipt | CometError] = []
        for message in messages:
            try:
                found.append(
                    await self._in_turn(message, None)
                    if message.group
                    else _one(await self._send([message], None))
                )
            except CometError as error:
                found.append(error)
        return found

    def _describe(self, settings: v2.Settings) -> None:
        for topic in {*self._topics, *self._session.topics}:
            settings.publishing.topics.append(self._session.resource(topic))
        settings.publishing.SetInParent()
        settings.backoff_policy.max_attempts = 3
        backoff = settings.backoff_policy.exponential_backoff
        backoff.initial.FromMilliseconds(10)
        backoff.max.FromMilliseconds(1_000)
        backoff.multiplier = 2.0

    def _settled(self, settings: v2.Settings) -> None:
        if settings.publishing.max_body_size > 0:
            self._body_max = settings.publishing.max_body_size


def _failure(error: BaseException, message: Outgoing) -> Exception:
    """What an interceptor is told; a cancelled send may have been executed."""
    if isinstance(error, Exception):
        return error
    return OutcomeUnknown("the send was cancelled", message.message_id)


def _one(results: list[Result]) -> Receipt:
    (result,) = results
    if isinstance(result, CometError):
        raise result
    return result
