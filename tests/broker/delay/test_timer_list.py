"""The list of messages that wait in the timer wheel, by RPC and by command."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.delay import timer_list
from cometmq.proto import paths, v1, v2
from cometmq.store.format.record import Message, checked_delivery
from cometmq.store.timer.store import TimerStore
from cometmq.tests.broker.live import Live, create_topic, running, settings, until
from cometmq.tests.broker.turns import Turns
from cometmq.tests.harness.wire import Wire, normal_message

HOUR = 3_600_000
COMMAND = [sys.executable, "-P", "-m", "cometmq.cli.main", "timer"]


async def ask(wire: Wire, **fields: Any) -> v1.ListTimersResponse:
    answer: v1.ListTimersResponse = await wire.call(
        paths.LIST_TIMERS, v1.ListTimersRequest(**fields), v1.ListTimersResponse
    )
    return answer


async def pages(wire: Wire, **fields: Any) -> list[str]:
    """Return the ids of all pages."""
    found: list[str] = []
    slot_ms = 0
    while True:
        answer = await ask(wire, slot_ms=slot_ms, **fields)
        assert answer.code == v2.OK, answer.message
        found += [one.message_id for one in answer.timers]
        slot_ms = answer.next_slot_ms
        if not slot_ms:
            return found


async def send(wire: Wire, topic: str, message_id: str, due_ms: int) -> None:
    sent = normal_message(topic, message_id, b"x", "blue", "order-1")
    sent.system_properties.message_type = v2.DELAY
    sent.system_properties.delivery_timestamp.FromMilliseconds(due_ms)
    answer = await wire.send([sent])
    assert answer.status.code == v2.OK, answer.status.message


async def send_some(live: Live, wire: Wire) -> int:
    """Send messages that are due in one to four hours; return the first of these times."""
    for topic in ("Later", "Other"):
        await create_topic(wire, topic, message_type=v2.DELAY)
    first_ms = (live.node.runtime.clock.wall_ms() // 1000 + 3600) * 1000 + 500
    for number in (3, 1, 2):
        await send(wire, "Later", f"M{number}", first_ms + (number - 1) * HOUR)
    await send(wire, "Other", "M4", first_ms + 3 * HOUR)
    await until(lambda: not live.node.timers.enqueue_lag)
    return first_ms


async def command(live: Live, *arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [*COMMAND, *arguments, "--endpoint", live.bound.client],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_waiting_messages_are_listed_by_time_and_counted(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        first_ms = await send_some(live, wire)
        bounds = [first_ms - 1000, first_ms + 1000, first_ms + HOUR + 1000, first_ms + 4 * HOUR]
        answer = await ask(wire, count=10, bounds_ms=bounds)
        assert list(answer.due) == [0, 1, 2, 4]
        assert (answer.next_slot_ms, answer.left_out) == (0, False)
        assert [one.message_id for one in answer.timers] == ["M1", "M2", "M3", "M4"]
        one = answer.timers[0]
        assert (one.topic, one.due_ms) == ("Later", first_ms)
        assert (one.tag, list(one.keys)) == ("blue", ["order-1"])
        assert one.physical_offset >= 0
        assert await pages(wire, count=1) == ["M1", "M2", "M3", "M4"]
        assert await pages(wire, count=3, topic="Other") == ["M4"]
        assert await pages(wire, count=9, end_ms=first_ms + HOUR + 1000) == ["M1", "M2"]
        assert [o.message_id for o in (await ask(wire, count=2)).timers] == ["M1", "M2"]
        assert not (await ask(wire)).timers


async def test_recalled_messages_are_left_out(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        await send_some(live, wire)
        listed = json.loads((await command(live, "ls", "-o", "json")).stdout)
        assert [row["message_id"] for row in listed] == ["M1", "M2", "M3", "M4"]
        done = await command(live, "recall", "Later", listed[1]["recall_handle"])
        assert done.returncode == 0, done.stderr
        assert await pages(wire, count=10) == ["M1", "M3", "M4"]
        table = await command(live, "ls", "Later", "--count", "1")
        assert "M1" in table.stdout
        assert "M3" not in table.stdout
        assert "There are more" in table.stderr


async def test_a_second_with_too_many_messages_is_listed_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_list, "_UNITS_MAX", 3)
    async with running(settings(tmp_path)) as live, live.client() as wire:
        first_ms = await send_some(live, wire)
        for number in range(5):
            await send(wire, "Later", f"N{number}", first_ms)
        await until(lambda: not live.node.timers.enqueue_lag)
        answer = await ask(wire, count=10)
        assert answer.left_out
        assert len(answer.timers) == 3
        behind = await ask(wire, count=10, slot_ms=answer.next_slot_ms)
        assert [one.message_id for one in behind.timers] == ["M2", "M3", "M4"]


@pytest.mark.parametrize(
    "bounds", [[2 * HOUR, HOUR], [8 * 24 * HOUR], [HOUR] * 257], ids=["order", "far", "many"]
)
async def test_bounds_that_cannot_be_counted_are_refused(tmp_path: Path, bounds: list[int]) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        now_ms = live.node.runtime.clock.wall_ms()
        answer = await ask(wire, bounds_ms=[now_ms + bound for bound in bounds])
        assert answer.code == v2.BAD_REQUEST


async def test_timers_of_other_topics_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        await send_some(live, wire)
        await create_topic(wire, "Unused", message_type=v2.DELAY)
        decoded: list[int] = []

        def decode(data: bytes) -> Any:
            decoded.append(1)
            return checked_delivery(data)

        monkeypatch.setattr("cometmq.broker.delay.timer_list.checked_delivery", decode)
        assert await pages(wire, topic="Unused", count=9) == []
        assert not decoded
        assert await pages(wire, topic="Other", count=9) == ["M4"]
        assert len(decoded) == 1


async def test_messages_beyond_the_roll_window_are_listed_by_their_time(tmp_path: Path) -> None:
    base = settings(tmp_path)
    chosen = replace(base, store=replace(base.store, timer_roll_window_slot=3_600))
    async with running(chosen) as live, live.client() as wire:
        await create_topic(wire, "Later", message_type=v2.DELAY)
        now_ms = live.node.runtime.clock.wall_ms() // 1000 * 1000
        for number, hours in ((1, 0.5), (2, 10), (3, 15), (4, 20)):
            await send(wire, "Later", f"M{number}", now_ms + int(hours * HOUR))
        await until(lambda: not live.node.timers.enqueue_lag)

        async def due(begin: int, end: int) -> list[str]:
            times = {"begin_ms": now_ms + begin * HOUR, "end_ms": now_ms + end * HOUR}
            return sorted(await pages(wire, count=9, **times))

        assert await due(9, 21) == ["M2", "M3", "M4"]
        assert await due(12, 18) == ["M3"]
        assert await due(0, 9) == ["M1"], "the others wait in slots before, and are due later"
        assert await due(21, 23) == []
        listed = await command(live, "ls", "--begin", "+18h", "-o", "json")
        assert [row["message_id"] for row in json.loads(listed.stdout)] == ["M4"], listed.stderr


async def test_a_turn_of_the_loop_reads_a_bounded_number_of_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        first_ms = await send_some(live, wire)
        await create_topic(wire, "Unused", message_type=v2.DELAY)
        for number in range(12):
            await send(wire, "Later", f"N{number}", first_ms + 1000 * number)
        await until(lambda: not live.node.timers.enqueue_lag)
        monkeypatch.setattr(timer_list, "_UNITS_MAX", 3)
        monkeypatch.setattr(timer_list, "_SLOTS_MAX", 100)
        turns = Turns()
        monkeypatch.setattr(TimerStore, "units", turns.counting(TimerStore.units))
        assert await pages(wire, topic="Unused", count=9) == []
        assert turns.all >= 16
        assert turns.most <= 2 * 3 + 1


async def test_messages_of_the_broker_itself_are_listed_only_on_request(tmp_path: Path) -> None:
    revives = "rmq_sys_REVIVE_LOG_DefaultCluster"
    async with running(settings(tmp_path)) as live, live.client() as wire:
        first_ms = await send_some(live, wire)
        wanted = {"UNIQ_KEY": "R", "TIMER_DELIVER_MS": str(first_ms)}
        node = live.node
        node.sender.append(node.delayed.record(Message(revives, 0, b"checkpoint"), wanted))
        await until(lambda: not node.timers.enqueue_lag)
        assert await pages(wire, count=10) == ["M1", "M2", "M3", "M4"]
        assert "R" in await pages(wire, count=10, include_system=True)
        assert await pages(wire, count=10, topic=revives) == ["R"]
        assert revives not in (await command(live, "ls")).stdout
        assert revives in (await command(live, "ls", "--system")).stdout
