"""Clients that send slowly, do not finish their requests, or do not read their answers.

Each is refused or disconnected within its time and budget; neighbours are served. The grpcio door
has no budget for unfinished requests (docs/compatibility.md).
"""

import asyncio
import os
import socket
import struct
from contextlib import suppress
from typing import Any

import grpc
import pytest

from cometmq.front.config import DoorConfig
from cometmq.front.slow_clients import SlowClients
from cometmq.proto.native import is_available
from cometmq.tests.front.raw_http2 import (
    END_HEADERS,
    HEADERS,
    PING,
    RST_STREAM,
    RawConnection,
    frame,
    headers,
    message,
)

ECHO = "/test.Conformance/Echo"
ITEMS = "/test.Conformance/Items"
TALK = "/test.Conformance/Talk"
WINDOW_UPDATE = 8
CHUNK = 16_000
CANCEL = struct.pack(">I", 8)

native_only = pytest.mark.parametrize("door_name", ["native"])
if not is_available():
    native_only = pytest.mark.skip("the native door is not installed")


def begin(raw: RawConnection, stream: int, size: int, path: str = ECHO) -> None:
    """Start a request that lacks its last byte."""
    raw.start(stream, path)
    data = message(bytes(size), length=size + 1)
    for at in range(0, len(data), CHUNK):
        raw.data(stream, data[at : at + CHUNK], end=False)


async def until_closed(raw: RawConnection) -> None:
    """Read until the server closes the connection."""
    with suppress(ConnectionError):
        while await raw.read() is not None:
            pass


async def drip(raw: RawConnection, stream: int) -> None:
    """Send a request one byte at a time, without an end."""
    raw.data(stream, message(b"", length=1_000_000), end=False)
    while True:
        raw.data(stream, b"x", end=False)
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("path", [ECHO, ITEMS])
async def test_a_request_that_arrives_too_slowly_is_refused(
    bench: Any, eventually: Any, path: str
) -> None:
    async with await bench(front_request_timeout=300) as b:
        raw = await RawConnection.open(b.port)
        raw.start(1, path)
        dripping = asyncio.ensure_future(drip(raw, 1))
        assert (await raw.until_end(1))[-1].ends
        dripping.cancel()
        assert b.door.counters()["requests_slow"] == 1
        await _patient_echo(raw, 3)
        await eventually(lambda: b.door.statistics().in_flight == 0)
        raw.abort()


@native_only
async def test_a_message_of_a_stream_has_a_time_limit_and_the_stream_has_none(bench: Any) -> None:
    async with await bench(front_request_timeout=300) as b:
        raw = await RawConnection.open(b.port)
        raw.start(1, TALK)
        for _ in range(3):
            raw.data(1, message(b"hello"), end=False)
            assert await raw.data_of(1, 10) == message(b"hello")
            await asyncio.sleep(0.2)
        dripping = asyncio.ensure_future(drip(raw, 1))
        assert (await raw.until_end(1))[-1].ends
        dripping.cancel()
        assert b.door.counters()["requests_slow"] == 1
        raw.abort()


@native_only
async def test_unfinished_requests_of_a_connection_have_a_budget(
    bench: Any, eventually: Any
) -> None:
    async with await bench(front_unfinished_connection_bytes=2_500_000) as b:
        raw = await RawConnection.open(b.port)
        for stream in range(1, 11, 2):
            begin(raw, stream, 900_000)
        await eventually(lambda: b.door.counters()["requests_over_budget"] == 3)
        assert b.door.counters()["unfinished_bytes"] < 2_500_000
        assert await b.client.unary("Echo", bytes(100_000)) == bytes(100_000)
        raw.abort()
        await eventually(lambda: b.door.counters()["unfinished_bytes"] == 0)


@native_only
async def test_one_request_may_exceed_the_budget_of_its_connection(bench: Any) -> None:
    async with await bench(front_unfinished_connection_bytes=100_000) as b:
        assert await b.client.unary("Echo", bytes(5_000_000)) == bytes(5_000_000)


