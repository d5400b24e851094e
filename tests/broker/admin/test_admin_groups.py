"""Consumer groups on a real broker: create, alter, delete, describe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cometmq.broker.metadata.tables import DEFAULT_BACKOFF_MS, is_system_topic
from cometmq.proto import paths, v1, v2
from cometmq.store.format.record import Message
from cometmq.tests.broker.desk import Desk, desk, message
from cometmq.tests.broker.live import create_group, running, settings, until
from cometmq.tests.harness.wire import Wire


async def delete(wire: Wire, name: str, **fields: Any) -> v1.DeleteGroupResponse:
    request = v1.DeleteGroupRequest(name=name, **fields)
    answer: v1.DeleteGroupResponse = await wire.call(
        paths.DELETE_GROUP, request, v1.DeleteGroupResponse
    )
    return answer


async def describe(wire: Wire, name: str, topic: str = "") -> v1.DescribeGroupResponse:
    request = v1.DescribeGroupRequest(name=name, topic=topic)
    answer: v1.DescribeGroupResponse = await wire.call(
        paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse
    )
    return answer


async def listed(wire: Wire) -> dict[str, v1.GroupProgress]:
    answer = await wire.call(paths.LIST_GROUPS, v1.ListGroupsRequest(), v1.ListGroupsResponse)
    names = [group.name for group in answer.groups]
    return dict(zip(names, answer.progress, strict=True))


async def test_omitted_fields_keep_their_values(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        made = await create_group(
            wire,
            "g",
            orderly=True,
            max_attempts=3,
            consume_enable=False,
            attributes=["+priority.factor=10"],
            retry=v1.GroupRetry(delays_ms=[1_000, 2_000]),
        )
        assert (made.code, made.created) == (v2.OK, True)
        again = await create_group(wire, "g")
        assert (again.created, again.altered) == (False, False)
        assert again.group == made.group
        looked = await create_group(wire, "g", orderly=False, dry_run=True)
        assert (looked.altered, looked.group.orderly) == (True, False)
        known = live.node.metadata.groups["g"]
        assert (known.orderly, known.backoff_ms()) == (True, (1_000, 2_000))
        altered = await create_group(wire, "g", orderly=False, consume_enable=True)
        assert (altered.altered, altered.group.max_attempts) == (True, 3)
        assert dict(altered.group.attributes) == {"priority.factor": "10"}


async def test_a_retry_policy_can_be_set_and_removed(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        groups = live.node.metadata.groups
        await create_group(wire, "g")
        assert groups["g"].backoff_ms() == DEFAULT_BACKOFF_MS
        curve = v1.GroupRetry(initial_ms=100, max_ms=1_000, multiplier=3)
        await create_group(wire, "g", retry=curve)
        assert groups["g"].backoff_ms()[:4] == (100, 300, 900, 1_000)
        await create_group(wire, "g", retry=v1.GroupRetry(delays_ms=[7]))
        assert groups["g"].backoff_ms() == (7,)
    async with running(settings(tmp_path)) as live, live.client() as wire:
        assert live.node.metadata.groups["g"].backoff_ms() == (7,)
        await create_group(wire, "g", retry=v1.GroupRetry())
        assert live.node.metadata.groups["g"].backoff_ms() == DEFAULT_BACKOFF_MS


async def test_invalid_requests_are_refused(tmp_path: Path) -> None:
    bad: list[tuple[dict[str, Any], int]] = [
        ({"name": "u", "must_exist": True}, v2.CONSUMER_GROUP_NOT_FOUND),
        ({"name": "CID_RMQ_SYS_REVIVE_GROUP"}, v2.ILLEGAL_CONSUMER_GROUP),
        ({"name": "x" * 121}, v2.ILLEGAL_CONSUMER_GROUP),
        ({"name": "g", "max_attempts": 1_001}, v2.BAD_REQUEST),
        ({"name": "g", "retry_queues": -1}, v2.BAD_REQUEST),
        ({"name": "g", "attributes": ["+message.type=FIFO"]}, v2.BAD_REQUEST),
        ({"name": "g", "retry": v1.GroupRetry(delays_ms=[0])}, v2.BAD_REQUEST),
        ({"name": "g", "retry": v1.GroupRetry(delays_ms=[43_200_001])}, v2.BAD_REQUEST),
        ({"name": "g", "retry": v1.GroupRetry(delays_ms=[1] * 101)}, v2.BAD_REQUEST),
        (
            {"name": "g", "retry": v1.GroupRetry(initial_ms=2, max_ms=1, multiplier=2)},
            v2.BAD_REQUEST,
        ),
        (
            {"name": "g", "retry": v1.GroupRetry(initial_ms=1, max_ms=2, multiplier=1.5)},
            v2.BAD_REQUEST,
        ),
    ]
    async with running(settings(tmp_path)) as live, live.client() as wire:
        made = await create_group(wire, "g")
        for fields, code in bad:
            answer = await create_group(wire, **fields)
            assert answer.code == code, (fields, answer)
        assert (await create_group(wire, "g")).group == made.group
        assert (await delete(wire, "unknown")).code == v2.CONSUMER_GROUP_NOT_FOUND
        assert (await delete(wire, "TOOLS_CONSUMER")).code == v2.ILLEGAL_CONSUMER_GROUP


async def test_a_group_becomes_ordered_only_when_no_message_waits_for_a_retry(
    tmp_path: Path,
) -> None:
    """A FIFO group reads no retry topic: the message would wait where nobody looks."""
    async with desk(tmp_path) as one, one.live.client() as wire:
        await _consumed_in_part(one)
        refused = await create_group(wire, "g", orderly=True)
        assert refused.code == v2.FORBIDDEN
        assert "1 messages of group g wait for a retry" in refused.message
        assert not one.node.metadata.groups["g"].orderly
        one.advance(60_001)
        got = await one.receive("t", "g")
        assert b"b" in got.bodies
        one.ack("t", "g", *got.handles)
        while (await describe(wire, "g")).progress.retries:
            got = await one.receive("t", "g")
            one.ack("t", "g", *got.handles)
        one.topic("%RETRY%g")
        retry = {"DELAY": "1", "RETRY_TOPIC": "t"}  # of a classic client
        one.node.sender.append(one.node.delayed.record(Message("%RETRY%g", 0, b"x"), retry))
        await one.dispatched()
        assert (await create_group(wire, "g", orderly=True)).code == v2.FORBIDDEN
        one.node.meta_log.delete_topic("%RETRY%g")
        assert (await create_group(wire, "g", orderly=True)).altered


async def test_describe_counts_lag_in_flight_retries_and_dead_letters(tmp_path: Path) -> None:
    async with desk(tmp_path) as one, one.live.client() as wire:
        await _consumed_in_part(one)
        described = await describe(wire, "g")
        progress = described.progress
        assert (progress.lag, progress.in_flight) == (described.lag, described.in_flight) == (4, 1)
        assert (progress.retries, progress.dead_letters) == (1, 1)
        rows = {(row.topic, row.retry): row for row in described.queues}
        assert rows["t", False].lag == 3
        assert rows["%RETRY%g_t", True].lag == 1
        assert (await listed(wire))["g"] == progress
        only = await describe(wire, "g", "t")
        assert {row.topic for row in only.queues} == {"t", "%RETRY%g_t"}
        assert not (await describe(wire, "g", "nothing")).queues
    async with desk(tmp_path) as one, one.live.client() as wire:
        after = (await describe(wire, "g")).progress
        assert (after.lag, after.retries, after.dead_letters) == (4, 1, 1)


async def test_a_deletion_removes_offsets_retries_and_dead_letters(tmp_path: Path) -> None:
    async with desk(tmp_path) as one, one.live.client() as wire:
        await _consumed_in_part(one)
        one.node.clients.forget("c@1")  # it has left
        plan = await delete(wire, "g", dry_run=True)
        assert list(plan.topics) == ["%DLQ%g", "%RETRY%g_t"]
        assert (plan.messages, plan.in_flight, plan.clients) == (2, 1, 0)
        refused = await delete(wire, "g")
        assert (refused.code, "accept the loss" in refused.message) == (v2.FORBIDDEN, True)
        assert (await delete(wire, "g", accept_loss=True)).code == v2.OK
        assert [name for name in one.node.metadata.topics if not is_system_topic(name)] == ["t"]
        assert one.node.offsets.get("t", "g", 0) is None
        assert (await describe(wire, "g")).code == v2.CONSUMER_GROUP_NOT_FOUND
        # A new group of the same name starts at the first message.
        got = await one.receive("t", "g")
        assert (len(got.bodies), set(got.attempts)) == (6, {1})


async def test_queues_that_were_never_received_from_count(tmp_path: Path) -> None:
    async with desk(tmp_path) as one, one.live.client() as wire:
        one.topic("t")
        one.group("g")
        await one.sent("t", b"a", b"b")
        got = await one.receive("t", "g", batch=1)
        one.ack("t", "g", *got.handles)
        one.topic("t", queues=8)  # no receive of the group has reached the new queues
        await one.sent("t", *(b"x",) * 16)
        assert (await listed(wire))["g"].lag == 17
        described = await describe(wire, "g")
        assert described.progress.lag == 17
        assert [row.queue_id for row in described.queues] == list(range(8))
        assert sum(row.lag for row in described.queues) == 17
        plan = await delete(wire, "g", dry_run=True)
        assert plan.offsets == ["t"]


async def test_a_deletion_can_keep_offsets(tmp_path: Path) -> None:
    async with desk(tmp_path) as one, one.live.client() as wire:
        one.topic("t")
        one.group("g")
        await one.sent("t", b"a", b"b")
        got = await one.receive("t", "g", batch=1)
        one.ack("t", "g", *got.handles)
        one.node.clients.forget("c@1")  # it has left
        plan = await delete(wire, "g", keep_offsets=True)
        assert (plan.code, list(plan.offsets)) == (v2.OK, [])
        assert (await one.receive("t", "g")).bodies == [b"b"]


async def test_messages_in_flight_are_redelivered_after_a_deletion_that_keeps_offsets(
    tmp_path: Path,
) -> None:
    """The consumer offset passes messages that are in the journal; deleting the group deletes the
    journal.
    """
    async with desk(tmp_path) as one, one.live.client() as wire:
        one.topic("t")
        one.group("g")
        await one.sent("t", b"a", b"b", b"c")
        got = await one.receive("t", "g", batch=2, invisible_ms=60_000)
        one.ack("t", "g", got.handles[0])
        one.advance(5_000)
        await until(lambda: one.node.offsets.get("t", "g", 0) == 2)
        assert (await describe(wire, "g")).lag == 2
        one.node.clients.forget("c@1")  # it has left
        assert (await delete(wire, "g", keep_offsets=True)).code == v2.OK
        assert (await one.receive("t", "g")).bodies == [b"b", b"c"]


async def _consumed_in_part(one: Desk) -> None:
    """Of six messages of `t` one is dead, one waits for a retry, one is in flight, one is
    consumed.
    """
    one.topic("t")
    one.group("g", max_attempts=1)
    for body in (b"a", b"b", b"c", b"d", b"e", b"f"):
        await one.send(message("t", body))
    await one.dispatched()
    await one.receive("t", "g", batch=1, invisible_ms=10_000)
    one.advance(10_001)
    await until(lambda: one.node.metadata.topic("%DLQ%g"))
    one.group("g")
    got = await one.receive("t", "g", batch=3, invisible_ms=10_000)
    assert got.bodies == [b"b", b"c", b"d"]
    assert one.change("t", "g", got.handles[1], 60_000).status.code == v2.OK
    assert one.ack("t", "g", got.handles[2]).status.code == v2.OK
    one.advance(10_001)
    await until(lambda: one.node.metadata.topic("%RETRY%g_t"))
    await one.dispatched()
