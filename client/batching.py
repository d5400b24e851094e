"""Client-side batches: messages that are sent at about the same time share a request.

The batch of a topic is sent when it is full (messages or bytes) or when its first message has
waited for the linger time. Messages of a topic keep the order of `add`. The number of requests in
flight is bounded; `add` waits beyond it. `flush` returns when every added message has a result.
Only normal messages are batched: Apache's broker chooses the queue of a batch without looking at
message groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .errors import BadRequest, CometError, TooLarge

if TYPE_CHECKING:
    from .message import Receipt
    from .outgoing import Outgoing
    from .sending import Result

#: Bytes of bodies in one request: brokers accept 4 MiB; smaller requests have lower latency.
BATCH_BYTES_MAX = 1 << 20

Send = Callable[[list["Outgoing"]], Awaitable[list["Result"]]]


@dataclass(slots=True)
class _Batch:
    messages: list[Outgoing] = field(default_factory=list)
    futures: list[asyncio.Future[Receipt]] = field(default_factory=list)
    size: int = 0
    timer: asyncio.TimerHandle | None = None


class Batcher:
    """Batches the messages of one producer."""

    def __init__(self, send: Send, batch_size: int, linger_s: float, requests_max: int) -> None:
        self._send = send
        self._batch_size = batch_size
        self._linger_s = linger_s
        self._request_slots = asyncio.Semaphore(requests_max)
        self._open: dict[str, _Batch] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, message: Outgoing) -> asyncio.Future[Receipt]:
        """Put a message into its topic's batch. Return a future with its receipt or error."""
        if self._request_slots.locked():
            async with self._request_slots:
                pass  # a request has ended
        loop = asyncio.get_running_loop()
        size = len(message.body)
        batch = self._open.get(message.topic)
        if batch is not None and batch.size + size > BATCH_BYTES_MAX:
            self._dispatch(message.topic)
            batch = None
        if batch is None:
            batch = self._open[message.topic] = _Batch()
            batch.timer = loop.call_later(self._linger_s, self._dispatch, message.topic)
        future: asyncio.Future[Receipt] = loop.create_future()
        batch.messages.append(message)
        batch.futures.append(future)
        batch.size += size
        if len(batch.messages) >= self._batch_size:
            self._dispatch(message.topic)
        return future

    async def send_all(self, messages: list[Outgoing]) -> list[Result]:
        """Send messages of one topic now, in full batches. Return one result each, in order."""
        chunks = list(_chunks(messages, self._batch_size))
        found = await asyncio.gather(*(self._send_chunk(chunk) for chunk in chunks))
        return [result for results in found for result in results]

    async def flush(self) -> None:
        """Send every open batch and wait for all results."""
        for topic in list(self._open):
            self._dispatch(topic)
        while self._tasks:
            await asyncio.wait(self._tasks)  # cancelling the caller does not cancel the tasks

    def _dispatch(self, topic: str) -> None:
        batch = self._open.pop(topic, None)
        if batch is None:
            return
        if batch.timer is not None:
            batch.timer.cancel()
        task = asyncio.create_task(self._deliver(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_chunk(self, messages: list[Outgoing]) -> list[Result]:
        async with self._request_slots:
            try:
                return await self._send(messages)
            except (BadRequest, TooLarge) as error:
                if len(messages) == 1:
                    return [error]
            except CometError as error:
                return [error for _ in messages]
            # One message made the broker refuse the batch: send each alone.
            return [await self._send_one(message) for message in messages]

    async def _send_one(self, message: Outgoing) -> Result:
        try:
            return (await self._send([message]))[0]
        except CometError as error:
            return error

    async def _deliver(self, batch: _Batch) -> None:
        try:
            results = await self._send_chunk(batch.messages)
        except Exception as error:  # raised by an interceptor: fail every send of the batch
            for future in batch.futures:
                if not future.done():
                    future.set_exception(error)
            return
        except BaseException:
            for future in batch.futures:
                future.cancel()
            raise
        for future, result in zip(batch.futures, results, strict=True):
            if future.done():
                continue
            if isinstance(result, CometError):
                future.set_exception(result)
            else:
                future.set_result(result)


def _chunks(messages: list[Outgoing], count_max: int) -> Iterator[list[Outgoing]]:
    """Yield runs of messages, bounded in number and bytes; at least one message each."""
    chunk: list[Outgoing] = []
    size = 0
    for message in messages:
        length = len(message.body)
        if chunk and (len(chunk) >= count_max or size + length > BATCH_BYTES_MAX):
            yield chunk
            chunk, size = [], 0
        chunk.append(message)
        size += length
    if chunk:
        yield chunk
