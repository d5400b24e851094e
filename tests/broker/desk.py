"""Desk: the handlers of a real broker, called as a door calls them, with parsed responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cometmq.broker.assembly.parts import Broker
from cometmq.broker.base.late_request import decoded_late
from cometmq.broker.metadata.tables import Group, Topic
from cometmq.broker.pop.ack import AckService
from cometmq.broker.pop.ack_request import AckRequest
from cometmq.broker.pull.service import PullService
from cometmq.front.clock import Clock
from cometmq.front.context import RequestContext
from cometmq.front.service import methods_of
from cometmq.proto import v2
from cometmq.proto.errors import WireError
from cometmq.tests.broker.live import Live, Settings, running, settings

NS_PER_MS = 1_000_000


def resource(name: str) -> v2.Resource:
    """Return a topic or group resource."""
    return v2.Resource(name=name)


def message(
    topic: str, body: bytes = b"body", message_id: str = "01FD", **system: Any
) -> v2.Message:
    """Return a message as a client sends it; `properties` are the user's."""
    users = system.pop("properties", {})
    return v2.Message(
        topic=resource(topic),
        body=body,
        user_properties=users,
        system_properties=v2.SystemProperties(
            message_id=message_id,
            message_type=system.pop("message_type", v2.NORMAL),
            body_encoding=system.pop("body_encoding", v2.IDENTITY),
            born_host="client",
            **system,
        ),
    )


class StoppedClock(Clock):
    """Wall time that only moves when a test moves it."""

    def __init__(self) -> None:
        super().__init__()
        self._start_ms = super().wall_ms()
        self._most_ms = 0

    def wall_ms(self) -> int:
        """Return the start plus the moves."""
        return self._start_ms + self._wall_shift_ms

    def ahead_ms(self) -> int:
        """Return the moves."""
        return self._wall_shift_ms

    def forward_ms(self) -> int:
        """Return the latest wall time so far."""
        self._most_ms = max(self._most_ms, self._wall_shift_ms)
        return self._start_ms + self._most_ms

    def set_wall_ms(self, wall_ms: int) -> None:
        """Set the wall time, which stays there."""
        self._wall_shift_ms = wall_ms - self._start_ms


@dataclass(slots=True)
class Received:
    """A parsed ReceiveMessage stream."""

    code: int
    messages: list[v2.Message] = field(default_factory=list)
    delivery_time: v2.Timestamp | None = None

    @property
    def bodies(self) -> list[bytes]:
        """The bodies in stream order."""
        return [message.body for message in self.messages]

    @property
    def handles(self) -> list[str]:
        """Their receipt handles."""
        return [message.system_properties.receipt_handle for message in self.messages]

    @property
    def attempts(self) -> list[int]:
        """Their delivery attempts."""
        return [message.system_properties.delivery_attempt for message in self.messages]


def parse_received(items: Iterable[bytes]) -> Received:
    """Parse the stream as a client does."""
    answer = Received(0)
    for item in items:
        response = v2.ReceiveMessageResponse.FromString(item)
        if response.HasField("status"):
            answer.code = response.status.code
        elif response.HasField("message"):
            answer.messages.append(response.message)
        else:
            answer.delivery_time = response.delivery_timestamp
    return answer


