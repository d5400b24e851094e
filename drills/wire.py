"""Raw client of the messaging service: protobuf messages over grpc.aio.

Used where other clients would retry, cache or hide answers. One call is one RPC without
retries, and returns the server's answer. Metadata are those of the official clients
(docs/formats/client-wire.md, section 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import grpc

from ..proto import paths, v2
from ..proto.short_polls import SHORT_POLL_METADATA

Metadata = tuple[tuple[str, str], ...]

MAX_MESSAGE = 64 << 20
#: Ends only a call that hangs; a loaded machine takes seconds for one call.
WITHIN_S = 60.0
OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Minimum time per connection attempt, for busy machines.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
)


def target(endpoints: str) -> str:
    """Return gRPC's target for one or several `host:port;host:port` alternatives."""
    return "ipv4:" + endpoints.replace(";", ",")


class Wire:
    """One connection of one client id."""

    def __init__(
        self,
        endpoints: str,
        client_id: str = "wire@1",
        language: str = "PYTHON",
        options: Sequence[tuple[str, int]] = OPTIONS,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        """With `credentials` the connection uses TLS."""
        self.endpoints = endpoints
        self.channel = (
            grpc.aio.insecure_channel(target(endpoints), options=options)
            if credentials is None
            else grpc.aio.secure_channel(target(endpoints), credentials, options=options)
        )
        self.metadata: Metadata = (
            ("x-mq-client-id", client_id),
            ("x-mq-language", language),
            ("x-mq-client-version", "5.1.2"),
            ("x-mq-protocol", "v2"),
        )
        self._calls: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection at once."""
        await self.channel.close(None)

    async def call(
        self, path: str, request: Any, answer: type[Any], within_s: float = WITHIN_S
    ) -> Any:
        """Make one unary call. Raises grpc.aio.AioRpcError."""
        method = self._calls.get(path)
        if method is None:
            method = self._calls[path] = self.channel.unary_unary(
                path,
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=answer.FromString,
            )
        return await method(request, timeout=within_s, metadata=self.metadata)

    async def send(self, messages: Sequence[Any], within_s: float = WITHIN_S) -> Any:
        """Make one SendMessage call with all messages."""
        request = v2.SendMessageRequest(messages=messages)
        return await self.call(paths.SEND_MESSAGE, request, v2.SendMessageResponse, within_s)

    async def receive_now(self, request: Any) -> tuple[int, list[Any]]:
        """Make one ReceiveMessage call that does not wait for messages (0.1 s), however slow the
        machine is."""
        request.long_polling_timeout.FromMilliseconds(100)
        return await self.receive(request, within_s=WITHIN_S, metadata=SHORT_POLL_METADATA)

    async def receive(
        self, request: Any, within_s: float = WITHIN_S, metadata: Metadata = ()
    ) -> tuple[int, list[Any]]:
        """Make one ReceiveMessage call; return the status code and the messages."""
        stream = self.channel.unary_stream(
            paths.RECEIVE_MESSAGE,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=v2.ReceiveMessageResponse.FromString,
        )(request, timeout=within_s, metadata=(*self.metadata, *metadata))
        code, found = 0, []
        async for part in stream:
            if part.HasField("message"):
                found.append(part.message)
            elif part.HasField("status"):
                code = part.status.code
        return code, found

    async def ack(
        self, topic: str, group: str, messages: Sequence[Any], within_s: float = WITHIN_S
    ) -> Any:
        """Make one AckMessage call for all messages."""
        request = v2.AckMessageRequest(
            group=v2.Resource(name=group),
            topic=v2.Resource(name=topic),
            entries=[
                v2.AckMessageEntry(
                    message_id=one.system_properties.message_id,
                    receipt_handle=one.system_properties.receipt_handle,
                )
                for one in messages
            ],
        )
        return await self.call(paths.ACK_MESSAGE, request, v2.AckMessageResponse, within_s)


def normal_message(topic: str, message_id: str, body: bytes, tag: str = "", key: str = "") -> Any:
    """Build a normal message as official clients do."""
    system = v2.SystemProperties(
        message_id=message_id,
        message_type=v2.NORMAL,
        body_encoding=v2.IDENTITY,
        born_host="drill",
    )
    system.born_timestamp.GetCurrentTime()
    if tag:
        system.tag = tag
    if key:
        system.keys.append(key)
    return v2.Message(topic=v2.Resource(name=topic), system_properties=system, body=body)


def receive_request(topic: str, group: str, *, batch: int = 32, await_s: float = 1.0) -> Any:
    """Build a ReceiveMessage request of a simple consumer for every queue of a topic."""
    request = v2.ReceiveMessageRequest(
        group=v2.Resource(name=group),
        message_queue=v2.MessageQueue(topic=v2.Resource(name=topic), id=-1),
        filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"),
        batch_size=batch,
        auto_renew=False,
    )
    request.invisible_duration.seconds = 60
    request.long_polling_timeout.nanos = int((await_s % 1) * 1e9)
    request.long_polling_timeout.seconds = int(await_s)
    return request
