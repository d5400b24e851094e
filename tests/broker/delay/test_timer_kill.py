"""kill -9 around the due time: every delayed message is delivered once, recalled ones are not."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from pathlib import Path

from cometmq.proto import paths, v1, v2
from cometmq.store.format.record import decode
from cometmq.tests.broker.broker_process import BrokerProcess
from cometmq.tests.broker.desk import message, resource
from cometmq.tests.broker.live import create_topic, running, settings, until
from cometmq.tests.harness.wire import Wire

TOPIC = "Later"
MESSAGES = 400
KILLS = 4


async def send_all(wire: Wire, begin_ms: int) -> set[bytes]:
    """Send messages due over two seconds, every tenth recalled; return the expected bodies."""
    await create_topic(wire, TOPIC, queues=2, message_type=v2.DELAY)
    expected = set()
    for begin in range(0, MESSAGES, 50):
        batch = []
        for n in range(begin, begin + 50):
            batch.append(message(TOPIC, b"%d" % n, f"M{n}"))
            due_ms = begin_ms + n * 2000 // MESSAGES
            batch[-1].system_properties.delivery_timestamp.FromMilliseconds(due_ms)
        answer = await wire.send(batch)
        assert answer.status.code == v2.OK, answer
        for sent, entry in zip(batch, answer.entries, strict=True):
            if not sent.body.endswith(b"7") or not await recalled(wire, entry.recall_handle):
                expected.add(sent.body)
    return expected


async def recalled(wire: Wire, handle: str) -> bool:
    request = v2.RecallMessageRequest(topic=resource(TOPIC), recall_handle=handle)
    answer = await wire.call(paths.RECALL_MESSAGE, request, v2.RecallMessageResponse)
    return bool(answer.status.code == v2.OK)


async def delivered(root: Path, count: int) -> list[bytes]:
    """Return the topic's bodies once all are delivered."""
    async with running(settings(root)) as live:
        store = live.node.store

        def bodies() -> list[bytes]:
            live.node.pump.run()
            return [
                decode(record.data).body
                for queue_id in range(2)
                for record in store.get(TOPIC, queue_id, 0, 100_000, 1 << 30).records
            ]

        await until(lambda: len(set(bodies())) >= count)
        return bodies()


async def test_kills_around_the_due_time_lose_and_repeat_nothing(tmp_path: Path) -> None:
    chance = random.Random(5)
    expected: set[bytes] = set()
    for turn in range(KILLS):
        async with BrokerProcess(tmp_path) as broker, broker.client("c@1") as wire:
            if not expected:
                clock = await wire.call(
                    paths.GET_CLOCK, v1.GetClockRequest(), v1.ClockResponse, within_s=10
                )
                expected = await send_all(wire, clock.wall_ms + 1500)
            await asyncio.sleep(0.1 + chance.random() * 0.8 if turn else 1.2)
            await broker.kill()
    found = Counter(await delivered(tmp_path, len(expected)))
    assert set(found) == expected
    assert not {text: count for text, count in found.items() if count > 1}
    shutil.rmtree(tmp_path)
