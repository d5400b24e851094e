"""Delay levels of a real broker, and directories with delayed messages that Apache's broker
wrote.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.front.clock import Clock
from cometmq.store.format.json_file import loads
from cometmq.store.format.properties import SCHEDULE_TOPIC
from cometmq.store.format.record import Message, Record, decode
from cometmq.store.timer.checkpoint import TimerCheckpoint
from cometmq.store.timer.rules import TIMER_TOPIC
from cometmq.tests.broker.desk import Desk, desk
from cometmq.tests.broker.live import Settings, settings, until
from cometmq.tests.formats.cases import new_store, unpack

TOPIC, GROUP = "Topic", "g"
DAY = 86_400_000


@pytest.fixture(autouse=True)
def small(tmp_path: Path) -> Iterator[None]:
    yield
    shutil.rmtree(tmp_path)


async def send(k: Desk, body: bytes, level: int, queue_id: int = 0) -> None:
    made = k.node.delayed.record(Message(TOPIC, queue_id, body), {"DELAY": str(level)})
    k.node.sender.append(made)
    await k.dispatched()


def stored(k: Desk, topic: str = TOPIC) -> list[Record]:
    k.node.pump.run()
    found = []
    for name, queue_id in sorted(k.node.store.queues()):
        if name == topic:
            begin = k.node.store.min_offset(topic, queue_id)
            result = k.node.store.get(topic, queue_id, begin, 10_000, 1 << 30)
            found += [decode(record.data) for record in result.records]
    return found


async def arrive(k: Desk, bodies: list[bytes]) -> None:
    await until(lambda: len(stored(k)) >= len(bodies))
    assert sorted(record.body for record in stored(k)) == sorted(bodies)


async def test_each_level_delivers_at_its_time(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC, queues=2)
        # Of 2 h, 30 minutes and 1 h: no delay of the machine makes a message due.
        for level in (18, 16, 17, 17):
            await send(k, b"%d" % level, level, queue_id=level % 2)
        for wait_s, bodies in ((1_200, []), (600, [b"16"]), (1_800, [b"16", b"17", b"17"])):
            k.advance(wait_s * 1000)
            await arrive(k, bodies)
        k.advance(7_200_000)
        await until(lambda: len(stored(k)) == 4)
        copy = next(record for record in stored(k) if record.body == b"18")
        assert copy.queue_id == 0
        assert copy.properties_dict == {"DELAY": "18", "REAL_TOPIC": TOPIC, "REAL_QID": "0"}


async def test_a_due_message_wakes_a_waiting_poll(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC)
        poll = k.start_receive(TOPIC, GROUP)
        await send(k, b"x", 5)
        k.advance(60_000)
        assert len(await poll) > 1


async def test_levels_continue_at_their_offsets_after_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    async with desk(tmp_path, clock=clock) as k:
        k.topic(TOPIC)
        await send(k, b"first", 1)
        await send(k, b"second", 6)
        k.advance(1_000)
        await until(lambda: len(stored(k)) == 1)
    saved = loads((tmp_path / "config" / "delayOffset.json").read_text())
    assert saved["offsetTable"] == {1: 1}
    clock.advance_wall_ms(DAY)
    async with desk(tmp_path, clock=clock) as k:
        await until(lambda: len(stored(k)) == 2)
        assert [record.body for record in stored(k)] == [b"first", b"second"]


async def test_levels_can_be_configured(tmp_path: Path) -> None:
    base = settings(tmp_path)
    chosen = replace(base, store=replace(base.store, message_delay_level="1h 1d"))
    async with desk(tmp_path, chosen) as k:
        k.topic(TOPIC)
        await send(k, b"day", 9)  # as the last level
        await send(k, b"hour", 1)
        for wait_ms, bodies in ((3_600_000, [b"hour"]), (DAY, [b"day", b"hour"])):
            k.advance(wait_ms)
            await arrive(k, bodies)


async def test_a_failed_append_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC)
        await send(k, b"x", 5)  # one minute: not due before the refusals
        asked: list[str] = []

        def refusal() -> str:
            asked.append("too few replicas")
            return asked[-1]

        with monkeypatch.context() as patched:
            patched.setattr(k.node.replication, "write_refusal", refusal)
            k.advance(60_000)
            await until(lambda: asked)
            assert stored(k) == []
        await until(lambda: len(stored(k)) == 1)


async def test_messages_of_unknown_topics_do_not_block_their_level(tmp_path: Path) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC)
        for topic in ("Gone", TOPIC):
            made = k.node.delayed.record(Message(topic, 0, b"x"), {"DELAY": "1"})
            k.node.sender.append(made)
        await k.dispatched()
        k.advance(1_000)
        await until(lambda: len(stored(k)) == 1)
        assert stored(k, "Gone") == []


def of_apache(case: str, root: Path) -> tuple[Settings, Clock]:
    """Return settings with the case's small files, and a clock at its last moment."""
    chosen = replace(settings(root), store=new_store(case, root).config)
    clock = Clock()
    clock.set_wall_ms(
        TimerCheckpoint.decode((root / "config" / "timercheck").read_bytes()).version_ms
    )
    return chosen, clock


