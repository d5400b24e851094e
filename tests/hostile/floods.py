"""Attacks on what a stranger's connection holds in memory, at every port that speaks gRPC.

Through the grpcio door, calls without their messages cost the event loop as much as others, and
small unread answers are in gRPC's core, which does not tell their number: only the native door has
limits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time

from cometmq.proto import paths, v2
from cometmq.tests.front.raw_http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    RawConnection,
    frame,
    headers,
    message,
)
from cometmq.tests.hostile.attacker import Attacker, attack

#: A method that the port has; strangers get to its door.
PORTS = {
    "client": paths.SEND_MESSAGE,
    "ha": paths.REPLICA_STATUS,
    "namesrv": paths.GET_CLUSTER,
}
#: Rounds of one attack at each port.
ROUNDS = 40
#: Longest time that the writing of one round may take: a server that reads no more has had enough.
ROUND_S = 5.0
_FRAME = 16_384
#: What a client adds to the window of a connection, so that it is never used up.
_WINDOW = (1 << 31) - (1 << 16)
#: Connections that call at once, their open calls each, and for how long.
CROWD, OPEN_CALLS, CROWD_S = 200, 5, 5.0
#: HPACK: the first entry of the dynamic table, and a literal that becomes one.
_FIRST_ENTRY, _ADD_ENTRY = b"\xbe", b"\x40"


async def _push(raw: RawConnection) -> bool:
    """Write what is queued; return False if the server has closed, or reads no more."""
    with contextlib.suppress(ConnectionError, TimeoutError):
        await asyncio.wait_for(raw.writer.drain(), ROUND_S)
        return not raw.writer.transport.is_closing()
    return False


def _length(size: int) -> bytes:
    """Return an integer of HPACK with a prefix of 7 bits."""
    if size < 127:
        return bytes([size])
    rest, out = size - 127, b"\x7f"
    while rest >= 128:
        out, rest = out + bytes([rest % 128 + 128]), rest // 128
    return out + bytes([rest])


@attack("done", door="native")
async def unfinished_calls_of_many_connections(one: Attacker) -> str:
    """300 calls without their messages on each of many connections, which close; and again."""
    for name, path in PORTS.items():
        block = headers(path) + b"\x00\x03x-y" + _length(900) + b"y" * 900
        calls = b"".join(frame(HEADERS, END_HEADERS, stream, block) for stream in range(1, 601, 2))
        for _ in range(2):
            port = one.target.node.ports[name]
            opened = await asyncio.gather(*(RawConnection.greet(port) for _ in range(2 * ROUNDS)))
            for raw in opened:
                raw.write(calls)
            await asyncio.gather(*map(_push, opened))
            for raw in opened:
                raw.abort()
    return "done"


@attack("done")
async def bombs_of_indexed_headers(one: Attacker) -> str:
    """One header field of 4,000 bytes, and calls that name it 16,000 times each."""
    for name, path in PORTS.items():
        raw = await one.raw(one.target.node.ports[name])
        entry = _ADD_ENTRY + b"\x01x" + _length(4_000) + b"y" * 4_000
        raw.write(frame(HEADERS, END_HEADERS, 1, headers(path) + entry))
        block = headers(path)
        block += _FIRST_ENTRY * (_FRAME - len(block))
        for stream in range(3, 3 + 2 * ROUNDS, 2):
            raw.write(frame(HEADERS, END_HEADERS, stream, block))
            if not await _push(raw):
                break
        raw.abort()
    return "done"


@attack("done")
async def header_blocks_without_an_end(one: Attacker) -> str:
    """Continuations of one header block, as long as the server reads them."""
    piece = (b"\x00\x03x-y" + _length(4_000) + b"z" * 4_000) * 4
    for name, path in PORTS.items():
        raw = await one.raw(one.target.node.ports[name])
        raw.write(frame(HEADERS, 0, 1, headers(path)))
        for _ in range(100 * ROUNDS):
            raw.write(frame(CONTINUATION, 0, 1, piece))
            if not await _push(raw):
                break
        raw.abort()
    return "done"


@attack("done", door="native")
async def small_answers_that_are_not_read(one: Attacker) -> str:
    """Calls with answers of some bytes, on connections that read nothing or allow no data."""
    beat = message(v2.HeartbeatRequest().SerializeToString())
    opened = []
    for window in (0, 1 << 30, 0, 1 << 30):
        raw = RawConnection(*await asyncio.open_connection("127.0.0.1", one.target.port))
        opened.append(raw)
        raw.write(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, window)))
        for first in range(1, 1_000 * ROUNDS, 400):
            for stream in range(first, first + 400, 2):
                raw.start(stream, paths.HEARTBEAT, x_mq_client_id="greedy@1")
                raw.data(stream, beat)
            if not await _push(raw):
                break
    for raw in opened:
        raw.abort()
    return "done"


@attack("done")
async def connections_without_an_end(one: Attacker) -> str:
    """New connections to each port, with TLS where there is one, as fast as they are accepted."""
    hello = bytes.fromhex("16030100050100000103")
    for name in PORTS:
        port = one.target.node.ports[name]
        for _ in range(10 * ROUNDS):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(hello)
                writer.transport.abort()
    return "done"


class _Caller(asyncio.Protocol):
    """A connection with some calls open at any time: an answer is followed by the next call."""

    def __init__(self) -> None:
        self.answered = 0
        self._next, self._buffer = 1, b""
        self._block = headers(paths.HEARTBEAT, x_mq_client_id="crowd@1")
        self._beat = message(v2.HeartbeatRequest().SerializeToString())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        window = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", _WINDOW))
        transport.write(PREFACE + frame(SETTINGS, 0, 0, b"") + window)
        self._call(OPEN_CALLS)

    def _call(self, count: int) -> None:
        calls = b""
        for stream in range(self._next, self._next + 2 * count, 2):
            calls += frame(HEADERS, END_HEADERS, stream, self._block)
            calls += frame(DATA, END_STREAM, stream, self._beat)
        self._next += 2 * count
        self.transport.write(calls)

    def data_received(self, data: bytes) -> None:
        data, at, ended = self._buffer + data, 0, 0
        while at + 9 <= len(data):
            size = int.from_bytes(data[at : at + 3], "big")
            if at + 9 + size > len(data):
                break
            ended += data[at + 3] in (DATA, HEADERS) and data[at + 4] & END_STREAM
            at += 9 + size
        self._buffer = data[at:]
        self.answered += ended
        if ended:
            self._call(ended)


@attack("calls", door="native")
async def calls_of_many_connections(one: Attacker) -> str:
    """Heartbeats on 200 connections of another address, as fast as they are answered."""
    loop = asyncio.get_running_loop()
    port, source = one.target.port, ("127.0.0.2", 0)
    pairs = [
        await loop.create_connection(_Caller, "127.0.0.1", port, local_addr=source)
        for _ in range(CROWD)
    ]
    began_s = time.monotonic()
    await asyncio.sleep(CROWD_S)
    spent_s = time.monotonic() - began_s
    for transport, _ in pairs:
        transport.abort()
    return f"calls:{sum(caller.answered for _, caller in pairs) / spent_s:.0f}"
