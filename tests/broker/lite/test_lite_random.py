"""Random lite topic clients: no message is lost, and every lite topic is consumed in order.

A plain model gives the messages that may be in flight: one batch per lite topic, starting at the
first unacknowledged message.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import pytest

from cometmq.proto import v2
from cometmq.tests.broker.lite_desk import ADD, ALL, REMOVE, Lite, lite

CLIENTS = ["c@1", "c@2", "c@3"]
NAMES = ["a", "b", "c", "d"]
INVISIBLE_MS = 10_000


class World:
    """The model, and the broker beside it."""

    def __init__(self, one: Lite, rng: random.Random) -> None:
        self.one, self.rng = one, rng
        self.sent: dict[str, int] = defaultdict(int)
        self.acked: dict[str, set[int]] = defaultdict(set)
        #: Number and handle of the messages of each lite topic's batch.
        self.out: dict[str, list[tuple[int, str]]] = {}

    def first(self, name: str) -> int:
        """Return the first unacknowledged message."""
        return next(n for n in range(self.sent[name] + 1) if n not in self.acked[name])

    def locked(self, name: str) -> bool:
        """Return whether a message of the batch is neither acknowledged nor expired."""
        return any(n not in self.acked[name] for n, _ in self.out.get(name, ()))

    async def send(self) -> None:
        name = self.rng.choice(NAMES)
        await self.one.send(name, b"%s %d" % (name.encode(), self.sent[name]))
        self.sent[name] += 1

    async def subscribe(self) -> None:
        action = self.rng.choice([ADD, ADD, ALL, REMOVE])
        names = self.rng.sample(NAMES, self.rng.randrange(1, 4))
        assert self.one.sync(action, *names, client=self.rng.choice(CLIENTS)) == v2.OK

    async def receive(self, batch: int = 0, client: str = "") -> int:
        """Poll without waiting and check the result against the model."""
        ctx = self.one.one.context(client or self.rng.choice(CLIENTS), remaining_ms=101)
        got = await self.one.one.receive(
            "chats", "g", ctx, batch=batch or self.rng.randrange(1, 6), invisible_ms=INVISIBLE_MS
        )
        batches: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for message in got.messages:
            name, number = message.body.decode().split()
            assert name == message.system_properties.lite_topic
            batches[name].append((int(number), message.system_properties.receipt_handle))
        for name, found in batches.items():
            assert not self.locked(name)
            first = self.first(name)
            assert [n for n, _ in found] == list(range(first, first + len(found)))
            # Acknowledged messages after the first redelivered one are redelivered too.
            self.acked[name] = set(range(first))
            self.out[name] = found
        return len(got.messages)

    async def ack(self) -> None:
        busy = [name for name in self.out if self.locked(name)]
        if busy:
            name = self.rng.choice(busy)
            number, handle = self.rng.choice(self.out[name])
            lite_topic = self.rng.choice(["", name])
            assert self.one.ack(handle, lite=lite_topic).status.code == v2.OK
            self.acked[name].add(number)

    async def expire(self) -> None:
        self.one.one.advance(INVISIBLE_MS)
        self.out.clear()


@pytest.mark.parametrize("seed", range(3))
async def test_random_clients_lose_nothing_and_keep_the_order(tmp_path: Path, seed: int) -> None:
    async with lite(tmp_path) as one:
        rng = random.Random(seed)
        world = World(one, rng)
        assert one.sync(ADD, *NAMES) == v2.OK  # every group starts before the first message
        steps = [world.send] * 5 + [world.ack] * 5 + [world.subscribe, world.expire]
        for _ in range(250):
            await rng.choice(steps)()
            if rng.random() < 0.2:
                await world.receive()
        # At the end one client takes everything.
        assert one.sync(ADD, *NAMES) == v2.OK
        await world.expire()
        for _ in range(200):
            if not await world.receive(32, "c@1"):
                break
            for name, found in world.out.items():
                for number, handle in found:
                    if number not in world.acked[name]:
                        assert one.ack(handle).status.code == v2.OK
                        world.acked[name].add(number)
        for name in NAMES:
            assert world.first(name) == world.sent[name] == one.offset(name)
        assert not list(one.one.node.lite.receiving.subscriptions())
        one.one.node.lite.table.validate()
