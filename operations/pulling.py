"""Reads a queue by PullMessage without a consumer group: `message tail`, `dlq` and the console."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..proto import paths, v2
from .connection import Connection, refusal

# PullMessage requires a group name; brokers create none for RocketMQ's group of tools.
_GROUP = "TOOLS_CONSUMER"
#: Messages of one answer: a page of a terminal or a browser.
BATCH = 32
# A reader of stored messages does not wait for the next one; 0 is the broker's default.
_NO_WAIT_MS = 1


def queue_of(topic: str, broker: str, queue_id: int) -> v2.MessageQueue:
    """Return a queue of a broker group, read at its leader."""
    return v2.MessageQueue(
        topic=v2.Resource(name=topic), id=queue_id, broker=v2.Broker(name=broker, id=0)
    )


def pull_request(
    queue: v2.MessageQueue, offset: int, count: int = BATCH, wait_ms: int = _NO_WAIT_MS
) -> v2.PullMessageRequest:
    """Return the request for messages with any tag; the broker waits `wait_ms` for the first."""
    request = v2.PullMessageRequest(
        group=v2.Resource(name=_GROUP),
        message_queue=queue,
        offset=offset,
        batch_size=count,
        filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"),
    )
    request.long_polling_timeout.FromMilliseconds(wait_ms)
    return request


@dataclass(slots=True)
class Batch:
    """The messages of one answer, and the offset at which the next request starts."""

    next_offset: int
    messages: list[v2.Message] = field(default_factory=list)

    def add(self, answer: v2.PullMessageResponse) -> None:
        """Add one part of the answer. Raises CliError."""
        content = answer.WhichOneof("content")
        if content == "message":
            self.messages.append(answer.message)
        elif content == "next_offset":
            self.next_offset = answer.next_offset
        elif answer.status.code not in (v2.OK, v2.MESSAGE_NOT_FOUND, v2.ILLEGAL_OFFSET):
            raise refusal(answer.status.code, answer.status.message)


def pull(
    connection: Connection,
    queue: v2.MessageQueue,
    offset: int,
    *,
    count: int = BATCH,
    timeout_s: float,
) -> Batch:
    """Return messages from an offset on; none at the end of the queue. Raises CliError."""
    import grpc

    method: Callable[..., Any] = connection.channel.unary_stream(
        paths.PULL_MESSAGE,
        request_serializer=v2.PullMessageRequest.SerializeToString,
        response_deserializer=v2.PullMessageResponse.FromString,
    )
    batch = Batch(offset)
    request = pull_request(queue, offset, count)
    try:
        for answer in method(request, timeout=timeout_s, metadata=connection.metadata):
            batch.add(answer)
    except grpc.RpcError as error:
        raise connection.failure(error) from None
    return batch
