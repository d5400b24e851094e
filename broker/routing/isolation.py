"""Isolation: a node that gets no messages from other nodes closes its clients' connections.

Packets of such a node may still arrive (a fault in one direction only), so after
`ISOLATED_AFTER_S` it closes its clients' connections: clients with several addresses dial another
node. It refuses connections for `REFUSE_S`, or until it hears another node. Then it serves reads
again, answers UNAVAILABLE to requests that another node must serve, and puts its own address last
in routes. Silence is counted in ticks, so that a pause of the process counts as one.

Only groups with a controller: the slave of a static group that lost its master serves its reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ...front.access_point import AccessPoint
from ...front.suspendable_door import SuspendableDoor
from ..base.cluster_view import ClusterView

logger = logging.getLogger(__name__)

TICK_S = 0.25
#: Longer than the takeover by another nameserver, about 2 s with the default lease. At 2.5 s, on a
#: busy machine, nodes that had only lost leader and controller sent their clients away too.
ISOLATED_AFTER_S = 3.0
#: Longer than a client needs to dial its other addresses.
REFUSE_S = 5.0


class Silence:
    """Counts ticks without a message from another node. Pure."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._heard_ns = 0
        self._ticks = 0

    def is_over_limit(self, heard_ns: int) -> bool:
        """Count one tick; `heard_ns` is the time of the newest message."""
        # Before the first message the node is starting, and so may be all others.
        self._ticks = 0 if heard_ns > self._heard_ns or not heard_ns else self._ticks + 1
        self._heard_ns = heard_ns
        return self._ticks >= self._limit


class Isolation:
    """Watches one broker; a background task."""

    def __init__(
        self,
        heard_ns: Callable[[], int | None],
        access: AccessPoint,
        door: SuspendableDoor,
        cluster: ClusterView,
        address: str,
    ) -> None:
        """`heard_ns`: time of the newest message of another node that a leader or controller
        sent, or of a follower; None if this node needs no other. `address`: its client address."""
        self._heard_ns = heard_ns
        self._access, self._door, self._cluster = access, door, cluster
        self._address = address
        self._silence = Silence(round(ISOLATED_AFTER_S / TICK_S))
        self._resuming: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._watch())

    @property
    def isolated(self) -> bool:
        return self._access.isolated

    async def stop(self) -> None:
        """End the watch; the door stays as it is."""
        tasks = [task for task in (self._task, self._resuming) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            heard_ns = self._heard_ns()
            isolated = heard_ns is not None and self._silence.is_over_limit(heard_ns)
            if isolated and not self.isolated:
                await self._leave_clients()
            elif not isolated and self.isolated:
                await self._take_clients()

    async def _leave_clients(self) -> None:
        logger.warning("broker.isolated after_s=%g refuse_s=%g", ISOLATED_AFTER_S, REFUSE_S)
        self._cluster.avoided = self._address
        self._access.isolate()
        await self._door.suspend()
        self._resuming = asyncio.create_task(self._resume_later())

    async def _resume_later(self) -> None:
        await asyncio.sleep(REFUSE_S)
        await self._door.resume()

    async def _take_clients(self) -> None:
        logger.info("broker.reached")
        self._cluster.avoided = ""
        self._access.rejoin()
        if self._resuming is not None:
            self._resuming.cancel()
            await asyncio.gather(self._resuming, return_exceptions=True)
            self._resuming = None
        await self._door.resume()
