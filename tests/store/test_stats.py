"""The store's statistics: counters, buckets and rates, against what was done."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.store.format.results import PutStatus
from cometmq.store.stats import LATENCY_BOUNDS_US, WINDOWS_S, Meter, StoreStats
from cometmq.tests.store.kit import Kit, message

SECOND = 1_000_000_000


class Clock:
    """A steady clock that goes on by `step_ns` with every look."""

    def __init__(self) -> None:
        self.now_ns = SECOND
        self.step_ns = 0

    def __call__(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns


def stats_of(kit: Kit) -> StoreStats:
    return kit.store.stats()


def test_puts_and_gets_are_counted(tmp_path: Path) -> None:
    kit = Kit(tmp_path, max_message_size=2000)
    kit.open()
    clock = kit.store.meter.steady_ns = Clock()
    clock.step_ns = 30_000
    kit.store.writer.append_many([message(b"x" * 100) for _ in range(10)])
    results = kit.store.writer.append_many([message(b"x"), message(b"x" * 2001), message(b"y")])
    assert results[1].status is PutStatus.MESSAGE_ILLEGAL
    kit.dispatch()
    found = kit.store.get("TopicTest", 0, 0, 32).records
    assert kit.store.get("TopicTest", 0, 12, 32).records == []
    stats = stats_of(kit)
    assert (stats.put_messages, stats.put_refused, stats.put_batches) == (12, 1, 2)
    assert stats.put_bytes == kit.store.log_end
    assert stats.average_put_size == kit.store.log_end / 12
    assert (stats.gets, stats.get_misses, stats.get_messages) == (2, 1, 12)
    assert stats.get_bytes == sum(len(record.data) for record in found)
    assert dict(stats.put_latency)[50] == 12, "30 us each"
    assert stats.put_longest_us == 30
    assert stats.put_percentile_us(0.99) == 50
    kit.close()


def test_positions_and_what_is_behind(tmp_path: Path) -> None:
    kit = Kit(tmp_path, flush_interval_commit_log=3_600_000)
    kit.open()
    end = kit.write(b"x" * 3000).end
    stats = stats_of(kit)
    assert (stats.log_start, stats.log_end) == (0, end)
    assert stats.flush_behind == stats.dispatch_behind == end
    assert (stats.segments, stats.queues, stats.refusal) == (1, 1, "")
    assert stats.rates[0].put_messages == 0.0, "without a clock there are no rates"
    assert stats.put_percentile_us(0.5) is None
    kit.dispatch()
    assert stats_of(kit).dispatch_behind == 0
    with pytest.raises(AttributeError):
        stats.segments = 2  # type: ignore[misc]
    kit.close()


def test_a_store_that_refuses_messages_reports_the_reason(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.open_only()
    assert stats_of(kit).refusal == "The store was not started."
    kit.close()


def test_every_duration_has_a_bucket() -> None:
    meter = Meter()
    for bound_us in LATENCY_BOUNDS_US:
        meter.put(1, 0, 10, bound_us * 1_000)
    assert meter.latency == [1] * len(LATENCY_BOUNDS_US) + [0]
    meter.put(3, 0, 10, LATENCY_BOUNDS_US[-1] * 1_000 + 1)
    assert meter.latency[-1] == 3


def test_rates_over_their_windows() -> None:
    meter = Meter()
    clock = meter.steady_ns = Clock()
    for second in range(700):
        meter.sample()
        meter.put(100 if second >= 690 else 10, 0, 1_000, 0)
        meter.get(2, 100)
        clock.now_ns += SECOND
    rates = {found.window_s: found for found in meter.rates()}
    assert tuple(rates) == WINDOWS_S
    assert rates[10].put_messages == pytest.approx(100)
    assert rates[10].put_bytes == pytest.approx(1_000)
    assert rates[60].put_messages == pytest.approx((10 * 100 + 50 * 10) / 60)
    assert rates[600].put_messages == pytest.approx((10 * 100 + 590 * 10) / 600)
    assert rates[600].get_messages == pytest.approx(2)
    assert rates[600].get_bytes == pytest.approx(100)
    assert len(meter.samples) <= WINDOWS_S[-1] + 2, "old samples go"


def test_a_new_store_has_the_rates_since_its_start() -> None:
    meter = Meter()
    clock = meter.steady_ns = Clock()
    meter.sample()
    meter.sample()
    assert len(meter.samples) == 1, "samples at the same moment are one"
    meter.put(40, 0, 400, 0)
    clock.now_ns += 2 * SECOND
    assert [found.put_messages for found in meter.rates()] == [20.0] * 3
