"""Classic clients that reach only a proxy: routes, requests in both directions, lost brokers."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cometmq.broker.proxy.base.config import ProxyConfig
from cometmq.broker.proxy.server import ProxyServer
from cometmq.front.config import DoorConfig
from cometmq.remoting.admin_codes import Admin
from cometmq.remoting.codec import FRAME_BYTES_MAX, encode
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command, reply
from cometmq.tests.broker.classic.test_classic_replies import answering
from cometmq.tests.broker.classic.test_classic_transactions import COMMIT, as_producer, end, half
from cometmq.tests.broker.classic_wire import (
    GROUP,
    TOPIC,
    heartbeat,
    message,
    port_of,
    pulled,
    pulling,
)
from cometmq.tests.broker.live import Live, create_topic, running, until
from cometmq.tests.broker.proxy_classic_wire import classic_nameserver, classic_proxy, hidden
from cometmq.tests.front.conftest import DOORS
from cometmq.tests.harness.ports import free_ports
from cometmq.tests.remoting.client import WAIT_S, RemotingClient, wait_for_routes

_T = TypeVar("_T")

QUEUE = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 1, "bname": "broker-a"}


@asynccontextmanager
async def behind_a_proxy(
    path: Path, **broker: Any
) -> AsyncIterator[tuple[Live, ProxyServer, RemotingClient]]:
    """Run a broker and a proxy; yield them and a client of the proxy, which has the topic."""
    async with (
        classic_nameserver() as names,
        running(hidden(path / "a", names.grpc, **broker)) as live,
        classic_proxy(names) as (proxy, port),
    ):
        async with live.client() as wire:
            await create_topic(wire, TOPIC, queues=2)
        await wait_for_routes(port, [TOPIC])
        async with RemotingClient(port) as client:
            yield live, proxy, client


@asynccontextmanager
async def two_groups(path: Path) -> AsyncIterator[tuple[Live, Live, int]]:
    """Run two groups that have the topic; the first has one of its own, too."""
    async with classic_nameserver() as names:
        first = hidden(path / "a", names.grpc)
        second = hidden(path / "b", names.grpc, broker_name="broker-b")
        async with (
            running(first) as one,
            running(second) as other,
            classic_proxy(names) as (_, port),
        ):
            for live, topics in ((one, (TOPIC, "own")), (other, (TOPIC,))):
                async with live.client() as wire:
                    for topic in topics:
                        await create_topic(wire, topic, queues=2)
            async with RemotingClient(port) as client:
                await eventually(lambda: routed(client), lambda brokers: len(brokers) == 2)

                async def send() -> int:
                    return (await client.post(message(b="own", n=""))).code

                # The proxy has the topics, too, once it can tell where this one belongs.
                await eventually(send, lambda code: code == Reply.SUCCESS)
            yield one, other, port


async def eventually(ask: Callable[[], Awaitable[_T]], is_right: Callable[[_T], bool]) -> None:
    """Ask until the answer is right."""
    async with asyncio.timeout(WAIT_S):
        while not is_right(await ask()):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)


async def routed(client: RemotingClient, topic: str = TOPIC) -> dict[str, dict[str, str]]:
    """Return the addresses of each group in the route of a topic."""
    answer = await client.call(Request.GET_ROUTEINFO_BY_TOPIC, topic=topic)
    if answer.code:
        return {}
    brokers = json.loads(answer.body)["brokerDatas"]
    return {each["brokerName"]: each["brokerAddrs"] for each in brokers}


async def test_a_client_needs_no_other_address_than_the_proxys(tmp_path: Path) -> None:
    async with behind_a_proxy(tmp_path) as (live, proxy, client):
        own = "{}:{}".format(*client.writer.get_extra_info("peername"))
        assert await routed(client) == {"broker-a": {"0": own}}
        info = await client.call(Request.GET_BROKER_CLUSTER_INFO)
        assert b'"brokerAddrs":{0:"%s"}' % own.encode() in info.body, "with bare keys, as asked for"
        sent = await client.post(message())
        assert (sent.code, sent.fields["queueOffset"]) == (Reply.SUCCESS, "0")
        assert sent.version == 513
        assert [record.body for record in await pulled(client)] == [b"hello"]
        assert (await client.call(Request.HEART_BEAT, heartbeat())).code == Reply.SUCCESS
        listed = await client.call(Request.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=GROUP)
        assert json.loads(listed.body) == {"consumerIdList": ["c1"]}
        told = await client.next_request()
        assert (told.code, told.is_oneway) == (Request.NOTIFY_CONSUMER_IDS_CHANGED, True)
        client.oneway(Request.UPDATE_CONSUMER_OFFSET, **QUEUE, commitOffset=1)
        await until(lambda: live.node.offsets.get(TOPIC, GROUP, 1) == 1)
        waiting = client.post(pulling(queueOffset=1, sysFlag=2 | 4, suspendTimeoutMillis=20_000))
        assert (await client.post(message(b"later"))).code == Reply.SUCCESS
        assert b"later" in (await asyncio.wait_for(waiting, WAIT_S)).body
        unknown = await client.call(Request.GET_ROUTEINFO_BY_TOPIC, topic="unknown")
        assert unknown.code == Reply.TOPIC_NOT_EXIST
        refused = await client.call(Admin.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
        assert refused.code == Reply.REQUEST_CODE_NOT_SUPPORTED
        assert "nameservers" in (refused.remark or "")
        values = {
            sample.name.removesuffix("_total"): sample.value
            for family in proxy.metric_families()
            for sample in family.samples
        }
        assert values["cometmq_proxy_remoting_connections"] == 1
        assert values["cometmq_proxy_remoting_upstreams"] == 1
        assert values["cometmq_proxy_remoting_forwarded"] >= 9
        assert values["cometmq_proxy_remoting_unreachable"] == 0


async def test_requests_of_the_broker_reach_the_client_behind_the_proxy(tmp_path: Path) -> None:
    pushed: list[Command] = []

    def take(command: Command) -> Command | None:
        if command.is_oneway:
            return None
        pushed.append(command)
        return reply(Reply.SUCCESS, "taken", {"own": "field"}, b"running")

    async with behind_a_proxy(tmp_path, transaction_check_interval=50, transaction_time_out=1) as (
        live,
        _,
        client,
    ):
        client.on_request = take
        await client.call(Request.HEART_BEAT, as_producer("asker"))
        assert (await client.post(half("a"))).code == Reply.SUCCESS
        told = await client.next_request()
        while told.code == Request.NOTIFY_CONSUMER_IDS_CHANGED:
            told = await client.next_request()
        assert (told.code, told.fields["msgId"]) == (Request.CHECK_TRANSACTION_STATE, "a")
        offset = told.fields["tranStateTableOffset"]
        assert await end(client, "a", offset, COMMIT, fromTransactionCheck="true") == 0
        assert [record.body for record in await pulled(client)] == [b"half"]
        async with RemotingClient(port_of(live)) as direct:
            assert (await direct.post(answering("asker"))).code == Reply.SUCCESS
            info = await direct.call(
                Request.GET_CONSUMER_RUNNING_INFO, consumerGroup="other", clientId="asker"
            )
        assert (info.body, info.fields, info.remark) == (b"running", {"own": "field"}, "taken")
        codes = [command.code for command in pushed]
        assert codes == [Request.PUSH_REPLY_MESSAGE_TO_CLIENT, Request.GET_CONSUMER_RUNNING_INFO]


async def test_a_client_that_leaves_takes_its_connections_to_brokers_along(tmp_path: Path) -> None:
    async with behind_a_proxy(tmp_path) as (live, _, client):
        await client.call(Request.HEART_BEAT, heartbeat("stays"))
        port = client.writer.get_extra_info("peername")[1]

        async def members() -> bytes:
            fields = {"consumerGroup": GROUP}
            return (await client.call(Request.GET_CONSUMER_LIST_BY_GROUP, **fields)).body

        async with RemotingClient(port) as other:
            assert (await other.call(Request.HEART_BEAT, heartbeat("leaves"))).code == 0
            assert b"leaves" in await members()
            # Its answer is not waited for.
            other.oneway(Request.UPDATE_CONSUMER_OFFSET, **QUEUE, commitOffset=0)
        await eventually(members, lambda ids: b"leaves" not in ids)
        assert b"stays" in await members()
        assert live.node.offsets.get(TOPIC, GROUP, 1) == 0


async def test_requests_go_to_the_group_that_they_name(tmp_path: Path) -> None:
    async with two_groups(tmp_path) as (one, other, port), RemotingClient(port) as client:
        assert set(await routed(client)) == {"broker-a", "broker-b"}
        for name, live in (("broker-a", one), ("broker-b", other)):
            assert (await client.post(message(name.encode(), n=name))).code == Reply.SUCCESS
            await until(lambda: live.node.store.max_offset(TOPIC, 1) == 1)  # noqa: B023
            (record,) = await pulled(client, bname=name)
            assert record.body == name.encode()
        assert (await client.call(Request.HEART_BEAT, heartbeat())).code == Reply.SUCCESS
        for live in (one, other):
            async with RemotingClient(port_of(live)) as direct:
                fields = {"consumerGroup": GROUP}
                listed = await direct.call(Request.GET_CONSUMER_LIST_BY_GROUP, **fields)
                assert listed.code == Reply.SUCCESS, "a heartbeat reaches every group"
        for name in ("broker-a", "broker-b"):
            queue = {"brokerName": name, "topic": TOPIC, "queueId": 1}
            body = {"clientId": "c1", "consumerGroup": GROUP, "mqSet": [queue]}
            done = await client.call(Request.LOCK_BATCH_MQ, json.dumps(body).encode())
            assert json.loads(done.body) == {"lockOKMQSet": [queue]}
        left = await client.call(Request.UNREGISTER_CLIENT, clientID="c1", consumerGroup=GROUP)
        assert left.code == Reply.SUCCESS
        async with RemotingClient(port_of(other)) as direct:
            listed = await direct.call(Request.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=GROUP)
            assert listed.code == Reply.SYSTEM_ERROR, "no member is left"


async def test_a_request_without_a_broker_is_refused_if_several_groups_have_its_topic(
    tmp_path: Path,
) -> None:
    async with two_groups(tmp_path) as (one, _, port), RemotingClient(port) as client:

        async def send() -> Command:
            return await client.post(message(n=""))

        # As soon as the proxy knows both groups of the topic.
        await eventually(send, lambda answer: answer.code == Reply.VERSION_NOT_SUPPORTED)
        assert "names no broker" in ((await send()).remark or "")
        refused = await client.post(pulling())
        assert refused.code == Reply.VERSION_NOT_SUPPORTED
        unknown = await client.post(message(n="broker-x"))
        assert unknown.code == Reply.SERVICE_NOT_AVAILABLE
        assert "broker-x" in (unknown.remark or "")
        # By their topic and position.
        text = "TRAN_MSG\x01true\x02PGROUP\x01producers\x02UNIQ_KEY\x01a\x02"
        sent = await client.post(message(b"half", text, b="own", n="", f=4))
        assert sent.code == Reply.SUCCESS
        before = one.node.store.max_offset("own", 1)
        assert await end(client, "a", sent.fields["queueOffset"], COMMIT) in (0, 1)
        await until(lambda: one.node.store.max_offset("own", 1) == before + 1)


async def test_a_request_waits_for_a_broker_that_starts_again(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    async with (
        classic_nameserver() as names,
        classic_proxy(names) as (_, at),
        RemotingClient(at) as client,
    ):
        chosen = hidden(tmp_path, names.grpc)
        chosen = replace(chosen, broker=replace(chosen.broker, remoting_listen_port=port))
        async with running(chosen) as live:
            async with live.client() as wire:
                await create_topic(wire, TOPIC, queues=2)
            await wait_for_routes(at, [TOPIC])
            assert (await client.post(message())).code == Reply.SUCCESS
        vain = await client.post(message())
        assert vain.code == Reply.SERVICE_NOT_AVAILABLE
        assert "can be reached" in (vain.remark or "")
        late = client.post(message())
        async with running(chosen):
            answer = await asyncio.wait_for(late, WAIT_S)
            while answer.code == Reply.SERVICE_NOT_AVAILABLE:  # it has taken longer to start
                answer = await client.post(message())
            assert answer.code == Reply.SUCCESS


async def test_a_follower_is_reached_while_there_is_no_leader(tmp_path: Path) -> None:
    async with classic_nameserver() as names:
        first = hidden(tmp_path / "a", names.grpc)
        second = hidden(tmp_path / "b", names.grpc, broker_id=1)
        second = replace(second, ha=replace(second.ha, broker_role="SLAVE"))
        async with (
            running(first) as leader,
            running(second) as follower,
            classic_proxy(names) as (_, port),
        ):
            await until(lambda: follower.node.replication.leader_alive)
            async with leader.client() as wire:
                await create_topic(wire, TOPIC, queues=2)
            await wait_for_routes(port, [TOPIC])
            async with RemotingClient(port) as client:
                assert (await client.call(Request.HEART_BEAT, heartbeat())).code == 0
                assert (await client.post(message())).code == Reply.SUCCESS
                await until(lambda: follower.node.store.max_offset(TOPIC, 1) == 1)
                await leader.server.stop(0.2)
                await until(lambda: not follower.node.replication.leader_alive)
                # With the subscription of the heartbeat, which has reached the follower.
                assert len(await pulled(client, sysFlag=0, subVersion=1)) == 1
                assert (await client.post(message())).code == Reply.SERVICE_NOT_AVAILABLE
                await eventually(
                    lambda: routed(client), lambda brokers: set(brokers["broker-a"]) == {"1"}
                )


@pytest.mark.parametrize("door_name", DOORS)
async def test_one_port_serves_classic_and_grpc_clients(door_name: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    async with (
        classic_nameserver() as names,
        running(hidden(tmp_path, names.grpc)) as live,
        classic_proxy(
            names,
            door=DoorConfig(front_door=door_name),
            grpc_server_port=port,
            remoting_listen_port=port,
            remoting_advertise="proxy.example:80",
        ) as (_, at),
    ):
        assert at == port
        async with live.client() as wire:
            await create_topic(wire, TOPIC, queues=2)
        await wait_for_routes(port, [TOPIC])
        async with RemotingClient(port) as client:
            assert await routed(client) == {"broker-a": {"0": "proxy.example:80"}}
            assert (await client.post(message())).code == Reply.SUCCESS


async def test_bad_frames_close_their_connection_and_hurt_no_other(tmp_path: Path) -> None:
    async with behind_a_proxy(tmp_path) as (_, _, client):
        port = client.writer.get_extra_info("peername")[1]
        for bad in (
            struct.pack(">i", FRAME_BYTES_MAX + 1),
            struct.pack(">iI", 8, 99) + bytes(4),
            struct.pack(">iI", 8, 7 << 24 | 4) + bytes(4),
            struct.pack(">iI", 6, 2) + b"[]",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(bad)
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b"", bad
            writer.close()
        strange = Command(1, flag=1, opaque=77)
        client.writer.write(encode(strange))  # a response without a request
        for code in (-1, 9_999, (1 << 31) - 1, Request.CHECK_TRANSACTION_STATE):
            assert (await client.call(code)).code == Reply.REQUEST_CODE_NOT_SUPPORTED
        for body in (b"", b"[" * 100_000, b"\xff", b'{"mqSet":7}'):
            assert (await client.call(Request.LOCK_BATCH_MQ, body)).code == Reply.SYSTEM_ERROR
        assert (await client.post(message())).code == Reply.SUCCESS


async def test_connections_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    async with (
        classic_nameserver() as names,
        running(hidden(tmp_path, names.grpc)) as live,
        classic_proxy(names, door=DoorConfig(front_max_connections=16)) as (_, port),
    ):
        async with live.client() as wire:
            await create_topic(wire, TOPIC, queues=2)
        await wait_for_routes(port, [TOPIC])
        async with RemotingClient(port) as client:
            assert (await client.post(message())).code == Reply.SUCCESS
            with socket.create_connection(("127.0.0.1", port)) as second:
                second.settimeout(WAIT_S)
                closed = await asyncio.to_thread(second.recv, 1)
                assert closed == b""


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"remoting_listen_port": 70_000}, "remotingListenPort"),
        ({"remoting_listen_port": 5557}, "metricsPromExporterPort"),
        ({"remoting_advertise": "a:1,b:2"}, "remotingAdvertise"),
        ({"remoting_namesrv_addr": "nowhere"}, "nowhere"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ProxyServer(ProxyConfig(namesrv_addr="127.0.0.1:9876", **wrong), DoorConfig())
