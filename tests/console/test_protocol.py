"""The limits of the console's connections, on uvicorn with a small application."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from cometmq.console import protocol
from cometmq.console.protocol import TimedProtocol

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
LIMIT_S = 0.3
LARGE = 64 << 20


async def answer(request: Request) -> Response:
    body = await request.body()
    await asyncio.sleep(3 * LIMIT_S)  # longer than a request may take to arrive
    return PlainTextResponse(f"{len(body)} bytes")


async def large(_request: Request) -> Response:
    return PlainTextResponse("x" * LARGE)


@asynccontextmanager
async def serving(limit: int | None = None) -> AsyncIterator[int]:
    app = Starlette(routes=[Route("/", answer, methods=["GET", "POST"]), Route("/large", large)])
    config = uvicorn.Config(
        app,
        http=TimedProtocol,
        ws="none",
        lifespan="off",
        log_level="warning",
        limit_concurrency=limit,
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


async def reply(reader: asyncio.StreamReader) -> bytes:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    assert head.startswith(b"HTTP/1.1 200")
    return await asyncio.wait_for(reader.readexactly(len(b"0 bytes")), 30)


@pytest.mark.parametrize(
    "part",
    [b"", GET[:20], GET[:-1], POST, POST + b"12345"],
    ids=["nothing", "a line", "a header", "no body", "half a body"],
)
async def test_a_request_that_is_not_complete_in_time_ends_its_connection(
    part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "REQUEST_S", LIMIT_S)
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(part)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()


async def test_a_second_request_has_the_same_limit_and_an_answer_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "REQUEST_S", LIMIT_S)
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        assert await reply(reader) == b"0 bytes"
        writer.write(GET)
        assert await reply(reader) == b"0 bytes"
        writer.write(POST + b"1")
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()


async def test_an_answer_that_is_not_read_in_time_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "UNREAD_S", LIMIT_S)
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await reader.read(1)
        await asyncio.sleep(3 * LIMIT_S)
        size = 0
        with contextlib.suppress(ConnectionResetError):
            while part := await asyncio.wait_for(reader.read(1 << 20), 30):
                size += len(part)
        assert size < LARGE / 2
        writer.close()


async def test_at_the_limit_a_new_connection_replaces_the_one_that_waits_longest() -> None:
    limit = 5
    async with serving(limit) as port:
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * limit)]
        opened[-1][1].write(GET)
        assert await reply(opened[-1][0]) == b"0 bytes"
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(opened[0][0].read(), 30) == b""
        opened[-2][1].write(GET)
        assert await reply(opened[-2][0]) == b"0 bytes"
        for _, writer in opened:
            writer.close()
