"""Expiry and removal of lite topics and subscriptions, and their state after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cometmq.broker.lite.service import PROTECTED_MS, REFRESH_MAX_NS
from cometmq.broker.messages.validation import MIXED
from cometmq.broker.names.lite import queue_of
from cometmq.proto import paths, v1, v2
from cometmq.store.format.record import Message
from cometmq.tests.broker.delay.test_recall import send
from cometmq.tests.broker.desk import desk
from cometmq.tests.broker.lite_desk import ADD, ALL, MINUTE_MS, PARENT, Lite, held, lite
from cometmq.tests.broker.live import create_group, create_topic
from cometmq.tests.broker.transacting import prepared


async def test_subscriptions_expire_without_a_refresh(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        assert one.sync(ADD, "a") == v2.OK
        assert one.sync(ADD, "a", client="c@2") == v2.OK
        service = one.one.node.lite
        first = service.table.get(("g", "c@1"))
        assert first is not None
        first.seen_ns -= REFRESH_MAX_NS + 1
        service._tick()
        assert (held(one), held(one, "c@2")) == ([], ["a"])
        assert one.sync(ALL, "a") == v2.OK
        assert held(one) == ["a"]


async def test_a_lite_topic_expires_without_new_messages(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        one.parent(expiration="30")
        assert one.sync(ADD, "a", "b") == v2.OK
        await one.send("a", b"1", b"2")
        await one.send("b", b"1")
        got = await one.receive(batch=1)
        one.one.advance(20 * MINUTE_MS)
        await one.send("b", b"2")
        one.one.advance(10 * MINUTE_MS)
        assert one.queues == [queue_of(PARENT, "b")]
        assert one.offset("a") == 0
        # The lock is gone; the lite topic starts over, for subscribers too.
        assert one.ack(*got.handles).status.code == v2.INVALID_RECEIPT_HANDLE
        await one.send("a", b"new")
        bodies = (await one.receive()).bodies
        assert bodies.count(b"new") == 1
        assert b"1" in bodies and b"2" in bodies  # a message of b


async def test_deleting_the_parent_deletes_its_lite_topics(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        await one.send("a", b"1")
        one.parent("other")
        await one.send("a", b"1", topic="other")
        one.one.node.metadata.remove_topic(PARENT)
        one.one.node.offsets.forget_topic(PARENT)
        assert one.queues == [queue_of("other", "a")]


async def test_deleting_a_group_deletes_its_subscriptions(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        assert one.sync(ADD, "a") == v2.OK
        one.one.node.offsets.forget_group("g")
        assert held(one) == []


async def test_a_restart_keeps_offsets_and_locks_but_not_subscriptions(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        assert one.sync(ADD, "a") == v2.OK
        await one.send("a", b"1", b"2", b"3")
        got = await one.receive(batch=2)
        one.ack(got.handles[0])
    async with lite(tmp_path) as one:
        await one.nothing()
        assert one.sync(ALL, "a") == v2.OK  # the client's refresh
        await one.nothing()  # the lock is kept
        assert one.ack(got.handles[1]).status.code == v2.OK
        again = await one.receive()
        assert (again.bodies, again.attempts) == ([b"3"], [1])


async def test_a_restart_does_not_expire_a_lite_topic_early(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        one.parent(expiration="1")
        await one.send("a", b"1")
    async with lite(tmp_path) as one:
        one.one.advance(MINUTE_MS // 2)
        assert one.queues
        one.one.advance(PROTECTED_MS)
        await asyncio.sleep(0)
        assert not one.queues


async def test_offsets_of_expired_lite_topics_are_removed_a_day_later(
    tmp_path: Path,
) -> None:
    async with lite(tmp_path) as one:
        one.parent(expiration="30")
        assert one.sync(ADD, "a", "never") == v2.OK
        await one.send("a", b"1")
        one.one.node.receiving.client_gone("c@1")
        one.one.advance(30 * MINUTE_MS)
        assert not one.queues
        assert (one.offset("a"), one.offset("never")) == (0, 0)
    async with lite(tmp_path) as one:  # also with a restart in between
        one.one.advance(23 * 60 * MINUTE_MS)
        assert (one.offset("a"), one.offset("never")) == (0, 0)
        assert one.sync(ADD, "never") == v2.OK
        one.one.advance(2 * 60 * MINUTE_MS)
        assert (one.offset("a"), one.offset("never")) == (None, 0)
        await one.send("never", b"at last")
        assert (await one.receive()).bodies == [b"at last"]


async def test_a_group_leaves_its_parent_only_when_nothing_waits_there(tmp_path: Path) -> None:
    async with lite(tmp_path) as one, one.one.live.client() as wire:
        one.parent("other")
        assert one.sync(ADD, "a") == v2.OK
        await one.send("a", b"1", b"2")
        assert (await one.receive(batch=1)).bodies == [b"1"]
        refused = await create_group(wire, "g", attributes=["+lite.bind.topic=other"])
        assert (refused.code, "wait for group g" in refused.message) == (v2.FORBIDDEN, True)
        assert (await create_group(wire, "g", attributes=["+lite.sub.wildcard=true"])).altered


@pytest.mark.parametrize("restarts", [False, True])
async def test_lite_topics_that_a_wildcard_group_has_not_read_count(
    tmp_path: Path, restarts: bool
) -> None:
    async with lite(tmp_path) as one:
        one.parent("other")
        one.bind(sub__wildcard="true")
        await one.send("old", b"before")
        assert one.sync(ALL) == v2.OK
        await one.send("old", b"1")
        await one.send("new", b"2", b"3")
        if not restarts:
            await _group_stays_where_messages_wait(one)
    if restarts:
        async with lite(tmp_path) as one:
            await _group_stays_where_messages_wait(one)


async def _group_stays_where_messages_wait(one: Lite) -> None:
    async with one.one.live.client() as wire:
        described = await wire.call(
            paths.DESCRIBE_GROUP, v1.DescribeGroupRequest(name="g"), v1.DescribeGroupResponse
        )
        assert isinstance(described, v1.DescribeGroupResponse)
        assert described.lag == 3
        for change in ("+lite.bind.topic=other", "-lite.sub.wildcard"):
            refused = await create_group(wire, "g", attributes=[change])
            assert (refused.code, refused.message[:2]) == (v2.FORBIDDEN, "3 ")
        assert one.sync(ALL) == v2.OK
        got = await one.receive()
        assert sorted(got.bodies) == [b"1", b"2", b"3"]
        for name, body in (("old", b"1"), ("new", b"2"), ("new", b"3")):
            one.ack(got.handles[got.bodies.index(body)], lite=name)
        assert (await create_group(wire, "g", attributes=["-lite.sub.wildcard"])).altered


async def test_a_topic_with_messages_keeps_its_kind_of_queues(tmp_path: Path) -> None:
    async with lite(tmp_path) as one, one.one.live.client() as wire:
        for name, kind in (("normal", v2.NORMAL), (PARENT, v2.LITE)):
            other = v2.LITE if kind == v2.NORMAL else v2.NORMAL
            await create_topic(wire, name, message_type=kind)
            assert (await create_topic(wire, name, message_type=other)).altered
            assert (await create_topic(wire, name, message_type=kind)).altered
        await one.send("a", b"1")
        await one.one.sent("normal", b"1")
        for name, kind in (("normal", v2.LITE), (PARENT, v2.NORMAL)):
            refused = await create_topic(wire, name, message_type=kind)
            assert (refused.code, "holds 1 messages" in refused.message) == (v2.FORBIDDEN, True)


async def test_a_topic_for_which_messages_wait_keeps_its_kind_of_queues(tmp_path: Path) -> None:
    async with desk(tmp_path) as one, one.live.client() as wire:
        one.topic("t", message_type=MIXED)
        one.node.sender.append(one.node.delayed.record(Message("t", 0, b"level"), {"DELAY": "18"}))
        await prepared(one, "t", "half")
        await send(one, b"timer", one.node.runtime.clock.wall_ms() + 60 * MINUTE_MS, "M", "t")
        refused = await create_topic(wire, "t", message_type=v2.LITE)
        assert (refused.code, "holds 3 messages" in refused.message) == (v2.FORBIDDEN, True)
