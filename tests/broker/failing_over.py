"""Act at a broker, then check what its follower, or a restart of it, makes of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from cometmq.broker.assembly.parts import Broker
from cometmq.front.clock import Clock
from cometmq.tests.broker.desk import Desk, desk
from cometmq.tests.broker.live import follower_of, running, settings, until

TOPIC, GROUP = "Later", "g"
SECOND, HOUR = 1000, 3_600_000

#: Acts at the first broker; returns what the check needs.
Before = Callable[[Desk], Awaitable[Any]]
#: Checks the next one.
After = Callable[[Desk, Any], Awaitable[None]]

#: The directory of the next broker, and how far the first one's clock is ahead of it.
PLACES = {
    "next leader": ("follower", 0),
    "next leader, clock behind": ("follower", 8 * HOUR),
    "restart, clock behind": ("leader", 8 * HOUR),
}


class Row(NamedTuple):
    """What is checked, and options of both brokers."""

    before: Before
    after: After
    broker: dict[str, Any] | None = None


async def check(root: Path, row: Row, place: str) -> None:
    """Act at the first broker, and check the next one."""
    name, ahead_ms = PLACES[place]
    options = {"remoting_listen_port": -1} | (row.broker or {})
    first, second = Clock(), Clock()
    first.advance_wall_ms(ahead_ms)
    async with desk(root / "leader", clock=first, **options) as k:
        if name == "leader":
            told = await row.before(k)
            await k.dispatched()
        else:
            follower = follower_of(k.live.bound, root / name, **options)
            async with running(follower, second) as live:
                told = await row.before(k)
                await _copied(k, live.node)
    async with desk(root / name, settings(root / name, **options), second) as k:
        await row.after(k, told)


async def _copied(k: Desk, follower: Broker) -> None:
    """Wait until a follower has what the leader has."""
    await k.dispatched()
    k.node.pump.appended()  # also what the test wrote into the log itself
    await until(lambda: k.node.store.log_end == follower.store.dispatched_offset)
    await until(lambda: _offsets(k.node) == _offsets(follower))


def _offsets(node: Broker) -> list[tuple[str, str, int, int]]:
    """Return the offsets of the group."""
    return sorted(one for one in node.offsets if one[1] == GROUP)
