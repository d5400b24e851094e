"""FIFO groups: order per queue, locks, attempt ids, and queues of message groups.

Rows of the feature table from "FIFO block" to "Message group routing"
(docs/formats/broker-semantics.md, sections 1.9 and 7; docs/formats/grpc-api.md, section 7.4).
"""

from __future__ import annotations

import asyncio

import pytest

from cometmq.proto import v2
from cometmq.tests.features.client import Client

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def ordered(client: Client, *bodies: str, queues: int = 1) -> tuple[str, str]:
    """Create a FIFO topic with messages of one message group, and a FIFO group."""
    topic = await client.topic(v2.FIFO, queues)
    group = await client.group(orderly=True)
    for body in bodies:
        await client.send(topic, body, message_group="order-1", message_type=v2.FIFO)
    return topic, group


@pytest.mark.feature("FIFO block")
async def test_a_queue_is_locked_until_the_whole_batch_is_acknowledged(client: Client) -> None:
    topic, group = await ordered(client, "a", "b", "c")
    # A message of another message group in the same queue waits as well: the lock is per queue.
    await client.send(topic, "d", message_group="order-2", message_type=v2.FIFO)
    first = await client.take(topic, group, 2, batch=2)
    assert [message.body for message in first] == [b"a", b"b"]
    await client.quiet(topic, group)
    await client.ack(topic, group, first[1:])
    await client.quiet(topic, group)
    poll = client.waiting(topic, group)
    await asyncio.sleep(0.05)
    await client.ack(topic, group, first[:1])
    assert (await poll).bodies == [b"c", b"d"], "the ack that opens the queue wakes the waiter"


@pytest.mark.feature("FIFO redelivery")
async def test_redelivery_starts_at_the_first_unacknowledged_message(
    client: Client,
) -> None:
    topic, group = await ordered(client, "a", "b", "c", "d")
    first = await client.take(topic, group, 4, batch=4, invisible_s=10)
    await client.ack(topic, group, [first[0], first[2]])
    await client.advance(10_000)
    again = await client.receive(topic, group, invisible_s=10)
    # The acknowledged prefix is not redelivered; everything after it is, acknowledged or not.
    assert again.bodies == [b"b", b"c", b"d"]
    assert again.attempts == [2, 2, 2]
    assert {system.queue_id for system in again.systems} == {0}
    offsets = [system.queue_offset for system in again.systems]
    assert offsets == [1, 2, 3], "in their own queue, not in a retry topic"
    await client.ack(topic, group, again.messages)
    await client.advance(10_000)
    await client.quiet(topic, group)
    assert not await client.stored(f"%RETRY%{group}_{topic}")


@pytest.mark.feature("FIFO same attempt_id")
@pytest.mark.pitfall(56)
async def test_a_retried_receive_gets_its_batch_again(client: Client) -> None:
    topic, group = await ordered(client, "a", "b")
    await client.take(topic, group, 2, attempt_id="one")
    again = await client.receive(topic, group, attempt_id="one")
    assert (again.bodies, again.attempts) == ([b"a", b"b"], [1, 1])
    await client.quiet(topic, group, attempt_id="two")
    await client.quiet(topic, group)
    await client.ack(topic, group, again.messages)


@pytest.mark.feature("FIFO stale ack")
async def test_a_handle_of_an_older_delivery_acknowledges_nothing(client: Client) -> None:
    topic, group = await ordered(client, "a")
    old = await client.one(topic, group, attempt_id="one")
    new = await client.one(topic, group, attempt_id="one")
    answer = await client.acks(topic, group, old.system_properties.receipt_handle)
    assert answer.status.code == v2.INVALID_RECEIPT_HANDLE
    await client.send(topic, "b", message_group="order-1", message_type=v2.FIFO)
    await client.quiet(topic, group)
    await client.ack(topic, group, [new])
    assert (await client.one(topic, group)).body == b"b"


@pytest.mark.feature("FIFO redelivery")
async def test_a_change_affects_one_messages_invisible_time(client: Client) -> None:
    topic, group = await ordered(client, "a", "b")
    first = await client.take(topic, group, 2, batch=2, invisible_s=30)
    handle = first[0].system_properties.receipt_handle
    changed = await client.change(topic, group, handle, 60_000)
    assert changed.status.code == v2.OK and changed.receipt_handle
    await client.advance(31_000)
    await client.quiet(topic, group)
    await client.advance(30_000)
    assert (await client.receive(topic, group)).bodies == [b"a", b"b"]


@pytest.mark.feature("Max attempts")
async def test_a_queue_continues_after_a_dead_lettered_message(client: Client) -> None:
    topic = await client.topic(v2.FIFO)
    group = await client.group(orderly=True, max_attempts=2)
    for body in ("poison", "next"):
        await client.send(topic, body, message_group="k", message_type=v2.FIFO)
    for attempt in (1, 2):
        got = await client.one(topic, group, batch=1, invisible_s=10)
        assert (got.body, got.system_properties.delivery_attempt) == (b"poison", attempt)
        await client.advance(10_000)
    assert (await client.one(topic, group, batch=1)).body == b"next"
    assert (await client.one(f"%DLQ%{group}", client.name("undertaker"))).body == b"poison"


@pytest.mark.feature("Non-FIFO group on FIFO topic")
async def test_a_plain_group_reads_an_ordered_topic_concurrently(client: Client) -> None:
    topic, _ = await ordered(client, "a", "b", "c")
    plain = client.name("plain")
    first = await client.one(topic, plain, batch=1)
    assert [message.body for message in await client.take(topic, plain, 2)] == [b"b", b"c"]
    await client.ack(topic, plain, [first])


@pytest.mark.feature("Message group routing")
@pytest.mark.pitfall(36, 37)
async def test_the_message_group_selects_the_queue(client: Client) -> None:
    topic = await client.topic(v2.FIFO, queues=4)
    expected = {"a": 0, "order-1": 3, "Aa": 1, "x-42": 2, "用户": 3}
    for name in expected:
        for queue_id in (0, 3):  # clients differ in the hash; their queue id is ignored
            await client.send(
                topic, name, message_group=name, message_type=v2.FIFO, queue_id=queue_id
            )
    got = await client.take(topic, client.name("plain"), 10)
    found = {m.body.decode(): m.system_properties.queue_id for m in got}
    assert found == expected
    assert {m.body.decode(): m.system_properties.message_group for m in got} == {
        name: name for name in expected
    }


@pytest.mark.feature("Message group routing")
async def test_a_message_group_of_64_bytes_is_refused(client: Client) -> None:
    topic = await client.topic(v2.FIFO)
    await client.send(topic, message_group="x" * 63, message_type=v2.FIFO)
    for name in ("x" * 64, "ü" * 32, " ", "a\nb"):
        code = await client.refused(topic, message_group=name, message_type=v2.FIFO)
        assert code == v2.ILLEGAL_MESSAGE_GROUP


@pytest.mark.pitfall(36)
async def test_the_queue_id_of_a_send_is_ignored(client: Client) -> None:
    topic = await client.topic(queues=4)
    for n in range(8):
        await client.send(topic, f"{n}")  # the Python and Go clients always send queue 0
    described = await client.described(topic)
    assert [queue.max_offset for queue in described.queues] == [2, 2, 2, 2]
