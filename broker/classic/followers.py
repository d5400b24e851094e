"""The follower that a classic client should pull old records from, so that the leader keeps its
page cache for sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...remoting.broker_ids import LEADER_ID, route_ids

if TYPE_CHECKING:
    from ...ha.engine import Replication
    from ..base.cluster_view import ClusterView
    from ..base.config import BrokerConfig


class Followers:
    """Selects among the in-sync followers of this leader in turn."""

    def __init__(
        self, config: BrokerConfig, replication: Replication, cluster: ClusterView
    ) -> None:
        self._enabled = config.slave_read_enable
        self._own = config.broker_id
        self._replication = replication
        self._cluster = cluster
        self._turn = 0

    def next_id(self) -> int:
        """Return the id in routes of a follower; the leader's if there is none.

        On a follower: its own id, so that the client continues to read here.
        """
        if not self._enabled:
            return LEADER_ID
        group = self._cluster.own()
        leader = group.leader()
        configured = (each.broker_id for each in group.members)
        ids = route_ids(configured, leader.broker_id if leader is not None else None)
        if not self._replication.is_leader:
            return ids.get(self._own, LEADER_ID)
        found = [
            ids[each.broker_id]
            for each in self._replication.members()
            if each.role == "follower" and each.in_sync and each.connected and each.broker_id in ids
        ]
        if not found:
            return LEADER_ID
        self._turn += 1
        return found[self._turn % len(found)]
