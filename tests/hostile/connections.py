"""Attacks on connections: HTTP/2 frames, gRPC framing, floods, garbage, and slow peers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable

from cometmq.proto import paths, v1, v2
from cometmq.proto.methods import rpc_methods
from cometmq.tests.front.raw_http2 import (
    CONTINUATION,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    RawConnection,
    frame,
    headers,
    message,
)
from cometmq.tests.hostile.attacker import (
    ADMIN,
    MESSAGING,
    Attacker,
    attack,
    connect,
    plain,
    summary,
)
from cometmq.tests.hostile.values import REFUSALS

MIB = 1 << 20
WINDOW_UPDATE = 8
CANCEL = struct.pack(">I", 8)
#: Longer than the target's deadline for a request body.
TRICKLE_S = 20.0
#: Several peers at once do what one peer may.
PEERS = 4
SERVICES = {"client": (MESSAGING, ADMIN), "namesrv": ("cometmq.v1.NameServer",)}
GARBAGE = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /metrics HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n",
    b"GET /" + b"a" * 100_000,
    bytes.fromhex("160301007a010000760303") + bytes(100),
    bytes(10_000),
    random.Random(3).randbytes(100_000),
    PREFACE + random.Random(4).randbytes(100_000),
    PREFACE + frame(DATA, 0, 1, b"no such stream") * 500,
    PREFACE + b"\xff\xff\xff" + bytes(6),
)


async def _pushed(raw: RawConnection) -> bool:
    """Write what is queued; return False if the server has closed."""
    try:
        await asyncio.wait_for(raw.writer.drain(), 5)
    except (ConnectionError, TimeoutError):
        return False
    return not raw.writer.transport.is_closing()


async def _by_peers(one: Attacker, flood: Callable[[RawConnection], Awaitable[None]]) -> str:
    """Run a flood from several connections; return what became of them."""

    async def peer() -> str:
        raw = await one.raw()
        reading = asyncio.ensure_future(_drain(raw))
        with contextlib.suppress(ConnectionError, AssertionError):
            await flood(raw)
        done, _ = await asyncio.wait([reading], timeout=0.2)
        reading.cancel()
        raw.abort()
        return "closed" if done else "borne"

    return summary(await asyncio.gather(*(peer() for _ in range(PEERS))))


async def _drain(raw: RawConnection) -> None:
    """Read frames until the server sends GOAWAY or closes the connection."""
    while (got := await raw.read()) is not None and got.kind != GOAWAY:
        pass


@attack("closed", "borne")
async def rapid_reset(one: Attacker) -> str:
    """2,000 calls on each connection that are reset at once."""

    async def flood(raw: RawConnection) -> None:
        for stream in range(1, 4_001, 2):
            raw.start(stream, paths.RECEIVE_MESSAGE)
            raw.data(stream, message(b""))
            raw.write(frame(RST_STREAM, 0, stream, CANCEL))
            if stream % 401 == 0 and not await _pushed(raw):
                return

    return await _by_peers(one, flood)


async def _repeat(raw: RawConnection, data: bytes, times: int = 200) -> None:
    for _ in range(times):
        raw.write(data)
        if not await _pushed(raw):
            return


@attack("closed", "borne")
async def ping_flood(one: Attacker) -> str:
    """40,000 pings on each connection."""
    pings = frame(PING, 0, 0, b"x" * 8) * 200
    return await _by_peers(one, lambda raw: _repeat(raw, pings))


@attack("closed", "borne")
async def settings_flood(one: Attacker) -> str:
    """40,000 SETTINGS frames on each connection."""
    settings = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65_535)) * 200
    return await _by_peers(one, lambda raw: _repeat(raw, settings))


@attack("closed", "borne")
async def continuation_flood(one: Attacker) -> str:
    """A header block that never ends."""

    async def flood(raw: RawConnection) -> None:
        raw.write(frame(HEADERS, 0, 1, headers(paths.SEND_MESSAGE)))
        await _repeat(raw, frame(CONTINUATION, 0, 1, b"\x00\x01x\x40" + b"y" * 64) * 100)

    return await _by_peers(one, flood)


@attack("closed", "borne")
async def header_flood(one: Attacker) -> str:
    """Calls with 1,000 header fields each."""

    async def flood(raw: RawConnection) -> None:
        for stream in range(1, 81, 2):
            raw.start(stream, paths.SEND_MESSAGE, **{f"x_{n}": "y" * 100 for n in range(1_000)})
            if not await _pushed(raw):
                return

    return await _by_peers(one, flood)


@attack("closed", "borne")
async def empty_data_flood(one: Attacker) -> str:
    """Empty DATA frames on streams of each kind."""

    async def flood(raw: RawConnection) -> None:
        for stream, path in ((1, paths.SEND_MESSAGE), (3, paths.TELEMETRY)):
            raw.start(stream, path)
        await _repeat(raw, (frame(DATA, 0, 1, b"") + frame(DATA, 0, 3, b"")) * 100)

    return await _by_peers(one, flood)


@attack("closed", "borne")
async def window_games(one: Attacker) -> str:
    """Window updates beyond the limit of HTTP/2."""

    async def flood(raw: RawConnection) -> None:
        raw.start(1, paths.LIST_TOPICS)
        raw.data(1, message(b""))
        update = struct.pack(">I", 0x7FFF_FFFF)
        await _repeat(
            raw, frame(WINDOW_UPDATE, 0, 1, update) + frame(WINDOW_UPDATE, 0, 0, update), 3
        )

    return await _by_peers(one, flood)


@attack("closed", "borne")
async def streams_out_of_order(one: Attacker) -> str:
    """Stream ids that go back, are even, zero, or very large; frames of unknown kinds."""

    async def flood(raw: RawConnection) -> None:
        for stream in (9, 3, 2, 0, 1 << 30):
            raw.write(frame(HEADERS, 0x4, stream, headers(paths.SEND_MESSAGE)))
        for kind in range(256):
            raw.write(frame(kind, 0xFF, kind, bytes(kind)))
        await _pushed(raw)

    return await _by_peers(one, flood)


@attack("ended")
async def wrong_content_types(one: Attacker) -> str:
    """Requests that are not gRPC: content types, methods, paths and encodings."""
    answers = []
    for replace in (
        {"content_type": "text/html"},
        {"content_type": "application/grpc-web"},
        {"content_type": ""},
        {"content_type": "application/grpc+json"},
        {"grpc_encoding": "snappy"},
        {"grpc_timeout": "never"},
        {"grpc_timeout": "99999999H"},
        {"te": ""},
        {"x_mq_client_id": "\x7f\x01"},
    ):
        answers.append(await _ends(one, paths.HEARTBEAT, message(b""), **replace))
    for path in (
        "",
        "/",
        "//",
        "/a",
        "*",
        "/" + "p" * 100,
        "/apache.rocketmq.v2.MessagingService/",
    ):
        answers.append(await _ends(one, path, message(b"")))
    return summary(answers)


@attack("ended")
async def broken_grpc_frames(one: Attacker) -> str:
    """Prefixes that lie: flags, lengths, two messages, none."""
    whole = message(v2.HeartbeatRequest().SerializeToString())
    answers = [
        await _ends(one, path, data)
        for path in (paths.HEARTBEAT, paths.RECEIVE_MESSAGE, paths.TELEMETRY)
        for data in (
            b"",
            b"\x00",
            message(b"", flag=7),
            message(b"no gzip", flag=1),
            message(b"short", length=500),
            message(b"", length=0xFFFF_FFFF),
            whole * 3,
            random.Random(6).randbytes(300),
        )
    ]
    return summary(answers)


async def _ends(one: Attacker, path: str, data: bytes, **replace: str) -> str:
    """Make a call by hand; return "ended" if the server ends it."""
    raw = await one.raw()
    try:
        raw.start(1, path, **replace)
        raw.data(1, data)
        await raw.until_end(1)
    except TimeoutError:
        return "open"
    finally:
        raw.abort()
    return "ended"


@attack(*REFUSALS)
async def malformed_protobuf(one: Attacker) -> str:
    """Random bytes for each method of each service of the client port and the nameserver."""
    chance = random.Random(8)
    answers = []
    for port, services in SERVICES.items():
        async with connect(f"127.0.0.1:{one.target.node.ports[port]}") as wire:
            for service in services:
                for method in rpc_methods(service).values():
                    if method.client_streaming:
                        continue
                    for size in (1, 2, 3, 10, 100, 1_000):
                        request = chance.randbytes(size)
                        answers.append(
                            await one.outcome(method.path, request, within_s=2, wire=wire)
                        )
    return summary(answers)


@attack("UNIMPLEMENTED")
async def unknown_methods(one: Attacker) -> str:
    """2,000 paths that no service has."""

    async def one_call(number: int) -> str:
        call = one.wire.channel.unary_unary(f"/no.such.Service/Method{number}")
        try:
            await call(b"", timeout=10, metadata=one.wire.metadata)
        except Exception as error:
            code = getattr(error, "code", None)
            return code().name if code else type(error).__name__
        return "OK"

    answers: list[str] = []
    for first in range(0, 2_000, 100):
        calls = (one_call(number) for number in range(first, first + 100))
        answers += await asyncio.gather(*calls)
    return summary(answers)


@attack("PERMISSION_DENIED", "UNAUTHENTICATED", "INVALID_ARGUMENT", "ended", "UNIMPLEMENTED")
async def strangers_at_the_replication_port(one: Attacker) -> str:
    """Random frames and unauthorized calls at the port of the other replicas."""
    port = one.target.node.ports["ha"]
    answers = []
    async with connect(f"127.0.0.1:{port}") as wire:
        for method in rpc_methods("cometmq.v1.ReplicaControl").values():
            for request in (b"", random.Random(9).randbytes(200)):
                answers.append(await one.outcome(method.path, request, wire=wire))
    hello = v1.FollowerFrame(hello=v1.Hello()).SerializeToString()
    for first in (hello, b"", random.Random(9).randbytes(2_000)):
        raw = await one.raw(port)
        raw.start(1, paths.HA_REPLICATE)
        raw.data(1, message(first) * 100, end=False)
        try:
            await raw.until_end(1)
            answers.append("ended")
        except TimeoutError:
            answers.append("open")
        raw.abort()
    return summary(answers)


@attack("done")
async def garbage_on_every_port(one: Attacker) -> str:
    """HTTP/1, TLS, zeros and random bytes on each port of the process."""
    for port in one.target.node.ports.values():
        for garbage in GARBAGE:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(garbage)
            await asyncio.sleep(0.02)
            writer.transport.abort()
    return "done"


@attack("done")
async def connection_churn(one: Attacker) -> str:
    """500 connections on each port that are opened and closed."""
    for port in one.target.node.ports.values():
        for _ in range(5):
            opened = await asyncio.gather(
                *(asyncio.open_connection("127.0.0.1", port) for _ in range(100))
            )
            for number, (_, writer) in enumerate(opened):
                writer.write(PREFACE[: number % 24])
                writer.transport.abort()
    return "done"


@attack("done")
async def slow_loris(one: Attacker) -> str:
    """100 connections on each port that send their first bytes one at a time."""
    begin = {"metrics": b"GET /metrics HTTP/1.1\r\nX: "}
    writers: list[tuple[bytes, asyncio.StreamWriter]] = []
    for name, port in one.target.node.ports.items():
        for _ in range(100):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append((begin.get(name, PREFACE), writer))
    for at in range(20):
        for text, writer in writers:
            if not writer.transport.is_closing():
                writer.write(text[at : at + 1])
        await asyncio.sleep(0.1)
    for _, writer in writers:
        writer.transport.abort()
    return "done"


async def _unfinished(one: Attacker, sizes: Iterable[int]) -> list[RawConnection]:
    """Open one connection and stream for each size, and send that much of a larger body."""

    async def open_one(size: int) -> RawConnection:
        raw = await one.raw()
        raw.start(1, paths.SEND_MESSAGE)
        await _send_body(raw, size)
        return raw

    return list(await asyncio.gather(*(open_one(size) for size in sizes)))


async def _send_body(raw: RawConnection, size: int) -> None:
    """Send the prefix of 120 MiB and `size` bytes, as the server's window allows."""
    windows = {0: 65_535, 1: raw.stream_window}  # of the connection and the stream
    sent = 0
    chunk = bytes(16_384)
    raw.data(1, message(b"", length=120 * MIB), end=False)
    while sent < size:
        if min(windows.values()) > 2 * len(chunk):
            raw.data(1, chunk, end=False)
            windows = {stream: window - len(chunk) for stream, window in windows.items()}
            sent += len(chunk)
            if not await _pushed(raw):
                return
            continue
        try:
            got = await asyncio.wait_for(raw.read(), 1.0)
        except TimeoutError:
            return
        if got is None or got.ends:
            return
        if got.kind == WINDOW_UPDATE:
            windows[got.stream] += int.from_bytes(got.body, "big")


