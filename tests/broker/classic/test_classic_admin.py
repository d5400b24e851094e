"""Administrative requests on the remoting port of a broker, beside those that mqadmin sends."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.classic.admin.rates import Totals
from cometmq.broker.metadata.tables import Group, Topic
from cometmq.proto import paths, v1, v2
from cometmq.remoting.admin_codes import Admin
from cometmq.remoting.bare_json import QueueKey, loads
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command
from cometmq.tests.broker.classic_wire import (
    GROUP,
    TOPIC,
    classic,
    heartbeat,
    message,
    pulled,
    pulling,
    records,
)
from cometmq.tests.broker.desk import Desk
from cometmq.tests.broker.live import Live, create_group, create_topic, telemetry, until
from cometmq.tests.remoting.client import RemotingClient
from cometmq.tests.remoting.recordings import frames

NEW_TOPIC = {
    **{"topic": "new", "defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": 2},
    **{"perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"},
}
SECOND_NS = 1_000_000_000
FIRST_USER = '{"username": "admin", "password": "secret-of-admin"}'


@asynccontextmanager
async def prepared(tmp_path: Path) -> AsyncIterator[tuple[Live, RemotingClient]]:
    """A group that has consumed one of two messages of queue 1."""
    async with classic(tmp_path) as (live, client):
        async with live.client() as wire:
            await create_group(wire, GROUP)
        for _ in range(2):
            assert (await client.post(message())).code == Reply.SUCCESS
        await commit(client, 1)
        yield live, client


async def commit(client: RemotingClient, offset: int, group: str = GROUP) -> None:
    fields = {"consumerGroup": group, "topic": TOPIC, "queueId": 1, "commitOffset": offset}
    answer = await client.call(Request.UPDATE_CONSUMER_OFFSET, **fields)
    assert answer.code == Reply.SUCCESS


async def offset_of(client: RemotingClient, group: str = GROUP, queue_id: int = 1) -> int:
    fields = {"consumerGroup": group, "topic": TOPIC, "queueId": queue_id}
    return int((await client.call(Request.QUERY_CONSUMER_OFFSET, **fields)).fields["offset"])


async def documented(client: RemotingClient, code: int, **fields: object) -> Any:
    answer = await client.call(code, **fields)
    assert answer.code == Reply.SUCCESS, answer
    return loads(answer.body)


async def put(client: RemotingClient, code: int, document: object) -> Command:
    return await client.call(code, json.dumps(document).encode())


async def test_a_topic_is_created_changed_and_deleted(tmp_path: Path) -> None:
    async with classic(tmp_path) as (_, client):
        for attributes in ("+message.type=FIFO", ""):
            answer = await client.call(
                Admin.UPDATE_AND_CREATE_TOPIC, **NEW_TOPIC, attributes=attributes
            )
            assert answer.code == Reply.SUCCESS, answer
        assert await documented(client, Admin.GET_TOPIC_CONFIG, topic="new") == {
            **{"attributes": {"message.type": "FIFO"}, "order": False, "perm": 6},
            **{"readQueueNums": 3, "topicFilterType": "SINGLE_TAG", "topicName": "new"},
            **{"topicSysFlag": 0, "writeQueueNums": 2},
        }
        for perm, kept in ((7, 6), (5, 4), (15, 6)):  # bits without a meaning here are dropped
            answer = await client.call(Admin.UPDATE_AND_CREATE_TOPIC, **{**NEW_TOPIC, "perm": perm})
            assert answer.code == Reply.SUCCESS, answer
            config = await documented(client, Admin.GET_TOPIC_CONFIG, topic="new")
            assert config["perm"] == kept
        for _ in range(2):  # an unknown topic is no error
            answer = await client.call(Admin.DELETE_TOPIC_IN_BROKER, topic="new")
            assert answer.code == Reply.SUCCESS
        answer = await client.call(Admin.GET_TOPIC_CONFIG, topic="new")
        assert answer.code == Reply.TOPIC_NOT_EXIST
        for wrong in ({"topic": "a b"}, {"topic": "DefaultCluster"}, {"readQueueNums": 5_000}):
            answer = await client.call(Admin.UPDATE_AND_CREATE_TOPIC, **{**NEW_TOPIC, **wrong})
            assert answer.code == Reply.INVALID_PARAMETER, answer


async def test_a_topic_that_is_refused_does_not_stop_the_others_of_a_list(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, client):
        beans = [{"topicName": "one", "attributes": {"+message.type": "DELAY"}}]
        code = Admin.UPDATE_AND_CREATE_TOPIC_LIST
        wrong = [{"topicName": "a b"}, *beans, {"topicName": "DefaultCluster"}]
        answer = await put(client, code, {"topicConfigList": wrong})
        assert answer.code == Reply.INVALID_PARAMETER
        remark = answer.remark or ""
        assert "2 of 3 were refused" in remark
        assert all(name in remark for name in ("a b: ", "DefaultCluster: "))
        assert live.node.metadata.topic("one") is not None
        answer = await put(client, code, {"topicConfigList": beans})
        assert answer.code == Reply.SUCCESS
        topic = live.node.metadata.topic("one")
        assert topic is not None
        assert (topic.read_queues, topic.attributes) == (16, {"message.type": "DELAY"})


@pytest.mark.parametrize(
    ("code", "rows", "name", "wrong"),
    [
        (Admin.UPDATE_AND_CREATE_TOPIC_LIST, "topicConfigList", "topicName", {"perm": "x"}),
        (
            Admin.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            *("groupConfigList", "groupName", {"retryMaxTimes": "x"}),
        ),
    ],
)
async def test_an_entry_that_cannot_be_read_does_not_stop_the_others_of_a_list(
    code: Admin, rows: str, name: str, wrong: dict[str, str], tmp_path: Path
) -> None:
    async with classic(tmp_path) as (live, client):
        beans = [{name: ""}, {name: "one"}, 5, {name: []}, {name: "two", **wrong}, {name: "last"}]
        answer = await put(client, code, {rows: beans})
        assert answer.code == Reply.INVALID_PARAMETER
        remark = answer.remark or ""
        assert "4 of 6 were refused" in remark
        assert all(f"entry {number}: " in remark for number in (1, 3, 4, 5))
        assert remark.count("the body cannot be read: ") == 4
        known = {*live.node.metadata.topics, *live.node.metadata.groups}
        assert {"one", "last"} <= known
        assert "two" not in known
        many = [{name: "more"}, *[{name: "one"}] * 1_000]
        answer = await put(client, code, {rows: many})
        assert "1 of 1001 were refused, the others are done: entry 1001: " in (answer.remark or "")
        assert "more" in {*live.node.metadata.topics, *live.node.metadata.groups}


async def test_all_topics_are_listed_by_pages(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, client):
        whole = await documented(client, Admin.GET_ALL_TOPIC_CONFIG)
        assert whole["topicConfigTable"].keys() == live.node.metadata.topics.keys()
        found: dict[str, Any] = {}
        for first in range(len(whole["topicConfigTable"])):
            fields = {"topicSeq": first, "maxTopicNum": 1, "dataVersion": ""}
            answer = await client.call(Admin.GET_ALL_TOPIC_CONFIG, **fields)
            assert answer.fields["totalTopicNum"] == str(len(whole["topicConfigTable"]))
            found |= loads(answer.body)["topicConfigTable"]
        assert found == whole["topicConfigTable"]
        system = await documented(client, Admin.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        assert set(system["topicList"]) <= found.keys() - {TOPIC}


async def test_a_group_is_created_changed_and_deleted(tmp_path: Path) -> None:
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 2_000, "max": 9_000}}
    bean = {"groupName": "billing", "retryMaxTimes": 3, "groupRetryPolicy": policy}
    async with classic(tmp_path) as (live, client):
        metadata = live.node.metadata
        answer = await put(client, Admin.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, bean)
        assert answer.code == Reply.SUCCESS, answer
        group = metadata.group("billing")
        assert isinstance(group, Group)
        assert (group.max_attempts, group.backoff_ms()[:3]) == (4, (2_000, 4_000, 8_000))
        bean["groupRetryPolicy"] = {"customizedRetryPolicy": {"next": [10, 20]}}
        code = Admin.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        wrong = {"groupConfigList": [bean, {"groupName": "a b"}]}
        assert (await put(client, code, wrong)).code == Reply.INVALID_PARAMETER
        assert (await put(client, code, {"groupConfigList": [bean]})).code == Reply.SUCCESS
        found = await documented(client, Admin.GET_SUBSCRIPTIONGROUP_CONFIG, group="billing")
        assert found["groupRetryPolicy"]["customizedRetryPolicy"] == {"next": [10, 20]}
        fields = {"groupSeq": 0, "maxGroupNum": 100, "dataVersion": ""}
        answer = await client.call(Admin.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, **fields)
        assert answer.fields["totalGroupNum"] == str(len(metadata.groups))
        assert loads(answer.body)["subscriptionGroupTable"]["billing"] == found
        for _ in range(2):  # an unknown group is no error
            answer = await client.call(
                Admin.DELETE_SUBSCRIPTIONGROUP, groupName="billing", cleanOffset="true"
            )
            assert answer.code == Reply.SUCCESS
        answer = await client.call(Admin.GET_SUBSCRIPTIONGROUP_CONFIG, group="billing")
        assert answer.code == Reply.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize(
    ("code", "document"),
    [
        (Admin.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": {}}),
        (Admin.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, []),
        (Admin.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "a", "retryMaxTimes": "x"}),
        (
            Admin.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            {"groupName": "a", "groupRetryPolicy": {"customizedRetryPolicy": {"next": ["x"]}}},
        ),
        (Admin.AUTH_CREATE_USER, {"password": {}}),
    ],
)
async def test_a_body_of_the_wrong_form_is_an_error(
    code: Admin, document: object, tmp_path: Path
) -> None:
    async with classic(tmp_path) as (_, client):
        answer = await client.call(code, json.dumps(document).encode(), username="ann")
        assert answer.code == Reply.SYSTEM_ERROR
        assert "the body cannot be read" in (answer.remark or "")


async def test_a_value_that_no_field_can_hold_is_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    half = chr(0xD800)  # of a surrogate pair
    topics, group = (
        Admin.UPDATE_AND_CREATE_TOPIC_LIST,
        Admin.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    )
    policy = {"customizedRetryPolicy": {"next": [1 << 63]}}
    async with classic(tmp_path) as (_, client):
        for code, document in (
            (topics, {"topicConfigList": [{"topicName": "a", "readQueueNums": 1 << 40}]}),
            (topics, {"topicConfigList": [{"topicName": half}]}),
            (group, {"groupName": "a", "retryMaxTimes": (1 << 31) - 1}),
            (group, {"groupName": "a", "retryQueueNums": -(1 << 70)}),
            (group, {"groupName": "a", "groupRetryPolicy": policy}),
            (group, {"groupName": half}),
            (Request.HEART_BEAT, {"clientID": half, "consumerDataSet": [], "producerDataSet": []}),
        ):
            answer = await client.call(code, json.dumps(document).encode())
            # One entry of a list does not make the whole list unreadable.
            codes = (Reply.SYSTEM_ERROR, Reply.INVALID_PARAMETER if code == topics else None)
            assert answer.code in codes
            assert "the body cannot be read" in (answer.remark or ""), answer
    assert "Traceback" not in caplog.text


async def test_a_group_is_behind_only_on_topics_that_it_reads_with_offsets(
    tmp_path: Path,
) -> None:
    """Like Apache's answer: without topics that it has left, or reads by broadcast."""
    async with prepared(tmp_path) as (live, client):
        async with live.client() as wire:
            await create_topic(wire, "other")
            await create_group(wire, "all")

        async def topics(group: str) -> set[str]:
            found = await documented(client, Admin.GET_CONSUME_STATS, consumerGroup=group)
            return {key.topic for key in found["offsetTable"]}

        assert await topics(GROUP) == {TOPIC}
        await client.call(Request.HEART_BEAT, heartbeat("c1", GROUP, 1, other="*"))
        assert await topics(GROUP) == set()
        of_broker = await documented(client, Admin.GET_BROKER_CONSUME_STATS, isOrder="false")
        assert of_broker["totalDiff"] == 0
        await client.call(Request.HEART_BEAT, heartbeat("c1", GROUP, 2, **{TOPIC: "*"}))
        assert await topics(GROUP) == {TOPIC}
        await client.call(Request.HEART_BEAT, heartbeat("c1", "all", 1, **{TOPIC: "*"}))
        assert await topics("all") == set()


