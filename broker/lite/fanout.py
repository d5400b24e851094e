"""Subscriptions of lite topics told to the other broker groups that hold the parent topic.

A lite topic lives in one of the groups (its name chooses a queue of the parent), and a client says to one
node only what it subscribes to. So the node that a client speaks to passes it on to the leader of every
other group with the parent, in the client's name. The client's answer is its own group's: nothing here is
waited for, and what cannot be delivered comes again with the client's refresh, within 30 seconds.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...proto import paths
from ..clients.relay import Relay

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from ...front.context import RequestContext
    from ...proto import v2
    from ..node import Node


class LiteFanout:
    """One connection to each other group that was ever needed."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._relays: dict[str, Relay] = {}

    def open(self, stack: AsyncExitStack) -> None:
        """`stack` closes the connections."""
        stack.push_async_callback(self._close)

    def spread(self, request: v2.SyncLiteSubscriptionRequest, ctx: RequestContext) -> None:
        """Pass a client's request on to the other groups; not what was passed on to this node."""
        cluster = self._node.cluster
        if ctx.forwarded or len(cluster.groups) == 1:
            return
        others = cluster.others_with(request.topic.name)
        if len(others) == 1 and self._node.metadata.topic(request.topic.name) is None:
            return  # it is the request's owner: the access point passes it on there
        for group in others:
            relay = self._relays.get(group.name)
            if relay is None:
                relay = self._relays[group.name] = Relay(partial(self._leader, group.name))
            relay.send(paths.SYNC_LITE_SUBSCRIPTION, request.SerializeToString(), ctx)

    def _leader(self, name: str) -> str | None:
        group = self._node.cluster.group(name)
        leader = group.leader() if group is not None else None
        return leader.client if leader is not None else None

    async def _close(self) -> None:
        for relay in self._relays.values():
            await relay.close()