@attack("done")
async def unfinished_bodies(one: Attacker) -> str:
    """16 requests of 12 MB that do not end, on a connection each."""
    opened = await _unfinished(one, [12 * MIB] * 16)
    await asyncio.sleep(0.5)
    for raw in opened:
        raw.abort()
    return "done"


@attack("ended")
async def trickling_body(one: Attacker) -> str:
    """A request body that arrives byte by byte ends at the server's deadline."""
    (raw,) = await _unfinished(one, [0])
    trickle = asyncio.ensure_future(_trickle(raw))
    try:
        async with asyncio.timeout(TRICKLE_S):
            while (got := await raw.read()) is not None and not got.ends:
                pass
    except TimeoutError:
        return "open"
    finally:
        trickle.cancel()
        raw.abort()
    return "ended"


async def _trickle(raw: RawConnection) -> None:
    while True:
        raw.data(1, b"x", end=False)
        await asyncio.sleep(0.2)


@attack("done")
async def slow_readers_of_pulls(one: Attacker) -> str:
    """48 pulls of 16 MB on 12 connections whose answers are not read."""
    await one.outcome(paths.CREATE_TOPIC, v1.CreateTopicRequest(name="large", queues=1))
    for number in range(8):
        large = plain("large", bytes(2 * MIB), f"L{number}")
        await one.outcome(paths.SEND_MESSAGE, v2.SendMessageRequest(messages=[large]))
    pull = v2.PullMessageRequest(
        group=v2.Resource(name="fresh"),
        message_queue=v2.MessageQueue(topic=v2.Resource(name="large"), id=0),
        batch_size=32,
        filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"),
    )
    request = message(pull.SerializeToString())
    opened = []
    for number in range(12):
        raw = await one.raw()
        opened.append(raw)
        for stream in (1, 3, 5, 7):
            raw.start(stream, paths.PULL_MESSAGE, x_mq_client_id=f"slow@{number}")
            raw.data(stream, request)
        await _pushed(raw)
    await asyncio.sleep(1.0)
    for raw in opened:
        raw.abort()
    return "done"


