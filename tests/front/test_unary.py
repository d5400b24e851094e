"""Conformance of a door, part 1: one request, one answer."""

import asyncio
import gc
import gzip
import logging
import weakref
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from cometmq.front.grpcio_calls import Inflation
from cometmq.front.metrics.calls import BOUNDS_MS
from cometmq.front.metrics.families import Families
from cometmq.proto import v2
from cometmq.proto.errors import RpcFailure


async def test_bytes_go_in_and_come_out(bench: Any) -> None:
    async with await bench() as b:
        for request in (b"hello", b"", b"\x00" * 5, bytes(range(256)) * 40):
            assert await b.client.unary("Echo", request) == request


async def test_a_big_message_goes_through(bench: Any) -> None:
    async with await bench() as b:
        request = bytes(range(256)) * 65_536  # 16 MiB
        assert await b.client.unary("Echo", request) == request


@pytest.mark.pitfall(4)
async def test_a_message_above_the_limit_is_refused_and_the_connection_lives(bench: Any) -> None:
    async with await bench(front_max_receive_message_size=1_000) as b:
        with pytest.raises(grpc.RpcError) as refused:
            await b.client.unary("Echo", b"x" * 1_001)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await b.client.unary("Echo", b"x" * 900) == b"x" * 900


async def test_a_message_object_is_serialised(bench: Any) -> None:
    async with await bench() as b:
        request = v2.SendMessageRequest(messages=[v2.Message(), v2.Message()])
        answer = v2.SendMessageResponse.FromString(
            await b.client.unary("Message", request.SerializeToString())
        )
        assert (answer.status.code, answer.status.message) == (v2.OK, "2")


