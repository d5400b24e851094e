"""Lite topics on several nodes: a follower forwards and takes over, groups forward
subscriptions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cometmq.broker.names.lite import queue_of
from cometmq.proto import paths, v2
from cometmq.tests.broker.live import (
    Live,
    create_group,
    create_topic,
    nameserver,
    running,
    settings,
    until,
)
from cometmq.tests.broker.test_replicas import logs_equal, pair
from cometmq.tests.harness.wire import Wire, receive_request

PARENT = "chats"


async def prepare(wire: Wire) -> None:
    """Create a parent topic and a group for its lite topics."""
    made = await create_topic(wire, PARENT, queues=2, message_type=v2.LITE)
    assert made.code == v2.OK, made
    grouped = await create_group(wire, "g", attributes=[f"+lite.bind.topic={PARENT}"])
    assert grouped.code == v2.OK, grouped


async def sync(wire: Wire, *names: str, action: Any = v2.PARTIAL_ADD) -> int:
    """Call SyncLiteSubscription; return the code."""
    request = v2.SyncLiteSubscriptionRequest(
        action=action,
        topic=v2.Resource(name=PARENT),
        group=v2.Resource(name="g"),
        lite_topic_set=names,
    )
    answer = await wire.call(paths.SYNC_LITE_SUBSCRIPTION, request, v2.SyncLiteSubscriptionResponse)
    return int(answer.status.code)


async def send(wire: Wire, lite: str, *bodies: bytes) -> None:
    """Send messages to a lite topic."""
    for body in bodies:
        system = v2.SystemProperties(
            message_id=f"{lite}-{body!r}",
            message_type=v2.LITE,
            body_encoding=v2.IDENTITY,
            lite_topic=lite,
        )
        message = v2.Message(topic=v2.Resource(name=PARENT), system_properties=system, body=body)
        answer = await wire.send([message])
        assert answer.status.code == v2.OK, answer


async def receive(wire: Wire, await_s: float = 5.0, broker: str = "") -> list[Any]:
    """Call ReceiveMessage once."""
    request = receive_request(PARENT, "g", await_s=await_s)
    request.message_queue.broker.name = broker
    return (await wire.receive(request))[1]


def subscribed(live: Live) -> bool:
    return live.node.lite.table.references > 0


async def test_a_follower_forwards_and_serves_after_losing_its_leader(tmp_path: Path) -> None:
    async with pair(tmp_path) as (leader, follower, _), follower.client("c@1") as wire:
        await prepare(wire)
        await until(lambda: follower.node.metadata.group("g"))
        assert await sync(wire, "a") == v2.OK
        assert subscribed(leader) and not subscribed(follower)
        await send(wire, "a", b"1", b"2", b"3")
        got = await receive(wire)
        assert [one.body for one in got] == [b"1", b"2", b"3"]
        assert (await wire.ack(PARENT, "g", got[:1])).status.code == v2.OK
        queue = queue_of(PARENT, "a")
        await until(lambda: logs_equal(leader, follower))
        await until(lambda: follower.node.store.max_offset(queue, 0) == 3)
        await until(lambda: follower.node.offsets.get(queue, "g", 0) == 1)
        await leader.server.stop(0)
        await until(lambda: not follower.node.replication.leader_alive)
        # The client's refresh follows within 30 s.
        assert await sync(wire, "a", action=v2.COMPLETE_ADD) == v2.OK
        # The messages in flight on the leader are locked here too, until the leader's lock would
        # end.
        assert await receive(wire, await_s=0.2) == []
        follower.node.runtime.clock.advance_wall_ms(60_000)
        follower.node.pop.clock_moved()
        again = await receive(wire)
        assert [one.body for one in again] == [b"2", b"3"]
        assert (await wire.ack(PARENT, "g", again)).status.code == v2.OK
        assert follower.node.offsets.get(queue, "g", 0) == 3


async def test_a_reset_on_the_leader_reaches_the_follower(tmp_path: Path) -> None:
    async with pair(tmp_path) as (leader, follower, _), leader.client("c@1") as wire:
        await prepare(wire)
        assert await sync(wire, "a") == v2.OK
        await send(wire, "a", b"1", b"2", b"3")
        queue = queue_of(PARENT, "a")
        await until(lambda: follower.node.store.max_offset(queue, 0) == 3)
        got = await receive(wire)
        assert (await wire.ack(PARENT, "g", got)).status.code == v2.OK
        await until(lambda: follower.node.offsets.get(queue, "g", 0) == 3)
        leader.node.lite._end(queue, leader.node.runtime.clock.wall_ms())
        await send(wire, "a", b"new")
        await until(lambda: follower.node.store.max_offset(queue, 0) == 1)
        await until(lambda: follower.node.offsets.get(queue, "g", 0) == 0)
        (record,) = follower.node.store.get(queue, 0, 0, 10).records
        assert b"new" in record.data
        assert [one.body for one in await receive(wire)] == [b"new"]


async def test_subscriptions_are_forwarded_to_other_groups(tmp_path: Path) -> None:
    async with nameserver() as address:
        one = settings(tmp_path / "a", namesrv_addr=address, broker_name="one")
        two = settings(tmp_path / "b", namesrv_addr=address, broker_name="two")
        async with (
            running(one) as first,
            running(two) as second,
            first.client("c@1") as wire,
            second.client("p@1") as other,
        ):
            await prepare(wire)
            await prepare(other)
            await until(lambda: first.node.cluster.others_with(PARENT))
            await until(lambda: second.node.cluster.others_with(PARENT))
            assert await sync(wire, "a") == v2.OK
            assert subscribed(first)
            await until(lambda: subscribed(second))
            await send(other, "a", b"1")
            got = await receive(wire, broker="two")
            assert [message.body for message in got] == [b"1"]
            assert (await wire.ack(PARENT, "g", got)).status.code == v2.OK
            assert await sync(wire, action=v2.COMPLETE_REMOVE) == v2.OK
            await until(lambda: not subscribed(second))
