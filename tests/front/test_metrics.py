"""Metrics of every server process: call durations, event loop, garbage collection, spellings."""

from __future__ import annotations

import asyncio
import gc

from prometheus_client.parser import text_string_to_metric_families

from cometmq.front.metrics.calls import CallTimes, request_code
from cometmq.front.metrics.families import UNITS, Buckets, Families, page_of
from cometmq.front.metrics.process import LoopWatch
from cometmq.proto import v2
from cometmq.proto.errors import UNAVAILABLE, RpcFailure, WireError

PATH = "/apache.rocketmq.v2.MessagingService/SendMessage"
FAMILIES = Families("C", "broker", "b-0")
_MS = 1_000_000


def test_calls_are_counted_by_method_outcome_and_wait() -> None:
    now_ns = 0
    times = CallTimes(lambda: now_ns)
    now_ns = 4 * _MS
    times.answered(PATH, 0)
    times.answered(PATH, 3 * _MS)
    times.answered("/x.Y/AckMessage", 3 * _MS)
    times.waited(PATH, 0)
    times.failed(PATH, 0, WireError(v2.TOO_MANY_REQUESTS, "full"))
    times.failed(PATH, 0, RpcFailure(UNAVAILABLE, "gone"))
    times.failed(PATH, 0, KeyError("a bug"))
    counts: dict[tuple[str, ...], list[int]] = {}
    for sample in times.family(FAMILIES).samples:
        labels = sample.labels
        assert labels["protocol_type"] == "grpc"
        if labels["request_code"] != "send_message":
            continue
        if sample.name.endswith("_bucket") and labels["le"] in ("3.0", "5.0"):
            key = (labels["response_code"], labels["is_long_polling"], labels["result"])
            counts.setdefault(key, []).append(int(sample.value))
        elif sample.name.endswith("_sum") and labels["is_long_polling"] == "true":
            assert sample.value == 4
    failed = "process_request_failed"
    assert counts == {
        ("success", "false", "success"): [1, 2],
        ("success", "true", "success"): [0, 1],
        ("too_many_requests", "false", failed): [0, 1],
        ("unavailable", "false", failed): [0, 1],
        ("internal", "false", failed): [0, 1],
    }


def test_a_method_has_the_spelling_of_a_request_code() -> None:
    assert request_code(PATH) == "send_message"
    assert request_code("/x.Y/ForwardMessageToDeadLetterQueue") == (
        "forward_message_to_dead_letter_queue"
    )


def test_metrics_with_a_unit_are_exported_under_both_names() -> None:
    size = FAMILIES.one("rocketmq_storage_size", "Bytes.", 7)
    delay = FAMILIES.histogram(
        "rocketmq_delay_message_latency", "s", [(("t",), Buckets((60,), [2, 1], 130))], ("topic",)
    )
    plain = FAMILIES.one("rocketmq_topic_number", "Topics.", 3)
    text = page_of([size, delay, plain]).decode()
    found = {
        (sample.name, sample.labels.get("le")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["rocketmq_storage_size", None] == found["rocketmq_storage_size_bytes", None] == 7
    for name in ("rocketmq_delay_message_latency", "rocketmq_delay_message_latency_seconds"):
        assert found[f"{name}_bucket", "60.0"] == 2
        assert found[f"{name}_count", None] == 3
        assert found[f"{name}_sum", None] == 130
    assert "# TYPE rocketmq_delay_message_latency_seconds histogram" in text
    assert set(UNITS.values()) == {"milliseconds", "seconds", "bytes"}


async def test_a_blocked_loop_and_collections_are_measured() -> None:
    now_ns = 0
    watch = LoopWatch(lambda: now_ns)
    watch.start()
    now_ns = 700 * _MS  # the timer was due after 100 ms
    while not sum(watch.lag.counts):  # noqa: ASYNC110 - the timer has no event
        await asyncio.sleep(0.02)
    gc.collect()
    watch.stop()
    assert 0.5 < watch.lag.total < 0.7
    assert sum(watch.pauses[2].counts) == 1
    before = len(gc.callbacks)
    watch.stop()
    assert len(gc.callbacks) == before
    names = {family.name for family in watch.families(FAMILIES)}
    assert {"cometmq_event_loop_lag_seconds", "cometmq_build_info", "process_open_fds"} <= names