async def test_a_broadcast_group_of_either_protocol_is_behind_on_nothing(tmp_path: Path) -> None:
    async with prepared(tmp_path) as (live, client), live.client() as wire:
        body = heartbeat("c1", "classic", 1, **{TOPIC: "*"})
        body = body.replace(b"CLUSTERING", b"BROADCASTING")
        assert (await client.call(Request.HEART_BEAT, body)).code == Reply.SUCCESS
        assert await pulled(client, consumerGroup="classic", queueOffset=1, sysFlag=0)
        await create_group(wire, "grpc")
        one = Desk(live, live.node.acks, live.node.pulls)
        for offset in (-1, 1):
            request = v2.PullMessageRequest(
                group=v2.Resource(name="grpc"),
                message_queue=v2.MessageQueue(topic=v2.Resource(name=TOPIC), id=1),
                offset=offset,
            )
            live.node.pulls.pull_message(request, one.context())
        live.node.pulls.close()  # commits what the clients have read
        for group in ("classic", "grpc"):
            found = await documented(client, Admin.GET_CONSUME_STATS, consumerGroup=group)
            assert found["offsetTable"] == {}
            told = v1.DescribeGroupRequest(name=group)
            described = await wire.call(paths.DESCRIBE_GROUP, told, v1.DescribeGroupResponse)
            assert (described.lag, list(described.queues)) == (0, [])


