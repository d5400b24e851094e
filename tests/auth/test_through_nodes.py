"""Calls through a follower and a proxy: the same verdicts, also for Telemetry and heartbeats."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

from cometmq.auth.model import User
from cometmq.auth.signature import authorization
from cometmq.broker.proxy.base.config import ProxyConfig
from cometmq.broker.proxy.server import ProxyServer
from cometmq.front.config import DoorConfig
from cometmq.proto import paths, v1, v2
from cometmq.tests.broker.desk import message, resource
from cometmq.tests.broker.live import Live, follower_of, nameserver, running, settings, until
from cometmq.tests.harness.wire import Wire, receive_request

SECRET, TIME = "orders-secret", "20261123T060428Z"
OPTIONS = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": '{"username":"admin","password":"admin-secret"}',
}
TOKEN = "the-token-of-the-tests"


def signed(wire: Wire, user: str, secret: str) -> Wire:
    header = authorization(user, secret, TIME)
    wire.metadata = (*wire.metadata, ("x-mq-date-time", TIME), ("authorization", header))
    return wire


@asynccontextmanager
async def cluster(tmp_path: Path) -> AsyncIterator[tuple[Live, Live, str]]:
    """Run a leader, a follower and a proxy, with a topic and the user `orders`."""
    async with nameserver(TOKEN) as namesrv:
        base = settings(tmp_path / "a", namesrv_addr=namesrv, **OPTIONS)
        leading = replace(base, ha=replace(base.ha, cluster_token=TOKEN))
        async with running(leading) as leader:
            base = follower_of(leader.bound, tmp_path / "b", namesrv_addr=namesrv, **OPTIONS)
            following = replace(base, ha=replace(base.ha, cluster_token=TOKEN))
            async with running(following) as follower, proxying(namesrv) as proxy:
                await prepare(leader)
                await until(lambda: "orders" in follower.node.metadata.users)
                await until(lambda: follower.node.metadata.users["orders"].policies[1:])
                await until(follower.node.leadership.leader_client)
                yield leader, follower, proxy


@asynccontextmanager
async def proxying(namesrv: str) -> AsyncIterator[str]:
    config = ProxyConfig(
        grpc_server_port=0,
        metrics_prom_exporter_port=0,
        bind_address="127.0.0.1",
        namesrv_addr=namesrv,
        cluster_token=TOKEN,
        proxy_poll_interval=100,
        authentication_enabled=True,
    )
    server = ProxyServer(config, DoorConfig(front_door="grpcio"))
    bound = await server.start()
    try:
        yield bound.client
    finally:
        await server.stop(0.5)


async def prepare(leader: Live) -> None:
    async with signed(leader.client("tool@1"), "admin", "admin-secret") as wire:
        for name in ("orders", "other"):
            made = await wire.call(
                paths.CREATE_TOPIC, v1.CreateTopicRequest(name=name), v1.CreateTopicResponse
            )
            assert made.code == v2.OK, made.message
        await wire.call(
            paths.PUT_USER, v1.PutUserRequest(name="orders", secret=SECRET), v1.UserResponse
        )
        for kind, actions in (("Topic", 1), ("Group", 2)):
            policy = v1.AclPolicy(resource=f"{kind}:orders", actions=actions, allow=True)
            request = v1.PutPolicyRequest(user="orders", policy=policy)
            answer = await wire.call(paths.PUT_POLICY, request, v1.UserResponse)
            assert answer.code == v2.OK, answer.message


def settings_for(topic: str) -> v2.TelemetryCommand:
    publishing = v2.Publishing(topics=[resource(topic)])
    return v2.TelemetryCommand(settings=v2.Settings(client_type=v2.PRODUCER, publishing=publishing))


async def telemetry_status(wire: Wire, topic: str) -> tuple[int, bool]:
    """The status of the first answer to settings, and whether the stream ended after it."""
    call: Any = wire.channel.stream_stream(
        paths.TELEMETRY,
        request_serializer=lambda command: command.SerializeToString(),
        response_deserializer=v2.TelemetryCommand.FromString,
    )(metadata=wire.metadata, timeout=20)
    await call.write(settings_for(topic))
    answer = await call.read()
    if answer.status.code == v2.OK:
        call.cancel()
        return v2.OK, False
    return answer.status.code, await call.read() is grpc.aio.EOF


async def codes(wire: Wire) -> dict[str, int]:
    """The codes of a send, a route query, a heartbeat and a termination."""
    route = v2.QueryRouteRequest(topic=resource("orders"))
    route.endpoints.scheme = v2.IPv4
    route.endpoints.addresses.add(host="127.0.0.1", port=1)
    beat = v2.HeartbeatRequest(group=resource("orders"), client_type=v2.SIMPLE_CONSUMER)
    leaving = v2.NotifyClientTerminationRequest(group=resource("orders"))
    answers = {
        "send": await wire.send([message(topic="orders")]),
        "route": await wire.call(paths.QUERY_ROUTE, route, v2.QueryRouteResponse),
        "heartbeat": await wire.call(paths.HEARTBEAT, beat, v2.HeartbeatResponse),
        "termination": await wire.call(
            paths.NOTIFY_CLIENT_TERMINATION, leaving, v2.NotifyClientTerminationResponse
        ),
    }
    return {name: answer.status.code for name, answer in answers.items()}


async def test_every_node_decides_alike(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (leader, follower, proxy):
        for address in (leader.bound.client, follower.bound.client, proxy):
            async with signed(Wire(address, f"good@{address}"), "orders", SECRET) as good:
                assert set((await codes(good)).values()) == {v2.OK}, address
                assert await telemetry_status(good, "orders") == (v2.OK, False)
                assert await telemetry_status(good, "other") == (v2.UNAUTHORIZED, True)
                refused = await good.send([message(topic="other")])
                assert refused.status.code == v2.UNAUTHORIZED
                assert refused.status.message.startswith("User:orders has no permission to access")
            async with signed(Wire(address, f"bad@{address}"), "orders", "wrong-secret") as bad:
                assert set((await codes(bad)).values()) == {v2.UNAUTHORIZED}, address
                assert await telemetry_status(bad, "orders") == (v2.UNAUTHORIZED, True)


async def test_an_acknowledgement_needs_the_rights_at_every_node(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path) as (leader, follower, proxy),
        signed(leader.client("tool@2"), "admin", "admin-secret") as admin,
    ):
        for address in (leader.bound.client, follower.bound.client, proxy):
            await admin.send([message(topic="orders")])
            _, (got,) = await admin.receive(receive_request("orders", "orders"))
            queue_id = got.system_properties.queue_id
            async with signed(Wire(address, f"good@{address}"), "orders", SECRET) as other:
                refused = await other.ack("orders", "orders", [got])
                assert refused.status.code == v2.UNAUTHORIZED, address
            assert leader.node.pop.in_flight("orders", "orders", queue_id) == 1
            async with signed(Wire(address, f"tool@{address}"), "admin", "admin-secret") as wire:
                accepted = await wire.ack("orders", "orders", [got])
                assert accepted.status.code == v2.OK, address
            assert leader.node.pop.in_flight("orders", "orders", queue_id) == 0


async def test_a_changed_user_counts_on_every_node_within_a_second(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (leader, follower, proxy):
        user = leader.node.metadata.users["orders"]
        assert isinstance(user, User)
        async with signed(Wire(follower.bound.client, "good@1"), "orders", SECRET) as good:
            assert (await good.send([message(topic="orders")])).status.code == v2.OK
            async with signed(Wire(proxy, "tool@2"), "admin", "admin-secret") as admin:

                async def put(*, enabled: bool) -> float:
                    """Change the user; return the seconds until the follower has it."""
                    request = v1.PutUserRequest(name="orders", enabled=enabled)
                    answer = await admin.call(paths.PUT_USER, request, v1.UserResponse)
                    assert answer.code == v2.OK, answer.message
                    began_s = time.monotonic()
                    tables = follower.node.metadata
                    await until(lambda: tables.users["orders"].enabled is enabled)
                    return time.monotonic() - began_s

                for _ in range(4):  # a stall of the machine may delay one of them
                    if await put(enabled=False) < 1.0:
                        break
                    await put(enabled=True)
                else:
                    raise AssertionError("not within a second")
            refused = await good.send([message(topic="orders")])
            assert refused.status.message == "User:orders is disabled."
