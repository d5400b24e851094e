"""Producer: single sends, batches, FIFO, delayed and priority messages.

    async with Producer("127.0.0.1:8081") as producer:
        await producer.send("orders", b"...", tag="new", keys=["o-1"])

A receipt means what the broker's durability settings guarantee. Sends of one message group reach
the broker in the order of the calls. Leaving the context sends lingering messages. A failure that
may have stored the message raises `OutcomeUnknown` with its message id.
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
from .outgoing import Outgoing, message_proto, outgoing, outgoing_like
from .sending import Result, send_together
from .session import Options, Session

logger = logging.getLogger(__name__)

BATCH_SIZE = 32
#: Messages that a broker accepts in one request.
BATCH_SIZE_MAX = 1_000
#: Batch requests in flight.
REQUESTS_MAX = 64
#: Added to the request timeout: how long a close waits for sends.
_CLOSE_MARGIN_S = 5.0


class Extras(TypedDict, total=False):
    """Optional fields of a message."""

    tag: str
    keys: Iterable[str] | str
    properties: Mapping[str, str]
    #: Message group: messages of one group keep their order.
    group: str
    deliver_at: datetime
    deliver_in: timedelta | float
    priority: int
    #: Of a topic of type lite: the lite topic inside it.
    lite_topic: str


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
        """With `linger` seconds above 0, calls of `send` share requests as `send_many` does.

        Raises ValueError for a `batch_size` outside 1 to BATCH_SIZE_MAX.
        """
        if not 1 <= batch_size <= BATCH_SIZE_MAX:
            raise ValueError(f"batch_size is 1 to {BATCH_SIZE_MAX}, not {batch_size}")
        self._session = Session(endpoints, v2.PRODUCER, self._fill_settings, options)
        self._session.on_settings = self._apply_settings
        self._topics = list(topics)
        self._interceptors = tuple(interceptors)
        self._ids = MessageIds()
        self._linger_s = linger
        self._batcher = Batcher(self._send_batch, batch_size, linger, REQUESTS_MAX)
        self._last_sends: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._body_max = 4 << 20
        self._closing = False
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> Self:
        """Connect. Raises ConnectionFailed, or NotFound for a missing topic of `topics`."""
        await self._session.start(self._topics, settle=True)
        self._closing = False
        return self

    async def close(self) -> None:
        """Refuse new sends, wait for those in flight, then disconnect."""
        self._closing = True
        try:
            async with asyncio.timeout(self._session.timeout_s + _CLOSE_MARGIN_S):
                await self._batcher.flush()
                await self._idle.wait()
        except TimeoutError:
            # Sends of a message group queue up while the broker is unreachable: they raise Closed.
            logger.warning("producer.closed_under_sends count=%d", self._in_flight)
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
        """Send one message and return its receipt.

        `within`: seconds for all attempts. `message_id` repeats a send whose outcome was unknown.
        Raises ValueError, TypeError, RequestRefused, ConnectionFailed, OutcomeUnknown.
        """
        message = self._message(topic, body, message_id, extras)
        with self._tracked():
            if message.sequence:
                return await self._send_ordered(message, within)
            if self._linger_s and message.kind == v2.NORMAL:
                return await (await self._batcher.add(message))
            return _unwrap(await self._send([message], within))

    async def send_many(
        self, topic: str, bodies: Iterable[bytes], **extras: Unpack[Extras]
    ) -> list[Receipt | CometError]:
        """Send messages in shared requests. Return each message's receipt or error, in order."""
        rest = iter(bodies)
        body = next(rest, None)
        if body is None:
            return []
        first = self._message(topic, body, "", extras, check_size=False)
        messages = [first, *outgoing_like(first, rest, self._ids.make)]
        for message in messages:
            self._check_size(message)
        with self._tracked():
            if first.kind != v2.NORMAL:
                return await self._one_by_one(messages)
            return await self._batcher.send_all(messages)

    async def recall(self, receipt: Receipt) -> str:
        """Cancel a delayed message before its delivery. Return its message id.

        Raises ValueError for a receipt of another type, RequestRefused.
        """
        if not receipt.recall_handle:
            raise ValueError("the receipt has no recall handle: only delayed messages have one")
        request = v2.RecallMessageRequest(
            topic=self._session.resource(receipt.topic), recall_handle=receipt.recall_handle
        )
        answer = await self._session.call_until_done(
            None, paths.RECALL_MESSAGE, request, v2.RecallMessageResponse
        )
        return answer.message_id

    async def flush(self) -> None:
        """Send lingering messages and wait for the results of all batches."""
        await self._batcher.flush()

    @contextmanager
    def _tracked(self) -> Iterator[None]:
        """Count a send in flight; `close` waits for it."""
        if self._closing:
            raise Closed("the producer is closing")
        self._in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    def _message(
        self,
        topic: str,
        body: bytes,
        message_id: str,
        extras: Extras,
        *,
        transactional: bool = False,
        check_size: bool = True,
    ) -> Outgoing:
        self._session.check()
        message = outgoing(
            topic,
            body,
            message_id or self._ids.make(),
            wall_ms(),
            namespace=self._session.namespace,
            transactional=transactional,
            **extras,
        )
        if check_size:
            self._check_size(message)
        return message

    def _check_size(self, message: Outgoing) -> None:
        if len(message.body) > self._body_max:
            raise ValueError(
                f"body of {len(message.body)} bytes: the server accepts {self._body_max}"
            )

    async def _send(self, messages: Sequence[Outgoing], within: float | None) -> list[Result]:
        budget_s = self._session.timeout_s if within is None else within
        if not self._interceptors:
            return await send_together(self._session, messages, budget_s)
        for message in messages:
            message.proto = message.proto or message_proto(message)
            call_all(self._interceptors, "sending", message.proto)
        try:
            results = await send_together(self._session, messages, budget_s)
        except BaseException as error:
            for message in messages:
                call_all(self._interceptors, "sent", message.proto, _failure(error, message))
            raise
        for message, result in zip(messages, results, strict=True):
            call_all(self._interceptors, "sent", message.proto, result)
        return results

    async def _send_batch(self, messages: list[Outgoing]) -> list[Result]:
        return await self._send(messages, None)

    async def _send_ordered(self, message: Outgoing, within: float | None) -> Receipt:
        """Send after the previous send of the sequence: concurrent requests could be reordered."""
        key = (message.topic, message.sequence)
        previous = self._last_sends.get(key)
        mine = self._last_sends[key] = asyncio.get_running_loop().create_future()

        def done(_: object = None) -> None:
            mine.set_result(None)
            if self._last_sends.get(key) is mine:
                del self._last_sends[key]

        try:
            if previous is not None:
                await asyncio.wait([previous])
            return _unwrap(await self._send([message], within))
        finally:
            if previous is None or previous.done():
                done()
            else:  # cancelled while it waited: the next send waits for the previous one
                previous.add_done_callback(done)

    async def _one_by_one(self, messages: list[Outgoing]) -> list[Receipt | CometError]:
        found: list[Receipt | CometError] = []
        for message in messages:
            try:
                found.append(
                    await self._send_ordered(message, None)
                    if message.sequence
                    else _unwrap(await self._send([message], None))
                )
            except CometError as error:
                found.append(error)
        return found

    def _fill_settings(self, settings: v2.Settings) -> None:
        for topic in {*self._topics, *self._session.topics}:
            settings.publishing.topics.append(self._session.resource(topic))
        settings.publishing.SetInParent()
        settings.backoff_policy.max_attempts = 3
        backoff = settings.backoff_policy.exponential_backoff
        backoff.initial.FromMilliseconds(10)
        backoff.max.FromMilliseconds(1_000)
        backoff.multiplier = 2.0

    def _apply_settings(self, settings: v2.Settings) -> None:
        if settings.publishing.max_body_size > 0:
            self._body_max = settings.publishing.max_body_size


def _failure(error: BaseException, message: Outgoing) -> Exception:
    """Return the error for the `sent` hook. A cancelled send may have been executed."""
    if isinstance(error, Exception):
        return error
    return OutcomeUnknown("the send was cancelled", message.message_id)


def _unwrap(results: list[Result]) -> Receipt:
    (result,) = results
    if isinstance(result, CometError):
        raise result
    return result
