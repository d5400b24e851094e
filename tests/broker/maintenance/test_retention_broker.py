"""Retention in a running broker: deletions with readers and followers, the archive gate, a full
disk.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from cometmq.proto import paths, v1, v2
from cometmq.store.format.disk import Disk, Space
from cometmq.store.format.record import Message
from cometmq.store.retention.rules import Reason
from cometmq.tests.broker.desk import Desk, desk, message
from cometmq.tests.broker.live import (
    Live,
    Settings,
    create_topic,
    follower_of,
    running,
    settings,
    until,
)
from cometmq.tests.broker.metrics.test_observed import samples
from cometmq.tests.broker.transacting import end_transaction
from cometmq.tests.harness.wire import Wire

SEGMENT = 16 << 10
EVERY_HOUR = ";".join(f"{hour:02d}" for hour in range(24))


def tiny(chosen: Settings, **store: Any) -> Settings:
    """Segments of 16 KiB without a minimum age, a round every 50 ms."""
    options = {
        "mapped_file_size_commit_log": SEGMENT,
        "mapped_file_size_consume_queue": 400,
        "file_reserved_time": 0,
        "delete_when": EVERY_HOUR,
        "clean_resource_interval": 50,
        "delete_commit_log_files_interval": 1,
        "flush_disk_type": "SYNC_FLUSH",
        **store,
    }
    return replace(chosen, store=replace(chosen.store, **options))


def segments(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in (directory / "commitlog").iterdir())


async def test_queues_of_a_deleted_topic_are_removed_with_its_last_message(tmp_path: Path) -> None:
    async with desk(tmp_path, tiny(settings(tmp_path))) as one:
        for name in ("gone", "kept", "t"):
            one.topic(name)
        await fill(one, 3, "gone")
        await fill(one, 3, "kept")
        end = one.node.store.log_end
        one.node.meta_log.delete_topic("gone")
        await fill(one, 60, "t")
        await until(lambda: one.node.store.log_start > end)
        await until(lambda: ("gone", 0) not in one.node.store.queues())
        assert not (tmp_path / "consumequeue/gone").exists()
        assert one.node.store.max_offset("kept", 0) == 3
        one.topic("gone")
        assert one.node.metadata.topics["gone"].first_offsets == {}
        await one.sent("gone", b"new")
        assert one.node.store.max_offset("gone", 0) == 1
    async with desk(tmp_path, tiny(settings(tmp_path))) as one:
        one.group("g")
        assert (await one.receive("gone", "g")).bodies == [b"new"]


async def fill(one: Desk, count: int = 60, topic: str = "t") -> None:
    """Fill about a segment per 15 messages. A request has several: each ends with a flush."""
    for first in range(0, count, 15):
        numbers = range(first, min(first + 15, count))
        batch = [
            message(topic, f"{n:04d}".encode().ljust(900), message_id=f"ID-{n}") for n in numbers
        ]
        answer = await one.send(*batch)
        assert answer.status.code == v2.OK, answer
    await one.dispatched()


def one_segment(live: Live) -> Callable[[], bool]:
    store = live.node.store
    return lambda: store.log_start == (store.log_end - 1) // SEGMENT * SEGMENT


@pytest.mark.feature("Retention")
async def test_expired_segments_are_deleted_and_consumers_continue_with_the_oldest(
    tmp_path: Path,
) -> None:
    chosen = tiny(settings(tmp_path), file_reserved_time=1000)
    async with desk(tmp_path, chosen) as one:
        one.topic("t")
        one.group("early")
        await fill(one)
        first = await one.receive("t", "early", batch=1)
        assert first.bodies == [b"0000".ljust(900)]
        assert one.ack("t", "early", *first.handles).status.code == v2.OK
    chosen = tiny(settings(tmp_path))
    async with desk(tmp_path, chosen) as one:
        await until(one_segment(one.live))
        store = one.node.store
        await until(lambda: segments(tmp_path)[0] == store.log_start)
        await until(lambda: store.min_offset("t", 0) > 1)
        left = list(range(store.min_offset("t", 0), 60))
        assert 0 < len(left) < 20
        for group in ("early", "late"):
            one.group(group)
            bodies: list[bytes] = []
            while len(bodies) < len(left):
                answer = await one.receive("t", group)
                bodies += answer.bodies
                one.ack("t", group, *answer.handles)
            assert [int(body) for body in bodies] == left
        await fill(one, 1)
        assert store.max_offset("t", 0) == 61


async def test_topics_and_groups_outlive_the_segments_of_their_records(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path, tiny(settings(tmp_path))) as one:
        one.topic("t", queues=3)
        one.group("g", max_attempts=5)
        await fill(one)
        await until(one_segment(one.live))
        assert one.node.store.log_start > 0
    for name in ("topics.json", "subscriptionGroup.json"):
        (tmp_path / "config" / name).unlink()  # only the log has the state
    async with desk(tmp_path, tiny(settings(tmp_path))) as one:
        topic, group = one.node.metadata.topic("t"), one.node.metadata.group("g")
        assert topic is not None
        assert topic.write_queues == 3
        assert group is not None
        assert group.max_attempts == 5


async def test_moving_the_test_clock_deletes_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path, tiny(settings(tmp_path), file_reserved_time=72)) as one:
        one.topic("t")
        await fill(one)
        one.advance(100 * 24 * 3_600_000)
        one.node.maintenance.tick()
        await asyncio.sleep(0.3)
        assert one.node.store.log_start == 0


async def test_a_slave_keeps_replicating_while_its_master_deletes(tmp_path: Path) -> None:
    chosen = tiny(settings(tmp_path / "m"))
    async with desk(tmp_path / "m", chosen) as one:
        slave = tiny(follower_of(one.live.bound, tmp_path / "s"), file_reserved_time=1000)
        async with running(slave) as follower:
            one.topic("t")
            # A connected slave holds deletions back until it has the bytes.
            await until(lambda: 0 < one.node.store.log_end == follower.node.store.log_end)
            for _ in range(5):
                await fill(one)
                await until(one_segment(one.live))
            end = one.node.store.log_end
            await until(lambda: follower.node.store.log_end == end)
            assert follower.node.store.log_start == 0, "each replica deletes for itself"
            assert follower.node.replication.refused is None
            await until(lambda: follower.node.store.max_offset("t", 0) == 300)
        # The slave was away for long: its next byte is deleted. It logs one sentence.
        await fill(one)
        await until(one_segment(one.live))
        async with running(slave) as follower:
            await until(lambda: follower.node.replication.refused)
            said = follower.node.replication.refused
            assert said is not None
            assert said.startswith("BELOW_LOG_START: the follower's log ends at ")
            assert "copy everything again" in said
        # An empty slave gets the oldest available segment.
        empty = tiny(follower_of(one.live.bound, tmp_path / "e"), file_reserved_time=1000)
        async with running(empty) as follower:
            await until(lambda: follower.node.store.log_end == one.node.store.log_end)
            assert follower.node.store.log_start > end
            await until(
                lambda: follower.node.store.min_offset("t", 0) == one.node.store.min_offset("t", 0)
            )


async def test_a_slave_may_have_deleted_more_than_its_master(tmp_path: Path) -> None:
    chosen = tiny(settings(tmp_path / "m"), file_reserved_time=1000)
    async with desk(tmp_path / "m", chosen) as one:
        slave = tiny(follower_of(one.live.bound, tmp_path / "s"))
        for _ in range(2):  # the second handshake contains a log start above the master's
            async with running(slave) as follower:
                one.topic("t")
                await fill(one)
                await until(lambda: follower.node.store.log_end == one.node.store.log_end)
                await until(one_segment(follower))
                assert follower.node.replication.refused is None
        assert one.node.store.log_start == 0


async def mark(wire: Wire, offset: int) -> v1.SetArchiveWatermarkResponse:
    request = v1.SetArchiveWatermarkRequest(watermark=offset)
    answer: v1.SetArchiveWatermarkResponse = await wire.call(
        paths.SET_ARCHIVE_WATERMARK, request, v1.SetArchiveWatermarkResponse
    )
    return answer


async def test_the_archive_gate_works_over_rpc(tmp_path: Path) -> None:
    chosen = tiny(settings(tmp_path / "m"), archive_gate=True)
    async with desk(tmp_path / "m", chosen) as one, one.live.client() as wire:
        slave = tiny(follower_of(one.live.bound, tmp_path / "s"), archive_gate=True)
        async with running(slave) as follower:
            one.topic("t")
            await fill(one)
            await until(lambda: follower.node.store.log_end == one.node.store.log_end)
            await asyncio.sleep(0.3)
            assert one.node.store.log_start == 0
            refused = await mark(wire, 1 << 40)
            assert refused.code == v2.BAD_REQUEST
            assert "above the log end" in refused.message
            answer = await mark(wire, 2 * SEGMENT + 7)
            assert (answer.code, answer.gate) == (v2.OK, True)
            await until(lambda: one.node.store.log_start == 2 * SEGMENT)
            await until(lambda: follower.node.store.log_start == 2 * SEGMENT)
    async with running(chosen) as live, live.client() as wire:
        found = await wire.call(
            paths.GET_ARCHIVE_WATERMARK,
            v1.GetArchiveWatermarkRequest(),
            v1.GetArchiveWatermarkResponse,
        )
        assert (found.watermark, found.log_start) == (2 * SEGMENT + 7, 2 * SEGMENT)


async def test_an_empty_request_leaves_the_archive_watermark(tmp_path: Path) -> None:
    async with desk(tmp_path) as one, one.live.client() as wire:
        one.topic("t")
        await one.sent("t", b"a")
        assert (await mark(wire, 7)).code == v2.OK
        for empty in (v1.SetArchiveWatermarkRequest(), v1.GetArchiveWatermarkRequest()):
            answer = await wire.call(
                paths.SET_ARCHIVE_WATERMARK, empty, v1.SetArchiveWatermarkResponse
            )
            assert answer.code == v2.BAD_REQUEST
        assert (
            one.node.maintenance.get_archive_watermark(
                v1.GetArchiveWatermarkRequest(), one.context()
            ).watermark
            == 7
        )
        assert (await mark(wire, 0)).code == v2.OK, "an explicit 0 lowers it"


# -- what waits -----------------------------------------------------------------------------


async def wait_for_delivery(one: Desk) -> str:
    """Store one message of each kind that waits: a timer, a delay level, a half message. Return the
    transaction's id."""
    for name, kind in (("later", v2.DELAY), ("level", v2.NORMAL), ("half", v2.TRANSACTION)):
        one.topic(name, message_type=kind)
    later = message("later", b"timer", "timer", message_type=v2.DELAY)
    later.system_properties.delivery_timestamp.FromMilliseconds(
        one.node.runtime.clock.wall_ms() + 1_800_000
    )
    assert (await one.send(later)).status.code == v2.OK
    one.node.sender.append(one.node.delayed.record(Message("level", 0, b"level"), {"DELAY": "16"}))
    answer = await one.send(message("half", b"half", "half", message_type=v2.TRANSACTION))
    await one.dispatched()
    return answer.entries[0].transaction_id


