"""Conformance of a door, part 4: opening, the standard services, draining."""

import asyncio
import re
import socket
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.front.door import choose_door
from cometmq.front.errors import AddressError, DoorMissingError, PortInUseError
from cometmq.front.service import Kind, Method, status_failure
from cometmq.front.standard import StandardServices
from cometmq.proto import paths, v2
from cometmq.proto.native import is_available

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def _another(door_name: str) -> Any:
    return choose_door(DoorConfig(front_door=door_name))({}, Clock())


async def test_a_port_that_is_taken_is_refused_with_advice(bench: Any, door_name: str) -> None:
    async with await bench() as b:
        with pytest.raises(PortInUseError, match=rf"{b.port}.*stop that process.*another port"):
            await _another(door_name).start("127.0.0.1", b.port)
        assert await b.client.unary("Echo", b"unharmed") == b"unharmed"


async def test_a_port_that_a_plain_socket_holds_is_refused(door_name: str) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with pytest.raises(PortInUseError):
            await _another(door_name).start("127.0.0.1", holder.getsockname()[1])


async def test_an_address_of_another_machine_is_refused(door_name: str) -> None:
    with pytest.raises(AddressError, match="address of this machine"):
        await _another(door_name).start("192.0.2.1", 0)


async def test_a_port_is_free_again_after_a_drain(bench: Any, door_name: str) -> None:
    async with await bench() as b:
        assert await b.client.unary("Echo", b"x") == b"x"
        await b.door.drain(1)
        again = _another(door_name)
        assert await again.start("127.0.0.1", b.port) == b.port
        await again.drain(0)


@pytest.mark.parametrize("host", ["::1", "localhost", "0.0.0.0"])
async def test_the_door_listens_on_other_addresses(door_name: str, host: str) -> None:
    door = _another(door_name)
    assert await door.start(host, 0) > 0
    await door.drain(0)


async def test_health_reports_serving(bench: Any) -> None:
    async with await bench() as b:
        stub = health_pb2_grpc.HealthStub(b.client.channel)
        for name in ("", "test.Conformance"):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == SERVING
        with pytest.raises(grpc.RpcError) as refused:
            await stub.Check(health_pb2.HealthCheckRequest(service="nobody"))
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_health_reports_the_start_of_a_drain(bench: Any) -> None:
    async with await bench() as b:
        stub = health_pb2_grpc.HealthStub(b.client.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=""))
        assert (await watch.read()).status == SERVING
        # Grace for a slow machine; the watch that has been told is given back, so the drain ends at
        # once.
        draining = asyncio.ensure_future(b.door.drain(30))
        assert (await watch.read()).status == NOT_SERVING
        watch.cancel()
        await draining


async def test_a_change_of_health_while_an_answer_is_written_is_reported() -> None:
    standard = StandardServices({})
    watch = standard.table()["/grpc.health.v1.Health/Watch"].handler
    answers = watch(health_pb2.HealthCheckRequest(service=""), None)
    standard.serving(True)
    assert (await anext(answers)).status == SERVING
    standard.serving(False)
    assert (await asyncio.wait_for(anext(answers), 60)).status == NOT_SERVING
    await answers.aclose()


async def test_reflection_describes_our_messages(door_name: str) -> None:
    method = Method(
        paths.QUERY_ROUTE,
        Kind.UNARY,
        v2.QueryRouteRequest.FromString,
        lambda _request, _ctx: v2.QueryRouteResponse(),
        status_failure(v2.QueryRouteResponse),
    )
    door = choose_door(DoorConfig(front_door=door_name))({method.path: method}, Clock())
    port = await door.start("127.0.0.1", 0)
    services, found, missing = await asyncio.to_thread(_reflect, port)
    assert "apache.rocketmq.v2.MessagingService" in services
    assert "grpc.health.v1.Health" in services
    assert {"QueryRoute", "SendMessage", "Telemetry"} <= found
    assert missing
    await door.drain(0)


