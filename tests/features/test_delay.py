"""Delayed messages: delivery times, limits, recall, the 18 levels; priorities.

Rows of the feature table from "Delay levels" to "Priority [5.4+]"
(docs/formats/broker-semantics.md, section 6; docs/formats/grpc-api.md, sections 5.5 and 5.11).
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.proto import v2
from cometmq.tests.broker.live import running, settings
from cometmq.tests.features.client import MIXED, Client
from cometmq.tests.features.house import House
from cometmq.tests.features.records import append

pytestmark = pytest.mark.asyncio(loop_scope="module")

DAY_MS = 86_400_000


async def delayed(client: Client, topic: str, body: str, after_ms: int) -> v2.SendResultEntry:
    """Send a message with a delay."""
    at_ms = await client.now_ms() + after_ms
    return await client.send(topic, body, deliver_ms=at_ms, message_type=v2.DELAY)


@pytest.mark.feature("Timed message")
async def test_a_timed_message_is_not_early_and_wakes_a_waiting_poll(client: Client) -> None:
    topic, group = await client.topic(v2.DELAY), client.name("group")
    at_ms = await client.now_ms() + 120_500
    sent = await client.send(topic, "later", deliver_ms=at_ms, message_type=v2.DELAY, tag="t")
    poll = client.waiting(topic, group, within_s=40)
    await client.advance(60_000)
    await asyncio.sleep(0.2)
    assert not poll.done()
    await client.advance(60_500)
    got = await poll
    assert await client.now_ms() >= at_ms
    assert got.bodies == [b"later"]
    (system,) = got.systems
    assert (system.message_id, system.tag) == (sent.message_id, "t")
    assert system.message_type == v2.DELAY
    assert system.delivery_timestamp.ToMilliseconds() == at_ms
    assert not got.messages[0].user_properties


@pytest.mark.feature("Timed message")
async def test_timed_messages_are_delivered_in_order_of_their_times(client: Client) -> None:
    topic, group = await client.topic(v2.DELAY), client.name("group")
    for minutes in (3, 1, 2):
        await delayed(client, topic, f"{minutes}", minutes * 60_000)
    for minutes in (1, 2, 3):
        await client.advance(60_000)
        got = await client.one(topic, group)
        assert got.body == b"%d" % minutes
        await client.ack(topic, group, [got])


@pytest.mark.feature("Timed message")
@pytest.mark.pitfall(39)
async def test_a_message_with_a_past_time_is_delivered_at_once(client: Client) -> None:
    topic, group = await client.topic(v2.DELAY), client.name("group")
    await delayed(client, topic, "past", -5_000)
    assert (await client.one(topic, group)).body == b"past"


@pytest.mark.feature("Delay limit")
async def test_a_delay_of_more_than_a_day_is_refused(client: Client) -> None:
    topic = await client.topic(v2.DELAY)
    now_ms = await client.now_ms()
    code = await client.refused(topic, deliver_ms=now_ms + DAY_MS + 60_000, message_type=v2.DELAY)
    assert code == v2.ILLEGAL_DELIVERY_TIME
    await client.send(topic, deliver_ms=now_ms + DAY_MS - 60_000, message_type=v2.DELAY)


@pytest.mark.feature("Delay limit")
async def test_the_timer_wheel_has_its_own_maximum_delay(alone: Callable[..., Any]) -> None:
    async with alone(max_delay_time_mills=0) as (_, client):
        topic = await client.topic(v2.DELAY)
        now_ms = await client.now_ms()
        await client.send(topic, deliver_ms=now_ms + 2 * DAY_MS, message_type=v2.DELAY)
        code = await client.refused(topic, deliver_ms=now_ms + 4 * DAY_MS, message_type=v2.DELAY)
        assert code == v2.ILLEGAL_DELIVERY_TIME


@pytest.mark.feature("Delay levels")
async def test_records_with_a_delay_level_wait_for_the_levels_delay(
    client: Client, house: House
) -> None:
    """Clients of the protocol use times only; levels exist in Apache's directories and tools."""
    topic, group = await client.topic(MIXED), client.name("group")
    waits = {1: 1_000, 2: 5_000, 3: 10_000, 18: 7_200_000, 99: 7_200_000}
    _append_levels(house, topic, list(waits))
    for level, wait_ms in {1: 1_000, 2: 4_000, 3: 5_000}.items():
        await client.advance(wait_ms)
        got = await client.one(topic, group, batch=1)  # a slow machine may have the next, too
        assert got.body == b"%d" % level
        await client.ack(topic, group, [got])
    await client.advance(7_100_000)
    await client.quiet(topic, group)
    await client.advance(100_000)
    late = await client.take(topic, group, 2)
    assert {message.body for message in late} == {b"18", b"99"}


