"""Retries and dead letters: attempts, delays, and the dead-letter topic.

Rows of the feature table from "Max attempts" to "Forward to DLQ" (docs/formats/broker-semantics.md,
sections 1.13 and 3).
"""

from __future__ import annotations

import pytest

from cometmq.proto import paths, v1, v2
from cometmq.tests.features.client import Client, consumer

pytestmark = pytest.mark.asyncio(loop_scope="module")

LADDER_S = [1, 5, 10, 30, *(60 * n for n in range(1, 11)), 1200, 1800, 3600, 7200]


async def progress(client: Client, group: str) -> v1.GroupProgress:
    """Describe a group as an operator does."""
    request = v1.DescribeGroupRequest(name=group)
    answer = await client.call(paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse)
    assert answer.code == v2.OK, answer
    found: v1.GroupProgress = answer.progress
    return found


@pytest.mark.feature("Max attempts")
@pytest.mark.pitfall(57)
async def test_the_eighteenth_delivery_is_the_dead_letter(client: Client) -> None:
    topic, group = await client.topic(), client.name("group")
    await client.send(topic, "poison", tag="x", keys=["k"], properties={"a": "1"})
    for attempt in range(1, 18):
        got = await client.one(topic, group, invisible_s=10)
        assert got.system_properties.delivery_attempt == attempt
        if attempt == 2:
            assert (await progress(client, group)).lag == 1, "still to be consumed"
        await client.advance(10_000)
    await client.quiet(topic, group)
    dead = await client.one(f"%DLQ%{group}", client.name("undertaker"))
    system = dead.system_properties
    assert (dead.body, system.tag, list(system.keys)) == (b"poison", "x", ["k"])
    assert dict(dead.user_properties) == {"a": "1"}
    assert system.message_id == got.system_properties.message_id
    assert system.delivery_attempt == 18, "the count goes on; a dead letter is not moved again"
    await client.advance(3_600_000)
    await client.quiet(topic, group)
    after = await progress(client, group)
    assert (after.lag, after.in_flight, after.dead_letters) == (0, 0, 1)


@pytest.mark.feature("Max attempts")
async def test_a_group_can_have_its_own_number_of_attempts(client: Client) -> None:
    topic, group = await client.topic(), await client.group(max_attempts=2)
    await client.send(topic, "a")
    for attempt in (1, 2):
        got = await client.one(topic, group, invisible_s=10)
        assert got.system_properties.delivery_attempt == attempt
        await client.advance(10_000)
    await client.quiet(topic, group)
    assert (await client.one(f"%DLQ%{group}", client.name("undertaker"))).body == b"a"


@pytest.mark.feature("Back-off gRPC push")
async def test_settings_of_push_consumers_contain_the_backoff(client: Client) -> None:
    topic, group = await client.topic(), await client.group(max_attempts=5)
    session = client.telemetry()
    settled = await session.settle(consumer(v2.PUSH_CONSUMER, group, topic))
    backoff = settled.settings.backoff_policy
    assert backoff.max_attempts == 5
    assert [one.seconds for one in backoff.customized_backoff.next] == LADDER_S
    await client.group(retry=v1.GroupRetry(delays_ms=[2_000, 4_000]))
    backoff = (
        await session.settle(consumer(v2.PUSH_CONSUMER, group, topic))
    ).settings.backoff_policy
    assert [one.seconds for one in backoff.customized_backoff.next] == [2, 4]
    exponential = v1.GroupRetry(initial_ms=5_000, max_ms=60_000, multiplier=2)
    other = await client.group(what="other", retry=exponential)
    backoff = (
        await session.settle(consumer(v2.PUSH_CONSUMER, other, topic))
    ).settings.backoff_policy
    # One delay each, because the Python client supports nothing else.
    assert [one.seconds for one in backoff.customized_backoff.next][:5] == [5, 10, 20, 40, 60]
    session.cancel()


@pytest.mark.feature("Back-off gRPC push")
async def test_a_failed_message_is_redelivered_after_the_requested_delay(
    client: Client,
) -> None:
    topic, group = await client.topic(), client.name("group")
    await client.send(topic, "a")
    got = await client.one(topic, group, auto_renew=True)
    handle = got.system_properties.receipt_handle
    assert (await client.change(topic, group, handle, 60_000)).status.code == v2.OK
    await client.advance(30_000)
    await client.quiet(topic, group)
    await client.advance(30_000)
    assert (await client.one(topic, group)).system_properties.delivery_attempt == 2


@pytest.mark.feature("Back-off remoting push")
async def test_the_brokers_backoff_equals_the_delay_levels(client: Client) -> None:
    """Classic clients (remoting) are not supported; the broker uses their delays when it stops
    renewing a message itself: 10 s after the first delivery, which is level 3.
    """
    topic, group = await client.topic(), client.name("group")
    assert await client.heartbeat(v2.PUSH_CONSUMER, group) == v2.OK
    await client.send(topic, "a")
    await client.one(topic, group, auto_renew=True)
    await client.advance(3 * 3_600_000 - 120_000)
    await client.quiet(topic, group)
    for _ in range(200):  # its last renewal ends, then the delay begins
        await client.advance(60_000)
        answer = await client.now(topic, group)
        if answer.code == v2.OK:
            assert answer.attempts == [2]
            return
    raise AssertionError("it was renewed for ever")


@pytest.mark.feature("Forward to DLQ")
@pytest.mark.pitfall(52, 57)
@pytest.mark.parametrize("with_handle", [True, False], ids=["handle", "no-handle"])
async def test_a_message_is_forwarded_to_the_dead_letters(
    client: Client, with_handle: bool
) -> None:
    topic, group = await client.topic(), client.name("group")
    sent = await client.send(topic, "bad", properties={"a": "1"})
    got = await client.one(topic, group)
    more = {} if with_handle else {"handle": ""}  # the C++ client sends none
    assert await client.to_dead_letters(topic, group, got, **more) == v2.OK
    dead = await client.one(f"%DLQ%{group}", client.name("undertaker"))
    assert (dead.body, dict(dead.user_properties)) == (b"bad", {"a": "1"})
    origin = dead.system_properties.dead_letter_queue
    assert (origin.topic, origin.message_id) == (topic, sent.message_id)
    described = await client.described(f"%DLQ%{group}")
    assert (len(described.queues), described.topic.perm) == (1, 6)
    await client.advance(3_600_000)
    await client.quiet(topic, group)


@pytest.mark.pitfall(11)
async def test_forwarding_without_a_valid_handle_returns_invalid_handle(client: Client) -> None:
    topic, group = await client.topic(), client.name("group")
    await client.send(topic, "a")
    got = await client.one(topic, group)
    await client.ack(topic, group, [got])
    for handle in ("", "garbage"):
        code = await client.to_dead_letters(topic, group, got, handle=handle)
        assert code == v2.INVALID_RECEIPT_HANDLE
