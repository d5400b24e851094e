"""Calls over a channel that reconnects after a failure."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from cometmq.client.transport.calls import GrpcioCalls
from cometmq.client.transport.connection import Connection
from cometmq.ha.role.controller_link import _Session
from cometmq.ha.stream import redial
from cometmq.ha.stream.redial import RedialedChannel
from cometmq.nodes.node_links import NodeLinks
from cometmq.proto import v1

SILENT = "/test.Silent/Call"


class Silent(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Never answers."""

    def __init__(self) -> None:
        self.called = asyncio.Event()

    def service(self, handler_call_details: Any) -> Any:
        async def never(_request: bytes, _context: Any) -> bytes:
            self.called.set()
            await asyncio.Event().wait()
            return b""

        return grpc.unary_unary_rpc_method_handler(never)


@asynccontextmanager
async def silent() -> AsyncIterator[tuple[Silent, RedialedChannel]]:
    handler = Silent()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = RedialedChannel(f"127.0.0.1:{port}", NodeLinks())
    try:
        yield handler, channel
    finally:
        await channel.close()
        await server.stop(0)


async def test_a_call_cut_off_with_its_channel_raises_rpc_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before, three nameservers waited forever and none was active for the group (drill 38)."""
    monkeypatch.setattr(redial, "_CLOSE_LATE_S", -5.0)
    async with silent() as (handler, channel):
        call = asyncio.create_task(channel.call(SILENT, b"", (), 5.1))
        await handler.called.wait()
        channel.redial()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_call_on_a_replaced_channel_keeps_its_time_limit() -> None:
    async with silent() as (handler, channel):
        limit_s = 0.5
        while not handler.called.is_set():  # a slow machine connects only within a longer limit
            call = asyncio.create_task(channel.call(SILENT, b"", (), limit_s))
            called = asyncio.create_task(handler.called.wait())
            await asyncio.wait({call, called}, return_when=asyncio.FIRST_COMPLETED)
            called.cancel()
            limit_s *= 2
        channel.redial()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_cancelled_caller_gets_cancelled_error() -> None:
    async with silent() as (handler, channel):
        call = asyncio.create_task(channel.call(SILENT, b"", (), 5.0))
        await handler.called.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def swallowed(*_args: Any, **_options: Any) -> bytes:
    """The result of a cancellation in the loop turn in which the call fails."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        nothing = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing) from None
    return b""


class Swallowing:
    """A channel, a method and a stream of such calls."""

    def unary_unary(self, _path: str) -> Any:
        return swallowed

    def stream_stream(self, _path: str) -> Any:
        return lambda *_request, **_options: self

    unary_stream = stream_stream
    __call__ = read = write = staticmethod(swallowed)

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    async def details(self) -> str:
        return ""

    def cancel(self) -> None:
        pass

    async def close(self, _grace: float = 0.0) -> None:
        pass

    async def __aenter__(self) -> "Swallowing":
        return self

    async def __aexit__(self, *_error: object) -> None:
        pass


async def ends(task: "asyncio.Task[Any]") -> None:
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()


async def test_a_repeating_caller_can_be_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that stopped in that moment did not stop."""
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(grpc.aio, "insecure_channel", lambda *_a, **_o: Swallowing())
    await ends(loop.create_task(RedialedChannel("x:1", NodeLinks()).call("/a/b", b"", (), 5.0)))
    link: Any = SimpleNamespace(
        links=NodeLinks(),
        interval_s=1.0,
        next_heartbeat=lambda **_o: v1.BrokerBeat(seq=1),
    )
    await ends(loop.create_task(_Session(link, "x:1").run()))
    calls = GrpcioCalls(Swallowing())
    await ends(loop.create_task(calls.unary("/a/b", b"", 5.0, ())))
    await ends(loop.create_task(calls.stream("/a/b", b"", 5.0, ())))
    client: Any = SimpleNamespace(
        _channel=Swallowing(),
        _caller=SimpleNamespace(metadata=tuple),
        _run_stream=swallowed,
        _on_telemetry_end=lambda *_: None,
        target="x:1",
    )
    await ends(loop.create_task(Connection._keep_telemetry(client)))
