"""The remoting port of a nameserver: routes, clusters and lists for classic clients."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.proto import paths, v1
from cometmq.remoting.bare_json import loads
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command
from cometmq.tests.remoting.client import RemotingClient
from cometmq.tests.remoting.recordings import frames

LEADER, FOLLOWER = v1.LEADER, v1.FOLLOWER


def registration(
    group: str = "broker-a",
    broker_id: int = 0,
    role: v1.ReplicaRole.ValueType = LEADER,
    *,
    remoting: str = "127.0.0.2:10911",
    topics: tuple[str, ...] = ("orders",),
    sequence: int = 1,
) -> v1.RegisterRequest:
    return v1.RegisterRequest(
        replica=v1.ReplicaIdentity(
            cluster="DefaultCluster",
            group=group,
            broker_id=broker_id,
            replica_uuid=f"{group}-{broker_id}",
            incarnation=1,
        ),
        addresses=v1.ReplicaAddresses(client=f"127.0.0.1:{8081 + broker_id}", remoting=remoting),
        role=role,
        epoch=1,
        registration_seq=sequence,
        table_version=1,
        full=True,
        topics=[
            v1.TopicRoute(name=name, read_queues=4, write_queues=4, perm=6, message_type=1)
            for name in topics
        ],
    )


@asynccontextmanager
async def serving(
    *registrations: v1.RegisterRequest, **more: Any
) -> AsyncIterator[tuple[RemotingClient, Any]]:
    config = NameserverConfig(
        bind_address="127.0.0.1", listen_port=0, remoting_listen_port=-1, **more
    )
    server = NameserverServer(config)
    address = await server.start()
    options = [("grpc.enable_http_proxy", 0)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        register = channel.unary_unary(paths.REGISTER)
        unregister = channel.unary_unary(paths.UNREGISTER)
        for request in registrations:
            await register(request.SerializeToString(), timeout=60)
        try:
            async with RemotingClient(server.remoting_port) as client:
                yield client, unregister
        finally:
            await server.stop(0)


async def route(client: RemotingClient, topic: str, version: int = 513) -> Command:
    command = Command(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, version=version)
    return await client.post(command)


async def test_the_recorded_route_and_cluster_are_answered_byte_for_byte() -> None:
    found: dict[int, Command] = {}
    for recorded in frames("push"):
        if recorded.server == "namesrv" and recorded.command.is_response:
            found.setdefault(recorded.command.code, recorded.command)
    cluster = next(
        recorded.command.body
        for recorded in frames("setup")
        if b"clusterAddrTable" in recorded.command.body
    )
    async with serving(registration()) as (client, _):
        answer = await route(client, "orders")
        assert answer.body == found[Reply.SUCCESS].body
        answer = await route(client, "nowhere")
        remark = (found[17].remark or "").replace("%RETRY%SmokeGroupPush-rec", "nowhere")
        assert (answer.code, answer.remark) == (17, remark)
        answer = await client.call(Request.GET_BROKER_CLUSTER_INFO)
        assert answer.body == cluster


async def test_old_clients_get_bare_numbers_and_standard_json_on_request() -> None:
    async with serving(registration()) as (client, _):
        answer = await route(client, "orders", 317)
        assert b'"brokerAddrs":{0:"127.0.0.2:10911"}' in answer.body
        answer = await client.call(
            Request.GET_ROUTEINFO_BY_TOPIC, topic="orders", acceptStandardJsonOnly="true"
        )
        assert json.loads(answer.body)["brokerDatas"][0]["brokerAddrs"] == {"0": "127.0.0.2:10911"}


async def test_the_leader_is_broker_0_and_followers_have_other_ids() -> None:
    rows = (
        registration("broker-a", 2, remoting="10.0.0.2:1"),
        registration("broker-a", 0, FOLLOWER, remoting="10.0.0.1:1"),
        registration("broker-a", 3, FOLLOWER, remoting="10.0.0.3:1"),
        registration("broker-a", 4, FOLLOWER, remoting=""),
        registration("broker-b", remoting="", topics=("orders", "grpc-only")),
    )
    async with serving(*rows) as (client, unregister):
        document = loads((await route(client, "orders")).body)
        assert [each["brokerName"] for each in document["brokerDatas"]] == ["broker-a"]
        addresses = {"0": "10.0.0.2:1", "2": "10.0.0.1:1", "3": "10.0.0.3:1"}
        assert document["brokerDatas"][0]["brokerAddrs"] == addresses
        assert document["queueDatas"][0]["perm"] == 6
        assert (await route(client, "grpc-only")).code == Reply.TOPIC_NOT_EXIST
        gone = v1.UnregisterRequest(replica=rows[0].replica, registration_seq=2)
        await unregister(gone.SerializeToString(), timeout=60)
        document = loads((await route(client, "orders")).body)
        del addresses["0"]
        assert document["brokerDatas"][0]["brokerAddrs"] == addresses, "for consumers"
        assert document["queueDatas"][0]["perm"] == 4, "not for producers"


async def test_a_retry_topic_has_a_route_before_it_exists() -> None:
    rows = (registration(), registration("broker-b", remoting=""))
    async with serving(*rows) as (client, _):
        document = loads((await route(client, "%RETRY%shop")).body)
        assert [each["brokerName"] for each in document["queueDatas"]] == ["broker-a"]
        assert document["queueDatas"][0]["readQueueNums"] == 1
        assert (await route(client, "%RETRY%")).code == Reply.TOPIC_NOT_EXIST
    async with serving(registration(remoting="")) as (client, _):
        assert (await route(client, "%RETRY%shop")).code == Reply.TOPIC_NOT_EXIST


async def test_the_topic_of_a_clusters_replies_has_a_route() -> None:
    async with serving(registration()) as (client, _):
        document = loads((await route(client, "DefaultCluster_REPLY_TOPIC")).body)
        assert [each["brokerName"] for each in document["queueDatas"]] == ["broker-a"]
        assert (await route(client, "other_REPLY_TOPIC")).code == Reply.TOPIC_NOT_EXIST


async def test_topics_are_listed() -> None:
    rows = (registration(), registration("broker-b", topics=("orders", "other")))
    async with serving(*rows) as (client, _):
        answer = await client.call(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert loads(answer.body) == {"topicList": ["orders", "other"]}
        answer = await client.call(Request.GET_TOPICS_BY_CLUSTER, cluster="none")
        assert loads(answer.body) == {"topicList": []}
        answer = await client.call(Request.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        names = ["DefaultCluster", "broker-a", "broker-b"]
        assert loads(answer.body) == {"brokerAddr": "127.0.0.2:10911", "topicList": names}


async def test_other_codes_are_not_supported() -> None:
    async with serving() as (client, _):
        answer = await client.call(9_999)
        assert (answer.code, answer.remark) == (3, " request type 9999 not supported")
        answer = await client.call(103)
        assert (answer.code, answer.remark) == (
            3,
            " request type 103 not supported: brokers register over gRPC (cometmq.v1.NameServer), "
            "not over remoting",
        )


async def test_a_nameserver_that_waits_for_its_brokers_says_so(tmp_path: Any) -> None:
    async with serving(registration(), namesrv_data_dir=str(tmp_path)):
        pass
    async with serving(namesrv_data_dir=str(tmp_path)) as (client, _):
        answer = await route(client, "orders")
        assert (answer.code, answer.remark) == (1, "name server not ready")


async def test_a_group_that_is_not_up_is_named_instead_of_a_topic_that_does_not_exist(
    tmp_path: Any,
) -> None:
    async with serving(registration(), namesrv_data_dir=str(tmp_path)):
        pass
    more = {"namesrv_data_dir": str(tmp_path), "wait_for_known_groups": 0}
    async with serving(registration("broker-b", topics=("other",)), **more) as (client, _):
        answer = await route(client, "orders")
        assert answer.code == Reply.SYSTEM_ERROR, "clients ask again"
        assert "may be in one that is not: broker-a. Start it" in (answer.remark or "")
        assert (await route(client, "other")).code == Reply.SUCCESS


async def test_a_nameserver_that_cannot_check_signatures_answers_routes_only() -> None:
    async with serving(registration(), authentication_enabled=True) as (client, _):
        assert (await route(client, "orders")).code == Reply.SUCCESS
        for code in (Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, 100):
            answer = await client.call(code)
            assert answer.code == Reply.REQUEST_CODE_NOT_SUPPORTED


def test_a_port_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="remotingListenPort is -2"):
        NameserverServer(NameserverConfig(remoting_listen_port=-2))
