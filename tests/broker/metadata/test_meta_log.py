"""Topics and groups across restarts, crashes and imports: the log is primary."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.broker.metadata.tables import Group
from cometmq.proto import paths, v1, v2
from cometmq.store.format.record import decode
from cometmq.store.format.topic_names import META_TOPIC
from cometmq.tests.broker.desk import desk, message
from cometmq.tests.broker.live import (
    Settings,
    create_group,
    create_topic,
    route,
    running,
    settings,
)
from cometmq.tests.harness.wire import normal_message, receive_request


async def _fill(chosen: Settings) -> None:
    async with running(chosen) as live, live.client() as wire:
        await create_topic(wire, "kept", message_type=v2.FIFO, queues=5)
        await create_group(wire, "kept_group", orderly=True, max_attempts=4)
        for number in range(30):
            await create_topic(wire, f"t{number}", queues=1)
            message = normal_message(f"t{number}", f"id{number}", b"x" * 2_000)
            assert (await wire.send([message])).status.code == v2.OK


async def _check_kept(chosen: Settings) -> None:
    async with running(chosen) as live, live.client() as wire:
        assert len(live.node.metadata.topics) == 31
        described = await wire.call(
            paths.DESCRIBE_TOPIC, v1.DescribeTopicRequest(name="kept"), v1.DescribeTopicResponse
        )
        assert (described.topic.message_type, described.topic.read_queues) == (v2.FIFO, 5)
        group = live.node.metadata.group("kept_group")
        assert group is not None
        assert (group.orderly, group.max_attempts) == (True, 4)
        assert (await create_topic(wire, "kept", queues=5, message_type=v2.FIFO)).created is False
        version = live.node.meta_log.version
        await create_topic(wire, "one_more", queues=1)
        assert live.node.meta_log.version == version + 1


@pytest.mark.parametrize("files", ["there", "gone"])
async def test_topics_survive_a_restart_from_the_log_alone(tmp_path: Path, files: str) -> None:
    chosen = settings(tmp_path / "store")
    chosen = replace(chosen, store=replace(chosen.store, mapped_file_size_commit_log=16 * 1024))
    await _fill(chosen)
    table = json.loads((tmp_path / "store/config/topics.json").read_text())["topicConfigTable"]
    assert table["kept"]["attributes"] == {"message.type": "FIFO"}
    assert META_TOPIC in table
    if files == "gone":
        shutil.rmtree(tmp_path / "store/config")
    await _check_kept(chosen)


async def test_every_segment_starts_with_a_snapshot(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    segment = 16 * 1024
    chosen = replace(chosen, store=replace(chosen.store, mapped_file_size_commit_log=segment))
    async with running(chosen) as live, live.client() as wire:
        await create_topic(wire, "t", queues=1)
        for number in range(40):
            await wire.send([normal_message("t", str(number), b"x" * 2_000)])
        store = live.node.store
        heads = range(0, store.log_end, segment)
        assert len(heads) > 4
        for offset in heads:
            record = decode(store.record_at(offset))
            assert record.topic == META_TOPIC
            assert record.properties_dict["TAGS"] == "SNAPSHOT"
            part = v1.MetaSnapshot.FromString(record.body)
            assert (part.part_index, part.part_count) == (0, 1)
            names = [topic.name for topic in part.topics]
            assert names == (["t"] if offset else [])


async def test_a_crash_loses_no_topic(tmp_path: Path) -> None:
    """A copy of the directory of a running broker equals the state after kill -9."""
    chosen = settings(tmp_path / "store")
    copy = settings(tmp_path / "copy")
    async with running(chosen) as live, live.client() as wire:
        await create_topic(wire, "t", queues=7)
        await wire.send([normal_message("t", "id", b"body")])
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy/config", ignore_errors=True)
    async with running(copy) as live, live.client() as wire:
        topic = live.node.metadata.topic("t")
        assert topic is not None
        assert topic.read_queues == 7
        code, messages = await wire.receive(receive_request("t", "g"))
        assert (code, messages[0].body) == (v2.OK, b"body")


@pytest.mark.parametrize("writer", ["ours", "apache"])
async def test_deleted_entries_are_not_imported_from_an_old_file(
    tmp_path: Path, writer: str
) -> None:
    """The files are written a second later: after a crash they may contain deleted entries."""
    chosen = settings(tmp_path)
    config = tmp_path / "config"

    async with running(chosen) as live, live.client() as wire:
        await create_topic(wire, "t")
        await create_group(wire, "g")
    old = {path: path.read_text() for path in config.glob("*.json")}
    async with running(chosen) as live:
        live.node.meta_log.delete_topic("t")
        live.node.meta_log.delete_group("g", False)
    for path, text in old.items():
        if writer == "apache":  # drops unknown keys; its changes count as newer
            content = json.loads(text)
            known = {key: value for key, value in content.items() if "cometmq" not in key}
            text = json.dumps(known)  # noqa: PLW2901
        path.write_text(text)
    async with running(chosen) as live:
        there = writer == "apache"
        assert (live.node.metadata.topic("t") is not None) == there
        assert (live.node.metadata.group("g") is not None) == there


APACHE_TOPICS = """{
\t"dataVersion":{"counter":33,"stateVersion":0,"timestamp":1795255769029},
\t"topicConfigTable":{
\t\t"SCHEDULE_TOPIC_XXXX":{"attributes":{},"order":false,"perm":6,"readQueueNums":18,
\t\t\t"topicFilterType":"SINGLE_TAG","topicName":"SCHEDULE_TOPIC_XXXX","topicSysFlag":0,
\t\t\t"writeQueueNums":18},
\t\t"old":{"attributes":{"message.type":"DELAY"},"order":true,"perm":6,"readQueueNums":4,
\t\t\t"topicFilterType":"MULTI_TAG","topicName":"old","topicSysFlag":1,"writeQueueNums":4}
\t}
}"""
APACHE_GROUPS = """{"dataVersion":{"counter":2,"stateVersion":0,"timestamp":1795255769029},
 "forbiddenTable":{"old_group":{"old":1}},
 "subscriptionGroupTable":{"old_group":{"attributes":{},"brokerId":0,"consumeMessageOrderly":true,
 "groupName":"old_group","groupRetryPolicy":{"type":"CUSTOMIZED"},"retryMaxTimes":3,
 "retryQueueNums":1,"consumeTimeoutMinute":77}}}"""


async def test_an_apache_directory_is_imported(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/topics.json").write_text(APACHE_TOPICS)
    (tmp_path / "config/subscriptionGroup.json").write_text(APACHE_GROUPS)
    for _ in range(2):
        async with running(settings(tmp_path)) as live, live.client() as wire:
            found = await route(wire, "old")
            assert list(found.message_queues[0].accept_message_types) == [v2.DELAY]
            group = live.node.metadata.group("old_group")
            assert group is not None
            assert (group.orderly, group.max_attempts) == (True, 4)
            listed = await wire.call(
                paths.LIST_TOPICS, v1.ListTopicsRequest(), v1.ListTopicsResponse
            )
            assert [topic.name for topic in listed.topics] == ["old"]
    topics = json.loads((tmp_path / "config/topics.json").read_text())
    assert topics["dataVersion"]["counter"] > 33
    assert topics["topicConfigTable"]["old"]["topicFilterType"] == "MULTI_TAG"
    assert topics["topicConfigTable"]["SCHEDULE_TOPIC_XXXX"]["readQueueNums"] == 18
    groups = json.loads((tmp_path / "config/subscriptionGroup.json").read_text())
    assert groups["forbiddenTable"] == {"old_group": {"old": 1}}
    assert groups["subscriptionGroupTable"]["old_group"]["consumeTimeoutMinute"] == 77


async def test_a_metadata_record_damaged_before_its_dispatch_delays_no_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk(tmp_path) as k:
        k.topic("t")
        await k.dispatched()
        begin = k.node.store.log_end
        k.node.meta_log.write_group(Group("g"))
        size = k.node.store.log_end - begin
        answer = await k.send(message("t", b"behind it", message_id="01"))
        assert answer.status.code == v2.OK
        (segment,) = (tmp_path / "commitlog").iterdir()
        with segment.open("r+b", buffering=0) as file:
            file.seek(begin)
            file.write(bytes(size))
        await k.dispatched()
        received = await k.receive("t", "readers")
        assert [each.body for each in received.messages] == [b"behind it"]
    assert f"metadata.record_damaged offset={begin}" in caplog.text
