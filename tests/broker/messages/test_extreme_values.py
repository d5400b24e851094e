"""Extreme 64-bit values in requests and records: refused with a code, or delivered as sent."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from cometmq.broker.messages.wire import TIMESTAMP_MAX_MS, TIMESTAMP_MIN_MS
from cometmq.proto import v2
from cometmq.proto.errors import WireError
from cometmq.store.format.record import Message
from cometmq.tests.broker.desk import Desk, desk, message, parse_received, resource
from cometmq.tests.broker.pull.test_pull import code_of, pull, queue, start_pull

LOW, HIGH = -(1 << 63), (1 << 63) - 1
FIRST_S, LAST_S = TIMESTAMP_MIN_MS // 1000, TIMESTAMP_MAX_MS // 1000
BORN = [
    *((seconds, v2.OK) for seconds in (-1, -100_000, FIRST_S, LAST_S)),
    *((seconds, v2.BAD_REQUEST) for seconds in (LOW, FIRST_S - 1, LAST_S + 1, HIGH // 1000, HIGH)),
]


@pytest.mark.parametrize(("seconds", "code"), BORN)
@pytest.mark.parametrize("users", [{}, {"a": "1"}])
async def test_any_born_time_is_delivered_as_sent_or_refused(
    tmp_path: Path, users: dict[str, str], seconds: int, code: int
) -> None:
    """Without a user property the message takes the fast path of a send."""
    async with desk(tmp_path) as one:
        one.topic("t")
        born = v2.Timestamp(seconds=seconds, nanos=7_000_000)
        answer = await one.send(message("t", properties=users, born_timestamp=born))
        assert answer.status.code == code
        await one.sent("t", b"next")
        got = await one.receive("t", "g")
        assert got.bodies == ([b"body", b"next"] if code == v2.OK else [b"next"])
        if code == v2.OK:
            assert got.messages[0].system_properties.born_timestamp == born
        assert (await pull(one, 0))[:2] == (v2.OK, got.bodies)


@pytest.mark.parametrize(
    ("born_ms", "expected_ms"),
    [
        (-100_000_000, -100_000_000),
        (-1, -1),
        (LOW, TIMESTAMP_MIN_MS),
        (HIGH, TIMESTAMP_MAX_MS),
    ],
)
async def test_a_stored_record_with_any_born_time_is_delivered(
    tmp_path: Path, born_ms: int, expected_ms: int
) -> None:
    """Earlier versions stored such records, and Apache's remoting port does."""
    async with desk(tmp_path) as one:
        one.topic("t")
        properties = b"UNIQ_KEY\x01A\x02TIMER_DELIVER_MS\x01%d\x02" % born_ms
        one.node.sender.append(Message("t", 0, b"old", properties, born_timestamp_ms=born_ms))
        await one.sent("t", b"next")
        got = await one.receive("t", "g")
        assert got.bodies == [b"old", b"next"]
        system = got.messages[0].system_properties
        for time in (system.born_timestamp, system.delivery_timestamp):
            assert time.ToMilliseconds() == expected_ms
        assert (await pull(one, 0))[:2] == (v2.OK, got.bodies)


