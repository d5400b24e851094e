"""Rewriting of delayed messages, and refusals."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.broker.delay.delayed import MADE_BUCKETS
from cometmq.broker.messages.stored_properties import in_bucket_order
from cometmq.broker.metadata.tables import Topic
from cometmq.proto import v2
from cometmq.proto.errors import WireError
from cometmq.store.format.properties import SCHEDULE_TOPIC, decode_properties, encode_properties
from cometmq.store.format.record import Message, decode
from cometmq.store.timer.rules import OUT_MS, TIMER_TOPIC
from cometmq.tests.broker.desk import Desk, desk, message
from cometmq.tests.broker.live import settings
from cometmq.tests.formats.cases import dispatch_all, new_store, unpack

TOPIC = "Later"


@pytest.fixture(autouse=True)
def small(tmp_path: Path) -> Iterator[None]:
    yield
    shutil.rmtree(tmp_path)


def refusal(k: Desk, properties: dict[str, str], deliver_ms: int | None = None) -> int:
    with pytest.raises(WireError) as raised:
        k.node.delayed.record(Message(TOPIC, 0, b"x"), properties, deliver_ms)
    return raised.value.code


async def test_a_message_with_a_delivery_time_is_stored_in_the_timer_topic(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        due = (k.node.runtime.clock.wall_ms() // 1000 + 60) * 1000
        made = k.node.delayed.record(Message(TOPIC, 3, b"x"), {"UNIQ_KEY": "M"}, due)
        assert (made.topic, made.queue_id, made.body) == (TIMER_TOPIC, 0, b"x")
        assert decode_properties(made.properties) == {
            "UNIQ_KEY": "M",
            "TIMER_DELIVER_MS": str(due),
            "TIMER_OUT_MS": str(due - 1000),
            "REAL_TOPIC": TOPIC,
            "REAL_QID": "3",
        }
        assert k.node.metadata.topic(TIMER_TOPIC) == Topic(TIMER_TOPIC, 1, 1)
        before = k.node.store.log_end
        k.node.delayed.record(Message(TOPIC, 3, b"x"), {}, due)
        assert k.node.store.log_end == before


@pytest.mark.parametrize(
    ("name", "value", "after_ms"),
    [("TIMER_DELAY_SEC", "5", 5000), ("TIMER_DELAY_MS", "1500", 1500)],
)
async def test_delays_are_relative_to_now(
    tmp_path: Path, name: str, value: str, after_ms: int
) -> None:
    async with desk(tmp_path) as k:
        now = k.node.runtime.clock.wall_ms()
        made = k.node.delayed.record(Message(TOPIC, 0, b"x"), {name: value})
        out = int(decode_properties(made.properties)["TIMER_OUT_MS"])
        assert now + after_ms - 1000 <= out <= k.node.runtime.clock.wall_ms() + after_ms


async def test_a_delay_level_selects_its_queue_and_overrides_a_time(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        far = k.node.runtime.clock.wall_ms() + 10**12
        for level, queue_id in (("3", 2), ("99", 17)):
            properties = {"DELAY": level, "TIMER_DELIVER_MS": str(far)}
            made = k.node.delayed.record(Message(TOPIC, 1, b"x"), properties)
            assert (made.topic, made.queue_id) == (SCHEDULE_TOPIC, queue_id)
            assert decode_properties(made.properties) == {
                "DELAY": str(queue_id + 1),
                "REAL_TOPIC": TOPIC,
                "REAL_QID": "1",
            }
        known = k.node.metadata.topic(SCHEDULE_TOPIC)
        assert known is not None
        assert known.write_queues == 18


async def test_without_a_delay_or_with_a_past_time_a_message_keeps_its_topic(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as k:
        now = k.node.runtime.clock.wall_ms()
        for properties in ({}, {"TAGS": "a"}, {"TIMER_DELIVER_MS": str(now)}, {"DELAY": "0"}):
            made = k.node.delayed.record(Message(TOPIC, 2, b"x"), properties)
            assert (made.topic, made.queue_id) == (TOPIC, 2)
            assert decode_properties(made.properties) == properties


async def test_invalid_delays_are_refused(tmp_path: Path) -> None:
    base = settings(tmp_path)
    store = replace(base.store, timer_congest_num_each_slot=1, timer_max_delay_sec=100)
    async with desk(tmp_path, replace(base, store=store)) as k:
        now = k.node.runtime.clock.wall_ms()
        assert refusal(k, {}, now + 101_000) == v2.ILLEGAL_DELIVERY_TIME
        assert refusal(k, {"TIMER_DELIVER_MS": "x"}) == v2.ILLEGAL_DELIVERY_TIME
        assert refusal(k, {"TIMER_DEL_UNIQKEY": "k"}, now - 1) == v2.ILLEGAL_DELIVERY_TIME
        big = {"KEYS": "k" * 32_700}
        assert refusal(k, big, now + 1000) == v2.MESSAGE_PROPERTIES_TOO_LARGE
        due = (now // 1000 + 60) * 1000
        for _ in range(2):
            k.node.sender.append(k.node.delayed.record(Message(TOPIC, 0, b"x"), {}, due))
        await k.dispatched()
        while k.node.timers.number_at(due - 1000) < 2:
            k.node.timers.waits(0, "", TOPIC)  # dispatches the arrivals
        assert refusal(k, {}, due) == v2.TOO_MANY_REQUESTS


async def test_delivery_times_are_refused_without_the_timer_wheel(tmp_path: Path) -> None:
    base = settings(tmp_path)
    chosen = replace(base, store=replace(base.store, timer_wheel_enable=False))
    async with desk(tmp_path, chosen) as k:
        assert refusal(k, {}, k.node.runtime.clock.wall_ms() + 1000) == v2.UNSUPPORTED


async def test_the_maximum_delay_is_configurable(tmp_path: Path) -> None:
    async with desk(tmp_path, max_delay_time_mills=10_000) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        now = k.node.runtime.clock.wall_ms()
        for after_ms, code in ((5_000, v2.OK), (60_000, v2.ILLEGAL_DELIVERY_TIME)):
            sent = message(TOPIC)
            sent.system_properties.delivery_timestamp.FromMilliseconds(now + after_ms)
            assert (await k.send(sent)).status.code == code


def test_properties_of_apaches_records_keep_their_order(tmp_path: Path) -> None:
    """Checkpoints, acknowledgements and recalls are maps of 16 buckets, client messages of 128."""
    store = new_store("grpc", unpack("grpc", tmp_path))
    store.open()
    dispatch_all(store)
    result = store.get(TIMER_TOPIC, 0, 0, 1000, 1 << 30)
    for stored in result.records:
        record = decode(stored.data)
        names = dict(
            part.split("\x01") for part in record.properties.decode().split("\x02") if part
        )
        assert names[OUT_MS]
        made = "MSG_REGION" not in names
        ordered = in_bucket_order(names, MADE_BUCKETS if made else 128)
        assert encode_properties(ordered) == record.properties
    assert len(result.records) > 100
    store.close()
