"""Classic clients on the remoting port of a broker: sends, pulls, offsets, groups, send-back."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.messages import filters
from cometmq.proto import v2
from cometmq.remoting.admin_codes import Admin
from cometmq.remoting.bare_json import loads
from cometmq.remoting.codes import Reply, Request
from cometmq.store.format.properties import decode_properties
from cometmq.store.format.record import unpack_host
from cometmq.tests.broker.classic_wire import (
    GROUP,
    NOW_MS,
    TOPIC,
    classic,
    heartbeat,
    message,
    port_of,
    pulled,
    pulling,
    records,
)
from cometmq.tests.broker.live import (
    RpcError,
    create_group,
    create_topic,
    follower_of,
    running,
    telemetry,
    until,
)
from cometmq.tests.harness.wire import normal_message
from cometmq.tests.remoting.client import RemotingClient


async def test_a_sent_message_is_pulled_as_its_record(tmp_path: Path) -> None:
    async with classic(tmp_path) as (_, client):
        sent = await client.post(message())
        assert sent.code == Reply.SUCCESS
        assert sent.fields["queueId"] == "1"
        assert sent.fields["queueOffset"] == "0"
        assert sent.fields["transactionId"] == "id1"
        assert sent.fields["MSG_REGION"] == "DefaultRegion"
        assert sent.fields["TRACE_ON"] == "true"
        found = await client.post(pulling())
        assert (found.code, found.remark) == (Reply.SUCCESS, "FOUND")
        assert found.fields == {
            **{"suggestWhichBrokerId": "0", "groupSysFlag": "0", "nextBeginOffset": "1"},
            **{"maxOffset": "1", "minOffset": "0", "topicSysFlag": "0"},
        }
        (record,) = records(found.body)
        assert (record.topic, record.queue_id, record.body) == (TOPIC, 1, b"hello")
        assert (record.flag, record.born_timestamp_ms, record.reconsume_times) == (7, NOW_MS, 0)
        assert record.properties_dict == {
            **{"TAGS": "TagA", "UNIQ_KEY": "id1", "MSG_REGION": "DefaultRegion"},
            **{"TRACE_ON": "true", "CLUSTER": "DefaultCluster"},
        }
        offset_id = record.store_host + record.physical_offset.to_bytes(8, "big")
        assert sent.fields["msgId"] == offset_id.hex().upper()


async def test_an_offset_id_names_an_address_that_speaks_remoting(tmp_path: Path) -> None:
    """Separate ports: tools dial the address in an id to view, send back or track the message."""
    async with classic(tmp_path) as (live, client), live.client() as wire:
        await wire.send([normal_message(TOPIC, "01AB", b"by gRPC")])
        await client.post(message(b"by remoting"))
        for body in (b"by gRPC", b"by remoting"):
            found = await client.call(
                Request.QUERY_MESSAGE, topic=TOPIC, key="01AB" if body == b"by gRPC" else "id1",
                maxNum=1, beginTimestamp=0, endTimestamp=(1 << 63) - 1, _UNIQUE_KEY_QUERY="true",
            )  # fmt: skip
            (record,) = records(found.body)
            host, port = unpack_host(record.store_host)
            async with RemotingClient(port, host) as dialled:
                answer = await dialled.call(
                    Request.VIEW_MESSAGE_BY_ID, offset=record.physical_offset
                )
            assert [each.body for each in records(answer.body)] == [body]


async def test_both_protocols_reach_the_same_log(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, client), live.client() as wire:
        await client.post(
            message(properties="TAGS\x01t\x02KEYS\x01a b\x02u\x01v\x02UNIQ_KEY\x01i\x02")
        )
        request = v2.PullMessageRequest(
            group=v2.Resource(name="readers"),
            message_queue=v2.MessageQueue(topic=v2.Resource(name=TOPIC), id=1),
            batch_size=1,
        )
        call = wire.channel.unary_stream(
            "/apache.rocketmq.v2.MessagingService/PullMessage",
            response_deserializer=v2.PullMessageResponse.FromString,
        )
        answers = [each async for each in call(request.SerializeToString(), metadata=wire.metadata)]
        found = next(each.message for each in answers if each.HasField("message"))
        assert found.body == b"hello"
        assert dict(found.user_properties) == {"u": "v"}
        assert list(found.system_properties.keys) == ["a", "b"]
        assert (found.system_properties.tag, found.system_properties.message_id) == ("t", "i")


async def test_a_batch_is_stored_message_by_message(tmp_path: Path) -> None:
    def part(body: bytes, properties: bytes) -> bytes:
        data = struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, 3, len(body)) + body
        return data + struct.pack(">h", len(properties)) + properties

    parts = [part(b"one", b"UNIQ_KEY\x01a\x02"), part(b"two", b"UNIQ_KEY\x01b\x02")]
    async with classic(tmp_path) as (_, client):
        command = message(b"".join(parts), "WAIT\x01true", m="true")
        command.code = Request.SEND_BATCH_MESSAGE
        sent = await client.post(command)
        assert (sent.code, sent.fields["queueOffset"]) == (Reply.SUCCESS, "0")
        assert "transactionId" not in sent.fields
        found = await pulled(client)
        assert [(each.body, each.flag) for each in found] == [(b"one", 3), (b"two", 3)]
        assert [each.properties for each in found] == [b"UNIQ_KEY\x01a\x02", b"UNIQ_KEY\x01b\x02"]
        ids = [each.store_host + each.physical_offset.to_bytes(8, "big") for each in found]
        assert sent.fields["msgId"] == ",".join(each.hex().upper() for each in ids)
        for broken in (b"", parts[0][:-1], parts[0][:21], b"\xff" * 40):
            command.body = broken
            assert (await client.post(command)).code == Reply.MESSAGE_ILLEGAL
        command.body = part(b"late", b"DELAY\x012\x02")
        assert (await client.post(command)).code == Reply.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ({"b": "nowhere"}, Reply.TOPIC_NOT_EXIST, "apply first please"),
        ({"b": "a/b"}, Reply.INVALID_PARAMETER, "letters"),
        ({"b": "TBW102"}, Reply.INVALID_PARAMETER, "system topic"),
        ({"e": 2}, Reply.INVALID_PARAMETER, "queueId"),
        ({"e": "x"}, Reply.SYSTEM_ERROR, "For input string"),
        ({"i": "TIMER_DELAY_SEC\x01999999999\x02"}, Reply.MESSAGE_ILLEGAL, ""),
        ({"i": "a\x01" + "x" * 32_767 + "\x02"}, Reply.MESSAGE_ILLEGAL, "properties"),
        ({"b": "%RETRY%unknown"}, Reply.SUBSCRIPTION_GROUP_NOT_EXIST, "unknown"),
    ],
)
async def test_a_refused_send_has_a_code_and_words(
    tmp_path: Path, more: dict[str, Any], code: Reply, words: str
) -> None:
    async with classic(tmp_path) as (_, client):
        found = await client.post(message(**more))
        assert found.code == code
        assert words in (found.remark or "")


async def test_a_body_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    async with classic(tmp_path) as (_, client):
        found = await client.post(message(b"x" * ((4 << 20) + 1)))
        assert found.code == Reply.MESSAGE_ILLEGAL


async def test_queue_and_unique_key_are_chosen_if_the_client_has_none(tmp_path: Path) -> None:
    async with classic(tmp_path) as (_, client):
        sent = [await client.post(message(properties="", e=-1)) for _ in range(2)]
        assert {each.fields["queueId"] for each in sent} == {"0", "1"}
        (record,) = await pulled(client)
        assert record.properties_dict["UNIQ_KEY"] in [e.fields["transactionId"] for e in sent]


async def test_properties_of_the_broker_are_not_taken_from_clients(tmp_path: Path) -> None:
    async with classic(tmp_path) as (_, client):
        text = "REAL_TOPIC\x01x\x02POP_CK\x01y\x02own\x01z\x02"
        await client.post(message(properties=text))
        (record,) = await pulled(client)
        names = {"own", "UNIQ_KEY", "MSG_REGION", "TRACE_ON", "CLUSTER"}
        assert set(record.properties_dict) == names


async def test_topics_are_created_by_a_send_if_that_is_allowed(tmp_path: Path) -> None:
    async with classic(tmp_path, auto_create_topic_enable=True) as (live, client):
        assert (await client.post(message(b=TOPIC + "2"))).code == Reply.SUCCESS
        assert live.node.metadata.topics[TOPIC + "2"].write_queues == 4, "as the client wants"
        answer = await client.post(message(b=TOPIC + "3", c="other"))
        assert answer.code == Reply.TOPIC_NOT_EXIST, "no template"


async def test_a_delayed_message_is_delivered_at_its_time(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, client):
        answer = await client.post(message(b"level", "DELAY\x011\x02UNIQ_KEY\x01l\x02"))
        assert answer.code == Reply.SUCCESS
        assert "recallHandle" not in answer.fields
        text = (
            f"TIMER_DELIVER_MS\x01{live.node.runtime.clock.wall_ms() + 1_500}\x02UNIQ_KEY\x01t\x02"
        )
        answer = await client.post(message(b"timer", text))
        assert answer.fields["recallHandle"]
        found: list[bytes] = []
        async with asyncio.timeout(60):
            while len(found) < 2:
                command = pulling(sysFlag=6, queueOffset=len(found), suspendTimeoutMillis=15_000)
                answer = await client.post(command)
                found += [each.body for each in records(answer.body)]
        assert sorted(found) == [b"level", b"timer"]


async def test_a_pull_waits_for_a_matching_message(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, client):
        waiting = client.post(pulling(sysFlag=6, subscription="TagB", suspendTimeoutMillis=30_000))
        await until(lambda: live.node.pulls._waiting == 1)
        await client.post(message(b"no"))
        await client.post(message(b"yes", "TAGS\x01TagB\x02"))
        answer = await asyncio.wait_for(waiting, 60)
        assert [each.body for each in records(answer.body)] == [b"yes"]
        assert answer.fields["nextBeginOffset"] == "2"


async def test_a_waiting_pull_ends_with_its_time_or_its_client(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, client):
        answer = await client.post(pulling(sysFlag=6, suspendTimeoutMillis=20))
        assert (answer.code, answer.remark) == (Reply.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
        async with RemotingClient(port_of(live)) as other:
            other.post(pulling(sysFlag=6, suspendTimeoutMillis=30_000))
            await until(lambda: live.node.pulls._waiting == 1)
        await until(lambda: live.node.pulls._waiting == 0)


async def test_the_status_of_a_pull_names_the_offset_to_continue_at(tmp_path: Path) -> None:
    async with classic(tmp_path) as (_, client):
        empty = await client.post(pulling(queueOffset=5))
        assert (empty.code, empty.remark) == (Reply.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE")
        assert empty.fields["nextBeginOffset"] == "0"
        await client.post(message())
        expected = {
            1: (Reply.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", "1"),
            9: (Reply.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", "1"),
            -1: (Reply.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", "0"),
        }
        for offset, outcome in expected.items():
            answer = await client.post(pulling(queueOffset=offset))
            assert (answer.code, answer.remark, answer.fields["nextBeginOffset"]) == outcome
        answer = await client.post(pulling(subscription="TagB"))
        # The queue was read to its end.
        assert answer.code in (Reply.PULL_NOT_FOUND, Reply.PULL_RETRY_IMMEDIATELY)
        assert answer.fields["nextBeginOffset"] == "1"


async def test_a_push_consumer_pulls_with_the_subscription_of_its_heartbeat(
    tmp_path: Path,
) -> None:
    async with classic(tmp_path) as (_, client):
        await client.post(message(b"a"))
        await client.post(message(b"b", "TAGS\x01TagB\x02"))
        answer = await client.post(pulling(sysFlag=0))
        assert answer.code == Reply.SUBSCRIPTION_NOT_EXIST
        await client.call(Request.HEART_BEAT, heartbeat(orders="TagB"))
        assert [each.body for each in await pulled(client, sysFlag=0, subVersion=1)] == [b"b"]
        answer = await client.post(pulling(sysFlag=0, subVersion=2))
        assert answer.code == Reply.SUBSCRIPTION_NOT_LATEST


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"topic": "nowhere"}, Reply.TOPIC_NOT_EXIST),
        ({"queueId": 2}, Reply.INVALID_PARAMETER),
        ({"queueId": -1}, Reply.INVALID_PARAMETER),
        ({"consumerGroup": "a/b"}, Reply.INVALID_PARAMETER),
        ({"subscription": "a ==", "expressionType": "SQL92"}, Reply.SUBSCRIPTION_PARSE_FAILED),
        ({"subscription": "|"}, Reply.SUCCESS),
    ],
)
async def test_a_refused_pull_has_a_code(tmp_path: Path, more: dict[str, Any], code: int) -> None:
    async with classic(tmp_path) as (_, client):
        await client.post(message(properties="TAGS\x01|\x02"))
        assert (await client.post(pulling(**more))).code == code


async def test_an_sql_filter_is_checked_at_the_start_and_applied(tmp_path: Path) -> None:
    def body(expression: str) -> bytes:
        data = {"topic": TOPIC, "subString": expression, "expressionType": "SQL92"}
        return json.dumps({"clientId": "c1", "group": GROUP, "subscriptionData": data}).encode()

    async with classic(tmp_path) as (_, client):
        assert (await client.call(Request.CHECK_CLIENT_CONFIG, body("a > 1"))).code == 0
        assert (await client.call(Request.CHECK_CLIENT_CONFIG, body("a >"))).code == 23
        assert (await client.call(Request.CHECK_CLIENT_CONFIG, b"{}")).code == 1
        for value in (1, 2):
            await client.post(message(b"%d" % value, f"a\x01{value}\x02"))
        found = await pulled(client, subscription="a > 1", expressionType="SQL92")
        assert [each.body for each in found] == [b"2"]


async def test_messages_are_found_by_key_unique_id_and_position(tmp_path: Path) -> None:
    async with classic(tmp_path) as (_, client):
        for n in (1, 2):
            await client.post(message(b"%d" % n, f"KEYS\x01both k{n}\x02UNIQ_KEY\x01id{n}\x02"))
        asked = {"topic": TOPIC, "maxNum": 10, "beginTimestamp": 0, "endTimestamp": (1 << 63) - 1}
        for key, more, bodies in (
            ("both", {}, [b"1", b"2"]),
            ("both", {"maxNum": 1}, [b"2"]),
            ("k1", {"indexType": "K"}, [b"1"]),
            ("id2", {"_UNIQUE_KEY_QUERY": "true"}, [b"2"]),
            ("none", {}, []),
            ("both", {"endTimestamp": 1}, []),
            ("both", {"topic": "nowhere"}, []),
        ):
            answer = await client.call(Request.QUERY_MESSAGE, key=key, **{**asked, **more})
            assert answer.code == (Reply.SUCCESS if bodies else Reply.QUERY_NOT_FOUND)
            assert [each.body for each in records(answer.body)] == bodies
        (one, _) = await pulled(client)
        answer = await client.call(Request.VIEW_MESSAGE_BY_ID, offset=one.physical_offset)
        assert [each.body for each in records(answer.body)] == [b"1"]
        answer = await client.call(Request.VIEW_MESSAGE_BY_ID, offset=one.physical_offset + 1)
        assert answer.code == Reply.SYSTEM_ERROR


async def test_offsets_of_queues_and_groups(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, client):
        before_ms = live.node.runtime.clock.wall_ms()
        await client.post(message())
        await client.post(message())
        queue = {"topic": TOPIC, "queueId": 1}
        own = {"consumerGroup": GROUP, **queue}
        assert (await client.call(Request.GET_MAX_OFFSET, **queue)).fields == {"offset": "2"}
        assert (await client.call(Request.GET_MIN_OFFSET, **queue)).fields == {"offset": "0"}
        found = await client.call(Request.GET_EARLIEST_MSG_STORETIME, **queue)
        assert int(found.fields["timestamp"]) >= before_ms
        for time_ms, offset in ((before_ms - 1, "0"), (before_ms + 3_600_000, "2")):
            found = await client.call(
                Request.SEARCH_OFFSET_BY_TIMESTAMP, **queue, timestamp=time_ms
            )
            assert found.fields == {"offset": offset}
        nowhere = {"topic": "nowhere", "queueId": 0}
        assert (await client.call(Request.GET_MAX_OFFSET, **nowhere)).fields == {"offset": "0"}
        found = await client.call(Request.GET_EARLIEST_MSG_STORETIME, topic=TOPIC, queueId=0)
        assert found.fields == {"timestamp": "-1"}

        found = await client.call(Request.UPDATE_CONSUMER_OFFSET, **own, commitOffset=1)
        assert (found.code, found.remark) == (26, "Group shop not exist!")
        await client.call(Request.HEART_BEAT, heartbeat())
        found = await client.call(Request.QUERY_CONSUMER_OFFSET, **own)
        assert found.fields == {"offset": "0"}  # the first message is still there
        found = await client.call(Request.QUERY_CONSUMER_OFFSET, **own, setZeroIfNotFound="false")
        assert found.code == Reply.QUERY_NOT_FOUND
        found = await client.call(Request.QUERY_CONSUMER_OFFSET, **{**own, "queueId": 0})
        assert found.code == Reply.QUERY_NOT_FOUND
        client.oneway(Request.UPDATE_CONSUMER_OFFSET, **own, commitOffset=1)
        found = await client.call(Request.QUERY_CONSUMER_OFFSET, **own)
        assert found.fields == {"offset": "1"}
        await client.post(pulling(sysFlag=5, commitOffset=2))
        assert live.node.offsets.get(TOPIC, GROUP, 1) == 2
        found = await client.call(Request.UPDATE_CONSUMER_OFFSET, **own, commitOffset=3)
        assert found.code == Reply.INVALID_PARAMETER


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_group_starts_at_the_first_message_of_a_topic_that_was_created_again(
    tmp_path: Path, restarts: bool
) -> None:
    """Without an offset clients start at the end."""

    async def starts(client: RemotingClient) -> None:
        for group in (GROUP, "other"):
            own = {"consumerGroup": group, "topic": "again", "queueId": 0}
            found = await client.call(Request.QUERY_CONSUMER_OFFSET, **own)
            assert found.fields == {"offset": "1"}

    async with classic(tmp_path) as (live, client), live.client() as wire:
        for name in (b"old", b"new"):
            await client.call(Admin.DELETE_TOPIC_IN_BROKER, topic="again")
            await create_topic(wire, "again", queues=1)
            await client.post(message(name, b="again", e=0))
        if not restarts:
            await starts(client)
    if restarts:
        async with classic(tmp_path) as (_, client):
            await starts(client)


async def test_members_of_a_group_learn_of_each_other(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, one):
        found = await one.call(Request.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=GROUP)
        assert (found.code, found.remark) == (1, f"no consumer for this group, {GROUP}")
        answer = await one.call(Request.HEART_BEAT, heartbeat("c1"))
        assert answer.fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
        told = await one.next_request()
        assert (told.code, told.fields) == (40, {"consumerGroup": GROUP})
        assert f"%RETRY%{GROUP}" in live.node.metadata.topics
        async with RemotingClient(port_of(live)) as two:
            await two.call(Request.HEART_BEAT, heartbeat("c2"))
            assert (await one.next_request()).code == 40
            assert (await two.next_request()).code == 40
            found = await one.call(Request.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=GROUP)
            assert loads(found.body) == {"consumerIdList": ["c1", "c2"]}
        assert (await one.next_request()).code == 40  # the connection of c2 ended
        found = await one.call(Request.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=GROUP)
        assert loads(found.body) == {"consumerIdList": ["c1"]}
        await one.call(Request.UNREGISTER_CLIENT, clientID="c1", consumerGroup=GROUP)
        found = await one.call(Request.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=GROUP)
        assert found.code == Reply.SYSTEM_ERROR


MALFORMED = (
    *(b"", b"[]", b"{}", b'{"clientID":[]}', b'{"clientID":"c","consumerDataSet":{}}'),
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[1]}]}',
    *(b'{"clientID":"c","consumerDataSet":[1]}', b"[" * 100_000, b" " * (2 << 20)),
)


async def test_a_heartbeat_parses_no_expression_and_a_wrong_one_refuses_its_pulls(
    tmp_path: Path,
) -> None:
    def body(text: str) -> bytes:
        document = json.loads(heartbeat(orders=text, other="b BETWEEN 1 AND 5"))
        for entry in document["consumerDataSet"][0]["subscriptionDataSet"]:
            entry["expressionType"] = "SQL92"
        return json.dumps(document).encode()

    async with classic(tmp_path) as (_, client):
        parsed = filters._parse.cache_info().misses
        assert (await client.call(Request.HEART_BEAT, body("a = "))).code == Reply.SUCCESS
        assert filters._parse.cache_info().misses == parsed
        answer = await client.post(pulling(sysFlag=0, subVersion=1))
        assert answer.code == Reply.SUBSCRIPTION_PARSE_FAILED
        answer = await client.call(Request.HEART_BEAT, body("x" * 16_385))
        assert "longer than 16384 characters" in (answer.remark or "")


async def test_a_heartbeat_is_read_as_fastjson_reads_it(tmp_path: Path) -> None:
    """The C++ client writes numbers as texts and enums as numbers."""
    document = json.loads(heartbeat("c1"))
    (group,) = document["consumerDataSet"]
    group |= {"consumeType": 1, "messageModel": 1, "consumeFromWhere": 4, "unitMode": "false"}
    group["subscriptionDataSet"][0]["subVersion"] = "1795839709992"
    del group["subscriptionDataSet"][0]["expressionType"]
    loose = json.dumps(document).replace('"clientID": "c1"', "clientID: 'c1'")
    async with classic(tmp_path) as (_, client):
        for body in (json.dumps(document), loose):
            assert (await client.call(Request.HEART_BEAT, body.encode())).code == Reply.SUCCESS
        found = await client.call(Request.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=GROUP)
        assert loads(found.body) == {"consumerIdList": ["c1"]}
        about = await client.call(Admin.GET_CONSUMER_CONNECTION_LIST, consumerGroup=GROUP)
        found = loads(about.body)
        assert (found["consumeType"], found["messageModel"], found["consumeFromWhere"]) == (
            *("CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET"),
        )
        assert found["subscriptionTable"][TOPIC]["subVersion"] == 1795839709992
        queues = [{"brokerName": "broker-a", "queueId": "1", "topic": TOPIC}]
        lock = {"clientId": "c1", "consumerGroup": GROUP, "mqSet": queues}
        answer = await client.call(Request.LOCK_BATCH_MQ, json.dumps(lock).encode())
        assert [queue["queueId"] for queue in loads(answer.body)["lockOKMQSet"]] == [1]


async def test_one_group_of_a_heartbeat_does_not_stop_the_others(tmp_path: Path) -> None:
    document = json.loads(heartbeat("c1"))
    (group,) = document["consumerDataSet"]
    names = [f"g{number}" for number in range(110)]
    bad = [{**group, "groupName": "a b"}, {**group, "groupName": "g", "subscriptionDataSet": [1]}]
    document["consumerDataSet"] = [*bad, *({**group, "groupName": name} for name in names)]
    document["producerDataSet"] = [{"groupName": f"p{number}"} for number in range(501)]
    async with classic(tmp_path) as (_, client):
        answer = await client.call(Request.HEART_BEAT, json.dumps(document).encode())
        assert "at most 500" in (answer.remark or "")
        for name in ("g0", "g109"):
            found = await client.call(Request.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=name)
            assert loads(found.body) == {"consumerIdList": ["c1"]}


async def test_a_heartbeat_creates_a_bounded_number_of_groups(tmp_path: Path) -> None:
    document = json.loads(heartbeat("c1"))
    (group,) = document["consumerDataSet"]
    names = [f"g{number}" for number in range(200)]
    document["consumerDataSet"] = [*({**group, "groupName": name} for name in names), group]
    body = json.dumps(document).encode()
    async with classic(tmp_path) as (live, client):
        await client.call(Request.HEART_BEAT, heartbeat("c2"))
        answer = await client.call(Request.HEART_BEAT, body)
        assert "creates at most 120" in (answer.remark or "")
        found = await client.call(Request.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=GROUP)
        assert loads(found.body) == {"consumerIdList": ["c2", "c1"]}
        assert (await client.call(Request.HEART_BEAT, body)).code == Reply.SUCCESS
        assert live.node.metadata.groups.keys() >= set(names)


async def test_a_malformed_heartbeat_is_refused(tmp_path: Path) -> None:
    async with classic(tmp_path) as (_, client):
        for body in MALFORMED:
            answer = await client.call(Request.HEART_BEAT, body)
            assert answer.code == Reply.SYSTEM_ERROR
            assert (answer.remark or "").startswith("the body cannot be read")


async def test_queues_are_locked_for_one_client(tmp_path: Path) -> None:
    queue = {"brokerName": "broker-a", "queueId": 1, "topic": TOPIC}
    foreign = [{**queue, "queueId": 9}, {**queue, "topic": "nowhere"}]

    def body(client_id: str) -> bytes:
        document = {"clientId": client_id, "consumerGroup": GROUP, "mqSet": [queue, *foreign]}
        return json.dumps(document).encode()

    async with classic(tmp_path) as (_, client):
        await client.call(Request.HEART_BEAT, heartbeat())
        for client_id, held in (("c1", [queue]), ("c2", []), ("c1", [queue])):
            answer = await client.call(Request.LOCK_BATCH_MQ, body(client_id))
            assert loads(answer.body) == {"lockOKMQSet": held}
        client.oneway(Request.UNLOCK_BATCH_MQ, body("c1"))
        answer = await client.call(Request.LOCK_BATCH_MQ, body("c2"))
        assert loads(answer.body) == {"lockOKMQSet": [queue]}
        # The group consumes in order: a message that it gives up is a dead letter at once.
        sent = await client.post(message(b"dead", "DELAY\x013\x02", b=f"%RETRY%{GROUP}", e=0))
        assert sent.code == Reply.SUCCESS
        (record,) = await pulled(client, topic=f"%DLQ%{GROUP}", queueId=0)
        assert (record.body, record.properties_dict["DELAY"]) == (b"dead", "-1")


async def test_all_queues_of_a_large_topic_are_locked(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, client):
        async with live.client() as wire:
            await create_topic(wire, "large", queues=1_024)
        await client.call(Request.HEART_BEAT, heartbeat())
        queues = [{"brokerName": "broker-a", "queueId": n, "topic": "large"} for n in range(1_024)]
        document: dict[str, Any] = {"clientId": "c1", "consumerGroup": GROUP, "mqSet": queues}
        answer = await client.call(Request.LOCK_BATCH_MQ, json.dumps(document).encode())
        assert loads(answer.body) == {"lockOKMQSet": queues}
        document["mqSet"] = [{"brokerName": "b", "queueId": 9_999, "topic": "t"}] * 4_096 + queues
        answer = await client.call(Request.LOCK_BATCH_MQ, json.dumps(document).encode())
        assert (answer.code, loads(answer.body)) == (Reply.SUCCESS, {"lockOKMQSet": []})
        assert "5120 queues: those after the first 4096 are ignored" in (answer.remark or "")


async def test_a_message_sent_back_comes_again_until_it_is_a_dead_letter(tmp_path: Path) -> None:
    retry = f"%RETRY%{GROUP}"
    async with classic(tmp_path) as (_, client):
        await client.call(Request.HEART_BEAT, heartbeat())
        await client.post(message(b"again"))
        (record,) = await pulled(client)
        back = {"group": GROUP, "delayLevel": 1, "maxReconsumeTimes": 1, "originTopic": TOPIC}
        answer = await client.call(
            Request.CONSUMER_SEND_MSG_BACK, offset=record.physical_offset, **back
        )
        assert (answer.code, answer.fields) == (Reply.SUCCESS, {})
        command = pulling(topic=retry, queueId=0, sysFlag=6, suspendTimeoutMillis=30_000)
        (copy,) = records((await asyncio.wait_for(client.post(command), 60)).body)
        assert (copy.body, copy.reconsume_times, copy.flag) == (b"again", 1, 7)
        properties = decode_properties(copy.properties)
        assert properties["RETRY_TOPIC"] == TOPIC
        offset_id = record.store_host + record.physical_offset.to_bytes(8, "big")
        assert properties["ORIGIN_MESSAGE_ID"] == offset_id.hex().upper()
        answer = await client.call(
            Request.CONSUMER_SEND_MSG_BACK, offset=copy.physical_offset, **back
        )
        assert answer.code == Reply.SUCCESS
        (dead,) = await pulled(client, topic=f"%DLQ%{GROUP}", queueId=0)
        assert dead.body == b"again"
        for offset in (-1, record.physical_offset + 1, 1 << 62):
            answer = await client.call(Request.CONSUMER_SEND_MSG_BACK, offset=offset, **back)
            assert (answer.code, answer.remark) == (1, f"look message by offset failed, {offset}")
        answer = await client.call(
            Request.CONSUMER_SEND_MSG_BACK, **{**back, "group": "unknown"}, offset=0
        )
        assert answer.code == Reply.SUBSCRIPTION_GROUP_NOT_EXIST


async def subscribed(wire: Any) -> tuple[Any, Any]:
    """Open a telemetry stream of a consumer; return it and the answer to its settings."""
    stream = telemetry(wire)
    command = v2.TelemetryCommand()
    command.settings.client_type = v2.PUSH_CONSUMER
    command.settings.subscription.group.name = GROUP
    command.settings.subscription.subscriptions.add().topic.name = TOPIC
    await stream.write(command)
    return stream, await stream.read()


async def test_a_group_belongs_to_the_protocol_of_its_first_client(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, client), live.client() as wire:
        await create_group(wire, GROUP)
        stream, _ = await subscribed(wire)
        answer = await client.call(Request.HEART_BEAT, heartbeat())
        assert answer.code == Reply.SYSTEM_ERROR
        assert "one protocol at a time" in (answer.remark or "")
        stream.cancel()
        async with asyncio.timeout(60):
            while (await client.call(Request.HEART_BEAT, heartbeat())).code:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        with pytest.raises(RpcError, match="in use by clients of the remoting protocol"):
            await subscribed(wire)
        await client.call(Request.UNREGISTER_CLIENT, clientID="c1", consumerGroup=GROUP)
        stream, answer = await subscribed(wire)
        assert answer.HasField("settings")
        stream.cancel()


async def test_both_protocols_share_a_group_if_that_is_allowed(tmp_path: Path) -> None:
    async with (
        classic(tmp_path, allow_mixed_protocols=True) as (live, client),
        live.client() as wire,
    ):
        stream, answer = await subscribed(wire)
        assert answer.HasField("settings")
        assert (await client.call(Request.HEART_BEAT, heartbeat())).code == Reply.SUCCESS
        stream.cancel()


async def test_a_follower_refuses_and_names_the_reason(tmp_path: Path) -> None:
    async with classic(tmp_path / "leader") as (leader, _):
        chosen = follower_of(leader.bound, tmp_path / "follower", remoting_listen_port=-1)
        async with running(chosen) as live, RemotingClient(port_of(live)) as client:
            answer = await client.post(message())
            assert answer.code == Reply.SERVICE_NOT_AVAILABLE
            assert "follows" in (answer.remark or "")


async def test_codes_that_are_not_offered_are_refused_in_words(tmp_path: Path) -> None:
    async with classic(tmp_path) as (_, client):
        answer = await client.call(4_711)
        assert (answer.code, answer.remark) == (3, " request type 4711 not supported")
