"""Access points and transport: every call at either node, pings, unknown calls.

Pitfalls of transport and routes that need two nodes (docs/formats/grpc-api.md, sections 1.4, 9.2
and 12).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from cometmq.proto import paths, v2
from cometmq.tests.broker.live import Live, until
from cometmq.tests.broker.test_replicas import pair
from cometmq.tests.features.client import MIXED, Client, consumer, producer
from cometmq.tests.features.test_lite import parent, session_of, sync
from cometmq.tests.features.test_topics import assigned, route
from cometmq.tests.features.test_transactions import check, half
from cometmq.tests.front.raw_http2 import ACK, GOAWAY, PING, RawConnection, frame

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.pitfall(30, 33, 35)
async def test_every_call_succeeds_at_a_follower(tmp_path: Path) -> None:
    async with (
        pair(tmp_path) as (leader, follower, _),
        Client(follower.bound.client, "follower") as client,
        Client(leader.bound.client, "leader") as direct,
    ):
        topic, group = await client.topic(MIXED), await client.group()
        await until(lambda: follower.node.metadata.topic(topic))
        named = (await route(client, topic)).message_queues[0].broker.endpoints.addresses
        assert {f"{one.host}:{one.port}" for one in named} == {
            leader.bound.client,
            follower.bound.client,
        }
        assert (await assigned(client, topic, group)).status.code == v2.OK
        await client.send(topic, "a")
        got = await client.one(topic, group)
        handle = got.system_properties.receipt_handle
        changed = await client.change(topic, group, handle, 60_000)
        assert changed.status.code == v2.OK
        assert (await client.acks(topic, group, changed.receipt_handle)).status.code == v2.OK
        await client.send(topic, "bad")
        assert await client.to_dead_letters(topic, group, await client.one(topic, group)) == v2.OK
        later_ms = await direct.now_ms() + 60_000
        sent = await client.send(topic, "gone", deliver_ms=later_ms)
        assert (await client.recall(topic, sent.recall_handle)).status.code == v2.OK
        sent = await half(client, topic, "half")
        assert await client.end(topic, sent, v2.COMMIT) == v2.OK
        assert (await client.one(topic, group)).body == b"half"
        session = client.telemetry()
        settled = await session.settle(consumer(v2.PUSH_CONSUMER, group, topic))
        assert settled.status.code == v2.OK
        assert await client.heartbeat(v2.PUSH_CONSUMER, group) == v2.OK
        session.cancel()


def has_stream(live: Live, client_id: str) -> bool:
    """Return whether a client's Telemetry stream has reached this node."""
    client = live.node.clients.get(client_id)
    return client is not None and bool(client.streams)


@pytest.mark.feature("Lite [5.5+]")
@pytest.mark.pitfall(35)
async def test_lite_consumers_can_use_a_follower(tmp_path: Path) -> None:
    async with (
        pair(tmp_path) as (leader, follower, _),
        Client(follower.bound.client, "follower") as client,
        Client(follower.bound.client, "second") as second,
    ):
        client_id = dict(client.wire.metadata)["x-mq-client-id"]
        topic, group = await parent(client, "+lite.sub.model=Exclusive")
        await until(lambda: follower.node.metadata.topic(topic))
        async with (
            session_of(client, topic, group) as session,
            session_of(second, topic, group),
        ):
            assert await sync(client, topic, group, v2.PARTIAL_ADD, ["a"]) == v2.OK
            await client.send(topic, "a1", lite_topic="a", message_type=v2.LITE)
            got = await client.one(topic, group, auto_renew=True)
            assert (got.body, got.system_properties.lite_topic) == (b"a1", "a")
            await client.ack(topic, group, [got])
            await until(lambda: has_stream(leader, client_id))
            assert await sync(second, topic, group, v2.PARTIAL_ADD, ["a"]) == v2.OK
            command = await session.read()
            assert command.notify_unsubscribe_lite_command.lite_topic == "a"


@pytest.mark.feature("Transaction check")
@pytest.mark.pitfall(35)
async def test_a_check_reaches_a_producer_at_a_follower(tmp_path: Path) -> None:
    async with (
        pair(tmp_path) as (leader, follower, _),
        Client(follower.bound.client, "follower") as client,
        Client(leader.bound.client, "leader") as direct,
    ):
        topic, group = await client.topic(v2.TRANSACTION), client.name("group")
        await until(lambda: follower.node.metadata.topic(topic))
        session = client.telemetry()
        await session.settle(producer(topic))
        sent = await half(client, topic)
        command = await check(direct, session)
        assert command.message.system_properties.message_id == sent.message_id
        sent.transaction_id = command.transaction_id
        answer = await client.end(topic, sent, v2.COMMIT, source=v2.SOURCE_SERVER_CHECK)
        assert answer == v2.OK
        assert (await client.one(topic, group)).body == b"half"
        session.cancel()


@pytest.mark.pitfall(34)
async def test_assignments_are_answered_without_the_leader(tmp_path: Path) -> None:
    async with (
        pair(tmp_path) as (leader, follower, _),
        Client(follower.bound.client, "follower") as client,
    ):
        topic = await client.topic()
        group = await client.group()
        await until(lambda: follower.node.metadata.topic(topic))
        await until(lambda: follower.node.metadata.group(group))
        await leader.server.stop(0.2)
        await until(lambda: not follower.node.replication.leader_alive)
        answer = await assigned(client, topic, group)
        assert [one.message_queue.id for one in answer.assignments] == [-1]


@pytest.mark.pitfall(3)
async def test_pings_without_calls_never_end_a_connection(client: Client) -> None:
    """C++ pings every minute and Java every five; gRPC's own servers answer that with GOAWAY."""
    port = int(client.wire.endpoints.rpartition(":")[2])
    connection = await RawConnection.open(port)
    for number in range(8):
        connection.write(frame(PING, 0, 0, number.to_bytes(8, "big")))
        while True:
            got = await asyncio.wait_for(connection.read(), 20)
            assert got is not None and got.kind != GOAWAY, "the connection was ended"
            if got.kind == PING and got.flags & ACK:
                break
        await asyncio.sleep(0.05)
    connection.writer.close()


@pytest.mark.pitfall(8, 12)
async def test_only_unknown_methods_return_a_grpc_error(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await client.call(
            paths.MESSAGING + "NoSuchMethod", v2.HeartbeatRequest(), v2.HeartbeatResponse
        )
    assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert await client.refused("no_such_topic") == v2.TOPIC_NOT_FOUND