async def test_statistics_of_a_group_have_every_queue(tmp_path: Path) -> None:
    async with prepared(tmp_path) as (live, client):
        found = await documented(client, Admin.GET_CONSUME_STATS, consumerGroup=GROUP)
        rows = found["offsetTable"]
        assert rows.keys() == {QueueKey("broker-a", queue_id, TOPIC) for queue_id in (0, 1)}
        row = rows[QueueKey("broker-a", 1, TOPIC)]
        assert (row["brokerOffset"], row["consumerOffset"]) == (2, 1)
        assert row["lastTimestamp"] > 0
        found = await documented(client, Admin.GET_CONSUME_STATS, consumerGroup="none")
        assert found == {"consumeTps": 0.0, "offsetTable": {}}
        found = await documented(client, Admin.GET_BROKER_CONSUME_STATS, isOrder="false")
        assert (found["totalDiff"], found["brokerAddr"]) == (1, live.bound.remoting)
        found = await documented(client, Admin.GET_BROKER_CONSUME_STATS, isOrder="true")
        assert found["consumeStatsList"] == []
        found = await documented(client, Admin.QUERY_CONSUME_TIME_SPAN, topic=TOPIC, group=GROUP)
        empty, filled = sorted(
            found["consumeTimeSpanSet"], key=lambda each: each["messageQueue"]["queueId"]
        )
        assert (empty["minTimeStamp"], empty["delayTime"]) == (-1, 0)
        assert 0 < filled["minTimeStamp"] == filled["consumeTimeStamp"] <= filled["maxTimeStamp"]


