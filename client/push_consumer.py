"""Calls a handler with every message: returning acknowledges, raising tries again later.

    async def handle(message: Message) -> None: ...

    async with PushConsumer("127.0.0.1:8081", handle, group="billing", topics="orders", concurrency=16):
        await stopped.wait()

Promises: at most `concurrency` handlers run at once; at most `cached` messages wait for one, beyond
which nothing more is received; the broker keeps messages hidden for as long as this client lives. In a
group that keeps order, messages of one message group are handled one after the other, a failing one is
tried again here after its pause and given up (dead letter) after the last attempt. Because the broker
hides what we hold, it is told of every message until it has understood; a message counts as held until
then. What an interceptor raises is a failure of that message. `close` takes no new messages, waits for
running handlers and begins no retries (client wire, section 2; gRPC API, sections 7.4-7.6).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self, Unpack

from ..proto import paths, v2
from .ack_dispatcher import AckDispatcher
from .base import Client
from .clock import steady_s
from .consuming import describe, receive
from .errors import CometError, NotFound
from .filters import Topics, subscriptions
from .interceptors import Interceptor, call_all, is_coroutine
from .message import Message
from .retry_policy import RetryPolicy, read_policy
from .retrying import RetryableError
from .routes import Queue, next_queue, read_route
from .session import Options, Session

log = logging.getLogger(__name__)

Handler = Callable[[Message], "Awaitable[object] | object"]
ASSIGNMENT_S = 5.0
CONCURRENCY = 16
CACHED_MAX = 1_024
_POLL_S = 20.0
_BATCH = 32
_PAUSE_S = 1.0
_BUSY_PAUSE_S = 0.02
_AT_ONCE_S = 0.05
"""A long poll that brings nothing so soon did not wait: the next one is not sent at once."""
_CLOSE_S = 30.0
"""How long a close waits for running handlers."""


class PushConsumer(Client):
    """Open it with `async with`, or with `start` and `close`."""

    def __init__(
        self,
        endpoints: str,
        handler: Handler,
        *,
        group: str,
        topics: Topics,
        concurrency: int = CONCURRENCY,
        cached: int = CACHED_MAX,
        interceptors: Sequence[Interceptor] = (),
        **options: Unpack[Options],
    ) -> None:
        """A handler that is no coroutine function runs in a thread."""
        if concurrency < 1 or cached < 1:
            raise ValueError("concurrency and cached are at least 1")
        self._handler = handler
        self._in_thread = not is_coroutine(handler)
        self._threads: ThreadPoolExecutor | None = None
        self._concurrency = concurrency
        self._subscriptions = subscriptions(topics)
        self._interceptors = tuple(interceptors)
        self._session = Session(endpoints, v2.PUSH_CONSUMER, self._describe, options, group)
        self._session.on_settings = self._settled
        self._policy = RetryPolicy()
        self._fifo: bool | None = None
        self._poll_s = _POLL_S
        self._batch = _BATCH
        self._cached_max = cached
        self._cached = 0
        self._room = asyncio.Event()
        self._room.set()
        self._slots = asyncio.Semaphore(concurrency)
        self._loops: dict[tuple[str, Queue], asyncio.Task[None]] = {}
        self._running: set[asyncio.Future[None]] = set()
        self._assigning: asyncio.Task[None] | None = None
        self._teller = AckDispatcher(self._session, self._settle)

    async def start(self) -> Self:
        """Connect and begin. Raises ConnectionFailed or NotFound."""
        await self._session.start(list(self._subscriptions), settle=True)
        self._teller.closing.clear()
        if self._in_thread:  # the loop's own pool has fewer threads than `concurrency` promises
            self._threads = ThreadPoolExecutor(self._concurrency, "cometmq-handler")
        self._assigning = asyncio.create_task(self._keep_assigned())
        return self

    async def close(self) -> None:
        """Receive no more, wait for running handlers, say good-bye."""
        self._teller.closing.set()
        loops = [*self._loops.values()]
        if self._assigning is not None:
            loops.append(self._assigning)
        for task in loops:
            task.cancel()
        try:
            await asyncio.gather(*loops, return_exceptions=True)
            self._loops.clear()
            await self._finish_running()
        finally:
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)
            await self._session.close()

    async def _finish_running(self) -> None:
        """Until nothing runs, acknowledgements that handlers leave behind included, or time is over."""
        me = asyncio.current_task()  # a handler may close its own consumer
        try:
            async with asyncio.timeout(_CLOSE_S):
                while running := self._running - {me}:
                    await asyncio.wait(running)
        except TimeoutError:
            late = self._running - {me}
            log.warning("push.closed_under_handlers count=%d", len(late))
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # Which queues.

    async def _keep_assigned(self) -> None:
        while True:
            for topic in self._subscriptions:
                try:
                    self._adopt(topic, await self._assigned(topic))
                except (CometError, RetryableError) as error:
                    # What was assigned before goes on.
                    log.info("push.not_assigned topic=%s error=%s", topic, error)
                except Exception:  # a defect: assignments are not to end with it
                    log.exception("push.not_assigned topic=%s", topic)
            await asyncio.sleep(ASSIGNMENT_S if self._loops else _PAUSE_S)

    async def _assigned(self, topic: str) -> set[Queue]:
        session = self._session
        route = await session.route(topic)
        queue = next_queue(route.readable, route, session.isolation, steady_s())
        if queue is None:
            raise NotFound(v2.TOPIC_NOT_FOUND, f"topic {topic} has no readable queue")
        request = v2.QueryAssignmentRequest(
            topic=session.resource(topic),
            group=session.resource(session.group),
            endpoints=session.access_point.proto(),
        )
        answer = await session.ask_until_done(
            queue.target, paths.QUERY_ASSIGNMENT, request, v2.QueryAssignmentResponse
        )
        queues = [assignment.message_queue for assignment in answer.assignments]
        return set(read_route(topic, queues).readable)

    def _adopt(self, topic: str, queues: set[Queue]) -> None:
        for key in [key for key in self._loops if key[0] == topic and key[1] not in queues]:
            self._loops.pop(key).cancel()
        for queue in queues:
            key = (topic, queue)
            if key not in self._loops or self._loops[key].done():
                self._loops[key] = asyncio.create_task(self._keep_receiving(topic, queue))

    async def _keep_receiving(self, topic: str, queue: Queue) -> None:
        attempt_id = uuid.uuid4().hex
        while True:
            await self._room.wait()
            began_s = steady_s()
            try:
                found = await receive(
                    self._session,
                    queue,
                    self._subscriptions[topic],
                    count=self._batch,
                    wait_s=self._poll_s,
                    invisible_s=None,
                    attempt_id=attempt_id,
                )
            except RetryableError as error:
                busy = getattr(error.cause, "code", 0) == v2.TOO_MANY_REQUESTS
                await asyncio.sleep(_BUSY_PAUSE_S if busy else _PAUSE_S)
                continue
            except CometError as error:
                log.warning("push.receive_refused topic=%s error=%s", topic, error)
                await asyncio.sleep(_PAUSE_S)
                continue
            if found:
                attempt_id = uuid.uuid4().hex
                self._take(found)
            elif steady_s() - began_s < _AT_ONCE_S:
                await asyncio.sleep(_PAUSE_S)

    # Handling.

    def _take(self, messages: list[Message]) -> None:
        self._cached += len(messages)
        if self._cached >= self._cached_max:
            self._room.clear()
        if not self._fifo:
            for message in messages:
                self._run(self._handle_one(message))
            return
        chains: dict[str, list[Message]] = {}
        for message in messages:
            chains.setdefault(message.group, []).append(message)
        for chain in chains.values():
            self._run(self._handle_in_order(chain))

    def _run(self, work: Awaitable[None]) -> None:
        self._keep(asyncio.ensure_future(work))

    def _keep(self, task: asyncio.Future[None]) -> None:
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _settle(self, count: int = 1) -> None:
        self._cached -= count
        if self._cached < self._cached_max:
            self._room.set()

    async def _handle_one(self, message: Message) -> None:
        held = True
        try:
            async with self._slots:
                failure = await self._call(message, is_new=True)
            if failure is None:
                held = False
                if (acking := self._teller.ack_soon(message)) is not None:
                    self._keep(acking)
            else:
                pause_s = self._policy.pause_s(message.attempt)
                await self._teller.again_later(message, pause_s)
        finally:
            if held:
                self._settle()

    async def _handle_in_order(self, chain: list[Message]) -> None:
        """Messages of one group: the next only when the one before is done for good."""
        left = len(chain)
        try:
            for message in chain:
                if not await self._handle_to_the_end(message):
                    return
                left -= 1
                self._settle()
        finally:
            self._settle(left)

    async def _handle_to_the_end(self, message: Message) -> bool:
        """Whether it is done; not when a close came first, which leaves it to the next consumer."""
        is_new = True
        while True:
            async with self._slots:
                failure = await self._call(message, is_new=is_new)
            if failure is None:
                return await self._teller.acknowledge([message])
            most = self._policy.attempts_max
            if message.attempt >= most:
                return await self._teller.give_up(message, most)
            if await self._teller.closes_within(self._policy.pause_s(message.attempt)):
                return False
            message.attempt += 1
            is_new = False

    async def _call(self, message: Message, *, is_new: bool) -> Exception | None:
        """Run the handler: what it or an interceptor raised, or None."""
        failure: Exception | None = None
        try:
            if is_new:
                call_all(self._interceptors, "received", message)
            call_all(self._interceptors, "handling", message)
            await self._call_handler(message)
        except Exception as error:
            failure = error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            failure = RuntimeError("the handler was cancelled from within")
        try:
            call_all(self._interceptors, "handled", message, failure)
        except Exception as error:
            failure = failure or error
        if failure is not None:
            self._session.statistics.handler_failures += 1
            log.warning(
                "push.handler_failed topic=%s message=%s attempt=%d error=%r",
                *(message.topic, message.message_id, message.attempt, failure),
            )
        return failure

    async def _call_handler(self, message: Message) -> None:
        if self._threads is None:
            await self._handler(message)  # type: ignore[misc]
            return
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, context.run, self._handler, message)

    # Settings.

    def _describe(self, settings: v2.Settings) -> None:
        describe(self._session, settings, self._subscriptions, None)

    def _settled(self, settings: v2.Settings) -> None:
        if not settings.HasField("subscription"):
            return  # says nothing about consuming: what was said before stays
        mine = settings.subscription
        self._policy = read_policy(settings.backoff_policy)
        if self._fifo is None:
            self._fifo = mine.fifo  # clients decide once, at the start
        self._batch = mine.receive_batch_size if mine.receive_batch_size > 0 else _BATCH
        poll_s = mine.long_polling_timeout.ToMilliseconds() / 1000
        self._poll_s = poll_s if poll_s >= 1.0 else _POLL_S
