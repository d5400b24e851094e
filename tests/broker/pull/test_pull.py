"""PullMessage, UpdateOffset, GetOffset, QueryOffset with their exact codes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.pull import service
from cometmq.proto import v2
from cometmq.proto.errors import WireError
from cometmq.tests.broker.desk import Desk, desk, message, parse_received, resource


def queue(topic: str = "t", queue_id: int = 0) -> v2.MessageQueue:
    """Return a queue as in a request."""
    return v2.MessageQueue(topic=resource(topic), id=queue_id)


def code_of(call: Callable[[], Any]) -> int:
    """Return the code of a handler's response or error."""
    try:
        answer = call()
    except WireError as error:
        return error.code
    return int(answer.status.code)


def start_pull(one: Desk, offset: int, **fields: Any) -> Any:
    """Start a PullMessage."""
    topic, queue_id = fields.pop("topic", "t"), fields.pop("queue_id", 0)
    ctx = one.context(remaining_ms=fields.pop("remaining_ms", 30_000))
    tag = fields.pop("tag", "*")
    request = v2.PullMessageRequest(
        group=resource(fields.pop("group", "g")),
        message_queue=queue(topic, queue_id),
        offset=offset,
        batch_size=fields.pop("batch", 32),
        filter_expression=v2.FilterExpression(type=v2.TAG, expression=tag),
        long_polling_timeout=v2.Duration(seconds=20),
    )
    return one.pulls.pull_message(request, ctx)


async def pull(one: Desk, offset: int, **fields: Any) -> tuple[int, list[bytes], int | None]:
    """Return code, bodies and next offset."""
    answer = start_pull(one, offset, **fields)
    items = answer if isinstance(answer, list) else await answer
    code, bodies, following = 0, [], None
    for item in map(v2.PullMessageResponse.FromString, items):
        kind = item.WhichOneof("content")
        if kind == "status":
            code = item.status.code
        elif kind == "message":
            bodies.append(item.message.body)
            assert not item.message.system_properties.HasField("receipt_handle")
        else:
            following = item.next_offset
    return code, bodies, following


async def test_pulls_read_a_queue_in_order_and_change_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", *(b"%d" % n for n in range(40)))
        assert await pull(one, 0, batch=3) == (v2.OK, [b"0", b"1", b"2"], 3)
        code, bodies, following = await pull(one, 3, batch=99)
        assert (code, len(bodies), following) == (v2.OK, 32, 35)
        assert await pull(one, 39) == (v2.OK, [b"39"], 40)
        assert one.node.offsets.get("t", "g", 0) is None


