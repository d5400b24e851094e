"""A recalled message does not count as waiting: metrics, `timer ls`, plans, after a restart too."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from cometmq.broker.names.recall_handle import decode_recall_handle
from cometmq.front.clock import Clock
from cometmq.proto import paths, v1, v2
from cometmq.tests.broker.delay.test_recall import HOUR, TOPIC, recall, send
from cometmq.tests.broker.desk import Desk, desk
from cometmq.tests.broker.live import Settings, until
from cometmq.tests.broker.metrics.test_observed import samples
from cometmq.tests.broker.timing import stored, with_store

DAY_S = 86_400


async def numbers(k: Desk, topic: str = TOPIC) -> dict[str, float]:
    """Return the broker's numbers of messages that wait for a topic, or are due within a day."""
    found = await samples(k.live)
    clock = k.node.runtime.clock
    async with k.live.client("admin") as wire:
        end = [clock.wall_ms() + 1000 * DAY_S]
        listed = await wire.call(
            paths.LIST_TIMERS,
            v1.ListTimersRequest(topic=topic, count=256, bounds_ms=end),
            v1.ListTimersResponse,
        )
        deleted = await wire.call(
            paths.DELETE_TOPIC,
            v1.DeleteTopicRequest(name=topic, dry_run=True),
            v1.DeleteTopicResponse,
        )
    assert isinstance(listed, v1.ListTimersResponse)
    assert isinstance(deleted, v1.DeleteTopicResponse)
    waiting = {one.labels["topic"]: one.value for one in found["rocketmq_timing_messages"]}
    within = {
        int(one.labels["timer_bound_s"]): one.value
        for one in found["rocketmq_timer_message_snapshot"]
    }
    return {
        "metric": waiting.get(topic, 0),
        "within a day": within[DAY_S],
        "listed": len(listed.timers),
        "listed as due": listed.due[0],
        "plan": deleted.messages,
    }


def all_are(number: int) -> dict[str, float]:
    """Return the numbers when every one is this."""
    return dict.fromkeys(("metric", "within a day", "listed", "listed as due", "plan"), number)


@pytest.mark.parametrize("window_s", [0, 60])
async def test_a_recalled_message_does_not_count(tmp_path: Path, window_s: int) -> None:
    chosen: Settings = with_store(
        tmp_path, **({"timer_roll_window_slot": window_s} if window_s else {})
    )
    clock = Clock()
    async with desk(tmp_path, chosen, clock=clock) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        due = clock.wall_ms() + 150_000
        first, twin, _ = [await send(k, b"%d" % n, due, "M") for n in range(3)]
        await send(k, b"later", due + 5000, "N")
        assert await numbers(k) == all_are(4)
        real = decode_recall_handle(first)
        assert real is not None
        for handle in (first, first, replace(real, mark=real.mark ^ 1).encode()):
            assert (await recall(k, handle)).status.code == v2.OK
        assert await numbers(k) == all_are(3)
    async with desk(tmp_path, chosen, clock=clock) as k:
        assert await numbers(k) == all_are(3)
        assert (await recall(k, twin)).status.code == v2.OK
        assert await numbers(k) == all_are(2)
        for _ in range(7):
            k.advance(30_000)
            await k.dispatched()
            await until(lambda: not k.node.timers.dequeue_lag and not k.node.timers.enqueue_lag)
            await k.node.timers.settle()
            await until(lambda: k.node.timers.waiting(TOPIC) == 2 - len(stored(k)))
        await until(lambda: len(stored(k)) == 2 and k.node.timers.waiting(TOPIC) == 0)


@pytest.mark.parametrize("delivered", [True, False])
async def test_the_first_timers_are_delivered_and_counted_after_a_kill(
    tmp_path: Path, delivered: bool
) -> None:
    """The queue of the timer topic is written later than the units."""
    clock = Clock()
    async with desk(tmp_path / "killed", clock=clock) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        recalled = await send(k, b"recalled", clock.wall_ms() + HOUR, "M")
        await send(k, b"soon", clock.wall_ms() + 2000, "N")
        assert (await recall(k, recalled)).status.code == v2.OK
        await until(lambda: not k.node.timers.enqueue_lag)
        if delivered:
            k.advance(3000)
            await until(lambda: len(stored(k)) == 1)
        shutil.copytree(tmp_path / "killed", tmp_path / "copy")
    clock.advance_wall_ms(3000)
    async with desk(tmp_path / "copy", clock=clock) as k:
        await until(lambda: len(stored(k)) == 1 and not k.node.timers.enqueue_lag)
        await k.node.timers.settle()
        await until(lambda: k.node.timers.waiting(TOPIC) == 0)
        assert [one.body for one in stored(k)] == [b"soon"]


async def test_messages_of_a_deleted_topic_do_not_count_for_a_new_one(tmp_path: Path) -> None:
    clock = Clock()
    async with desk(tmp_path, clock=clock) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        handle = await send(k, b"old", clock.wall_ms() + HOUR, "M")
        await send(k, b"old too", clock.wall_ms() + HOUR, "N")
        assert (await recall(k, handle)).status.code == v2.OK
        assert (await numbers(k))["metric"] == 1
        k.node.meta_log.delete_topic(TOPIC)
        k.topic(TOPIC, message_type=v2.DELAY)
        await send(k, b"new", clock.wall_ms() + HOUR, "O")
        found = await numbers(k)
        assert (found["metric"], found["plan"]) == (1, 1)
    async with desk(tmp_path, clock=clock) as k:
        found = await numbers(k)
        assert (found["metric"], found["plan"]) == (1, 1)
        k.advance(HOUR + 2000)
        await until(lambda: k.node.timers.waiting(TOPIC) == 0)
        assert k.node.timers.stats.without_topic == 1
