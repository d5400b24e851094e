"""Client of the feature tests: the messaging service, and the admin and test services.

One method is one RPC; nothing is hidden or retried unless documented; codes are returned, never
raised. Only `quiet` depends on time: it holds a poll for a moment and expects no message.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import grpc

from cometmq.proto import paths, v1, v2
from cometmq.tests.harness.wire import Wire

#: Timeout of a call on a busy machine; an answered call ends earlier.
CALL_S = 20.0
POLL_S = 15.0
#: Deadlines of polls that should return nothing: the next one is used if a slow response missed
#: one.
QUIET_S = (0.4, 2.0, 10.0)
MIXED = -1

T = TypeVar("T")

_serial = itertools.count(1)


async def patiently(poll: Callable[[float], Awaitable[T]]) -> T:
    """Poll with a short deadline, expecting nothing; with longer deadlines on a slow machine.

    Messages popped by a poll that missed its deadline are redelivered.
    """
    for within_s in QUIET_S:
        try:
            return await poll(within_s)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    raise AssertionError("no poll was answered in time")


def resource(name: str) -> v2.Resource:
    """Return a topic or group resource."""
    return v2.Resource(name=name)


@dataclass(slots=True)
class Received:
    """A ReceiveMessage stream in the order of its items."""

    code: int = 0
    text: str = ""
    messages: list[v2.Message] = field(default_factory=list)
    #: The kind of every item: status, message, delivery_timestamp.
    order: list[str] = field(default_factory=list)

    @property
    def bodies(self) -> list[bytes]:
        """The bodies in stream order."""
        return [message.body for message in self.messages]

    @property
    def systems(self) -> list[v2.SystemProperties]:
        """Their system properties."""
        return [message.system_properties for message in self.messages]

    @property
    def handles(self) -> list[str]:
        """Their receipt handles."""
        return [system.receipt_handle for system in self.systems]

    @property
    def attempts(self) -> list[int]:
        """Their delivery attempts."""
        return [system.delivery_attempt for system in self.systems]


class Client:
    """One connection with one client id, and names for one test."""

    def __init__(self, endpoints: str, test: str, language: str = "PYTHON") -> None:
        mark = re.sub(r"[^a-zA-Z0-9]+", "-", test.removeprefix("test_"))[:40].strip("-")
        self.mark = f"{mark}-{next(_serial)}"
        self.wire = Wire(endpoints, f"{self.mark}@1", language)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        await self.wire.close()

    def name(self, what: str = "topic") -> str:
        """Return a name unique to this test."""
        return f"{what}-{self.mark}"

    async def call(
        self, path: str, request: Any, answer: type[Any], within_s: float = CALL_S
    ) -> Any:
        """Call one unary RPC."""
        return await self.wire.call(path, request, answer, within_s)

    # Operator requests.

    async def topic(
        self, kind: int = v2.NORMAL, queues: int = 1, what: str = "topic", **more: Any
    ) -> str:
        """Create a topic for this test; return its name."""
        name = self.name(what)
        request = v1.CreateTopicRequest(name=name, message_type=kind, queues=queues, **more)
        made = await self.call(paths.CREATE_TOPIC, request, v1.CreateTopicResponse)
        assert made.code == v2.OK, made
        return name

    async def group(self, what: str = "group", **fields: Any) -> str:
        """Create or alter a group for this test; return its name."""
        name = self.name(what)
        request = v1.CreateGroupRequest(name=name, **fields)
        made = await self.call(paths.CREATE_GROUP, request, v1.CreateGroupResponse)
        assert made.code == v2.OK, made
        return name

    async def advance(self, ms: int) -> int:
        """Move the broker's wall clock; return its new time."""
        request = v1.AdvanceClockRequest(ms=ms)
        return int((await self.call(paths.ADVANCE_CLOCK, request, v1.ClockResponse)).wall_ms)

    async def now_ms(self) -> int:
        """Return the broker's wall clock."""
        request = v1.GetClockRequest()
        return int((await self.call(paths.GET_CLOCK, request, v1.ClockResponse)).wall_ms)

    async def described(self, topic: str) -> v1.DescribeTopicResponse:
        """Describe a topic with its queues."""
        request = v1.DescribeTopicRequest(name=topic)
        answer: v1.DescribeTopicResponse = await self.call(
            paths.DESCRIBE_TOPIC, request, v1.DescribeTopicResponse
        )
        return answer

    async def stored(self, topic: str) -> int:
        """Return how many messages a topic ever got; 0 if it does not exist."""
        return sum(queue.max_offset for queue in (await self.described(topic)).queues)

    # Producers.

    def message(self, topic: str, body: bytes | str = b"body", **system: Any) -> v2.Message:
        """Return a message as a client sends it; `properties` are the user's, `deliver_ms` a
        time.
        """
        users = system.pop("properties", {})
        deliver_ms = system.pop("deliver_ms", None)
        made = v2.SystemProperties(
            message_id=system.pop("message_id", f"ID{next(_serial):032X}"),
            message_type=system.pop("message_type", v2.NORMAL),
            body_encoding=system.pop("body_encoding", v2.IDENTITY),
            born_host="tests",
            **system,
        )
        made.born_timestamp.GetCurrentTime()
        if deliver_ms is not None:
            made.delivery_timestamp.FromMilliseconds(deliver_ms)
        data = body.encode() if isinstance(body, str) else body
        return v2.Message(
            topic=resource(topic), user_properties=users, system_properties=made, body=data
        )

    async def send_all(self, *messages: v2.Message) -> v2.SendMessageResponse:
        """Call SendMessage."""
        request = v2.SendMessageRequest(messages=messages)
        answer: v2.SendMessageResponse = await self.call(
            paths.SEND_MESSAGE, request, v2.SendMessageResponse
        )
        return answer

    async def send(
        self, topic: str, body: bytes | str = b"body", **system: Any
    ) -> v2.SendResultEntry:
        """Send one message that must be accepted; return its entry."""
        answer = await self.send_all(self.message(topic, body, **system))
        assert answer.status.code == v2.OK, answer
        (entry,) = answer.entries
        assert entry.status.code == v2.OK, entry
        return entry

    async def refused(self, topic: str, body: bytes | str = b"body", **system: Any) -> int:
        """Send one message that must be refused; return the code."""
        answer = await self.send_all(self.message(topic, body, **system))
        assert answer.status.code != v2.OK, answer
        assert not answer.entries, "only the status says that a request failed"
        return int(answer.status.code)

    async def end(self, topic: str, entry: Any, resolution: int, **more: Any) -> int:
        """Call EndTransaction for a half message's entry; return the code."""
        request = v2.EndTransactionRequest(
            topic=resource(topic),
            message_id=entry.message_id,
            transaction_id=entry.transaction_id,
            resolution=v2.TransactionResolution.ValueType(resolution),
            source=more.pop("source", v2.SOURCE_CLIENT),
        )
        answer = await self.call(paths.END_TRANSACTION, request, v2.EndTransactionResponse)
        return int(answer.status.code)

    async def recall(self, topic: str, handle: str) -> v2.RecallMessageResponse:
        """Call RecallMessage."""
        request = v2.RecallMessageRequest(topic=resource(topic), recall_handle=handle)
        answer: v2.RecallMessageResponse = await self.call(
            paths.RECALL_MESSAGE, request, v2.RecallMessageResponse
        )
        return answer

    # Consumers.

    def receive_request(self, topic: str, group: str, **fields: Any) -> v2.ReceiveMessageRequest:
        """Return a ReceiveMessage request; `tag` or `sql`, `invisible_s` and `queue` are
        shortcuts.
        """
        kind, text = v2.TAG, fields.pop("tag", "*")
        if "sql" in fields:
            kind, text = v2.SQL, fields.pop("sql")
        invisible_s = fields.pop("invisible_s", 30)
        queue = v2.MessageQueue(topic=resource(topic), id=fields.pop("queue", -1))
        request = v2.ReceiveMessageRequest(
            group=resource(group),
            message_queue=queue,
            filter_expression=v2.FilterExpression(type=kind, expression=text),
            batch_size=fields.pop("batch", 32),
            **fields,
        )
        if not request.auto_renew:
            request.invisible_duration.FromMilliseconds(int(invisible_s * 1000))
        return request

    async def receive(
        self, topic: str, group: str, within_s: float = POLL_S, **fields: Any
    ) -> Received:
        """Call ReceiveMessage; without messages it is held for most of `within_s`."""
        request = self.receive_request(topic, group, **fields)
        stream = self.wire.channel.unary_stream(
            paths.RECEIVE_MESSAGE,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=v2.ReceiveMessageResponse.FromString,
        )(request, timeout=within_s, metadata=self.wire.metadata)
        found = Received()
        async for item in stream:
            kind = item.WhichOneof("content")
            found.order.append(kind)
            if kind == "message":
                found.messages.append(item.message)
            elif kind == "status":
                found.code, found.text = item.status.code, item.status.message
        return found

    def waiting(self, topic: str, group: str, **fields: Any) -> asyncio.Task[Received]:
        """Start a ReceiveMessage."""
        return asyncio.create_task(self.receive(topic, group, **fields))

    async def take(self, topic: str, group: str, count: int, **fields: Any) -> list[v2.Message]:
        """Receive until there are `count` messages."""
        got: list[v2.Message] = []
        while len(got) < count:
            answer = await self.receive(topic, group, **fields)
            assert answer.code == v2.OK, f"{len(got)} of {count}: {answer.code} {answer.text}"
            got += answer.messages
        return got

    async def one(self, topic: str, group: str, **fields: Any) -> v2.Message:
        """Receive exactly one message."""
        (message,) = await self.take(topic, group, 1, **fields)
        return message

    async def now(self, topic: str, group: str, **fields: Any) -> Received:
        """Receive what is available now, possibly nothing."""
        return await patiently(lambda within_s: self.receive(topic, group, within_s, **fields))

    async def quiet(self, topic: str, group: str, **fields: Any) -> None:
        """Check that no message is available now."""
        answer = await self.now(topic, group, **fields)
        assert (answer.code, answer.bodies) == (v2.MESSAGE_NOT_FOUND, []), answer

    async def acks(self, topic: str, group: str, *handles: str) -> v2.AckMessageResponse:
        """Call AckMessage with an entry per handle."""
        entries = [v2.AckMessageEntry(message_id="m", receipt_handle=handle) for handle in handles]
        request = v2.AckMessageRequest(
            topic=resource(topic), group=resource(group), entries=entries
        )
        answer: v2.AckMessageResponse = await self.call(
            paths.ACK_MESSAGE, request, v2.AckMessageResponse
        )
        return answer

    async def ack(self, topic: str, group: str, messages: Sequence[v2.Message]) -> None:
        """Acknowledge messages; all must succeed."""
        handles = [message.system_properties.receipt_handle for message in messages]
        answer = await self.acks(topic, group, *handles)
        assert answer.status.code == v2.OK, answer

    async def change(
        self, topic: str, group: str, handle: str, ms: int, **fields: Any
    ) -> v2.ChangeInvisibleDurationResponse:
        """Call ChangeInvisibleDuration."""
        request = v2.ChangeInvisibleDurationRequest(
            topic=resource(topic), group=resource(group), receipt_handle=handle, **fields
        )
        request.invisible_duration.FromMilliseconds(ms)
        answer: v2.ChangeInvisibleDurationResponse = await self.call(
            paths.CHANGE_INVISIBLE_DURATION, request, v2.ChangeInvisibleDurationResponse
        )
        return answer

    async def to_dead_letters(
        self, topic: str, group: str, message: v2.Message, **more: Any
    ) -> int:
        """Call ForwardMessageToDeadLetterQueue; return the code."""
        system = message.system_properties
        request = v2.ForwardMessageToDeadLetterQueueRequest(
            topic=resource(topic),
            group=resource(group),
            receipt_handle=more.pop("handle", system.receipt_handle),
            message_id=system.message_id,
            delivery_attempt=system.delivery_attempt,
            max_delivery_attempts=16,
        )
        answer = await self.call(
            paths.FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE,
            request,
            v2.ForwardMessageToDeadLetterQueueResponse,
        )
        return int(answer.status.code)

    # Sessions.

    def telemetry(self) -> Session:
        """Open a Telemetry stream."""
        return Session(self.wire)

    async def heartbeat(self, client_type: int, group: str = "") -> int:
        """Call Heartbeat; return the code."""
        request = v2.HeartbeatRequest(client_type=v2.ClientType.ValueType(client_type))
        if group:
            request.group.name = group
        return int((await self.call(paths.HEARTBEAT, request, v2.HeartbeatResponse)).status.code)