@pytest.mark.parametrize(
    "properties",
    [
        b"TIMER_DELIVER_MS\x01" + b"9" * 5_000,
        b"DELAY\x01" + b"9" * 5_000,
        b"DELAY\x01-7",
        b"_SYS_MSG_PRIORITY_\x01" + b"9" * 5_000,
        b"_SYS_MSG_PRIORITY_\x01" + b"9" * 19,
    ],
)
async def test_a_stored_record_with_any_number_is_delivered(
    tmp_path: Path, properties: bytes
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        properties = b"UNIQ_KEY\x01A\x02%b\x02" % properties
        one.node.sender.append(Message("t", 0, b"old", properties))
        await one.sent("t", b"next")
        assert (await one.receive("t", "g")).bodies == [b"old", b"next"]


@pytest.mark.parametrize(
    ("seconds", "code"),
    [
        *((seconds, v2.OK) for seconds in (FIRST_S, -1, 0)),
        *((seconds, v2.ILLEGAL_DELIVERY_TIME) for seconds in (LOW, FIRST_S - 1, LAST_S, HIGH)),
    ],
)
async def test_any_delivery_time_is_delivered_as_sent_or_refused(
    tmp_path: Path, seconds: int, code: int
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", message_type=v2.DELAY)
        time = v2.Timestamp(seconds=seconds)
        answer = await one.send(message("t", delivery_timestamp=time))
        assert answer.status.code == code, answer
        await one.dispatched()
        if code == v2.OK:
            (got,) = (await one.receive("t", "g")).messages
            assert got.system_properties.delivery_timestamp == time


@pytest.mark.parametrize("seconds", [LOW, -1, HIGH])
async def test_any_invisible_time_outside_the_limits_is_refused(
    tmp_path: Path, seconds: int
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a")
        (handle,) = (await one.receive("t", "g")).handles
        time = v2.Duration(seconds=seconds)
        change = v2.ChangeInvisibleDurationRequest(
            topic=resource("t"), group=resource("g"), receipt_handle=handle, invisible_duration=time
        )
        answer = one.acks.change_invisible(change, one.context())
        assert answer.status.code == v2.ILLEGAL_INVISIBLE_TIME
        request = one.receive_request("t", "g")
        request.invisible_duration.CopyFrom(time)
        code = code_of(lambda: one.node.receiving.receive(request, one.context()))
        assert code == v2.ILLEGAL_INVISIBLE_TIME


@pytest.mark.parametrize("seconds", [LOW, -1, HIGH])
async def test_any_polling_time_is_clamped(tmp_path: Path, seconds: int) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a")
        request = one.receive_request("t", "g")
        request.long_polling_timeout.seconds = seconds
        answer = one.node.receiving.receive(request, one.context(remaining_ms=300))
        items = answer if isinstance(answer, list) else await answer
        assert parse_received(items).bodies == [b"a"]
        empty = one.node.receiving.receive(request, one.context(remaining_ms=300))
        assert parse_received(empty if isinstance(empty, list) else await empty).bodies == []


async def test_any_offset_is_corrected_or_refused(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        one.group("g")
        await one.sent("t", b"a", b"b")
        assert await pull(one, LOW) == (v2.ILLEGAL_OFFSET, [], 0)
        assert await pull(one, HIGH) == (v2.ILLEGAL_OFFSET, [], 2)
        for offset in (LOW, HIGH):
            update = v2.UpdateOffsetRequest(
                group=resource("g"), message_queue=queue(), offset=offset
            )
            code = code_of(partial(one.pulls.update_offset, update, one.context()))
            assert code == v2.ILLEGAL_OFFSET


@pytest.mark.parametrize(("seconds", "offset"), [(LOW, 0), (-1, 0), (LAST_S, 2), (HIGH, 2)])
async def test_any_time_has_an_offset(tmp_path: Path, seconds: int, offset: int) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a", b"b")
        request = v2.QueryOffsetRequest(message_queue=queue(), query_offset_policy=v2.TIMESTAMP)
        request.timestamp.seconds = seconds
        assert one.pulls.query_offset(request, one.context()).offset == offset


@pytest.mark.parametrize("digits", ["9" * 5_000, "0" * 5_000 + "9" * 20, "-" + "9" * 5_000 + "L"])
async def test_an_integer_of_any_length_in_a_filter_is_refused(tmp_path: Path, digits: str) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        request = one.receive_request("t", "g")
        request.filter_expression.type = v2.SQL
        request.filter_expression.expression = f"a > {digits}"
        with pytest.raises(WireError) as caught:
            one.node.receiving.receive(request, one.context())
        assert caught.value.code == v2.ILLEGAL_FILTER_EXPRESSION


async def test_a_tag_expression_of_16_kib_is_accepted(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a", tag="x")
        tags = "||".join(["x", *("y" * 10 for _ in range(1_300))])
        assert 10 << 10 < len(tags) <= 16 << 10
        assert (await one.receive("t", "g", tag=tags)).bodies == [b"a"]
        with pytest.raises(WireError) as caught:
            start_pull(one, 0, tag="x" * ((16 << 10) + 1))
        assert caught.value.code == v2.ILLEGAL_FILTER_EXPRESSION


def _change(one: Desk, group: str, handle: str) -> int:
    return one.change("t", group, handle, 10_000).status.code


def _forward(one: Desk, group: str, handle: str) -> int:
    request = v2.ForwardMessageToDeadLetterQueueRequest(
        topic=resource("t"), group=resource(group), receipt_handle=handle, message_id="m"
    )
    return code_of(lambda: one.acks.forward_to_dead_letter_queue(request, one.context()))


async def test_only_a_receive_creates_a_group(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a")
        (good,) = (await one.receive("t", "g")).handles
        before = set(one.node.metadata.groups)
        assert "g" in before
        end = one.node.store.log_end
        for handle in ("garbage", good):
            answer = one.ack("t", "unknown", handle, "garbage")
            assert answer.status.code == v2.INVALID_RECEIPT_HANDLE
            codes = [entry.status.code for entry in answer.entries]
            assert codes == [v2.INVALID_RECEIPT_HANDLE] * 2
            assert _change(one, "unknown", handle) == v2.INVALID_RECEIPT_HANDLE
            assert _forward(one, "unknown", handle) == v2.INVALID_RECEIPT_HANDLE
        assert set(one.node.metadata.groups) == before
        assert one.node.store.log_end == end
        assert one.node.pop.existing_core("t", "unknown") is None
        assert one.ack("t", "g", good).status.code == v2.OK


async def test_a_group_whose_record_the_log_refused_acknowledges(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a")
        one.node.metadata.record_groups(lambda group: False)
        (good,) = (await one.receive("t", "g")).handles
        assert one.node.metadata.group("g") is None
        assert one.ack("t", "g", good).status.code == v2.OK
        await one.nothing("t", "g")