async def test_segments_stay_while_messages_wait_in_them(tmp_path: Path) -> None:
    async with desk(tmp_path, tiny(settings(tmp_path))) as one:
        one.topic("t")
        one.group("g")
        transaction = await wait_for_delivery(one)
        await fill(one)
        for _ in range(3):
            await asyncio.sleep(0)
            one.node.maintenance.tick()
        verdict = one.node.store.retention.verdicts(one.node.runtime.clock.machine_ms(), 4)[0]
        assert (verdict.delete, verdict.reason) == (False, Reason.WAITS)
        assert "may wait from" in verdict.sentence
        offsets = (await samples(one.live))["cometmq_log_offset"]
        waiting = [row.value for row in offsets if row.labels["position"] == "waiting"]
        assert waiting == [one.node.store.retention.waiting_from()]
        assert await end_transaction(one, "half", transaction) == v2.OK
        one.advance(1_801_000)
        for topic in ("later", "level", "half"):
            assert len((await one.receive(topic, "g")).bodies) == 1, topic
        await until(lambda: one.node.store.log_start > 0)
        stats = (one.node.timers.stats.gone, one.node.transactions.stats.lost)
        assert stats == (0, 0)


async def test_a_follower_keeps_what_waits_at_its_leader(tmp_path: Path) -> None:
    chosen = tiny(settings(tmp_path / "m"))
    async with desk(tmp_path / "m", chosen) as one:
        slave = tiny(follower_of(one.live.bound, tmp_path / "s"))
        async with running(slave) as follower:
            one.topic("t")
            transaction = await wait_for_delivery(one)
            await fill(one)
            await until(lambda: follower.node.store.log_end == one.node.store.log_end)
            now_ms = one.node.runtime.clock.machine_ms()
            assert follower.node.store.retention.verdicts(now_ms, 4)[0].reason is Reason.WAITS
            assert await end_transaction(one, "half", transaction) == v2.OK
            one.advance(1_801_000)
            await until(lambda: follower.node.store.log_start > 0)


