"""The rates that people see count messages of users: not the records that the broker writes."""

from __future__ import annotations

from pathlib import Path

from cometmq.broker.maintenance.traffic import TrafficRates
from cometmq.front.clock import Clock
from cometmq.tests.broker.desk import desk

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
