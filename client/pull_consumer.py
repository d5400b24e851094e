"""Pull consumer: reads queues from any offset, repeatedly, for replays and audits.

    async with PullConsumer("127.0.0.1:8081", group="audit", topics="orders") as consumer:
        await consumer.seek("orders", BEGINNING)
        async for message in consumer:
            ...
            await consumer.commit()

Delivers every message of every assigned queue in queue order, starting at the position. The
position is held in memory; `commit` saves it for the group (docs/formats/grpc-api.md,
section 5.12). Apache's proxy before 5.4 does not implement PullMessage and refuses the request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Final, Self, Unpack

from ..proto import paths, v2
from ..proto.errors import is_retriable
from .base import Client
from .clock import steady_s
from .consuming import ANSWER_MARGIN_S, fill_subscription
from .errors import ConnectionFailed, NotFound, refused
from .filters import Topics, subscriptions
from .interceptors import Interceptor, call_all
from .message import Message, read_responses
from .retrying import RetryableError
from .routes import Queue
from .session import Options, Session

WAIT_S = 5.0
BATCH = 32
_PAUSE_S = 0.2
#: When a queue is unreachable, a route older than this is refreshed.
_ROUTE_AGE_S = 2.0
#: An empty long poll that returns sooner did not wait: pause before the next one.
_IMMEDIATE_S = 0.05


class Position(Enum):
    """A position that the broker resolves to a queue offset."""

    BEGINNING = "beginning"
    END = "end"
    #: The group's committed offset; the beginning if there is none.
    COMMITTED = "committed"


BEGINNING: Final = Position.BEGINNING
END: Final = Position.END
COMMITTED: Final = Position.COMMITTED
#: Topic, broker, queue id.
Key = tuple[str, str, int]


@dataclass(slots=True)
class _Cursor:
    queue: Queue
    topic: str
    #: Offset of the next message for the application; None until it is resolved.
    offset: int | None = None
    #: Messages with the offset that follows each.
    fetched: deque[tuple[Message, int]] = field(default_factory=deque)
    next_fetch: int = 0
    fetching: asyncio.Task[None] | None = None


class PullConsumer(Client):
    """Open it with `async with`, or with `start` and `close`."""

    def __init__(
        self,
        endpoints: str,
        *,
        group: str,
        topics: Topics,
        start_at: Position = COMMITTED,
        interceptors: Sequence[Interceptor] = (),
        **options: Unpack[Options],
    ) -> None:
        """Read all queues of the topics; `assign` restricts them."""
        self._subscriptions = subscriptions(topics)
        self._start_at = start_at
        self._interceptors = tuple(interceptors)
        self._session = Session(endpoints, v2.PULL_CONSUMER, self._fill_settings, options, group)
        self._cursors: dict[Key, _Cursor] = {}
        self._fetch_ended = asyncio.Event()
        self._next_cursor = 0

    async def start(self) -> Self:
        """Connect and assign every queue of the topics."""
        await self._session.start(list(self._subscriptions), settle=True)
        for topic in self._subscriptions:
            route = await self._session.route(topic)
            for queue in route.readable:
                self._cursors[topic, queue.broker, queue.queue_id] = _Cursor(queue, topic)
        return self

    async def close(self) -> None:
        """Cancel pulls in flight and disconnect. Uncommitted positions are lost."""
        tasks = [each.fetching for each in self._cursors.values() if each.fetching is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._session.close()

    @property
    def queues(self) -> list[Key]:
        """The assigned queues: topic, broker, queue id."""
        return list(self._cursors)

    def assign(self, queues: Iterable[Key]) -> None:
        """Read only these queues. Raises KeyError for a queue that is not assigned."""
        wanted = list(queues)
        chosen = {key: self._cursors[key] for key in wanted}
        for key, cursor in self._cursors.items():
            if key not in chosen and cursor.fetching is not None:
                cursor.fetching.cancel()
        self._cursors = chosen

    async def seek(
        self, topic: str, to: Position | int | datetime, *, queue: Key | None = None
    ) -> None:
        """Continue at an offset, a time or a `Position`, in one queue or in all of the topic."""
        for key in [queue] if queue is not None else self._keys_of(topic):
            cursor = self._cursors[key]
            offset = await self._offset(cursor, to)
            # No await from here on: no poll of another task runs in between.
            if cursor.fetching is not None:
                cursor.fetching.cancel()
                cursor.fetching = None
            cursor.fetched.clear()
            cursor.offset = cursor.next_fetch = offset

    async def position(self, queue: Key) -> int:
        """Return the offset of the next message of a queue."""
        return await self._resolve_offset(self._cursors[queue])

    async def end(self, queue: Key) -> int:
        """Return the offset after the last message of a queue."""
        return await self._offset(self._cursors[queue], END)

    async def commit(self) -> None:
        """Save the positions of all queues read so far as the group's offsets."""
        for cursor in self._cursors.values():
            if cursor.offset is None:
                continue
            request = v2.UpdateOffsetRequest(
                group=self._session.resource(self._session.group),
                message_queue=cursor.queue.proto,
                offset=cursor.offset,
            )
            await self._session.call_until_done(
                cursor.queue.target,
                paths.UPDATE_OFFSET,
                request,
                v2.UpdateOffsetResponse,
                read_only=True,  # idempotent
            )

    async def poll(self, *, wait: float = WAIT_S) -> Message | None:
        """Return the next message of any queue, or None after `wait` seconds."""
        self._session.check()
        if (message := self._take()) is not None:
            return message
        try:
            async with asyncio.timeout(wait):
                while True:
                    self._fetch_ended.clear()
                    await self._fetch_all()
                    if (message := self._take()) is not None:
                        return message
                    await self._fetch_ended.wait()
                    if (message := self._take()) is not None:
                        return message
        except TimeoutError:
            return None

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            message = await self.poll()
            if message is not None:
                yield message

    def _keys_of(self, topic: str) -> list[Key]:
        keys = [key for key in self._cursors if key[0] == topic]
        if not keys:
            raise NotFound(v2.TOPIC_NOT_FOUND, f"no queue of topic {topic} is assigned")
        return keys

    def _take(self) -> Message | None:
        cursors = list(self._cursors.values())
        for step in range(len(cursors)):
            cursor = cursors[(self._next_cursor + step) % len(cursors)]
            if cursor.fetched:
                self._next_cursor += 1
                message, cursor.offset = cursor.fetched.popleft()
                call_all(self._interceptors, "received", message)
                return message
            failed = cursor.fetching
            if failed is not None and failed.done() and not failed.cancelled():
                cursor.fetching = None
                if (error := failed.exception()) is not None:
                    raise error
        return None

    async def _fetch_all(self) -> None:
        for cursor in self._cursors.values():
            if cursor.fetching is None or cursor.fetching.done():
                await self._resolve_offset(cursor)
                cursor.fetching = asyncio.create_task(self._fetch(cursor))

    async def _resolve_offset(self, cursor: _Cursor) -> int:
        if cursor.offset is None:
            cursor.offset = cursor.next_fetch = await self._offset(cursor, self._start_at)
        return cursor.offset

    async def _fetch(self, cursor: _Cursor) -> None:
        """Pull once; retry while the broker is unreachable, following the queue's route."""
        try:
            while True:
                began_s = steady_s()
                try:
                    await self._pull(cursor)
                except RetryableError:
                    await asyncio.sleep(_PAUSE_S)
                    await self._refresh_queue(cursor)
                    continue
                if not cursor.fetched and steady_s() - began_s < _IMMEDIATE_S:
                    await asyncio.sleep(_PAUSE_S)
                return
        finally:
            self._fetch_ended.set()

    async def _refresh_queue(self, cursor: _Cursor) -> None:
        route = await self._session.route(cursor.topic)
        if steady_s() - route.requested_s > _ROUTE_AGE_S:
            try:
                route = await self._session.refresh(cursor.topic)
            except ConnectionFailed:
                return  # the queue may still be at its old endpoint
        for queue in route.readable:
            if (queue.broker, queue.queue_id) == (cursor.queue.broker, cursor.queue.queue_id):
                cursor.queue = queue

    async def _pull(self, cursor: _Cursor) -> None:
        session = self._session
        request = v2.PullMessageRequest(
            group=session.resource(session.group),
            message_queue=cursor.queue.proto,
            offset=cursor.next_fetch,
            batch_size=BATCH,
            filter_expression=self._subscriptions[cursor.topic].proto(),
        )
        request.long_polling_timeout.FromMilliseconds(int(WAIT_S * 1000))
        messages, others = await session.stream(
            cursor.queue.target,
            paths.PULL_MESSAGE,
            request,
            lambda responses: read_responses(
                responses, v2.PullMessageResponse, cursor.queue.broker
            ),
            WAIT_S + ANSWER_MARGIN_S,
        )
        following, status = None, None
        for answer in others:
            kind = answer.WhichOneof("content")
            if kind == "next_offset":
                following = answer.next_offset
            elif kind == "status":
                status = answer.status
        if status is not None and status.code not in (
            *(v2.OK, v2.MESSAGE_NOT_FOUND, v2.ILLEGAL_OFFSET),
        ):
            error = refused(status.code, status.message)
            if is_retriable(status.code):
                raise RetryableError(error, maybe_done=False)
            raise error
        session.statistics.received += len(messages)
        for message in messages:
            cursor.fetched.append((message, message.offset + 1))
        if following is not None:
            cursor.next_fetch = following
            if not messages:
                cursor.offset = following
        elif messages:
            cursor.next_fetch = messages[-1].offset + 1

    async def _offset(self, cursor: _Cursor, to: Position | int | datetime) -> int:
        session, queue = self._session, cursor.queue
        if isinstance(to, int):
            return to
        if to is COMMITTED:
            request = v2.GetOffsetRequest(
                group=session.resource(session.group), message_queue=queue.proto
            )
            try:
                known = await session.call_until_done(
                    queue.target,
                    paths.GET_OFFSET,
                    request,
                    v2.GetOffsetResponse,
                    read_only=True,
                )
            except NotFound:
                to = BEGINNING
            else:
                return known.offset
        wanted = v2.QueryOffsetRequest(message_queue=queue.proto)
        if isinstance(to, datetime):
            wanted.query_offset_policy = v2.TIMESTAMP
            wanted.timestamp.FromMilliseconds(int(to.timestamp() * 1000))
        else:
            wanted.query_offset_policy = v2.END if to is END else v2.BEGINNING
        answer = await session.call_until_done(
            queue.target, paths.QUERY_OFFSET, wanted, v2.QueryOffsetResponse, read_only=True
        )
        return answer.offset

    def _fill_settings(self, settings: v2.Settings) -> None:
        fill_subscription(self._session, settings, self._subscriptions, WAIT_S)
