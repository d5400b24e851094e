"""Property of incarnations: topics, lite topics and groups are deleted and created again while work
of every kind waits for them.

Nothing of a deleted one reaches its successor, nothing of the successor is lost, and the plan of a
deletion counts what it drops. Bodies name the incarnations for which they were sent.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.broker.messages.validation import MIXED
from cometmq.front.clock import Clock
from cometmq.proto import paths, v1, v2
from cometmq.remoting.codes import Request
from cometmq.store.format.properties import encode_properties
from cometmq.store.format.record import Message, decode
from cometmq.tests.broker.classic_wire import port_of
from cometmq.tests.broker.desk import Desk, desk, message, resource
from cometmq.tests.broker.lite_desk import ADD, PARENT, Lite
from cometmq.tests.broker.live import until
from cometmq.tests.broker.transacting import end_transaction
from cometmq.tests.harness.wire import Wire
from cometmq.tests.remoting.client import RemotingClient

TOPIC, GROUP, LITE_GROUP, RETRY, DEAD = "T", "g", "g-lite", "%RETRY%g", "%DLQ%g"
ORDERED, CLASSIC = "g-ordered", "g-classic"
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
INVISIBLE_MS = 30_000
ACTIONS = (
    *("send", "timer", "level", "retry", "half", "end", "lite"),
    *("receive", "receive", "ack", "dead", "pass", "ordered", "classic", "retried"),
    *("topic", "topic", "group", "others", "parent", "restart"),
)


@dataclass
class Model:
    """What was sent for the present incarnations, and what waits."""

    root: Path
    source: random.Random
    clock: Clock = field(default_factory=Clock)
    one: Desk = field(init=False)
    wire: Wire = field(init=False)
    number: int = 0
    #: Incarnations of the topic, the group and the parent.
    topics: int = 1
    groups: int = 1
    parents: int = 1
    #: Of the present topic: timers, levels and half messages that wait, and what is in the topic.
    timers: set[bytes] = field(default_factory=set)
    levels: set[bytes] = field(default_factory=set)
    halves: dict[bytes, str] = field(default_factory=dict)
    sent: set[bytes] = field(default_factory=set)
    #: Of the present topic and group: delayed retries, and what the group has finished.
    retries: set[bytes] = field(default_factory=set)
    finished: set[bytes] = field(default_factory=set)
    dead: set[bytes] = field(default_factory=set)
    in_flight: dict[bytes, str] = field(default_factory=dict)
    lite: set[bytes] = field(default_factory=set)
    #: Number of messages that the ordered group has finished, and the offset of the classic one.
    in_order: int = 0
    classic: int | None = None
    #: Half messages of topics that are gone: their ends have no effect.
    old_halves: dict[bytes, str] = field(default_factory=dict)

    def body(self) -> bytes:
        self.number += 1
        return b"%d %d %d %d" % (self.topics, self.groups, self.parents, self.number)

    def make(self) -> None:
        """Create what does not exist."""
        have = self.one.node.metadata
        if TOPIC not in have.topics:
            self.one.topic(TOPIC, message_type=MIXED)
        if GROUP not in have.groups:
            self.one.group(GROUP)
        if RETRY not in have.topics:
            self.one.topic(RETRY)
        if ORDERED not in have.groups:
            self.one.group(ORDERED, orderly=True)
        if CLASSIC not in have.groups:
            self.one.group(CLASSIC)
        if PARENT not in have.topics:
            self.chats.parent()
        self.chats.bind(LITE_GROUP)
        assert self.chats.sync(ADD, "a") == v2.OK

    @property
    def chats(self) -> Lite:
        return Lite(self.one, LITE_GROUP)

    # -- work -----------------------------------------------------------------------------------

    async def do_send(self) -> None:
        body = self.body()
        await self.one.sent(TOPIC, body)
        self.sent.add(body)

    async def do_timer(self) -> None:
        body = self.body()
        sent = message(TOPIC, body, body.decode(), message_type=v2.DELAY)
        due_ms = self.clock.wall_ms() + HOUR_MS
        sent.system_properties.delivery_timestamp.FromMilliseconds(due_ms)
        assert (await self.one.send(sent)).status.code == v2.OK
        self.timers.add(body)

    async def do_level(self, topic: str = TOPIC, **properties: str) -> bytes:
        body = self.body()
        wanted = {"UNIQ_KEY": body.decode(), "DELAY": "17", **properties}
        node = self.one.node
        node.sender.append(node.delayed.record(Message(topic, 0, body), wanted))
        await self.one.dispatched()
        (self.levels if topic == TOPIC else self.retries).add(body)
        return body

    async def do_retry(self) -> None:
        await self.do_level(RETRY, RETRY_TOPIC=TOPIC)

    async def do_half(self) -> None:
        body = self.body()
        sent = message(TOPIC, body, body.decode(), message_type=v2.TRANSACTION)
        answer = await self.one.send(sent)
        assert answer.status.code == v2.OK
        await self.one.dispatched()
        self.halves[body] = answer.entries[0].transaction_id

    async def do_end(self) -> None:
        for table, code in (
            (self.halves, v2.OK),
            (self.old_halves, v2.INVALID_TRANSACTION_ID),
        ):
            if table:
                body = self.source.choice(sorted(table))
                assert await end_transaction(self.one, TOPIC, table.pop(body)) == code
                if table is self.halves:
                    self.sent.add(body)

    async def do_lite(self) -> None:
        body = self.body()
        await self.chats.send("a", body)
        self.lite.add(body)

    async def do_receive(self) -> None:
        ctx = self.one.context(remaining_ms=60)  # no long poll
        got = await self.one.receive(TOPIC, GROUP, ctx, invisible_ms=INVISIBLE_MS, batch=3)
        for body, handle in zip(got.bodies, got.handles, strict=True):
            assert body in self.sent, f"{body!r} is of a deleted topic"
            assert body not in self.finished, f"{body!r} was finished"
            self.in_flight[body] = handle

    async def do_ack(self) -> None:
        if self.in_flight:
            body, handle = self.in_flight.popitem()
            answer = self.one.ack(TOPIC, GROUP, handle)
            if answer.entries[0].status.code == v2.OK:
                self.finished.add(body)

    async def do_dead(self) -> None:
        if self.in_flight:
            body, handle = self.in_flight.popitem()
            request = v2.ForwardMessageToDeadLetterQueueRequest(
                topic=resource(TOPIC), group=resource(GROUP), receipt_handle=handle
            )
            answer: Any = self.one.acks.forward_to_dead_letter_queue(request, self.one.context())
            answer = await answer if isinstance(answer, asyncio.Future) else answer
            if answer.status.code == v2.OK:
                self.finished.add(body)
                self.dead.add(body)

    async def do_ordered(self) -> None:
        ctx = self.one.context(remaining_ms=60)
        got = await self.one.receive(TOPIC, ORDERED, ctx, invisible_ms=INVISIBLE_MS, batch=2)
        end = self.in_order + len(got.bodies)
        assert got.bodies == [*self.stored(TOPIC)][self.in_order : end]
        if got.bodies and self.source.random() < 0.7:
            self.one.ack(TOPIC, ORDERED, *got.handles)
            self.in_order = end

    async def do_classic(self) -> None:
        """Commit an offset as a classic client does."""
        offset = self.one.node.store.max_offset(TOPIC, 0)
        place = {"consumerGroup": CLASSIC, "topic": TOPIC, "queueId": 0}
        async with RemotingClient(port_of(self.one.live)) as client:
            await client.call(Request.UPDATE_CONSUMER_OFFSET, **place, commitOffset=offset)
        self.classic = offset

    async def do_retried(self) -> None:
        """A retry whose delay is over waits in the classic retry topic."""
        body = self.body()
        properties = encode_properties({"RETRY_TOPIC": TOPIC, "UNIQ_KEY": body.decode()})
        self.one.node.sender.append(Message(RETRY, 0, body, properties))
        await self.one.dispatched()
        self.retries.add(body)

    async def do_pass(self) -> None:
        self.one.advance(INVISIBLE_MS + 1)
        await asyncio.sleep(0)
        self.in_flight.clear()

    # -- incarnations ---------------------------------------------------------------------------

    async def call(self, path: str, request: Any, answer: Any) -> Any:
        return await self.wire.call(path, request, answer)

    def held(self, *topics: str) -> int:
        """Return the number of messages that can be read in topics."""
        node = self.one.node
        node.pump.run()
        known = [name for name in topics if name in node.metadata.topics]
        return sum(
            node.store.max_offset(name, 0) - node.store.min_offset(name, 0) for name in known
        )

    async def do_topic(self) -> None:
        retry = "%RETRY%g_T"
        await self.one.dispatched()
        request = v1.DeleteTopicRequest(name=TOPIC, dry_run=True)
        plan = await self.call(paths.DELETE_TOPIC, request, v1.DeleteTopicResponse)
        waiting: list[Any] = [self.timers, self.levels, self.halves, self.retries, self.dead]
        assert (self.classic is not None) == (CLASSIC in plan.groups)
        assert plan.messages == sum(map(len, waiting)) + self.held(TOPIC, retry)
        assert self.held(TOPIC) == len(self.sent)
        request = v1.DeleteTopicRequest(name=TOPIC, accept_loss=True)
        done = await self.call(paths.DELETE_TOPIC, request, v1.DeleteTopicResponse)
        assert done.code == v2.OK
        self.old_halves |= self.halves
        self.topics += 1
        for each in (*waiting, self.sent, self.finished, self.in_flight):
            each.clear()
        self.in_order, self.classic = 0, None
        self.make()
        plan = await self.call(
            paths.DELETE_TOPIC,
            v1.DeleteTopicRequest(name=TOPIC, dry_run=True),
            v1.DeleteTopicResponse,
        )
        assert (plan.messages, plan.in_flight, [*plan.groups]) == (0, 0, [])

    async def do_group(self) -> None:
        await self.one.dispatched()
        plan = await self.call(
            paths.DELETE_GROUP,
            v1.DeleteGroupRequest(name=GROUP, dry_run=True),
            v1.DeleteGroupResponse,
        )
        assert plan.messages >= len(self.retries) + self.held(DEAD)
        assert self.held(DEAD) == len(self.dead)
        request = v1.DeleteGroupRequest(name=GROUP, accept_loss=True, force=True)
        done = await self.call(paths.DELETE_GROUP, request, v1.DeleteGroupResponse)
        assert done.code == v2.OK
        self.groups += 1
        for each in (self.retries, self.finished, self.dead, self.in_flight):
            each.clear()
        self.make()
        plan = await self.call(
            paths.DELETE_GROUP,
            v1.DeleteGroupRequest(name=GROUP, dry_run=True),
            v1.DeleteGroupResponse,
        )
        assert (plan.messages, plan.in_flight, list(plan.offsets)) == (0, 0, [])

    async def do_others(self) -> None:
        for group in (ORDERED, CLASSIC):
            request = v1.DeleteGroupRequest(name=group, accept_loss=True, force=True)
            done = await self.call(paths.DELETE_GROUP, request, v1.DeleteGroupResponse)
            assert done.code == v2.OK
        self.in_order, self.classic = 0, None
        self.make()

    async def do_parent(self) -> None:
        request = v1.DeleteTopicRequest(name=PARENT, accept_loss=True)
        done = await self.call(paths.DELETE_TOPIC, request, v1.DeleteTopicResponse)
        assert done.code == v2.OK
        self.parents += 1
        self.lite.clear()
        self.make()

    # -- the end --------------------------------------------------------------------------------

    async def check(self) -> None:
        """Check that all of the present incarnations arrives, and nothing else."""
        while self.halves:
            await self.do_end()
        self.one.advance(2 * HOUR_MS + MINUTE_MS)
        self.sent |= self.timers | self.levels
        await until(lambda: self.held(TOPIC) >= len(self.sent))
        await until(lambda: self.held(RETRY) >= len(self.retries))
        self.one.advance(HOUR_MS)
        node = self.one.node
        await until(lambda: not node.timers.dequeue_lag and not node.timers.enqueue_lag)
        assert set(self.stored(TOPIC)) == self.sent
        assert set(self.stored(RETRY)) == self.retries
        assert set(self.stored(DEAD)) == self.dead
        assert node.offsets.get(TOPIC, CLASSIC, 0) == self.classic
        async with asyncio.timeout(30):
            while self.in_order < len(self.sent):
                await self.do_ordered()
                self.one.advance(INVISIBLE_MS + 1)
                await asyncio.sleep(0.002)
        left = self.sent - self.finished
        async with asyncio.timeout(30):
            while left:
                await self.do_receive()
                for body in list(self.in_flight):
                    await self.do_ack()
                    left.discard(body)
                await asyncio.sleep(0.002)
        lite: set[bytes] = set()
        async with asyncio.timeout(30):
            while lite != self.lite:
                got = await self.chats.receive(batch=32)
                assert set(got.bodies) <= self.lite, "a lite message of a deleted parent"
                lite |= set(got.bodies)
                self.chats.ack(*got.handles, lite="a")

    def stored(self, topic: str) -> Iterator[bytes]:
        """Yield what can be read in a topic."""
        store = self.one.node.store
        first = store.min_offset(topic, 0) if self.held(topic) else store.max_offset(topic, 0)
        for stored in store.get(topic, 0, first, 10_000, 1 << 24).records:
            yield decode(stored.data).body


@given(st.lists(st.sampled_from(ACTIONS), min_size=8, max_size=40), st.randoms())
@settings(max_examples=40, deadline=None)
def test_nothing_of_a_deleted_one_reaches_its_successor(
    tmp_path_factory: object, actions: list[str], source: random.Random
) -> None:
    model = Model(tmp_path_factory.mktemp("incarnations"), source)  # type: ignore[attr-defined]
    try:
        asyncio.run(run(model, actions))
    finally:
        shutil.rmtree(model.root)  # 60 MB an example


async def run(model: Model, actions: list[str]) -> None:
    """Do the actions, with a restart at each `restart`."""
    left = [*actions, "check"]
    while left:
        async with (
            desk(model.root, clock=model.clock, remoting_listen_port=-1) as model.one,
            model.one.live.client("admin") as model.wire,
        ):
            model.make()
            while left and (action := left.pop(0)) != "restart":
                if action == "check":
                    await model.check()
                else:
                    await getattr(model, f"do_{action}")()
            await model.one.dispatched()
            model.in_flight.clear()  # handles may change
