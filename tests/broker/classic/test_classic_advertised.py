"""The address of a broker in routes of classic clients, where its own cannot be reached."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.messages.validation import MIXED
from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.proto import v2
from cometmq.remoting.codes import Reply, Request
from cometmq.store.format.record import unpack_host
from cometmq.tests.broker.classic.test_classic_system_topics import viewed
from cometmq.tests.broker.classic_wire import TOPIC, message, port_of, pulled
from cometmq.tests.broker.desk import desk
from cometmq.tests.broker.live import create_topic, follower_of, running, settings, until
from cometmq.tests.broker.timing import delayed
from cometmq.tests.broker.transacting import end_transaction, prepared
from cometmq.tests.harness.relay import Relay
from cometmq.tests.remoting.client import RemotingClient, wait_for_routes


@asynccontextmanager
async def classic_nameserver() -> AsyncIterator[tuple[str, int]]:
    """Run a nameserver; yield its address for brokers, and its port for classic clients."""
    server = NameserverServer(
        NameserverConfig(bind_address="127.0.0.1", listen_port=0, remoting_listen_port=-1)
    )
    address = await server.start()
    try:
        yield address, server.remoting_port
    finally:
        await server.stop(0.5)


@asynccontextmanager
async def relay() -> AsyncIterator[tuple[Relay, int]]:
    """Run a relay without a target; yield it and its port."""
    one = Relay(0)
    address = await one.start()
    try:
        yield one, int(address.rpartition(":")[2])
    finally:
        await one.stop()


@pytest.mark.parametrize(
    ("broker", "named"),
    [
        ({}, "10.0.0.1:10911"),
        ({"broker_ip1": "fd00::1"}, "[fd00::1]:10911"),
        ({"advertise": "echo"}, "10.0.0.1:10911"),
        ({"advertise": "mq.example.org:80"}, "mq.example.org:10911"),
        ({"advertise": "mq.example.org:80", "grpc_server_port": 10911}, "mq.example.org:80"),
        ({"advertise": "10.1.1.1:80,10.1.1.2:80"}, "10.1.1.1:10911"),
        ({"advertise": "a:80", "remoting_advertise": "mq.example.org:81"}, "mq.example.org:81"),
        ({"remoting_advertise": "[fd00::2]:81"}, "[fd00::2]:81"),
    ],
)
def test_the_address_in_routes_is_chosen_by_the_settings(
    broker: dict[str, object], named: str
) -> None:
    config = BrokerConfig(**{"broker_ip1": "10.0.0.1", **broker})  # type: ignore[arg-type]
    assert config.remoting_advertised(10911) == named


@pytest.mark.parametrize(
    ("value", "word"), [("a:1,b:2", "several"), ("nowhere", "HOST:PORT"), ("a:0", "HOST:PORT")]
)
def test_an_address_that_is_not_one_host_and_port_is_refused(value: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        BrokerConfig(remoting_advertise=value)


async def test_a_client_reaches_a_broker_through_the_address_that_it_advertises(
    tmp_path: Path,
) -> None:
    async with classic_nameserver() as (address, port), relay() as (between, mapped):
        chosen = settings(
            tmp_path,
            namesrv_addr=address,
            remoting_listen_port=-1,
            remoting_advertise=f"localhost:{mapped}",
        )
        async with running(chosen) as live, live.client() as wire:
            between.to = port_of(live)
            await create_topic(wire, TOPIC, queues=2)
            await wait_for_routes(port, [TOPIC])
            async with RemotingClient(port) as client:
                route = await client.call(Request.GET_ROUTEINFO_BY_TOPIC, topic=TOPIC)
                cluster = await client.call(Request.GET_BROKER_CLUSTER_INFO)
            (broker,) = json.loads(route.body)["brokerDatas"]
            assert broker["brokerAddrs"] == {"0": f"localhost:{mapped}"}
            assert f"localhost:{mapped}".encode() in cluster.body
            host, _, named = broker["brokerAddrs"]["0"].rpartition(":")
            async with RemotingClient(int(named), host) as client:
                assert (await client.post(message())).code == Reply.SUCCESS
                (record,) = await pulled(client)
            assert record.body == b"hello"
            assert unpack_host(record.store_host) in ((one, mapped) for one in ("127.0.0.1", "::1"))
            assert between.joined == 1


async def test_a_follower_passes_on_to_the_leader_s_own_address(tmp_path: Path) -> None:
    async with classic_nameserver() as (address, port):
        # Nothing answers at the advertised addresses: they are those of another network.
        first, second = (
            settings(
                tmp_path / str(number),
                namesrv_addr=address,
                remoting_listen_port=-1,
                remoting_advertise=f"mq{number}.invalid:10911",
                broker_id=number,
            )
            for number in range(2)
        )
        second = replace(second, ha=replace(second.ha, broker_role="SLAVE"))
        async with running(first) as leader, running(second) as follower:
            await until(lambda: follower.node.replication.leader_alive)
            async with leader.client() as wire:
                await create_topic(wire, TOPIC, queues=2)
            await until(lambda: follower.node.metadata.topic(TOPIC))
            await until(follower.node.leadership.leader_remoting)
            async with RemotingClient(port_of(follower)) as client:
                assert (await client.post(message())).code == Reply.SUCCESS
            await wait_for_routes(port, [TOPIC])
            async with RemotingClient(port) as client:
                named = {"0": "mq0.invalid:10911", "1": "mq1.invalid:10911"}
                while True:
                    route = await client.call(Request.GET_ROUTEINFO_BY_TOPIC, topic=TOPIC)
                    if json.loads(route.body)["brokerDatas"][0]["brokerAddrs"] == named:
                        break


async def test_an_id_is_resolved_by_each_replica_also_when_the_one_that_it_names_follows(
    tmp_path: Path,
) -> None:
    """Tools dial the broker that stored a message, which may follow by now."""
    async with AsyncExitStack() as stack:
        address, _ = await stack.enter_async_context(classic_nameserver())
        options: dict[str, Any] = {"remoting_listen_port": -1, "namesrv_addr": address}
        leader = await stack.enter_async_context(running(settings(tmp_path / "0", **options)))
        chosen = follower_of(leader.bound, tmp_path / "1", **options)
        async with running(chosen) as follower:
            async with leader.client() as wire:
                await create_topic(wire, TOPIC, queues=2)
            async with RemotingClient(port_of(leader)) as client:
                sent = await client.post(message())
            await until(lambda: follower.node.store.dispatched_offset == leader.node.store.log_end)
            await until(follower.node.leadership.leader_remoting)
            for live in (leader, follower):
                async with RemotingClient(port_of(live)) as client:
                    assert await viewed(client, sent) == (TOPIC, b"hello")
            await leader.server.stop(1.0)
            await until(lambda: not follower.node.replication.leader_alive)
            async with RemotingClient(port_of(follower)) as client:
                assert await viewed(client, sent) == (TOPIC, b"hello")


async def test_brokers_that_create_topics_are_the_route_of_the_template(tmp_path: Path) -> None:
    """As a classic producer without a route does: each broker group creates the topic."""
    async with classic_nameserver() as (address, port), RemotingClient(port) as names:
        chosen = [
            settings(
                tmp_path / name,
                namesrv_addr=address,
                remoting_listen_port=-1,
                broker_name=name,
                auto_create_topic_enable=name != "c",
            )
            for name in "abc"
        ]
        async with running(chosen[0]) as a, running(chosen[1]) as b, running(chosen[2]):
            asked = {"topic": "new"}
            answer = await names.call(Request.GET_ROUTEINFO_BY_TOPIC, **asked)
            assert answer.code == Reply.TOPIC_NOT_EXIST
            await wait_for_routes(port, ["TBW102"])
            route = await names.call(Request.GET_ROUTEINFO_BY_TOPIC, topic="TBW102")
            queues = json.loads(route.body)["queueDatas"]
            assert {each["brokerName"]: each["perm"] for each in queues} == {"a": 7, "b": 7}
            for live in (a, b):
                async with RemotingClient(port_of(live)) as client:
                    answer = await client.post(message(b="new", d=3, e=2))
                assert answer.code == Reply.SUCCESS
                assert live.node.metadata.topics["new"].write_queues == 3
            await wait_for_routes(port, ["new"])


async def test_every_record_names_the_port_that_speaks_remoting(tmp_path: Path) -> None:
    """Tools dial the address in a message id: also of what the broker has copied."""
    async with (
        desk(tmp_path, remoting_listen_port=-1) as one,
        RemotingClient(port_of(one.live)) as client,
    ):
        one.topic("any", message_type=MIXED)
        one.topic("tx", message_type=v2.TRANSACTION)
        one.group("g", max_attempts=1)
        await one.sent("any", b"of gRPC")
        due_ms = one.node.runtime.clock.wall_ms() + 5_000
        await one.send(delayed(b"timer", due_ms, topic="any"))
        for body, properties in ((b"classic", ""), (b"level", "DELAY\x011\x02")):
            command = message(body, f"UNIQ_KEY\x01{body!r}\x02{properties}", b="any", e=0)
            assert (await client.post(command)).code == Reply.SUCCESS
        (ident,) = await prepared(one, "tx", "H")
        assert await end_transaction(one, "tx", ident) == v2.OK
        assert (await one.receive("any", "g", batch=1, invisible_ms=20_000)).bodies
        one.advance(40_000)
        store = one.node.store
        await until(lambda: store.max_offset("any", 0) == 4 and store.max_offset("%DLQ%g", 0) == 1)
        for topic in ("any", "tx", "%DLQ%g"):
            for record in await pulled(client, topic=topic, queueId=0, consumerGroup="g"):
                assert int.from_bytes(record.store_host[-4:]) == port_of(one.live), record.body