@dataclass(slots=True)
class Desk:
    """One broker and its client requests."""

    live: Live
    acks: AckService
    pulls: PullService

    @property
    def node(self) -> Broker:
        """The broker's parts."""
        return self.live.node

    def topic(self, name: str, queues: int = 1, message_type: int = v2.NORMAL) -> None:
        """Create a topic."""
        self.node.meta_log.write_topic(Topic(name, queues, queues, message_type=message_type))

    def group(self, name: str, orderly: bool = False, max_attempts: int = 17) -> None:
        """Create or alter a group."""
        self.node.meta_log.write_group(Group(name, orderly=orderly, max_attempts=max_attempts))

    def context(self, client_id: str = "c@1", remaining_ms: int | None = 30_000) -> RequestContext:
        """Return a call's context."""
        deadline = None
        if remaining_ms is not None:
            deadline = self.node.runtime.clock.steady_ns() + remaining_ms * NS_PER_MS
        return RequestContext(client_id, "PYTHON", "5.1.2", "", "127.0.0.1:4711", deadline)

    async def send(self, *messages: v2.Message, client_id: str = "c@1") -> v2.SendMessageResponse:
        """Call SendMessage; an error becomes the response that the door would send."""
        try:
            content = await self.node.sender.send(
                v2.SendMessageRequest(messages=messages), self.context(client_id)
            )
        except WireError as error:
            return v2.SendMessageResponse(status=error.status())
        return v2.SendMessageResponse.FromString(content)

    async def sent(self, topic: str, *bodies: bytes, **system: Any) -> None:
        """Send, one request each, and check that the messages are stored and readable."""
        for n, body in enumerate(bodies):
            answer = await self.send(message(topic, body, message_id=f"ID-{n}", **system))
            assert answer.status.code == v2.OK, answer
        await self.dispatched()

    async def dispatched(self) -> None:
        """Wait until every stored record is dispatched."""
        store = self.node.store
        while store.dispatched_offset < store.log_end:  # noqa: ASYNC110 - a pump a turn
            await asyncio.sleep(0)

    def receive_request(self, topic: str, group: str, **fields: Any) -> v2.ReceiveMessageRequest:
        """Return a ReceiveMessage request of a simple consumer."""
        tag = fields.pop("tag", "*")
        invisible_ms = fields.pop("invisible_ms", 30_000)
        request = v2.ReceiveMessageRequest(
            group=resource(group),
            message_queue=v2.MessageQueue(topic=resource(topic)),
            filter_expression=v2.FilterExpression(type=v2.TAG, expression=tag),
            batch_size=fields.pop("batch", 32),
            **fields,
        )
        if not request.auto_renew:
            request.invisible_duration.FromMilliseconds(invisible_ms)
        return request

    def start_receive(
        self, topic: str, group: str, ctx: RequestContext | None = None, **fields: Any
    ) -> asyncio.Future[list[bytes]]:
        """Start a ReceiveMessage; `fields` are the request's, `invisible_ms`, `batch`, `tag`."""
        request = self.receive_request(topic, group, **fields)
        answer = self.node.receiving.receive(request, ctx or self.context())
        if isinstance(answer, list):
            done: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
            done.set_result(answer)
            return done
        return answer

    async def receive(
        self, topic: str, group: str, ctx: RequestContext | None = None, **fields: Any
    ) -> Received:
        """Call ReceiveMessage."""
        try:
            return parse_received(await self.start_receive(topic, group, ctx, **fields))
        except WireError as error:
            return parse_received(self.node.pop.failure(error))

    async def nothing(self, topic: str, group: str, **fields: Any) -> None:
        """Check that no message is available now."""
        answer = await self.receive(topic, group, self.context(remaining_ms=105), **fields)
        assert answer.code == v2.MESSAGE_NOT_FOUND, answer

    def ack(self, topic: str, group: str, *handles: str) -> v2.AckMessageResponse:
        """Call AckMessage with these handles."""
        request = v2.AckMessageRequest(topic=resource(topic), group=resource(group))
        for handle in handles:
            request.entries.add(message_id="m", receipt_handle=handle)
        (method,) = methods_of("apache.rocketmq.v2.MessagingService", {"AckMessage": self.acks.ack})
        if self.acks.takes_bytes:
            method = decoded_late(method, AckRequest)
        try:
            answer = method.handler(method.parse(request.SerializeToString()), self.context())
            return v2.AckMessageResponse.FromString(answer)
        except WireError as error:
            return v2.AckMessageResponse(status=error.status())

    def change(
        self, topic: str, group: str, handle: str, invisible_ms: int, **fields: Any
    ) -> v2.ChangeInvisibleDurationResponse:
        """Call ChangeInvisibleDuration."""
        request = v2.ChangeInvisibleDurationRequest(
            topic=resource(topic), group=resource(group), receipt_handle=handle, **fields
        )
        request.invisible_duration.FromMilliseconds(invisible_ms)
        return self.acks.change_invisible(request, self.context())

    def advance(self, ms: int) -> None:
        """Move the wall clock, like the test service."""
        self.node.runtime.clock.advance_wall_ms(ms)
        self.node.pop.clock_moved()
        self.node.runtime.clock_listeners.notify()


@asynccontextmanager
async def desk(
    directory: Path, chosen: Settings | None = None, clock: Clock | None = None, **broker: Any
) -> AsyncIterator[Desk]:
    """Run a broker for one test."""
    async with running(chosen or settings(directory, **broker), clock) as live:
        yield Desk(live, live.node.acks, live.node.pulls)