def _reflect(port: int) -> tuple[set[str], set[str], bool]:
    from google.protobuf.descriptor_pool import DescriptorPool

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        services = set(database.get_services())
        pool = DescriptorPool(database)
        service = pool.FindServiceByName("apache.rocketmq.v2.MessagingService")
        assert pool.FindServiceByName("grpc.health.v1.Health")
        try:
            pool.FindServiceByName("no.such.Service")
        except KeyError:
            return services, set(service.methods_by_name), True
        return services, set(service.methods_by_name), False


async def test_a_drain_finishes_what_is_in_flight(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        call = b.client.unary("Later")
        await eventually(lambda: len(b.services.futures) == 1)
        stream = b.client.stream("ItemsLater")
        await eventually(lambda: len(b.services.futures) == 2)
        draining = asyncio.ensure_future(b.door.drain(60))
        await asyncio.sleep(0.05)
        assert not draining.done()
        b.services.futures[0].set_result(b"finished")
        b.services.futures[1].set_result([b"item"])
        assert [await call, await stream.read()] == [b"finished", b"item"]
        assert await stream.read() is grpc.aio.EOF
        await draining


async def test_a_drain_refuses_new_calls(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        waiting = asyncio.ensure_future(_code(b.client.unary("Later")))
        await eventually(lambda: b.services.futures)
        draining = asyncio.ensure_future(b.door.drain(60))
        await asyncio.sleep(0.05)
        newcomer = b.another_client()
        refused = None
        async with asyncio.timeout(30):  # a slow machine connects only within a longer limit
            while refused is not grpc.StatusCode.UNAVAILABLE:
                refused = await _code(newcomer.unary("Echo", timeout=2))
                assert refused is not None, "no call is served"
        b.services.futures[0].set_result(b"")
        assert await waiting is None
        await draining


async def test_a_drain_ends_calls_after_the_grace_time(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        waiting = asyncio.ensure_future(_code(b.client.unary("Later")))
        await eventually(lambda: b.services.futures)
        await b.door.drain(0.05)
        assert await waiting in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        await eventually(b.services.futures[0].cancelled)


async def test_a_drain_ends_streams_at_once(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        call = b.client.bidi("Talk")
        await call.write(b"hello")
        assert await call.read() == b"hello"
        draining = asyncio.ensure_future(b.door.drain(120))
        with pytest.raises(grpc.RpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        await asyncio.wait_for(draining, 60)
        assert b.services.sessions[0].closed


async def test_a_drain_without_a_start_does_nothing(door_name: str) -> None:
    await _another(door_name).drain(1)


def test_the_door_that_is_not_installed_is_refused_or_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    installed = is_available()
    if not installed:
        with pytest.raises(DoorMissingError, match="cometmq-native"):
            choose_door(DoorConfig(front_door="native"))
    with caplog.at_level("INFO"):
        door = choose_door(DoorConfig())({}, Clock())
    said = [r for r in caplog.records if "door.chosen" in r.getMessage()]
    assert (door.name, len(said)) == (("native", 0) if installed else ("grpcio", 1))


def test_a_door_can_be_created_without_a_loop(door_name: str) -> None:
    door = _another(door_name)
    statistics = door.statistics()
    assert (statistics.door, statistics.in_flight) == (door_name, 0)


def test_the_configuration_is_checked_and_documented() -> None:
    with pytest.raises(ValueError, match="frontDoor"):
        DoorConfig(front_door="wooden")
    with pytest.raises(ValueError, match="frontMaxConcurrentCalls"):
        DoorConfig(front_max_concurrent_calls=0)
    for field in DoorConfig.__dataclass_fields__.values():
        assert re.match(r"\S", field.metadata["help"])


async def _code(call: Any) -> Any:
    try:
        await call
    except grpc.RpcError as error:
        return error.code()
    return None