def _append_levels(house: House, topic: str, levels: list[int]) -> None:
    for level in levels:
        queue_id = min(level, 18) - 1
        properties = {"DELAY": str(min(level, 18)), "REAL_TOPIC": topic, "REAL_QID": "0"}
        append(house.live.node, "SCHEDULE_TOPIC_XXXX", b"%d" % level, properties, queue_id=queue_id)


@pytest.mark.feature("Recall")
async def test_a_recalled_message_is_not_delivered(client: Client) -> None:
    topic, group = await client.topic(v2.DELAY), client.name("group")
    gone = await delayed(client, topic, "gone", 60_000)
    await delayed(client, topic, "stays", 60_000)
    words = base64.urlsafe_b64decode(gone.recall_handle).decode().split(" ")
    assert words[:3] == ["v1", topic, "broker-a"] and words[4] == gone.message_id
    answer = await client.recall(topic, gone.recall_handle)
    assert (answer.status.code, answer.message_id) == (v2.OK, gone.message_id)
    await client.advance(62_000)
    assert (await client.one(topic, group)).body == b"stays"
    await client.quiet(topic, group)


@pytest.mark.feature("Recall")
async def test_invalid_recalls_are_refused(client: Client) -> None:
    topic, other = await client.topic(v2.DELAY), await client.topic(v2.DELAY, what="other")
    plain = await client.topic(what="plain")
    assert not (await client.send(plain)).recall_handle, "only delayed messages have one"
    sent = await delayed(client, topic, "a", 5_000)
    assert (await client.recall(topic, "!garbage!")).status.code == v2.BAD_REQUEST
    assert (await client.recall(other, sent.recall_handle)).status.code == v2.BAD_REQUEST
    wrong_type = await client.recall(plain, sent.recall_handle)
    assert wrong_type.status.code == v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    await client.advance(10_000)
    await client.one(topic, client.name("group"))
    late = await client.recall(topic, sent.recall_handle)
    assert late.status.code == v2.NOT_FOUND


@pytest.mark.feature("Priority [5.4+]")
async def test_higher_priorities_are_received_first(client: Client) -> None:
    topic, group = await client.topic(v2.PRIORITY, queues=4), client.name("group")
    for body, priority in (("low", 0), ("mid", 1), ("high", 3), ("top", 9), ("mid2", 1)):
        await client.send(topic, body, priority=priority, message_type=v2.PRIORITY)
    got = [await client.one(topic, group, batch=1) for _ in range(5)]
    bodies = [message.body.decode() for message in got]
    # There are as many priorities as queues: higher values count as the highest.
    assert bodies == ["high", "top", "mid", "mid2", "low"]
    assert [message.system_properties.priority for message in got] == [3, 9, 1, 1, 0]
    assert {message.system_properties.message_type for message in got} == {v2.PRIORITY}
    code = await client.refused(topic, priority=-1, message_type=v2.PRIORITY)
    assert code == v2.BAD_REQUEST


@pytest.mark.feature("Timed message")
async def test_a_restart_at_the_due_time_loses_no_message(tmp_path: Path) -> None:
    """test_timer_kill covers kill -9; this one a clean stop, over the wire."""
    topic = ""
    for start in (1, 2):
        async with running(settings(tmp_path)) as live, Client(live.bound.client, "due") as client:
            if start == 1:
                topic = await client.topic(v2.DELAY)
                for n in range(20):
                    await delayed(client, topic, f"{n}", 1_500)
            else:
                await client.advance(3_000)
                got = await client.take(topic, "group", 20)
                assert sorted(int(message.body) for message in got) == list(range(20))
