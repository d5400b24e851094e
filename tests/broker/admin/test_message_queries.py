"""Message queries by key, unique key, tag and id on a running broker, by RPC and by command."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cometmq.proto import paths, v1, v2
from cometmq.store.format.message_id import OffsetId
from cometmq.store.format.record import decode
from cometmq.store.format.topic_names import META_TOPIC
from cometmq.tests.broker.live import Live, create_topic, follower_of, running, settings, until
from cometmq.tests.harness.wire import Wire, normal_message

COMMAND = [sys.executable, "-P", "-m", "cometmq.cli.main", "message", "query"]


async def ask(wire: Wire, **fields: Any) -> v1.QueryMessagesResponse:
    request = v1.QueryMessagesRequest(**fields)
    answer: v1.QueryMessagesResponse = await wire.call(
        paths.QUERY_MESSAGES, request, v1.QueryMessagesResponse
    )
    return answer


def bodies(answer: v1.QueryMessagesResponse) -> list[bytes]:
    assert answer.code == v2.OK, answer.message
    return [v2.Message.FromString(found.message).body for found in answer.messages]


async def send_some(wire: Wire) -> None:
    await create_topic(wire, "t", queues=2)
    for number in range(5):
        await wire.send(
            [
                normal_message(
                    "t",
                    f"id-{number}",
                    f"b{number}".encode(),
                    f"tag{number % 2}",
                    f"k{number // 2}",
                )
            ]
        )


async def command(live: Live, *arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [*COMMAND, "--endpoint", live.bound.client, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_the_metadata_log_with_its_sealed_secrets_is_in_no_answer(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        await create_topic(wire, "t", queues=2)
        live.node.pump.catch_up()
        (stored,) = live.node.store.get(META_TOPIC, 0, 0, 1).records
        record = decode(stored.data)
        for name in ("key", "unique_key", "tag"):
            refused = await ask(wire, topic=META_TOPIC, **{name: "META"})
            assert (refused.code, bool(refused.messages)) == (v2.FORBIDDEN, False)
        offset_id = str(OffsetId(record.store_host, record.physical_offset))
        for more in ({}, {"topic": META_TOPIC}, {"topic": "t"}):
            assert bodies(await ask(wire, message_id=offset_id, **more)) == []


async def test_messages_are_found_by_key_unique_key_tag_and_id(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        await send_some(wire)
        assert bodies(await ask(wire, topic="t", key="k0")) == [b"b0", b"b1"]
        assert bodies(await ask(wire, topic="t", tag="tag1")) == [b"b1", b"b3"]
        assert bodies(await ask(wire, topic="t", tag="tag0", count=1)) == [b"b4"]
        assert bodies(await ask(wire, topic="t", key="tag0")) == []
        assert bodies(await ask(wire, topic="t", key="k0", end_ms=1)) == []
        by_key = await ask(wire, topic="t", unique_key="id-3")
        assert bodies(by_key) == [b"b3"]
        assert not by_key.left_out
        assert by_key.index_behind == 0
        by_id = await ask(wire, message_id=by_key.messages[0].offset_id)
        assert bodies(by_id) == [b"b3"]
        message = v2.Message.FromString(by_id.messages[0].message)
        assert message.topic.name == "t"
        assert message.system_properties.message_id == "id-3"
        assert list(message.system_properties.keys) == ["k1"]


async def test_invalid_queries_are_refused(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        for fields in (
            {},
            {"topic": "t"},
            {"topic": "t", "key": "a", "tag": "b"},
            {"key": "a"},
        ):
            assert (await ask(wire, **fields)).code == v2.BAD_REQUEST
        assert bodies(await ask(wire, message_id="F" * 32)) == []


async def test_a_large_response_is_truncated(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        await create_topic(wire, "t", queues=1)
        for number in range(8):
            text = str(number).encode() * 500_000
            await wire.send([normal_message("t", f"id-{number}", text, key="k")])
        answer = await ask(wire, topic="t", key="k")
        assert [one[:1] for one in bodies(answer)] == [b"2", b"3", b"4", b"5", b"6", b"7"]
        assert answer.left_out


async def test_a_follower_builds_the_same_index(tmp_path: Path) -> None:
    async with (
        running(settings(tmp_path / "a")) as leader,
        running(follower_of(leader.bound, tmp_path / "b")) as follower,
        leader.client() as wire,
    ):
        await send_some(wire)
        end = leader.node.store.log_end
        await until(lambda: follower.node.store.dispatched_offset >= end)
        found = follower.node.store.queries.query("t", "k0")
        assert [record.body for record in found] == [b"b0", b"b1"]
    files = [[path.read_bytes() for path in (tmp_path / name / "index").iterdir()] for name in "ab"]
    assert len(files[0]) == 1
    assert files[0] == files[1]


async def test_the_query_command_prints_messages(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        await send_some(wire)
        done = await command(live, "--topic", "t", "--key", "k0", "-o", "json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert [one["body"] for one in found] == ["b0", "b1"]
        done = await command(live, "--id", found[1]["offset_id"])
        assert done.returncode == 0, done.stderr
        assert "id-1" in done.stdout
        done = await command(live, "--topic", "t", "--unique-key", "none")
        assert done.returncode == 4
        assert "No message found." in done.stderr
        done = await command(live, "--key", "k0")
        assert done.returncode == 2
        done = await command(live, "--topic", "t", "--key", "a", "--tag", "b")
        assert done.returncode == 2