async def test_topics_and_groups_are_found_by_each_other(tmp_path: Path) -> None:
    async with prepared(tmp_path) as (_, client):
        await client.call(Request.HEART_BEAT, heartbeat(group="online"))
        found = await documented(client, Admin.QUERY_TOPIC_CONSUME_BY_WHO, topic=TOPIC)
        assert found == {"groupList": ["online", GROUP]}
        found = await documented(client, Admin.QUERY_TOPICS_BY_CONSUMER, group=GROUP)
        assert found == {"topicList": [TOPIC]}
        found = await documented(client, Admin.QUERY_TOPICS_BY_CONSUMER, group="online")
        assert found == {"topicList": [TOPIC]}


async def test_offsets_are_reset_and_copied(tmp_path: Path) -> None:
    async with prepared(tmp_path) as (live, client):
        async with live.client() as wire:
            await create_group(wire, "copy")
        fields = {"topic": TOPIC, "group": GROUP, "isForce": "true"}
        code = Admin.INVOKE_BROKER_TO_RESET_OFFSET
        found = await documented(client, code, **fields, timestamp=-1)
        key = QueueKey("broker-a", 1, TOPIC)
        assert found["offsetTable"] == {QueueKey("broker-a", 0, TOPIC): 0, key: 2}
        found = await documented(client, code, **fields, timestamp=0, queueId=1, offset=1)
        assert found["offsetTable"] == {key: 1}
        found = await documented(client, code, **fields, timestamp=-3_600_000, queueId=1)
        assert found["offsetTable"] == {key: 2}, "a negative time replays nothing"
        found = await documented(client, code, **fields, timestamp=0, queueId=1, offset=1)
        answer = await client.call(code, **fields, timestamp=0, queueId=1, offset=9)
        assert answer.code == Reply.INVALID_PARAMETER
        assert "holds offsets 0 to 2" in (answer.remark or "")
        fields = {"srcGroup": GROUP, "destGroup": "copy", "topic": TOPIC}
        assert (await client.call(Admin.CLONE_GROUP_OFFSET, **fields)).code == Reply.SUCCESS
        assert await offset_of(client, "copy") == 1
        answer = await client.call(Admin.CLONE_GROUP_OFFSET, **{**fields, "destGroup": "none"})
        assert answer.code == Reply.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_an_offset_that_cannot_be_copied_does_not_stop_the_others(tmp_path: Path) -> None:
    async with prepared(tmp_path) as (live, client):
        async with live.client() as wire:
            await create_group(wire, "copy")
            await create_topic(wire, "a", queues=2)
        live.node.offsets.commit("a", GROUP, 1, 0)
        live.node.meta_log.write_topic(Topic("a", 1, 1))  # it has no queue 1 any more
        fields = {"srcGroup": GROUP, "destGroup": "copy", "topic": ""}
        answer = await client.call(Admin.CLONE_GROUP_OFFSET, **fields)
        assert answer.code != Reply.SUCCESS
        assert "1 of 2 were refused, the others are done: a, queue 1: " in (answer.remark or "")
        assert await offset_of(client, "copy") == 1


