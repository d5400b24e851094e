"""Filters in the broker: receives and pulls with tags and SQL."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.messages.filters import SqlFilter, TagFilter, parse_filter
from cometmq.proto import v2
from cometmq.proto.errors import WireError
from cometmq.store.format.record import Delivery, encode_properties
from cometmq.tests.broker.desk import Desk, Received, desk, message, parse_received


def sql(text: str) -> v2.FilterExpression:
    """Return a SQL expression as clients send it."""
    return v2.FilterExpression(type=v2.SQL, expression=text)


def start(one: Desk, text: str, group: str = "g", **fields: Any) -> asyncio.Future[list[bytes]]:
    """Start a ReceiveMessage with a SQL filter."""
    request = one.receive_request("t", group, **fields)
    request.filter_expression.CopyFrom(sql(text))
    answer = one.node.receiving.receive(request, one.context(remaining_ms=fields.pop("ms", 30_000)))
    if isinstance(answer, list):
        done: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        done.set_result(answer)
        return done
    return answer


async def receive(one: Desk, text: str, **fields: Any) -> Received:
    """Receive with a SQL filter."""
    return parse_received(await start(one, text, **fields))


async def fill(one: Desk, *amounts: str) -> None:
    """Send messages with a property `amount`; "" stands for none."""
    for n, amount in enumerate(amounts):
        users = {"amount": amount} if amount else {}
        answer = await one.send(message("t", b"%d" % n, f"ID-{n}", properties=users, tag="x"))
        assert answer.status.code == v2.OK
    await one.dispatched()


async def test_a_sql_filter_delivers_matches_and_consumes_the_rest(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await fill(one, "5", "9.5", "10", "abc", "", "11")
        got = await receive(one, "amount < 10 AND TAGS = 'x'")
        assert got.bodies == [b"0", b"1"]
        assert got.messages[0].user_properties == {"amount": "5"}
        assert one.ack("t", "g", *got.handles).status.code == v2.OK
        # Messages that did not match are consumed: a wider filter of the same group does not get
        # them.
        again = start(one, "TRUE")
        assert not again.done()
        await fill(one, "77")
        assert parse_received(await again).bodies == [b"0"]
        # Another group starts at the first message.
        assert (await receive(one, "amount >= 10", group="h")).bodies == [b"2", b"5", b"0"]


async def test_only_a_match_wakes_a_waiting_receive(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        held = start(one, "amount > 3")
        await fill(one, "1", "2")
        await asyncio.sleep(0)
        assert not held.done()
        await fill(one, "4")
        assert parse_received(await held).bodies == [b"0"]


async def test_a_filter_that_drops_many_messages_reaches_the_queue_end(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await fill(one, *(["1"] * 700), "9")
        got = await receive(one, "amount = 9", batch=1)
        assert got.bodies == [b"700"]


async def test_fifo_groups_apply_filters(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", message_type=v2.FIFO)
        one.group("g", orderly=True)
        for n in range(6):
            users = {"n": str(n)}
            await one.send(message("t", b"%d" % n, properties=users, message_group="m"))
        await one.dispatched()
        got = await receive(one, "n IN ('1', '3', '5')", batch=2)
        assert got.bodies == [b"1", b"3"]
        one.ack("t", "g", *got.handles)
        assert (await receive(one, "n IN ('1', '3', '5')")).bodies == [b"5"]


async def test_pulls_apply_sql_filters_and_return_the_scanned_offset(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await fill(one, "1", "9", "1", "9", "1")

        async def pull(offset: int, batch: int) -> tuple[list[bytes], int]:
            request = v2.PullMessageRequest(
                group=v2.Resource(name="g"),
                message_queue=v2.MessageQueue(topic=v2.Resource(name="t")),
                offset=offset,
                batch_size=batch,
                filter_expression=sql("amount = 9"),
            )
            answer = one.pulls.pull_message(request, one.context())
            items = [
                v2.PullMessageResponse.FromString(item)
                for item in (answer if isinstance(answer, list) else await answer)
            ]
            found = [item.message.body for item in items if item.HasField("message")]
            return found, items[-1].next_offset

        assert await pull(0, 1) == ([b"1"], 2)
        assert await pull(2, 1) == ([b"3"], 4)
        assert await pull(0, 2) == ([b"1", b"3"], 4)
        assert await pull(0, 32) == ([b"1", b"3"], 5)


@pytest.mark.parametrize(
    ("text", "position"),
    [("a = 1 x", 7), ("a >", 4), ("", 1), ("a = NULL", 1), ("a LIKE '%'", 3)],
)
def test_an_invalid_expression_is_refused_with_its_position(text: str, position: int) -> None:
    for _ in range(2):
        with pytest.raises(WireError) as caught:
            parse_filter(sql(text))
        assert caught.value.code == v2.ILLEGAL_FILTER_EXPRESSION
        assert f"at position {position}" in caught.value.message


def test_the_same_expression_is_one_filter_and_properties_are_decoded_once() -> None:
    one = parse_filter(sql("a = 1"))
    assert isinstance(one, SqlFilter)
    assert parse_filter(sql("a = 1")) is one
    properties = encode_properties({"a": "1", "b": "2"})
    record = Delivery(b"", properties, 0, 0, 0, 0, 0, 0, b"", 0, b"", 0)
    assert record.decoded is None
    assert one.matches(record)
    decoded = record.decoded
    assert decoded == {b"a": b"1", b"b": b"2"}
    other = parse_filter(sql("b = 3"))
    assert other is not None and not other.matches(record)
    assert record.decoded is decoded


def test_tags_with_the_same_hash_are_told_apart() -> None:
    wanted = parse_filter(v2.FilterExpression(type=v2.TAG, expression="Aa || c"))
    assert isinstance(wanted, TagFilter)
    for tag, passes in (("Aa", True), ("BB", False), ("c", True), ("", False)):
        properties = encode_properties({"TAGS": tag} if tag else {})
        record = Delivery(b"", properties, 0, 0, 0, 0, 0, 0, b"", 0, b"", 0)
        assert wanted.matches(record) is passes


def test_overlong_tag_expressions_are_refused() -> None:
    with pytest.raises(WireError, match="longer than"):
        parse_filter(v2.FilterExpression(type=v2.TAG, expression="x||" * 6_000))
