"""`cometmq message tail`: one PullMessage long poll for each queue, without a consumer group.

Queues are read from their start or their present end; the position is kept in memory only. Calls to
an unreachable node are repeated, so that a tail survives a restart.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import click
import grpc
import grpc.aio

from ...operations.broker_groups import Outcome, failure_of_all
from ...operations.connection import Caller, checked, failure
from ...operations.errors import CliError, ForbiddenError, NotServedError
from ...operations.message_document import message_document
from ...operations.pulling import Batch, pull_request, queue_of
from ...operations.sending import endpoints_of
from ...proto import paths, v1, v2
from ..links import links
from ..output import show_streamed
from .start import Start

_POLL_S = 10.0
_MARGIN_S = 5.0
_RETRY_S = 0.5
_FIELD_WIDTH_MAX = 200


class _Tail:
    """The state of one `message tail`."""

    def __init__(self, endpoint: str, topic: str, count: int | None, output: str) -> None:
        self.endpoint = endpoint
        self.topic = topic
        self.left = count
        self.output = output
        self.links = links()
        self.caller = Caller(endpoint, self.links)
        #: Whether the queues belong to several broker groups.
        self.several = False
        self.done = asyncio.Event()
        self.arrived = asyncio.Event()
        self.channel: Any = self.links.async_channel(endpoint)

    async def call(self, path: str, request: Any, answer: Any) -> Any:
        """Make one unary call. Raises CliError."""
        method = self.channel.unary_unary(path, response_deserializer=answer.FromString)
        try:
            return checked(
                await method(
                    request.SerializeToString(), timeout=_POLL_S, metadata=self.caller.metadata()
                )
            )
        except grpc.aio.AioRpcError as error:
            raise failure(error, self.endpoint, self.links) from None

    async def queues(self) -> list[v2.MessageQueue]:
        """Return the queues of the topic in all broker groups. Raises CliError.

        A group that does not answer, or does not have the topic, is named on stderr.
        """
        found: list[v2.MessageQueue] = []
        errors: dict[str, CliError] = {}
        try:
            brokers = await self._brokers()
        except ForbiddenError:  # a user with rights on topics and groups only
            return await self._routed()
        for name in brokers:
            request = v1.DescribeTopicRequest(name=self.topic, broker=name)
            try:
                answer = await self.call(paths.DESCRIBE_TOPIC, request, v1.DescribeTopicResponse)
            except ForbiddenError:
                return await self._routed()
            except CliError as failed:
                errors[name] = failed
                continue
            found += [queue_of(self.topic, each.broker, each.queue_id) for each in answer.queues]
        if errors and not found:
            raise failure_of_all([Outcome(name, error=error) for name, error in errors.items()])
        for name, error in errors.items():
            click.echo(f"cometmq: {name}: {error}", err=True)
        self.several = len({queue.broker.name for queue in found}) > 1
        return found

    async def _routed(self) -> list[v2.MessageQueue]:
        """Return the queues that the topic's route names. Raises CliError."""
        request = v2.QueryRouteRequest(
            topic=v2.Resource(name=self.topic), endpoints=endpoints_of(self.endpoint)
        )
        route = await self.call(paths.QUERY_ROUTE, request, v2.QueryRouteResponse)
        named = {
            (queue.broker.name, queue.id)
            for queue in route.message_queues
            if queue.permission in (v2.READ, v2.READ_WRITE)
        }
        self.several = len({broker for broker, _ in named}) > 1
        return [queue_of(self.topic, broker, queue_id) for broker, queue_id in sorted(named)]

    async def _brokers(self) -> Sequence[str]:
        """Return the names of the broker groups; `[""]` for that of a broker of version 0.1.0."""
        try:
            answer = await self.call(
                paths.LIST_BROKERS, v1.ListBrokersRequest(), v1.ListBrokersResponse
            )
        except NotServedError:
            return [""]
        return answer.brokers or [""]

    async def first_offset(self, queue: v2.MessageQueue, start: Start) -> int:
        """Return the start offset of a queue."""
        if start.offset is not None:
            return start.offset
        request = v2.QueryOffsetRequest(message_queue=queue, query_offset_policy=start.policy)
        if start.policy == v2.TIMESTAMP:
            request.timestamp.FromMilliseconds(start.at_ms)
        answer = await self.call(paths.QUERY_OFFSET, request, v2.QueryOffsetResponse)
        return int(answer.offset)

    async def follow(self, queue: v2.MessageQueue, offset: int) -> None:
        """Show one queue until the task is cancelled."""
        while True:
            try:
                offset = await self.pull(queue, offset)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise failure(error, self.endpoint, self.links) from None
                await asyncio.sleep(_RETRY_S)

    async def pull(self, queue: v2.MessageQueue, offset: int) -> int:
        """Make one long poll; returns the next offset."""
        request = pull_request(queue, offset, wait_ms=int(_POLL_S * 1_000))
        method = self.channel.unary_stream(
            paths.PULL_MESSAGE, response_deserializer=v2.PullMessageResponse.FromString
        )
        stream = method(
            request.SerializeToString(),
            timeout=_POLL_S + _MARGIN_S,
            metadata=self.caller.metadata(),
        )
        batch = Batch(offset)
        async for answer in stream:
            batch.add(answer)
            while batch.messages:
                self.show(batch.messages.pop(), queue.broker.name)
        return batch.next_offset

    def show(self, message: v2.Message, broker: str) -> None:
        """Print a message, with its broker group if there are several, unless the count is
        reached."""
        if self.done.is_set():
            return
        self.arrived.set()
        document = message_document(message)
        if self.several:
            document = {"broker": broker, **document}
        if self.output == "json":
            show_streamed(document)
        else:
            click.echo(line_of(document))
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                self.done.set()

    async def stop_when_silent(self, timeout_s: float) -> None:
        """Stop after `timeout_s` without a message."""
        while True:
            self.arrived.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self.arrived.wait()
            except TimeoutError:
                self.done.set()
                return


