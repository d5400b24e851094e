"""What a hostile peer can put on the native door's socket, while a neighbour goes on.

Each attack ends in a status, a GOAWAY or a closed connection of that peer, or is simply borne
within bounds; the process, its memory and its neighbours go on. The limits under test are the
door's own (`front/config.py`); grpc's core has limits of its own, which are not ours to test.
"""

import asyncio
import gc
import os
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import pytest

from cometmq.proto.native import is_available
from cometmq.tests.front.raw_http2 import (
    CONTINUATION,
    DATA,
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

pytestmark = pytest.mark.skipif(
    not is_available(),
    reason="the native door is not installed (scripts/native_door builds it where Rust is)",
)

ECHO = "/test.Conformance/Echo"
LATER = "/test.Conformance/Later"
ITEMS = "/test.Conformance/Items"
TALK = "/test.Conformance/Talk"
WINDOW_UPDATE = 8
INITIAL_WINDOW_SIZE = 4
CANCEL = struct.pack(">I", 8)
Attack = Callable[[RawConnection], Awaitable[None]]


@pytest.fixture
def door_name() -> str:
    return "native"


async def pushed(raw: RawConnection) -> bool:
    """What was written has gone; False: the server has closed."""
    try:
        await asyncio.wait_for(raw.writer.drain(), 5)
    except (ConnectionError, TimeoutError):
        return False
    return not raw.writer.transport.is_closing()


async def rapid_reset(raw: RawConnection) -> None:
    for stream in range(1, 20_001, 2):
        raw.start(stream, LATER)
        raw.data(stream, message(b""))
        raw.write(frame(RST_STREAM, 0, stream, CANCEL))
        if stream % 401 == 0 and not await pushed(raw):
            return


async def continuation_flood(raw: RawConnection) -> None:
    raw.write(frame(HEADERS, 0, 1, headers(ECHO)))
    for _ in range(20_000):
        raw.write(frame(CONTINUATION, 0, 1, b"\x00\x01x\x40" + b"y" * 64))
        if not await pushed(raw):
            return


async def giant_headers(raw: RawConnection) -> None:
    for stream in range(1, 41, 2):
        raw.start(stream, ECHO, **{f"x_filler_{n}": "y" * 100 for n in range(1_000)})
        if not await pushed(raw):
            return


async def empty_data_flood(raw: RawConnection) -> None:
    for stream, path in ((1, ECHO), (3, LATER), (5, TALK)):
        raw.start(stream, path)
        if path == LATER:
            raw.data(stream, message(b""), end=False)
    for _ in range(200):
        for stream in (1, 3, 5):
            raw.write(frame(DATA, 0, stream, b"") * 200)
        if not await pushed(raw):
            return


async def settings_flood(raw: RawConnection) -> None:
    setting = frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 65_535))
    for _ in range(200):
        raw.write(setting * 200)
        if not await pushed(raw):
            return


async def ping_flood(raw: RawConnection) -> None:
    for _ in range(200):
        raw.write(frame(PING, 0, 0, b"x" * 8) * 200)
        if not await pushed(raw):
            return


async def window_games(raw: RawConnection) -> None:
    raw.start(1, ITEMS)
    raw.data(1, message(b"10 100000"))
    for _ in range(3):
        raw.write(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 0x7FFF_FFFF)))
        raw.write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 0x7FFF_FFFF)))
        if not await pushed(raw):
            return


async def streams_out_of_order(raw: RawConnection) -> None:
    for stream in (9, 3, 2, 0, 1 << 30):
        raw.write(frame(HEADERS, 0x4, stream, headers(ECHO)))
    await pushed(raw)


