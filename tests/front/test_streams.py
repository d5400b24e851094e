"""Conformance of a door, part 2: streams of answers, and messages both ways."""

import asyncio
import logging
from typing import Any

import grpc
import grpc.aio
import pytest

from cometmq.front.service import HALF_CLOSED
from cometmq.proto import v2


async def _all(call: Any) -> list[bytes]:
    items = []
    while (item := await call.read()) is not grpc.aio.EOF:
        items.append(item)
    return items


async def _items_and_code(call: Any) -> tuple[list[bytes], grpc.StatusCode]:
    items: list[bytes] = []
    try:
        while (item := await call.read()) is not grpc.aio.EOF:
            items.append(item)
    except grpc.RpcError:
        pass
    return items, await call.code()


async def test_a_list_is_a_stream(bench: Any) -> None:
    async with await bench() as b:
        items = await _all(b.client.stream("Items", b"34 1024"))
        assert [int.from_bytes(item[:8], "big") for item in items] == list(range(34))
        assert {len(item) for item in items} == {1_032}
        assert b.services.undelivered == 0


async def test_an_empty_list_is_an_empty_stream(bench: Any) -> None:
    async with await bench() as b:
        items, code = await _items_and_code(b.client.stream("Items", b"0 0"))
        assert (items, code) == ([], grpc.StatusCode.OK)


async def test_thousands_of_small_items_arrive(bench: Any) -> None:
    async with await bench() as b:
        items = await _all(b.client.stream("Items", b"5000 0"))
        assert [int.from_bytes(item, "big") for item in items] == list(range(5_000))


async def test_items_larger_than_the_windows_arrive(bench: Any) -> None:
    async with await bench() as b:
        items = await _all(b.client.stream("Items", b"6 4194304"))
        assert [len(item) for item in items] == [4_194_312] * 6


