"""Lite topics: sending, receiving in order, acknowledgements, redelivery, dead letters, waiting."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cometmq.broker.names.lite import queue_of
from cometmq.proto import v2
from cometmq.tests.broker.desk import StoppedClock, message
from cometmq.tests.broker.lite_desk import ADD, PARENT, lite


async def test_each_subscribed_lite_topic_is_delivered_in_order(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        assert one.sync(ADD, "a", "b") == v2.OK
        await one.send("a", b"a1", b"a2")
        await one.send("other", b"x")
        await one.send("b", b"b1")
        await one.send("a", b"a3")
        got = await one.receive()
        assert sorted(got.bodies) == [b"a1", b"a2", b"a3", b"b1"]
        assert [b for b in got.bodies if b < b"b"] == [b"a1", b"a2", b"a3"]
        first = got.messages[0].system_properties
        assert (first.lite_topic, first.message_type) == ("a", v2.LITE)
        assert first.receipt_handle.split()[3:7] == ["999", "0", "broker-a", "0"]
        assert got.messages[0].topic.name == PARENT
        assert not got.messages[0].user_properties
        await one.nothing()
        assert one.ack(*got.handles).status.code == v2.OK
        assert (one.offset("a"), one.offset("b")) == (3, 1)
        assert not list(one.one.node.lite.receiving.subscriptions())
        await one.nothing()


async def test_a_batch_in_flight_locks_only_its_lite_topic(
    tmp_path: Path,
) -> None:
    async with lite(tmp_path) as one:
        assert one.sync(ADD, "a", "b") == v2.OK
        assert one.sync(ADD, "a", client="c@2") == v2.OK
        await one.send("a", b"a1", b"a2", b"a3")
        got = await one.receive(batch=2)
        assert got.bodies == [b"a1", b"a2"]
        await one.nothing("c@2")
        await one.send("b", b"b1")
        assert (await one.receive()).bodies == [b"b1"]
        # The last acknowledgement releases the lock and wakes waiting polls.
        waits = asyncio.ensure_future(one.receive("c@2"))
        await asyncio.sleep(0.02)
        one.ack(got.handles[0])
        await asyncio.sleep(0.02)
        assert not waits.done()
        one.ack(got.handles[1], lite="a")
        assert (await waits).bodies == [b"a3"]


async def test_a_message_or_a_subscription_wakes_a_waiting_poll(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        waits = asyncio.ensure_future(one.receive())
        await asyncio.sleep(0.02)
        assert one.one.node.pop.waiting == 1
        await one.send("a", b"before")
        assert one.sync(ADD, "a") == v2.OK
        await one.send("a", b"after")
        assert (await waits).bodies == [b"after"]
        again = asyncio.ensure_future(one.receive("c@2"))
        await asyncio.sleep(0.02)
        option = v2.OffsetOption(policy=v2.OffsetOption.MIN)
        assert one.sync(ADD, "a", client="c@2", option=option) == v2.OK
        assert (await again).bodies == [b"before", b"after"]


async def test_unacknowledged_messages_are_redelivered_and_then_dead_lettered(
    tmp_path: Path,
) -> None:
    async with lite(tmp_path, clock=StoppedClock()) as one:
        one.bind(attempts="2")
        assert one.sync(ADD, "a") == v2.OK
        await one.send("a", b"a1", b"a2")
        first = await one.receive(invisible_ms=10_000)
        assert first.attempts == [1, 1]
        one.ack(first.handles[1])  # out of order: redelivered together with the one before
        waits = asyncio.ensure_future(one.receive(invisible_ms=10_000))
        await asyncio.sleep(0)
        one.one.advance(9_000)
        await asyncio.sleep(0.02)
        assert not waits.done()
        one.one.advance(1_000)
        second = await waits
        assert (second.bodies, second.attempts) == ([b"a1", b"a2"], [2, 2])
        assert one.ack(first.handles[0]).status.code == v2.INVALID_RECEIPT_HANDLE
        one.one.advance(10_000)
        await one.nothing()
        await one.one.dispatched()
        assert one.ack(second.handles[1]).status.code == v2.OK, "acknowledged before"
        assert one.ack(second.handles[0]).status.code == v2.INVALID_RECEIPT_HANDLE
        changed = one.one.change(PARENT, "g", second.handles[0], 1_000)
        assert changed.status.code == v2.INVALID_RECEIPT_HANDLE
        one.one.topic("other")
        dead = await one.one.receive("%DLQ%g", "reader")
        assert dead.bodies == [b"a1"]  # the other one was acknowledged
        origin = dead.messages[0].system_properties.dead_letter_queue
        assert (origin.topic, origin.message_id) == (PARENT, "a-0")
        # The copies are not messages of the lite topic.
        assert one.one.node.store.max_offset(queue_of(PARENT, "a"), 0) == 2
        assert one.offset("a") == 2


async def test_the_invisible_time_can_be_changed_and_a_message_suspended(tmp_path: Path) -> None:
    async with lite(tmp_path, clock=StoppedClock()) as one:
        assert one.sync(ADD, "a") == v2.OK
        await one.send("a", b"a1")
        got = await one.receive()
        for suspend, attempts in ((True, [1]), (False, [2])):
            answer = one.one.change(
                PARENT, "g", got.handles[0], 1_000, suspend=suspend, lite_topic="a"
            )
            assert answer.status.code == v2.OK
            await one.nothing()
            one.one.advance(1_000)
            got = await one.receive()
            assert got.attempts == attempts
        bad = one.one.change(PARENT, "g", "no handle", 1_000)
        assert (bad.status.code, bad.receipt_handle) == (v2.INVALID_RECEIPT_HANDLE, "no handle")


async def test_a_consumer_can_move_a_message_to_the_dead_letters(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        assert one.sync(ADD, "a") == v2.OK
        await one.send("a", b"a1", b"a2")
        got = await one.receive(batch=1)
        request = v2.ForwardMessageToDeadLetterQueueRequest(
            receipt_handle=got.handles[0], lite_topic="a", delivery_attempt=3
        )
        request.topic.name, request.group.name = PARENT, "g"
        for _ in range(2):
            answer = one.one.acks.forward_to_dead_letter_queue(request, one.one.context())
            assert isinstance(answer, v2.ForwardMessageToDeadLetterQueueResponse)
            assert answer.status.code == v2.OK
        await one.one.dispatched()
        assert (await one.one.receive("%DLQ%g", "reader")).bodies == [b"a1"]
        assert (await one.receive()).bodies == [b"a2"]


async def test_a_lost_response_is_repeated_for_its_attempt_id(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        assert one.sync(ADD, "a", "b") == v2.OK
        await one.send("a", b"a1")
        await one.send("b", b"b1")
        first = await one.receive(attempt_id="one")
        again = await one.receive(attempt_id="one")
        assert sorted(again.bodies) == sorted(first.bodies) == [b"a1", b"b1"]
        assert again.attempts == [1, 1]
        await one.nothing(attempt_id="two")


async def test_undelivered_messages_are_redelivered_after_a_second(tmp_path: Path) -> None:
    async with lite(tmp_path, clock=StoppedClock()) as one:
        assert one.sync(ADD, "a") == v2.OK
        await one.send("a", b"a1")
        ctx = one.one.context()
        await one.one.receive(PARENT, "g", ctx)
        assert ctx.on_undelivered is not None
        ctx.on_undelivered()
        await one.nothing()
        one.one.advance(1_000)
        assert (await one.receive()).bodies == [b"a1"]


async def test_messages_of_an_active_push_consumer_are_renewed(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        assert one.sync(ADD, "a") == v2.OK
        assert one.sync(ADD, "a", client="c@2") == v2.OK
        await one.send("a", b"a1")
        await one.receive(auto_renew=True)
        one.one.advance(61_000)
        await one.nothing("c@2")
        one.one.node.receiving.client_gone("c@1")
        one.one.advance(1_000)
        got = await one.receive("c@2")
        assert (got.bodies, got.attempts) == ([b"a1"], [2])


async def test_an_expired_lock_costs_nothing_without_polls(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        assert one.sync(ADD, "a") == v2.OK
        await one.send("a", b"a1")
        await one.receive(invisible_ms=10_000)
        one.one.advance(10_000)
        await asyncio.sleep(0)
        (sub,) = one.one.node.lite.receiving.subscriptions()
        calls: list[object] = []
        sub.on_due = calls.append
        await asyncio.sleep(0.05)
        assert not calls
        assert one.ack("no handle").status.code == v2.INVALID_RECEIPT_HANDLE
        assert (await one.receive()).attempts == [2]


async def test_client_termination_ends_polls_and_subscriptions(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        assert one.sync(ADD, "a") == v2.OK
        waits = asyncio.ensure_future(one.receive())
        await asyncio.sleep(0.02)
        one.one.node.receiving.client_gone("c@1")
        assert (await waits).code == v2.MESSAGE_NOT_FOUND
        assert len(one.one.node.lite.table) == 0
        waits = asyncio.ensure_future(one.receive())
        await asyncio.sleep(0.02)
        waits.cancel()
        await asyncio.sleep(0.02)
        assert one.one.node.pop.waiting == 0


async def test_a_filter_drops_messages_of_lite_topics(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        assert one.sync(ADD, "a") == v2.OK
        for tag in ("x", "y"):
            sent = message(PARENT, tag.encode(), tag, tag=tag, lite_topic="a")
            assert (await one.one.send(sent)).status.code == v2.OK
        await one.one.dispatched()
        got = await one.receive(tag="y")
        assert got.bodies == [b"y"]
        one.ack(*got.handles)
        assert one.offset("a") == 2


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a$b", "x" * 65, "ä"])
async def test_invalid_lite_topic_names_are_refused(tmp_path: Path, name: str) -> None:
    async with lite(tmp_path) as one:
        assert one.sync(ADD, "good", name) == v2.ILLEGAL_LITE_TOPIC
        assert len(one.one.node.lite.table) == 0
        if name:
            sent = message(PARENT, b"x", lite_topic=name)
            assert (await one.one.send(sent)).status.code == v2.ILLEGAL_LITE_TOPIC


async def test_lite_messages_need_a_lite_parent_and_it_accepts_no_others(tmp_path: Path) -> None:
    async with lite(tmp_path, max_lite_subscription_count=10) as one:
        one.one.topic("normal")
        one.one.topic("mixed", message_type=-1)
        conflict = v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        for sent in (
            message(PARENT, b"x"),
            message("normal", b"x", lite_topic="a"),
            message("mixed", b"x", lite_topic="a"),
            message(PARENT, b"x", lite_topic="a", message_group="g"),
        ):
            assert (await one.one.send(sent)).status.code == conflict
        sent = message(PARENT, b"x", properties={"INNER_MULTI_DISPATCH": "%LMQ%x"})
        assert (await one.one.send(sent)).status.code == v2.ILLEGAL_MESSAGE_PROPERTY_KEY
        assert one.queues == []


async def test_a_lite_topic_uses_one_queue_and_one_record_per_message(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        await one.send("a", b"1", b"2", b"3")
        store = one.one.node.store
        ends = [store.max_offset(PARENT, queue_id) for queue_id in range(4)]
        assert sorted(ends) == [0, 0, 0, 3]
        own = store.get(PARENT, ends.index(3), 0, 10).records
        light = store.get(queue_of(PARENT, "a"), 0, 0, 10).records
        assert [r.data for r in own] == [r.data for r in light]
        # An ordinary group consumes the parent topic like any other topic.
        assert (await one.one.receive(PARENT, "plain")).bodies == [b"1", b"2", b"3"]
