"""Receives when asked to, and acknowledges when told to.

    async with SimpleConsumer("127.0.0.1:8081", group="billing", topics={"orders": "new"}) as consumer:
        for message in await consumer.receive():
            await consumer.ack(message)

Promises: `receive` returns as soon as there is a message (of several topics each is asked in turn), and
an empty list only when the waiting time is over; brokers hold a poll for 5 s at least; a broker that cannot be reached is waited out within it. What is not acknowledged within its
invisible time is delivered again, its `attempt` counted (gRPC API, section 7).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Self, Unpack

from ..proto import v2
from .base import Client
from .clock import steady_s
from .consuming import Refusals, acknowledge, change_invisible, describe, receive
from .errors import NotFound
from .filters import Filter, Topics, subscriptions
from .interceptors import Interceptor, call_all
from .message import Message
from .retrying import RetryableError
from .routes import Queue, next_queue
from .session import Options, Session

WAIT_S = 20.0
INVISIBLE_S = 30.0
_PAUSE_S = 0.1
_BATCH_MAX = 32
_SLICE_S = 1.0
"""How long one of several topics is waited for while the others may have messages."""


class SimpleConsumer(Client):
    """Open it with `async with`, or with `start` and `close`."""

    def __init__(
        self,
        endpoints: str,
        *,
        group: str,
        topics: Topics,
        wait: float = WAIT_S,
        interceptors: Sequence[Interceptor] = (),
        **options: Unpack[Options],
    ) -> None:
        """`wait`: seconds that a receive waits for a message."""
        self._subscriptions = subscriptions(topics)
        self._wait_s = wait
        self._interceptors = tuple(interceptors)
        self._turn = 0
        self._session = Session(endpoints, v2.SIMPLE_CONSUMER, self._describe, options, group)

    async def start(self) -> Self:
        """Connect. Raises ConnectionFailed or NotFound."""
        await self._session.start(list(self._subscriptions), settle=True)
        return self

    async def close(self) -> None:
        """End what waits and say good-bye."""
        await self._session.close()

    async def receive(
        self,
        max_messages: int = _BATCH_MAX,
        *,
        invisible_for: float = INVISIBLE_S,
        wait: float | None = None,
    ) -> list[Message]:
        """Up to `max_messages` (at most 32 come at once), hidden from others for `invisible_for`
        seconds. Raises RequestRefused, or ConnectionFailed when nobody could be reached."""
        self._session.check()
        wait_s = self._wait_s if wait is None else wait
        end_s = steady_s() + wait_s
        while True:
            topic, queue = await self._next()
            wanted = self._subscriptions.get(topic)
            if wanted is None:  # unsubscribed while its route was asked for
                continue
            left_s = end_s - steady_s()
            if len(self._subscriptions) > 1:
                left_s = min(left_s, _SLICE_S)
            asked_s = steady_s()
            try:
                found = await receive(
                    self._session,
                    queue,
                    wanted,
                    count=max_messages,
                    wait_s=max(left_s, 0.0),
                    invisible_s=invisible_for,
                )
            except RetryableError as error:
                if steady_s() + _PAUSE_S >= end_s:
                    raise error.cause from None
                await asyncio.sleep(_PAUSE_S)
                continue
            for message in found:
                call_all(self._interceptors, "received", message)
            now_s = steady_s()
            if found or now_s + _PAUSE_S >= end_s:
                return found
            if now_s - asked_s < _PAUSE_S:  # it did not wait: do not ask it in a busy loop
                await asyncio.sleep(_PAUSE_S)

    async def ack(self, message: Message) -> None:
        """Be done with a message. Raises BadRequest when its time was over."""
        for _, error in await acknowledge(self._session, [message]):
            raise error

    async def ack_all(self, messages: Iterable[Message]) -> Refusals:
        """Be done with many, in one request an endpoint; those that were refused, and why."""
        return await acknowledge(self._session, messages)

    async def nack(self, message: Message, delay: float = 0.0) -> None:
        """Give a message back: it is delivered again after `delay` seconds."""
        await change_invisible(self._session, message, delay, give_back=True)

    async def change_invisible(self, message: Message, seconds: float) -> None:
        """Keep a message hidden for so long from now."""
        await change_invisible(self._session, message, seconds)

    async def subscribe(self, topic: str, wanted: str | Filter = "*") -> None:
        """Receive from another topic, too, or with another filter."""
        await self._session.route(topic)
        self._subscriptions[topic] = wanted if isinstance(wanted, Filter) else Filter(wanted)
        await self._session.resync()

    async def unsubscribe(self, topic: str) -> None:
        """Receive no more from a topic. Raises ValueError for the last one."""
        if list(self._subscriptions) == [topic]:
            raise ValueError("a consumer needs at least one topic")
        self._subscriptions.pop(topic, None)
        await self._session.resync()

    async def _next(self) -> tuple[str, Queue]:
        topics = list(self._subscriptions)
        self._turn += 1
        topic = topics[self._turn % len(topics)]
        route = await self._session.route(topic)
        queue = next_queue(route.readable, route, self._session.isolation, steady_s())
        if queue is None:
            raise NotFound(v2.TOPIC_NOT_FOUND, f"topic {topic} has no readable queue")
        return topic, queue

    def _describe(self, settings: v2.Settings) -> None:
        describe(self._session, settings, self._subscriptions, self._wait_s)
