"""A directory of Apache's broker opened by CometMQ: the configuration is imported, and after the
stop Apache finds all its data.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.store.config.catalog import FILES, problems
from cometmq.store.format.json_file import CHECKSUM, dumps, loads
from cometmq.store.format.topic_names import META_TOPIC
from cometmq.tests.broker.live import Settings, create_topic, running, settings, until
from cometmq.tests.formats.cases import new_store, unpack

#: Fields that a newer Apache might write, and files of parts that CometMQ does not have.
FOREIGN_TOPIC = {"newTopicField": {"a": [1, 2]}, "order": True, "topicSysFlag": 2}
FOREIGN_GROUP = {"newGroupField": "x", "brokerId": 3, "whichBrokerWhenConsumeSlowly": 7}
FOREIGN_FILES = (
    "rocksdbstore/CURRENT",
    "compaction/compactionLog/T/0/00000000000000000000",
    "kvStore/LOG",
    "config/rdb/LOG",
    "config/somethingElse.json",
)


def read(root: Path, name: str) -> dict[Any, Any]:
    content = loads((root / "config" / name).read_text())
    assert problems(name, content) == []
    return content


def chosen(case: str, root: Path) -> Settings:
    """Return settings with the small files of the golden directory."""
    return replace(settings(root), store=new_store(case, root).config)


@pytest.fixture(params=["retry", "grpc"])
def case(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def root(case: str, tmp_path: Path) -> Iterator[Path]:
    root = unpack(case, tmp_path)
    for name in FOREIGN_FILES:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"foreign":1}')
    for name, table, extra in (
        ("topics.json", "topicConfigTable", FOREIGN_TOPIC),
        ("subscriptionGroup.json", "subscriptionGroupTable", FOREIGN_GROUP),
    ):
        content = read(root, name)
        content[table][next(iter(content[table]))].update(extra)
        content["foreignTop"] = {7: [{"x": 1}]}
        (root / "config" / name).write_text(dumps(content))
    yield root
    shutil.rmtree(root)


def config_of(root: Path) -> dict[str, dict[Any, Any]]:
    names = [name for name in FILES if (root / "config" / name).exists()]
    return {name: read(root, name) for name in names}


def offsets_of_clients(files: dict[str, dict[Any, Any]]) -> dict[Any, Any]:
    """Return offsets without those of the broker's own groups."""
    table = files["consumerOffset.json"]["offsetTable"]
    return {name: queues for name, queues in table.items() if "@CID_RMQ_SYS_" not in name}


async def _run(settings_: Settings, before: dict[str, dict[Any, Any]], new_topic: str) -> None:
    async with running(settings_) as live:
        node = live.node
        for name, bean in before["topics.json"]["topicConfigTable"].items():
            if name == META_TOPIC:
                continue
            topic = node.metadata.topic(name)
            assert topic is not None
            assert topic.read_queues == bean["readQueueNums"]
            assert topic.attributes == bean["attributes"]
        for name, bean in before["subscriptionGroup.json"]["subscriptionGroupTable"].items():
            group = node.metadata.group(name)
            assert group is not None
            assert group.max_attempts == bean["retryMaxTimes"] + 1
        for name, queues in offsets_of_clients(before).items():
            topic_name, group_name = name.split("@")
            for queue_id, offset in queues.items():
                assert node.offsets.get(topic_name, group_name, queue_id) == offset
        async with live.client() as wire:
            await create_topic(wire, new_topic, queues=2)
        await until(lambda: node.metadata.topic(new_topic) is not None)
        node.metadata.ensure_group(f"G{new_topic}")


async def test_the_configuration_is_imported_and_kept_after_a_stop(case: str, root: Path) -> None:
    before = config_of(root)
    for number in range(2):  # the second time the log has topics and groups already
        await _run(chosen(case, root), before, f"New{number}")
        after = config_of(root)
        for name in before:
            if name not in ("topics.json", "subscriptionGroup.json", "consumerOffset.json"):
                assert after[name] == before[name], name
        for name, table in (
            ("topics.json", "topicConfigTable"),
            ("subscriptionGroup.json", "subscriptionGroupTable"),
        ):
            old, new = before[name], after[name]
            assert old[table].items() <= new[table].items()
            assert new["foreignTop"] == old["foreignTop"]
            assert new["dataVersion"]["counter"] > old["dataVersion"]["counter"]
        assert after["subscriptionGroup.json"]["forbiddenTable"] == {}
        assert f"New{number}" in after["topics.json"]["topicConfigTable"]
        assert f"GNew{number}" in after["subscriptionGroup.json"]["subscriptionGroupTable"]
        assert offsets_of_clients(before).items() <= offsets_of_clients(after).items()
        old, new = before["consumerOffset.json"], after["consumerOffset.json"]
        assert new["pullOffsetTable"] == old["pullOffsetTable"]
        for foreign in FOREIGN_FILES:
            assert (root / foreign).read_text() == '{"foreign":1}'


async def test_written_files_have_apaches_format(case: str, root: Path) -> None:
    """The same keys in the same order behind our checksum, and bare numbers as keys."""
    before = config_of(root)
    await _run(chosen(case, root), before, "New")
    after = config_of(root)
    for name, table in (
        ("topics.json", "topicConfigTable"),
        ("subscriptionGroup.json", "subscriptionGroupTable"),
    ):
        names = list(before[name][table])[1:]
        for each in names:
            assert list(after[name][table][each]) == list(before[name][table][each])
        new = after[name][table]["New" if name == "topics.json" else "GNew"]
        assert list(new) == list(before[name][table][names[0]])
    for config in (before, after):
        config["consumerOffset.json"].pop(CHECKSUM, None)
    assert list(after["consumerOffset.json"]) == list(before["consumerOffset.json"])
    for queues in after["consumerOffset.json"]["offsetTable"].values():
        assert all(isinstance(queue_id, int) for queue_id in queues)