async def test_connected_clients_of_both_protocols_are_listed(tmp_path: Path) -> None:
    async with prepared(tmp_path) as (live, client):
        answer = await client.call(Admin.GET_CONSUMER_CONNECTION_LIST, consumerGroup=GROUP)
        assert (answer.code, answer.remark) == (206, f"the consumer group[{GROUP}] not online")
        await client.call(Request.HEART_BEAT, heartbeat("c1", GROUP, 1, **{TOPIC: "a || b"}))
        found = await documented(client, Admin.GET_CONSUMER_CONNECTION_LIST, consumerGroup=GROUP)
        (connection,) = found["connectionSet"]
        assert (connection["clientId"], connection["language"]) == ("c1", "JAVA")
        assert found["messageModel"] == "CLUSTERING"
        assert found["subscriptionTable"][TOPIC]["tagsSet"] == ["a", "b"]
        group = "CLIENT_INNER_PRODUCER"
        found = await documented(client, Admin.GET_PRODUCER_CONNECTION_LIST, producerGroup=group)
        assert found["connectionSet"] == [connection]
        found = await documented(client, Admin.GET_ALL_PRODUCER_INFO)
        assert found["data"].keys() == {group}
        answer = await client.call(Admin.GET_PRODUCER_CONNECTION_LIST, producerGroup="none")
        assert answer.code == Reply.SYSTEM_ERROR
        async with live.client("grpc-client") as wire:
            stream = telemetry(wire)
            settings = v2.Settings(client_type=v2.PUSH_CONSUMER)
            settings.subscription.group.name = "grpc-group"
            settings.subscription.subscriptions.add(topic=v2.Resource(name=TOPIC))
            await stream.write(v2.TelemetryCommand(settings=settings))
            await until(lambda: any(each.group == "grpc-group" for each in live.node.clients))
            code = Admin.GET_CONSUMER_CONNECTION_LIST
            found = await documented(client, code, consumerGroup="grpc-group")
            assert found["connectionSet"][0]["clientId"] == "grpc-client"
            assert found["consumeType"] == "CONSUME_POP"
            stream.cancel()


