"""Settings of topics and groups that change while messages wait: none is lost, and none waits where
the group does not look. The changes that are refused are tested in `test_admin_topics.py`,
`test_admin_groups.py`, `test_lite_ends.py` and `test_classic_pop.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.messages.validation import MIXED
from cometmq.proto import paths, v1, v2
from cometmq.tests.broker.desk import Desk, desk, message
from cometmq.tests.broker.lite_desk import ADD, lite
from cometmq.tests.broker.live import until
from cometmq.tests.broker.transacting import end_transaction

TOPIC, GROUP, RETRY = "T", "g", "%RETRY%g_T"
SECOND = 1000

Change = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def altering(
    root: Path, *, queues: int = 1, orderly: bool = False
) -> AsyncIterator[tuple[Desk, Change, Change]]:
    """Yield a broker with a topic and a group, and what alters them."""
    async with desk(root) as one, one.live.client("admin") as wire:
        one.topic(TOPIC, queues, message_type=MIXED)
        one.group(GROUP, orderly=orderly)

        async def topic(**fields: Any) -> None:
            request = v1.CreateTopicRequest(name=TOPIC, must_exist=True, **fields)
            answer = await wire.call(paths.CREATE_TOPIC, request, v1.CreateTopicResponse)
            assert answer.altered, answer

        async def group(**fields: Any) -> None:
            request = v1.CreateGroupRequest(name=GROUP, must_exist=True, **fields)
            answer = await wire.call(paths.CREATE_GROUP, request, v1.CreateGroupResponse)
            assert answer.altered, answer

        yield one, topic, group


async def bodies(one: Desk, number: int, **fields: Any) -> list[bytes]:
    """Receive a number of messages, and acknowledge them."""
    found: list[bytes] = []
    while len(found) < number:
        got = await one.receive(TOPIC, GROUP, one.context(remaining_ms=5_000), **fields)
        assert got.bodies, (got.code, found)
        found += got.bodies
        one.ack(TOPIC, GROUP, *got.handles)
    await one.nothing(TOPIC, GROUP)
    return sorted(found)


async def test_messages_of_new_queues_are_read_from_the_first(tmp_path: Path) -> None:
    async with altering(tmp_path) as (one, topic, _):
        await one.sent(TOPIC, b"0")
        assert await bodies(one, 1) == [b"0"]
        await topic(queues=3)
        sent = [b"%d" % number for number in range(6)]
        await one.sent(TOPIC, *sent)
        assert {q for name, q in one.node.store.queues() if name == TOPIC} == {0, 1, 2}
        assert await bodies(one, 6) == sent


async def test_what_waits_for_a_queue_that_is_no_longer_written_goes_to_another(
    tmp_path: Path,
) -> None:
    async with altering(tmp_path, queues=2) as (one, topic, _):
        ends = []
        for number in range(2):  # one of each for each queue
            await one.sent(TOPIC, b"stays %d" % number)
            timer = message(TOPIC, b"timer %d" % number, f"t{number}", message_type=v2.DELAY)
            due_ms = one.node.runtime.clock.wall_ms() + 60 * SECOND
            timer.system_properties.delivery_timestamp.FromMilliseconds(due_ms)
            assert (await one.send(timer)).status.code == v2.OK
            half = message(TOPIC, b"half %d" % number, f"h{number}", message_type=v2.TRANSACTION)
            ends.append((await one.send(half)).entries[0].transaction_id)
        await one.dispatched()
        before = one.node.store.max_offset(TOPIC, 1)
        await topic(write_queues=1)
        for end in ends:
            assert await end_transaction(one, TOPIC, end) == v2.OK
        one.advance(61 * SECOND)
        found = await bodies(one, 6)
        assert found == sorted(
            b"%s %d" % (k, n) for k in (b"stays", b"timer", b"half") for n in (0, 1)
        )
        assert one.node.store.max_offset(TOPIC, 1) == before


async def test_messages_of_a_topic_that_was_not_readable_are_read_afterwards(
    tmp_path: Path,
) -> None:
    async with altering(tmp_path) as (one, topic, _):
        await one.sent(TOPIC, b"1", b"2")
        assert (await one.receive(TOPIC, GROUP, batch=1, invisible_ms=30_000)).bodies == [b"1"]
        await topic(perm=2)
        assert (await one.receive(TOPIC, GROUP)).code == v2.FORBIDDEN
        one.advance(31 * SECOND)
        await topic(perm=6)
        assert await bodies(one, 2) == [b"1", b"2"]


async def test_a_group_that_is_no_longer_ordered_reads_from_the_first_unacknowledged(
    tmp_path: Path,
) -> None:
    async with altering(tmp_path, orderly=True) as (one, _, group):
        await one.sent(TOPIC, b"1", b"2", b"3")
        got = await one.receive(TOPIC, GROUP, batch=2)
        one.ack(TOPIC, GROUP, got.handles[0])
        await group(orderly=False)
        assert await bodies(one, 2) == [b"2", b"3"]


async def test_a_group_that_becomes_ordered_gets_again_what_is_in_flight(tmp_path: Path) -> None:
    async with altering(tmp_path) as (one, _, group):
        await one.sent(TOPIC, b"1", b"2", b"3")
        got = await one.receive(TOPIC, GROUP, batch=2, invisible_ms=30_000)
        one.ack(TOPIC, GROUP, got.handles[1])
        await group(orderly=True)
        assert {b"1", b"3"} <= set(await bodies(one, 2))


async def test_fewer_attempts_count_at_the_next_delivery(tmp_path: Path) -> None:
    async with altering(tmp_path) as (one, _, group):
        await one.sent(TOPIC, b"1")
        await one.receive(TOPIC, GROUP, invisible_ms=10_000)
        await group(max_attempts=1)
        one.advance(11 * SECOND)
        await until(lambda: one.node.store.max_offset("%DLQ%g", 0) == 1)
        await one.nothing(TOPIC, GROUP)


async def test_messages_of_a_group_that_was_switched_off_stay(tmp_path: Path) -> None:
    async with altering(tmp_path) as (one, _, group):
        await one.sent(TOPIC, b"1", b"2")
        await one.receive(TOPIC, GROUP, batch=1, invisible_ms=10_000)
        await group(consume_enable=False)
        assert (await one.receive(TOPIC, GROUP)).code == v2.INTERNAL_SERVER_ERROR
        one.advance(11 * SECOND)
        await group(consume_enable=True)
        assert await bodies(one, 2) == [b"1", b"2"]


@pytest.mark.parametrize("numbers", [(3,), (3, 1)])
async def test_retries_are_read_whatever_the_number_of_retry_queues(
    tmp_path: Path, numbers: tuple[int, ...]
) -> None:
    async with altering(tmp_path) as (one, _, group):
        await one.sent(TOPIC, b"1", b"2")
        for number in numbers:
            await one.receive(TOPIC, GROUP, batch=1, invisible_ms=10_000)
            await group(retry_queues=number)
            one.advance(11 * SECOND)
            await until(lambda: RETRY in one.node.metadata.topics)
            await one.dispatched()
        assert await bodies(one, 2) == [b"1", b"2"]


async def test_a_lite_group_keeps_its_subscriptions_when_its_limits_change(
    tmp_path: Path,
) -> None:
    async with lite(tmp_path) as one:
        assert one.sync(ADD, "a") == v2.OK
        await one.send("a", b"1")
        for attributes in (
            {"lite__sub__model": "Exclusive"},
            {"lite__sub__client__quota": "1"},
            {"lite__sub__client__max__event__cnt": "1"},
        ):
            one.bind(one.group, **attributes)
        assert (await one.receive()).bodies == [b"1"]
