"""Redelivery: expiries, push consumers, FIFO queues, dead letters."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cometmq.proto import v2
from cometmq.tests.broker.desk import Desk, StoppedClock, desk, message, parse_received


async def copied(one: Desk, topic: str, messages: int) -> None:
    """Wait until `count` copies are readable."""
    while one.node.store.max_offset(topic, 0) < messages:  # noqa: ASYNC110 - a turn a look
        await asyncio.sleep(0)


async def test_a_message_is_redelivered_when_its_time_ends_and_not_before(tmp_path: Path) -> None:
    async with desk(tmp_path, clock=StoppedClock()) as one:
        one.topic("t")
        await one.sent("t", b"a")
        first = await one.receive("t", "g", invisible_ms=10_000)
        assert first.attempts == [1]
        poll = one.start_receive("t", "g")
        one.advance(9_000)
        await asyncio.sleep(0.05)
        assert not poll.done()
        one.advance(1_000)
        again = parse_received(await poll)
        assert (again.bodies, again.attempts) == ([b"a"], [2])
        assert again.handles != first.handles
        assert one.node.runtime.counters.received["t", "g", True].messages == 1


async def test_an_expiry_wakes_a_waiting_poll(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a")
        got = await one.receive("t", "g")
        before_ms = one.node.runtime.clock.wall_ms()
        assert one.change("t", "g", got.handles[0], 60).status.code == v2.OK
        assert (await one.receive("t", "g")).bodies == [b"a"]
        assert one.node.runtime.clock.wall_ms() - before_ms >= 60


@pytest.mark.parametrize(
    ("percent", "bodies"), [(0, [b"b", b"c", b"a"]), (100, [b"a", b"b", b"c"])]
)
async def test_retries_come_before_or_after_new_messages(
    tmp_path: Path, percent: int, bodies: list[bytes]
) -> None:
    async with desk(tmp_path, pop_from_retry_probability=percent) as one:
        one.topic("t")
        await one.sent("t", b"a", b"b", b"c")
        assert (await one.receive("t", "g", batch=1)).bodies == [b"a"]
        one.advance(30_000)
        await copied(one, "%RETRY%g_t", 1)
        assert (await one.receive("t", "g")).bodies == bodies


async def test_a_push_consumer_keeps_its_messages_while_it_is_alive(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a")
        got = await one.receive("t", "g", auto_renew=True)
        assert got.messages[0].system_properties.invisible_duration.seconds == 60
        for _ in range(10):
            one.advance(61_000)
            await one.nothing("t", "g")
        # Its original handle stays valid.
        assert one.ack("t", "g", got.handles[0]).status.code == v2.OK
        await one.sent("t", b"b")
        await one.receive("t", "g", auto_renew=True)
        one.node.receiving.client_gone("c@1")
        one.advance(1_000)
        assert (await one.receive("t", "g")).bodies == [b"b"]


async def test_a_fifo_group_locks_its_queues(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", queues=2, message_type=v2.FIFO)
        one.group("g", orderly=True)
        await one.sent("t", b"a", b"b", b"c", message_group="order-1")
        first = await one.receive("t", "g", batch=2)
        assert first.bodies == [b"a", b"b"]
        poll = one.start_receive("t", "g")
        one.ack("t", "g", first.handles[1])
        await asyncio.sleep(0.02)
        assert not poll.done()
        one.ack("t", "g", first.handles[0])
        # The unlocked queue wakes the waiting poll.
        assert parse_received(await poll).bodies == [b"c"]


async def test_fifo_redelivery_repeats_the_batch_and_the_attempt_id_at_once(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", message_type=v2.FIFO)
        one.group("g", orderly=True)
        await one.sent("t", b"a", b"b", b"c", message_group="order-1")
        first = await one.receive("t", "g", batch=3, attempt_id="x")
        again = await one.receive("t", "g", batch=3, attempt_id="x")
        assert (again.bodies, again.attempts) == ([b"a", b"b", b"c"], [1, 1, 1])
        # The first response's handles are no longer valid: the messages come again.
        assert one.ack("t", "g", first.handles[0]).status.code == v2.INVALID_RECEIPT_HANDLE
        assert one.node.offsets.get("t", "g", 0) == 0
        one.ack("t", "g", *again.handles[1:])
        one.advance(30_000)
        third = await one.receive("t", "g", batch=3, attempt_id="y")
        assert (third.bodies, third.attempts) == ([b"a", b"b", b"c"], [2, 2, 2])
        assert one.ack("t", "g", first.handles[0]).entries[0].status.code == (
            v2.INVALID_RECEIPT_HANDLE
        )


@pytest.mark.parametrize("orderly", [False, True])
async def test_messages_without_attempts_left_go_to_the_dead_letters(
    tmp_path: Path, orderly: bool
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", message_type=v2.FIFO)
        one.group("g", orderly=orderly, max_attempts=2)
        answer = await one.send(
            message("t", b"poison", "ID-1", message_group="k", tag="x", properties={"a": "1"})
        )
        assert answer.status.code == v2.OK
        await one.dispatched()
        for attempt in (1, 2):
            got = await one.receive("t", "g", invisible_ms=10_000)
            assert got.attempts == [attempt]
            one.advance(10_000)
        await one.nothing("t", "g")
        await one.dispatched()
        dead = (await one.receive("%DLQ%g", "other")).messages[0]
        assert dead.body == b"poison"
        assert dict(dead.user_properties) == {"a": "1", "__SHARDINGKEY": "k"}
        system = dead.system_properties
        assert (system.message_id, system.tag) == ("ID-1", "x")
        assert system.dead_letter_queue.topic == "t"
        assert system.dead_letter_queue.message_id == "ID-1"
        assert one.node.offsets.get("t", "g", 0) == 1


async def test_a_group_that_becomes_ordered_continues_at_its_offset(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a", b"b", b"c")
        got = await one.receive("t", "g")
        one.ack("t", "g", got.handles[0])
        one.group("g", orderly=True)
        again = await one.receive("t", "g", batch=1)
        assert again.bodies == [b"b"]
        assert again.handles[0].split(" ")[3] == "999"
        await one.nothing("t", "g")


async def test_a_restart_keeps_messages_in_flight_and_their_handles(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a", b"b", b"c")
        got = await one.receive("t", "g")
        one.ack("t", "g", got.handles[0])
        await one.live.server.stop(1.0)
    async with desk(tmp_path) as one:
        assert one.ack("t", "g", got.handles[2]).status.code == v2.OK
        await one.nothing("t", "g")
        assert one.node.pop.in_flight("t", "g", 0) == 1
        poll = one.start_receive("t", "g")
        one.advance(30_000)
        again = parse_received(await poll)
        assert (again.bodies, again.attempts) == ([b"b"], [2])
        late = one.ack("t", "g", got.handles[1])
        assert late.status.code == v2.INVALID_RECEIPT_HANDLE
        assert one.node.offsets.get("t", "g", 0) == 3
        assert one.ack("t", "g", again.handles[0]).status.code == v2.OK


async def test_an_offset_beyond_the_log_hides_no_new_message(tmp_path: Path) -> None:
    """A power loss may remove the end of the log and keep the offsets file."""
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a")
        one.node.offsets.commit("t", "g", 0, 100)
        await one.nothing("t", "g")
        await one.sent("t", b"b")
        assert (await one.receive("t", "g")).bodies == [b"b"]


async def test_a_group_that_becomes_ordered_gets_open_messages_below_its_offset(
    tmp_path: Path,
) -> None:
    """With a journal the consumer offset is ahead of messages in flight; in an ordered group it is
    not.
    """
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a", b"b", b"c")
        got = await one.receive("t", "g")
        one.ack("t", "g", got.handles[0])
        one.advance(5_000)
        async with asyncio.timeout(60):
            while one.node.offsets.get("t", "g", 0) != 3:  # noqa: ASYNC110 - a turn a look
                await asyncio.sleep(0.01)
        one.group("g", orderly=True)
        assert (await one.receive("t", "g")).bodies == [b"b", b"c"]
        one.group("g")
        # Changed back: the lock is gone, and so is the journal's state.
        assert (await one.receive("t", "g")).bodies == [b"b", b"c"]


async def test_a_reset_drops_messages_in_flight_permanently(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a", b"b", b"c")
        await one.receive("t", "g")
        one.node.offsets.commit("t", "g", 0, 2)
        one.node.pop.rewind("t", "g", 0, 2)
        assert one.node.pop.in_flight("t", "g", 0) == 0
        assert (await one.receive("t", "g")).bodies == [b"c"]
        one.advance(30_000)
        await copied(one, "%RETRY%g_t", 1)
        assert (await one.receive("t", "g")).bodies == [b"c"]
        one.node.offsets.commit("%RETRY%g_t", "g", 0, 1)
        one.node.pop.rewind("%RETRY%g_t", "g", 0, 1)
        assert one.node.pop.in_flight("%RETRY%g_t", "g", 0) == 0
        await one.live.server.stop(1.0)
    async with desk(tmp_path) as one:
        one.advance(120_000)
        await one.nothing("t", "g")
