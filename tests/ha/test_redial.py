"""Calls over a channel that is made anew after a failure."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from cometmq.ha import redial
from cometmq.ha.redial import RedialedChannel

SILENT = "/test.Silent/Call"


class Silent(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers nobody."""

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
    channel = RedialedChannel(f"127.0.0.1:{port}")
    try:
        yield handler, channel
    finally:
        await channel.close()
        await server.stop(0)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_call_that_was_cut_off_with_its_channel_looked_like_a_cancelled_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three nameservers waited for ever then, and nobody decided for the group any more (drill 38)."""
    monkeypatch.setattr(redial, "_CLOSE_LATE_S", -5.0)

    async def scenario() -> None:
        async with silent() as (handler, channel):
            call = asyncio.create_task(channel.call(SILENT, b"", (), 5.1))
            await handler.called.wait()
            channel.redial()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

    run(scenario)


def test_a_call_has_its_time_on_a_channel_that_was_replaced() -> None:
    async def scenario() -> None:
        async with silent() as (handler, channel):
            call = asyncio.create_task(channel.call(SILENT, b"", (), 0.5))
            await handler.called.wait()
            channel.redial()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    run(scenario)


def test_a_caller_that_is_cancelled_itself_is_told_so() -> None:
    async def scenario() -> None:
        async with silent() as (handler, channel):
            call = asyncio.create_task(channel.call(SILENT, b"", (), 5.0))
            await handler.called.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    run(scenario)