async def test_rates_are_counted_from_the_log(tmp_path: Path) -> None:
    async with prepared(tmp_path) as (_, client):
        code = Admin.VIEW_BROKER_STATS_DATA
        found = await documented(client, code, statsName="TOPIC_PUT_NUMS", statsKey=TOPIC)
        assert [found[name]["sum"] for name in ("statsMinute", "statsHour", "statsDay")] == [2] * 3
        for name, key in (
            ("GROUP_GET_NUMS", f"{TOPIC}@{GROUP}"),
            ("BROKER_PUT_NUMS", "broker-a"),
            ("BROKER_GET_NUMS", "broker-a"),
            ("BROKER_PUT_NUMS", "DefaultCluster"),
        ):
            found = await documented(client, code, statsName=name, statsKey=key)
            assert found["statsMinute"]["sum"] == 0  # the first request has nothing to compare
        for name, key in (("TOPIC_PUT_NUMS", "none"), ("NONE", TOPIC), ("BROKER_PUT_NUMS", "x")):
            answer = await client.call(code, statsName=name, statsKey=key)
            assert answer.remark == f"The stats <{name}> <{key}> not exist"


async def test_bytes_and_messages_sent_back_are_counted_between_requests(tmp_path: Path) -> None:
    async with prepared(tmp_path) as (live, client):
        names = {
            "TOPIC_PUT_SIZE": TOPIC,
            "GROUP_GET_SIZE": f"{TOPIC}@{GROUP}",
            "SNDBCK_PUT_NUMS": f"{TOPIC}@{GROUP}",
        }

        async def sums() -> dict[str, int]:
            code = Admin.VIEW_BROKER_STATS_DATA
            return {
                name: (await documented(client, code, statsName=name, statsKey=key))["statsDay"][
                    "sum"
                ]
                for name, key in names.items()
            }

        assert set((await sums()).values()) == {0}
        assert (await client.post(message(b"12345"))).code == Reply.SUCCESS
        pulled = await client.post(pulling())
        found = records(pulled.body)
        asked = {"group": GROUP, "offset": found[0].physical_offset, "delayLevel": 0}
        answer = await client.call(Request.CONSUMER_SEND_MSG_BACK, **asked)
        assert answer.code == Reply.SUCCESS, answer
        wanted = {
            "TOPIC_PUT_SIZE": 5,
            "GROUP_GET_SIZE": len(pulled.body),
            "SNDBCK_PUT_NUMS": 1,
        }
        assert await sums() == wanted
        total = live.node.runtime.counters.received[TOPIC, GROUP, False]
        assert (total.messages, total.bytes) == (len(found), len(pulled.body))


