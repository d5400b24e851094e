"""Receiving and acknowledging: invisible times, redelivery, validity of handles.

Rows of the feature table from "Receive batch limit" to "Too many parked polls"; pitfalls of
receiving (docs/formats/broker-semantics.md, sections 1 and 13; docs/formats/grpc-api.md, sections
5.6 to 5.8 and 12).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.proto import v2
from cometmq.tests.broker.live import until
from cometmq.tests.features.client import Client, Received, patiently
from cometmq.tests.features.house import House

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.feature("Receive batch limit")
async def test_a_batch_has_at_most_32_messages(client: Client) -> None:
    topic = await client.topic()
    await client.send_all(*(client.message(topic, f"{n}") for n in range(40)))
    first = await client.receive(topic, "g-limit", batch=100)
    assert len(first.messages) == 32
    assert len((await client.receive(topic, "g-limit", batch=100)).messages) == 8


@pytest.mark.feature("First pop of a new group, MAX mode")
@pytest.mark.pitfall(55)
async def test_a_new_group_starts_at_the_oldest_message(client: Client) -> None:
    """The reference starts at the newest message of an old topic; docs/compatibility.md has the
    reason.
    """
    topic = await client.topic(queues=2)
    for n in range(6):
        await client.send(topic, f"{n}")
    await client.advance(3_600_000)
    got = await client.take(topic, client.name("group"), 6)
    assert sorted(message.body for message in got) == [b"%d" % n for n in range(6)]


@pytest.mark.feature("Invisible", "Redelivery moment (KV engine)", "delivery_attempt")
async def test_a_message_is_invisible_for_its_time_and_redelivered_with_the_next_attempt(
    client: Client,
) -> None:
    topic, group = await client.topic(), client.name("group")
    await client.send(topic, "a")
    handles = []
    for attempt in (1, 2, 3):
        got = await client.one(topic, group, invisible_s=60)
        assert got.system_properties.delivery_attempt == attempt
        handles.append(got.system_properties.receipt_handle)
        poll = client.waiting(topic, group, invisible_s=60)
        await client.advance(30_000)
        await asyncio.sleep(0.1)
        assert not poll.done(), "never early"
        poll.cancel()
        await client.advance(30_000)
    assert len(set(handles)) == 3, "a handle for each delivery"


@pytest.mark.feature("Invisible")
async def test_invisible_times_are_limited(client: Client) -> None:
    topic, group = await client.topic(), client.name("group")
    for seconds in (0, 9.999, 12 * 3600 + 0.001):
        answer = await client.receive(topic, group, invisible_s=seconds)
        assert answer.code == v2.ILLEGAL_INVISIBLE_TIME
    for seconds in (10, 12 * 3600):
        await client.send(topic)
        await client.one(topic, group, invisible_s=seconds)


@pytest.mark.feature("Redelivery moment (legacy engine)")
async def test_an_expiry_wakes_a_waiting_poll_and_not_early(client: Client) -> None:
    """The reference's older engine takes 2 to 4 s, or a whole poll; here the expiry wakes the
    poll.
    """
    topic, group = await client.topic(), client.name("group")
    await client.send(topic, "a")
    got = await client.one(topic, group)
    before_ms = await client.now_ms()
    changed = await client.change(topic, group, got.system_properties.receipt_handle, 300)
    assert changed.status.code == v2.OK
    again = await client.one(topic, group)
    assert await client.now_ms() - before_ms >= 300
    assert (again.body, again.system_properties.delivery_attempt) == (b"a", 2)
    assert again.topic.name == topic, "not the name of the retry topic"
    assert again.system_properties.message_id == got.system_properties.message_id


@pytest.mark.feature("Ack after expiry")
@pytest.mark.pitfall(11)
async def test_a_handle_is_invalid_after_a_redelivery(client: Client) -> None:
    topic, group = await client.topic(), client.name("group")
    await client.send(topic, "a")
    first = await client.one(topic, group, invisible_s=10)
    await client.advance(10_000)
    second = await client.one(topic, group)
    (entry,) = (await client.acks(topic, group, first.system_properties.receipt_handle)).entries
    assert entry.status.code == v2.INVALID_RECEIPT_HANDLE, "push consumers give up only on this"
    assert entry.receipt_handle == first.system_properties.receipt_handle
    await client.ack(topic, group, [second])


@pytest.mark.feature("Double ack in time")
@pytest.mark.pitfall(9, 10)
async def test_an_ack_may_be_repeated(client: Client) -> None:
    topic, group = await client.topic(), client.name("group")
    await client.send(topic, "a")
    got = await client.one(topic, group)
    for _ in range(2):
        answer = await client.acks(topic, group, got.system_properties.receipt_handle)
        assert [entry.status.code for entry in answer.entries] == [v2.OK]
        assert answer.status.code == v2.OK
    empty = await client.acks(topic, group)
    assert empty.status.code not in (0, v2.OK), "an empty answer is no success"


@pytest.mark.feature("Old handle after changeInvisible")
@pytest.mark.pitfall(49, 50)
async def test_old_and_new_handles_acknowledge(client: Client) -> None:
    """In the reference the ack of an old handle has no effect; several clients keep the old one."""
    topic, group = await client.topic(), client.name("group")
    for use in ("old", "new"):
        await client.send(topic, use)
        old = (await client.one(topic, group)).system_properties.receipt_handle
        changed = await client.change(topic, group, old, 400_000)
        assert changed.status.code == v2.OK and changed.receipt_handle not in ("", old)
        await client.advance(35_000)
        await client.quiet(topic, group)
        handle = old if use == "old" else changed.receipt_handle
        assert (await client.acks(topic, group, handle)).status.code == v2.OK
        await client.advance(500_000)
        await client.quiet(topic, group)
    failed = await client.change(topic, group, "no handle at all", 1_000)
    assert failed.status.code == v2.INVALID_RECEIPT_HANDLE
    assert failed.receipt_handle == "no handle at all", "clients overwrite theirs with the response"


@pytest.mark.feature("changeInvisible(0)")
@pytest.mark.pitfall(49)
async def test_a_change_to_zero_makes_the_message_visible_at_once(client: Client) -> None:
    topic, group = await client.topic(), client.name("group")
    await client.send(topic, "a")
    handle = (await client.one(topic, group)).system_properties.receipt_handle
    changed = await client.change(topic, group, handle, 0)
    assert changed.status.code == v2.OK and changed.receipt_handle
    again = await client.one(topic, group)
    assert again.system_properties.delivery_attempt == 2
    for ms in (-1, 43_200_001):
        refused = await client.change(topic, group, again.system_properties.receipt_handle, ms)
        assert refused.status.code == v2.ILLEGAL_INVISIBLE_TIME


@pytest.mark.feature("Empty receive")
@pytest.mark.pitfall(8, 43, 44)
async def test_an_empty_poll_is_held_and_ends_before_its_deadline(client: Client) -> None:
    topic, group = await client.topic(), client.name("group")

    async def held(within_s: float) -> Received:
        poll = client.waiting(topic, group, within_s=within_s)
        await asyncio.sleep(within_s / 4)
        answered = poll.done() and poll.exception() is None
        assert not answered, "an answer at once would make clients ask in a circle"
        return await poll  # and not DEADLINE_EXCEEDED

    answer = await patiently(held)
    assert answer.code == v2.MESSAGE_NOT_FOUND
    assert answer.order == ["status", "delivery_timestamp"]


@pytest.mark.feature("Empty receive")
async def test_an_arrival_wakes_a_waiting_poll(client: Client) -> None:
    topic, group = await client.topic(), client.name("group")
    poll = client.waiting(topic, group)
    await asyncio.sleep(0.05)
    await client.send(topic, "a")
    answer = await poll
    assert answer.bodies == [b"a"]
    assert answer.order == ["status", "message", "delivery_timestamp"]


@pytest.mark.pitfall(44)
async def test_nothing_is_popped_for_a_client_that_left(client: Client) -> None:
    topic, group = await client.topic(), client.name("group")
    poll = client.waiting(topic, group)
    await asyncio.sleep(0.1)
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    await asyncio.sleep(0.1)
    await client.send(topic, "a")
    assert (await client.one(topic, group)).system_properties.delivery_attempt == 1


@pytest.mark.feature("Too many parked polls")
async def test_polls_beyond_the_limit_are_refused(alone: Callable[..., Any]) -> None:
    async with alone(pop_polling_size=2) as (live, client):
        topic = await client.topic()
        polls = [client.waiting(topic, "g", within_s=30) for _ in range(2)]
        await until(lambda: live.node.pop.waiting == 2)
        answer = await client.receive(topic, "g")
        assert answer.code == v2.TOO_MANY_REQUESTS
        assert answer.order == ["status", "delivery_timestamp"]
        for _ in polls:
            await client.send(topic)
        assert sum([len((await poll).messages) for poll in polls]) == 2


@pytest.mark.pitfall(6, 7)
async def test_hundreds_of_waiting_polls_on_one_connection_starve_no_call(
    client: Client, house: House
) -> None:
    topic, group = await client.topic(), client.name("group")
    pop = house.live.node.pop
    before = pop.waiting  # polls of earlier tests that were cancelled have left, or leave soon
    polls = [client.waiting(topic, group, within_s=60) for _ in range(400)]
    await until(lambda: pop.waiting >= before + len(polls))
    for _ in range(20):
        assert await client.heartbeat(v2.PUSH_CONSUMER, group) == v2.OK
    await client.send(topic, "a")
    done, rest = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
    assert [poll.result().bodies for poll in done] == [[b"a"]]
    for poll in rest:
        poll.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


@pytest.mark.pitfall(45, 46, 48)
async def test_a_message_has_every_field_that_clients_require(client: Client) -> None:
    topic, group = await client.topic(), client.name("group")
    sent = await client.send(
        topic, "größe", tag="t", keys=["k1", "k2"], properties={"colour": "blue"}
    )
    got = await client.one(topic, group)
    system = got.system_properties
    assert (got.topic.name, got.body.decode()) == (topic, "größe")
    assert dict(got.user_properties) == {"colour": "blue"}, "exactly the user's"
    assert (system.message_id, system.tag, list(system.keys)) == (
        sent.message_id,
        "t",
        ["k1", "k2"],
    )
    assert system.body_digest.type == v2.MD5
    digest = hashlib.md5(got.body, usedforsecurity=False).hexdigest().upper()
    assert system.body_digest.checksum == digest
    assert (system.body_encoding, system.message_type) == (v2.IDENTITY, v2.NORMAL)
    assert system.born_timestamp.seconds and system.born_host and system.store_timestamp.seconds
    assert system.delivery_attempt == 1 and system.receipt_handle
    assert (system.queue_id, system.queue_offset) == (0, sent.offset)
    assert system.invisible_duration.seconds == 30


@pytest.mark.pitfall(53)
async def test_the_queue_id_of_a_receive_is_only_a_hint(client: Client) -> None:
    topic = await client.topic(queues=4)
    for n in range(8):
        await client.send(topic, f"{n}")
    got = await client.take(topic, client.name("group"), 8, queue=3)
    assert {message.system_properties.queue_id for message in got} == {0, 1, 2, 3}
