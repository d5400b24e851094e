"""Messages of one protocol, consumed over the other: properties, ids, order and attempts agree.

Each test holds one row of the table of both protocols in docs/features.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cometmq.proto import paths, v2
from cometmq.remoting.codes import Reply, Request
from cometmq.store.format.record import Record
from cometmq.tests.broker.classic_wire import GROUP, classic, heartbeat, message, pulling, records
from cometmq.tests.broker.live import Live, create_group, create_topic
from cometmq.tests.harness.wire import Wire, normal_message, receive_request
from cometmq.tests.remoting.client import RemotingClient

#: As clients of both protocols send them.
CLASSIC = "TAGS\x01t\x02KEYS\x01k1 k2\x02colour\x01blue\x02UNIQ_KEY\x01{id}\x02"
OWN = {"colour": "blue"}
READERS = "grpc-readers"
WAIT_S = 60


@asynccontextmanager
async def both(
    tmp_path: Path, kind: v2.MessageType.ValueType = v2.NORMAL
) -> AsyncIterator[tuple[Live, Wire, RemotingClient]]:
    """Run a broker with the topic `t` of one queue; yield it and a client of each protocol."""
    async with classic(tmp_path) as (live, client), live.client() as wire:
        await create_topic(wire, "t", queues=1, message_type=kind)
        await create_group(wire, READERS)
        yield live, wire, client


def of_grpc(name: str, kind: v2.MessageType.ValueType = v2.NORMAL) -> v2.Message:
    made: v2.Message = normal_message("t", name, name.encode(), tag="t", key="k1")
    made.system_properties.keys.append("k2")
    made.system_properties.message_type = kind
    made.user_properties.update(OWN)
    return made


def of_classic(name: str, more: str = "") -> Any:
    return message(name.encode(), CLASSIC.format(id=name) + more, b="t", e=0)


async def pulled(client: RemotingClient, count: int, topic: str = "t") -> list[Record]:
    """Pull until there are `count` messages."""
    found: list[Record] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            command = pulling(
                **{"topic": topic, "queueId": 0, "queueOffset": len(found)},
                **{"sysFlag": 6, "suspendTimeoutMillis": 15_000},
            )
            found += records((await client.post(command)).body)
    return found


async def received(wire: Wire, count: int, topic: str = "t", group: str = READERS) -> list[Any]:
    """Receive until there are `count` messages."""
    found: list[Any] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += (await wire.receive(receive_request(topic, group, await_s=5), 20))[1]
    return found


def expect_records(found: Sequence[Record], names: Sequence[str]) -> None:
    """Compare what a classic client sees."""
    assert [each.body.decode() for each in found] == list(names)
    for record, name in zip(found, names, strict=True):
        properties = record.properties_dict
        assert (properties["UNIQ_KEY"], properties["TAGS"]) == (name, "t")
        assert (properties["KEYS"], properties["colour"]) == ("k1 k2", "blue")


def expect_messages(found: Sequence[Any], names: Sequence[str], attempt: int = 1) -> None:
    """Compare what a client of the gRPC protocol sees."""
    assert [each.body.decode() for each in found] == list(names)
    for each, name in zip(found, names, strict=True):
        system = each.system_properties
        assert (system.message_id, system.tag, list(system.keys)) == (name, "t", ["k1", "k2"])
        own = dict(each.user_properties)
        # Delivered in RocketMQ, too.
        assert own.pop("__transactionId__", name) == name
        assert own.pop("__SHARDINGKEY", "g") == "g"
        assert own == OWN
        assert system.delivery_attempt == attempt


async def test_normal_messages(tmp_path: Path) -> None:
    async with both(tmp_path) as (_, wire, client):
        assert (await wire.send([of_grpc("a"), of_grpc("b")])).status.code == v2.OK
        for name in "cd":
            assert (await client.post(of_classic(name))).code == Reply.SUCCESS
        expect_records(await pulled(client, 4), "abcd")
        expect_messages(await received(wire, 4), "abcd")


async def test_messages_in_order(tmp_path: Path) -> None:
    async with both(tmp_path, v2.FIFO) as (_, wire, client):
        await create_group(wire, "ordered", orderly=True)
        for name in "ab":
            sent = of_grpc(name, v2.FIFO)
            sent.system_properties.message_group = "g"
            assert (await wire.send([sent])).status.code == v2.OK
        for name in "cd":
            assert (await client.post(of_classic(name, "__SHARDINGKEY\x01g\x02"))).code == 0
        found = await pulled(client, 4)
        expect_records(found, "abcd")
        assert {each.properties_dict["__SHARDINGKEY"] for each in found} == {"g"}
        messages = await received(wire, 4, group="ordered")
        expect_messages(messages, "abcd")
        assert {each.system_properties.message_group for each in messages} == {"g"}


async def test_delayed_messages(tmp_path: Path) -> None:
    async with both(tmp_path, v2.DELAY) as (live, wire, client):
        due_ms = live.node.runtime.clock.wall_ms() + 1_500
        sent = of_grpc("a", v2.DELAY)
        sent.system_properties.delivery_timestamp.FromMilliseconds(due_ms)
        assert (await wire.send([sent])).status.code == v2.OK
        more = f"TIMER_DELIVER_MS\x01{due_ms + 500}\x02"
        assert (await client.post(of_classic("b", more))).code == Reply.SUCCESS
        found = await pulled(client, 2)
        expect_records(found, "ab")
        assert all(each.store_timestamp_ms >= due_ms for each in found)
        expect_messages(await received(wire, 2), "ab")


async def test_transactional_messages(tmp_path: Path) -> None:
    async with both(tmp_path, v2.TRANSACTION) as (_, wire, client):
        for name, outcome in (("a", v2.COMMIT), ("x", v2.ROLLBACK)):
            sent = (await wire.send([of_grpc(name, v2.TRANSACTION)])).entries[0]
            end = v2.EndTransactionRequest(
                topic=v2.Resource(name="t"),
                message_id=sent.message_id,
                transaction_id=sent.transaction_id,
                resolution=outcome,
            )
            done = await wire.call(paths.END_TRANSACTION, end, v2.EndTransactionResponse)
            assert done.status.code == v2.OK
        for name, bits in (("b", 8), ("y", 12)):
            half = await client.post(of_classic(name, "TRAN_MSG\x01true\x02PGROUP\x01p\x02"))
            ended = await client.call(
                Request.END_TRANSACTION,
                producerGroup="p",
                tranStateTableOffset=half.fields["queueOffset"],
                commitLogOffset=int(half.fields["msgId"][16:], 16),
                commitOrRollback=bits,
                msgId=name,
            )
            assert ended.code == Reply.SUCCESS
        expect_records(await pulled(client, 2), "ab")
        expect_messages(await received(wire, 2), "ab")


async def test_retries(tmp_path: Path) -> None:
    async with both(tmp_path) as (_, wire, client):
        await client.call(Request.HEART_BEAT, heartbeat())
        await wire.send([of_grpc("a")])
        await client.post(of_classic("b"))
        # Sent by gRPC, retried by a classic group.
        (first, _) = await pulled(client, 2)
        back = await client.call(
            Request.CONSUMER_SEND_MSG_BACK,
            **{"group": GROUP, "delayLevel": 1, "originTopic": "t"},
            offset=first.physical_offset,
        )
        assert back.code == Reply.SUCCESS
        (again,) = await pulled(client, 1, f"%RETRY%{GROUP}")
        expect_records([again], "a")
        assert (again.reconsume_times, again.properties_dict["RETRY_TOPIC"]) == (1, "t")
        # Sent by a classic client, retried by a group of the gRPC protocol.
        (_, second) = await received(wire, 2)
        request = v2.ChangeInvisibleDurationRequest(
            group=v2.Resource(name=READERS),
            topic=v2.Resource(name="t"),
            receipt_handle=second.system_properties.receipt_handle,
            message_id="b",
        )
        request.invisible_duration.seconds = 0
        done = await wire.call(
            paths.CHANGE_INVISIBLE_DURATION, request, v2.ChangeInvisibleDurationResponse
        )
        assert done.status.code == v2.OK
        expect_messages(await received(wire, 1), "b", attempt=2)


async def test_dead_letters(tmp_path: Path) -> None:
    async with both(tmp_path) as (_, wire, client):
        await client.call(Request.HEART_BEAT, heartbeat())
        await wire.send([of_grpc("a")])
        await client.post(of_classic("b"))
        # Sent by gRPC, given up by a classic group.
        (first, _) = await pulled(client, 2)
        back = await client.call(
            Request.CONSUMER_SEND_MSG_BACK,
            **{"group": GROUP, "delayLevel": -1, "originTopic": "t"},
            offset=first.physical_offset,
        )
        assert back.code == Reply.SUCCESS
        # Sent by a classic client, given up by a group of the gRPC protocol.
        (_, second) = await received(wire, 2)
        request = v2.ForwardMessageToDeadLetterQueueRequest(
            group=v2.Resource(name=READERS),
            topic=v2.Resource(name="t"),
            receipt_handle=second.system_properties.receipt_handle,
            message_id="b",
            delivery_attempt=1,
            max_delivery_attempts=1,
        )
        done = await wire.call(
            paths.FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE,
            request,
            v2.ForwardMessageToDeadLetterQueueResponse,
        )
        assert done.status.code == v2.OK
        for group, name in ((GROUP, "a"), (READERS, "b")):
            letters = f"%DLQ%{group}"
            (dead,) = await pulled(client, 1, letters)
            assert (dead.body, dead.properties_dict["DLQ_ORIGIN_TOPIC"]) == (name.encode(), "t")
            (letter,) = await received(wire, 1, letters, "undertaker")
            expect_messages([_own_only(letter)], [name], attempt=dead.reconsume_times + 1)


def _own_only(letter: Any) -> Any:
    """Return a dead letter without the properties that name its origin."""
    for name in set(letter.user_properties) - OWN.keys():
        del letter.user_properties[name]
    return letter
