"""The small parts of the front: clock, context, outbound queue, failures, loop."""

import asyncio
import logging
import time

import pytest

from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.front.context import RequestContext
from cometmq.front.failure import FailureHandler
from cometmq.front.outbound import QueuedOutbound
from cometmq.front.process import connections_max, loop_factory
from cometmq.front.service import OutboundFull, encode, status_failure
from cometmq.proto import v1, v2
from cometmq.proto.errors import RpcFailure, WireError


def test_tests_can_move_the_wall_clock_but_not_the_steady_clock() -> None:
    clock = Clock()
    assert abs(clock.wall_ms() - time.time() * 1_000) < 1_000
    before = clock.steady_ns()
    clock.set_wall_ms(1_000_000)
    assert 1_000_000 <= clock.wall_ms() < 1_010_000
    clock.advance_wall_ms(3_600_000)
    assert 4_600_000 <= clock.wall_ms() < 4_610_000
    clock.advance_wall_ms(-3_600_000)
    assert 1_000_000 <= clock.wall_ms() < 1_010_000
    assert 0 <= clock.steady_ns() - before < 10_000_000_000


def test_machine_time_is_not_moved_by_tests() -> None:
    clock = Clock()
    clock.advance_wall_ms(3_600_000)
    assert abs(clock.machine_ms() - time.time() * 1_000) < 1_000
    now = time.localtime()
    midnight_ms = (
        int(time.mktime((now.tm_year, now.tm_mon, now.tm_mday, 0, 0, 0, 0, 0, -1))) * 1_000
    )
    assert clock.hour_of(midnight_ms) == 0
    assert clock.hour_of(midnight_ms - 1) == 23


def test_the_steady_clock_never_goes_back() -> None:
    clock = Clock()
    seen = [clock.steady_ns() for _ in range(1_000)]
    assert seen == sorted(seen)


def test_remaining_time_of_a_deadline() -> None:
    assert RequestContext().remaining_ms(5) is None
    ctx = RequestContext(deadline_ns=10_000_000)
    assert ctx.remaining_ms(0) == 10
    assert ctx.remaining_ms(9_500_000) == 0
    assert ctx.remaining_ms(99_000_000) == 0


def test_a_failure_fills_the_status_of_either_shape() -> None:
    error = WireError(v2.TOPIC_NOT_FOUND, "no topic")
    theirs = status_failure(v2.SendMessageResponse)(error)
    assert (theirs.status.code, theirs.status.message) == (v2.TOPIC_NOT_FOUND, "no topic")
    ours = status_failure(v1.ClockResponse)(error)
    assert (ours.code, ours.message) == (v2.TOPIC_NOT_FOUND, "no topic")


def test_faults_are_logged_by_exception_type_and_rate_limited(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_ns = [0]
    failures = FailureHandler(lambda: now_ns[0])
    path = "/test.Conformance/Boom"
    with caplog.at_level(logging.ERROR):
        for error in (KeyError("a"), KeyError("b"), ValueError("c"), KeyError("d")):
            assert failures.internal(path, error).grpc_code == 13
        now_ns[0] += 60_000_000_000
        failures.internal(path, KeyError("e"))
    assert [record.getMessage().partition("error=")[2] for record in caplog.records] == [
        "KeyError count=1",
        "ValueError count=1",
        "KeyError count=4",
    ]
    assert failures.counted == {(path, "KeyError"): 4, (path, "ValueError"): 1}


@pytest.mark.parametrize(
    ("configured", "reserved", "limit", "expected"),
    [
        (50_000, 0, 300, 150),
        (50_000, 0, 1_024, 768),
        (50_000, 0, 524_288, 50_000),
        (50_000, 0, 60_000, 45_000),
        (100, 0, 300, 100),
        (50_000, 250, 300, 50),
        (50_000, 400, 300, 1),
    ],
)
def test_connections_leave_descriptors_for_the_store(
    configured: int, reserved: int, limit: int, expected: int
) -> None:
    assert connections_max(configured, reserved, limit) == expected


def test_encoded_bytes_are_returned_unchanged() -> None:
    ready = b"ready"
    assert encode(ready) is ready
    assert encode(v2.Resource(name="x")) == v2.Resource(name="x").SerializeToString()


async def test_an_outbound_queue_keeps_order_and_ends() -> None:
    outbound = QueuedOutbound(10, 1_000)
    outbound.send(b"one")
    outbound.send(v2.Resource(name="two"))
    outbound.finish()
    outbound.send(b"too late")
    taken = [await outbound.take() for _ in range(3)]
    assert taken == [b"one", v2.Resource(name="two").SerializeToString(), None]


async def test_an_outbound_queue_is_bounded_in_messages_and_bytes() -> None:
    outbound = QueuedOutbound(3, 1_000)
    for _ in range(3):
        outbound.send(b"")
    with pytest.raises(OutboundFull):
        outbound.send(b"")
    outbound = QueuedOutbound(100, 1_000)
    outbound.send(bytes(5_000))  # alone, it is let in
    with pytest.raises(OutboundFull):
        outbound.send(b"x")


async def test_drained_is_done_when_the_queue_is_empty() -> None:
    outbound = QueuedOutbound(1, 1_000)
    assert outbound.drained().done()
    outbound.send(b"x")
    drained = outbound.drained()
    taker = asyncio.ensure_future(_take_all(outbound))
    await asyncio.wait_for(drained, 10)
    outbound.send(b"y")
    outbound.finish(RpcFailure(14, "over"))
    assert await taker == [b"x", b"y", "over"]
    assert outbound.drained().done()


async def _take_all(outbound: QueuedOutbound) -> list[bytes | str]:
    taken: list[bytes | str] = []
    try:
        while (data := await outbound.take()) is not None:
            taken.append(data)
    except RpcFailure as error:
        taken.append(error.message)
    return taken


async def test_an_abandoned_queue_releases_and_drops() -> None:
    outbound = QueuedOutbound(2, 1_000)
    outbound.send(b"x")
    drained = outbound.drained()
    outbound.abandon()
    await asyncio.wait_for(drained, 10)
    outbound.send(b"y")
    assert outbound.finished
    assert await outbound.take() is None


def test_the_loop_factory_creates_a_loop() -> None:
    loop = loop_factory()()
    assert loop.run_until_complete(asyncio.sleep(0, "ran")) == "ran"
    loop.close()


def test_a_setting_below_1_is_refused_with_its_key() -> None:
    with pytest.raises(ValueError, match="frontWriteTimeout must be at least 1, not 0"):
        DoorConfig(front_write_timeout=0)