async def test_run_time_figures_have_every_name_of_the_recorded_ones(tmp_path: Path) -> None:
    asked = {
        (each.connection, each.command.opaque)
        for each in frames("mqadmin")
        if each.from_client and each.command.code == Admin.GET_BROKER_RUNTIME_INFO
    }
    recorded = next(
        json.loads(each.command.body)["table"]
        for each in frames("mqadmin")
        if not each.from_client and (each.connection, each.command.opaque) in asked
    )
    async with prepared(tmp_path) as (_, client):
        table = (await documented(client, Admin.GET_BROKER_RUNTIME_INFO))["table"]
    # Names with a delay level or a path: one for each.
    assert {name for name in recorded if "_" not in name} <= table.keys()
    # Forms that Apache's exporter parses.
    for name in ("commitLogDirCapacity", "putMessageDistributeTime"):
        form = re.sub(r"\d+(\.\d+)?( \w+iB)?", "0", recorded[name].strip())
        assert re.sub(r"\d+(\.\d+)?( \w+iB)?", "0", table[name]) == form, name


async def test_units_of_a_queue_are_listed(tmp_path: Path) -> None:
    async with prepared(tmp_path) as (_, client):
        fields = {"topic": TOPIC, "queueId": 1, "index": 1, "count": 10}
        found = await documented(client, Admin.QUERY_CONSUME_QUEUE, **fields)
        assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 2)
        (unit,) = found["queueData"]
        assert unit["tagsCode"] == 2598919  # Java's hash of TagA
        assert unit["physicSize"] > 0
        answer = await client.call(Admin.QUERY_CONSUME_QUEUE, **{**fields, "queueId": 9})
        assert answer.code == Reply.SYSTEM_ERROR


async def test_settings_are_listed_without_secrets(tmp_path: Path) -> None:
    async with classic(tmp_path, init_authentication_user=FIRST_USER) as (_, client):
        answer = await client.call(Admin.GET_BROKER_CONFIG)
        lines = answer.body.decode().splitlines()
        assert "brokerName=broker-a" in lines
        assert "initAuthenticationUser=(hidden)" in lines
        assert json.loads(answer.fields["version"])["counter"] > 0


async def test_a_policy_that_is_invalid_changes_nothing(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, client):
        for secret, code in (("of-ann", Reply.SUCCESS), ("another", Reply.INVALID_PARAMETER)):
            body = json.dumps({"username": "ann", "password": f"secret-{secret}"}).encode()
            assert (await client.call(Admin.AUTH_CREATE_USER, body, username="ann")).code == code
        entry = {"resource": "Topic:a", "actions": ["Pub"], "decision": "Allow"}
        for policies in (
            [{"policyType": "Default", "entries": [entry]}],
            [{"entries": [entry, {**entry, "resource": "a"}]}],
            [{"entries": [entry, {**entry, "actions": ["none"]}]}],
            [{"entries": [entry, {**entry, "sourceIps": ["x"]}]}],
        ):
            body = json.dumps({"policies": policies}).encode()
            answer = await client.call(Admin.AUTH_CREATE_ACL, body, subject="User:ann")
            assert answer.code == Reply.INVALID_PARAMETER, policies
        assert not live.node.metadata.users["ann"].policies
        answer = await client.call(Admin.AUTH_GET_ACL, subject="User:ann")
        assert (answer.code, answer.body) == (Reply.SUCCESS, b"")
        answer = await client.call(Admin.AUTH_GET_ACL, subject="Role:ann")
        assert answer.code == Reply.INVALID_PARAMETER
        answer = await client.call(Admin.AUTH_GET_USER, username="bob")
        assert (answer.code, answer.body) == (Reply.SUCCESS, b"")


