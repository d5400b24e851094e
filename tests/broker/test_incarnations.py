"""A topic is an incarnation: what waits for a deleted one is counted, dropped, and never reaches a
new topic of its name.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.broker.messages.validation import MIXED
from cometmq.broker.names.lite import queue_of
from cometmq.front.clock import Clock
from cometmq.proto import paths, v1, v2
from cometmq.store.format.record import Message
from cometmq.tests.broker.desk import Desk, desk, message
from cometmq.tests.broker.lite_desk import ADD, PARENT, lite
from cometmq.tests.broker.live import until
from cometmq.tests.broker.test_admin_groups import delete as delete_group
from cometmq.tests.broker.transacting import end_transaction, prepared

TOPIC, GROUP, RETRY = "T", "g", "%RETRY%g"
HOUR_MS = 3_600_000


async def delayed(one: Desk, body: bytes) -> None:
    """Send a message that is due in an hour."""
    sent = message(TOPIC, body, body.decode(), message_type=v2.DELAY)
    due_ms = one.node.runtime.clock.wall_ms() + HOUR_MS
    sent.system_properties.delivery_timestamp.FromMilliseconds(due_ms)
    assert (await one.send(sent)).status.code == v2.OK


async def with_level(one: Desk, body: bytes, topic: str = TOPIC, **properties: str) -> None:
    """Store a message as a classic client's of the level of half an hour."""
    wanted = {"UNIQ_KEY": body.decode(), "DELAY": "16", **properties}
    one.node.sender.append(one.node.delayed.record(Message(topic, 0, body), wanted))
    await one.dispatched()


async def delete(
    one: Desk, *, dry_run: bool = False, accept_loss: bool = False
) -> v1.DeleteTopicResponse:
    """Call DeleteTopic."""
    async with one.live.client("admin") as wire:
        request = v1.DeleteTopicRequest(name=TOPIC, dry_run=dry_run, accept_loss=accept_loss)
        answer = await wire.call(paths.DELETE_TOPIC, request, v1.DeleteTopicResponse)
        assert isinstance(answer, v1.DeleteTopicResponse)
        return answer


@pytest.mark.parametrize("restarts", [False, True])
async def test_what_waits_for_a_deleted_topic_never_reaches_its_successor(
    tmp_path: Path, restarts: bool
) -> None:
    clock = Clock()
    async with desk(tmp_path, clock=clock) as one:
        for name in (TOPIC, RETRY):
            one.topic(name, message_type=MIXED)
        one.group(GROUP)
        await delayed(one, b"old timer")
        await with_level(one, b"old level")
        await with_level(one, b"old retry", RETRY, RETRY_TOPIC=TOPIC)
        (old,) = await prepared(one, TOPIC, "H")
        assert (await delete(one, dry_run=True)).messages == 4
        assert (await delete(one)).code == v2.FORBIDDEN
        assert (await delete(one, accept_loss=True)).code == v2.OK
        one.topic(TOPIC, message_type=MIXED)
        assert (await delete(one, dry_run=True)).in_flight == 0
        await delayed(one, b"new timer")
        await with_level(one, b"new level")
        (new,) = await prepared(one, TOPIC, "I")
        if not restarts:
            await _only_new_ones_arrive(one, old, new)
    if restarts:
        async with desk(tmp_path, clock=clock) as one:
            await _only_new_ones_arrive(one, old, new)


async def _only_new_ones_arrive(one: Desk, old: str, new: str) -> None:
    assert await end_transaction(one, TOPIC, old) == v2.INVALID_TRANSACTION_ID
    assert await end_transaction(one, TOPIC, new) == v2.OK
    one.advance(HOUR_MS)
    node = one.node
    await until(lambda: node.levels.delivered >= 1 and node.timers.stats.dequeued_by_topic)
    await until(lambda: not node.timers.enqueue_lag and not node.timers.dequeue_lag)
    await until(lambda: node.timers.stats.dequeued_by_topic.get(TOPIC, 0) >= 2)
    await one.dispatched()
    got = await one.receive(TOPIC, GROUP)
    assert sorted(got.bodies) == sorted([b"new timer", b"new level", b"half"])
    assert node.timers.stats.without_topic == 1
    assert node.store.max_offset(RETRY, 0) == 0


async def test_an_open_transaction_of_a_deleted_topic_ends_at_its_check(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic(TOPIC, message_type=v2.TRANSACTION)
        await prepared(one, TOPIC, "H")
        one.node.meta_log.delete_topic(TOPIC)
        one.topic(TOPIC, message_type=v2.TRANSACTION)
        transactions = one.node.transactions
        await until(lambda: transactions.table.waiting().get(TOPIC) == 1)
        one.advance(HOUR_MS)
        transactions.clock_moved()
        await until(lambda: not transactions.table.waiting().get(TOPIC))


async def test_lite_topics_of_a_deleted_parent_end(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        await one.send("a", b"old")
        service = one.one.node.lite
        service._sweeping = iter(())  # a sweep is under way
        one.one.node.meta_log.delete_topic(PARENT)
        one.parent()
        service._sweeping = None
        service._sweep()
        assert queue_of(PARENT, "a") not in one.queues
        assert one.sync(ADD, "a") == v2.OK
        await one.send("a", b"new")
        assert (await one.receive()).bodies == [b"new"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_messages_in_flight_of_a_deleted_group_do_not_reach_its_successor(
    tmp_path: Path, restarts: bool
) -> None:
    clock = Clock()
    async with desk(tmp_path, clock=clock) as one, one.live.client() as wire:
        one.topic(TOPIC)
        one.group(GROUP)
        await one.sent(TOPIC, b"1", b"2")
        assert (await one.receive(TOPIC, GROUP, invisible_ms=30_000)).bodies == [b"1", b"2"]
        one.advance(2_000)
        await until(lambda: one.node.offsets.get(TOPIC, GROUP, 0) == 2)  # it is in the log
        assert (await delete_group(wire, GROUP, force=True)).code == v2.OK
        one.group(GROUP)
        if not restarts:
            await _consumed_once(one)
    if restarts:
        async with desk(tmp_path, clock=clock) as one:
            await _consumed_once(one)


async def _consumed_once(one: Desk) -> None:
    got = await one.receive(TOPIC, GROUP, invisible_ms=3 * HOUR_MS)
    assert (got.bodies, got.attempts) == ([b"1", b"2"], [1, 1])
    one.ack(TOPIC, GROUP, *got.handles)
    one.advance(HOUR_MS)
    await until(lambda: not one.node.timers.dequeue_lag)
    await one.nothing(TOPIC, GROUP)
    assert "%RETRY%g_T" not in one.node.metadata.topics
