"""Topics on a real broker: create, alter, delete, list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.messages.validation import MIXED
from cometmq.broker.metadata.tables import is_system_topic
from cometmq.proto import paths, v1, v2
from cometmq.tests.broker.desk import Desk, desk
from cometmq.tests.broker.live import (
    create_group,
    create_topic,
    follower_of,
    route,
    running,
    settings,
    until,
)
from cometmq.tests.harness.wire import Wire


async def delete(wire: Wire, name: str, **fields: Any) -> v1.DeleteTopicResponse:
    request = v1.DeleteTopicRequest(name=name, **fields)
    answer: v1.DeleteTopicResponse = await wire.call(
        paths.DELETE_TOPIC, request, v1.DeleteTopicResponse
    )
    return answer


async def topics(wire: Wire, *, system: bool = False) -> list[str]:
    request = v1.ListTopicsRequest(include_system=system)
    answer = await wire.call(paths.LIST_TOPICS, request, v1.ListTopicsResponse)
    return [topic.name for topic in answer.topics if not is_system_topic(topic.name)]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (v2.NORMAL, "NORMAL"),
        (v2.FIFO, "FIFO"),
        (v2.DELAY, "DELAY"),
        (v2.TRANSACTION, "TRANSACTION"),
        (v2.PRIORITY, "PRIORITY"),
        (v2.LITE, "LITE"),
        (MIXED, "MIXED"),
    ],
)
async def test_a_topic_type_can_be_given_by_number_or_attribute(
    tmp_path: Path, kind: int, name: str
) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        by_number = await create_topic(wire, "a", message_type=kind, queues=2)
        by_name = await create_topic(wire, "b", attributes=[f"+message.type={name}"])
        for answer in (by_number, by_name):
            assert (answer.code, answer.topic.message_type) == (v2.OK, kind)
            assert answer.topic.attributes == {"message.type": name}
        assert by_name.topic.write_queues == 8


async def test_mixed_can_be_switched_off(tmp_path: Path) -> None:
    chosen = settings(tmp_path, enable_mixed_message_type=False)
    async with running(chosen) as live, live.client() as wire:
        answer = await create_topic(wire, "m", message_type=MIXED)
        assert answer.code == v2.BAD_REQUEST
        assert "enableMixedMessageType" in answer.message


async def test_omitted_fields_keep_their_values(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        made = await create_topic(
            wire,
            "t",
            message_type=v2.LITE,
            read_queues=4,
            write_queues=2,
            perm=4,
            attributes=["+lite.topic.expiration=60"],
        )
        again = await create_topic(wire, "t")
        assert (again.created, again.altered) == (False, False)
        assert again.topic == made.topic
        version = live.node.meta_log.version
        looked = await create_topic(wire, "t", perm=6, dry_run=True)
        assert (looked.altered, looked.topic.perm) == (True, 6)
        assert live.node.meta_log.version == version
        closed = await create_topic(wire, "t", perm=0)
        assert (closed.altered, closed.topic.perm, closed.topic.read_queues) == (True, 0, 4)
        found = await route(wire, "t")
        assert {queue.permission for queue in found.message_queues} == {v2.NONE}
        plain = await create_topic(wire, "t", perm=6, attributes=["-lite.topic.expiration"])
        assert dict(plain.topic.attributes) == {"message.type": "LITE"}


async def test_invalid_requests_are_refused(tmp_path: Path) -> None:
    bad: list[tuple[dict[str, Any], int]] = [
        ({"name": "u", "must_exist": True}, v2.TOPIC_NOT_FOUND),
        ({"name": "rmq_sys_x"}, v2.ILLEGAL_TOPIC),
        ({"name": "SCHEDULE_TOPIC_XXXX"}, v2.ILLEGAL_TOPIC),
        ({"name": "DefaultCluster"}, v2.ILLEGAL_TOPIC),
        ({"name": "broker-a"}, v2.ILLEGAL_TOPIC),
        ({"name": "DefaultCluster_REPLY_TOPIC"}, v2.ILLEGAL_TOPIC),
        ({"name": "a b"}, v2.ILLEGAL_TOPIC),
        ({"name": "t", "queues": 1}, v2.BAD_REQUEST),
        ({"name": "t", "queues": 1025}, v2.BAD_REQUEST),
        ({"name": "t", "queues": 9, "read_queues": 9}, v2.BAD_REQUEST),
        ({"name": "t", "write_queues": -1}, v2.BAD_REQUEST),
        ({"name": "t", "perm": 8}, v2.BAD_REQUEST),
        ({"name": "t", "message_type": 77}, v2.BAD_REQUEST),
        ({"name": "t", "message_type": 2, "attributes": ["+message.type=DELAY"]}, v2.BAD_REQUEST),
        ({"name": "t", "attributes": ["+no.such=1"]}, v2.BAD_REQUEST),
    ]
    async with running(settings(tmp_path)) as live, live.client() as wire:
        made = await create_topic(wire, "t", queues=4)
        for fields, code in bad:
            answer = await create_topic(wire, **fields)
            assert answer.code == code, (fields, answer)
        assert (await create_topic(wire, "t")).topic == made.topic


async def test_read_queues_can_be_removed_once_consumed(tmp_path: Path) -> None:
    async with desk(tmp_path) as one, one.live.client() as wire:
        one.topic("t", queues=2)
        one.group("g")
        await one.sent("t", b"a", b"b")
        assert (await create_topic(wire, "t", write_queues=1)).code == v2.OK
        refused = await create_topic(wire, "t", read_queues=1)
        assert (refused.code, "not consumed" in refused.message) == (v2.FORBIDDEN, True)
        got = await one.receive("t", "g")
        assert one.ack("t", "g", *got.handles).status.code == v2.OK
        assert (await create_topic(wire, "t", read_queues=1)).topic.read_queues == 1
        one.topic("u", queues=2)
        await one.sent("u", b"a", b"b")
        lost = await create_topic(wire, "u", read_queues=1, accept_loss=True)
        assert lost.topic.read_queues == 1


async def test_a_deletion_removes_offsets_retries_and_messages_in_flight(tmp_path: Path) -> None:
    async with desk(tmp_path) as one, one.live.client() as wire:
        await _with_a_retry(one, wire)
        plan = await delete(wire, "t", dry_run=True)
        assert list(plan.topics) == ["t", "%RETRY%g_t"]
        assert (plan.messages, list(plan.groups), plan.in_flight) == (4, ["g"], 1)
        refused = await delete(wire, "t")
        assert (refused.code, "accept the loss" in refused.message) == (v2.FORBIDDEN, True)
        assert (await delete(wire, "t", accept_loss=True)).code == v2.OK
        assert await topics(wire, system=True) == ["other"]
        assert one.node.offsets.get("t", "g", 0) is None
        assert one.node.offsets.get("other", "g", 0) is not None
        assert (await route(wire, "t")).status.code == v2.TOPIC_NOT_FOUND
        assert (await one.receive("t", "g")).code == v2.TOPIC_NOT_FOUND
        assert (await delete(wire, "t")).code == v2.TOPIC_NOT_FOUND


async def test_a_recreated_topic_starts_after_the_old_messages(tmp_path: Path) -> None:
    async with desk(tmp_path) as one, one.live.client() as wire:
        await _with_a_retry(one, wire)
        await delete(wire, "t", accept_loss=True)
        again = await create_topic(wire, "t", queues=1)
        assert dict(again.topic.first_offsets) == {0: 3}
        await one.nothing("t", "g")
        await one.nothing("t", "new")
        await one.sent("t", b"new")
    for _ in range(2):  # reads must be the same after every start
        async with desk(tmp_path) as one:
            assert one.node.store.min_offset("t", 0) == 3
            got = await one.receive("t", "g", invisible_ms=10_000)
            assert got.bodies == [b"new"]


async def test_a_follower_applies_deletions_of_the_leader(tmp_path: Path) -> None:
    async with (
        desk(tmp_path / "a") as one,
        one.live.client() as wire,
        running(follower_of(one.live.bound, tmp_path / "b")) as follower,
    ):
        node = follower.node
        await _with_a_retry(one, wire)
        await until(lambda: node.offsets.get("t", "g", 0) is not None)
        await delete(wire, "t", accept_loss=True)
        await create_topic(wire, "t", queues=1)
        await until(lambda: "t" in node.metadata.topics and node.metadata.topics["t"].first_offsets)
        assert node.offsets.get("t", "g", 0) is None
        assert node.store.min_offset("t", 0) == 3
        assert node.metadata.topic("%RETRY%g_t") is None


async def test_retry_topics_are_neither_counted_nor_listed(tmp_path: Path) -> None:
    async with desk(tmp_path, max_topics=2) as one, one.live.client() as wire:
        await _with_a_retry(one, wire)
        assert await topics(wire) == ["other", "t"]
        assert await topics(wire, system=True) == ["%RETRY%g_t", "other", "t"]
        assert (await create_topic(wire, "more")).code == v2.FORBIDDEN
        await delete(wire, "other", accept_loss=True)
        assert (await create_topic(wire, "more")).code == v2.OK


async def test_topics_are_created_at_first_use_if_enabled(tmp_path: Path) -> None:
    async with desk(tmp_path, auto_create_topic_enable=True) as one, one.live.client() as wire:
        found = await route(wire, "wanted")
        assert len(found.message_queues) == 4
        await one.sent("sent", b"a")
        assert one.node.metadata.topics["sent"].write_queues == 4
        for name in ("%RETRY%g_t", "%DLQ%g", "%LMQ%x"):
            assert (await route(wire, name)).status.code == v2.TOPIC_NOT_FOUND
        assert (await route(wire, "rmq_sys_x")).status.code == v2.ILLEGAL_TOPIC
        assert (await one.receive("unknown", "g")).code == v2.TOPIC_NOT_FOUND
    async with running(settings(tmp_path)) as live, live.client() as wire:
        assert (await route(wire, "wanted")).status.code == v2.OK
        assert (await route(wire, "unwanted")).status.code == v2.TOPIC_NOT_FOUND


async def test_a_topic_is_not_created_while_the_log_is_not_writable(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        one.node.replication.write_refusal = lambda: "too few"  # type: ignore[method-assign]
        async with one.live.client() as wire:
            assert (await create_topic(wire, "u")).code == v2.HA_NOT_AVAILABLE
            assert (await delete(wire, "t")).code == v2.HA_NOT_AVAILABLE
            assert (await create_topic(wire, "t")).code == v2.OK, "nothing is to be written"


async def _with_a_retry(one: Desk, wire: Wire) -> None:
    """Create topics `t` and `other`; of three messages of `t` one is consumed, one in flight, one
    retried.
    """
    for name in ("t", "other"):
        assert (await create_topic(wire, name, queues=1)).code == v2.OK
    assert (await create_group(wire, "g")).code == v2.OK
    await one.sent("t", b"a", b"b", b"c")
    await one.sent("other", b"x")
    other = await one.receive("other", "g")
    one.ack("other", "g", *other.handles)
    first = await one.receive("t", "g", batch=1, invisible_ms=10_000)
    assert first.bodies == [b"a"]
    one.advance(10_001)
    await until(lambda: one.node.metadata.topic("%RETRY%g_t"))
    await one.dispatched()
    second = await one.receive("t", "g", batch=2, invisible_ms=60_000)
    done = [h for h, b in zip(second.handles, second.bodies, strict=True) if b == b"b"]
    one.ack("t", "g", *done)
