"""Unary calls that the native door passes to a `TurnHandler` in rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import grpc
import pytest
from msgspec.structs import replace

from cometmq.front.access_point import AccessPoint
from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.front.context import RequestContext
from cometmq.front.faults import Fault, FaultAction, FaultKind
from cometmq.front.service import ClientRun, Method
from cometmq.nodes.node_links import NodeLinks
from cometmq.proto.errors import RpcFailure
from cometmq.proto.native import is_available
from cometmq.tests.front.conftest import PREFIX

pytestmark = pytest.mark.parametrize("door_name", ["native"])
if not is_available():
    pytestmark = pytest.mark.skip("the native door is not installed")


@dataclass(slots=True)
class Row:
    """Calls that were taken: `Taken`."""

    count: int
    answer: Callable[[list[bytes]], None] | None = None
    ready: list[bytes] | None = None

    def then(self, answer: Callable[[list[bytes]], None]) -> None:
        self.answer = answer
        if self.ready is not None:
            answer(self.ready)


@dataclass(slots=True)
class Handler:
    """Takes calls up to the first whose request is in `alone`."""

    alone: bytes = b"alone"
    answers_now: bool = True
    rows: list[Row] = field(default_factory=list)
    offered: list[bytes] = field(default_factory=list)
    served: list[bytes] = field(default_factory=list)
    contexts: list[RequestContext] = field(default_factory=list)

    def __call__(self, request: bytes, _ctx: RequestContext) -> bytes:
        self.served.append(request)
        return b"alone: " + request

    def take(self, requests: Sequence[bytes], clients: Sequence[ClientRun]) -> Row | None:
        offered = list(requests)[: sum(count for _, count in clients)]
        self.offered += offered
        taken = list(takewhile(lambda raw: raw != self.alone, offered))
        if not taken:
            return None
        self.served += taken
        self.contexts += [ctx for ctx, _ in clients]
        count, ready = len(taken), [b"taken: " + raw for raw in taken]
        self.rows.append(Row(count, ready=ready if self.answers_now else None))
        return self.rows[-1]


def _with(handler: Any, **changed: Any) -> Callable[[dict[str, Method]], dict[str, Method]]:
    def wrap(table: dict[str, Method]) -> dict[str, Method]:
        method = replace(table[PREFIX + "Echo"], handler=handler, **changed)
        return {**table, PREFIX + "Echo": method}

    return wrap


async def _all(client: Any, requests: list[bytes]) -> list[Any]:
    calls = [client.unary("Echo", request) for request in requests]
    return await asyncio.gather(*calls, return_exceptions=True)


async def test_calls_that_come_together_are_taken_in_rows(bench: Any) -> None:
    handler = Handler()
    requests = [b"%d" % number for number in range(50)]
    async with await bench(_with(handler)) as b:
        answers = await _all(b.client, requests)
        assert answers == [b"taken: " + request for request in requests]
        assert sum(row.count for row in handler.rows) == 50
        assert len(handler.rows) < 50, "at least two calls were in one row"
        assert b.door.in_flight == 0
        assert all(context.peer for context in handler.contexts)


async def test_a_call_that_is_not_taken_and_those_behind_it_are_served_in_order(bench: Any) -> None:
    handler = Handler()
    async with await bench(_with(handler)) as b:
        requests = [b"1", b"2", b"alone", b"3", b"4"] * 4
        assert len(await _all(b.client, requests)) == len(requests)
        assert sorted(handler.served) == sorted(requests)
        assert handler.served == handler.offered, "in the order of arrival"
        assert await _all(b.client, [b"alone"]) == [b"alone: alone"]


async def test_answers_may_follow_later(bench: Any, eventually: Any) -> None:
    handler = Handler(answers_now=False)
    async with await bench(_with(handler)) as b:
        call = asyncio.ensure_future(b.client.unary("Echo", b"a"))
        await eventually(lambda: bool(handler.rows))
        assert b.door.in_flight == 1
        (row,) = handler.rows
        assert row.answer is not None
        row.answer([b"later"])
        assert await call == b"later"
        assert b.door.in_flight == 0


async def test_a_client_that_leaves_before_its_answer_harms_no_other(
    bench: Any, eventually: Any
) -> None:
    handler = Handler(answers_now=False)
    async with await bench(_with(handler)) as b:
        left = asyncio.ensure_future(b.client.unary("Echo", b"a"))
        await eventually(lambda: len(handler.rows) == 1)
        left.cancel()
        stays = asyncio.ensure_future(b.client.unary("Echo", b"b"))
        await eventually(lambda: len(handler.rows) == 2)
        for row in handler.rows:
            assert row.answer is not None
            row.answer([b"later"] * row.count)
        assert await stays == b"later"
        assert b.door.in_flight == 0


async def test_taken_calls_end_with_a_status_when_the_door_closes(
    bench: Any, eventually: Any
) -> None:
    handler = Handler(answers_now=False)
    async with await bench(_with(handler)) as b:
        call = asyncio.ensure_future(b.client.unary("Echo", b"a"))
        await eventually(lambda: bool(handler.rows))
        await b.door.drain(0.05)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        (row,) = handler.rows
        assert row.answer is not None
        row.answer([b"too late"])
        assert b.door.in_flight == 0


async def test_a_fault_of_the_handler_is_an_internal_error_of_each_call(bench: Any) -> None:
    class Broken(Handler):
        def take(self, requests: Sequence[bytes], clients: Sequence[ClientRun]) -> Row | None:
            raise ZeroDivisionError

    async with await bench(_with(Broken())) as b:
        failures = await _all(b.client, [b"a", b"b", b"c"])
        assert {failure.code() for failure in failures} == {grpc.StatusCode.INTERNAL}
        assert sum(b.door.statistics().internal_errors.values()) == 3


async def test_a_fault_after_the_row_was_taken_fails_its_calls_only(bench: Any) -> None:
    class Broken(Row):
        def then(self, answer: Callable[[list[bytes]], None]) -> None:
            raise ZeroDivisionError

    class TakesOne(Handler):
        def take(self, requests: Sequence[bytes], clients: Sequence[ClientRun]) -> Row | None:
            return Broken(1) if requests[0] == b"a" else None

    async with await bench(_with(TakesOne())) as b:
        answers = await _all(b.client, [b"a", b"b", b"c", b"d"])
        failed = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
        assert {failure.code() for failure in failed} <= {grpc.StatusCode.INTERNAL}
        assert {b"alone: b", b"alone: c", b"alone: d"} <= {*answers}
        assert b.door.in_flight == 0


async def test_a_fault_of_the_admission_of_one_client_harms_no_other(bench: Any) -> None:
    def admit(ctx: RequestContext) -> None:
        if ctx.client_id == "broken":
            raise ValueError("a fault")

    async with await bench(_with(Handler(), admit=admit)) as b:
        broken = b.client.unary("Echo", b"a", metadata=(("x-mq-client-id", "broken"),))
        others = await _all(b.client, [b"%d" % number for number in range(10)])
        assert [answer.split(b": ")[1] for answer in others] == [b"%d" % n for n in range(10)]
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await broken
        assert failed.value.code() is grpc.StatusCode.INTERNAL


async def test_calls_that_are_not_taken_leave_the_loop_to_others_in_between(bench: Any) -> None:
    loop = asyncio.get_running_loop()
    turn = 0
    turns: list[int] = []
    ended = False

    def tick() -> None:
        nonlocal turn
        turn += 1
        if not ended:
            loop.call_soon(tick)

    class Slow(Handler):
        def __call__(self, request: bytes, _ctx: RequestContext) -> bytes:
            time.sleep(0.03)
            turns.append(turn)
            return request

        def take(self, requests: Sequence[bytes], clients: Sequence[ClientRun]) -> Row | None:
            return None

    async with await bench(_with(Slow())) as b:
        tick()
        assert await _all(b.client, [b"%d" % number for number in range(8)])
        ended = True
    assert len(set(turns)) == 8, "30 ms each: above the limit of a turn"


async def test_a_refused_client_is_refused_call_by_call(bench: Any) -> None:
    def refuse(_ctx: RequestContext) -> None:
        raise RpcFailure(7, "not you")

    handler = Handler()
    async with await bench(_with(handler, admit=refuse)) as b:
        failures = await _all(b.client, [b"a", b"b", b"c"])
        assert {failure.code() for failure in failures} == {grpc.StatusCode.PERMISSION_DENIED}
        assert not handler.served


async def test_calls_above_the_limit_are_refused(bench: Any, eventually: Any) -> None:
    handler = Handler(answers_now=False)
    async with await bench(_with(handler), front_max_concurrent_calls=2) as b:
        first = [asyncio.ensure_future(b.client.unary("Echo", b"a")) for _ in range(2)]
        await eventually(lambda: b.door.in_flight == 2)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await b.client.unary("Echo", b"b")
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for row in handler.rows:
            assert row.answer is not None
            row.answer([b"later"] * row.count)
        assert await asyncio.gather(*first) == [b"later"] * 2


async def test_faults_for_tests_apply_to_single_calls(bench: Any) -> None:
    handler = Handler()
    async with await bench(_with(handler)) as b:
        b.faults.put(Fault("f", FaultKind.RPC, PREFIX + "Echo", FaultAction.FAIL, code=14))
        (failure,) = await _all(b.client, [b"a"])
        assert isinstance(failure, grpc.aio.AioRpcError)
        assert not handler.served


async def test_an_access_point_locates_each_call_unless_this_node_serves_all(bench: Any) -> None:
    handler, located, serves_all = Handler(), [], True

    def locate(_path: str, request: bytes, _ctx: RequestContext) -> None:
        located.append(request)

    def wrapped(**options: Any) -> Callable[[dict[str, Method]], dict[str, Method]]:
        def wrap(table: dict[str, Method]) -> dict[str, Method]:
            own = _with(handler)(table)
            links = NodeLinks("")
            access = AccessPoint(
                own, DoorConfig(), Clock(), locate, lambda *_: "serve", links=links, **options
            )
            return access.services

        return wrap

    async with await bench(wrapped(serves_all=lambda _path: serves_all)) as b:
        assert await b.client.unary("Echo", b"a") == b"taken: a"
        assert not located
        serves_all = False
        assert await b.client.unary("Echo", b"b") == b"alone: b"
        assert located == [b"b"]
    async with await bench(wrapped()) as b:  # as with authentication
        assert await b.client.unary("Echo", b"c") == b"alone: c"
        assert located == [b"b", b"c"]
