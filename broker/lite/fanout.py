"""Lite fan-out: sends lite subscriptions to the other broker groups that hold the parent topic.

A lite topic is in one of the groups (its name selects a queue of the parent), and a client sends
its subscriptions to one node only. That node forwards them to the leader of every other group with
the parent, in the client's name. The client's answer comes from its own group: the node does not
wait for the others. A lost request is repeated by the client's refresh within 30 seconds.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...proto import paths
from ..clients.relay import Relay

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ...nodes.node_links import NodeLinks
    from ...proto import v2
    from ..base.cluster_view import ClusterView
    from ..metadata.tables import Metadata


class LiteFanout:
    """One connection to each other group that was needed so far."""

    def __init__(self, metadata: Metadata, cluster: ClusterView, links: NodeLinks) -> None:
        self._metadata = metadata
        self._cluster = cluster
        self._links = links
        self._relays: dict[str, Relay] = {}

    def send(self, request: v2.SyncLiteSubscriptionRequest, ctx: RequestContext) -> None:
        """Forward a client's request to the other groups, unless it was forwarded itself."""
        cluster = self._cluster
        if ctx.forwarded or len(cluster.groups) == 1:
            return
        others = cluster.others_with(request.topic.name)
        if len(others) == 1 and self._metadata.topic(request.topic.name) is None:
            return  # that group owns the request: the access point forwards it
        for group in others:
            relay = self._relays.get(group.name)
            if relay is None:
                relay = Relay(partial(self._leader, group.name), self._links)
                self._relays[group.name] = relay
            relay.send(paths.SYNC_LITE_SUBSCRIPTION, request.SerializeToString(), ctx)

    def _leader(self, name: str) -> str | None:
        group = self._cluster.group(name)
        leader = group.leader() if group is not None else None
        return leader.client if leader is not None else None

    async def close(self) -> None:
        """Close the connections."""
        for relay in self._relays.values():
            await relay.close()
