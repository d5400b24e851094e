"""What holds after a restart holds at the next leader, also if its clock is hours behind."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.messages.validation import MIXED
from cometmq.broker.names.lite import queue_of
from cometmq.proto import paths, v1, v2
from cometmq.store.format.record import Message
from cometmq.tests.broker.admin.test_admin_groups import delete as delete_group
from cometmq.tests.broker.delay.test_recall import recall, send
from cometmq.tests.broker.delay.test_recalled_numbers import all_are, numbers
from cometmq.tests.broker.desk import Desk, message
from cometmq.tests.broker.failing_over import GROUP, HOUR, PLACES, SECOND, TOPIC, Row, check
from cometmq.tests.broker.lite.test_lite_resets import EARLIEST, consumed, reset
from cometmq.tests.broker.lite_desk import ALL, PARENT, Lite
from cometmq.tests.broker.live import create_group, until
from cometmq.tests.broker.metadata.test_incarnations import pulled
from cometmq.tests.broker.timing import arrives, stored
from cometmq.tests.broker.transacting import end_transaction

AHEAD = 8 * HOUR


async def got(k: Desk, topic: str = TOPIC, **fields: Any) -> list[bytes]:
    """Return the bodies of a receive that does not wait long."""
    return (await k.receive(topic, GROUP, k.context(remaining_ms=1000), **fields)).bodies


# -- the clock ------------------------------------------------------------------------------------


async def in_flight(k: Desk) -> None:
    k.topic(TOPIC)
    k.group(GROUP)
    await k.sent(TOPIC, b"1")
    assert await got(k, invisible_ms=20 * SECOND) == [b"1"]
    k.advance(2 * SECOND)  # its checkpoint is in the log
    await until(lambda: k.node.offsets.get(TOPIC, GROUP, 0) == 1)


async def visible_in_its_own_time(k: Desk, _: Any) -> None:
    k.advance(21 * SECOND)
    assert await got(k) == [b"1"]


async def level(k: Desk) -> None:
    k.topic(TOPIC, message_type=MIXED)
    k.node.sender.append(k.node.delayed.record(Message(TOPIC, 0, b"level"), {"DELAY": "3"}))
    await k.sent(TOPIC, b"ahead")


async def due_after_its_own_time(k: Desk, _: Any) -> None:
    await k.sent(TOPIC, b"after")
    times = [one.store_timestamp_ms for one in stored(k)]
    now_ms = k.node.runtime.clock.wall_ms()
    assert times[1] <= now_ms, "store times follow the clock"
    k.advance(11 * SECOND)
    await until(lambda: b"level" in [one.body for one in stored(k)])


async def timers(k: Desk) -> int:
    k.topic(TOPIC, message_type=v2.DELAY)
    now_ms = k.node.runtime.clock.wall_ms()
    for n in range(5):
        await send(k, b"%d" % n, now_ms + HOUR + n, f"M{n}")
    return now_ms


async def a_new_timer_does_not_wait_behind_them(k: Desk, then_ms: int) -> None:
    now_ms = k.node.runtime.clock.wall_ms()
    await send(k, b"soon", now_ms + 5 * SECOND, "soon")
    k.advance(6 * SECOND)
    await until(lambda: [one.body for one in stored(k)] == [b"soon"])
    k.advance(then_ms + HOUR + SECOND - k.node.runtime.clock.wall_ms())
    await until(lambda: len(stored(k)) == 6)


async def locked(k: Desk) -> None:
    k.topic(TOPIC, message_type=v2.FIFO)
    k.group(GROUP, orderly=True, max_attempts=3)
    for n in range(4):
        await k.sent(TOPIC, b"%d" % n, message_type=v2.FIFO, message_group="one")
    answer = await k.receive(TOPIC, GROUP, invisible_ms=20 * SECOND)
    assert len(answer.bodies) == 4
    k.ack(TOPIC, GROUP, *answer.handles[1:])


async def only_what_is_not_acknowledged_dies(k: Desk, _: Any) -> None:
    """Acknowledgements of the first leader may be lost, those of the next one are not."""
    for _attempt in range(3):
        k.advance(31 * SECOND)
        answer = await k.receive(TOPIC, GROUP, k.context(remaining_ms=1000))
        rest = [h for b, h in zip(answer.bodies, answer.handles, strict=True) if b != b"0"]
        if rest:
            k.ack(TOPIC, GROUP, *rest)
    k.advance(40 * SECOND)
    await k.nothing(TOPIC, GROUP)
    await until(lambda: [one.body for one in stored(k, "%DLQ%g")] == [b"0"])
    async with k.live.client("admin") as wire:
        request = v1.DescribeGroupRequest(name=GROUP)
        answer = await wire.call(paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse)
        assert isinstance(answer, v1.DescribeGroupResponse)
        assert answer.in_flight == 0


# -- what is deleted, recalled, changed -----------------------------------------------------------


async def recalled(k: Desk) -> int:
    k.topic(TOPIC, message_type=v2.DELAY)
    due_ms = k.node.runtime.clock.wall_ms() + HOUR
    handle = await send(k, b"recalled", due_ms, "M")
    await send(k, b"kept", due_ms, "M")
    assert (await recall(k, handle)).status.code == v2.OK
    return due_ms


async def the_other_one_arrives(k: Desk, due_ms: int) -> None:
    await k.node.timers.settle()
    assert k.node.timers.waiting(TOPIC) == 1
    await send(k, b"again", due_ms, "M")
    k.advance(due_ms + SECOND - k.node.runtime.clock.wall_ms())
    await until(lambda: len(stored(k)) == 2)
    assert sorted(one.body for one in stored(k)) == [b"again", b"kept"]


async def successor(k: Desk) -> str:
    k.topic(TOPIC, message_type=MIXED)
    due_ms = k.node.runtime.clock.wall_ms() + HOUR
    await send(k, b"old timer", due_ms, "M")
    k.node.sender.append(k.node.delayed.record(Message(TOPIC, 0, b"old level"), {"DELAY": "17"}))
    answer = await k.send(message(TOPIC, b"old half", "H", message_type=v2.TRANSACTION))
    await k.dispatched()
    k.node.meta_log.delete_topic(TOPIC)
    k.topic(TOPIC, message_type=MIXED)
    return answer.entries[0].transaction_id


async def nothing_old_arrives(k: Desk, transaction: str) -> None:
    async with k.live.client("admin") as wire:
        request = v1.DeleteTopicRequest(name=TOPIC, dry_run=True)
        plan = await wire.call(paths.DELETE_TOPIC, request, v1.DeleteTopicResponse)
        assert isinstance(plan, v1.DeleteTopicResponse)
        assert plan.messages == 0
    code = await end_transaction(k, TOPIC, transaction)
    assert code == v2.INVALID_TRANSACTION_ID
    k.advance(AHEAD + 3 * HOUR)
    await until(lambda: k.node.timers.stats.without_topic == 1)
    await k.sent(TOPIC, b"new")
    assert [one.body for one in stored(k)] == [b"new"]


async def deleted(k: Desk) -> None:
    k.topic(TOPIC)
    await k.sent(TOPIC, b"1")
    assert await got(k) == [b"1"]
    async with k.live.client() as wire:
        assert (await delete_group(wire, GROUP, force=True)).code == v2.OK


async def stays_deleted(k: Desk, _: Any) -> None:
    answer = await k.receive(TOPIC, GROUP)
    assert answer.code == v2.CONSUMER_GROUP_NOT_FOUND


async def buried(k: Desk) -> None:
    """A dead letter of another topic lies before the one of the topic that is deleted."""
    k.group(GROUP, max_attempts=1)
    for number, topic in enumerate(("other", TOPIC)):
        k.topic(topic)
        await k.sent(topic, topic.encode())
        assert await got(k, topic, invisible_ms=10 * SECOND) == [topic.encode()]
        k.advance(11 * SECOND)
        await until(partial(dead_letter, k, number))
    k.node.meta_log.delete_topic(TOPIC)


def dead_letter(k: Desk, number: int) -> bool:
    """Return whether there is a dead letter of this number, from 0."""
    return len(stored(k, "%DLQ%g")) > number


async def only_other_letters_are_read(k: Desk, _: Any) -> None:
    k.group("watch")
    assert await pulled(k, "%DLQ%g") == [b"other"]
    k.topic(TOPIC)
    assert await pulled(k, "%DLQ%g") == [b"other"]
    assert (await k.receive("%DLQ%g", "watch")).bodies == [b"other"]


async def retrying(k: Desk) -> str:
    k.topic(TOPIC)
    k.group(GROUP)
    await k.sent(TOPIC, b"1", b"2")
    answer = await k.receive(TOPIC, GROUP, invisible_ms=20 * SECOND)
    k.advance(21 * SECOND)
    await until(lambda: len(stored(k, "%RETRY%g_Later")) == 2)
    return answer.handles[0]


async def changes_and_acknowledgements_are_refused(k: Desk, handle: str) -> None:
    async with k.live.client() as wire:
        refused = await create_group(wire, GROUP, orderly=True)
        assert (refused.code, refused.message[:2]) == (v2.FORBIDDEN, "2 ")
    k.node.meta_log.delete_topic(TOPIC)
    answer = k.ack(TOPIC, GROUP, handle)
    assert answer.entries[0].status.code == v2.INVALID_RECEIPT_HANDLE


async def shortened(k: Desk) -> str:
    """A message comes again before the time of its first handle ends."""
    k.topic(TOPIC)
    k.group(GROUP)
    await k.sent(TOPIC, b"1")
    (handle,) = (await k.receive(TOPIC, GROUP, invisible_ms=HOUR)).handles
    assert k.change(TOPIC, GROUP, handle, SECOND).status.code == v2.OK
    k.advance(2 * SECOND)
    await until(lambda: len(stored(k, "%RETRY%g_Later")) == 1)
    return handle


async def the_old_handle_is_refused(k: Desk, handle: str) -> None:
    for _ in range(2):
        answer = k.ack(TOPIC, GROUP, handle)
        assert answer.entries[0].status.code == v2.INVALID_RECEIPT_HANDLE
        changed = k.change(TOPIC, GROUP, handle, SECOND)
        assert changed.status.code == v2.INVALID_RECEIPT_HANDLE
    assert await got(k) == [b"1"]


async def away(k: Desk) -> None:
    lite = Lite(k)
    lite.parent()
    lite.bind(sub__wildcard="true")
    await lite.send("old", b"before")
    assert lite.sync(ALL) == v2.OK
    k.node.lite._drop(("g", "c@1"))
    await lite.send("new", b"1")
    await lite.send("old", b"2")


async def not_come_yet(k: Desk) -> None:
    lite = Lite(k)
    lite.parent()
    async with k.live.client("admin") as wire:
        attributes = [f"+lite.bind.topic={PARENT}", "+lite.sub.wildcard=true"]
        assert (await create_group(wire, GROUP, attributes=attributes)).created
    await lite.send("new", b"1")
    await lite.send("old", b"2")


async def all_lite_messages_arrive(k: Desk, _: Any) -> None:
    lite = Lite(k)
    assert lite.sync(ALL) == v2.OK
    assert sorted((await lite.receive()).bodies) == [b"1", b"2"]


async def reset_back(k: Desk) -> None:
    lite = Lite(k)
    lite.parent()
    lite.bind()
    await consumed(lite, "room-1", "room-2", "lobby")
    assert len(await reset(lite, edge=EARLIEST, lite_topics="room-*")) == 2


async def lite_offsets_are_where_they_were_set(k: Desk, _: Any) -> None:
    lite = Lite(k)
    names = ("room-1", "room-2", "lobby")
    assert [lite.offset(name) for name in names] == [0, 0, 2]
    assert lite.sync(ALL, *names) == v2.OK
    bodies: list[bytes] = []
    while len(bodies) < 4:
        bodies += (await lite.receive(batch=4)).bodies
    assert sorted(bodies) == [b"room-1-1", b"room-1-2", b"room-2-1", b"room-2-2"]
    planned = await reset(lite, edge=EARLIEST, dry_run=True)
    assert planned[queue_of(PARENT, "lobby")] == (2, 0)
    assert await reset(lite, edge=EARLIEST) == planned
    assert [lite.offset(name) for name in names] == [0, 0, 0]


async def sent_again(k: Desk) -> int:
    """Under deduplication: one message is sent again with its id, another one is not yet."""
    k.topic(TOPIC, message_type=v2.DELAY)
    due_ms = k.node.runtime.clock.wall_ms() + HOUR
    for name in ("here", "there"):
        handle = await send(k, b"recalled", due_ms, name)
        assert await send(k, b"repeated", due_ms, name) == handle
        assert (await recall(k, handle)).status.code == v2.OK
    await send(k, b"here", due_ms, "here")
    return due_ms


async def what_is_sent_again_arrives_once(k: Desk, due_ms: int) -> None:
    await send(k, b"there", due_ms, "there")
    await until(lambda: not k.node.timers.enqueue_lag)
    assert (await numbers(k))["metric"] == 2
    k.advance(due_ms + SECOND - k.node.runtime.clock.wall_ms())
    await arrives(k, b"here", b"there")
    await k.node.timers.settle()
    assert k.node.timers.waiting(TOPIC) == 0


async def counted(k: Desk) -> tuple[int, str]:
    k.topic(TOPIC, message_type=v2.DELAY)
    due_ms = k.node.runtime.clock.wall_ms() + HOUR
    first, second, _ = [await send(k, b"%d" % n, due_ms, f"M{n}") for n in range(3)]
    assert (await recall(k, first)).status.code == v2.OK
    assert await numbers(k) == all_are(2)
    return due_ms, second


async def recalled_ones_do_not_count(k: Desk, told: tuple[int, str]) -> None:
    due_ms, second = told
    await until(lambda: not k.node.timers.enqueue_lag)
    assert await numbers(k) == all_are(2)
    assert (await recall(k, second)).status.code == v2.OK
    assert await numbers(k) == all_are(1)
    k.advance(due_ms + SECOND - k.node.runtime.clock.wall_ms())
    await arrives(k, b"2")
    await k.node.timers.settle()
    assert k.node.timers.waiting(TOPIC) == 0


ROWS = {
    "a wildcard group whose client is away": Row(away, all_lite_messages_arrive),
    "a wildcard group whose client has not come yet": Row(not_come_yet, all_lite_messages_arrive),
    "a message in flight": Row(in_flight, visible_in_its_own_time),
    "a delay level": Row(level, due_after_its_own_time),
    "timers": Row(timers, a_new_timer_does_not_wait_behind_them),
    "a recalled message": Row(recalled, the_other_one_arrives),
    "a topic of a deleted one's name": Row(successor, nothing_old_arrives),
    "dead letters of a deleted topic": Row(buried, only_other_letters_are_read),
    "a locked batch": Row(locked, only_what_is_not_acknowledged_dies),
    "a deleted group": Row(deleted, stays_deleted),
    "messages that wait for a retry": Row(retrying, changes_and_acknowledgements_are_refused),
    "a time that was shortened": Row(shortened, the_old_handle_is_refused),
    "a reset of a lite group": Row(reset_back, lite_offsets_are_where_they_were_set),
    "messages sent again after a recall": Row(
        sent_again, what_is_sent_again_arrives_once, {"message_deduplication_enable": True}
    ),
    "numbers after a recall": Row(counted, recalled_ones_do_not_count),
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("place", PLACES)
async def test_it_holds(tmp_path: Path, row: str, place: str) -> None:
    async with asyncio.timeout(60):
        await check(tmp_path, ROWS[row], place)
