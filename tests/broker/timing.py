"""Helpers for delayed messages: sending them, and reading them where they are stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from cometmq.proto import v2
from cometmq.store.format.record import Record, decode
from cometmq.tests.broker.desk import Desk, message
from cometmq.tests.broker.live import Settings, settings, until

TOPIC, GROUP = "Later", "g"
HOUR = 3_600_000


def with_store(root: Path, **changed: Any) -> Settings:
    base = settings(root)
    return replace(base, store=replace(base.store, **changed))


def delayed(body: bytes, due_ms: int, message_id: str = "", topic: str = TOPIC) -> v2.Message:
    found = message(topic, body, message_id or f"ID-{body.decode()}")
    found.system_properties.delivery_timestamp.FromMilliseconds(due_ms)
    return found


async def send(k: Desk, *messages: v2.Message) -> v2.SendMessageResponse:
    answer = await k.send(*messages)
    assert answer.status.code == v2.OK, answer
    await enqueued(k)
    return answer


async def enqueued(k: Desk) -> None:
    await k.dispatched()
    await until(lambda: k.node.timers.enqueue_lag == 0)


def stored(k: Desk, topic: str = TOPIC) -> list[Record]:
    """Return all messages of a topic, queue by queue."""
    k.node.pump.run()
    found = []
    for name, queue_id in sorted(k.node.store.queues()):
        if name == topic:
            result = k.node.store.get(topic, queue_id, 0, 100_000, 1 << 30)
            found += [decode(record.data) for record in result.records]
    return found


async def arrives(k: Desk, *bodies: bytes, topic: str = TOPIC) -> None:
    """Wait until exactly these messages are in the topic."""
    await until(lambda: len(stored(k, topic)) >= len(bodies))
    assert sorted(record.body for record in stored(k, topic)) == sorted(bodies)
