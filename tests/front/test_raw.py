"""Conformance of a door, part 3: malformed bytes. Well-behaved clients are unharmed."""

import asyncio
import gzip
import random
import socket
import struct
from typing import Any

import pytest

from cometmq.tests.front.raw_http2 import (
    DATA,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST_STREAM,
    RawConnection,
    frame,
    message,
)

ECHO = "/test.Conformance/Echo"
TALK = "/test.Conformance/Talk"
LATER = "/test.Conformance/Later"
MESSAGE = "/test.Conformance/Message"
GZIP = gzip.compress(b"again and again " * 100)
TLS_HELLO = bytes.fromhex("160301007a010000760303") + bytes(100)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        TLS_HELLO,
        bytes(1_000),
        random.Random(3).randbytes(5_000),
        PREFACE + random.Random(4).randbytes(5_000),
        PREFACE + frame(DATA, 0, 1, b"no such stream") * 50,
        PREFACE + b"\xff\xff\xff" + bytes(6),
    ],
    ids=["http1", "tls", "zeros", "random", "random-frames", "data-first", "huge-frame"],
)
async def test_garbage_on_the_socket_harms_only_its_connection(
    bench: Any, eventually: Any, garbage: bytes
) -> None:
    async with await bench() as b:
        waiting = b.client.unary("Later")
        await eventually(lambda: b.services.futures)
        _reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
        writer.write(garbage)
        await asyncio.sleep(0.05)
        assert await b.client.unary("Echo", b"unharmed") == b"unharmed"
        writer.transport.abort()
        b.services.futures[0].set_result(b"unharmed too")
        assert await waiting == b"unharmed too"


@pytest.mark.parametrize("path", [ECHO, MESSAGE, "/test.Conformance/Items", TALK])
async def test_a_truncated_grpc_frame_ends_its_own_stream_only(bench: Any, path: str) -> None:
    async with await bench() as b:
        raw = await RawConnection.open(b.port)
        raw.start(1, LATER)
        raw.data(1, message(b"waits"))
        raw.start(3, path)
        raw.data(3, message(b"x" * 10, length=100))
        frames = await raw.until_end(3)
        assert frames and frames[-1].ends
        assert not any(f.kind == DATA and f.body for f in frames)
        await raw.echo(5)
        assert len(b.services.futures) == 1
        assert not b.services.futures[0].done()
        b.services.futures[0].set_result(b"unharmed")
        frames = await raw.until_end(1)
        assert b"".join(f.body for f in frames if f.kind == DATA) == message(b"unharmed")
        raw.abort()


async def test_a_truncated_length_prefix_is_invalid_argument(bench: Any) -> None:
    async with await bench() as b:
        raw = await RawConnection.open(b.port)
        raw.start(1, ECHO)
        raw.data(1, b"\x00\x00")
        assert (await raw.until_end(1))[-1].ends
        await raw.echo(3)
        raw.abort()


async def test_a_request_without_a_message_is_invalid_argument(bench: Any) -> None:
    async with await bench() as b:
        raw = await RawConnection.open(b.port)
        raw.start(1, ECHO)
        raw.data(1, b"")
        assert (await raw.until_end(1))[-1].ends
        await raw.echo(3)
        raw.abort()


async def test_a_false_length_of_gigabytes_is_refused(bench: Any) -> None:
    async with await bench() as b:
        raw = await RawConnection.open(b.port)
        raw.start(1, ECHO)
        raw.data(1, message(b"small", length=0xFFFF_FFF0), end=False)
        await raw.echo(3)
        raw.data(1, b"that was all")
        assert (await raw.until_end(1))[-1].ends
        await raw.echo(5)
        raw.abort()


async def test_several_messages_in_one_frame_are_handled(bench: Any) -> None:
    async with await bench() as b:
        raw = await RawConnection.open(b.port)
        raw.start(1, TALK)
        said = message(b"one") + message(b"") + message(b"three")
        raw.data(1, said, end=False)
        assert await raw.data_of(1, len(said)) == said
        raw.abort()


async def test_one_message_in_many_frames_is_read(bench: Any) -> None:
    async with await bench() as b:
        raw = await RawConnection.open(b.port)
        raw.start(1, ECHO)
        said = message(b"letter by letter")
        for byte in said[:-1]:
            raw.data(1, bytes([byte]), end=False)
            await asyncio.sleep(0)
        raw.data(1, said[-1:])
        frames = await raw.until_end(1)
        assert b"".join(f.body for f in frames if f.kind == DATA) == said
        raw.abort()


