"""Timer metrics of a scrape."""

from __future__ import annotations

import shutil
from pathlib import Path

from cometmq.proto import v2
from cometmq.tests.broker.desk import desk, message
from cometmq.tests.broker.live import until
from cometmq.tests.broker.metrics.test_observed import samples

TOPIC = "Later"


async def test_timer_metrics_have_rocketmqs_names_and_values(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        now = k.node.runtime.clock.wall_ms()
        for n, after_s in enumerate((30, 100, 5_000, 80_000)):
            sent = message(TOPIC, b"x", f"M{n}")
            sent.system_properties.delivery_timestamp.FromMilliseconds(now + after_s * 1000)
            assert (await k.send(sent)).status.code == v2.OK
        await k.dispatched()
        await until(lambda: not k.node.timers.enqueue_lag)
        k.advance(31_000)
        await until(lambda: k.node.timers.stats.dequeued_by_topic)
        found = await samples(k.live)
        value = {
            name: {each.labels.get("topic", ""): each.value for each in found[name]}
            for name in (
                "rocketmq_timing_messages",
                "rocketmq_timer_enqueue_total",
                "rocketmq_timer_dequeue_total",
                "rocketmq_timer_enqueue_lag",
                "rocketmq_timer_enqueue_latency",
                "rocketmq_timer_dequeue_lag",
                "rocketmq_timer_dequeue_latency",
                "cometmq_timer_progress_stopped",
            )
        }
        assert value["rocketmq_timing_messages"] == {TOPIC: 3}
        assert value["rocketmq_timer_enqueue_total"] == {TOPIC: 4}
        assert value["rocketmq_timer_dequeue_total"] == {TOPIC: 1}
        for name in (
            "enqueue_lag",
            "enqueue_latency",
            "dequeue_lag",
            "dequeue_latency",
        ):
            assert value[f"rocketmq_timer_{name}"] == {"": 0}
        assert value["cometmq_timer_progress_stopped"] == {"": 0}
        within = {
            int(each.labels["timer_bound_s"]): each.value
            for each in found["rocketmq_timer_message_snapshot"]
        }
        assert within == {
            **dict.fromkeys((5, 60), 0),
            **dict.fromkeys((300, 900, 3_600), 1),
            **dict.fromkeys((14_400, 28_800), 2),
            86_400: 3,
        }
        delays = {
            float(each.labels["le"]): each.value
            for each in found["rocketmq_delay_message_latency_bucket"]
        }
        assert [delays[bound] for bound in (60, 600, 3_600, 43_200, 86_400)] == [1, 2, 2, 3, 4]
    shutil.rmtree(tmp_path)