async def test_a_future_is_awaited(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        calls = [b.client.unary("Later", b"%d" % n) for n in range(50)]
        await eventually(lambda: len(b.services.futures) == 50)
        assert b.door.statistics().in_flight == 50
        for future in b.services.futures:
            future.set_result(b"done")
        assert [await call for call in calls] == [b"done"] * 50
        await eventually(lambda: b.door.statistics().in_flight == 0)


async def test_a_future_may_fail(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        call = asyncio.ensure_future(_answer(b.client.unary("Later")))
        await eventually(lambda: b.services.futures)
        b.services.futures[0].set_exception(ZeroDivisionError("late"))
        assert await call is grpc.StatusCode.INTERNAL


async def test_a_reply_future_is_awaited(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        assert await b.client.unary("Lighter", b"now") == b"at once"
        b.services.laters.clear()
        calls = [b.client.unary("Lighter", b"%d" % n) for n in range(50)]
        await eventually(lambda: len(b.services.laters) == 50)
        assert b.door.statistics().in_flight == 50
        for answer in b.services.laters:
            answer.set_result(b"done")
        assert [await call for call in calls] == [b"done"] * 50
        await eventually(lambda: b.door.statistics().in_flight == 0)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ZeroDivisionError("late"), grpc.StatusCode.INTERNAL),
        (RpcFailure(7, "not you"), grpc.StatusCode.PERMISSION_DENIED),
        (None, grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_a_reply_future_may_fail_or_be_cancelled(
    bench: Any, eventually: Any, error: Exception | None, code: grpc.StatusCode
) -> None:
    async with await bench() as b:
        call = asyncio.ensure_future(_answer(b.client.unary("Lighter")))
        await eventually(lambda: b.services.laters)
        if error is None:
            b.services.laters[0].cancel()
        else:
            b.services.laters[0].set_exception(error)
        assert await call is code
        await eventually(lambda: b.door.statistics().in_flight == 0)


async def test_a_client_that_leaves_cancels_the_reply_future(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        call = b.client.unary("Lighter")
        await eventually(lambda: b.services.laters)
        call.cancel()
        await eventually(b.services.laters[0].cancelled)
        await _exceed_the_deadline(b, "Lighter", lambda: len(b.services.laters) > 1)
        await eventually(b.services.laters[1].cancelled)
        assert b.services.undelivered == 0
        await eventually(lambda: b.door.statistics().in_flight == 0)
        assert await b.client.unary("Echo", b"next") == b"next"


async def test_a_coroutine_is_awaited(bench: Any) -> None:
    async with await bench() as b:
        assert await b.client.unary("Coroutine", b"abc") == b"cba"


async def test_a_wire_error_is_an_answer_with_a_status(bench: Any) -> None:
    async with await bench() as b:
        answer = v2.AckMessageResponse.FromString(await b.client.unary("Wire"))
        assert (answer.status.code, answer.status.message) == (v2.TOPIC_NOT_FOUND, "no topic here")


async def test_an_rpc_failure_is_a_grpc_status(bench: Any) -> None:
    async with await bench() as b:
        with pytest.raises(grpc.RpcError) as refused:
            await b.client.unary("Rpc")
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert refused.value.details() == "not you"


@pytest.mark.parametrize("name", ["Boom", "Wrong"])
async def test_any_other_error_is_internal_logged_once_and_counted(
    bench: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with await bench() as b:
        with caplog.at_level(logging.ERROR):
            for _ in range(3):
                assert await _answer(b.client.unary(name)) is grpc.StatusCode.INTERNAL
        kind = {"Boom": "ZeroDivisionError", "Wrong": "AttributeError"}[name]
        assert b.door.statistics().internal_errors == {(f"/test.Conformance/{name}", kind): 3}
        logged = [r for r in caplog.records if "door.internal_error" in r.getMessage()]
        assert len(logged) == 1
        assert name in logged[0].getMessage()
        assert logged[0].exc_info is not None
        assert await b.client.unary("Echo", b"still there") == b"still there"


@pytest.mark.pitfall(12)
async def test_an_unknown_path_is_unimplemented(bench: Any) -> None:
    async with await bench() as b:
        for path in ("/test.Conformance/Nothing", "/nobody/Echo", "/x"):
            assert await _answer(b.client.unary(path)) is grpc.StatusCode.UNIMPLEMENTED


async def test_an_undecodable_message_harms_no_other_call(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        waiting = b.client.unary("Later")
        await eventually(lambda: b.services.futures)
        for garbage in (b"\xff\xff\xff", b"\x0a\x7f", b"\x00"):
            with pytest.raises(grpc.RpcError) as refused:
                await b.client.unary("Message", garbage)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        b.services.futures[0].set_result(b"unharmed")
        assert await waiting == b"unharmed"
        assert b.door.statistics().internal_errors == {}


async def test_the_deadline_reaches_the_service(bench: Any) -> None:
    async with await bench() as b:
        await b.client.unary("Echo", timeout=7)
        await b.client.unary("Echo", timeout=None)
        with_deadline, without = b.services.contexts
        now_ns = with_deadline.deadline_ns - 5_000_000_000
        assert with_deadline.remaining_ms(now_ns) == 5_000
        assert without.deadline_ns is None


async def test_a_deadline_that_passes_cancels_the_future(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        await _exceed_the_deadline(b, "Later", lambda: b.services.futures)
        await eventually(b.services.futures[0].cancelled)
        await eventually(lambda: b.door.statistics().in_flight == 0)


async def test_a_client_that_cancels_cancels_the_future(bench: Any, eventually: Any) -> None:
    async with await bench() as b:
        call = b.client.unary("Later")
        await eventually(lambda: b.services.futures)
        call.cancel()
        await eventually(b.services.futures[0].cancelled)
        assert b.services.undelivered == 0  # there was no answer that could be lost
        assert await b.client.unary("Echo", b"next") == b"next"


async def test_a_future_cancelled_by_the_service_is_unavailable(
    bench: Any, eventually: Any
) -> None:
    async with await bench() as b:
        call = asyncio.ensure_future(_answer(b.client.unary("Later")))
        await eventually(lambda: b.services.futures)
        b.services.futures[0].cancel()
        assert await call is grpc.StatusCode.UNAVAILABLE


async def test_metadata_is_picked_by_name(bench: Any) -> None:
    async with await bench() as b:
        sent = (
            ("x-mq-client-id", "me@1"),
            ("x-mq-language", "PYTHON"),
            ("x-mq-client-version", "5.1.2"),
            ("x-mq-namespace", "ns"),
            ("x-cometmq-token", "secret"),
            ("authorization", "MQv2-HMAC-SHA1 ..."),
            ("x-mq-request-id", "not picked"),
            ("x-other", "not picked"),
            ("x-binary-bin", b"\x00\xff"),
        )
        await b.client.unary("Echo", metadata=sent)
        (ctx,) = b.services.contexts
        assert ctx.client_id == "me@1"
        assert ctx.language == "PYTHON"
        assert ctx.client_version == "5.1.2"
        assert ctx.namespace == "ns"
        assert ctx.token == "secret"
        assert ctx.forwarded is False
        assert ctx.peer.startswith("127.0.0.1:")
        # The token is for this hop: it is not forwarded.
        assert dict(ctx.metadata) == dict(sent[:4] + sent[5:6])


async def test_a_forwarded_request_has_its_mark(bench: Any) -> None:
    async with await bench() as b:
        await b.client.unary("Echo", metadata=(("x-cometmq-forwarded", "1"),))
        assert b.services.contexts[0].forwarded is True


async def test_missing_metadata_is_empty(bench: Any) -> None:
    async with await bench() as b:
        await b.client.unary("Echo")
        (ctx,) = b.services.contexts
        assert (ctx.client_id, ctx.language, ctx.token, ctx.metadata) == ("", "", "", ())


async def test_a_compressed_request_is_decompressed(bench: Any) -> None:
    async with await bench() as b:
        client = b.another_client(compression=grpc.Compression.Gzip)
        request = b"again and again " * 10_000
        assert await client.unary("Echo", request) == request


async def test_a_request_is_refused_if_it_is_too_large_when_decompressed(bench: Any) -> None:
    async with await bench(front_max_receive_message_size=100_000) as b:
        client = b.another_client(compression=grpc.Compression.Gzip)
        assert len(await client.unary("Echo", bytes(100_000))) == 100_000
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.unary("Echo", bytes(100_001))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await b.client.unary("Echo", b"unharmed") == b"unharmed"


async def test_the_event_loop_goes_on_while_a_request_is_decompressed() -> None:
    inflating = asyncio.ensure_future(
        Inflation().plain(gzip.compress(bytes(30_000_000)), 30_000_000)
    )
    turns = 0
    while not inflating.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(await inflating) == 30_000_000
    assert turns > 10


async def test_calls_beyond_the_bound_are_refused_at_once(bench: Any, eventually: Any) -> None:
    async with await bench(front_max_concurrent_calls=3) as b:
        calls = [b.client.unary("Later") for _ in range(3)]
        await eventually(lambda: len(b.services.futures) == 3)
        assert await _answer(b.client.unary("Echo")) is grpc.StatusCode.RESOURCE_EXHAUSTED
        for future in b.services.futures:
            future.set_result(b"")
        for call in calls:
            await call
        await eventually(lambda: b.door.statistics().in_flight == 0)
        assert await b.client.unary("Echo", b"room again") == b"room again"


async def test_a_thousand_concurrent_calls_are_answered(bench: Any) -> None:
    async with await bench() as b:
        calls = [b.client.unary("Echo", b"%d" % n) for n in range(1_000)]
        assert [await call for call in calls] == [b"%d" % n for n in range(1_000)]


async def _answer(call: Any) -> Any:
    """The answer, or the status that came instead."""
    try:
        return await call
    except grpc.RpcError as error:
        return error.code()


async def _exceed_the_deadline(b: Any, name: str, reached: Callable[[], Any]) -> None:
    """Call a method that does not answer until a call has reached it within its deadline."""
    limit_s = 0.05
    while not reached():  # a slow machine connects only within a longer limit
        code = await _answer(b.client.unary(name, timeout=limit_s))
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        limit_s *= 2


async def test_a_request_whose_future_failed_is_freed_without_the_collector(
    bench: Any, eventually: Any
) -> None:
    async with await bench() as b:
        gc.disable()
        try:
            call = asyncio.ensure_future(_answer(b.client.unary("Later", b"x" * 100_000)))
            await eventually(lambda: b.services.futures)
            b.services.futures[0].set_exception(RpcFailure(7, "not you"))
            gone = weakref.ref(b.services.futures.pop())
            assert await call is grpc.StatusCode.PERMISSION_DENIED
            await eventually(lambda: gone() is None)
        finally:
            gc.enable()


async def test_a_client_with_several_addresses_for_one_target_is_served(bench: Any) -> None:
    async with await bench() as b:
        # All of them stand in `:authority`, which then is none.
        target = f"ipv4:127.0.0.1:{b.port},127.0.0.1:{b.port}"
        async with grpc.aio.insecure_channel(target) as channel:
            call = channel.unary_unary("/test.Conformance/Echo")
            for number in range(3):
                assert await call(b"%d" % number, timeout=10) == b"%d" % number


async def test_answered_calls_are_counted_by_method_with_their_durations(bench: Any) -> None:
    async with await bench() as b:
        for _ in range(3):
            await b.client.unary("Echo", b"x")
        family = b.door.statistics().times.family(Families("C", "broker", "b-0"))
        samples = [
            (sample.name.removeprefix("rocketmq_rpc_latency"), sample.labels, sample.value)
            for sample in family.samples
            if sample.labels["request_code"] == "echo"
        ]
        assert [value for name, _, value in samples if name.endswith("_count")] == [3]
        buckets = [(labels["le"], value) for name, labels, value in samples if "le" in labels]
        assert [bound for bound, _ in buckets] == [*(f"{ms}.0" for ms in BOUNDS_MS), "+Inf"]
        assert buckets[-1][1] == 3
        (total_ms,) = (value for name, _, value in samples if name.endswith("_sum"))
        assert total_ms > 0
        assert {sample.labels["request_code"] for sample in family.samples} == {"echo"}
