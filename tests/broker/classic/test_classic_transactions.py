"""Transactions of classic producers: half messages, outcomes, checks; both protocols consume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cometmq.broker.transactions.records import HALF_TOPIC
from cometmq.proto import v2
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command
from cometmq.store.format.record import decode
from cometmq.tests.broker.classic_wire import TOPIC, classic, heartbeat, message, pulled, pulling
from cometmq.tests.broker.live import until
from cometmq.tests.remoting.client import RemotingClient

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
PRODUCERS = "producers"


def half(key: str, body: bytes = b"half", more: str = "") -> Command:
    text = f"TRAN_MSG\x01true\x02PGROUP\x01{PRODUCERS}\x02UNIQ_KEY\x01{key}\x02{more}"
    return message(body, text, f=4)


async def end(client: RemotingClient, key: str, offset: object, outcome: int, **more: Any) -> int:
    fields = {
        **{"producerGroup": PRODUCERS, "tranStateTableOffset": offset, "commitLogOffset": 0},
        **{"commitOrRollback": outcome, "msgId": key, "transactionId": key, **more},
    }
    return (await client.call(Request.END_TRANSACTION, **fields)).code


def as_producer(client_id: str = "p1") -> bytes:
    data = heartbeat(client_id, group="other")
    return data.replace(b"CLIENT_INNER_PRODUCER", PRODUCERS.encode())


async def test_a_half_message_is_consumed_once_it_is_committed(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, client), live.client() as wire:
        sent = await client.post(half("a", more="DELAY\x013\x02KEYS\x01k\x02"))
        assert (sent.code, sent.fields["queueId"]) == (Reply.SUCCESS, "1")
        assert sent.fields["transactionId"] == "a"
        kept = await client.post(half("b"))
        assert kept.fields["queueOffset"] == "1"  # of the half queue
        assert (await client.post(pulling())).code == Reply.PULL_NOT_FOUND
        assert await end(client, "a", sent.fields["queueOffset"], UNKNOWN) == Reply.SUCCESS
        assert await end(client, "a", sent.fields["queueOffset"], COMMIT) == Reply.SUCCESS
        assert await end(client, "b", kept.fields["queueOffset"], ROLLBACK) == Reply.SUCCESS
        (record,) = await pulled(client)
        assert (record.topic, record.queue_id, record.body) == (TOPIC, 1, b"half")
        assert record.sys_flag & 12 == COMMIT
        properties = record.properties_dict
        assert (properties["TRAN_MSG"], properties["KEYS"]) == ("true", "k")
        assert not {"DELAY", "REAL_TOPIC", "REAL_QID"} & properties.keys()
        half_at = int(sent.fields["msgId"][16:], 16)
        assert record.prepared_transaction_offset == half_at
        request = v2.ReceiveMessageRequest(
            group=v2.Resource(name="grpc-readers"),
            message_queue=v2.MessageQueue(topic=v2.Resource(name=TOPIC), id=1),
            batch_size=1,
        )
        request.invisible_duration.seconds = 30
        call = wire.channel.unary_stream(
            "/apache.rocketmq.v2.MessagingService/ReceiveMessage",
            response_deserializer=v2.ReceiveMessageResponse.FromString,
        )
        answers = [each async for each in call(request.SerializeToString(), metadata=wire.metadata)]
        (found,) = [each.message for each in answers if each.HasField("message")]
        assert (found.body, found.system_properties.message_id) == (b"half", "a")


async def test_an_outcome_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    async with classic(tmp_path) as (_, client):
        sent = await client.post(half("a"))
        offset = sent.fields["queueOffset"]
        assert await end(client, "other", offset, COMMIT) == Reply.SYSTEM_ERROR
        assert await end(client, "a", 7, COMMIT) == Reply.SYSTEM_ERROR
        assert await end(client, "a", offset, COMMIT, producerGroup="x") == Reply.SYSTEM_ERROR
        assert await end(client, "a", offset, 3) == Reply.INVALID_PARAMETER
        assert await end(client, "a", offset, COMMIT) == Reply.SUCCESS
        assert await end(client, "a", offset, COMMIT) == Reply.SUCCESS  # repeated
        assert await end(client, "a", offset, ROLLBACK) == Reply.SYSTEM_ERROR
        (_,) = await pulled(client)


async def test_a_producer_of_the_group_is_checked_until_it_reports(tmp_path: Path) -> None:
    async with classic(tmp_path, transaction_check_interval=50, transaction_time_out=1) as (
        live,
        client,
    ):
        await client.call(Request.HEART_BEAT, as_producer())
        sent = await client.post(half("a", more="TAGS\x01t\x02"))
        told = await client.next_request()
        while told.code == Request.NOTIFY_CONSUMER_IDS_CHANGED:
            told = await client.next_request()
        assert told.code == Request.CHECK_TRANSACTION_STATE
        assert told.is_oneway
        assert (told.fields["topic"], told.fields["msgId"]) == (HALF_TOPIC, "a")
        assert told.fields["transactionId"] == "a"
        record = decode(told.body)
        assert (record.topic, record.queue_id, record.body) == (TOPIC, 1, b"half")
        properties = record.properties_dict
        assert properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert (properties["REAL_TOPIC"], properties["PGROUP"]) == (TOPIC, PRODUCERS)
        offset = told.fields["tranStateTableOffset"]
        assert await end(client, "a", offset, COMMIT, fromTransactionCheck="true") == 0
        assert sent.code == Reply.SUCCESS
        (found,) = await pulled(client)
        assert found.body == b"half"
        assert live.node.transactions.stats.asked


async def test_a_check_without_a_producer_of_the_group_counts_as_unreachable(
    tmp_path: Path,
) -> None:
    async with classic(tmp_path, transaction_check_interval=50, transaction_time_out=1) as (
        live,
        client,
    ):
        await client.call(Request.HEART_BEAT, as_producer())
        await client.call(Request.UNREGISTER_CLIENT, clientID="p1", producerGroup=PRODUCERS)
        await client.post(half("a"))
        await until(lambda: live.node.transactions.stats.unreachable)
        assert not live.node.transactions.stats.asked
