"""Calls a handler with every message: returning acknowledges, raising tries again later.

    async def handle(message: Message) -> None: ...

    async with PushConsumer("127.0.0.1:8081", handle, group="billing", topics="orders", concurrency=16):
        await stopped.wait()

Promises: at most `concurrency` handlers run at once; at most `cached` messages wait for one, beyond
which nothing more is received; the broker keeps messages hidden for as long as this client lives. In a
group that keeps order, messages of one message group are handled one after the other, a failing one is
tried again here after its pause and given up (dead letter) after the last attempt. `close` takes no new
messages and waits for running handlers (client wire, section 2; gRPC API, sections 7.4-7.6).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Self, Unpack

from ..proto import paths, v2
from .clock import steady_s
from .consuming import acknowledge, change_invisible, describe, give_up, receive
from .errors import BadRequest, CometError, NotFound
from .filters import Topics, subscriptions
from .interceptors import Interceptor, call_all
from .message import Message
from .pausing import RetryPolicy, read_policy
from .retrying import Again
from .routes import Queue, next_queue, read_route
from .session import Options, Session, Statistics

log = logging.getLogger(__name__)

Handler = Callable[[Message], "Awaitable[object] | object"]
ASSIGNMENT_S = 5.0
CONCURRENCY = 16
CACHED_MAX = 1_024
_POLL_S = 20.0
_BATCH = 32
_PAUSE_S = 1.0
_BUSY_PAUSE_S = 0.02
_CLOSE_S = 30.0
"""How long a close waits for running handlers."""
_ACK_LINGER_S = 0.002


class PushConsumer:
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
        self._in_thread = not _is_coroutine(handler)
        self._subscriptions = subscriptions(topics)
        self._interceptors = tuple(interceptors)
        self._session = Session(endpoints, v2.PUSH_CONSUMER, self._describe, options, group)
        self._session.on_settings = self._settled
        self._policy = RetryPolicy()
        self._fifo = False
        self._poll_s = _POLL_S
        self._batch = _BATCH
        self._cached_max = cached
        self._cached = 0
        self._room = asyncio.Event()
        self._room.set()
        self._slots = asyncio.Semaphore(concurrency)
        self._loops: dict[tuple[str, Queue], asyncio.Task[None]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._assigning: asyncio.Task[None] | None = None
        self._done: list[Message] = []
        self._acking: asyncio.Task[None] | None = None

    async def start(self) -> Self:
        """Connect and begin. Raises ConnectionFailed or NotFound."""
        await self._session.start(list(self._subscriptions), settle=True)
        self._assigning = asyncio.create_task(self._keep_assigned())
        return self

    async def close(self) -> None:
        """Receive no more, wait for running handlers, say good-bye."""
        loops = [*self._loops.values()]
        if self._assigning is not None:
            loops.append(self._assigning)
        for task in loops:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        self._loops.clear()
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=_CLOSE_S)
            for task in late:
                task.cancel()
        await self._send_acks()
        await self._session.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """What the broker knows this consumer by."""
        return self._session.client_id

    @property
    def statistics(self) -> Statistics:
        """Counts since it was made."""
        return self._session.statistics

    # Which queues.

    async def _keep_assigned(self) -> None:
        while True:
            for topic in self._subscriptions:
                try:
                    self._adopt(topic, await self._assigned(topic))
                except (CometError, Again) as error:
                    # What was assigned before goes on.
                    log.info("push.not_assigned topic=%s error=%s", topic, error)
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
            except Again as error:
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

    # Handling.

    def _take(self, messages: list[Message]) -> None:
        self._cached += len(messages)
        if self._cached >= self._cached_max:
            self._room.clear()
        for message in messages:
            call_all(self._interceptors, "received", message)
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
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _settle(self) -> None:
        self._cached -= 1
        if self._cached < self._cached_max:
            self._room.set()

    async def _handle_one(self, message: Message) -> None:
        try:
            async with self._slots:
                failure = await self._call(message)
            if failure is None:
                self._ack_soon(message)
            else:
                await self._again_later(message)
        finally:
            self._settle()

    async def _handle_in_order(self, chain: list[Message]) -> None:
        """Messages of one group: the next only when the one before is done for good."""
        for message in chain:
            try:
                await self._handle_to_the_end(message)
            finally:
                self._settle()

    async def _handle_to_the_end(self, message: Message) -> None:
        while True:
            async with self._slots:
                failure = await self._call(message)
            if failure is None:
                await self._finish(acknowledge(self._session, [message]))
                return
            if message.attempt >= self._policy.attempts_max:
                await self._finish(give_up(self._session, message, self._policy.attempts_max))
                return
            await asyncio.sleep(self._policy.pause_s(message.attempt))
            message.attempt += 1

    async def _call(self, message: Message) -> Exception | None:
        """Run the handler: what it raised, or None."""
        failure: Exception | None = None
        call_all(self._interceptors, "handling", message)
        try:
            if self._in_thread:
                await asyncio.to_thread(self._handler, message)
            else:
                await self._handler(message)  # type: ignore[misc]
        except Exception as error:
            failure = error
            self._session.statistics.handler_failures += 1
            log.warning(
                "push.handler_failed topic=%s message=%s attempt=%d error=%r",
                *(message.topic, message.message_id, message.attempt, error),
            )
        call_all(self._interceptors, "handled", message, failure)
        return failure

    async def _again_later(self, message: Message) -> None:
        pause_s = self._policy.pause_s(message.attempt)
        await self._finish(change_invisible(self._session, message, pause_s))

    async def _finish(self, saying: Awaitable[object]) -> None:
        """Tell the broker; what it does not hear, it delivers again, as at-least-once means."""
        try:
            await saying
        except BadRequest as error:
            log.info("push.handle_expired error=%s", error)
        except CometError as error:
            log.warning("push.not_told error=%s", error)

    def _ack_soon(self, message: Message) -> None:
        """Acknowledgements of a moment share a request."""
        self._done.append(message)
        if self._acking is None or self._acking.done():
            self._acking = asyncio.create_task(self._ack_in_a_moment())
            self._running.add(self._acking)
            self._acking.add_done_callback(self._running.discard)

    async def _ack_in_a_moment(self) -> None:
        await asyncio.sleep(_ACK_LINGER_S)
        await self._send_acks()

    async def _send_acks(self) -> None:
        while self._done:
            some, self._done = self._done[:_BATCH], self._done[_BATCH:]
            await self._finish(acknowledge(self._session, some))

    # Settings.

    def _describe(self, settings: v2.Settings) -> None:
        describe(self._session, settings, self._subscriptions, None)

    def _settled(self, settings: v2.Settings) -> None:
        mine = settings.subscription
        self._policy = read_policy(settings.backoff_policy)
        if not self._loops:
            self._fifo = mine.fifo  # clients decide once, at the start
        self._batch = mine.receive_batch_size or _BATCH
        poll_s = mine.long_polling_timeout.ToMilliseconds() / 1000
        self._poll_s = poll_s if poll_s >= 1.0 else _POLL_S


def _is_coroutine(handler: Handler) -> bool:
    """Also an object whose call is a coroutine function."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        type(handler).__call__
    )