@native_only
async def test_unfinished_requests_of_all_connections_have_a_budget(
    bench: Any, eventually: Any
) -> None:
    async with await bench(front_unfinished_bytes=4_000_000) as b:
        hogs = [await RawConnection.open(b.port) for _ in range(6)]
        for raw in hogs:
            begin(raw, 1, 900_000)
        await eventually(lambda: b.door.counters()["requests_over_budget"] >= 2)
        assert b.door.counters()["unfinished_bytes"] < 4_000_000
        # A connection with less than its share goes on.
        assert await b.client.unary("Echo", bytes(100_000)) == bytes(100_000)
        for raw in hogs:
            raw.abort()
        await eventually(lambda: b.door.counters()["unfinished_bytes"] == 0)


@native_only
async def test_a_client_with_too_many_unread_answers_is_disconnected(
    bench: Any, eventually: Any
) -> None:
    async with await bench(front_unread_connection_bytes=2_000_000) as b:
        raw = await RawConnection.open(b.port)
        for stream in (1, 3, 5):
            raw.start(stream, ITEMS)
            raw.data(stream, message(b"9 100000"))
        await eventually(lambda: b.door.counters()["connections_unread"] == 1)
        await eventually(lambda: b.door.counters()["unread_bytes"] == 0)
        assert await b.client.unary("Echo", bytes(100_000)) == bytes(100_000)
        raw.abort()


@native_only
async def test_clients_that_do_not_read_share_a_budget(bench: Any, eventually: Any) -> None:
    options = {"front_unread_bytes": 2_000_000, "front_write_timeout": 20_000}
    async with await bench(**options) as b:
        raws = [await RawConnection.open(b.port) for _ in range(3)]
        for raw in raws:
            raw.start(1, ITEMS)
            raw.data(1, message(b"9 100000"))
        await eventually(lambda: b.door.counters()["connections_unread"] >= 1)
        await eventually(lambda: b.door.counters()["unread_bytes"] <= 2_000_000)
        for raw in raws:
            raw.abort()


