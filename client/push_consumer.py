"""Push consumer: calls a handler with every message. Returning acknowledges, raising retries.

    async def handle(message: Message) -> None: ...

    async with PushConsumer("127.0.0.1:8081", handle, group="billing", topics="orders"):
        await stopped.wait()

At most `concurrency` handlers run at once. At most `cached` messages are held; beyond that nothing
is received. The broker hides held messages while this client is connected, so acknowledgements are
retried until the broker confirms them, and a message counts as held until then. In a FIFO group
the messages of one message group are handled one after the other; a failed one is retried here
after its pause and moved to the dead-letter queue after the last attempt. An exception of an
interceptor is a failure of the message. `close` receives nothing more, waits for running handlers
and starts no retries (docs/formats/client-wire.md, section 2; docs/formats/grpc-api.md, sections
7.4-7.6).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self, Unpack

from ..proto import paths, v2
from .ack_dispatcher import AckDispatcher
from .clock import steady_s
from .consuming import LiteConsumer, fill_subscription, receive
from .errors import CometError, NotFound
from .filters import Topics, subscriptions
from .interceptors import Interceptor, call_all, is_coroutine
from .message import Message
from .retry_policy import RetryPolicy, read_policy
from .retrying import RetryableError
from .routes import Queue, next_queue, read_route
from .session import Options, Session

logger = logging.getLogger(__name__)

Handler = Callable[[Message], "Awaitable[object] | object"]
ASSIGNMENT_S = 5.0
CONCURRENCY = 16
CACHED_MAX = 1_024
_POLL_S = 20.0
_BATCH = 32
_PAUSE_S = 1.0
_BUSY_PAUSE_S = 0.02
#: An empty long poll that returns sooner did not wait: pause before the next one.
_IMMEDIATE_S = 0.05
#: How long a close waits for running handlers.
_CLOSE_S = 30.0


class PushConsumer(LiteConsumer):
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
        lite_topics: str | Iterable[str] | None = None,
        interceptors: Sequence[Interceptor] = (),
        **options: Unpack[Options],
    ) -> None:
        """A handler that is not a coroutine function runs in a thread.

        `lite_topics` are those of one parent topic, each in its order; a group with
        `lite.sub.wildcard` receives all, and takes an empty list.
        """
        if concurrency < 1 or cached < 1:
            raise ValueError(
                f"concurrency is {concurrency}, cached is {cached}: both must be at least 1"
            )
        self._handler = handler
        self._in_thread = not is_coroutine(handler)
        self._threads: ThreadPoolExecutor | None = None
        self._concurrency = concurrency
        self._subscriptions = subscriptions(topics)
        self._interceptors = tuple(interceptors)
        self._session = Session(endpoints, v2.PUSH_CONSUMER, self._fill_settings, options, group)
        self._take_lite_topics(self._subscriptions, lite_topics)
        self._session.on_settings = self._apply_settings
        self._policy = RetryPolicy()
        self._fifo: bool | None = None
        self._poll_s = _POLL_S
        self._batch = _BATCH
        self._cached_max = cached
        self._cached = 0
        self._below_limit = asyncio.Event()
        self._below_limit.set()
        self._slots = asyncio.Semaphore(concurrency)
        self._loops: dict[tuple[str, Queue], asyncio.Task[None]] = {}
        self._running: set[asyncio.Future[None]] = set()
        self._assigning: asyncio.Task[None] | None = None
        self._acks = AckDispatcher(self._session, self._release)

    async def start(self) -> Self:
        """Connect and start receiving. Raises ConnectionFailed or NotFound."""
        await self._session.start(list(self._subscriptions), settle=True)
        self._acks.closing.clear()
        if self._in_thread:  # the event loop's default pool may have fewer than `concurrency`
            self._threads = ThreadPoolExecutor(self._concurrency, "cometmq-handler")
        self._assigning = asyncio.create_task(self._keep_assigned())
        return self

    async def close(self) -> None:
        """Stop receiving, wait for running handlers and disconnect."""
        self._acks.closing.set()
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
        """Wait for handlers and acknowledgements; cancel them after `_CLOSE_S`."""
        me = asyncio.current_task()  # a handler may close its consumer
        try:
            async with asyncio.timeout(_CLOSE_S):
                while running := self._running - {me}:
                    await asyncio.wait(running)
        except TimeoutError:
            late = self._running - {me}
            logger.warning("push.closed_under_handlers count=%d", len(late))
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # Assignment.

    async def _keep_assigned(self) -> None:
        while True:
            for topic in self._subscriptions:
                try:
                    self._adopt(topic, await self._assigned(topic))
                except (CometError, RetryableError) as error:
                    # The previous assignment stays.
                    logger.info("push.assignment_failed topic=%s error=%s", topic, error)
                except Exception:  # a defect: keep the loop running
                    logger.exception("push.assignment_failed topic=%s", topic)
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
        answer = await session.call_until_done(
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
            await self._below_limit.wait()
            began_s = steady_s()
            try:
                received = await receive(
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
                logger.warning("push.receive_refused topic=%s error=%s", topic, error)
                await asyncio.sleep(_PAUSE_S)
                continue
            if received:
                attempt_id = uuid.uuid4().hex
                self._take(received)
            elif steady_s() - began_s < _IMMEDIATE_S:
                await asyncio.sleep(_PAUSE_S)

    # Handling.

    def _take(self, messages: list[Message]) -> None:
        self._cached += len(messages)
        if self._cached >= self._cached_max:
            self._below_limit.clear()
        if not self._fifo:
            for message in messages:
                self._run(self._handle_one(message))
            return
        chains: dict[str, list[Message]] = {}
        for message in messages:
            chains.setdefault(message.lite_topic or message.group, []).append(message)
        for chain in chains.values():
            self._run(self._handle_in_order(chain))

    def _run(self, work: Awaitable[None]) -> None:
        self._keep(asyncio.ensure_future(work))

    def _keep(self, task: asyncio.Future[None]) -> None:
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _release(self, count: int = 1) -> None:
        self._cached -= count
        if self._cached < self._cached_max:
            self._below_limit.set()

    async def _handle_one(self, message: Message) -> None:
        held = True
        try:
            async with self._slots:
                failure = await self._call(message, is_new=True)
            if failure is None:
                held = False
                if (acking := self._acks.ack_soon(message)) is not None:
                    self._keep(acking)
            else:
                pause_s = self._policy.pause_s(message.attempt)
                await self._acks.nack(message, pause_s)
        finally:
            if held:
                self._release()

    async def _handle_in_order(self, chain: list[Message]) -> None:
        """Handle messages of one message group, each after the previous one has ended."""
        left = len(chain)
        try:
            for message in chain:
                if not await self._handle_with_retries(message):
                    return
                left -= 1
                self._release()
        finally:
            self._release(left)

    async def _handle_with_retries(self, message: Message) -> bool:
        """Return False when the consumer closes first: the broker delivers the message again."""
        is_new = True
        while True:
            async with self._slots:
                failure = await self._call(message, is_new=is_new)
            if failure is None:
                return await self._acks.acknowledge([message])
            attempts_max = self._policy.attempts_max
            if message.attempt >= attempts_max:
                return await self._acks.dead_letter(message, attempts_max)
            if await self._acks.closes_within(self._policy.pause_s(message.attempt)):
                return False
            message.attempt += 1
            is_new = False

    async def _call(self, message: Message, *, is_new: bool) -> Exception | None:
        """Run the handler. Return the exception of the handler or an interceptor, or None."""
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
            failure = RuntimeError("the handler raised CancelledError")
        try:
            call_all(self._interceptors, "handled", message, failure)
        except Exception as error:
            failure = failure or error
        if failure is not None:
            self._session.statistics.handler_failures += 1
            logger.warning(
                "push.handler_failed topic=%s message=%s attempt=%d error=%r",
                message.topic,
                message.message_id,
                message.attempt,
                failure,
                exc_info=failure,
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

    def _fill_settings(self, settings: v2.Settings) -> None:
        fill_subscription(self._session, settings, self._subscriptions, None)

    def _apply_settings(self, settings: v2.Settings) -> None:
        if not settings.HasField("subscription"):
            return  # keep the previous values
        subscription = settings.subscription
        self._policy = read_policy(settings.backoff_policy)
        if self._fifo is None:
            # Fixed by the first settings, as in official clients.
            self._fifo = subscription.fifo or self._subscribed is not None
        batch = subscription.receive_batch_size
        self._batch = batch if batch > 0 else _BATCH
        poll_s = subscription.long_polling_timeout.ToMilliseconds() / 1000
        self._poll_s = poll_s if poll_s >= 1.0 else _POLL_S
