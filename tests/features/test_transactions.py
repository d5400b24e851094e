"""Transactions: half messages, their ends, checks over Telemetry, unresolved transactions.

Rows of the feature table from "Transaction half" to "Late commit, not a check reply"
(docs/formats/broker-semantics.md, section 5; docs/formats/grpc-api.md, sections 5.10 and 8.6).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cometmq.proto import v2
from cometmq.tests.features.client import Client, Session, producer

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: A half message is checked 6 to 36 s after it was sent: timeout and interval.
FIRST_CHECK_MS = 36_000
CHECKS = 15


async def half(client: Client, topic: str, body: str = "half", **system: Any) -> v2.SendResultEntry:
    """Send a half message."""
    return await client.send(topic, body, message_type=v2.TRANSACTION, **system)


async def check(client: Client, session: Session, step_ms: int = 5_000, most: int = 20) -> Any:
    """Move the clock until the producer gets a check; return the command."""
    waiting = asyncio.create_task(session.read(60.0))
    for _ in range(most):
        await client.advance(step_ms)
        done, _ = await asyncio.wait([waiting], timeout=0.25)
        if done:
            break
    return (await waiting).recover_orphaned_transaction_command


@pytest.mark.feature("Transaction half")
async def test_a_half_message_is_visible_after_its_commit(client: Client) -> None:
    topic, group = await client.topic(v2.TRANSACTION), client.name("group")
    first = await half(client, topic, "first", tag="t", keys=["k"], properties={"a": "1"})
    assert first.transaction_id and first.message_id
    second = await half(client, topic, "second")
    await client.quiet(topic, group)
    poll = client.waiting(topic, group)
    await asyncio.sleep(0.05)
    assert await client.end(topic, second, v2.COMMIT) == v2.OK
    assert (await poll).bodies == [b"second"], "the commit wakes the waiter"
    assert await client.end(topic, first, v2.COMMIT) == v2.OK
    got = await client.one(topic, group)
    system = got.system_properties
    assert (got.body, system.tag, list(system.keys)) == (b"first", "t", ["k"])
    assert dict(got.user_properties) == {"a": "1", "__transactionId__": first.message_id}
    assert system.message_id == first.message_id
    assert system.queue_offset == 1, "its place in the queue is that of the commit"
    assert system.message_type == v2.TRANSACTION


@pytest.mark.feature("Transaction half")
async def test_a_rolled_back_message_is_never_visible(client: Client) -> None:
    topic, group = await client.topic(v2.TRANSACTION), client.name("group")
    sent = await half(client, topic)
    assert await client.end(topic, sent, v2.ROLLBACK) == v2.OK
    await client.advance(120_000)
    await client.quiet(topic, group)


@pytest.mark.feature("EndTransaction twice / after 30 s without check")
async def test_an_end_may_be_repeated_and_may_come_late(client: Client) -> None:
    """The reference drops outcomes after 30 s and returns an error although the first end
    counted.
    """
    topic, group = await client.topic(v2.TRANSACTION), client.name("group")
    sent = await half(client, topic)
    await client.advance(31_000)
    for _ in range(2):
        assert await client.end(topic, sent, v2.COMMIT) == v2.OK
    assert (await client.one(topic, group)).body == b"half"
    await client.advance(40_000)
    await client.take(topic, group, 1)  # the same message again, since it was not acknowledged
    assert await client.end(topic, sent, v2.ROLLBACK) == v2.INVALID_TRANSACTION_ID, "too late"
    sent.transaction_id = ""
    assert await client.end(topic, sent, v2.COMMIT) == v2.INVALID_TRANSACTION_ID
    sent.transaction_id = "foreign"
    assert await client.end(topic, sent, v2.COMMIT) == v2.INVALID_TRANSACTION_ID


@pytest.mark.feature("Transaction check")
@pytest.mark.pitfall(40)
async def test_the_answer_of_a_check_ends_the_transaction(client: Client) -> None:
    topic, group = await client.topic(v2.TRANSACTION), client.name("group")
    session = client.telemetry()
    # It declares no topic: sending makes it one of the topic's producers.
    await session.settle(producer())
    sent = await half(client, topic, properties={"a": "1"}, tag="t")
    command = await check(client, session)
    message = command.message
    assert command.transaction_id
    assert (message.topic.name, message.body) == (topic, b"half")
    assert dict(message.user_properties) == {"a": "1", "__transactionId__": sent.message_id}
    assert message.system_properties.message_id == sent.message_id
    assert message.system_properties.message_type == v2.TRANSACTION
    assert message.system_properties.body_digest.checksum
    again = await check(client, session, 10_000)
    assert again.message.system_properties.message_id == sent.message_id, "every 30 s"
    await client.quiet(topic, group)
    sent.transaction_id = again.transaction_id
    assert await client.end(topic, sent, v2.COMMIT, source=v2.SOURCE_SERVER_CHECK) == v2.OK
    assert (await client.one(topic, group)).body == b"half"
    session.cancel()


@pytest.mark.feature("Transaction check")
async def test_another_producer_of_the_topic_is_checked_when_the_first_is_gone(
    client: Client,
) -> None:
    topic, group = await client.topic(v2.TRANSACTION), client.name("group")
    async with Client(client.wire.endpoints, "gone") as gone:
        session = gone.telemetry()
        await session.settle(producer(topic))
        sent = await half(gone, topic)
        session.cancel()
    session = client.telemetry()
    await session.settle(producer(topic))
    command = await check(client, session)
    assert command.message.system_properties.message_id == sent.message_id
    sent.transaction_id = command.transaction_id
    assert await client.end(topic, sent, v2.COMMIT, source=v2.SOURCE_SERVER_CHECK) == v2.OK
    assert (await client.one(topic, group)).body == b"half"
    session.cancel()


@pytest.mark.feature("Unresolved transaction")
async def test_after_fifteen_checks_a_half_message_is_parked_and_not_delivered(
    client: Client,
) -> None:
    topic, group = await client.topic(v2.TRANSACTION), client.name("group")
    parked = await client.stored("TRANS_CHECK_MAX_TIME_TOPIC")
    session = client.telemetry()
    await session.settle(producer(topic))
    await half(client, topic, "no outcome")
    for _ in range(CHECKS):
        command = await check(client, session, 31_000)
        assert command.message.body == b"no outcome"
    for _ in range(10):
        await client.advance(31_000)
        if await client.stored("TRANS_CHECK_MAX_TIME_TOPIC") > parked:
            break
        await asyncio.sleep(0.1)
    assert await client.stored("TRANS_CHECK_MAX_TIME_TOPIC") == parked + 1
    await client.quiet(topic, group)
    session.cancel()


@pytest.mark.feature("orphaned_transaction_recovery_duration")
async def test_the_first_check_respects_the_producers_recovery_time(
    client: Client,
) -> None:
    topic = await client.topic(v2.TRANSACTION)
    session = client.telemetry()
    await session.settle(producer(topic))
    message = client.message(topic, "patient", message_type=v2.TRANSACTION)
    message.system_properties.orphaned_transaction_recovery_duration.seconds = 300
    assert (await client.send_all(message)).status.code == v2.OK
    waiting = asyncio.create_task(session.read(60.0))
    for _ in range(7):
        await client.advance(40_000)
    await asyncio.sleep(0.3)
    assert not waiting.done(), "280 s are not 300"
    for _ in range(10):
        await client.advance(31_000)
        done, _ = await asyncio.wait([waiting], timeout=0.25)
        if done:
            break
    command = (await waiting).recover_orphaned_transaction_command
    assert command.message.body == b"patient"
    message.system_properties.message_id += "X"
    message.system_properties.orphaned_transaction_recovery_duration.seconds = 3_601
    assert (await client.send_all(message)).status.code == v2.BAD_REQUEST
    session.cancel()


@pytest.mark.feature("Late commit, not a check reply")
async def test_a_commit_after_the_recovery_time_counts(client: Client) -> None:
    """It counts. The reference also returns OK, but drops it and leaves the decision to the
    check.
    """
    topic, group = await client.topic(v2.TRANSACTION), client.name("group")
    session = client.telemetry()
    await session.settle(producer(topic))
    message = client.message(topic, "late", message_type=v2.TRANSACTION)
    message.system_properties.orphaned_transaction_recovery_duration.seconds = 10
    (entry,) = (await client.send_all(message)).entries
    await client.advance(15_000)
    assert await client.end(topic, entry, v2.COMMIT) == v2.OK
    got = await client.one(topic, group)
    assert got.body == b"late"
    await client.ack(topic, group, [got])
    await client.advance(120_000)
    await client.quiet(topic, group)
    session.cancel()
