"""`cometmq proxy` with real brokers: routes, sends, receives, telemetry, held sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from cometmq.broker.base.cluster_view import ClusterView
from cometmq.broker.proxy.base.config import ProxyConfig
from cometmq.broker.proxy.base.owners import Owners
from cometmq.broker.proxy.base.watch import ClusterWatch
from cometmq.broker.proxy.server import ProxyBound, ProxyServer
from cometmq.client.errors import ServerFailed
from cometmq.client.producer import Producer
from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.nodes.node_links import NodeLinks
from cometmq.proto import paths, v1, v2
from cometmq.tests.broker.desk import message, parse_received, resource
from cometmq.tests.broker.live import (
    create_group,
    create_topic,
    nameserver,
    route,
    running,
    settings,
    telemetry,
    until,
)
from cometmq.tests.harness.wire import Wire, normal_message


@asynccontextmanager
async def proxying(namesrv: str, request_bytes: int = 16 << 20) -> AsyncIterator[ProxyBound]:
    """Run a proxy on ephemeral ports that accepts requests of this size."""
    config = ProxyConfig(
        grpc_server_port=0,
        metrics_prom_exporter_port=0,
        bind_address="127.0.0.1",
        namesrv_addr=namesrv,
        proxy_poll_interval=100,
    )
    door = DoorConfig(front_door="grpcio", front_max_receive_message_size=request_bytes)
    server = ProxyServer(config, door)
    bound = await server.start()
    try:
        yield bound
    finally:
        await server.stop(0.5)


async def receive(wire: Wire, topic: str, group: str, wait_s: float = 5.0) -> list[v2.Message]:
    """Call ReceiveMessage once."""
    request = v2.ReceiveMessageRequest(
        group=resource(group),
        message_queue=v2.MessageQueue(topic=resource(topic)),
        filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"),
        batch_size=16,
    )
    request.invisible_duration.FromMilliseconds(30_000)
    request.long_polling_timeout.FromMilliseconds(2_000)
    call = wire.channel.unary_stream(paths.RECEIVE_MESSAGE)
    raw = [
        item
        async for item in call(request.SerializeToString(), metadata=wire.metadata, timeout=wait_s)
    ]
    return parse_received(raw).messages


async def test_a_client_sees_only_the_proxys_address(tmp_path: Path) -> None:
    async with (
        nameserver() as namesrv,
        running(settings(tmp_path / "a", namesrv_addr=namesrv)) as first,
        running(settings(tmp_path / "b", namesrv_addr=namesrv, broker_name="broker-b")) as second,
    ):
        async with first.client() as wire:
            assert (await create_topic(wire, "one")).code == v2.OK
            assert (await create_group(wire, "g")).code == v2.OK
        async with second.client() as wire:
            assert (await create_topic(wire, "two")).code == v2.OK
            assert (await create_group(wire, "g")).code == v2.OK
        async with proxying(namesrv) as bound, Wire(bound.client) as wire:
            for topic, broker in (("one", "broker-a"), ("two", "broker-b")):
                answer = await route(wire, topic, bound.client)
                assert answer.status.code == v2.OK, answer
                queue = answer.message_queues[0]
                address = queue.broker.endpoints.addresses[0]
                assert f"{address.host}:{address.port}" == bound.client
                assert queue.broker.name == broker
                request = v2.SendMessageRequest(messages=[message(topic, topic.encode())])
                sent = await wire.call(paths.SEND_MESSAGE, request, v2.SendMessageResponse)
                assert sent.status.code == v2.OK, sent
                got = await receive(wire, topic, "g")
                assert [one.body for one in got] == [topic.encode()]
                ack = v2.AckMessageRequest(topic=resource(topic), group=resource("g"))
                handle = got[0].system_properties.receipt_handle
                ack.entries.add(message_id="m", receipt_handle=handle)
                done = await wire.call(paths.ACK_MESSAGE, ack, v2.AckMessageResponse)
                assert done.status.code == v2.OK, done


async def test_sends_and_receives_are_spread_over_the_groups_of_a_topic(tmp_path: Path) -> None:
    async with (
        nameserver() as namesrv,
        running(settings(tmp_path / "a", namesrv_addr=namesrv)) as first,
        running(settings(tmp_path / "b", namesrv_addr=namesrv, broker_name="broker-b")) as second,
    ):
        nodes = (first.node, second.node)

        def stored(topic: str) -> list[int]:
            for node in nodes:
                node.pump.catch_up()
            return [
                sum(node.store.max_offset(topic, queue) for queue in range(8)) for node in nodes
            ]

        async with proxying(namesrv) as bound, Wire(bound.client) as wire:
            for broker in ("broker-a", "broker-b"):
                for name, kind in (("fifo", v2.FIFO), ("t", v2.NORMAL)):
                    request = v1.CreateTopicRequest(name=name, message_type=kind, broker=broker)
                    answer = await wire.call(paths.CREATE_TOPIC, request, v1.CreateTopicResponse)
                    assert (answer.code, answer.created) == (v2.OK, True)
            sent = 0
            # Until the proxy knows the topic in both groups. Twice: before it knows the topic in
            # any group, the first one gets the sends.
            for _ in range(2):
                before = stored("t")
                while any(now == then for now, then in zip(stored("t"), before, strict=True)):
                    answer = await wire.send([normal_message("t", f"ID-{sent}", b"x")], 60)
                    assert answer.status.code == v2.OK
                    sent += 1
                    await asyncio.sleep(0.01)
            assert sum(stored("t")) == sent
            for broker in ("broker-a", "broker-b"):
                assert (await create_group(wire, "readers", broker=broker)).code == v2.OK
            received: set[str] = set()
            while len(received) < sent:  # no request names a broker
                for found in await receive(wire, "t", "readers", 60.0):
                    received.add(found.system_properties.message_id)
            for n in range(40):
                ordered = normal_message("fifo", f"F-{n}", b"x")
                ordered.system_properties.message_type = v2.FIFO
                ordered.system_properties.message_group = f"group-{n % 8}"
                assert (await wire.send([ordered], 60)).status.code == v2.OK
            assert sum(stored("fifo")) == 40
            assert all(count % 5 == 0 for count in stored("fifo")), "a sequence is not split"
            assert all(stored("fifo"))


async def test_settings_are_answered_once_and_heartbeats_forwarded(tmp_path: Path) -> None:
    async with (
        nameserver() as namesrv,
        running(settings(tmp_path / "a", namesrv_addr=namesrv)) as broker,
        proxying(namesrv) as bound,
        Wire(bound.client, "p@1") as wire,
    ):
        async with broker.client() as direct:
            await create_topic(direct, "t")
        stream = telemetry(wire)
        command = v2.TelemetryCommand()
        command.settings.client_type = v2.PRODUCER
        command.settings.publishing.topics.add(name="t")
        await stream.write(command)
        answer = await asyncio.wait_for(stream.read(), 60)
        assert answer.WhichOneof("command") == "settings"
        assert answer.settings.publishing.max_body_size > 0
        request = v2.HeartbeatRequest(client_type=v2.PRODUCER)
        beat = await wire.call(paths.HEARTBEAT, request, v2.HeartbeatResponse)
        assert beat.status.code == v2.OK
        await until(lambda: broker.node.clients.get("p@1") is not None)
        stream.cancel()


async def test_a_send_is_held_until_the_broker_is_back(tmp_path: Path) -> None:
    chosen = settings(tmp_path / "a")
    async with nameserver() as namesrv:
        chosen = replace(chosen, broker=replace(chosen.broker, namesrv_addr=namesrv))
        async with proxying(namesrv) as bound, Wire(bound.client) as wire:
            async with running(chosen) as broker:
                async with broker.client() as direct:
                    await create_topic(direct, "t")
                await until(lambda: broker.node.metadata.topic("t") is not None)
                ports = broker.bound
                assert (await route(wire, "t", bound.client)).status.code == v2.OK
            request = v2.SendMessageRequest(messages=[message("t", b"late")])
            sending = asyncio.ensure_future(
                wire.call(paths.SEND_MESSAGE, request, v2.SendMessageResponse, 20.0)
            )
            await asyncio.sleep(0.5)
            assert not sending.done()
            port = int(ports.client.rpartition(":")[2])
            again = replace(chosen, broker=replace(chosen.broker, grpc_server_port=port))
            async with running(again):
                assert (await sending).status.code == v2.OK


async def test_a_nameserver_with_invalid_responses_is_polled_again() -> None:
    class Nonsense(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
        asked = 0

        def service(self, _call: object) -> object:
            async def answer(_request: bytes, _context: object) -> bytes:
                self.asked += 1
                return b"\xff\xff\xff"

            return grpc.unary_unary_rpc_method_handler(answer)

    server, nonsense = grpc.aio.server(), Nonsense()
    server.add_generic_rpc_handlers((nonsense,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    watch = ClusterWatch(ClusterView("", Clock().steady_ns), [("127.0.0.1", port)], NodeLinks(), 50)
    await watch.start(0.1)
    await until(lambda: nonsense.asked >= 3)
    assert not watch.answered
    await watch.stop()
    await server.stop(0)


async def test_a_proxy_forwards_bodies_up_to_its_request_limit(tmp_path: Path) -> None:
    size = 20 << 20
    async with nameserver() as namesrv:
        config = settings(tmp_path / "a", namesrv_addr=namesrv)
        store = replace(config.store, max_message_size=size, mapped_file_size_commit_log=2 * size)
        config = replace(config, store=store)
        async with running(config, door=DoorConfig(front_door="grpcio")) as broker:
            async with broker.client() as wire:
                await create_topic(wire, "t", queues=1)
            async with proxying(namesrv, 24 << 20) as bound, Wire(bound.client) as wire:
                sent = await wire.send([message("t", bytes(11 << 20), "ID")], 20.0)
                assert sent.status.code == v2.OK


async def wait_until_absent(wire: Wire, topic: str) -> None:
    """Wait until a node answers TOPIC_NOT_FOUND: it does so once it knows every broker group."""
    async with asyncio.timeout(30):
        while True:
            if (await route(wire, topic)).status.code == v2.TOPIC_NOT_FOUND:
                return
            await asyncio.sleep(0.05)


async def test_a_topic_of_a_group_that_has_not_registered_again_is_awaited(tmp_path: Path) -> None:
    """After a restart of everything only one of two groups is up: its answer is no "no"."""
    second = settings(tmp_path / "b", broker_name="broker-b")
    async with running(second) as two, two.client() as wire:
        assert (await create_topic(wire, "late")).code == v2.OK
    (tmp_path / "ns").mkdir()
    (tmp_path / "ns/known-groups").write_text("cometmq known groups 1\n2\nbroker-a\nbroker-b\n")
    async with (
        nameserver(namesrv_data_dir=str(tmp_path / "ns"), wait_for_known_groups=600_000) as namesrv,
        running(settings(tmp_path / "a", namesrv_addr=namesrv)) as one,
        one.client() as direct,
        proxying(namesrv) as bound,
        Wire(bound.client) as proxy,
    ):
        await until(lambda: not one.node.cluster.complete)
        early = (await route(direct, "late")).status
        assert early.code == v2.PROXY_TIMEOUT
        assert early.message.endswith("may not be up yet; try again")
        asked = [
            asyncio.create_task(route(proxy, "late", bound.client)),
            *(
                asyncio.create_task(wire.send([message("late", b"x", f"ID{number}")]))
                for number, wire in enumerate((proxy, direct))
            ),
        ]
        config = replace(second.broker, namesrv_addr=namesrv)
        async with running(replace(second, broker=config)):
            for answer in asked:
                assert (await answer).status.code == v2.OK
            await until(lambda: one.node.cluster.complete)
            for wire in (proxy, direct):
                await wait_until_absent(wire, "nowhere")


async def test_a_topic_of_a_group_that_stays_down_is_not_said_to_be_absent(tmp_path: Path) -> None:
    second = settings(tmp_path / "b", broker_name="broker-b")
    async with running(second) as two, two.client() as wire:
        assert (await create_topic(wire, "late")).code == v2.OK
        assert (await create_topic(wire, "both")).code == v2.OK
    (tmp_path / "ns").mkdir()
    (tmp_path / "ns/known-groups").write_text("cometmq known groups 1\n2\nbroker-a\nbroker-b\n")
    async with (
        nameserver(namesrv_data_dir=str(tmp_path / "ns"), wait_for_known_groups=0) as namesrv,
        running(settings(tmp_path / "a", namesrv_addr=namesrv)) as one,
        one.client() as direct,
        proxying(namesrv) as bound,
        Wire(bound.client) as proxy,
    ):
        assert (await create_topic(direct, "both")).code == v2.OK
        assert (await create_group(direct, "g")).code == v2.OK
        for wire in (direct, proxy):
            await until(lambda: one.node.cluster.absent == ("broker-b",))
            got = (await route(wire, "late", bound.client)).status
            assert got.code == v2.PROXY_TIMEOUT, "a client asks again"
            assert "not: broker-b. Start it, or" in got.message
            sent = (await wire.send([message("late", b"x", "ID")])).status
            assert (sent.code, "broker-b" in sent.message) == (v2.HA_NOT_AVAILABLE, True)
            assert (await route(wire, "both", bound.client)).status.code == v2.OK
            names = await wire.call(
                paths.LIST_BROKERS, v1.ListBrokersRequest(), v1.ListBrokersResponse
            )
            assert list(names.brokers) == ["broker-a", "broker-b"]
            asked = v1.DescribeTopicRequest(name="late", broker="broker-b")
            shown = await wire.call(paths.DESCRIBE_TOPIC, asked, v1.DescribeTopicResponse)
            assert shown.code == v2.PROXY_TIMEOUT
            assert shown.message.startswith("broker group broker-b is not up. Start it")
            # Its offsets are none of the queue of broker-a.
            for broker in ("broker-b", "broker-z"):
                offset = v2.UpdateOffsetRequest(group=resource("g"), offset=0)
                offset.message_queue.topic.name = "both"
                offset.message_queue.broker.name = broker
                done = await wire.call(paths.UPDATE_OFFSET, offset, v2.UpdateOffsetResponse)
                assert done.status.code in (v2.PROXY_TIMEOUT, v2.BAD_REQUEST), done
        with pytest.raises(ServerFailed, match="may be in one that is not: broker-b"):
            async with Producer(bound.client) as producer:
                await producer.send("late", b"x")
        config = replace(second.broker, namesrv_addr=namesrv)
        async with running(replace(second, broker=config)):
            await until(lambda: one.node.cluster.complete)
            for wire in (proxy, direct):
                assert (await route(wire, "late", bound.client)).status.code == v2.OK
                await wait_until_absent(wire, "nowhere")


async def test_an_ordered_sequence_stays_while_a_nameserver_relearns_a_group() -> None:
    view = ClusterView("", lambda: 0)
    links = NodeLinks("")
    owners = Owners(view, ClusterWatch(view, [], links, 100), lambda address: False)

    def learn(**topics: list[str]) -> None:
        groups = []
        for name, listed in topics.items():
            group = v1.GroupRoute(
                group=name, topics=[v1.TopicRoute(name=t, perm=6) for t in listed]
            )
            member = group.members.add(role=v1.LEADER, alive=True)
            member.addresses.client = f"{name}:1"
            groups.append(group)
        view.update("ns", groups)

    def owner(sequence: str) -> str | None:
        sent = normal_message("t", "ID", b"x")
        sent.system_properties.message_group = sequence
        request = v2.SendMessageRequest(messages=[sent])
        ctx: Any = None
        return owners.locate(paths.SEND_MESSAGE, request, ctx)

    learn(a=["t"], b=["t"])
    before = {sequence: owner(sequence) for sequence in map(str, range(20))}
    assert set(before.values()) == {"a:1", "b:1"}
    learn(a=["t"], b=[])
    assert {sequence: owner(sequence) for sequence in before} == before
    learn(a=["t"], b=["other"])
    assert {owner(sequence) for sequence in before} == {"a:1"}, "the topic was deleted there"
