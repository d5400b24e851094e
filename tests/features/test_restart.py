"""A kill with messages in every state: nothing acknowledged is lost or redelivered, nothing
committed is undone.

One broker with a message in every state is killed and restarted (docs/formats/broker-semantics.md,
sections 1.7, 1.9, 5 and 6).
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cometmq.proto import v2
from cometmq.tests.broker.broker_process import BrokerProcess
from cometmq.tests.features.client import MIXED, Client
from cometmq.tests.features.test_transactions import half

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(slots=True)
class Before:
    """The state left by the first instance."""

    entries: dict[str, v2.SendResultEntry] = field(default_factory=dict)
    in_flight: list[v2.Message] = field(default_factory=list)
    ordered: list[v2.Message] = field(default_factory=list)


async def first_life(client: Client) -> Before:
    """A message in every state."""
    left = Before()
    plain, ordered = await client.topic(what="plain"), await client.topic(v2.FIFO, what="ordered")
    mixed = await client.topic(MIXED, what="mixed")
    await client.group("fifo", orderly=True)
    for body in ("retried", "acked", "b", "c"):
        await client.send(plain, body)
    assert (await client.one(plain, "g", batch=1, invisible_s=10)).body == b"retried"
    await client.advance(10_000)
    got = await client.take(plain, "g", 4, invisible_s=3600)
    assert {m.system_properties.delivery_attempt for m in got if m.body == b"retried"} == {2}
    await client.ack(plain, "g", [m for m in got if m.body == b"acked"])
    left.in_flight = [m for m in got if m.body in (b"b", b"c")]
    await client.ack(plain, "g", [m for m in got if m.body == b"retried"])
    for body in ("x", "y", "z"):
        await client.send(ordered, body, message_group="k", message_type=v2.FIFO)
    left.ordered = await client.take(ordered, client.name("fifo"), 2, batch=2, invisible_s=3600)
    for name in ("open", "rolled back", "committed"):
        left.entries[name] = await half(client, mixed, name)
    assert await client.end(mixed, left.entries["committed"], v2.COMMIT) == v2.OK
    assert await client.end(mixed, left.entries["rolled back"], v2.ROLLBACK) == v2.OK
    later_ms = await client.now_ms() + 600_000
    for body in ("delayed", "recalled"):
        left.entries[body] = await client.send(mixed, body, deliver_ms=later_ms)
    recalled = await client.recall(mixed, left.entries["recalled"].recall_handle)
    assert recalled.status.code == v2.OK
    return left


async def written_down(store: Path, plain: str, ordered: str, fifo: str) -> None:
    """Wait until the offsets are in their file; messages in flight are in the log before that.

    A kill before that redelivers the latest acknowledged messages: at least once, never less.
    """
    wanted = {f"{plain}@g": 3, f"%RETRY%g_{plain}@g": 1, f"{ordered}@{fifo}": 0}
    file = store / "config" / "consumerOffset.json"
    for _ in range(800):
        text = file.read_text() if file.exists() else '{"offsetTable":{}}'
        # Apache writes numeric keys without quotes.
        table = json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', text))["offsetTable"]
        if all(table.get(key, {}).get("0", -1) >= offset for key, offset in wanted.items()):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not written within 40 s: {table}")


@pytest.mark.feature("Invisible", "FIFO block", "Transaction half", "Timed message", "Recall")
async def test_a_kill_loses_nothing_and_undoes_nothing(tmp_path: Path) -> None:
    soon = {"flush_consumer_offset_interval": 100}
    async with BrokerProcess(tmp_path, **soon) as broker:
        async with Client(broker.address, "kill") as client:
            plain, ordered = client.name("plain"), client.name("ordered")
            mixed, fifo = client.name("mixed"), client.name("fifo")
            left = await first_life(client)
            first_ms = await client.now_ms()
            await written_down(tmp_path, plain, ordered, fifo)
        await broker.kill()
    async with BrokerProcess(tmp_path) as broker, Client(broker.address, "after") as client:
        await client.advance(first_ms - await client.now_ms())
        await client.quiet(plain, "g")
        # A handle of the first instance acknowledges in the second.
        await client.ack(plain, "g", left.in_flight[:1])
        got = await client.take(mixed, "g", 1)
        assert [message.body for message in got] == [b"committed"]
        await client.ack(mixed, "g", got)
        assert await client.end(mixed, left.entries["open"], v2.COMMIT) == v2.OK
        got = await client.take(mixed, "g", 1)
        assert [message.body for message in got] == [b"open"]
        await client.ack(mixed, "g", got)
        await client.advance(601_000)
        got = await client.take(mixed, "g", 1)
        assert [message.body for message in got] == [b"delayed"]
        await client.ack(mixed, "g", got)
        await client.quiet(mixed, "g")
        await client.advance(3_600_000)
        got = await client.take(plain, "g", 1)
        assert [message.body for message in got] == [left.in_flight[1].body]
        assert got[0].system_properties.delivery_attempt == 2
        await client.ack(plain, "g", got)
        await client.quiet(plain, "g")
        got = await client.take(ordered, fifo, 3)
        assert [message.body for message in got] == [b"x", b"y", b"z"]
