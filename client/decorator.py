"""`@consumer(...)`: decorator that makes a function a push consumer.

    @cometmq.consumer("127.0.0.1:8081", group="billing", topics="orders")
    async def handle(message): ...

    handle.run()                          # until SIGINT or SIGTERM
    async with handle.open(): ...         # within another program

The decorated function stays callable, for unit tests.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable
from functools import update_wrapper
from typing import Any, Generic, TypeVar, Unpack

from .filters import Topics
from .push_consumer import CONCURRENCY, Handler, PushConsumer
from .session import Options

F = TypeVar("F", bound=Handler)


class HandlerConsumer(Generic[F]):
    """A handler together with the arguments of its push consumer."""

    def __init__(self, handler: F, make: Callable[[], PushConsumer]) -> None:
        self.handler = handler
        self._make = make
        update_wrapper(self, handler)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the handler."""
        return self.handler(*arguments, **named)

    def open(self) -> PushConsumer:
        """Return a consumer that calls the handler: use it with `async with`."""
        return self._make()

    def run(self) -> None:
        """Consume until SIGINT or SIGTERM, then wait for running handlers."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        consumer = self._make()
        stopping = asyncio.create_task(stopped.wait())
        starting = asyncio.create_task(consumer.start())
        try:
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await starting
                await stopping
        finally:
            stopping.cancel()
            # A start that is cancelled closes the connections that it has opened.
            starting.cancel()
            await asyncio.gather(starting, stopping, return_exceptions=True)
            await consumer.close()


def consumer(
    endpoints: str,
    *,
    group: str,
    topics: Topics,
    concurrency: int = CONCURRENCY,
    lite_topics: str | Iterable[str] | None = None,
    **options: Unpack[Options],
) -> Callable[[F], HandlerConsumer[F]]:
    """Decorate the handler of a push consumer: returning acknowledges, raising retries."""

    def decorate(handler: F) -> HandlerConsumer[F]:
        def make() -> PushConsumer:
            return PushConsumer(
                endpoints,
                handler,
                group=group,
                topics=topics,
                concurrency=concurrency,
                lite_topics=lite_topics,
                **options,
            )

        return HandlerConsumer(handler, make)

    return decorate
