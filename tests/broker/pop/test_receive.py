"""ReceiveMessage: long polling, wake-ups, renewal, redelivery, dead letters, bad requests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.messages.validation import polling_ms
from cometmq.proto import v2
from cometmq.proto.errors import WireError
from cometmq.tests.broker.desk import StoppedClock, desk, message, parse_received


@pytest.mark.parametrize(
    ("asked", "remaining", "timeout", "held"),
    [
        (20_000, 23_000, 3_000, 20_000),
        (None, 8_000, 3_000, 6_500),
        (40_000, 40_000, 0, 20_000),
        (10_000, 13_000, 0, 10_000),
        (1_000, 30_000, 0, 5_000),
        (None, None, 0, 20_000),
        (None, 3_000, 3_000, 2_700),
        (5_000, 5_000, 0, 4_500),
        (5_000, 200, 0, 100),
        (5_000, 0, 0, 0),
    ],
)
def test_the_polling_time_is_limited_by_the_deadline(
    asked: int | None, remaining: int | None, timeout: int, held: int
) -> None:
    assert polling_ms(asked, remaining, timeout) == held


async def test_a_marked_poll_is_held_as_long_as_it_asks(tmp_path: Path) -> None:
    assert polling_ms(1_000, 30_000, may_be_short=True) == 1_000
    assert polling_ms(60_000, 90_000, may_be_short=True) == 20_000
    async with desk(tmp_path) as one:
        one.topic("t")
        ctx = one.context()
        ctx.metadata = (("x-cometmq-short-poll", "1"),)
        asked: dict[str, Any] = {"long_polling_timeout": v2.Duration()}
        assert one.start_receive("t", "g", ctx, **asked).done()
        assert not one.start_receive("t", "g", **asked).done()


async def test_a_new_group_starts_at_the_first_message(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", queues=4)
        await one.sent("t", *(b"%d" % n for n in range(40)))
        first = await one.receive("t", "g")
        assert first.code == v2.OK
        assert len(first.messages) == 32
        assert first.delivery_time is not None
        rest = await one.receive("t", "g", batch=100)
        assert len(rest.messages) == 8
        assert sorted(first.bodies + rest.bodies) == sorted(b"%d" % n for n in range(40))
        await one.nothing("t", "g")
        assert one.node.pop.in_flight("t", "g", 0) == 10


async def test_a_message_wakes_a_held_poll(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", queues=8)
        polls = [one.start_receive("t", "g") for _ in range(3)]
        await asyncio.sleep(0.05)
        assert one.node.pop.waiting == 3
        assert not any(poll.done() for poll in polls)
        await one.sent("t", b"a")
        answer = parse_received(await polls[0])
        assert answer.bodies == [b"a"]
        # The oldest poll got it; the others wait.
        assert one.node.pop.waiting == 2
        await one.sent("t", b"b", b"c")
        assert parse_received(await polls[1]).bodies == [b"b"]
        assert parse_received(await polls[2]).bodies == [b"c"]
        assert one.node.pop.waiting == 0


async def test_an_empty_poll_is_answered_at_the_end_of_its_time(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        answer = await one.receive("t", "g", one.context(remaining_ms=400))
        assert (answer.code, answer.messages) == (v2.MESSAGE_NOT_FOUND, [])
        assert answer.delivery_time is not None


async def test_a_client_that_left_receives_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        left = one.start_receive("t", "g")
        stays = one.start_receive("t", "g")
        left.cancel()
        await one.sent("t", b"a")
        assert parse_received(await stays).bodies == [b"a"]
        await asyncio.sleep(0)
        assert one.node.pop.waiting == 0


async def test_an_undelivered_response_is_visible_again_after_a_second(tmp_path: Path) -> None:
    async with desk(tmp_path, clock=StoppedClock()) as one:
        one.topic("t")
        await one.sent("t", b"a")
        ctx = one.context()
        await one.receive("t", "g", ctx)
        assert ctx.on_undelivered is not None
        ctx.on_undelivered()
        await one.nothing("t", "g")
        one.advance(1_000)
        assert (await one.receive("t", "g")).bodies == [b"a"]


async def test_too_many_polls_are_refused(tmp_path: Path) -> None:
    async with desk(tmp_path, pop_polling_size=1) as one:
        one.topic("t")
        held = one.start_receive("t", "g")
        refused = await one.receive("t", "g")
        assert refused.code == v2.TOO_MANY_REQUESTS
        assert refused.delivery_time is not None
        assert not held.done()


async def test_client_termination_ends_its_polls(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        gone = one.start_receive("t", "g", one.context("gone@1"))
        stays = one.start_receive("t", "g", one.context("stays@1"))
        one.node.receiving.client_gone("gone@1")
        assert parse_received(await gone).code == v2.MESSAGE_NOT_FOUND
        assert not stays.done()


async def test_tags_are_compared_literally_and_mismatches_are_consumed(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        # "Aa" and "BB" have the same hash.
        for n, tag in enumerate(("Aa", "BB", "x", "")):
            answer = await one.send(message("t", b"%d" % n, tag=tag))
            assert answer.status.code == v2.OK
        await one.dispatched()
        got = await one.receive("t", "g", tag=" Aa || x ")
        assert got.bodies == [b"0", b"2"]
        assert one.ack("t", "g", *got.handles).status.code == v2.OK
        assert one.node.offsets.get("t", "g", 0) == 4
        await one.nothing("t", "g", tag="BB")


async def test_a_filter_that_drops_everything_does_not_block_the_loop(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        for _ in range(80):
            batch = [message("t", b"x", tag="no") for _ in range(250)]
            assert (await one.send(*batch)).status.code == v2.OK
        await one.dispatched()
        poll = one.start_receive("t", "g", tag="yes")
        async with asyncio.timeout(60):
            while one.node.offsets.get("t", "g", 0) != 20_000:  # noqa: ASYNC110 - a turn a look
                await asyncio.sleep(0)
        assert not poll.done()
        await one.sent("t", b"y", tag="yes")
        assert parse_received(await poll).bodies == [b"y"]


async def test_in_flight_messages_are_bounded(tmp_path: Path) -> None:
    async with desk(tmp_path, pop_inflight_message_threshold=3) as one:
        one.topic("t")
        await one.sent("t", *(b"%d" % n for n in range(5)))
        got = await one.receive("t", "g")
        assert len(got.messages) == 3
        poll = one.start_receive("t", "g")
        assert not poll.done()
        one.ack("t", "g", got.handles[0])
        assert len(parse_received(await poll).messages) == 1


async def test_responses_are_bounded_in_bytes_but_contain_at_least_one_message(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        large = bytes(600_000)
        await one.sent("t", large, large + b"1", large + b"2")
        assert len((await one.receive("t", "g")).messages) == 2
        assert len((await one.receive("t", "g")).messages) == 1


BAD = [
    ({"invisible_ms": 9_999}, v2.ILLEGAL_INVISIBLE_TIME),
    ({"invisible_ms": 43_200_001}, v2.ILLEGAL_INVISIBLE_TIME),
    ({"tag": "||"}, v2.ILLEGAL_FILTER_EXPRESSION),
]


@pytest.mark.parametrize(("fields", "code"), BAD)
async def test_bad_values_are_refused(tmp_path: Path, fields: dict[str, Any], code: int) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        answer = await one.receive("t", "g", **fields)
        assert answer.code == code
        assert answer.delivery_time is not None


async def test_bad_names_filters_and_clients_are_refused(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        assert (await one.receive("rmq_sys_x", "g")).code == v2.ILLEGAL_TOPIC
        assert (await one.receive("no.such", "g")).code == v2.ILLEGAL_TOPIC
        assert (await one.receive("unknown", "g")).code == v2.TOPIC_NOT_FOUND
        assert (await one.receive("t", "a b")).code == v2.ILLEGAL_CONSUMER_GROUP
        assert (await one.receive("t", "CID_RMQ_SYS_x")).code == v2.ILLEGAL_CONSUMER_GROUP
        anonymous = await one.receive("t", "g", one.context(client_id=""))
        assert anonymous.code == v2.CLIENT_ID_REQUIRED
        for text in ("", "a >"):
            request = one.receive_request("t", "g")
            request.filter_expression.type = v2.SQL
            request.filter_expression.expression = text
            with pytest.raises(WireError) as caught:
                one.node.receiving.receive(request, one.context())
            assert caught.value.code == v2.ILLEGAL_FILTER_EXPRESSION


async def test_stopping_answers_every_poll(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        poll = one.start_receive("t", "g")
    assert parse_received(await poll).code == v2.MESSAGE_NOT_FOUND