@native_only
async def test_a_client_that_reads_byte_by_byte_is_disconnected(
    bench: Any, eventually: Any
) -> None:
    async with await bench(front_write_timeout=400) as b:
        raw = await RawConnection.open(b.port)
        raw.start(1, ITEMS)
        raw.data(1, message(b"9 100000"))

        async def nibble() -> None:
            while True:
                for stream in (0, 1):
                    raw.write(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", 1)))
                await asyncio.sleep(0.02)

        nibbling = asyncio.ensure_future(nibble())
        await eventually(lambda: b.door.counters()["connections_stalled"] == 1)
        nibbling.cancel()
        raw.abort()


@pytest.mark.parametrize("door_name", ["grpcio"])
@pytest.mark.parametrize(("path", "request_"), [(ECHO, bytes(200_000)), (ITEMS, b"9 100000")])
async def test_the_grpcio_door_disconnects_a_client_that_does_not_read(
    bench: Any, eventually: Any, path: str, request_: bytes
) -> None:
    async with await bench(front_write_timeout=200) as b:
        raw = await RawConnection.open(b.port)
        raw.start(1, path)
        data = message(request_)
        parts = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
        for part in parts:
            raw.data(1, part, end=part is parts[-1])
        await eventually(lambda: b.door.counters()["connections_stalled"] == 1)
        await eventually(lambda: b.door.statistics().in_flight == 0)
        await eventually(lambda: b.door.counters()["unread_bytes"] == 0)
        assert await raw.closed()
        assert await _patiently_echoed(b, bytes(500_000)) == bytes(500_000)
        raw.abort()


async def _patient_echo(raw: RawConnection, stream: int) -> None:
    """Make a good call; on a slow machine the short time limit ends some of these, too."""
    async with asyncio.timeout(60):
        while True:
            try:
                await raw.echo(stream)
            except AssertionError:
                stream += 2
            else:
                return


async def _patiently_echoed(b: Any, data: bytes) -> bytes:
    """Call Echo; on a slow machine the short write limit ends calls of a good client, too."""
    async with asyncio.timeout(60):
        while True:
            try:
                answer: bytes = await b.client.unary("Echo", data)
            except grpc.RpcError:
                await asyncio.sleep(0.05)
            else:
                return answer


class _Stuck:
    """A call whose client neither sends nor reads."""

    async def read(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def write(self, _data: bytes) -> None:
        await asyncio.get_running_loop().create_future()


async def test_slow_readers_of_the_grpcio_door_are_found_by_time_and_by_budget() -> None:
    now_ns = [0]
    config = DoorConfig(front_write_timeout=60_000, front_unread_bytes=5 << 20)
    slow = SlowClients(config, lambda: now_ns[0])

    async def writing(size: int, peer: str) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(slow.write(_Stuck(), bytes(size), peer))
        await asyncio.sleep(0)
        return task

    small = await writing(1_000, "a")
    assert slow.unread_bytes == 0  # not registered
    tasks = [await writing(3 << 20, "a"), await writing(1 << 20, "b"), small]
    now_ns[0] += 30_000_000_000
    assert slow.check() == set()
    tasks.append(await writing(2 << 20, "c"))
    # Over the budget: the one that waits longest goes, the new one stays.
    assert slow.check() == {"a"}
    tasks[0].cancel()
    await asyncio.sleep(0)
    assert slow.check() == set()
    now_ns[0] += 100_000_000_000
    assert slow.check() == {"b"}  # two minutes for 1 MiB, three for 2 MiB
    for task in tasks:
        task.cancel()


async def test_a_late_request_is_told_from_a_client_that_left() -> None:
    now_ns = [0]
    slow = SlowClients(DoorConfig(front_request_timeout=30_000), lambda: now_ns[0])
    loop = asyncio.get_running_loop()
    late, left = (loop.create_task(slow.read(_Stuck())) for _ in range(2))
    await asyncio.sleep(0)
    left.cancel()
    now_ns[0] += 30_000_000_000
    slow.check()
    await asyncio.gather(late, left, return_exceptions=True)
    assert left.cancelled()
    assert isinstance(late.exception(), TimeoutError)


def _calls_and_resets(streams: range) -> bytes:
    """Return the frames of calls that are reset at once, for one write: a server that reads them
    one by one has few resets at a time."""
    return b"".join(
        frame(HEADERS, END_HEADERS, stream, headers(ECHO)) + frame(RST_STREAM, 0, stream, CANCEL)
        for stream in streams
    )


async def test_a_client_that_resets_its_calls_is_disconnected(bench: Any, eventually: Any) -> None:
    async with await bench(front_max_pending_resets=50) as b:
        raw = await RawConnection.open(b.port)
        reading = asyncio.ensure_future(until_closed(raw))
        raw.write(_calls_and_resets(range(1, 2_001, 2)))
        await asyncio.wait_for(reading, 20)
        assert await b.client.unary("Echo", b"unharmed") == b"unharmed"
        raw.abort()


@pytest.mark.parametrize("door_name", ["grpcio"])
async def test_calls_of_a_connection_that_wait_for_the_loop_have_a_limit(
    bench: Any, eventually: Any
) -> None:
    async with await bench(front_max_concurrent_streams=50) as b:
        found = b.door.service
        calls: list[str] = []

        def count(details: Any) -> Any:
            calls.append(details.method)
            return found(details)

        b.door.service = count
        raw = await RawConnection.open(b.port)
        await raw.echo(1)
        _write_while_the_loop_stands_still(raw, _calls_and_resets(range(3, 2_003, 2)))
        assert await b.client.unary("Echo", b"unharmed") == b"unharmed"
        await eventually(lambda: b.door.statistics().in_flight == 0)
        assert 2 < len(calls) <= 2 + 2 * 50
        raw.abort()


def _write_while_the_loop_stands_still(raw: RawConnection, data: bytes) -> None:
    """Write, and wait until gRPC's threads have read all of it: they answer the ping behind it."""
    plain = raw.writer.get_extra_info("socket")
    with socket.socket(fileno=os.dup(plain.fileno())) as connection:
        connection.settimeout(20)
        connection.sendall(data + frame(PING, 0, 0, b"all read"))
        answers = b""
        while b"all read" not in answers:
            answers += connection.recv(65_536)