class Session:
    """A Telemetry stream of a client."""

    def __init__(self, wire: Wire) -> None:
        self.call = wire.channel.stream_stream(
            paths.TELEMETRY,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=v2.TelemetryCommand.FromString,
        )(metadata=wire.metadata)

    async def settle(self, settings: v2.Settings) -> v2.TelemetryCommand:
        """Write settings; return the response."""
        await self.call.write(v2.TelemetryCommand(settings=settings))
        return await self.read()

    async def read(self, within_s: float = 40.0) -> v2.TelemetryCommand:
        """Return the next command."""
        answer = await asyncio.wait_for(self.call.read(), within_s)
        assert answer is not grpc.aio.EOF, "the stream ended"
        command: v2.TelemetryCommand = answer
        return command

    def cancel(self) -> None:
        """End the stream from this side."""
        self.call.cancel()


def producer(*topics: str) -> v2.Settings:
    """Return settings of a producer."""
    chosen = v2.Settings(
        client_type=v2.PRODUCER, publishing=v2.Publishing(topics=[resource(t) for t in topics])
    )
    chosen.request_timeout.seconds = 3
    return chosen


def consumer(kind: int, group: str, topic: str, expression: str = "*") -> v2.Settings:
    """Return settings of a consumer of one topic."""
    subscription = v2.Subscription(group=resource(group))
    subscription.subscriptions.add(
        topic=resource(topic),
        expression=v2.FilterExpression(type=v2.TAG, expression=expression),
    )
    chosen = v2.Settings(client_type=v2.ClientType.ValueType(kind), subscription=subscription)
    chosen.request_timeout.seconds = 3
    return chosen
