"""This replica as a member of its cluster: what it registers, and whom a follower follows.

Promises: the start waits for no nameserver longer than half a second; a follower that was not told
its master dials whoever the nameservers name as the leader of its group (HA, sections 6.4 and 6.8).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...proto import v1
from .cluster_view import MemberView
from .registrar import Registrant, Registrar

if TYPE_CHECKING:
    from ..node import Node

# How long the start waits for nameservers: those that are up answer within milliseconds.
_FIRST_ANSWERS_S = 0.5
_ASK_AGAIN_S = 0.05


class Membership:
    """What this node says of itself, in routes and to the nameservers; made when its ports are known."""

    def __init__(self, node: Node, client: str, ha: str, metrics: str) -> None:
        self._node = node
        self._addresses = client, ha, metrics
        self._registrar: Registrar | None = None

    def own(self) -> MemberView:
        """This node as it is now."""
        node = self._node
        return MemberView(
            node.config.broker_name,
            node.config.broker_id,
            *self._addresses,
            node.leadership.is_leader,
            True,
            node.replication.epoch,
            node.replication.replica.meta.incarnation,
        )

    def changed(self) -> None:
        """The role, the epoch or the leader changed: say so now, here and to every nameserver."""
        self._node.cluster.set_own(self.own(), self._named_leader())
        if self._registrar is not None:
            self._registrar.changed()

    async def join(self, token: str, follow: bool) -> Registrar:
        """Become known to the nameservers, and know the cluster as far as they answer now.

        `follow`: dial the leader that the nameservers name.
        """
        node = self._node
        if follow:
            node.cluster.on_change = lambda: _follow(node)
        self.changed()
        registrant = Registrant(
            token,
            node.config.register_broker_period,
            node.config.register_broker_timeout,
            lambda: _registration(node, self.own()),
            node.metadata,
            node.cluster,
        )
        registrar = self._registrar = Registrar(node.config.namesrv_addresses(), registrant)
        # A new follower is an alternative that the next route should name.
        node.replication.on_member_joined = registrar.changed
        await registrar.start()
        await registrar.first_answers(_FIRST_ANSWERS_S)
        if follow:
            await _find_leader(node, registrar)
        return registrar

    def _named_leader(self) -> MemberView | None:
        """Whom the group's state names, before any nameserver has heard of it."""
        node = self._node
        hint = node.replication.leader_hint
        if hint is None or hint[0] == node.config.broker_id:
            return None
        broker_id, client, ha = hint
        return MemberView(
            node.config.broker_name,
            broker_id,
            client,
            ha,
            "",
            True,
            True,
            node.replication.epoch,
            0,
        )


async def _find_leader(node: Node, registrar: Registrar) -> None:
    """In a cluster that starts together the leader may register a moment after its follower."""
    until_ns = node.clock.steady_ns() + int(_FIRST_ANSWERS_S * 1e9)
    while node.cluster.own().leader() is None and node.clock.steady_ns() < until_ns:
        registrar.changed()
        await asyncio.sleep(_ASK_AGAIN_S)


def _follow(node: Node) -> None:
    leader = node.cluster.own().leader()
    if leader is not None and leader.broker_id != node.config.broker_id:
        node.replication.set_leader(leader.ha)


def _registration(node: Node, own: MemberView) -> v1.RegisterRequest:
    store = node.store
    return v1.RegisterRequest(
        replica=v1.ReplicaIdentity(
            cluster=node.config.broker_cluster_name,
            group=own.group,
            broker_id=own.broker_id,
            replica_uuid=node.replication.replica.meta.replica_uuid,
            incarnation=own.incarnation,
        ),
        addresses=v1.ReplicaAddresses(client=own.client, ha=own.ha, metrics=own.metrics),
        role=v1.LEADER if own.is_leader else v1.FOLLOWER,
        epoch=node.replication.epoch,
        log_start=store.log_start,
        log_end=store.log_end,
        flushed_end=store.flushed_offset,
        confirm=node.replication.confirm,
    )
