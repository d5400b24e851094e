"""Due messages on a leader: retry topics, dead letters, and redelivery in place without writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cometmq.broker.metadata.tables import Group, Topic
from cometmq.broker.pop.reviver import SLICE
from cometmq.proto import v2
from cometmq.proto.errors import WireError
from cometmq.store.format.properties import decode_properties
from cometmq.store.format.record import Message, decode_delivery
from cometmq.store.format.results import AppendResult, PutStatus
from cometmq.tests.broker.desk import Desk, StoppedClock, desk, message, parse_received
from cometmq.tests.broker.live import settings

V1, V2 = "%RETRY%g_t", "%RETRY%g+t"


async def until(condition: Callable[[], bool]) -> None:
    """Run the loop until a condition holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - a turn a look
            await asyncio.sleep(0)


def in_topic(one: Desk, topic: str) -> int:
    """Return the number of readable messages."""
    return one.node.store.max_offset(topic, 0)


def properties(one: Desk, topic: str, offset: int = 0) -> dict[str, str]:
    """Return a property of a stored message."""
    (stored,) = one.node.store.get(topic, 0, offset, 1).records
    return decode_properties(decode_delivery(stored.data).properties)


async def test_a_due_message_is_copied_and_wakes_a_waiting_poll(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", queues=4)
        await one.sent("t", b"a", tag="x", properties={"k": "v"}, keys=["one"])
        first = await one.receive("t", "g", tag="x")
        poll = one.start_receive("t", "g", tag="x")
        one.advance(30_000)
        (again,) = parse_received(await poll).messages
        assert again.topic.name == "t" and again.body == b"a"
        assert dict(again.user_properties) == {"k": "v"}
        system = again.system_properties
        assert (system.tag, list(system.keys)) == ("x", ["one"])
        assert (system.message_id, system.delivery_attempt) == ("ID-0", 2)
        fields = system.receipt_handle.split(" ")
        assert fields[4:5] + fields[6:8] == ["1", "0", "0"]
        # Done in its queue, in flight in the retry topic.
        queue_id = int(first.handles[0].split(" ")[6])
        assert one.node.offsets.get("t", "g", queue_id) == 1
        assert one.node.offsets.get(V1, "g", 0) == 0
        assert one.node.pop.in_flight(V1, "g", 0) == 1
        late = one.ack("t", "g", first.handles[0])
        assert late.status.code == v2.INVALID_RECEIPT_HANDLE
        assert one.ack("t", "g", system.receipt_handle).status.code == v2.OK
        assert one.node.offsets.get(V1, "g", 0) == 1
        assert properties(one, V1)["ORIGIN_GROUP"] == "g"
        assert properties(one, V1)["1ST_POP_TIME"] == first.handles[0].split(" ")[1]
        topic = one.node.metadata.topic(V1)
        assert topic is not None and (topic.read_queues, topic.write_queues) == (1, 1)


async def test_a_message_stays_in_its_retry_topic_until_its_attempts_are_used_up(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        one.group("g", max_attempts=3)
        await one.sent("t", b"poison")
        for attempt in (1, 2, 3):
            got = await one.receive("t", "g", invisible_ms=10_000)
            assert got.attempts == [attempt]
            one.advance(10_000)
        await until(lambda: in_topic(one, "%DLQ%g") == 1)
        assert in_topic(one, V1) == 2
        (stored,) = one.node.store.get("%DLQ%g", 0, 0, 1).records
        record = decode_delivery(stored.data)
        assert (record.body, record.reconsume_times) == (b"poison", 3)
        found = decode_properties(record.properties)
        assert (found["RETRY_TOPIC"], found["DLQ_ORIGIN_TOPIC"]) == (V1, "t")
        assert (found["DELAY"], found["WAIT"]) == ("0", "false")
        await one.nothing("t", "g")
        assert one.node.offsets.get(V1, "g", 0) == 2


async def test_unacknowledged_dead_letters_are_redelivered_without_limit(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("%DLQ%x")
        one.group("g", max_attempts=1)
        one.node.meta_log.write_topic(Topic("t", 1, 1))
        await one.sent("t", b"a")
        await one.receive("t", "g", invisible_ms=10_000)
        one.advance(10_000)
        await until(lambda: in_topic(one, "%DLQ%g") == 1)
        for attempt in (1, 2, 3):
            got = await one.receive("%DLQ%g", "g", invisible_ms=10_000)
            assert got.attempts == [attempt + 1]
            one.advance(10_000)
        assert in_topic(one, "%DLQ%g") == 1


async def test_both_forms_of_the_retry_topic_are_read(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"old", b"new")
        await one.receive("t", "g", batch=1)
        one.advance(30_000)
        await until(lambda: in_topic(one, V1) == 1)
    async with desk(tmp_path, enable_retry_topic_v2=True) as one:
        one.advance(30_000)
        assert (await one.receive("t", "g", batch=1)).bodies == [b"new"]
        one.advance(30_000)
        await until(lambda: in_topic(one, V2) == 1)
        got = await one.receive("t", "g")
        assert sorted(got.bodies) == [b"new", b"old"]
        assert sorted(handle.split(" ")[4] for handle in got.handles) == ["1", "2"]
        # Each returns to its own group.
        one.advance(30_000)
        await until(lambda: in_topic(one, V1) == in_topic(one, V2) == 2)


async def test_groups_that_share_an_ambiguous_retry_topic_get_their_own_messages(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as one:
        one.topic("b_c")
        one.topic("c")
        await one.sent("b_c", b"one")
        await one.sent("c", b"two")
        await one.receive("b_c", "a")
        await one.receive("c", "a_b")
        polls = [one.start_receive("b_c", "a"), one.start_receive("c", "a_b")]
        one.advance(30_000)
        assert [parse_received(await poll).bodies for poll in polls] == [[b"one"], [b"two"]]
        assert in_topic(one, "%RETRY%a_b_c") == 2
        await one.nothing("b_c", "a")
        await one.nothing("c", "a_b")


async def test_many_messages_due_at_once_are_copied_in_slices(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        count = 5 * SLICE + 3
        await one.sent("t", *[b"%d" % n for n in range(count)])
        while (await one.receive("t", "g")).code == v2.OK:
            if one.node.pop.in_flight("t", "g", 0) == count:
                break
        appended = []
        keep = one.node.sender.append_internal

        def append(messages: list[Message]) -> list[AppendResult]:
            if messages[0].topic == V1:
                appended.append(len(messages))
            return keep(messages)

        one.node.sender.append_internal = append  # type: ignore[method-assign]
        one.advance(30_000)
        await until(lambda: in_topic(one, V1) == count)
        assert appended == [*[SLICE] * 5, 3]
        assert one.node.pop.reviver.revived["t", "g"] == count
        assert one.node.offsets.get("t", "g", 0) == count


async def test_the_offset_passes_a_copied_message_once_the_copy_is_durable(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    slow = replace(chosen.store, flush_disk_type="SYNC_FLUSH")
    async with desk(tmp_path, replace(chosen, store=slow)) as one:
        one.topic("t")
        await one.sent("t", b"a")
        await one.receive("t", "g")
        waits: list[Callable[[PutStatus], None]] = []

        def wait(end: int, done: Callable[[PutStatus], None], requests: int = 1) -> None:
            waits.append(done)

        one.node.durability.wait = wait  # type: ignore[method-assign]
        one.advance(30_000)
        await until(lambda: bool(waits))
        assert one.node.offsets.get("t", "g", 0) == 0
        waits[0](PutStatus.PUT_OK)
        assert one.node.offsets.get("t", "g", 0) == 1


async def test_messages_are_redelivered_in_place_while_the_log_is_not_writable(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a")
        await one.receive("t", "g")
        one.node.replication.write_refusal = lambda: "too few replicas"  # type: ignore[method-assign]
        poll = one.start_receive("t", "g")
        one.advance(30_000)
        again = parse_received(await poll)
        assert (again.bodies, again.attempts) == ([b"a"], [2])
        assert again.handles[0].split(" ")[4] == "0"
        one.node.replication.write_refusal = lambda: None  # type: ignore[method-assign]
        poll = one.start_receive("t", "g")
        one.advance(30_000)
        third = parse_received(await poll)
        assert (third.bodies, third.attempts) == ([b"a"], [3])
        assert in_topic(one, V1) == 1


async def test_a_message_whose_copy_is_refused_is_redelivered_in_place_and_copied_later(
    tmp_path: Path,
) -> None:
    def refuse(topic: Topic) -> int:
        raise WireError(v2.INTERNAL_SERVER_ERROR, f"no room for {topic.name}")

    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a")
        await one.receive("t", "g")
        write = one.node.meta_log.write_topic
        one.node.meta_log.write_topic = refuse  # type: ignore[method-assign]
        poll = one.start_receive("t", "g")
        one.advance(30_000)
        assert parse_received(await poll).attempts == [2]
        one.node.meta_log.write_topic = write  # type: ignore[method-assign]
        poll = one.start_receive("t", "g")
        one.advance(30_000)
        assert parse_received(await poll).attempts == [3]
        assert in_topic(one, V1) == 1


async def test_after_three_hours_the_groups_retry_policy_hides_a_message_once_more(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path, clock=StoppedClock()) as one:
        one.topic("t")
        await one.sent("t", b"a")
        got = await one.receive("t", "g", auto_renew=True)
        for _ in range(3 * 60):
            one.advance(60_000)
            one.node.clients.seen(one.context(), one.node.runtime.clock.steady_ns())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await one.nothing("t", "g")
        # The broker's first delay is 10 s.
        one.advance(9_000)
        await one.nothing("t", "g")
        poll = one.start_receive("t", "g")
        one.advance(2_000)
        assert parse_received(await poll).attempts == [2]
        late = one.ack("t", "g", got.handles[0])
        assert late.status.code == v2.INVALID_RECEIPT_HANDLE


async def test_a_disabled_group_receives_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a")
        got = await one.receive("t", "g")
        poll = one.start_receive("t", "g")
        one.node.meta_log.write_group(Group("g", consume_enable=False))
        assert (await one.receive("t", "g")).code == v2.INTERNAL_SERVER_ERROR
        await one.sent("t", b"b")
        assert parse_received(await poll).code == v2.INTERNAL_SERVER_ERROR
        # Messages already received can be acknowledged.
        assert one.ack("t", "g", got.handles[0]).status.code == v2.OK
        one.node.meta_log.write_group(Group("g"))
        assert (await one.receive("t", "g")).bodies == [b"b"]


async def test_higher_priorities_are_delivered_first(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", queues=4, message_type=v2.PRIORITY)
        for priority in (0, 3, 1, 2, 3):
            await one.send(
                message(
                    "t",
                    b"%d" % priority,
                    priority=priority,
                    message_type=v2.PRIORITY,
                )
            )
        await one.dispatched()
        assert (await one.receive("t", "g")).bodies == [b"3", b"3", b"2", b"1", b"0"]
        # Retries come after all new messages.
        one.advance(30_000)
        await until(lambda: in_topic(one, V1) == 5)
        await one.send(message("t", b"0", priority=0, message_type=v2.PRIORITY))
        await one.dispatched()
        assert (await one.receive("t", "g")).bodies[0] == b"0"
        # Without the factor the queues rotate.
        one.node.meta_log.write_group(Group("h", attributes={"priority.factor": "0"}))
        first = [(await one.receive("t", "h", batch=1)).bodies[0] for _ in range(4)]
        assert first != [b"3", b"3", b"2", b"1"]


async def test_a_deleted_topic_or_group_ends_its_polls(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        one.topic("u")
        await one.sent("t", b"a")
        await one.receive("t", "g")
        polls = [one.start_receive(topic, "g") for topic in ("t", "u")]
        one.node.pop.forget(topic="t")
        assert parse_received(await polls[0]).code == v2.MESSAGE_NOT_FOUND
        assert not polls[1].done()
        assert one.node.pop.in_flight("t", "g", 0) == 0
        one.node.pop.forget(group="g")
        assert parse_received(await polls[1]).code == v2.MESSAGE_NOT_FOUND
