"""Delayed messages with failures of log, disk, topic or retention: nothing deliverable is lost, and
the progress on disk stays behind the deliveries.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.broker.metadata.tables import Topic
from cometmq.front.clock import Clock
from cometmq.proto import v2
from cometmq.store.format.errors import OffsetOutOfRangeError
from cometmq.store.message_store import MessageStore
from cometmq.store.timer.checkpoint import TimerCheckpoint
from cometmq.store.timer.rules import TIMER_TOPIC
from cometmq.store.timer.store import TimerFlush
from cometmq.tests.broker.desk import desk
from cometmq.tests.broker.live import until
from cometmq.tests.broker.messages.test_gaps import FIRST_SEGMENT
from cometmq.tests.broker.timing import (
    GROUP,
    HOUR,
    TOPIC,
    arrives,
    delayed,
    send,
    stored,
    with_store,
)
from cometmq.tests.store.damage import Place, flip


@pytest.fixture(autouse=True)
def small(tmp_path: Path) -> Iterator[None]:
    yield
    shutil.rmtree(tmp_path)  # a wheel is a sparse file of 37 MiB


async def test_the_progress_on_disk_stays_behind_the_flushed_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No flush of the log before the stop: the copies could still be lost.
    monkeypatch.setattr(MessageStore, "flush_soon", lambda _: None)
    chosen = with_store(tmp_path, flush_interval_commit_log=100_000, timer_flush_interval_ms=10)
    check = tmp_path / "config" / "timercheck"
    async with desk(tmp_path, chosen) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        due = k.node.runtime.clock.wall_ms() + HOUR
        await send(k, delayed(b"x", due))
        k.advance(HOUR + 10_000)
        await arrives(k, b"x")

        def saved_three_times() -> bool:
            data = check.read_bytes() if check.exists() else b""
            return bool(data) and TimerCheckpoint.decode(data).counter > 2

        await until(saved_three_times)
        assert TimerCheckpoint.decode(check.read_bytes()).last_read_ms <= due
    assert TimerCheckpoint.decode(check.read_bytes()).last_read_ms > due
    assert TimerCheckpoint.decode(check.read_bytes()).last_timer_queue_offset == 1


async def test_a_failed_append_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        await send(k, delayed(b"x", k.node.runtime.clock.wall_ms() + HOUR))
        with monkeypatch.context() as patched:
            patched.setattr(k.node.replication, "write_refusal", lambda: "too few replicas")
            k.advance(HOUR)
            await until(lambda: k.node.timers.dequeue_latency_ms > 0)
            assert stored(k) == []
        await arrives(k, b"x")


async def test_a_message_whose_topic_was_deleted_is_dropped(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        k.topic("Other", message_type=v2.DELAY)
        due = k.node.runtime.clock.wall_ms() + HOUR
        await send(k, delayed(b"gone", due))
        await send(k, delayed(b"there", due, topic="Other"))
        k.node.metadata.remove_topic(TOPIC)
        k.advance(HOUR)
        await arrives(k, b"there", topic="Other")
        assert stored(k) == []
        assert k.node.timers.stats.without_topic == 1


async def test_a_topic_with_fewer_queues_gets_its_messages(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC, queues=4, message_type=v2.DELAY)
        due = k.node.runtime.clock.wall_ms() + HOUR
        for n in range(4):
            await send(k, delayed(b"%d" % n, due))
        k.node.metadata.put_topic(Topic(TOPIC, 1, 1, message_type=v2.DELAY))
        k.advance(HOUR)
        received = await k.receive(TOPIC, GROUP)
        while len(received.bodies) < 4:
            received.messages += (await k.receive(TOPIC, GROUP)).messages
        assert sorted(received.bodies) == [b"0", b"1", b"2", b"3"]


async def test_records_deleted_by_retention_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        due = k.node.runtime.clock.wall_ms() + HOUR
        await send(k, delayed(b"gone", due), delayed(b"there", due))
        store, first = k.node.store, k.node.store.get(TIMER_TOPIC, 0, 0, 1).records[0]
        record_at = store.record_at

        def without_first(physical_offset: int) -> bytes:
            if physical_offset == first.physical_offset:
                raise OffsetOutOfRangeError(physical_offset, 0, 0)
            return record_at(physical_offset)

        monkeypatch.setattr(store, "record_at", without_first)
        k.advance(HOUR)
        await arrives(k, b"there")
        assert k.node.timers.stats.gone == 1


async def test_an_altered_body_is_counted_and_not_delivered(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        due = k.node.runtime.clock.wall_ms() + HOUR
        await send(k, delayed(b"altered", due), delayed(b"sound", due))
        first = k.node.store.get(TIMER_TOPIC, 0, 0, 1).records[0]
        at = first.data.index(b"altered")
        flip(Place(tmp_path / FIRST_SEGMENT, first.physical_offset + at, 1 << 20))
        k.advance(HOUR)
        await arrives(k, b"sound")
        assert k.node.timers.stats.damaged == 1
        assert [record.body for record in stored(k)] == [b"sound"]


@pytest.mark.parametrize(
    ("number", "stops"), [(errno.EIO, True), (errno.ENOSPC, False), (errno.EMFILE, False)]
)
async def test_a_failed_flush_loses_nothing_and_deliveries_are_found_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, stops: bool
) -> None:
    clock, chosen = Clock(), with_store(tmp_path, timer_flush_interval_ms=10)
    failed: list[int] = []

    def fail(_: TimerFlush) -> None:
        failed.append(number)
        raise OSError(number, "the disk")

    async with desk(tmp_path, chosen, clock) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        with monkeypatch.context() as patched:
            patched.setattr(TimerFlush, "run", fail)
            now = clock.wall_ms()
            await send(k, delayed(b"a", now + HOUR), delayed(b"b", now + 2 * HOUR))
            k.advance(HOUR)
            await arrives(k, b"a")
            await until(lambda: len(failed) > (0 if stops else 1))
            await asyncio.sleep(0)
        assert k.node.timers.stats.broken is stops
    async with desk(tmp_path, chosen, clock) as k:
        k.advance(HOUR)
        await until(lambda: b"b" in {record.body for record in stored(k)})
        bodies = [record.body for record in stored(k)]
        assert bodies.count(b"a") == 1
