"""`Admin.ReadLog`: through a follower, through both doors, concurrent with other calls."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from cometmq.auth.model import User
from cometmq.broker.access.rights import RIGHTS, SUPER
from cometmq.broker.server import BrokerServer
from cometmq.front.config import DoorConfig
from cometmq.pipeline.source.channel import Channel
from cometmq.pipeline.source.options import parse
from cometmq.proto import paths, v1, v2
from cometmq.proto.native import is_available
from cometmq.store.format.record import decode, property_crc_ok
from cometmq.store.format.topic_names import META_TOPIC
from cometmq.tests.broker.live import Live, create_topic, running, settings
from cometmq.tests.broker.test_replicas import pair
from cometmq.tests.harness.wire import normal_message


def read(address: str, **fields: Any) -> list[v1.LogFrames]:
    with Channel(parse({"endpoints": address}).access) as wire:  # type: ignore[arg-type]
        return list(wire.stream(paths.READ_LOG, v1.ReadLogRequest(**fields), v1.LogFrames))


async def fill(live: Live, count: int) -> None:
    async with live.client() as wire:
        await create_topic(wire, "t", queues=1)
        for number in range(count):
            await wire.send([normal_message("t", f"{number}", b"x" * 900)])


async def test_a_follower_forwards_the_request_to_the_leader(tmp_path: Path) -> None:
    async with pair(tmp_path) as (leader, follower, _):
        await fill(leader, 5)
        own = await asyncio.to_thread(read, leader.bound.client)
        name = leader.node.runtime.config.broker_name
        there = await asyncio.to_thread(read, follower.bound.client, broker=name)
        assert b"".join(one.frames for one in there) == b"".join(one.frames for one in own)
        assert there[-1].next_offset == leader.node.pump.readable_limit()


@pytest.mark.parametrize("door", ["grpcio", "native"])
async def test_responses_have_the_requested_size_at_every_door(tmp_path: Path, door: str) -> None:
    if door == "native" and not is_available():
        pytest.skip("the native door is not built here")
    chosen = settings(tmp_path)
    server = BrokerServer(chosen.broker, chosen.store, chosen.ha, DoorConfig(front_door=door))
    live = Live(server, await server.start())
    try:
        await fill(live, 60)
        whole = await asyncio.to_thread(read, live.bound.client)
        small = await asyncio.to_thread(read, live.bound.client, max_bytes=5_000)
        tiny = await asyncio.to_thread(read, live.bound.client, max_bytes=1)
        third = tiny[2].offset
        ended = [
            await asyncio.to_thread(read, live.bound.client, end=end) for end in (third, third + 1)
        ]
    finally:
        await server.stop(1.0)
    assert len(whole) < len(small) < len(tiny)
    assert max(len(one.frames) for one in small) <= 5_000
    # A record larger than the response limit is returned as a whole.
    assert all(one.frames for one in tiny)
    # The end is exclusive, for records that start there.
    assert [one[-1].next_offset for one in ended] == [third, tiny[2].next_offset]
    texts = {b"".join(one.frames for one in answers) for answers in (whole, small, tiny)}
    assert len(texts) == 1


def test_only_users_of_type_super_read_the_contents_of_the_metadata_log() -> None:
    needs = RIGHTS[paths.READ_LOG]
    assert needs(v1.ReadLogRequest(whole=True)) is SUPER
    assert needs(v1.ReadLogRequest()) is not SUPER


@pytest.mark.parametrize("sealed_records", [False, True])
async def test_the_sealed_secrets_of_users_leave_by_no_read(
    tmp_path: Path, sealed_records: bool
) -> None:
    chosen = settings(tmp_path)
    store = replace(chosen.store, enabled_append_prop_crc=sealed_records)
    async with running(replace(chosen, store=store)) as live, live.client() as wire:
        sealed = live.node.keys.key.seal("alice", "secret-of-alice")
        live.node.meta_log.write_user(User("alice", sealed))
        await fill(live, 3)
        body = META_TOPIC.encode() + b" in a body"
        await wire.send([normal_message("t", "named", body)])
        log = live.node.store.read_log(0, live.node.store.log_end)
        assert sealed in log, "they are in the log"
        saved = await asyncio.to_thread(read, live.bound.client, whole=True)
        assert b"".join(one.frames for one in saved) == log, "a backup has them"
        for max_bytes in (0, 700):
            answers = await asyncio.to_thread(read, live.bound.client, max_bytes=max_bytes)
            assert [crc32(one.frames) for one in answers] == [one.crc32 for one in answers]
            frames = b"".join(one.frames for one in answers)
            assert len(frames) == len(log)
            assert (sealed in frames, b"alice" in frames, body in frames) == (False, False, True)
            at = 0
            while at < len(frames):
                record = decode(frames[at:])
                whole = frames[at : at + record.size]
                assert property_crc_ok(whole) == sealed_records
                assert any(record.body) == (record.topic != META_TOPIC)
                if record.topic != META_TOPIC:
                    assert whole == log[at : at + record.size]
                at += record.size
        pulled = v2.PullMessageRequest(
            group=v2.Resource(name="g"),
            message_queue=v2.MessageQueue(topic=v2.Resource(name=META_TOPIC)),
            batch_size=32,
        )
        call = wire.channel.unary_stream(paths.PULL_MESSAGE)
        found = [
            v2.PullMessageResponse.FromString(raw)
            async for raw in call(pulled.SerializeToString(), metadata=wire.metadata, timeout=20)
        ]
        assert not any(answer.HasField("message") for answer in found)
