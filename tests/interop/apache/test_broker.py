"""Apache's broker opens the directory of a CometMQ broker with topics, groups and offsets.

The CometMQ broker serves sends, deliveries, acks and commits and is stopped. Its log has
`rmq_sys_COMETMQ_META` records, its `config/` CometMQ's JSON. Apache's broker must load the topics,
its consumers must continue at the committed offsets, and it must read the same messages.
"""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from cometmq.proto import paths, v2
from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.json_file import loads
from cometmq.store.message_store import MessageStore
from cometmq.tests.formats.agreement import assert_agrees
from cometmq.tests.formats.cases import dispatch_all, units_of
from cometmq.tests.harness.cluster import Cluster
from cometmq.tests.harness.wire import Wire, normal_message, receive_request
from cometmq.tests.interop.apache import oracle

pytestmark = pytest.mark.timeout(900)  # the first one fetches the jars
TOPIC, QUEUES, COUNT = "Payments", 4, 120
NOW_MS = 1_900_000_000_000


async def use(endpoints: str) -> None:
    """Send, acknowledge a part as one group, commit by hand as another."""
    async with Wire(endpoints) as wire:
        for number in range(COUNT):
            message = normal_message(
                TOPIC, f"{number:032X}", b"%d" % number, tag=f"T{number % 3}", key=f"k{number}"
            )
            answer = await wire.send([message])
            assert answer.status.code == v2.OK
        code, messages = await wire.receive(receive_request(TOPIC, "acks", batch=32))
        assert messages, code
        answer = await wire.ack(TOPIC, "acks", messages)
        assert answer.status.code == v2.OK
        for queue_id in range(QUEUES):
            await commit(wire, queue_id, 3 * queue_id)


async def commit(wire: Wire, queue_id: int, offset: int) -> None:
    request = v2.UpdateOffsetRequest(group=v2.Resource(name="commits"), offset=offset)
    request.message_queue.topic.name = TOPIC
    request.message_queue.id = queue_id
    answer = await wire.call(paths.UPDATE_OFFSET, request, v2.UpdateOffsetResponse)
    assert answer.status.code == v2.OK, answer


def stopped_broker(folder: Path) -> Path:
    """The store directory of a broker that was used and stopped."""
    cluster = Cluster(folder, "--single")
    try:
        cluster.start()
        cluster.create_topic(TOPIC, queues=QUEUES)
        for group in ("acks", "commits"):
            cluster.create_group(group)
        asyncio.run(use(cluster.address("master")))
        data = cluster.node("master").data
    finally:
        cluster.stop()
    (lock,) = data.rglob("lock")
    return lock.parent


def sizes(root: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The sizes of the files as they are, for our store and for Apache's broker."""
    (segment, *_) = sorted((root / "commitlog").iterdir())
    queue = next((root / "consumequeue" / TOPIC / "0").iterdir())
    log_bytes, queue_bytes = segment.stat().st_size, queue.stat().st_size
    return (
        {"mapped_file_size_commit_log": log_bytes, "mapped_file_size_consume_queue": queue_bytes},
        {
            "mappedFileSizeCommitLog": str(log_bytes),
            "mappedFileSizeConsumeQueue": str(queue_bytes),
        },
    )


def committed(root: Path, group: str) -> dict[int, int]:
    table = loads((root / "config" / "consumerOffset.json").read_text())["offsetTable"]
    return {int(queue): offset for queue, offset in table[f"{TOPIC}@{group}"].items()}


def rest_of(view: dict[str, Any], offsets: dict[int, int]) -> list[tuple[int, int, str]]:
    """Return the messages still to be delivered: queue, offset, body."""
    return sorted(
        (unit["record_queue_id"], unit["queue_offset"], unit["stored_body_b64"])
        for unit in units_of(view)
        if unit["record_topic"] == TOPIC
        and unit["queue_offset"] >= offsets.get(unit["record_queue_id"], 0)
    )


def test_apaches_consumers_continue_at_the_committed_offsets(tmp_path: Path) -> None:
    root, copy = stopped_broker(tmp_path / "cluster"), tmp_path / "copy"
    options, conf = sizes(root)
    oracle.copy_of(root, copy)
    groups = {"acks": committed(root, "acks"), "commits": committed(root, "commits"), "new": {}}
    assert groups["commits"] == {queue: 3 * queue for queue in range(QUEUES)}
    assert sum(groups["acks"].values()) > 0
    plan = {
        "queries": [{"topic": TOPIC, "key": key} for key in ("k7", "k119", "none", f"{7:032X}")],
        "consume": [
            {"group": group, "topic": TOPIC, "count": COUNT - sum(offsets.values())}
            for group, offsets in groups.items()
        ],
    }
    report = oracle.ask(root, tmp_path / "apache", plan, conf)
    bodies = {base64.b64decode(u["stored_body_b64"]) for u in units_of(report["before"])}
    assert {b"%d" % number for number in range(COUNT)} <= bodies
    for consumed, offsets in zip(report["consumed"], groups.values(), strict=True):
        came = sorted((m["queue"], m["queue_offset"], m["body_b64"]) for m in consumed)
        assert came == rest_of(report["before"], offsets)
    store = MessageStore(StoreConfig(str(copy), **options), lambda: NOW_MS)
    store.open()
    dispatch_all(store)
    assert_agrees(store, report["before"])
    store.close()
