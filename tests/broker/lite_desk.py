"""A broker with a lite topic, and requests of producers and consumers of lite topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cometmq.broker.metadata.tables import Group, Topic
from cometmq.broker.names.lite import queue_of
from cometmq.front.clock import Clock
from cometmq.proto import v2
from cometmq.proto.errors import WireError
from cometmq.tests.broker.desk import Desk, Received, desk, message, resource
from cometmq.tests.broker.live import Settings

ADD, REMOVE = v2.PARTIAL_ADD, v2.PARTIAL_REMOVE
ALL, NONE = v2.COMPLETE_ADD, v2.COMPLETE_REMOVE
PARENT = "chats"
MINUTE_MS = 60_000


@dataclass(slots=True)
class Stream:
    """An open telemetry stream."""

    finished: bool = False
    commands: list[v2.TelemetryCommand] = field(default_factory=list)

    def send(self, command: Any) -> None:
        """Store what the client would receive."""
        self.commands.append(command)

    def drained(self) -> asyncio.Future[None]:
        """Return that nothing is queued."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def finish(self, error: Any = None) -> None:
        """End the stream from the server."""
        self.finished = True

    @property
    def lost(self) -> list[str]:
        """Return the lite topics of which the client lost its exclusive subscription."""
        return [c.notify_unsubscribe_lite_command.lite_topic for c in self.commands]


@dataclass(slots=True)
class Lite:
    """Lite topics of one parent, and one group that consumes them."""

    one: Desk
    group: str = "g"

    def bind(self, group: str = "g", **attributes: str) -> None:
        """Create or alter a lite group; `__` stands for a dot."""
        found = {"lite.bind.topic": PARENT}
        found.update({f"lite.{k.replace('__', '.')}": v for k, v in attributes.items()})
        attempts = int(found.pop("lite.attempts", "17"))
        self.one.node.meta_log.write_group(Group(group, max_attempts=attempts, attributes=found))

    def parent(self, name: str = PARENT, queues: int = 4, **attributes: str) -> None:
        """Create or alter the parent topic."""
        found = {f"lite.topic.{name}": value for name, value in attributes.items()}
        self.one.node.meta_log.write_topic(
            Topic(name, queues, queues, message_type=v2.LITE, attributes=found)
        )

    async def send(self, lite: str, *bodies: bytes, topic: str = PARENT) -> None:
        """Send messages to a lite topic, one request each, until they are readable."""
        for n, body in enumerate(bodies):
            sent = message(topic, body, f"{lite}-{n}", message_type=v2.LITE, lite_topic=lite)
            answer = await self.one.send(sent)
            assert answer.status.code == v2.OK, answer
        await self.one.dispatched()

    def sync(
        self,
        action: Any,
        *names: str,
        client: str = "c@1",
        group: str = "",
        topic: str = PARENT,
        option: v2.OffsetOption | None = None,
    ) -> int:
        """Call SyncLiteSubscription; return the code."""
        request = v2.SyncLiteSubscriptionRequest(
            action=action,
            topic=resource(topic),
            group=resource(group or self.group),
            lite_topic_set=names,
            offset_option=option,
        )
        try:
            answer = self.one.node.lite.subscribing.sync(request, self.one.context(client))
        except WireError as error:
            return error.code
        assert isinstance(answer, v2.SyncLiteSubscriptionResponse)  # nothing waits for a disk here
        return answer.status.code

    async def receive(self, client: str = "c@1", **fields: Any) -> Received:
        """Call ReceiveMessage, waiting if needed."""
        group = fields.pop("group", self.group)
        return await self.one.receive(PARENT, group, self.one.context(client), **fields)

    async def nothing(self, client: str = "c@1", **fields: Any) -> None:
        """Check that no message is available now."""
        group = fields.pop("group", self.group)
        ctx = self.one.context(client, remaining_ms=105)
        answer = await self.one.receive(PARENT, group, ctx, **fields)
        assert answer.code == v2.MESSAGE_NOT_FOUND, answer

    def ack(self, *handles: str, lite: str = "") -> v2.AckMessageResponse:
        """Call AckMessage."""
        request = v2.AckMessageRequest(topic=resource(PARENT), group=resource(self.group))
        for handle in handles:
            request.entries.add(message_id="m", receipt_handle=handle, lite_topic=lite)
        return v2.AckMessageResponse.FromString(self.one.acks.ack(request, self.one.context()))

    def offset(self, lite: str, group: str = "") -> int | None:
        """Return the consumer offset of the group in a lite topic."""
        return self.one.node.offsets.get(queue_of(PARENT, lite), group or self.group, 0)

    @property
    def queues(self) -> list[str]:
        """Return the queues (LMQ) that exist."""
        return sorted(self.one.node.store.queue_table.lmqs())

    def listen(self, client: str) -> Stream:
        """Open a telemetry stream of a client."""
        node = self.one.node
        stream = Stream()
        node.clients.seen(self.one.context(client), node.runtime.clock.steady_ns()).streams.append(
            stream
        )
        return stream


def held(one: Lite, client: str = "c@1", group: str = "g") -> list[str]:
    """Return the lite topics that a client subscribes to."""
    found = one.one.node.lite.table.get((group, client))
    return sorted(queue.rpartition("$")[2] for queue in found.queues) if found else []


@asynccontextmanager
async def lite(
    directory: Path, chosen: Settings | None = None, clock: Clock | None = None, **broker: Any
) -> AsyncIterator[Lite]:
    """Run a broker for one test, with a parent topic and a group."""
    async with desk(directory, chosen, clock, **broker) as one:
        found = Lite(one)
        if one.node.metadata.topic(PARENT) is None and one.node.leadership.is_leader:
            found.parent()
            found.bind()
        yield found