async def test_codes_that_do_not_apply_are_refused_with_the_reason(tmp_path: Path) -> None:
    async with classic(tmp_path) as (_, client):
        answer = await client.call(2004)
        assert answer.code == Reply.REQUEST_CODE_NOT_SUPPORTED
        assert "not set at run time" in (answer.remark or "")


async def test_settings_change_at_run_time_or_name_the_restart(tmp_path: Path) -> None:
    async with classic(tmp_path, max_topics=1_000) as (live, client):

        async def change(body: bytes) -> tuple[int, str]:
            answer = await client.call(Admin.UPDATE_BROKER_CONFIG, body)
            return answer.code, answer.remark or ""

        assert (await change(b"# by a tool\nfileReservedTime=48\nmaxTopics = 1\n"))[0] == 0
        store = live.node.store
        assert store.retention.rules.reserved_ms == 48 * 3_600_000
        shown = (await client.call(Admin.GET_BROKER_CONFIG)).body.decode().splitlines()
        assert {"fileReservedTime=48", "maxTopics=1"} <= set(shown)
        # What a tool has read may come back as a whole.
        assert (await change("\n".join(shown).encode()))[0] == 0
        async with live.client() as wire:
            created = await create_topic(wire, "beyond")
        assert (created.code, created.message) == (v2.FORBIDDEN, "maxTopics=1 reached")
        for body, words in (
            (b"fileReservedTime=72\nbrokerName=other", "brokerName: read at the start"),
            (b"fileReservedTime=72\nnoSuchKey=1", "unknown setting noSuchKey"),
            (b"fileReservedTime=72\nmaxTopics=many", "maxTopics is 'many'"),
            (b"fileReservedTime=72\ndeleteWhen=25", "deleteWhen is '25'"),
            (b"fileReservedTime=72\nautoCreateSubscriptionGroup=1", "must be true or false"),
            (b"\xff=1", "utf-8"),
        ):
            code, remark = await change(body)
            assert code, body
            assert words in remark, remark
            assert store.retention.rules.reserved_ms == 48 * 3_600_000


async def test_both_protocols_change_the_same_settings(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, client), live.client() as wire:

        async def change(dry_run: bool, **values: str) -> v1.ChangeConfigResponse:
            request = v1.ChangeConfigRequest(values=values, dry_run=dry_run)
            answer: v1.ChangeConfigResponse = await wire.call(
                paths.CHANGE_CONFIG, request, v1.ChangeConfigResponse
            )
            return answer

        assert list((await change(True, fileReservedTime="24")).keys) == ["fileReservedTime"]
        assert live.node.store.retention.rules.reserved_ms == 72 * 3_600_000
        assert (await change(False, fileReservedTime="24")).code == v2.OK
        assert not (await change(False, fileReservedTime="24")).keys
        assert (await change(False, brokerName="other")).code == v2.BAD_REQUEST
        body = (await client.call(Admin.GET_BROKER_CONFIG)).body
        assert b"fileReservedTime=24\n" in body
        request = v1.GetConfigRequest(keys=["fileReservedTime"])
        shown = await wire.call(paths.GET_CONFIG, request, v1.GetConfigResponse)
        (entry,) = shown.entries
        assert (entry.value, entry.origin) == ("24", "run time")


def test_totals_are_compared_with_the_begin_of_each_window() -> None:
    totals = Totals()
    assert totals.note("a", 100, 0).minute.sum == 0
    found = totals.note("a", 130, 30 * SECOND_NS)
    assert (found.minute.sum, found.minute.tps) == (30, 1.0)
    totals.note("a", 200, 60 * SECOND_NS)
    found = totals.note("a", 260, 90 * SECOND_NS)
    assert (found.minute.sum, found.hour.sum) == (130, 160)
    assert totals.note("a", 5, 100 * SECOND_NS).hour.sum == 0  # an offset was set back
    assert totals.note("b", 5, 0).day.tps == 0.0
    assert totals.note("b", 9, 0).day.tps == 0.0  # at the same moment
