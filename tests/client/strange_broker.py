"""Fake broker with scripted responses, for faults that a real broker cannot produce.

It serves gRPC on a free loopback port, in the test's event loop. A method without a scripted
response behaves like a healthy broker with one topic of one queue and no messages.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import grpc
import grpc.aio

from cometmq.proto import paths, v2

OK = v2.Status(code=v2.OK)
WAIT_S = 30.0
#: Takes the request. Returns a message, bytes, a status code, a list (stream) or an awaitable.
Answer = Callable[[bytes], Any]


class StrangeBroker:
    """`answers[path] = function` scripts the responses of a method."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.calls: Counter[str] = Counter()
        #: Names of the metadata of the last call, by method.
        self.metadata: dict[str, set[str]] = {}
        self.fifo = False
        #: Sent on every telemetry stream before the settings are answered.
        self.first_commands: list[v2.TelemetryCommand] = []
        self.port = 0

    @property
    def endpoints(self) -> str:
        return f"127.0.0.1:{self.port}"

    @classmethod
    @asynccontextmanager
    async def running(cls) -> AsyncIterator[Self]:
        """A listening broker."""
        broker = cls()
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_Handlers(broker),))
        broker.port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield broker
        finally:
            await server.stop(0)

    def queue(self, topic: str) -> v2.MessageQueue:
        """The one queue of a topic."""
        queue = v2.MessageQueue(permission=v2.READ_WRITE, topic=v2.Resource(name=topic))
        queue.broker.name = "strange"
        queue.broker.endpoints.scheme = v2.IPv4
        queue.broker.endpoints.addresses.add(host="127.0.0.1", port=self.port)
        return queue

    def deliver(self, *bodies: str) -> None:
        """Return these messages to the first ReceiveMessage, none to later ones."""
        rest = [[self.message(body) for body in bodies]]

        async def receive(_: bytes) -> list[v2.ReceiveMessageResponse]:
            if rest:
                return rest.pop()
            await asyncio.sleep(60)
            return []

        self.answers[paths.RECEIVE_MESSAGE] = receive

    def message(self, body: str) -> v2.ReceiveMessageResponse:
        """Return a response with a message."""
        message = v2.Message(topic=v2.Resource(name="t"), body=body.encode())
        message.system_properties.message_id = body
        message.system_properties.receipt_handle = f"handle-{body}"
        message.system_properties.message_group = "g" if self.fifo else ""
        return v2.ReceiveMessageResponse(message=message)

    def healthy(self, path: str, raw: bytes) -> Any:
        """Return the response of a healthy broker."""
        if path == paths.QUERY_ROUTE:
            topic = v2.QueryRouteRequest.FromString(raw).topic.name
            return v2.QueryRouteResponse(status=OK, message_queues=[self.queue(topic)])
        if path == paths.QUERY_ASSIGNMENT:
            assigned = v2.Assignment(message_queue=self.queue("t"))
            return v2.QueryAssignmentResponse(status=OK, assignments=[assigned])
        if path == paths.SEND_MESSAGE:
            sent = v2.SendMessageRequest.FromString(raw).messages
            entries = [
                v2.SendResultEntry(status=OK, message_id=each.system_properties.message_id)
                for each in sent
            ]
            return v2.SendMessageResponse(status=OK, entries=entries)
        if path == paths.RECEIVE_MESSAGE:
            return [v2.ReceiveMessageResponse(status=v2.Status(code=v2.MESSAGE_NOT_FOUND))]
        return v2.AckMessageResponse(status=OK)  # every response begins with a status


async def until(true: Callable[[], bool]) -> None:
    """Wait until `true()`."""
    async with asyncio.timeout(WAIT_S):
        while not true():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


def in_turn(*answers: Any) -> Callable[[bytes], Any]:
    """Return the answers one after the other, then the last one repeatedly."""
    rest = list(answers)
    return lambda _: rest.pop(0) if len(rest) > 1 else rest[0]


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, broker: StrangeBroker) -> None:
        self.broker = broker

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        path = details.method
        if path == paths.TELEMETRY:
            return grpc.stream_stream_rpc_method_handler(self._telemetry)
        if path in (paths.RECEIVE_MESSAGE, paths.PULL_MESSAGE):

            async def stream(raw: bytes, context: Any) -> AsyncIterator[bytes]:
                for each in await self._answer(path, raw, context):
                    yield each.SerializeToString()

            return grpc.unary_stream_rpc_method_handler(stream)

        async def unary(raw: bytes, context: Any) -> bytes:
            answer = await self._answer(path, raw, context)
            found: bytes = answer if isinstance(answer, bytes) else answer.SerializeToString()
            return found

        return grpc.unary_unary_rpc_method_handler(unary)

    async def _answer(self, path: str, raw: bytes, context: Any) -> Any:
        self.broker.calls[path] += 1
        self.broker.metadata[path] = {key for key, _ in context.invocation_metadata()}
        make = self.broker.answers.get(path)
        answer = self.broker.healthy(path, raw) if make is None else make(raw)
        if isinstance(answer, Awaitable):
            answer = await answer
        if isinstance(answer, grpc.StatusCode):
            await context.abort(answer, "scripted by the test")
        return answer

    async def _telemetry(self, requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for raw in requests:
            for command in self.broker.first_commands:
                yield command.SerializeToString()
            settings = v2.TelemetryCommand.FromString(raw).settings
            if settings.client_type != v2.PRODUCER:
                settings.subscription.fifo = self.broker.fifo
                settings.backoff_policy.customized_backoff.next.add(seconds=30)
            yield v2.TelemetryCommand(status=OK, settings=settings).SerializeToString()