async def test_a_future_of_a_list_is_awaited(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        call = b.client.stream("ItemsLater")
        await eventually(lambda: b.services.futures)
        b.services.futures[0].set_result([b"", b"two", v2.Resource(name="three")])
        assert await _all(call) == [b"", b"two", v2.Resource(name="three").SerializeToString()]


async def test_items_are_sent_as_they_are_generated(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        call = b.client.stream("Generate", b"3 wait")
        assert [await call.read() for _ in range(3)] == [b"0", b"1", b"2"]
        assert b.services.generators_closed == 0
        call.cancel()
        await eventually(lambda: b.services.generators_closed == 1)


async def test_a_wire_error_is_a_last_item(bench: Any) -> None:
    async with await bench() as b:
        for name, request, before in (("StreamWire", b"", 0), ("Generate", b"2 wire", 2)):
            items, code = await _items_and_code(b.client.stream(name, request))
            assert code is grpc.StatusCode.OK
            assert len(items) == before + 1
            status = v2.ReceiveMessageResponse.FromString(items[-1]).status
            assert status.code in (v2.TOPIC_NOT_FOUND, v2.TOO_MANY_REQUESTS)


async def test_any_other_error_ends_a_stream_as_internal(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with await bench() as b:
        with caplog.at_level(logging.CRITICAL):
            for name, request, before in (("StreamBoom", b"", 0), ("Generate", b"2 boom", 2)):
                items, code = await _items_and_code(b.client.stream(name, request))
                assert (len(items), code) == (before, grpc.StatusCode.INTERNAL)
        assert sum(b.door.statistics().internal_errors.values()) == 2


async def test_a_client_that_leaves_a_wait_cancels_it(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        call = b.client.stream("ItemsLater")
        await eventually(lambda: b.services.futures)
        call.cancel()
        await eventually(b.services.futures[0].cancelled)
        assert b.services.undelivered == 0


async def test_items_for_a_client_that_left_are_undelivered(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        call = b.client.stream("ItemsLater")
        await eventually(lambda: b.services.futures)
        future = b.services.futures[0]
        # The answer comes, and in the same turn of the loop the client leaves.
        future.set_result([b"lost"] * 3)
        call.cancel()
        await eventually(lambda: b.door.statistics().in_flight == 0)
        assert b.services.undelivered <= 1  # which came first is the network's business


async def test_an_answer_to_a_stalled_client_that_leaves_is_undelivered(
    bench: Any, eventually: Any
) -> None:
    async with await bench() as b:
        call = b.client.stream("Items", b"400 100000")
        assert len(await call.read()) == 100_008
        await asyncio.sleep(0.1)
        # The door waits for the window: 40 MB are neither sent nor given up.
        assert (b.door.statistics().in_flight, b.services.undelivered) == (1, 0)
        call.cancel()
        await eventually(lambda: b.services.undelivered == 1)
        await eventually(lambda: b.door.statistics().in_flight == 0)


async def test_a_slow_client_delays_no_other_call_and_gets_everything(bench: Any) -> None:
    async with await bench() as b:
        slow = b.client.stream("Items", b"100 100000")
        await slow.read()
        for _ in range(20):
            assert await b.client.unary("Echo", b"quick") == b"quick"
        assert len(await _all(slow)) == 99


async def test_both_sides_send_messages(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        call = b.client.bidi("Talk", metadata=(("x-mq-client-id", "talker"),))
        for message in (b"one", b"", b"x" * 1_000_000):
            await call.write(message)
            assert await call.read() == message
        (session,) = b.services.sessions
        assert session.ctx.client_id == "talker"
        assert b.door.statistics().streams == 1
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        assert session.closed == [HALF_CLOSED]
        await eventually(lambda: b.door.statistics().streams == 0)


async def test_the_server_may_send_first(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        call = b.client.bidi("Talk")
        await eventually(lambda: b.services.sessions)
        b.services.sessions[0].outbound.send(b"unasked")
        assert await call.read() == b"unasked"
        call.cancel()


async def test_a_half_closed_stream_stays_open_until_the_session_ends(
    bench: Any, eventually: Any
) -> None:
    async with await bench() as b:
        call = b.client.bidi("Talk")
        await call.write(b"tail")
        await call.done_writing()
        await eventually(lambda: b.services.sessions and b.services.sessions[0].closed)
        (session,) = b.services.sessions
        session.outbound.send(b"a late word")
        assert await call.read() == b"a late word"
        session.tail.set_result(None)
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


async def test_a_client_that_leaves_closes_the_session(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        call = b.client.bidi("Talk")
        await call.write(b"hello")
        await call.read()
        call.cancel()
        (session,) = b.services.sessions
        await eventually(lambda: session.closed)
        assert session.closed != [HALF_CLOSED]
        await eventually(lambda: session.outbound.finished)
        session.outbound.send(b"into the void")


async def test_a_client_that_leaves_after_half_close_cancels_the_rest(
    bench: Any, eventually: Any
) -> None:
    async with await bench() as b:
        call = b.client.bidi("Talk")
        await call.write(b"tail")
        await call.done_writing()
        await eventually(lambda: b.services.sessions and b.services.sessions[0].closed)
        (session,) = b.services.sessions
        call.cancel()
        await eventually(session.tail.cancelled)
        assert session.closed == [HALF_CLOSED]


async def test_a_session_ends_its_stream(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        call = b.client.bidi("Talk")
        await call.write(b"finish")
        items, code = await _items_and_code(call)
        assert (items, code) == ([], grpc.StatusCode.OK)
        await eventually(lambda: b.services.sessions[0].closed)


@pytest.mark.parametrize(
    ("word", "code", "answers"),
    [
        (b"wire", grpc.StatusCode.OK, 1),
        (b"rpc", grpc.StatusCode.INVALID_ARGUMENT, 0),
        (b"boom", grpc.StatusCode.INTERNAL, 0),
    ],
)
async def test_errors_in_a_session_end_its_stream(
    bench: Any, eventually: Any, word: bytes, code: grpc.StatusCode, answers: int
) -> None:
    async with await bench() as b:
        call = b.client.bidi("Talk")
        await call.write(b"first")
        await call.write(word)
        items, ended = await _items_and_code(call)
        assert (len(items), ended) == (1 + answers, code)
        if answers:
            status = v2.TelemetryCommand.FromString(items[-1]).status
            assert (status.code, status.message) == (v2.ILLEGAL_TOPIC, "no such topic")
        await eventually(lambda: b.services.sessions[0].closed)


async def test_a_refused_session_returns_the_reason(bench: Any) -> None:
    async with await bench() as b:
        items, code = await _items_and_code(b.client.bidi("Refuse"))
        assert code is grpc.StatusCode.OK
        assert v2.TelemetryCommand.FromString(items[0]).status.code == v2.CLIENT_ID_REQUIRED


async def test_the_queue_for_a_slow_client_is_bounded(bench: Any, eventually: Any) -> None:
    async with await bench(front_outbound_bytes=1_000_000) as b:
        call = b.client.bidi("Talk")
        await call.write(b"flood")
        await eventually(lambda: b.services.floods == 1)
        assert len(await call.read()) == 100_000
        call.cancel()


async def test_one_connection_carries_many_streams(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        calls = [b.client.bidi("Talk", timeout=30) for _ in range(300)]
        for number, call in enumerate(calls):
            await call.write(b"%d" % number)
        assert [await call.read() for call in calls] == [b"%d" % n for n in range(300)]
        assert b.door.statistics().streams == 300
        for call in calls:
            call.cancel()
        await eventually(lambda: b.door.statistics().streams == 0)


async def test_a_compressed_stream_is_decompressed(bench: Any) -> None:
    async with await bench() as b:
        client = b.another_client(compression=grpc.Compression.Gzip)
        call = client.bidi("Talk")
        await call.write(b"again and again " * 1_000)
        assert await call.read() == b"again and again " * 1_000
        call.cancel()
