"""A door that closes and opens again, and an access point that reaches no other node."""

import asyncio
from typing import Any

import grpc
import pytest

from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.front.door import choose_door
from cometmq.front.slow_clients import reset_on_close
from cometmq.front.suspendable_door import SuspendableDoor
from cometmq.tests.front.conftest import Client, TestServices

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


async def refused(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


async def test_a_suspended_door_refuses_clients_until_it_resumes(
    door_name: str, eventually: Any
) -> None:
    services = TestServices()
    make = choose_door(DoorConfig(front_door=door_name))
    door = SuspendableDoor(lambda: make(services.table(), Clock()))
    port = await door.start("127.0.0.1", 0)
    client = Client(port)
    assert await client.unary("Echo", b"before") == b"before"
    waiting = client.unary("Later")
    await eventually(lambda: services.futures)
    await door.suspend()
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await waiting
    assert error.value.code() is UNAVAILABLE
    assert await refused(port)
    await door.resume()
    assert not await refused(port)
    again = Client(port)
    assert await again.unary("Echo", b"after") == b"after"
    await client.channel.close()
    await again.channel.close()
    await door.drain(0)
    assert await refused(port)


async def test_connections_end_with_a_reset_where_the_end_could_not_be_sent() -> None:
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(
        lambda _reader, writer: accepted.set_result(writer), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    served = await accepted
    assert reset_on_close(port) == 1
    served.close()
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()
    server.close()
    await server.wait_closed()


async def test_a_suspended_door_stays_closed_after_a_drain(door_name: str) -> None:
    make = choose_door(DoorConfig(front_door=door_name))
    door = SuspendableDoor(lambda: make({}, Clock()))
    port = await door.start("127.0.0.1", 0)
    await door.suspend()
    await door.drain(0)
    assert await refused(port)


async def test_an_isolated_node_ends_held_requests(front: Any, eventually: Any) -> None:
    async with front("") as f:
        held = f.bench.client.unary("Echo", b"x", timeout=60)
        await eventually(lambda: f.access.statistics.held == 1)
        f.access.isolate()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await held
        assert error.value.code() is UNAVAILABLE
        assert "reaches neither" in error.value.details()
        with pytest.raises(grpc.aio.AioRpcError):
            await f.bench.client.unary("Echo", b"x", timeout=60)
        f.access.rejoin()
        f.owner = None
        assert await f.bench.client.unary("Echo", b"again") == b"again"


async def test_an_isolated_node_ends_forwarded_requests(
    front: Any, bench: Any, eventually: Any
) -> None:
    async with await bench() as owner, front(f"127.0.0.1:{owner.port}") as f:
        forwarded = f.bench.client.unary("Later", timeout=60)
        await eventually(lambda: owner.services.futures)
        f.access.isolate()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await forwarded
        assert error.value.code() is UNAVAILABLE


async def test_an_isolated_node_serves_what_it_may(front: Any) -> None:
    async with front("", decision="serve") as f:
        f.access.isolate()
        assert await f.bench.client.unary("Echo", b"read") == b"read"
