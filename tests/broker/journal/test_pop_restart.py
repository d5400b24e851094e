"""Pop state after a crash, a stop and a dead leader: done messages stay done, messages in flight
stay hidden.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from cometmq.broker.assembly.parts import Broker
from cometmq.broker.journal.revive_codec import REVIVE_GROUP
from cometmq.broker.journal.service import JournalService
from cometmq.broker.journal.writer import FLUSH_S
from cometmq.proto import paths, v1, v2
from cometmq.store.timer.rules import TIMER_TOPIC
from cometmq.tests.broker.broker_process import BrokerProcess
from cometmq.tests.broker.desk import Desk, desk
from cometmq.tests.broker.live import create_topic, follower_of, running, settings, until
from cometmq.tests.broker.transacting import advance
from cometmq.tests.harness.wire import Wire, normal_message, receive_request

#: Batches and offsets are written at the next flush.
EAGER = {"pop_ck_stay_buffer_time": 1, "flush_consumer_offset_interval": 50}


async def stored(wire: Wire, topic: str) -> int:
    """Return the number of records of the topic."""
    answer = await wire.call(
        paths.DESCRIBE_TOPIC, v1.DescribeTopicRequest(name=topic), v1.DescribeTopicResponse
    )
    return sum(queue.max_offset for queue in answer.queues)


async def some(wire: Wire, count: int, invisible_s: int = 60) -> list[Any]:
    """Receive until there are `count` messages."""
    got: list[Any] = []
    request = receive_request("t", "g", await_s=5)
    request.invisible_duration.seconds = invisible_s
    while len(got) < count:
        code, messages = await wire.receive(request, within_s=15)
        assert code == v2.OK, f"{len(got)} of {count}"
        got += messages
    return got


async def nothing(wire: Wire) -> None:
    """Check that no message is available now."""
    code, messages = await wire.receive_now(receive_request("t", "g"))
    assert (code, messages) == (v2.MESSAGE_NOT_FOUND, [])


def numbers(messages: list[Any]) -> list[int]:
    """Return the numbers of the messages, in order."""
    return sorted(int(message.body) for message in messages)


def attempts(messages: list[Any]) -> set[int]:
    """Return their delivery attempts."""
    return {message.system_properties.delivery_attempt for message in messages}


async def reached(wire: Wire, topic: str, count: int) -> None:
    """Wait until the topic has `count` records."""
    for _ in range(500):
        if await stored(wire, topic) >= count:
            return
        await asyncio.sleep(FLUSH_S / 10)
    raise AssertionError(f"{topic} has {await stored(wire, topic)} of {count} records")


async def test_after_a_kill_only_messages_in_flight_come_back(tmp_path: Path) -> None:
    async with BrokerProcess(tmp_path, **EAGER) as broker, broker.client() as wire:
        await create_topic(wire, "t", queues=1)
        await wire.send([normal_message("t", f"id{n}", b"%d" % n) for n in range(10)])
        got = await some(wire, 10, invisible_s=300)
        await reached(wire, TIMER_TOPIC, 1)
        await wire.ack("t", "g", [got[n] for n in (1, 3, 5)])
        change = v2.ChangeInvisibleDurationRequest(
            group=v2.Resource(name="g"),
            topic=v2.Resource(name="t"),
            receipt_handle=got[7].system_properties.receipt_handle,
        )
        change.invisible_duration.FromSeconds(900)
        await wire.call(paths.CHANGE_INVISIBLE_DURATION, change, v2.ChangeInvisibleDurationResponse)
        # One more checkpoint, and the acks of two old ones in one record.
        await reached(wire, TIMER_TOPIC, 3)
        await broker.kill()
    async with BrokerProcess(tmp_path, **EAGER) as broker, broker.client() as wire:
        await nothing(wire)
        answer = await wire.ack("t", "g", [got[2]])
        assert answer.status.code == v2.OK, "a handle from before the crash is good"
        await advance(wire, 200_000)
        await nothing(wire)
        await advance(wire, 100_000)
        again = await some(wire, 5, invisible_s=300)
        assert numbers(again) == [0, 4, 6, 8, 9]
        assert attempts(again) == {2}
        await wire.ack("t", "g", again)
        await nothing(wire)
        await advance(wire, 600_000)
        last = await some(wire, 1)
        assert (numbers(last), attempts(last)) == ([7], {2})


async def test_recent_acknowledgements_survive_a_kill(tmp_path: Path) -> None:
    """The offset on disk is older than the acks: the log has them."""
    slow = {**EAGER, "flush_consumer_offset_interval": 3_600_000}
    async with BrokerProcess(tmp_path, **slow) as broker, broker.client() as wire:
        await create_topic(wire, "t", queues=1)
        await wire.send([normal_message("t", f"id{n}", b"%d" % n) for n in range(6)])
        got = await some(wire, 6, invisible_s=300)
        await reached(wire, TIMER_TOPIC, 1)
        await wire.ack("t", "g", got[:4])
        await reached(wire, TIMER_TOPIC, 2)
        await broker.kill()
    async with BrokerProcess(tmp_path, **slow) as broker, broker.client() as wire:
        await nothing(wire)
        await advance(wire, 300_000)
        assert numbers(await some(wire, 2)) == [4, 5]


def journal(node: Broker) -> JournalService:
    """Return the broker's journal."""
    return node.journal


