"""A new leader delivers the delayed messages that its predecessor had not, with few repetitions."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from cometmq.broker.metadata.system_topics import PROGRESS_GROUP, READ_TIME_QUEUE
from cometmq.front.clock import Clock
from cometmq.proto import v2
from cometmq.store.format.properties import SCHEDULE_TOPIC
from cometmq.store.format.record import Message, decode
from cometmq.store.timer.rules import TIMER_TOPIC
from cometmq.tests.broker.desk import Desk, desk, message
from cometmq.tests.broker.live import follower_of, running, settings, until
from cometmq.tests.broker.timing import with_store

TOPIC = "Later"
HOUR = 3_600_000


async def send(k: Desk, body: bytes, due_ms: int) -> None:
    sent = message(TOPIC, body, body.decode())
    sent.system_properties.delivery_timestamp.FromMilliseconds(due_ms)
    assert (await k.send(sent)).status.code == v2.OK
    await k.dispatched()


def bodies(k: Desk) -> list[bytes]:
    k.node.pump.run()
    found = k.node.store.get(TOPIC, 0, 0, 1000, 1 << 30)
    return [decode(record.data).body for record in found.records]


async def test_the_next_leader_continues_the_deliveries(tmp_path: Path) -> None:
    leader_clock, clock = Clock(), Clock()

    chosen = with_store(
        tmp_path / "leader", flush_delay_offset_interval=50, timer_flush_interval_ms=50
    )
    async with desk(tmp_path / "leader", chosen, leader_clock) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        begin_ms = leader_clock.wall_ms()
        following = follower_of(k.live.bound, tmp_path / "follower")
        async with running(following, clock) as follower:
            for n in range(3):
                await send(k, b"%d" % n, begin_ms + (n + 1) * HOUR)
            for level in (1, 18):
                made = k.node.delayed.record(
                    Message(TOPIC, 0, b"L%d" % level), {"DELAY": str(level)}
                )
                k.node.sender.append(made)
            await k.dispatched()
            k.advance(HOUR)
            await until(lambda: len(bodies(k)) == 2)
            offsets = follower.node.offsets

            def progress() -> bool:
                read_ms = offsets.get(TIMER_TOPIC, PROGRESS_GROUP, READ_TIME_QUEUE) or 0
                enqueued = offsets.get(TIMER_TOPIC, PROGRESS_GROUP, 0)
                level = offsets.get(SCHEDULE_TOPIC, PROGRESS_GROUP, 0)
                return read_ms > begin_ms + HOUR and enqueued == 3 and level == 1

            await until(progress)
            store = follower.node.store
            await until(lambda: store.log_end == k.node.store.log_end)
            assert sorted(bodies(k)) == [b"0", b"L1"]

    clock.set_wall_ms(leader_clock.wall_ms())
    async with desk(tmp_path / "follower", settings(tmp_path / "follower"), clock) as k:
        await until(lambda: not k.node.timers.enqueue_lag)
        await asyncio.sleep(0.05)
        assert sorted(bodies(k)) == [b"0", b"L1"], "what was delivered is not repeated"
        k.advance(3 * HOUR)
        await until(lambda: len(bodies(k)) == 5)
        assert sorted(bodies(k)) == [b"0", b"1", b"2", b"L1", b"L18"]
    shutil.rmtree(tmp_path)


async def test_a_follower_delivers_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path / "leader") as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        clock = Clock()
        async with running(follower_of(k.live.bound, tmp_path / "follower"), clock) as follower:
            await send(k, b"x", k.node.runtime.clock.wall_ms() + HOUR)
            store = follower.node.store
            await until(lambda: store.dispatched_offset == k.node.store.log_end)
            clock.advance_wall_ms(2 * HOUR)
            follower.node.runtime.clock_listeners.notify()
            await asyncio.sleep(0.05)
            assert store.log_end == k.node.store.log_end
        assert not (tmp_path / "follower" / "timerlog").exists()
    shutil.rmtree(tmp_path)