async def tail_topic(
    *,
    endpoint: str,
    topic: str,
    start: Start,
    count: int | None,
    timeout_s: float | None,
    output: str,
) -> None:
    """Show a topic until Ctrl-C, `count` messages or the timeout. Raises CliError."""
    tail = _Tail(endpoint, topic, count, output)
    try:
        queues = await tail.queues()
        offsets = await asyncio.gather(*(tail.first_offset(queue, start) for queue in queues))
        tasks = [
            asyncio.create_task(tail.follow(queue, offset))
            for queue, offset in zip(queues, offsets, strict=True)
        ]
        if not tasks:
            raise CliError(f"Topic {topic} has no queues.")
        click.echo(_first_line(topic, len(queues), start), err=True)
        if timeout_s is not None:
            tasks.append(asyncio.create_task(tail.stop_when_silent(timeout_s)))
        tasks.append(asyncio.create_task(_wait(tail.done)))
        finished, running = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            task.cancel()
        # All: at a closed pipe the tasks of several queues fail, and each would print a traceback.
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in finished:
            task.result()
    finally:
        await tail.channel.close()


def _first_line(topic: str, queues: int, start: Start) -> str:
    text = f"Following topic {topic} ({queues} queue{'s' * (queues != 1)}) from {start.words}."
    if start.policy == v2.END and start.offset is None:
        text += " Use `--from beginning` for the messages that are stored already."
    return text


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def line_of(document: dict[str, Any]) -> str:
    """Return a message as one line; long bodies are cut, unprintable ones escaped."""
    body = document.get("body")
    text = body if body is not None else "base64:" + document["body_base64"]
    if not text.isprintable():
        text = text.encode("unicode_escape").decode("ascii")
    if len(text) > _FIELD_WIDTH_MAX:
        text = text[: _FIELD_WIDTH_MAX - 3] + "..."
    words = [document["broker"]] if "broker" in document else []
    words.append(f"{document['queue']}/{document['offset']}")
    words += [f"{name}={document[name]}" for name in ("tag", "message_group") if document[name]]
    if document["keys"]:
        words.append(f"keys={','.join(document['keys'])}")
    return " ".join([*words, text])
