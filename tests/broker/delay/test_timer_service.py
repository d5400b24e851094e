"""Delayed messages of a real broker: delivered at their time, once."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.front.clock import Clock
from cometmq.proto import v2
from cometmq.store.doctor.layout import discover
from cometmq.store.doctor.verify import verify
from cometmq.store.format.properties import decode_properties
from cometmq.store.timer.rules import TIMER_TOPIC
from cometmq.tests.broker.desk import desk
from cometmq.tests.broker.timing import (
    GROUP,
    HOUR,
    TOPIC,
    arrives,
    delayed,
    enqueued,
    send,
    stored,
    with_store,
)


@pytest.fixture(autouse=True)
def small(tmp_path: Path) -> Iterator[None]:
    yield
    shutil.rmtree(tmp_path)  # a wheel is a sparse file of 37 MiB


async def test_a_message_is_delivered_at_its_time_and_wakes_a_waiting_poll(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        due = k.node.runtime.clock.wall_ms() + HOUR
        answer = await send(k, delayed(b"one", due))
        assert answer.entries[0].recall_handle
        k.advance(HOUR - 300_000)
        await k.nothing(TOPIC, GROUP)
        poll = k.start_receive(TOPIC, GROUP)
        k.advance(300_000)
        await poll
        (record,) = stored(k)
        assert record.store_timestamp_ms >= due


async def test_no_message_is_delivered_early(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC, queues=2, message_type=v2.DELAY)
        now = k.node.runtime.clock.wall_ms()
        dues = {f"m{n}".encode(): now + 40 * n for n in range(30)}
        await send(k, *(delayed(body, due) for body, due in dues.items()))
        await arrives(k, *dues)
        for record in stored(k):
            assert record.store_timestamp_ms >= dues[record.body]


async def test_the_delivered_copy_equals_apaches(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC, queues=4, message_type=v2.DELAY)
        due = (k.node.runtime.clock.wall_ms() + HOUR) // 1000 * 1000
        await send(k, delayed(b"x", due, "M1"))
        k.advance(HOUR)
        await arrives(k, b"x")
        (parked,), (copy,) = stored(k, TIMER_TOPIC), stored(k)
        before, after = parked.properties_dict, copy.properties_dict
        assert before["TIMER_OUT_MS"] == str(due - 1000)
        assert before["REAL_TOPIC"] == TOPIC
        assert before["REAL_QID"] == str(copy.queue_id)
        added = after.keys() - before.keys()
        assert added == {"TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"}
        assert int(after["TIMER_ENQUEUE_MS"]) % 1000 == 0
        assert int(after["TIMER_DEQUEUE_MS"]) >= due
        assert after.items() > before.items()
        # The order in a store written through Apache's proxy.
        assert " ".join(after) == (
            "TIMER_OUT_MS MSG_REGION TIMER_DELIVER_MS UNIQ_KEY CLUSTER PGROUP RECONSUME_TIME "
            "TIMER_ENQUEUE_MS __BORNHOST BORN_TIMESTAMP TRACE_ON TIMER_DEQUEUE_MS REAL_TOPIC "
            "REAL_QID"
        )
        for name in ("body", "born_timestamp_ms", "born_host", "store_host", "sys_flag"):
            assert getattr(copy, name) == getattr(parked, name)


async def test_a_due_message_is_delivered_at_once(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        now = k.node.runtime.clock.wall_ms()
        answer = await k.send(delayed(b"past", now - HOUR))
        assert answer.entries[0].recall_handle == ""
        assert (await k.receive(TOPIC, GROUP)).bodies == [b"past"]
        assert stored(k, TIMER_TOPIC) == []
        assert decode_properties(stored(k)[0].properties)["TIMER_DELIVER_MS"] == str(now - HOUR)


async def test_messages_that_arrive_in_the_open_slot_are_delivered(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        bodies = []
        for n in range(20):  # every slot is open when its messages arrive
            bodies.append(b"soon%d" % n)
            due = k.node.runtime.clock.wall_ms() + 1 + 37 * (n % 5)
            assert (await k.send(delayed(bodies[-1], due))).status.code == v2.OK
            await asyncio.sleep(0.01)
        await arrives(k, *bodies)


async def test_many_due_messages_are_delivered_once_in_queue_order(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC, queues=4, message_type=v2.DELAY)
        due = k.node.runtime.clock.wall_ms() + HOUR
        bodies = [b"%05d" % n for n in range(3_000)]
        for n in range(0, len(bodies), 100):
            await send(k, *(delayed(body, due) for body in bodies[n : n + 100]))
        k.advance(HOUR)
        await arrives(k, *bodies)
        by_queue: dict[int, list[bytes]] = {}
        for record in stored(k):
            by_queue.setdefault(record.queue_id, []).append(record.body)
        assert all(found == sorted(found) for found in by_queue.values())
        assert k.node.timers.stats.dequeued_by_topic == {TOPIC: len(bodies)}


async def test_a_restart_loses_and_repeats_nothing(tmp_path: Path) -> None:
    clock = Clock()
    async with desk(tmp_path, clock=clock) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        now = clock.wall_ms()
        await send(k, delayed(b"first", now + HOUR), delayed(b"second", now + 2 * HOUR))
        k.advance(HOUR)
        await arrives(k, b"first")
    async with desk(tmp_path, clock=clock) as k:
        await arrives(k, b"first")
        k.advance(HOUR)
        await arrives(k, b"first", b"second")
    clock.advance_wall_ms(HOUR)
    async with desk(tmp_path, clock=clock) as k:
        await enqueued(k)
        await arrives(k, b"first", b"second")


async def test_messages_due_during_a_downtime_are_delivered_after_the_start(tmp_path: Path) -> None:
    clock = Clock()
    async with desk(tmp_path, clock=clock) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        await send(k, delayed(b"missed", clock.wall_ms() + HOUR))
    clock.advance_wall_ms(24 * HOUR)
    async with desk(tmp_path, clock=clock) as k:
        await arrives(k, b"missed")


async def test_a_time_beyond_the_roll_window_is_kept_in_nearer_slots(tmp_path: Path) -> None:
    async with desk(tmp_path, with_store(tmp_path, timer_roll_window_slot=60)) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        due = k.node.runtime.clock.wall_ms() + 150_000
        await send(k, delayed(b"far", due))
        for _ in range(14):
            k.advance(10_000)
            await enqueued(k)
            await asyncio.sleep(0.01)
            assert stored(k) == []
        k.advance(10_000)
        await arrives(k, b"far")
        rolls = int(stored(k)[0].properties_dict["TIMER_ROLL_TIMES"])
        assert len(stored(k, TIMER_TOPIC)) == 1 + rolls > 2


async def test_stopped_timers_deliver_nothing(tmp_path: Path) -> None:
    clock = Clock()
    async with desk(tmp_path, with_store(tmp_path, timer_stop_dequeue=True), clock) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        await send(k, delayed(b"x", clock.wall_ms() + HOUR))
        k.advance(2 * HOUR)
        await k.nothing(TOPIC, GROUP)
    async with desk(tmp_path, clock=clock) as k:
        await arrives(k, b"x")


async def test_a_clock_set_back_and_forward_loses_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        now = k.node.runtime.clock.wall_ms()
        await send(k, delayed(b"a", now + HOUR), delayed(b"b", now + HOUR + 500))
        k.advance(HOUR - 300)  # the slots are open
        await asyncio.sleep(0)
        k.advance(-2 * HOUR)
        await send(k, delayed(b"c", now - HOUR // 2))
        await k.nothing(TOPIC, GROUP)
        k.advance(HOUR)
        await arrives(k, b"c")
        k.advance(2 * HOUR)
        await arrives(k, b"a", b"b", b"c")


async def test_waiting_messages_are_counted_by_topic(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        now = k.node.runtime.clock.wall_ms()
        await send(k, delayed(b"a", now + HOUR), delayed(b"b", now + 2 * HOUR))
        await k.node.timers.settle()
        assert k.node.timers.waiting(TOPIC) == 2
        k.advance(HOUR)
        await arrives(k, b"a")
        assert k.node.timers.waiting(TOPIC) == 1


async def test_the_timer_files_of_a_stopped_broker_have_no_problem(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        due = k.node.runtime.clock.wall_ms() + HOUR
        await send(k, *(delayed(b"%d" % n, due + 700 * n) for n in range(5)))
    report = verify(discover(tmp_path))
    assert [*report.findings.problems, *report.findings.notes] == []