@pytest.mark.parametrize("case", ["delay", "delay-killed"])
async def test_apaches_pending_messages_are_delivered_and_its_delivered_ones_are_not(
    case: str, tmp_path: Path
) -> None:
    root = unpack(case, tmp_path)
    chosen, clock = of_apache(case, root)
    async with desk(root, chosen, clock) as k:
        asked = {
            record.properties_dict["UNIQ_KEY"]
            for topic in (TIMER_TOPIC, SCHEDULE_TOPIC)
            for record in stored(k, topic)
        }
        before = {record.properties_dict["UNIQ_KEY"] for record in stored(k, "TopicDelay")}
        assert before < asked
        k.advance(2 * DAY)
        await until(
            lambda: (
                {record.properties_dict["UNIQ_KEY"] for record in stored(k, "TopicDelay")} >= asked
            )
        )
        found = Counter(record.properties_dict["UNIQ_KEY"] for record in stored(k, "TopicDelay"))
        if case == "delay":  # stopped cleanly: no delivery is repeated
            assert set(found.values()) == {1}


async def test_apaches_roll_units_are_delivered_at_their_time(tmp_path: Path) -> None:
    root = unpack("timer-roll", tmp_path)
    chosen, clock = of_apache("timer-roll", root)
    async with desk(root, chosen, clock) as k:
        due = {
            record.properties_dict["UNIQ_KEY"]: int(record.properties_dict["TIMER_DELIVER_MS"])
            for record in stored(k, TIMER_TOPIC)
        }
        for _ in range(4):
            k.advance(DAY)
            await until(
                lambda: (
                    {r.properties_dict["UNIQ_KEY"] for r in stored(k, "TopicX")}
                    >= {key for key, at in due.items() if at <= clock.wall_ms() - 60_000}
                )
            )
            for record in stored(k, "TopicX"):
                asked = due.get(record.properties_dict["UNIQ_KEY"], 0)
                assert record.store_timestamp_ms >= asked
        assert max(due.values()) < clock.wall_ms()


async def test_what_waits_in_a_level_that_is_no_longer_configured_is_delivered(
    tmp_path: Path,
) -> None:
    clock = Clock()
    base = settings(tmp_path)
    more = replace(base, store=replace(base.store, message_delay_level="1s " * 19 + "1d"))
    async with desk(tmp_path, more, clock) as k:
        k.topic(TOPIC)
        for level in (17, 20):
            await send(k, b"%d" % level, level)
    fewer = replace(base, store=replace(base.store, message_delay_level="1h 2h"))
    async with desk(tmp_path, fewer, clock) as k:
        k.advance(3_600_000 + 60_000)
        await arrive(k, [b"17"])
        await send(k, b"5", 5)
        k.advance(3_600_000)
        await arrive(k, [b"17", b"20"])
        k.advance(3_600_000 + 60_000)
        await arrive(k, [b"17", b"20", b"5"])
