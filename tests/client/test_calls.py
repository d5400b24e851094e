"""Both implementations of `Calls`, against a small gRPC server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from cometmq.client.transport import calls
from cometmq.client.transport.addresses import Target
from cometmq.client.transport.calls import CallFailed, Calls, GrpcioCalls, NativeCalls
from cometmq.proto.native import Native, is_available, load

native_only = pytest.mark.skipif(
    not is_available(), reason="cometmq-native is not installed (scripts/native_door)"
)
IMPLEMENTATIONS = ["grpcio", pytest.param("native", marks=native_only)]


def crate() -> Native:
    """Return the crate, which these tests require."""
    found = load()
    assert found is not None
    return found


META = (("x-mq-client-id", "me"),)


class Strange(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """`/s/echo`, `/s/meta`, `/s/refuse`, `/s/sleep` and the streams `/s/many`, `/s/break`."""

    def service(self, call: Any) -> Any:
        name = call.method.rpartition("/")[2]
        if name in ("many", "break"):
            return grpc.unary_stream_rpc_method_handler(
                getattr(self, name.replace("break", "stop"))
            )
        return grpc.unary_unary_rpc_method_handler(getattr(self, name))

    async def echo(self, request: bytes, _context: Any) -> bytes:
        return request

    async def meta(self, _request: bytes, context: Any) -> bytes:
        found = dict(context.invocation_metadata())
        return str(found["x-mq-client-id"]).encode()

    async def refuse(self, _request: bytes, context: Any) -> None:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "50% too müch\n")

    async def sleep(self, _request: bytes, _context: Any) -> bytes:
        await asyncio.sleep(60)
        return b""

    async def many(self, request: bytes, _context: Any) -> AsyncIterator[bytes]:
        for number in range(int(request)):
            yield b"%d" % number * 100

    async def stop(self, _request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"first"
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")


def dead_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@asynccontextmanager
async def dialled(implementation: str, *dead: int) -> AsyncIterator[tuple[Calls, Any]]:
    """Yield calls to a server whose target also lists unreachable addresses."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Strange(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    target = Target(tuple(("127.0.0.1", one) for one in (*dead, port)))
    channel = grpc.aio.insecure_channel(target.name())
    made = GrpcioCalls(channel) if implementation == "grpcio" else NativeCalls(target, crate())
    try:
        yield made, server
    finally:
        await made.close()
        await channel.close()
        await server.stop(0)
    assert not calls._loop_clients or implementation == "grpcio"


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
async def test_calls_return_responses_and_send_metadata(implementation: str) -> None:
    async with dialled(implementation) as (made, _server):
        big = b"x" * (5 << 20) if implementation == "native" else b"x"
        assert await made.unary("/s/echo", b"", 10, META) == b""
        some = await asyncio.gather(
            *(made.unary("/s/echo", b"%d" % one, 10, META) for one in range(200))
        )
        assert some == [b"%d" % one for one in range(200)]
        assert await made.unary("/s/meta", big[:100], 10, META) == b"me"
        found, failure = await made.stream("/s/many", b"500", 10, META)
        assert failure is None
        assert found == [b"%d" % number * 100 for number in range(500)]
        assert await made.stream("/s/many", b"0", 10, META) == ([], None)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
async def test_failures_carry_the_grpc_code_name(implementation: str) -> None:
    async with dialled(implementation) as (made, server):
        with pytest.raises(CallFailed, match="50% too müch") as refused:
            await made.unary("/s/refuse", b"", 10, META)
        assert refused.value.code == "RESOURCE_EXHAUSTED"
        with pytest.raises(CallFailed) as late:
            await made.unary("/s/sleep", b"", 0.2, META)
        assert late.value.code == "DEADLINE_EXCEEDED"
        found, failure = await made.stream("/s/break", b"", 10, META)
        assert found == [b"first"]
        assert failure is not None
        assert (failure.code, str(failure)) == ("UNAVAILABLE", "gone")
        await server.stop(0)
        with pytest.raises(CallFailed) as gone:
            await made.unary("/s/echo", b"", 10, META)
        assert gone.value.code == "UNAVAILABLE"


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
async def test_the_next_address_is_dialled_when_the_first_is_unreachable(
    implementation: str,
) -> None:
    async with dialled(implementation, dead_port()) as (made, _server):
        assert await made.unary("/s/echo", b"x", 10, META) == b"x"


@native_only
async def test_after_a_lost_connection_the_next_address_is_dialled_first() -> None:
    accepted = []

    def closes(name: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.append(name)
            writer.close()

        return close

    async with AsyncExitStack() as stack:
        addresses = []
        for name in ("first", "second"):
            server = await asyncio.start_server(closes(name), "127.0.0.1", 0)
            await stack.enter_async_context(server)
            addresses.append(server.sockets[0].getsockname())
        made = NativeCalls(Target(tuple(addresses)), crate())
        stack.push_async_callback(made.close)
        for _ in range(3):
            with pytest.raises(CallFailed):
                await made.unary("/s/echo", b"", 5, META)
    assert accepted == ["first", "second", "first"]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
async def test_an_unreachable_address_fails_with_failed_to_connect(implementation: str) -> None:
    target = Target((("127.0.0.1", dead_port()),))
    channel = grpc.aio.insecure_channel(target.name())
    made = GrpcioCalls(channel) if implementation == "grpcio" else NativeCalls(target, crate())
    for _ in range(2):
        with pytest.raises(CallFailed, match=r"(?i)failed to connect") as unreachable:
            await made.unary("/s/echo", b"", 5, META)
        assert unreachable.value.code == "UNAVAILABLE"
    await made.close()
    await channel.close()


@native_only
async def test_closing_fails_calls_in_flight_and_ends_the_thread() -> None:
    async with dialled("native") as (made, _server):
        sleeping = asyncio.create_task(made.unary("/s/sleep", b"", 30, META))
        cancelled = asyncio.create_task(made.unary("/s/sleep", b"", 30, META))
        await asyncio.sleep(0.1)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await made.close()
        with pytest.raises(CallFailed) as closed:
            await sleeping
        assert closed.value.code == "CLOSED"
        with pytest.raises(CallFailed, match="channel is closed"):
            await made.unary("/s/echo", b"", 1, META)