@attack("done")
async def slow_readers_of_metrics(one: Attacker) -> str:
    """30 clients of /metrics that read nothing."""
    loop = asyncio.get_running_loop()
    opened = []
    for _ in range(30):
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.setblocking(False)
        opened.append(peer)
        await loop.sock_connect(peer, ("127.0.0.1", one.target.node.ports["metrics"]))
        await loop.sock_sendall(peer, b"GET /metrics HTTP/1.1\r\n\r\n")
    await asyncio.sleep(1.0)
    for peer in opened:
        peer.close()
    return "done"


@attack("done")
async def calls_without_a_body(one: Attacker) -> str:
    """1,000 calls on one connection whose request does not come."""
    raw = await one.raw()
    reading = asyncio.ensure_future(_drain(raw))
    for stream in range(1, 2_001, 2):
        raw.start(stream, paths.TELEMETRY if stream % 4 == 1 else paths.RECEIVE_MESSAGE)
        if stream % 200 == 1 and not await _pushed(raw):
            break
    reading.cancel()
    raw.abort()
    return "done"


@attack("done")
async def half_closed_connections(one: Attacker) -> str:
    """200 connections that end their side after the request and keep the other open."""
    opened = []
    for _ in range(200):
        raw = await one.raw()
        raw.start(1, paths.HEARTBEAT, x_mq_client_id="half@1")
        raw.write(frame(DATA, END_STREAM, 1, message(b"")))
        raw.writer.write_eof()
        opened.append(raw)
    await asyncio.sleep(0.3)
    for raw in opened:
        raw.abort()
    return "done"
