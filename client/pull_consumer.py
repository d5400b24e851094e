"""Reads queues from any offset, as often as wanted: replay, audits, readers with their own positions.

    async with PullConsumer("127.0.0.1:8081", group="audit", topics="orders") as consumer:
        await consumer.seek("orders", BEGINNING)
        async for message in consumer:
            ...
            await consumer.commit()

Promises: every message of every assigned queue, in the order of its queue, from the position on; the
position is in this object, and `commit` saves it for the group (gRPC API, section 5.12). Against
Apache's proxy of 5.3 and before PullMessage is not served: the error says so.
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
from .consuming import ANSWER_MARGIN_S, describe
from .errors import ConnectionFailed, NotFound, refused
from .filters import Topics, subscriptions
from .interceptors import Interceptor, call_all
from .message import Message, read_message
from .retrying import RetryableError
from .routes import Queue
from .session import Options, Session

WAIT_S = 5.0
BATCH = 32
_PAUSE_S = 0.2
_ROUTE_AGE_S = 2.0
"""When a queue cannot be reached, a route older than that is asked for again."""
_AT_ONCE_S = 0.05
"""A long poll that brings nothing so soon did not wait: the next one is not sent at once."""


class Position(Enum):
    """Where a queue begins or ends now."""

    BEGINNING = "beginning"
    END = "end"
    COMMITTED = "committed"
    """Where the group has committed; the beginning when it has not."""


BEGINNING: Final = Position.BEGINNING
END: Final = Position.END
COMMITTED: Final = Position.COMMITTED
Key = tuple[str, str, int]
"""Topic, broker, queue id."""


@dataclass(slots=True)
class _Cursor:
    queue: Queue
    topic: str
    offset: int | None = None
    """None: not asked for yet."""
    fetched: deque[tuple[Message, int]] = field(default_factory=deque)
    """With the offset that follows each."""
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
        """All queues of the topics; `assign` narrows it."""
        self._subscriptions = subscriptions(topics)
        self._start_at = start_at
        self._interceptors = tuple(interceptors)
        self._session = Session(endpoints, v2.PULL_CONSUMER, self._describe, options, group)
        self._cursors: dict[Key, _Cursor] = {}
        self._news = asyncio.Event()
        self._turn = 0

    async def start(self) -> Self:
        """Connect and take every queue of the topics."""
        await self._session.start(list(self._subscriptions), settle=True)
        for topic in self._subscriptions:
            route = await self._session.route(topic)
            for queue in route.readable:
                self._cursors[topic, queue.broker, queue.queue_id] = _Cursor(queue, topic)
        return self

    async def close(self) -> None:
        """End what is under way; positions that were not committed are forgotten."""
        tasks = [each.fetching for each in self._cursors.values() if each.fetching is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._session.close()

    @property
    def queues(self) -> list[Key]:
        """What is assigned: topic, broker, queue id."""
        return list(self._cursors)

    def assign(self, queues: Iterable[Key]) -> None:
        """Read only these. Raises KeyError for one that is not there."""
        wanted = list(queues)
        chosen = {key: self._cursors[key] for key in wanted}
        for key, cursor in self._cursors.items():
            if key not in chosen and cursor.fetching is not None:
                cursor.fetching.cancel()
        self._cursors = chosen

    async def seek(
        self, topic: str, to: Position | int | datetime, *, queue: Key | None = None
    ) -> None:
        """Go on at an offset, a time, or an end, in one queue or all of the topic."""
        for key in [queue] if queue is not None else self._of(topic):
            cursor = self._cursors[key]
            offset = await self._offset(cursor, to)
            # From here on without a pause: no poll of another task can come in between.
            if cursor.fetching is not None:
                cursor.fetching.cancel()
                cursor.fetching = None
            cursor.fetched.clear()
            cursor.offset = cursor.next_fetch = offset

    async def position(self, queue: Key) -> int:
        """The offset of the next message of a queue."""
        return await self._placed(self._cursors[queue])

    async def end(self, queue: Key) -> int:
        """The offset that the queue's next new message will have."""
        return await self._offset(self._cursors[queue], END)

    async def commit(self) -> None:
        """Save the positions of all queues that were read for the group."""
        for cursor in self._cursors.values():
            if cursor.offset is None:
                continue
            request = v2.UpdateOffsetRequest(
                group=self._session.resource(self._session.group),
                message_queue=cursor.queue.proto,
                offset=cursor.offset,
            )
            await self._session.ask_until_done(
                *(cursor.queue.target, paths.UPDATE_OFFSET, request, v2.UpdateOffsetResponse),
                question=True,  # the same answer however often it is said
            )

    async def poll(self, *, wait: float = WAIT_S) -> Message | None:
        """The next message of any queue, or None when `wait` seconds bring none."""
        self._session.check()
        if (message := self._take()) is not None:
            return message
        try:
            async with asyncio.timeout(wait):
                while True:
                    self._news.clear()
                    await self._fetch_all()
                    if (message := self._take()) is not None:
                        return message
                    await self._news.wait()
                    if (message := self._take()) is not None:
                        return message
        except TimeoutError:
            return None

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            message = await self.poll()
            if message is not None:
                yield message

    # Inside.

    def _of(self, topic: str) -> list[Key]:
        keys = [key for key in self._cursors if key[0] == topic]
        if not keys:
            raise NotFound(v2.TOPIC_NOT_FOUND, f"no queue of topic {topic} is assigned")
        return keys

    def _take(self) -> Message | None:
        cursors = list(self._cursors.values())
        for step in range(len(cursors)):
            cursor = cursors[(self._turn + step) % len(cursors)]
            if cursor.fetched:
                self._turn += 1
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
                await self._placed(cursor)
                cursor.fetching = asyncio.create_task(self._fetch(cursor))

    async def _placed(self, cursor: _Cursor) -> int:
        if cursor.offset is None:
            cursor.offset = cursor.next_fetch = await self._offset(cursor, self._start_at)
        return cursor.offset

    async def _fetch(self, cursor: _Cursor) -> None:
        """One pull; repeated while the broker cannot be reached, wherever the queue is by then."""
        try:
            while True:
                began_s = steady_s()
                try:
                    await self._pull(cursor)
                except RetryableError:
                    await asyncio.sleep(_PAUSE_S)
                    await self._look_where_it_is(cursor)
                    continue
                if not cursor.fetched and steady_s() - began_s < _AT_ONCE_S:
                    await asyncio.sleep(_PAUSE_S)
                return
        finally:
            self._news.set()

    async def _look_where_it_is(self, cursor: _Cursor) -> None:
        route = await self._session.route(cursor.topic)
        if steady_s() - route.asked_s > _ROUTE_AGE_S:
            try:
                route = await self._session.refresh(cursor.topic)
            except ConnectionFailed:
                return  # nobody knows; it may still be where it was
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
        answers = await session.stream(
            cursor.queue.target,
            paths.PULL_MESSAGE,
            request,
            v2.PullMessageResponse,
            WAIT_S + ANSWER_MARGIN_S,
        )
        messages, following, status = [], None, None
        for answer in answers:
            kind = answer.WhichOneof("content")
            if kind == "message":
                messages.append(read_message(answer.message, cursor.queue.broker))
            elif kind == "next_offset":
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
                known = await session.ask_until_done(
                    *(queue.target, paths.GET_OFFSET, request, v2.GetOffsetResponse),
                    question=True,
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
        answer = await session.ask_until_done(
            *(queue.target, paths.QUERY_OFFSET, wanted, v2.QueryOffsetResponse), question=True
        )
        return answer.offset

    def _describe(self, settings: v2.Settings) -> None:
        describe(self._session, settings, self._subscriptions, WAIT_S)