async def test_a_clean_restart_repeats_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", *(b"%d" % n for n in range(8)))
        got = await one.receive("t", "g", invisible_ms=300_000)
        one.ack("t", "g", *got.handles[:2])
    async with desk(tmp_path) as one:
        core = journal(one.node).core
        assert core.open_count == 6
        await one.nothing("t", "g")
        assert one.ack("t", "g", *got.handles[2:4]).status.code == v2.OK
        one.advance(300_000)
        back = await one.receive("t", "g")
        assert sorted(back.bodies) == [b"4", b"5", b"6", b"7"]
        assert back.attempts == [2] * 4
        one.ack("t", "g", *back.handles)
    async with desk(tmp_path) as one:
        one.advance(300_000)
        await one.nothing("t", "g")
        assert not journal(one.node).core.open_count


async def test_quickly_acknowledged_batches_are_not_written(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        for n in range(20):
            await one.sent("t", b"%d" % n)
            got = await one.receive("t", "g")
            one.ack("t", "g", *got.handles)
        one.advance(2_000)
        await until(lambda: not journal(one.node).core.waiting)
        assert one.node.store.writer.next_offset(TIMER_TOPIC, 0) == 0
        assert one.node.offsets.get("t", "g", 0) == 20


async def test_the_offset_passes_only_journalled_messages(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", *(b"%d" % n for n in range(4)))
        got = await one.receive("t", "g")
        one.ack("t", "g", got.handles[0])
        assert one.node.offsets.get("t", "g", 0) == 1
        one.advance(1_000)
        await until(lambda: one.node.offsets.get("t", "g", 0) == 4)
        assert one.node.pop.in_flight("t", "g", 0) == 3


def marks(one: Desk) -> dict[str, int]:
    """Return the offsets of the revive group."""
    return {topic: offset for topic, group, _, offset in one.node.offsets if group == REVIVE_GROUP}


async def test_the_bookmarks_follow_settled_records(tmp_path: Path) -> None:
    async with desk(tmp_path, revive_queue_num=1) as one:
        core = journal(one.node).core
        one.topic("t")
        await one.sent("t", b"a", b"b")
        got = await one.receive("t", "g", invisible_ms=20_000)
        one.advance(1_000)
        await until(lambda: not core.waiting)
        await until(lambda: marks(one) == {})
        one.ack("t", "g", got.handles[0])
        await until(lambda: one.node.store.max_offset(TIMER_TOPIC, 0) == 2)
        # The second comes back: its checkpoint arrives in the revive topic, then it is settled.
        one.advance(20_000)
        back = await one.receive("t", "g")
        assert (back.bodies, back.attempts) == ([b"b"], [2])
        one.ack("t", "g", *back.handles)
        topic = journal(one.node).topic
        end = one.node.store.max_offset
        await until(lambda: core.open_count == 0 and not core.waiting)
        await until(lambda: marks(one).get(TIMER_TOPIC) == end(TIMER_TOPIC, 0))
        assert marks(one).get(topic, 0) == end(topic, 0)
        core.validate()


async def test_deleting_a_topic_removes_its_messages_in_flight(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a", b"b")
        await one.receive("t", "g", invisible_ms=20_000)
        one.advance(1_000)
        core = journal(one.node).core
        await until(lambda: not core.waiting)
        one.node.offsets.forget_topic("t")
        assert core.open_count == 0


async def test_a_follower_redelivers_while_the_leader_is_dead(tmp_path: Path) -> None:
    first = settings(tmp_path / "a", **EAGER)
    async with running(first) as leader:
        chosen = follower_of(leader.bound, tmp_path / "b", **EAGER)
        async with running(chosen) as follower, follower.client() as wire:
            async with leader.client() as own:
                await create_topic(own, "t", queues=1)
                await own.send([normal_message("t", f"id{n}", b"%d" % n) for n in range(6)])
                got = await some(own, 6, invisible_s=300)
                node = leader.node
                await until(lambda: node.store.max_offset(TIMER_TOPIC, 0) == 1)
                await own.ack("t", "g", got[:2])
                await until(lambda: node.store.max_offset(TIMER_TOPIC, 0) == 2)
            await until(lambda: follower.node.offsets.get("t", "g", 0) == 6)
            await until(lambda: journal(follower.node).core.open_count == 4)
            await leader.server.stop(0.2)
            await until(lambda: not follower.node.replication.leader_alive)
            await nothing(wire)
            await wire.ack("t", "g", [got[2]])
            follower.node.runtime.clock.advance_wall_ms(300_000)
            follower.node.pop.clock_moved()
            again = await some(wire, 3)
            assert (numbers(again), attempts(again)) == ([3, 4, 5], {2})


async def test_offsets_are_applied_after_the_log_on_which_they_rely(tmp_path: Path) -> None:
    async with running(settings(tmp_path / "a")) as leader:
        chosen = follower_of(leader.bound, tmp_path / "b")
        async with running(replace(chosen)) as follower:
            end = follower.node.store.log_end
            ahead = v1.Offsets(log_end=end + 1)
            ahead.entries.add(group="g", topic="t", offset=5)
            follower.node.maintenance.offsets_apply(ahead.SerializeToString())
            assert follower.node.offsets.get("t", "g", 0) is None
            async with leader.client() as wire:
                await create_topic(wire, "t", queues=1)
            await until(lambda: follower.node.offsets.get("t", "g", 0) == 5)


async def test_a_group_that_becomes_orderly_starts_at_its_first_open_message(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        one.group("g")
        await one.sent("t", *(b"%d" % n for n in range(4)))
        got = await one.receive("t", "g")
        one.ack("t", "g", got.handles[0], got.handles[2])
        one.advance(1_000)
        await until(lambda: one.node.offsets.get("t", "g", 0) == 4)
        one.group("g", orderly=True)
    async with desk(tmp_path) as one:
        assert one.node.offsets.get("t", "g", 0) == 1
        assert (await one.receive("t", "g")).bodies == [b"1", b"2", b"3"]


async def test_a_reset_is_not_undone_by_older_acknowledgements(tmp_path: Path) -> None:
    """They are in the log, after the offset to which the group was reset."""
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", *(b"%d" % n for n in range(4)))
        got = await one.receive("t", "g")
        one.advance(1_000)
        core = journal(one.node).core
        await until(lambda: not core.waiting)
        one.ack("t", "g", *got.handles)
        await until(lambda: not core.waiting)
        one.node.pop.rewind("t", "g", 0, 1)
        one.node.offsets.commit("t", "g", 0, 1)
    async with desk(tmp_path) as one:
        assert (await one.receive("t", "g")).bodies == [b"1", b"2", b"3"]


async def test_a_replica_that_leads_again_restores_state_from_the_log(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", *(b"%d" % n for n in range(4)))
        got = await one.receive("t", "g", invisible_ms=300_000)
        own = journal(one.node)
        own.flush_all()
        one.ack("t", "g", got.handles[0])
        own.flush_all()
        await one.dispatched()
        own.follow()
        one.ack("t", "g", got.handles[1])
        await until(lambda: own.core.open_count == 3)
        own.lead(one.node.pop.core)
        own.core.validate()
        assert sorted(own.core.book("t", "g", 0).open) == [1, 2, 3]
        assert one.ack("t", "g", got.handles[2]).status.code == v2.OK
        assert own.core.open_count == 2
