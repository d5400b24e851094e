"""The description of a store by the Admin service: segments, disks, recovery, damaged places."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.broker.maintenance import store_view
from cometmq.proto import paths, v1, v2
from cometmq.tests.broker.live import create_topic, running, settings
from cometmq.tests.harness.wire import Wire, normal_message

SEGMENT = 16 << 10


async def described(wire: Wire) -> v1.DescribeStoreResponse:
    answer: v1.DescribeStoreResponse = await wire.call(
        paths.DESCRIBE_STORE, v1.DescribeStoreRequest(), v1.DescribeStoreResponse
    )
    assert answer.code == v2.OK, answer.message
    return answer


async def test_segments_are_described_with_the_reason_why_each_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(tmp_path, broker_name="b")
    chosen = replace(
        chosen,
        store=replace(
            chosen.store, mapped_file_size_commit_log=SEGMENT, flush_disk_type="SYNC_FLUSH"
        ),
    )
    async with running(chosen) as live, live.client() as wire:
        await create_topic(wire, "t")
        for n in range(60):
            sent = await wire.send([normal_message("t", f"M{n}", b"x" * 900)])
            assert sent.status.code == v2.OK, sent
        store = await described(wire)
        assert len(store.segments) == store.segment_count > 3
        assert {one.reason for one in store.segments[:-1]} <= {"young", "not written out"}
        assert "fileReservedTime (72 h)" in store.segments[0].explanation
        assert store.segments[-1].reason == "last"
        assert [one.start for one in store.segments] == sorted(one.start for one in store.segments)
        assert (store.log_start, store.log_end) == (0, live.node.store.log_end)
        assert store.disks[0].total >= store.disks[0].usable > 0
        assert store.directory == str(tmp_path)
        assert store.scrub.interval_ms == 3_600_000
        assert not store.damaged
        assert len(store.put_bytes_per_s) == 3
        monkeypatch.setattr(store_view, "SEGMENTS_MAX", 2)
        ends = await described(wire)
        assert [one.start for one in ends.segments] == [
            store.segments[0].start,
            store.segments[-1].start,
        ]
        assert ends.segment_count == store.segment_count
    async with running(chosen) as live, live.client() as wire:
        again = await described(wire)
        assert again.stopped_cleanly
        assert again.recovery[0].startswith("The store was stopped properly.")


async def test_damaged_messages_are_described_with_their_file(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        live.node.store.blocks.gaps.note("t", 3, 17, live.node.store.log_start)
        store = await described(wire)
        (damaged,) = store.damaged
        assert (damaged.topic, damaged.queue_id, damaged.offset) == ("t", 3, 17)
        assert store.damaged_count == 1
