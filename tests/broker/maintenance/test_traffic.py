"""The rates that people see count messages of users: not the records that the broker writes."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.maintenance.traffic import TrafficRates
from cometmq.front.clock import Clock
from cometmq.proto import v2
from cometmq.tests.broker.desk import desk
from cometmq.tests.harness.cluster import cometmq_command

NS_PER_S = 1_000_000_000


class Stopped(Clock):
    """Steady time that only moves when a test moves it."""

    now_ns = NS_PER_S

    def steady_ns(self) -> int:
        return self.now_ns


async def test_rates_count_what_users_send_and_get(tmp_path: Path) -> None:
    clock = Stopped()
    async with desk(tmp_path) as k:
        rates = TrafficRates(clock=clock, counters=k.node.runtime.counters)
        rates.sample()
        stored = k.node.store.meter.put_messages
        k.topic("orders")
        k.group("readers")
        await k.sent("orders", *[b"one"] * 10)
        received = await k.receive("orders", "readers", invisible_ms=10_000)
        k.ack("orders", "readers", *received.handles[:4])
        clock.now_ns += 10 * NS_PER_S
        assert k.node.store.meter.put_messages > stored + 10, "the broker stores records of its own"
        assert rates.rates() == (1.0, 1.0)
        assert (rates.sent_per_s("orders"), rates.sent_per_s("others")) == (1.0, 0.0)
        rates.sample()
        clock.now_ns += 10 * NS_PER_S
        assert rates.rates() == (0.0, 0.0)
        shown = k.node.status.describe("native").store
        assert shown.put_tps == shown.get_tps


async def test_the_commands_and_the_metrics_show_the_rate_of_a_known_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 messages in ten seconds, ten of them delayed; ten are delivered."""
    clock = Stopped()
    async with desk(tmp_path) as k:
        rates = TrafficRates(clock=clock, counters=k.node.runtime.counters)
        monkeypatch.setattr(k.node.status, "_traffic", rates)
        rates.sample()
        k.topic("orders")
        k.topic("later", message_type=v2.DELAY)
        k.group("readers")
        await k.sent("orders", *[b"one"] * 20)
        due = v2.Timestamp(seconds=k.node.runtime.clock.wall_ms() // 1000 + 3_600)
        await k.sent("later", *[b"one"] * 10, delivery_timestamp=due, message_type=v2.DELAY)
        received = await k.receive("orders", "readers", batch=10)
        k.ack("orders", "readers", *received.handles)
        clock.now_ns += 10 * NS_PER_S

        async def printed(*words: str) -> Any:
            command = [*cometmq_command(), *words, "-o", "json"]
            command += ["--endpoint", k.live.bound.client]
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, check=True
            )
            return json.loads(done.stdout)

        (broker,) = (await printed("top", "--once"))["brokers"]
        assert (broker["sent_per_s"], broker["delivered_per_s"]) == (3.0, 1.0)
        listed = {row["topic"]: row["sent_per_s"] for row in await printed("topic", "list")}
        assert listed == {"orders": 2.0, "later": 1.0}
        store = (await printed("cluster", "describe"))["store"]
        assert (store["put_tps"], store["get_tps"]) == (3.0, 1.0)
        address = f"http://{k.live.bound.metrics}/metrics"
        page = await asyncio.to_thread(lambda: urllib.request.urlopen(address).read().decode())
        names = ("rocketmq_messages_in_total", "rocketmq_messages_out_total")
        totals = {
            (name, topic): float(value)
            for name, topic, value in re.findall(r'^(\w+){.*topic="(\w+)".*} (\S+)$', page, re.M)
            if name in names
        }
        assert totals == {
            (names[0], "orders"): 20,
            (names[0], "later"): 10,
            (names[1], "orders"): 10,
        }
