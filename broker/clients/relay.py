"""Relay: forwards heartbeats and terminations from a follower to the leader, without waiting.

The client is answered already: a request that cannot be delivered is dropped, because the next
heartbeat follows in seconds. The number of concurrent calls is bounded. Calls carry the client's
metadata and a mark that prevents a second hop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from ...front.admission import forward_mark
from ...ha.stream.redial import RedialedChannel

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ...nodes.node_links import NodeLinks

logger = logging.getLogger(__name__)

_TIMEOUT_S = 3.0
# Clients send a heartbeat every 10 s: this many pending calls mean that the leader does not answer.
_PENDING_MAX = 1_000


class Relay:
    """One channel to the present leader."""

    def __init__(self, leader: Callable[[], str | None], links: NodeLinks) -> None:
        """`leader` returns the leader's client address, or None while it is unknown."""
        self._leader = leader
        self._links = links
        self._target = ""
        self._channel: RedialedChannel | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failing = False

    def send(self, path: str, request: bytes, ctx: RequestContext) -> None:
        """Forward a request if the leader is known."""
        target = self._leader()
        if target is None or len(self._tasks) >= _PENDING_MAX:
            return
        task = asyncio.get_running_loop().create_task(self._send(target, path, request, ctx))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel pending calls and close the channel."""
        for task in self._tasks:
            task.cancel()
        if self._channel is not None:
            await self._channel.close()

    async def _send(self, target: str, path: str, request: bytes, ctx: RequestContext) -> None:
        if target != self._target:
            old, self._target = self._channel, target
            self._channel = RedialedChannel(target, self._links)
            if old is not None:
                await old.close()
        assert self._channel is not None
        metadata = (*ctx.metadata, *forward_mark(self._links, target, ctx.peer, ctx.user))
        try:
            await self._channel.call(path, request, metadata, _TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if not self._failing:
                logger.info("relay.failed target=%s code=%s", target, error.code().name)
            self._failing = True
        else:
            self._failing = False
