"""Offset resets: targets, effect on messages in flight, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cometmq.proto import paths, v1, v2
from cometmq.store.format.record import decode
from cometmq.tests.broker.desk import Desk, desk, parse_received
from cometmq.tests.broker.live import HELD_S, SHORT_HOLDS, follower_of, running, until
from cometmq.tests.harness.wire import WITHIN_S, Wire

Edge = v1.ResetOffsetsRequest


async def reset(
    wire: Wire, *, within_s: float = WITHIN_S, **fields: Any
) -> v1.ResetOffsetsResponse:
    request = v1.ResetOffsetsRequest(**{"group": "g", "topic": "t", **fields})
    answer: v1.ResetOffsetsResponse = await wire.call(
        paths.RESET_OFFSETS, request, v1.ResetOffsetsResponse, within_s
    )
    return answer


async def test_a_reset_to_a_time_an_offset_or_an_end(tmp_path: Path) -> None:
    async with desk(tmp_path) as one, one.live.client() as wire:
        times = await _five(one)
        ways: list[tuple[dict[str, Any], int]] = [
            ({"timestamp_ms": times[2]}, 2),
            ({"timestamp_ms": times[2] + 1}, 3),
            ({"timestamp_ms": 0}, 0),
            ({"timestamp_ms": times[4] + 1}, 5),
            ({"timestamp_ms": -1}, 5),
            ({"offset": 4}, 4),
            ({"offset": 5}, 5),
            ({"edge": Edge.EARLIEST}, 0),
            ({"edge": Edge.LATEST}, 5),
        ]
        before = -1
        for fields, after in ways:
            plan = await reset(wire, dry_run=True, **fields)
            assert one.node.offsets.get("t", "g", 0) == (None if before < 0 else before)
            done = await reset(wire, **fields)
            assert done.changes == plan.changes
            (change,) = done.changes
            assert (change.before, change.after) == (before, after), fields
            assert (change.min_offset, change.max_offset) == (0, 5)
            before = after
        await reset(wire, offset=3)
        assert (await one.receive("t", "g")).bodies == [b"3", b"4"]


async def test_invalid_resets_are_refused(tmp_path: Path) -> None:
    bad: list[tuple[dict[str, Any], int]] = [
        ({"topic": "u", "offset": 0}, v2.TOPIC_NOT_FOUND),
        ({"group": "u", "offset": 0}, v2.CONSUMER_GROUP_NOT_FOUND),
        ({"topic": "rmq_sys_x", "offset": 0}, v2.ILLEGAL_TOPIC),
        ({"group": "CID_RMQ_SYS_x", "offset": 0}, v2.ILLEGAL_CONSUMER_GROUP),
        ({"offset": 6}, v2.ILLEGAL_OFFSET),
        ({"offset": -1}, v2.ILLEGAL_OFFSET),
        ({"timestamp_ms": -2}, v2.BAD_REQUEST),
        ({"offset": 0, "queue_id": 1}, v2.BAD_REQUEST),
        ({"edge": Edge.EDGE_UNSPECIFIED}, v2.BAD_REQUEST),
        ({}, v2.BAD_REQUEST),
    ]
    async with desk(tmp_path) as one, one.live.client() as wire:
        await _five(one)
        for fields, code in bad:
            assert (await reset(wire, **fields)).code == code, fields
        assert one.node.offsets.get("t", "g", 0) is None


async def test_a_reset_invalidates_messages_in_flight(tmp_path: Path) -> None:
    async with desk(tmp_path) as one, one.live.client() as wire:
        await _five(one)
        got = await one.receive("t", "g", batch=3, invisible_ms=10_000)
        done = await reset(wire, offset=1)
        assert done.changes[0].in_flight == 3
        again = await one.receive("t", "g")
        assert (again.bodies, again.attempts) == ([b"1", b"2", b"3", b"4"], [1, 1, 1, 1])
        one.ack("t", "g", *again.handles)
        one.advance(10_001)
        await one.nothing("t", "g")
        # A handle from before the reset has no effect.
        one.ack("t", "g", *got.handles)
        assert one.node.offsets.get("t", "g", 0) == 5


async def test_a_waiting_poll_gets_the_messages_after_the_reset(tmp_path: Path) -> None:
    async with desk(tmp_path) as one, one.live.client() as wire:
        await _five(one)
        await reset(wire, edge=Edge.LATEST)
        waiting = one.start_receive("t", "g")
        assert not waiting.done()
        await reset(wire, offset=4)
        assert parse_received(await waiting).bodies == [b"4"]


async def test_a_reset_unlocks_a_fifo_queue(tmp_path: Path) -> None:
    async with desk(tmp_path) as one, one.live.client() as wire:
        one.group("g", orderly=True)
        await _five(one, queues=2)
        held = await one.receive("t", "g", batch=1, invisible_ms=60_000)
        other = await one.receive("t", "g", batch=1, invisible_ms=60_000)
        await one.nothing("t", "g")
        done = await reset(wire, edge=Edge.EARLIEST)
        assert sum(change.in_flight for change in done.changes) == 2
        again = [await one.receive("t", "g", batch=1) for _ in range(2)]
        assert {one.bodies[0] for one in again} == {held.bodies[0], other.bodies[0]}
        assert [one.attempts for one in again] == [[1], [1]]


async def test_a_reset_of_one_queue_leaves_the_others(tmp_path: Path) -> None:
    async with desk(tmp_path) as one, one.live.client() as wire:
        await _five(one, queues=2)
        done = await reset(wire, edge=Edge.LATEST, queue_id=1)
        assert [(change.queue_id, change.after) for change in done.changes] == [(1, 2)]
        assert one.node.offsets.get("t", "g", 0) is None
        assert len((await one.receive("t", "g")).bodies) == 3


async def test_retries_stay_unless_the_reset_skips_them(tmp_path: Path) -> None:
    async with desk(tmp_path) as one, one.live.client() as wire:
        await _five(one)
        await one.receive("t", "g", batch=1, invisible_ms=10_000)
        one.advance(10_001)
        await until(lambda: one.node.metadata.topic("%RETRY%g_t"))
        await one.dispatched()
        await reset(wire, edge=Edge.LATEST)
        got = await one.receive("t", "g", invisible_ms=10_000)
        assert (got.bodies, got.attempts) == ([b"0"], [2])
        one.advance(10_001)
        await until(lambda: one.node.store.max_offset("%RETRY%g_t", 0) == 2)
        done = await reset(wire, edge=Edge.LATEST, skip_retries=True)
        assert [(change.topic, change.after) for change in done.changes] == [
            ("t", 5),
            ("%RETRY%g_t", 2),
        ]
        await one.nothing("t", "g")


async def test_a_reset_survives_a_restart_and_reaches_the_follower(tmp_path: Path) -> None:
    async with (
        desk(tmp_path / "a") as one,
        running(follower_of(one.live.bound, tmp_path / "b"), door=SHORT_HOLDS) as follower,
        follower.client() as wire,
    ):
        await _five(one)
        got = await one.receive("t", "g")
        one.ack("t", "g", *got.handles)
        await until(lambda: follower.node.offsets.get("t", "g", 0) == 5)
        # Without a nameserver the follower has no address to forward to.
        assert (await reset(wire, within_s=HELD_S, offset=2)).code == v2.HA_NOT_AVAILABLE
        async with one.live.client() as direct:
            assert (await reset(direct, offset=2)).code == v2.OK
        await until(lambda: follower.node.offsets.get("t", "g", 0) == 2)
    async with desk(tmp_path / "a") as one:
        assert (await one.receive("t", "g")).bodies == [b"2", b"3", b"4"]


async def test_a_reset_invalidates_journal_entries(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        await _five(one)
        await one.receive("t", "g", batch=3, invisible_ms=60_000)
        one.advance(5_000)
        await until(lambda: one.node.offsets.get("t", "g", 0) == 3)
    async with desk(tmp_path) as one, one.live.client() as wire:
        done = await reset(wire, edge=Edge.LATEST)
        assert [change.after for change in done.changes] == [5]
    async with desk(tmp_path) as one:
        one.advance(600_000)
        await one.nothing("t", "g")
        assert one.node.metadata.topic("%RETRY%g_t") is None


async def _five(one: Desk, queues: int = 1) -> list[int]:
    """Send five messages, ten milliseconds of the broker's clock apart; return their store
    times.
    """
    one.topic("t", queues=queues)
    if one.node.metadata.group("g") is None:
        one.group("g")
    for n in range(5):
        one.advance(10)
        await one.sent("t", str(n).encode())
    records = one.node.store.get("t", 0, 0, 5).records
    return [decode(stored.data).store_timestamp_ms for stored in records]