ATTACKS: list[Attack] = [
    rapid_reset,
    continuation_flood,
    giant_headers,
    empty_data_flood,
    settings_flood,
    ping_flood,
    window_games,
    streams_out_of_order,
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_an_attack_harms_its_own_connection_only(
    bench: Any, eventually: Any, attack: Attack
) -> None:
    async with await bench() as b:
        before = psutil.Process().memory_full_info().uss
        attackers = [await RawConnection.open(b.port) for _ in range(3)]
        under_way = [asyncio.ensure_future(attack(raw)) for raw in attackers]
        for number in range(100):
            assert await b.client.unary("Echo", b"%d" % number) == b"%d" % number
        await asyncio.gather(*under_way)
        for raw in attackers:
            raw.abort()
        assert await b.client.unary("Echo", b"unharmed") == b"unharmed"
        await eventually(lambda: b.door.statistics().in_flight == 0)
        await eventually(lambda: b.door.counters()["connections"] <= 1)
        grown = psutil.Process().memory_full_info().uss - before
        assert grown < 64 << 20, f"{grown >> 20} MiB stayed"


@pytest.mark.parametrize("attack", [continuation_flood, window_games, streams_out_of_order])
async def test_a_peer_that_breaks_the_protocol_gets_goaway(bench: Any, attack: Attack) -> None:
    async with await bench() as b:
        raw = await RawConnection.open(b.port)
        under_way = asyncio.ensure_future(attack(raw))
        told = False
        while not told and (got := await asyncio.wait_for(raw.read(), 10)) is not None:
            told = got.kind in (GOAWAY, RST_STREAM)
        # Told, or closed: what was said at the end is lost where the peer went on sending.
        assert told or raw.reader.at_eof() or raw.reader.exception() is not None
        under_way.cancel()
        raw.abort()


@pytest.mark.parametrize("said", [b"", PREFACE[:10], PREFACE], ids=["nothing", "part", "no-frame"])
async def test_a_slow_preface_times_out(bench: Any, eventually: Any, said: bytes) -> None:
    async with await bench(front_handshake_timeout=100) as b:
        reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
        writer.write(said)
        while await asyncio.wait_for(reader.read(1_000), 10):
            pass  # its own settings come first
        writer.close()
        await eventually(lambda: b.door.counters()["handshakes_failed"] == 1)
        # A slow client's own handshake may fail too; it connects again.
        assert await b.client.unary("Echo", b"fine", wait_for_ready=True, timeout=60) == b"fine"


async def test_a_peer_that_does_not_answer_pings_is_disconnected(
    bench: Any, eventually: Any
) -> None:
    options = {"front_keepalive_time": 500, "front_keepalive_timeout": 500}
    async with await bench(**options) as b:
        raw = await RawConnection.greet(b.port)  # the request is on its way before the first ping
        raw.start(1, LATER)
        raw.data(1, message(b""))
        await eventually(lambda: b.services.futures)
        await eventually(b.services.futures[0].cancelled)
        raw.abort()


async def test_a_client_that_reads_nothing_is_disconnected(bench: Any, eventually: Any) -> None:
    async with await bench(front_write_timeout=200) as b:
        raw = await RawConnection.open(b.port)
        raw.start(1, ITEMS)
        raw.data(1, message(b"400 100000"))
        await eventually(lambda: b.door.counters()["connections_stalled"] == 1)
        await eventually(lambda: b.services.undelivered == 1)
        await eventually(lambda: b.door.statistics().in_flight == 0)
        raw.abort()


async def test_an_idle_connection_is_closed(bench: Any) -> None:
    async with await bench(front_max_connection_idle=1_000, front_handshake_timeout=1_000) as b:
        raw = await RawConnection.greet(b.port)  # the request is on its way at once
        await raw.echo(1)
        assert await raw.closed()


async def test_connections_beyond_the_bound_are_closed_at_once(bench: Any, eventually: Any) -> None:
    async with await bench(front_max_connections=2) as b:
        kept = [await RawConnection.open(b.port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
        assert await asyncio.wait_for(reader.read(1), 10) == b""
        writer.close()
        await kept[0].echo(1)
        assert b.door.counters()["connections_refused"] == 1
        for raw in kept:
            raw.abort()


async def test_an_address_opens_a_number_of_connections_in_a_second(bench: Any) -> None:
    async with await bench(front_max_connection_rate=3) as b:
        kept = await RawConnection.open(b.port)
        opened = 0
        while not b.door.counters()["connections_refused"] and opened < 200:
            _, writer = await asyncio.open_connection("127.0.0.1", b.port)
            writer.transport.abort()
            opened += 1
            await kept.echo(2 * opened - 1)  # an established one goes on
        assert 20 < opened < 200
        kept.abort()


async def test_an_address_has_some_connections_without_an_answer(
    bench: Any, eventually: Any
) -> None:
    async with await bench(front_max_connection_rate=4) as b:
        idle = [await RawConnection.open(b.port) for _ in range(20)]
        reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
        assert await asyncio.wait_for(reader.read(1), 10) == b""
        writer.close()
        await idle[0].echo(1)
        await eventually(lambda: b.door.counters()["connections_refused"] == 1)
        served = await RawConnection.open(b.port)  # in the place of the one that has an answer
        await served.echo(1)
        for raw in (*idle, served):
            raw.abort()


async def test_ten_thousand_connections_opened_and_closed(bench: Any, eventually: Any) -> None:
    async with await bench(front_max_connection_rate=0) as b:
        descriptors = psutil.Process().num_fds()
        for _ in range(100):
            opened = await asyncio.gather(
                *(asyncio.open_connection("127.0.0.1", b.port) for _ in range(100))
            )
            for number, (_, writer) in enumerate(opened):
                writer.write(PREFACE[: number % 24])
                writer.transport.abort()
        assert await b.client.unary("Echo", b"fine") == b"fine"
        await eventually(lambda: b.door.counters()["connections"] <= 1)
        assert b.door.counters()["accepted"] >= 10_000
        assert psutil.Process().num_fds() < descriptors + 50


@pytest.mark.pitfall(6, 7)
async def test_twenty_thousand_calls_wait_at_once(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        raws = [await RawConnection.open(b.port) for _ in range(4)]
        readers = [asyncio.ensure_future(raw.closed()) for raw in raws]  # answers what is asked
        for stream in range(1, 10_001, 2):
            for raw in raws:
                raw.start(stream, LATER)
                raw.data(stream, message(b"waits"))
            if stream % 400 == 1:
                await asyncio.gather(*(pushed(raw) for raw in raws))
        await eventually(lambda: len(b.services.futures) == 20_000)
        assert b.door.statistics().in_flight == 20_000
        assert await b.client.unary("Echo", b"meanwhile") == b"meanwhile"
        for raw in raws:
            raw.abort()
        await eventually(lambda: b.door.statistics().in_flight == 0)
        assert all(future.cancelled() for future in b.services.futures)
        for reader in readers:
            reader.cancel()


@pytest.mark.parametrize("size", [4 << 20, 64 << 20])
async def test_a_large_message_goes_in_and_out(bench: Any, size: int) -> None:
    async with await bench(front_max_receive_message_size=size + 1024) as b:
        said = os.urandom(1 << 20) * (size >> 20)
        assert await b.client.unary("Echo", said, timeout=60) == said


async def test_calls_end_when_nobody_is_left_to_answer_them(bench: Any, eventually: Any) -> None:
    """The loop dies in the middle of an answer: its clients must not wait for ever."""
    held = [await bench()]
    raw = await RawConnection.open(held[0].port)
    raw.start(1, LATER)
    raw.data(1, message(b""))
    await eventually(lambda: held[0].services.futures)
    await held[0].client.channel.close()
    # What a loop that is closed does, without a drain.
    held[0].door._certificate_timer.cancel()
    held[0].door.loop.remove_reader(held[0].door._server.descriptor())
    held[0].door._calls.clear()
    held.clear()
    gc.collect()
    assert await raw.closed()
