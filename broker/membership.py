"""This replica as a member of its cluster: what it registers, and whom a follower follows.

Promises: the start waits for no nameserver longer than half a second; a follower that was not told
its master dials whoever the nameservers name as the leader of its group (HA, sections 6.4 and 6.8).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..proto import v1
from .cluster import Registrant, Registrar
from .cluster_view import ClusterView, MemberView

if TYPE_CHECKING:
    from .node import Node

# How long the start waits for nameservers: those that are up answer within milliseconds.
_FIRST_ANSWERS_S = 0.5
_ASK_AGAIN_S = 0.05


def own_view(node: Node, client: str, ha: str, metrics: str) -> MemberView:
    """This node, reached at these addresses."""
    return MemberView(
        node.config.broker_name,
        node.config.broker_id,
        client,
        ha,
        metrics,
        node.is_leader,
        True,
        node.replication.epoch,
        node.replication.replica.meta.incarnation,
    )


async def join(node: Node, own: MemberView, token: str, follow: bool) -> Registrar:
    """Become known to the nameservers, and know the cluster as far as they answer now.

    `follow`: dial the leader that the nameservers name.
    """
    if follow:
        node.cluster.on_change = lambda: _follow(node)
    node.cluster.set_own(own)
    registrant = Registrant(
        token,
        node.config.register_broker_period,
        node.config.register_broker_timeout,
        lambda: _registration(node, own),
        node.metadata,
        node.cluster,
    )
    registrar = Registrar(node.config.namesrv_addresses(), registrant)
    # A new follower is an alternative that the next route should name.
    node.replication.on_member_joined = registrar.changed
    await registrar.start()
    await registrar.first_answers(_FIRST_ANSWERS_S)
    if follow:
        await _find_leader(node, registrar)
    return registrar


async def _find_leader(node: Node, registrar: Registrar) -> None:
    """In a cluster that starts together the leader may register a moment after its follower."""
    until_ns = node.clock.steady_ns() + int(_FIRST_ANSWERS_S * 1e9)
    while node.cluster.own().leader() is None and node.clock.steady_ns() < until_ns:
        registrar.changed()
        await asyncio.sleep(_ASK_AGAIN_S)


def client_of_leader(view: ClusterView) -> str | None:
    """The clients' address of the leader of this node's group."""
    leader = view.own().leader()
    return leader.client if leader is not None else None


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
