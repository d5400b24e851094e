"""Without credentials every path of every port is refused, but health and reflection."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from cometmq.broker.access.rights import NODE_SERVICES, RIGHTS
from cometmq.broker.proxy.base.config import ProxyConfig
from cometmq.broker.proxy.server import ProxyServer
from cometmq.broker.server import BrokerServer
from cometmq.front.config import DoorConfig
from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.proto import paths, v2
from cometmq.proto.methods import RpcMethod, rpc_methods
from cometmq.tests.broker.live import settings
from cometmq.tests.conftest import NATIVE_DOOR
from cometmq.tests.harness.wire import target

FIRST = '{"username":"admin","password":"first-secret"}'
DOORS = ("grpcio", "native") if NATIVE_DOOR else ("grpcio",)
STANDARD = ("/grpc.health.v1.Health/Check", "/grpc.reflection.v1alpha.ServerReflection/")
HEADERS = (("x-mq-client-id", "c@1"), ("x-mq-language", "PYTHON"))
METHODS: dict[str, RpcMethod] = {
    rpc.path: rpc
    for service in {path.split("/")[1] for path in RIGHTS} | NODE_SERVICES
    for rpc in rpc_methods(service).values()
}


async def first_answer(
    channel: grpc.aio.Channel, rpc: RpcMethod, request: Any, *, has_path: bool = True
) -> Any:
    """Make a call without credentials; return its first answer. Raises AioRpcError.

    A stream that the server does not have gets no message: grpcio turns the status into INTERNAL
    if the stream ends before the message is sent.
    """
    if rpc.client_streaming:
        sent = [request.SerializeToString()] if has_path and rpc.path == paths.TELEMETRY else []
        call = channel.stream_stream(rpc.path, response_deserializer=rpc.response.FromString)(
            iter(sent),
            metadata=HEADERS,
            timeout=60,
        )
    elif rpc.server_streaming:
        call = channel.unary_stream(rpc.path, response_deserializer=rpc.response.FromString)(
            request.SerializeToString(), metadata=HEADERS, timeout=60
        )
    else:
        unary = channel.unary_unary(rpc.path, response_deserializer=rpc.response.FromString)
        return await unary(request.SerializeToString(), metadata=HEADERS, timeout=60)
    answers = [answer async for answer in call]
    wanted = 2 if rpc.path == paths.RECEIVE_MESSAGE else 1  # a delivery time follows its status
    assert len(answers) == wanted, "nothing follows the refusal"
    return answers[0]


def code_of(answer: Any) -> int:
    """The status code of an answer."""
    status = answer.status if "status" in answer.DESCRIPTOR.fields_by_name else answer
    return int(status.code)


@pytest.mark.parametrize("door", DOORS)
async def test_every_path_of_a_broker_is_refused(tmp_path: Path, door: str) -> None:
    chosen = settings(
        tmp_path,
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user=FIRST,
    )
    ha = replace(chosen.ha, cluster_token="the-token-of-the-tests")
    server = BrokerServer(chosen.broker, chosen.store, ha, DoorConfig(front_door=door))
    bound = await server.start()
    try:
        async with grpc.aio.insecure_channel(target(bound.client)) as channel:
            for path in sorted(RIGHTS):
                rpc = METHODS[path]
                answer = await first_answer(channel, rpc, rpc.request())
                assert code_of(answer) == v2.UNAUTHORIZED, path
            await refused_as_a_call(channel, NODE_SERVICES, grpc.StatusCode.UNIMPLEMENTED)
            health = channel.unary_unary(STANDARD[0])
            assert await health(b"", timeout=60) == b"\x08\x01"
        async with grpc.aio.insecure_channel(target(bound.ha)) as channel:
            names = {"cometmq.v1.HaReplication", "cometmq.v1.ReplicaControl"}
            await refused_as_a_call(channel, names, grpc.StatusCode.PERMISSION_DENIED)
            others = {path.split("/")[1] for path in METHODS} - names
            await refused_as_a_call(channel, others, grpc.StatusCode.UNIMPLEMENTED)
    finally:
        await server.stop(1.0)


async def test_every_path_of_a_proxy_is_refused(tmp_path: Path) -> None:
    """The proxy is a node of the cluster, but a stranger's request stays one of a stranger."""
    config = NameserverConfig(
        bind_address="127.0.0.1", listen_port=0, cluster_token="the-token-of-the-tests"
    )
    namesrv = NameserverServer(config)
    address = await namesrv.start()
    chosen = settings(
        tmp_path,
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user=FIRST,
        namesrv_addr=address,
    )
    ha = replace(chosen.ha, cluster_token="the-token-of-the-tests")
    broker = BrokerServer(chosen.broker, chosen.store, ha, DoorConfig(front_door="grpcio"))
    await broker.start()
    proxy_config = ProxyConfig(
        bind_address="127.0.0.1",
        grpc_server_port=0,
        metrics_prom_exporter_port=0,
        namesrv_addr=address,
        cluster_token="the-token-of-the-tests",
        authentication_enabled=True,
    )
    proxy = ProxyServer(proxy_config, DoorConfig(front_door="grpcio"))
    bound = await proxy.start()
    try:
        async with grpc.aio.insecure_channel(target(bound.client)) as channel:
            health = channel.unary_unary(STANDARD[0])
            await until_leader(channel)
            for path in sorted(RIGHTS):
                rpc = METHODS[path]
                if path.startswith("/cometmq.v1.Test/") or path == paths.TELEMETRY:
                    continue
                answer = await first_answer(channel, rpc, rpc.request())
                assert code_of(answer) == v2.UNAUTHORIZED, path
            await refused_in_a_stream(channel)
            names = {*NODE_SERVICES, "cometmq.v1.Test"}
            await refused_as_a_call(channel, names, grpc.StatusCode.UNIMPLEMENTED)
            assert await health(b"", timeout=60) == b"\x08\x01"
    finally:
        await proxy.stop(0.5)
        await broker.stop(1.0)
        await namesrv.stop(0.5)


