"""Simple consumer: explicit receive and acknowledge.

    async with SimpleConsumer("127.0.0.1:8081", group="billing", topics="orders") as consumer:
        for message in await consumer.receive():
            await consumer.ack(message)

`receive` returns as soon as a message is available (several topics are polled in turn), and an
empty list when the waiting time is over (from Apache's brokers not before 5 s). An unreachable
broker is retried within the waiting time. A message that is not acknowledged within its invisible
time is delivered again with a higher `attempt` (docs/formats/grpc-api.md, section 7).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Self, Unpack

from ..proto import v2
from .clock import steady_s
from .consuming import (
    LiteConsumer,
    Refusals,
    acknowledge,
    change_invisible,
    fill_subscription,
    receive,
)
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
#: Longest poll of one topic when several are subscribed.
_SLICE_S = 1.0


class SimpleConsumer(LiteConsumer):
    """Open it with `async with`, or with `start` and `close`."""

    def __init__(
        self,
        endpoints: str,
        *,
        group: str,
        topics: Topics,
        wait: float = WAIT_S,
        lite_topics: str | Iterable[str] | None = None,
        interceptors: Sequence[Interceptor] = (),
        **options: Unpack[Options],
    ) -> None:
        """`wait`: seconds that `receive` waits for a message. `lite_topics`: see `PushConsumer`."""
        self._subscriptions = subscriptions(topics)
        self._wait_s = wait
        self._interceptors = tuple(interceptors)
        self._turn = 0
        self._session = Session(endpoints, v2.SIMPLE_CONSUMER, self._fill_settings, options, group)
        self._take_lite_topics(self._subscriptions, lite_topics)

    async def start(self) -> Self:
        """Connect. Raises ConnectionFailed or NotFound."""
        await self._session.start(list(self._subscriptions), settle=True)
        return self

    async def close(self) -> None:
        """Cancel polls in flight and disconnect."""
        await self._session.close()

    async def receive(
        self,
        max_messages: int = _BATCH_MAX,
        *,
        invisible_for: float = INVISIBLE_S,
        wait: float | None = None,
    ) -> list[Message]:
        """Return up to `max_messages` (at most 32 per call), or none after `wait` seconds.

        With `wait=0` it returns only messages that are available now. Apache's brokers refuse a
        wait of less than 5 s: there it is 5 s.

        They are invisible to other consumers for `invisible_for` seconds. Raises RequestRefused,
        or ConnectionFailed when no endpoint was reachable.
        """
        self._session.check()
        wait_s = self._wait_s if wait is None else wait
        end_s = steady_s() + wait_s
        while True:
            topic, queue = await self._next()
            wanted = self._subscriptions.get(topic)
            if wanted is None:  # unsubscribed while the route was requested
                continue
            left_s = end_s - steady_s()
            if len(self._subscriptions) > 1:
                left_s = min(left_s, _SLICE_S)
            began_s = steady_s()
            try:
                received = await receive(
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
            for message in received:
                call_all(self._interceptors, "received", message)
            now_s = steady_s()
            if received or now_s + _PAUSE_S >= end_s:
                return received
            if now_s - began_s < _PAUSE_S:  # the broker did not hold the poll: avoid a busy loop
                await asyncio.sleep(_PAUSE_S)

    async def ack(self, message: Message) -> None:
        """Acknowledge a message. Raises BadRequest when its invisible time has expired."""
        for _, error in await acknowledge(self._session, [message]):
            raise error

    async def ack_all(self, messages: Iterable[Message]) -> Refusals:
        """Acknowledge messages, one request per topic and endpoint.

        Return the refused messages with their errors.
        """
        return await acknowledge(self._session, messages)

    async def nack(self, message: Message, delay: float = 0.0) -> None:
        """Return a message: the broker delivers it again after `delay` seconds."""
        await change_invisible(self._session, message, delay, give_back=True)

    async def change_invisible(self, message: Message, seconds: float) -> None:
        """Set a message's invisible time to `seconds` from now."""
        await change_invisible(self._session, message, seconds)

    async def subscribe(self, topic: str, wanted: str | Filter = "*") -> None:
        """Add a topic, or change its filter."""
        await self._session.route(topic)
        self._subscriptions[topic] = wanted if isinstance(wanted, Filter) else Filter(wanted)
        await self._session.resync()

    async def unsubscribe(self, topic: str) -> None:
        """Remove a topic. Raises ValueError for the last one."""
        if list(self._subscriptions) == [topic]:
            raise ValueError(f"{topic} is the last topic: a consumer needs at least one topic")
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

    def _fill_settings(self, settings: v2.Settings) -> None:
        fill_subscription(self._session, settings, self._subscriptions, self._wait_s)
