"""Soak test: sends and receives through kills, pauses and route changes lose nothing.

Half a minute in the suite, ten minutes with `pytest -m slow`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil
import pytest

import cometmq
from cometmq.tests.harness.cluster import Cluster

TOPIC, GROUP = "soak", "soak"
SENDERS = 4
PATIENCE_S = 120.0
CALM_S, DOWN_S, PAUSED_S = 3.0, 1.5, 2.0
GROWTH_MAX = 1.05


@dataclass(slots=True)
class Books:
    """Acknowledged and received messages."""

    #: One byte per number of each sender, so that this record stays small.
    acknowledged: list[bytearray] = field(default_factory=list)
    received: list[bytearray] = field(default_factory=list)
    unknown: int = 0
    stopping: bool = False
    in_flight: str = ""

    def missing(self) -> list[str]:
        """Return the acknowledged messages that were not received."""
        return [
            f"{name}-{number}"
            for name, (sent, got) in enumerate(zip(self.acknowledged, self.received, strict=True))
            for number, one in enumerate(sent)
            if one and not (number < len(got) and got[number])
        ]


def note(book: bytearray, number: int) -> None:
    """Mark a number."""
    book.extend(bytes(max(0, number + 1 - len(book))))
    book[number] = 1


async def send(producer: cometmq.Producer, books: Books, name: int) -> None:
    """Send until `books.stopping`; record the acknowledged messages."""
    for number in itertools.count():
        if books.stopping:
            return
        body = f"{name}-{number}"
        try:
            await producer.send(TOPIC, body.encode())
        except cometmq.OutcomeUnknown:
            books.unknown += 1
        else:
            note(books.acknowledged[name], number)
        await asyncio.sleep(0.01)


async def trouble(cluster: Cluster, end: Callable[[], bool]) -> None:
    """Kill, pause, change the route, in turn."""
    chance = random.Random(7)
    queues = itertools.chain(range(9, 64), itertools.repeat(64))  # a topic never loses queues
    while not end():
        what = chance.choice(("kill master", "kill slave", "pause master", "pause slave", "route"))
        kind, _, role = what.partition(" ")
        if kind == "kill":
            await asyncio.to_thread(cluster.kill9, role)
            await asyncio.sleep(DOWN_S)
            await asyncio.to_thread(cluster.restart, role)
        elif kind == "pause":
            pid = cluster.node(role).pid
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(PAUSED_S)
            finally:
                os.kill(pid, signal.SIGCONT)
        else:
            await asyncio.to_thread(cluster.create_topic, TOPIC, queues=next(queues))
        await asyncio.sleep(CALM_S)


def anonymous() -> int:
    """Return the private dirty bytes of this process."""
    return sum(each.private_dirty for each in psutil.Process().memory_maps())


async def soak(cluster: Cluster, seconds: float, measure_from_s: float) -> tuple[Books, float]:
    """Run the soak. Return the books and the growth of memory after the warm-up."""
    loop = asyncio.get_running_loop()
    books = Books([bytearray() for _ in range(SENDERS)], [bytearray() for _ in range(SENDERS)])
    began = loop.time()

    async def handle(message: cometmq.Message) -> None:
        name, _, number = message.body.decode().partition("-")
        note(books.received[int(name)], int(number))

    async with (
        cometmq.Producer(cluster.endpoints, timeout=PATIENCE_S) as producer,
        cometmq.PushConsumer(cluster.endpoints, handle, group=GROUP, topics=TOPIC),
    ):
        senders = [asyncio.create_task(send(producer, books, name)) for name in range(SENDERS)]
        harm = asyncio.create_task(trouble(cluster, lambda: loop.time() - began > seconds))
        await asyncio.sleep(measure_from_s)
        before = anonymous()
        await harm
        after = anonymous()
        books.stopping = True
        await asyncio.gather(*senders)
        end = loop.time() + PATIENCE_S
        while books.missing() and loop.time() < end:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.1)
        described = await asyncio.to_thread(
            cluster.run, "group", "describe", GROUP, "--endpoint", cluster.address("master")
        )
        books.in_flight = described.stdout
    return books, after / before


def run(cluster: Cluster, seconds: float, measure_from_s: float) -> float:
    """Run the soak on a new loop and check its results. Return the growth of memory."""
    cluster.create_topic(TOPIC)
    cluster.create_group(GROUP)

    async def work() -> float:
        tasks = asyncio.all_tasks()
        books, growth = await soak(cluster, seconds, measure_from_s)
        if left := asyncio.all_tasks() - tasks:
            _, late = await asyncio.wait(left, timeout=PATIENCE_S)
            assert not late, "tasks were left behind"
        assert all(books.acknowledged), "nothing was sent"
        missing = books.missing()
        assert not missing, f"{missing} were not received:\n{books.in_flight}"
        return growth

    return asyncio.run(work())


@pytest.mark.timeout(400)
def test_half_a_minute_of_trouble_loses_nothing(new_cluster: Callable[..., Cluster]) -> None:
    run(new_cluster(), 25.0, 5.0)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_ten_minutes_of_trouble_lose_nothing_and_memory_does_not_grow(
    new_cluster: Callable[..., Cluster],
) -> None:
    assert run(new_cluster(), 600.0, 120.0) < GROWTH_MAX