async def refused_in_a_stream(channel: grpc.aio.Channel) -> None:
    """Check that Telemetry answers the settings with the status, and ends."""
    command = v2.TelemetryCommand(settings=v2.Settings(client_type=v2.PRODUCER))
    call = channel.stream_stream(
        paths.TELEMETRY, response_deserializer=v2.TelemetryCommand.FromString
    )(metadata=HEADERS, timeout=20)
    await call.write(command.SerializeToString())
    assert code_of(await call.read()) == v2.UNAUTHORIZED
    assert await call.read() is grpc.aio.EOF


async def until_leader(channel: grpc.aio.Channel) -> None:
    """Wait until requests reach the broker's check."""
    rpc = METHODS[paths.LIST_TOPICS]

    async def refused() -> bool:
        return code_of(await first_answer(channel, rpc, rpc.request())) == v2.UNAUTHORIZED

    async with asyncio.timeout(30):
        while not await refused():  # noqa: ASYNC110 - the state of another server
            await asyncio.sleep(0.05)


async def test_every_path_of_a_nameserver_is_refused(tmp_path: Path) -> None:
    config = NameserverConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        cluster_token="the-token-of-the-tests",
        controller=True,
        authentication_enabled=True,
        namesrv_data_dir=str(tmp_path),
    )
    server = NameserverServer(config)
    address = await server.start()
    try:
        async with grpc.aio.insecure_channel(target(address)) as channel:
            names = {"cometmq.v1.GroupController", "cometmq.v1.NameServer", "cometmq.v1.MetaCell"}
            for rpc in METHODS.values():
                if rpc.path.split("/")[1] in names:
                    continue
                if rpc.path == paths.QUERY_ROUTE:
                    answer = await first_answer(channel, rpc, rpc.request())
                    assert code_of(answer) == v2.UNAUTHORIZED
                    continue
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await first_answer(channel, rpc, rpc.request(), has_path=False)
                assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED, rpc.path
            await refused_as_a_call(channel, names, grpc.StatusCode.PERMISSION_DENIED)
    finally:
        await server.stop(0.5)


async def refused_as_a_call(channel: grpc.aio.Channel, names: Any, code: grpc.StatusCode) -> None:
    """Check that every method of the services ends with this gRPC status."""
    has_path = code is not grpc.StatusCode.UNIMPLEMENTED
    for rpc in METHODS.values():
        if rpc.path.split("/")[1] not in names:
            continue
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await first_answer(channel, rpc, rpc.request(), has_path=has_path)
        assert raised.value.code() in (code, grpc.StatusCode.UNIMPLEMENTED), rpc.path