async def test_pulled_messages_are_counted_as_handed_out(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", *(b"12345" for _ in range(3)))
        await pull(one, 0, batch=2)
        await pull(one, 2)
        (total,) = one.node.runtime.counters.received.values()
        assert total.messages == 3
        assert total.bytes > 15, "as received messages: with their properties"


async def test_a_pull_at_the_end_is_held_and_woken(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", queues=2)
        held = start_pull(one, 0)
        other = start_pull(one, 0, queue_id=1)
        await asyncio.sleep(0.02)
        assert not held.done() and not other.done()
        await one.sent("t", b"a")
        items = await held
        assert v2.PullMessageResponse.FromString(items[1]).message.body == b"a"
        assert not other.done()
        other.cancel()
        await asyncio.sleep(0)
        await one.sent("t", b"b")


async def test_an_empty_pull_ends_before_the_deadline(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        answer = await pull(one, 0, remaining_ms=250)
        assert answer == (v2.MESSAGE_NOT_FOUND, [], 0)
        assert await pull(one, 0, remaining_ms=50) == (v2.MESSAGE_NOT_FOUND, [], 0)


async def test_offsets_outside_the_queue_are_corrected(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a", b"b")
        assert await pull(one, 3) == (v2.ILLEGAL_OFFSET, [], 2)
        assert await pull(one, -1) == (v2.ILLEGAL_OFFSET, [], 0)


async def test_filtered_messages_are_skipped(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        for tag in ("BB", "Aa", "x"):
            await one.send(message("t", tag.encode(), tag=tag))
        await one.dispatched()
        assert await pull(one, 0, tag="Aa", batch=1) == (v2.OK, [b"Aa"], 3)
        held = start_pull(one, 2, tag="Aa")
        await asyncio.sleep(0.01)
        await one.send(message("t", b"no", tag="no"))
        await one.dispatched()
        assert not held.done()
        await one.send(message("t", b"yes", tag="Aa"))
        items = await held
        assert v2.PullMessageResponse.FromString(items[-1]).next_offset == 5


async def test_invalid_pulls_are_refused(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        for fields, code in (
            ({"topic": "a b"}, v2.ILLEGAL_TOPIC),
            ({"topic": "nowhere"}, v2.TOPIC_NOT_FOUND),
            ({"group": "a b"}, v2.ILLEGAL_CONSUMER_GROUP),
            ({"queue_id": 1}, v2.BAD_REQUEST),
            ({"queue_id": -1}, v2.BAD_REQUEST),
            ({"tag": "||"}, v2.ILLEGAL_FILTER_EXPRESSION),
        ):
            with pytest.raises(WireError) as caught:
                start_pull(one, 0, **fields)
            assert caught.value.code == code, fields


async def test_offsets_are_committed_read_and_rewound(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        one.group("g")
        await one.sent("t", b"a", b"b", b"c")
        ctx = one.context()

        def update(offset: int, group: str = "g", topic: str = "t") -> int:
            request = v2.UpdateOffsetRequest(
                group=resource(group), message_queue=queue(topic), offset=offset
            )
            return code_of(lambda: one.pulls.update_offset(request, ctx))

        get = v2.GetOffsetRequest(group=resource("g"), message_queue=queue())
        assert code_of(lambda: one.pulls.get_offset(get, ctx)) == v2.OFFSET_NOT_FOUND
        assert update(2) == v2.OK
        assert one.pulls.get_offset(get, ctx).offset == 2
        assert update(4) == v2.ILLEGAL_OFFSET
        assert update(-1) == v2.ILLEGAL_OFFSET
        assert update(1, group="unknown") == v2.CONSUMER_GROUP_NOT_FOUND
        assert update(1, topic="nowhere") == v2.TOPIC_NOT_FOUND
        assert (await one.receive("t", "g")).bodies == [b"c"]
        # A rewind reaches waiting pulls and drops messages in flight.
        poll = one.start_receive("t", "g")
        assert update(1) == v2.OK
        await poll
        assert one.node.pop.in_flight("t", "g", 0) == 2


async def test_query_offset_by_end_and_by_time(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        ctx = one.context()

        def query(policy: int, time_ms: int | None = None) -> v2.QueryOffsetResponse:
            request = v2.QueryOffsetRequest(message_queue=queue())
            request.query_offset_policy = policy  # type: ignore[assignment]
            if time_ms is not None:
                request.timestamp.FromMilliseconds(time_ms)
            return one.pulls.query_offset(request, ctx)

        await one.sent("t", b"a")
        await asyncio.sleep(0.02)
        middle_ms = one.node.runtime.clock.wall_ms()
        await asyncio.sleep(0.02)
        await one.sent("t", b"b")
        assert query(v2.BEGINNING).offset == 0
        assert query(v2.END).offset == 2
        assert query(v2.TIMESTAMP, 0).offset == 0
        assert query(v2.TIMESTAMP, middle_ms).offset == 1
        assert query(v2.TIMESTAMP, middle_ms + 60_000).offset == 2
        assert code_of(lambda: query(v2.TIMESTAMP)) == v2.BAD_REQUEST
        assert code_of(lambda: query(7)) == v2.BAD_REQUEST


async def test_a_failing_pull_does_not_keep_arrivals_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        first, second = start_pull(one, 0), asyncio.ensure_future(pull(one, 0))
        poll = one.start_receive("t", "g")
        await asyncio.sleep(0)
        read, failures = one.pulls._read, [OSError("the disk")]

        def fail(asked: Any) -> Any:
            if failures:
                raise failures.pop()
            return read(asked)

        monkeypatch.setattr(one.pulls, "_read", fail)
        await one.sent("t", b"a")
        with pytest.raises(OSError, match="the disk"):
            await first
        assert (await second)[1] == [b"a"]
        assert parse_received(await poll).bodies == [b"a"]


async def test_many_pulls_at_one_queue_are_answered_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        monkeypatch.setattr("cometmq.broker.pull.service._SLICE_NS", 0)
        held = [start_pull(one, 0) for _ in range(5)]
        await one.sent("t", b"a")
        turns = 0
        while not held[-1].done():
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 4
        assert all(one.done() for one in held)


async def test_pulls_without_time_in_a_turn_are_read_in_later_ones_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_SLICE_NS", 0)  # one pull in each turn
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"0", b"1")
        first, *late = (start_pull(one, offset) for offset in (0, 0, 1, 2, 99))
        assert isinstance(first, list) and not any(each.done() for each in late)
        late[0].cancel()
        turns: list[Any] = []
        for each in late[1:]:
            each.add_done_callback(turns.append)
        assert len(await late[1]) == 3 and turns == [late[1]]
        outside = v2.PullMessageResponse.FromString((await late[3])[0])
        assert outside.status.code == v2.ILLEGAL_OFFSET
        assert not late[2].done()  # waits for a message
        await one.sent("t", b"2")
        assert b"2" in (await late[2])[1]
        late = [start_pull(one, 0) for _ in range(3)]
        one.pulls.end_polls()
        assert all(isinstance(each, list) or each.done() for each in late)
