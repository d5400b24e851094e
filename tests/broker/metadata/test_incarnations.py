"""A topic is an incarnation: what waits for a deleted one is counted, dropped, and never reaches a
new topic of its name.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.messages.validation import MIXED
from cometmq.broker.names.lite import queue_of
from cometmq.front.clock import Clock
from cometmq.proto import paths, v1, v2
from cometmq.remoting.codes import Reply, Request
from cometmq.store.format.record import Message
from cometmq.tests.broker.admin.test_admin_groups import delete as delete_group
from cometmq.tests.broker.classic_wire import port_of
from cometmq.tests.broker.desk import Desk, desk, message, resource
from cometmq.tests.broker.lite_desk import ADD, PARENT, lite
from cometmq.tests.broker.live import until
from cometmq.tests.broker.transacting import end_transaction, prepared
from cometmq.tests.harness.wire import Wire
from cometmq.tests.remoting.client import RemotingClient

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


async def dead(one: Desk, topic: str, group: str) -> None:
    """Make the next message of a topic a dead letter of a group."""
    got = await one.receive(topic, group, batch=1)
    request = v2.ForwardMessageToDeadLetterQueueRequest(
        topic=resource(topic), group=resource(group), receipt_handle=got.handles[0]
    )
    answer: Any = one.acks.forward_to_dead_letter_queue(request, one.context())
    answer = await answer if isinstance(answer, asyncio.Future) else answer
    assert answer.status.code == v2.OK
    await one.dispatched()


async def pulled(one: Desk, topic: str) -> list[bytes]:
    """Return what a tool reads from the start of a topic."""
    request = v2.PullMessageRequest(
        group=resource("TOOLS_CONSUMER"),
        message_queue=v2.MessageQueue(topic=resource(topic), id=0),
        offset=one.node.store.min_offset(topic, 0),
        batch_size=32,
        filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"),
    )
    found = one.pulls.pull_message(request, one.context(remaining_ms=1))
    items = [v2.PullMessageResponse.FromString(item) for item in await resolved(found)]
    return [item.message.body for item in items if item.HasField("message")]


async def resolved(answer: Any) -> Any:
    """Return the result of an answer that may be a future."""
    return await answer if isinstance(answer, asyncio.Future) else answer


@pytest.mark.parametrize("restarts", [False, True])
async def test_dead_letters_of_a_deleted_topic_are_counted_and_never_read_again(
    tmp_path: Path, restarts: bool
) -> None:
    async with desk(tmp_path) as one:
        for name in (TOPIC, "other"):
            one.topic(name)
        for name in (GROUP, "mixed", "watch"):
            one.group(name)
        await one.sent(TOPIC, b"1", b"2", b"3")
        await one.sent("other", b"stays")
        await dead(one, TOPIC, GROUP)
        for name in (TOPIC, "other", TOPIC):
            await dead(one, name, "mixed")
        # A consumer of dead letters has the first one in flight.
        got = await one.receive("%DLQ%mixed", "watch", batch=1, invisible_ms=30_000)
        assert got.bodies == [b"1"]
        assert (await delete(one, dry_run=True)).messages == 3 + 3
        assert (await delete(one)).code == v2.FORBIDDEN
        assert (await delete(one, accept_loss=True)).code == v2.OK
        assert one.node.store.min_offset(f"%DLQ%{GROUP}", 0) == 1  # it has no dead letter
        one.topic(TOPIC)
        assert (await delete(one, dry_run=True)).messages == 0
        await one.sent(TOPIC, b"new")
        await dead(one, TOPIC, GROUP)
        if not restarts:
            await _only_other_letters(one)
    if restarts:
        async with desk(tmp_path) as one:
            await _only_other_letters(one)


async def _only_other_letters(one: Desk) -> None:
    assert await pulled(one, f"%DLQ%{GROUP}") == [b"new"]
    assert await pulled(one, "%DLQ%mixed") == [b"stays"]
    assert (await delete(one, dry_run=True)).messages == 1 + 1
    one.advance(31_000)
    got = await one.receive("%DLQ%mixed", "watch")
    assert got.bodies == [b"stays"]
    one.ack("%DLQ%mixed", "watch", *got.handles)
    one.advance(HOUR_MS)
    await one.nothing("%DLQ%mixed", "watch")


@pytest.mark.parametrize("restarts", [False, True])
async def test_retries_of_classic_clients_never_reach_a_successor_of_their_topic(
    tmp_path: Path, restarts: bool
) -> None:
    clock = Clock()
    async with desk(tmp_path, clock=clock) as one:
        for name in (TOPIC, RETRY):
            one.topic(name)
        one.group(GROUP)
        for body, origin in ((b"stays", "other"), (b"old", TOPIC)):
            await with_level(one, body, RETRY, RETRY_TOPIC=origin)
        one.advance(HOUR_MS)
        await until(lambda: one.node.store.max_offset(RETRY, 0) == 2)
        await with_level(one, b"waits", RETRY, RETRY_TOPIC=TOPIC)
        assert (await delete(one, dry_run=True)).messages == 2
        assert (await delete(one, accept_loss=True)).code == v2.OK
        one.advance(HOUR_MS)  # while there is no topic, the other one arrives
        await until(lambda: one.node.store.max_offset(RETRY, 0) == 3)
        one.topic(TOPIC)
        assert (await delete(one, dry_run=True)).messages == 0
        await with_level(one, b"new", RETRY, RETRY_TOPIC=TOPIC)
        one.advance(HOUR_MS)
        await until(lambda: one.node.store.max_offset(RETRY, 0) == 4)
        if not restarts:
            assert await pulled(one, RETRY) == [b"stays", b"new"]
    if restarts:
        async with desk(tmp_path, clock=clock) as one:
            assert await pulled(one, RETRY) == [b"stays", b"new"]


async def test_messages_that_wait_for_a_deleted_topic_are_not_listed(tmp_path: Path) -> None:
    async with desk(tmp_path) as one, one.live.client() as wire:
        one.topic(TOPIC, message_type=MIXED)
        await delayed(one, b"old timer")
        assert (await delete(one, accept_loss=True)).code == v2.OK
        assert await listed(wire) == []
        one.topic(TOPIC, message_type=MIXED)
        await delayed(one, b"new timer")
        assert await listed(wire) == ["new timer"]


async def listed(wire: Wire) -> list[str]:
    """Return the ids of the delayed messages that wait."""
    request = v1.ListTimersRequest(count=10)
    answer = await wire.call(paths.LIST_TIMERS, request, v1.ListTimersResponse)
    return [one.message_id for one in answer.timers]


async def test_retries_that_a_classic_client_never_read_count_and_go_with_their_group(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as one, one.live.client() as wire:
        for name in (TOPIC, RETRY):
            one.topic(name)
        one.group(GROUP)
        one.node.sender.append(Message(RETRY, 0, b"sent back"))
        await one.dispatched()
        plan = await delete_group(wire, GROUP, dry_run=True)
        assert (plan.messages, list(plan.topics)) == (1, [RETRY])


@pytest.mark.parametrize("restarts_again", [False, True])
async def test_what_an_ordered_group_acknowledged_is_not_acknowledged_for_its_successor(
    tmp_path: Path, restarts_again: bool
) -> None:
    async with desk(tmp_path) as one:
        one.topic(TOPIC)
        one.group(GROUP, orderly=True)
        await one.sent(TOPIC, b"1", b"2", b"3")
        got = await one.receive(TOPIC, GROUP, batch=2)
        one.ack(TOPIC, GROUP, got.handles[1])
    async with desk(tmp_path) as one, one.live.client() as wire:
        assert (await delete_group(wire, GROUP)).code == v2.OK
        one.group(GROUP, orderly=True)
        if not restarts_again:
            assert (await one.receive(TOPIC, GROUP)).bodies == [b"1", b"2", b"3"]
    if restarts_again:
        async with desk(tmp_path) as one:
            assert (await one.receive(TOPIC, GROUP)).bodies == [b"1", b"2", b"3"]


async def test_the_lock_of_a_deleted_lite_group_does_not_reach_its_successor(
    tmp_path: Path,
) -> None:
    async with lite(tmp_path) as one:
        assert one.sync(ADD, "a") == v2.OK
        await one.send("a", b"1")
        assert (await one.receive()).bodies == [b"1"]
        desk_, name = one.one, one.group
        async with desk_.live.client() as wire:
            assert (await delete_group(wire, name, force=True)).code == v2.OK
        one.bind(name)
        assert one.sync(ADD, "a") == v2.OK
        await one.send("a", b"2")
        assert (await one.receive()).bodies == [b"2"]


async def test_queries_by_key_find_no_message_of_a_deleted_topic(tmp_path: Path) -> None:
    """So a dead letter that was sent again to the deleted topic is sent to the new one, too."""
    one_desk = desk(tmp_path, remoting_listen_port=-1)
    async with one_desk as one, one.live.client() as wire, RemotingClient(port_of(one.live)) as old:
        request = v1.QueryMessagesRequest(topic=TOPIC, unique_key="ID-0", count=1)
        fields = {"beginTimestamp": 0, "endTimestamp": 1 << 42, "maxNum": 32}
        asked = {"topic": TOPIC, "key": "ID-0", "_UNIQUE_KEY_QUERY": "true", **fields}
        for number in range(2):
            one.topic(TOPIC)
            found = await wire.call(paths.QUERY_MESSAGES, request, v1.QueryMessagesResponse)
            answer = await old.call(Request.QUERY_MESSAGE, **asked)
            assert (len(found.messages), answer.code) == (0, Reply.QUERY_NOT_FOUND)
            await one.sent(TOPIC, b"%d" % number)
            found = await wire.call(paths.QUERY_MESSAGES, request, v1.QueryMessagesResponse)
            answer = await old.call(Request.QUERY_MESSAGE, **asked)
            assert (len(found.messages), answer.code) == (1, Reply.SUCCESS)
            one.node.meta_log.delete_topic(TOPIC)
