"""The SDK against the released Apache RocketMQ proxy, started from the published jars.

Takes over a minute, mostly for the start of JVMs: run by `scripts/test --slow`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import cometmq
from cometmq.tests.bench.reference.run import Reference, ReferenceMissing, running

pytestmark = pytest.mark.slow

TOPIC, GROUP = "sdk-on-apache", "sdk-on-apache-group"
WAIT_S = 90.0


@pytest.fixture(scope="module")
def apache() -> Iterator[Reference]:
    try:
        with running(TOPIC, GROUP) as server:
            yield server
    except ReferenceMissing as missing:
        pytest.skip(str(missing))


async def test_messages_go_through_the_released_proxy(apache: Reference) -> None:
    bodies = {f"body-{number}".encode() for number in range(40)}
    async with cometmq.Producer(apache.endpoint, timeout=WAIT_S) as producer:
        receipt = await producer.send(TOPIC, b"one", tag="red", properties={"a": "1"})
        assert receipt.message_id
        results = await producer.send_many(TOPIC, sorted(bodies))
        assert all(isinstance(result, cometmq.Receipt) for result in results)
    got: dict[str, cometmq.Message] = {}
    async with (
        asyncio.timeout(WAIT_S),
        cometmq.SimpleConsumer(apache.endpoint, group=GROUP, topics=TOPIC) as consumer,
    ):
        while len(got) < len(bodies) + 1:
            messages = await consumer.receive(wait=5)
            assert await consumer.ack_all(messages) == []
            got |= {message.message_id: message for message in messages}
    one = got[receipt.message_id]
    assert (one.body, one.tag, one.properties) == (b"one", "red", {"a": "1"})
    assert {message.body for message in got.values()} == bodies | {b"one"}


async def test_a_handler_is_called_through_the_released_proxy(apache: Reference) -> None:
    seen: list[bytes] = []
    done = asyncio.Event()

    async def handle(message: cometmq.Message) -> None:
        seen.append(message.body)
        if message.body == b"pushed":
            done.set()

    async with (
        asyncio.timeout(WAIT_S),
        cometmq.PushConsumer(apache.endpoint, handle, group=GROUP, topics=TOPIC),
        cometmq.Producer(apache.endpoint, timeout=WAIT_S) as producer,
    ):
        await producer.send(TOPIC, b"pushed")
        await done.wait()
