"""The work of `cometmq consume`: receive, print, acknowledge.

A message is acknowledged after it was printed, so a failed output loses none: messages that were
not acknowledged are delivered again after the invisible time.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from ...client.consuming import Refusals
from ...client.errors import NotFound
from ...client.message import Message
from ...client.simple_consumer import SimpleConsumer
from ...operations.broker_groups import answers
from ...operations.errors import CliError, Exit
from ...operations.message_document import body_fields
from ...proto import paths, v1
from ..cluster.broker_groups import broker_groups
from ..output import show_streamed
from ..sdk import sdk_options
from .format import Part, formatted
from .tailing import line_of

_BATCH_MAX = 32
# A poll waits at one queue: short polls reach the messages of all broker groups.
_POLL_S = 1.0
# The disconnect is a courtesy to the broker: it must not delay Ctrl-C.
_CLOSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to consume, and when to stop."""

    group: str
    topics: Sequence[str]
    tag: str
    count: int | None
    silence_s: float | None
    invisible_s: float


def topics_of(endpoint: str, group: str) -> list[str]:
    """Return the topics that a group has consumed. Raises CliError if there are none."""
    request = v1.DescribeGroupRequest(name=group)
    with broker_groups(endpoint) as groups:
        outcomes = groups.each(paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse)
    queues = [queue for _, answer in answers(outcomes) for queue in answer.queues]
    topics = sorted({queue.topic for queue in queues if not queue.retry})
    if not topics:
        raise CliError(
            f"Group {group} has consumed no topic yet: name one: cometmq consume {group} TOPIC",
            Exit.USAGE,
        )
    return topics


class Consumption:
    """One `cometmq consume`."""

    def __init__(
        self, endpoint: str, wanted: Wanted, parts: Sequence[Part] | None, output: str
    ) -> None:
        self._endpoint = endpoint
        self._wanted = wanted
        self._parts = parts
        self._output = output
        self._printed = 0
        self._refused = 0
        self._acknowledging: asyncio.Future[Refusals] | None = None

    def sentence(self) -> str:
        """Return what was done."""
        text = f"Consumed {self._printed} message{'s' * (self._printed != 1)}."
        if self._refused:
            text += f" {self._refused} could not be acknowledged and will be delivered again."
        return text

    async def run(self) -> None:
        """Consume until the count or the silence is reached. Raises CometError, CliError."""
        wanted = self._wanted
        consumer = SimpleConsumer(
            self._endpoint,
            group=wanted.group,
            topics=dict.fromkeys(wanted.topics, wanted.tag),
            **sdk_options(self._endpoint),
        )
        try:
            await consumer.start()
            await self._receive(consumer)
        except NotFound as error:
            raise CliError(str(error), Exit.NOT_FOUND) from None
        finally:
            # Printed messages are acknowledged although Ctrl-C cancels this task.
            if self._acknowledging is not None:
                await asyncio.wait((self._acknowledging,), timeout=_CLOSE_S)
            closing = asyncio.ensure_future(consumer.close())
            await asyncio.wait((closing,), timeout=_CLOSE_S)

    async def _receive(self, consumer: SimpleConsumer) -> None:
        wanted = self._wanted
        loop = asyncio.get_running_loop()
        last_s = loop.time()
        while wanted.count is None or self._printed < wanted.count:
            left = _BATCH_MAX if wanted.count is None else wanted.count - self._printed
            found = await consumer.receive(
                min(left, _BATCH_MAX), invisible_for=wanted.invisible_s, wait=_POLL_S
            )
            if found:
                await self._take(consumer, found)
                last_s = loop.time()
            elif wanted.silence_s is not None and loop.time() - last_s >= wanted.silence_s:
                return

    async def _take(self, consumer: SimpleConsumer, found: Sequence[Message]) -> None:
        for message in found:
            self._show(message)
        sys.stdout.flush()
        self._printed += len(found)
        self._acknowledging = asyncio.ensure_future(consumer.ack_all(found))
        refusals = await asyncio.shield(self._acknowledging)
        self._refused += len(refusals)
        for _, error in refusals:
            click.echo(f"cometmq: A message was not acknowledged: {error}", err=True)

    def _show(self, message: Message) -> None:
        if self._parts is not None:
            sys.stdout.buffer.write(formatted(self._parts, message))
        elif self._output == "json":
            show_streamed(_document(message))
        else:
            click.echo(line_of(_document(message)))


def _document(message: Message) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "queue": message.queue_id,
        "offset": message.offset,
        "message_id": message.message_id,
        "tag": message.tag,
        "keys": list(message.keys),
        "message_group": message.group,
        "born_ms": message.born_ms,
        "stored_ms": message.stored_ms,
        "properties": dict(message.properties),
        "attempt": message.attempt,
        "broker": message.broker,
        **body_fields(message.body),
    }