async def test_an_unknown_compression_is_refused(bench: Any) -> None:
    async with await bench() as b:
        raw = await RawConnection.open(b.port)
        raw.start(1, ECHO, grpc_encoding="snappy")
        raw.data(1, message(b"squeezed", flag=1))
        frames = await raw.until_end(1)
        assert frames[-1].ends
        assert not any(f.kind == DATA and f.body for f in frames)
        await raw.echo(3)
        raw.abort()


DAMAGED_GZIP = {
    "cut": GZIP[:-9],
    "altered": GZIP[:12] + b"\xff\xff\xff" + GZIP[15:],
    "with more behind it": GZIP + b"more",
    "header alone": GZIP[:2],
}


@pytest.mark.parametrize("damage", DAMAGED_GZIP)
async def test_invalid_gzip_is_refused(bench: Any, damage: str) -> None:
    async with await bench() as b:
        raw = await RawConnection.open(b.port)
        raw.start(1, ECHO, grpc_encoding="gzip")
        raw.data(1, message(DAMAGED_GZIP[damage], flag=1))
        frames = await raw.until_end(1)
        assert frames[-1].ends
        assert not any(f.kind == DATA and f.body for f in frames)
        await raw.echo(3)
        raw.abort()


async def test_another_content_type_harms_no_other_call(bench: Any) -> None:
    # Whether it is refused is the door's own: grpc's core does not look at it.
    async with await bench() as b:
        raw = await RawConnection.open(b.port)
        raw.start(1, ECHO, content_type="text/plain")
        raw.data(1, b"hello")
        assert (await raw.until_end(1))[-1].ends
        await raw.echo(3)
        raw.abort()


async def test_headers_above_the_limit_are_refused(bench: Any) -> None:
    async with await bench(front_max_metadata_size=4_096) as b:
        raw = await RawConnection.open(b.port)
        many = {f"x_filler_{number}": "y" * 100 for number in range(60)}
        raw.start(1, ECHO, **many)
        raw.data(1, message(b""))
        frames = await raw.until_end(1)
        assert not any(f.kind == DATA and f.body for f in frames)
        assert b.services.contexts == []
        assert await b.client.unary("Echo", b"fine") == b"fine"
        raw.abort()


async def test_a_client_may_leave_in_the_middle_of_a_request(bench: Any) -> None:
    async with await bench() as b:
        for _ in range(20):
            raw = await RawConnection.open(b.port)
            raw.start(1, ECHO)
            raw.data(1, message(b"x" * 100, length=10_000), end=False)
            await raw.writer.drain()
            raw.abort()
        assert await b.client.unary("Echo", b"fine") == b"fine"
        assert b.services.contexts[:-1] == []


async def test_a_client_that_leaves_while_waiting_cancels_its_call(
    bench: Any, eventually: Any
) -> None:
    async with await bench() as b:
        raw = await RawConnection.open(b.port)
        for stream in range(1, 20, 2):
            raw.start(stream, LATER)
            raw.data(stream, message(b""))
        raw.start(21, TALK)
        await eventually(lambda: len(b.services.futures) == 10 and b.services.sessions)
        _reset(raw)
        await eventually(lambda: all(future.cancelled() for future in b.services.futures))
        await eventually(lambda: b.services.sessions[0].closed)
        await eventually(lambda: b.door.statistics().in_flight == 0)


async def test_a_stream_that_is_reset_ends_alone(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        raw = await RawConnection.open(b.port)
        for stream in (1, 3):
            raw.start(stream, LATER)
            raw.data(stream, message(b""))
        await eventually(lambda: len(b.services.futures) == 2)
        raw.write(frame(RST_STREAM, 0, 1, struct.pack(">I", 8)))
        await eventually(b.services.futures[0].cancelled)
        assert not b.services.futures[1].done()
        b.services.futures[1].set_result(b"unharmed")
        frames = await raw.until_end(3)
        assert [f.kind for f in frames if f.kind in (HEADERS, RST_STREAM)][-1] == HEADERS
        raw.abort()


async def test_invalid_headers_end_only_their_connection(bench: Any) -> None:
    async with await bench() as b:
        raw = await RawConnection.open(b.port)
        raw.write(frame(HEADERS, 0x4, 1, b"\xff" * 50))
        frames: list[int] = []
        while (got := await asyncio.wait_for(raw.read(), 10)) is not None:
            frames.append(got.kind)
            if got.kind in (GOAWAY, RST_STREAM):
                break
        raw.abort()
        assert await b.client.unary("Echo", b"fine") == b"fine"


def _reset(raw: RawConnection) -> None:
    """Leave as a process that is killed with unread data does: RST instead of FIN."""
    sock = raw.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.abort()