async def test_what_a_full_disk_takes_of_waiting_messages_is_counted(
    tmp_path: Path, use: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    chosen = tiny(settings(tmp_path), file_reserved_time=1000)
    async with desk(tmp_path, chosen) as one:
        one.topic("t")
        await wait_for_delivery(one)
        await fill(one)
        use[0] = 86
        await until(lambda: one.node.store.log_start >= SEGMENT)
        assert "waiting.overridden start=0" in caplog.text
        one.advance(1_801_000)
        await until(lambda: one.node.timers.stats.gone == 2)
        await until(lambda: one.node.transactions.stats.lost == 1)


# -- a full disk -----------------------------------------------------------------------------


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Set the reported use of every disk, in percent."""
    percent = [10]
    monkeypatch.setattr(Disk, "space", lambda _disk, _path: Space(100, *[100 - percent[0]] * 2))
    monkeypatch.setattr(Disk, "free_bytes", lambda _disk, _path: 1 << 40)
    return percent


@pytest.mark.feature("Disk full")
async def test_sends_are_refused_above_the_warning_level_and_resume_below_it(
    tmp_path: Path, use: list[int]
) -> None:
    chosen = tiny(settings(tmp_path), file_reserved_time=1000, clean_file_forcibly_enable=False)
    async with desk(tmp_path, chosen) as one, one.live.client() as wire:
        one.topic("t")
        one.group("g")
        await fill(one, 3)
        use[0] = 91
        await until(lambda: one.node.store.paused)
        answer = await one.send(message("t"))
        assert answer.status.code == v2.INTERNAL_SERVER_ERROR
        assert "91 % full (diskSpaceWarningLevelRatio 90 %)" in answer.status.message
        assert "refused until disk space is free" in answer.status.message
        assert not answer.entries
        made = await create_topic(wire, "another")
        assert made.code == v2.INTERNAL_SERVER_ERROR
        assert "91 % full" in made.message
        assert len((await one.receive("t", "g")).bodies) == 3, "reading goes on"
        checks = one.live.server.instance.checks()
        assert all(check.state != "failed" for check in checks.values())
        described = await wire.call(
            paths.DESCRIBE_CLUSTER, v1.DescribeClusterRequest(), v1.DescribeClusterResponse
        )
        assert "91 % full" in described.write_refusal
        assert (described.store.disk_use, described.store.pressure) == (91, "stop")
        use[0] = 80
        await until(lambda: one.node.store.writable)
        await fill(one, 1)


async def test_a_broker_starts_on_a_full_disk(tmp_path: Path, use: list[int]) -> None:
    chosen = tiny(settings(tmp_path), file_reserved_time=1000, clean_file_forcibly_enable=False)
    async with desk(tmp_path, chosen) as one:
        one.topic("t")
        await fill(one, 3)
    use[0] = 99
    async with desk(tmp_path, chosen) as one:
        assert "99 % full" in (await one.send(message("t"))).status.message
        assert len((await one.receive("t", "g")).bodies) == 3
        use[0] = 10
        await until(lambda: one.node.store.writable)
        await fill(one, 1)


async def test_without_disk_space_for_queues_the_store_waits_and_loses_nothing(
    tmp_path: Path,
) -> None:
    chosen = tiny(settings(tmp_path), file_reserved_time=1000, flush_interval_consume_queue=20)
    async with desk(tmp_path, chosen) as one:
        one.topic("t")
        one.group("g")
        full = [True]

        def fault(call: str) -> None:
            if full[0] and call in ("pwrite", "truncate", "fallocate"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        await fill(one, 3)
        one.node.store.disk.fault = fault
        answers = [await one.send(message("t", b"%d" % n)) for n in range(3)]
        await until(lambda: one.node.store.paused)
        assert "the queues cannot be written" in one.node.store.refusal
        assert "No space left on device" in (await one.send(message("t"))).status.message
        accepted = [a for a in answers if a.status.code == v2.OK]
        received = await one.receive("t", "g")
        assert len(received.bodies) == 3 + len(accepted), "what was accepted can be read"
        full[0] = False
        await until(lambda: one.node.store.writable)
        await fill(one, 1)
    async with desk(tmp_path, chosen) as one:
        assert one.node.store.max_offset("t", 0) == 4 + len(accepted)


async def test_store_metrics_are_exported(tmp_path: Path) -> None:
    async with desk(tmp_path, tiny(settings(tmp_path), file_reserved_time=1000)) as one:
        one.topic("t")
        one.group("g")
        await fill(one)
        await one.receive("t", "g")
        one.node.maintenance.tick()
        page = f"http://{one.live.bound.metrics}/metrics"
        text = await asyncio.to_thread(lambda: urlopen(page).read().decode())
        values = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, _, number = line.rpartition(" ")
                values[name.partition("{")[0], name] = float(number)

        def value(name: str, part: str = "") -> float:
            return next(v for (n, line), v in values.items() if n == name and part in line)

        store = one.node.store
        assert value("rocketmq_storage_size") == store.log_end
        assert value("rocketmq_storage_dispatch_behind_bytes") == 0
        assert value("rocketmq_storage_message_reserve_time") >= 0
        assert value("cometmq_store_put_messages_total") >= 60
        assert value("cometmq_store_put_bytes_total") > 60 * 900
        assert value("cometmq_store_get_messages_total") >= 32
        assert value("cometmq_store_put_seconds_bucket", '"+Inf"') >= 60
        assert value("cometmq_store_put_seconds_count") >= 60
        assert value("cometmq_store_segments") == len(store.log.segments)
        assert value("cometmq_store_writable") == 1
        assert value("cometmq_store_disk_pressure", '"stop"') == 0
        assert value("cometmq_store_put_tps", '"10s"') >= 0
