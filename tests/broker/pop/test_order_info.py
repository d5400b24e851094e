"""`consumerOrderInfo.json`: Apache's format, and FIFO groups after a restart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.pop.fifo.ordered_group import Batch
from cometmq.broker.pop.order_info import batch_of, batch_to_json, batches_of
from cometmq.proto import v2
from cometmq.store.format.json_file import dumps, loads
from cometmq.tests.broker.desk import Desk, desk, resource
from cometmq.tests.formats.cases import unpack

FILE = "consumerOrderInfo.json"


def test_apaches_file_round_trips(tmp_path: Path) -> None:
    text = (unpack("grpc", tmp_path) / "config" / FILE).read_text()
    content = loads(text)
    batches = batches_of(content)
    batch = batches["acc-fifo-939010ccace6@acc-gid-4236912eeb65"][2]
    assert batch.offsets == [46, 47, 48, 49] and batch.acked == set(batch.offsets)
    assert batch.attempt_id == "56453df1-246e-432e-84ca-023ecc37be10"
    again = {
        name: {queue_id: batch_to_json(one) for queue_id, one in queues.items()}
        for name, queues in batches.items()
    }
    assert dumps({**content, "table": again}) == text


@st.composite
def _batches(draw: st.DrawFn) -> Batch:
    offsets = sorted(draw(st.sets(st.integers(0, 1 << 40), min_size=1, max_size=32)))
    some = st.sets(st.sampled_from(offsets))
    pop_ms = draw(st.integers(1, 1 << 41))
    visible = {offset: pop_ms + offset % 7 for offset in draw(some)}
    attempts = {offset: draw(st.integers(1, 20)) for offset in offsets}
    attempt_id = draw(st.sampled_from(["", "one", "zwei"]))
    # fmt: off
    return Batch(
        pop_ms, pop_ms + draw(st.integers(0, 1 << 32)), attempt_id, offsets, offsets[-1] + 1,
        attempts, "", pop_ms, draw(some), visible, acked_before=draw(some),
    )
    # fmt: on


@given(_batches())
def test_a_batch_round_trips_through_the_file(batch: Batch) -> None:
    text = dumps({"table": {"t@g": {3: batch_to_json(batch)}}})
    assert batches_of(loads(text)) == {"t@g": {3: batch}}


@pytest.mark.parametrize("bean", [{"o": [3, 0]}, {"o": [-1]}, {"o": [1, 5, 2]}, {"o": ["x"]}])
def test_invalid_offsets_are_rejected(bean: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"offsets|invalid"):
        batch_of(bean)


def test_an_entry_without_messages_is_ignored() -> None:
    assert batch_of({"popTime": 1, "i": 2}) is None


async def test_a_restart_keeps_the_queue_locked_and_the_attempts(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", message_type=v2.FIFO)
        one.group("g", orderly=True)
        await one.sent("t", b"a", b"b", b"c", message_group="k")
        await one.receive("t", "g", batch=3)
        one.advance(30_000)
        first = await one.receive("t", "g", batch=3, attempt_id="x")
        assert first.attempts == [2, 2, 2]
        one.ack("t", "g", first.handles[1])
        now_ms = one.node.runtime.clock.wall_ms()
        await one.live.server.stop(1.0)
    written = loads((tmp_path / "config" / FILE).read_text())
    assert written["table"]["t@g"][0]["cm"] == 2
    assert json.dumps(written["table"]["t@g"][0]["oc"]) == '{"0": 1, "1": 1, "2": 1}'
    async with desk(tmp_path) as one:
        one.advance(now_ms - one.node.runtime.clock.wall_ms())
        await one.nothing("t", "g")
        # Its handles are valid; a repeated request gets the same batch.
        assert one.ack("t", "g", first.handles[0]).status.code == v2.OK
        assert one.node.offsets.get("t", "g", 0) == 2
        again = await one.receive("t", "g", attempt_id="x")
        assert (again.bodies, again.attempts) == ([b"c"], [2])
        one.advance(30_000)
        third = await one.receive("t", "g")
        assert (third.bodies, third.attempts) == ([b"c"], [3])


@pytest.mark.parametrize("restarts", [False, True])
async def test_an_acknowledged_message_never_becomes_a_dead_letter(
    tmp_path: Path, restarts: bool
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", message_type=v2.FIFO)
        one.group("g", orderly=True, max_attempts=3)
        await one.sent("t", b"a", b"b", b"c", b"d", message_group="k")
        got = await one.receive("t", "g", batch=4)
        one.ack("t", "g", *got.handles[1:3])
        one.advance(30_000)
        got = await one.receive("t", "g", batch=4)
        assert got.bodies == [b"a", b"b", b"c", b"d"]  # documented
        one.ack("t", "g", got.handles[3])
        forwarded = await _forward(one, got.handles[2])
        assert forwarded == v2.OK  # its consumer failed it this time
        now_ms = one.node.runtime.clock.wall_ms()
        if restarts:
            await one.live.server.stop(1.0)
        else:
            await _expects_dead_letter_of_a(one)
    if restarts:
        async with desk(tmp_path) as one:
            one.advance(now_ms - one.node.runtime.clock.wall_ms())
            await _expects_dead_letter_of_a(one)


async def _forward(one: Desk, handle: str) -> int:
    request = v2.ForwardMessageToDeadLetterQueueRequest(
        topic=resource("t"), group=resource("g"), receipt_handle=handle
    )
    answer = one.acks.forward_to_dead_letter_queue(request, one.context())
    return (await answer if isinstance(answer, asyncio.Future) else answer).status.code


async def _expects_dead_letter_of_a(one: Desk) -> None:
    one.advance(30_000)
    await one.receive("t", "g", batch=4)
    one.advance(30_000)
    await one.nothing("t", "g", batch=4)
    await one.dispatched()
    assert one.node.pop.in_flight("t", "g", 0) == 0
    assert one.node.offsets.get("t", "g", 0) == 4
    assert (await one.receive("%DLQ%g", "reader")).bodies == [b"a"]


async def test_a_batch_beyond_the_log_end_locks_nothing(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    now_ms = 1 << 41
    batch = {"cm": 0, "i": 60_000, "l": now_ms, "o": [5, 1], "oc": {}, "popTime": now_ms}
    idle = {**batch, "o": [0], "l": 1, "popTime": 1}
    table = {"t@g": {0: batch}, "t@old": {0: idle}, "gone@g": {0: {**batch, "o": [0]}}}
    (config / FILE).write_text(dumps({"table": table}))
    async with desk(tmp_path) as one:
        one.topic("t", message_type=v2.FIFO)
        for group in ("g", "old"):
            one.group(group, orderly=True)
        await one.sent("t", b"a", message_group="k")
        for group in ("g", "old"):
            got = await one.receive("t", group)
            assert (got.bodies, got.attempts) == ([b"a"], [1])


async def test_a_reset_removes_the_lock(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", message_type=v2.FIFO)
        one.group("g", orderly=True)
        await one.sent("t", b"a", b"b", message_group="k")
        await one.receive("t", "g", batch=1)
        poll = one.start_receive("t", "g")
        one.node.offsets.commit("t", "g", 0, 0)
        one.node.pop.rewind("t", "g", 0, 0)
        await poll
        assert one.node.pop.in_flight("t", "g", 0) == 2
