"""TLS handshakes take turns: by address, and not all of the loop's time."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.remoting import handshakes
from cometmq.remoting.handshakes import Handshakes


async def test_addresses_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "_INTERVAL_S", 0.0)
    turns, begun = Handshakes(), []

    async def begin(address: str) -> None:
        await turns.turn(address)
        begun.append(address)

    stranger = [asyncio.create_task(begin("10.0.0.1")) for _ in range(50)]
    await asyncio.sleep(0)
    await asyncio.gather(begin("10.0.0.2"), begin("10.0.0.3"))
    await asyncio.gather(*stranger)
    others = begun.index("10.0.0.2"), begun.index("10.0.0.3")
    assert max(others) <= 5, "two clients did not wait for the fifty of a stranger"
    assert len(begun) == 52


async def test_one_begins_at_a_time_and_one_that_was_given_up_takes_no_turn() -> None:
    turns = Handshakes()
    await turns.turn("a")
    waiting = [asyncio.create_task(turns.turn("a")) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    waiting[0].cancel()
    await asyncio.gather(*waiting[1:])
    await turns.turn("a")  # at once, or after the pause of the last one
