"""This replica as a member of its cluster: its registration, and the leader that a follower dials.

Promises: the start waits at most half a second for nameservers; a follower without a configured
master dials the leader that the nameservers name (docs/formats/ha.md, sections 6.4 and 6.8).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...proto import v1
from ..base.cluster_view import MemberView
from ..metadata.tables import template_topic
from .registrar import Registrant, Registrar

if TYPE_CHECKING:
    from ...ha.engine import Replication
    from ...nodes.node_links import NodeLinks
    from ...store.message_store import MessageStore
    from ..base.cluster_view import ClusterView
    from ..base.leadership import Leadership
    from ..base.runtime import Runtime
    from ..metadata.tables import Metadata

# How long the start waits for nameservers; a running one answers within milliseconds.
_FIRST_ANSWERS_S = 0.5
_RETRY_S = 0.05


class Membership:
    """Registers this replica and publishes it in routes; constructed when its ports are known."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        replication: Replication,
        leadership: Leadership,
        metadata: Metadata,
        cluster: ClusterView,
        addresses: tuple[str, str, str],
        remoting: str = "",
    ) -> None:
        """`addresses`: client, replication and metrics, each as HOST:PORT; `remoting`: of classic
        clients, or empty.
        """
        self._config = runtime.config
        self._clock = runtime.clock
        self._store = store
        self._replication = replication
        self._leadership = leadership
        self._metadata = metadata
        self._cluster = cluster
        self._addresses = addresses
        self._remoting = remoting
        port = int(remoting.rpartition(":")[2] or 0)
        self._remoting_advertised = self._config.remoting_advertised(port) if port else ""
        self._registrar: Registrar | None = None

    def own(self) -> MemberView:
        """Return this node's current row."""
        return MemberView(
            self._config.broker_name,
            self._config.broker_id,
            *self._addresses,
            self._leadership.is_leader,
            True,
            self._replication.epoch,
            self._replication.replica.meta.incarnation,
            self._remoting,
        )

    def changed(self) -> None:
        """Publish a changed role, epoch or leader, here and to every nameserver."""
        self._cluster.set_own(self.own(), self._named_leader())
        if self._registrar is not None:
            self._registrar.changed()

    def members_changed(self) -> None:
        """Tell the nameservers: routes list a new follower as an alternative, and a static leader
        registers its in-sync set."""
        if self._registrar is not None:
            self._registrar.changed()

    async def join(self, links: NodeLinks, follow: bool) -> Registrar:
        """Register with the nameservers and load the cluster from those that answer in time.

        With `follow`, dial the leader that the nameservers name.
        """
        if follow:
            self._cluster.on_change = self._follow
        self.changed()
        registrant = Registrant(
            links,
            self._config.register_broker_period,
            self._config.register_broker_timeout,
            self._registration,
            self._replication.set_registered,
            self._metadata,
            self._cluster,
            template_topic(self._config.default_topic_queue_nums)
            if self._config.auto_create_topic_enable
            else None,
        )
        registrar = Registrar(self._config.namesrv_addresses(), registrant)
        self._registrar = registrar
        await registrar.start()
        await registrar.first_answers(_FIRST_ANSWERS_S)
        if follow:
            await self._find_leader(registrar)
        return registrar

    def _named_leader(self) -> MemberView | None:
        """The leader that the group's state names, before a nameserver lists it."""
        hint = self._replication.leader_hint
        if hint is None or hint[0] == self._config.broker_id:
            return None
        broker_id, client, ha = hint
        return MemberView(
            self._config.broker_name,
            broker_id,
            client,
            ha,
            "",
            True,
            True,
            self._replication.epoch,
            0,
        )

    async def _find_leader(self, registrar: Registrar) -> None:
        """When a cluster starts, the leader may register a moment after its follower."""
        deadline_ns = self._clock.steady_ns() + int(_FIRST_ANSWERS_S * 1e9)
        while self._cluster.own().leader() is None and self._clock.steady_ns() < deadline_ns:
            registrar.changed()
            await asyncio.sleep(_RETRY_S)

    def _follow(self) -> None:
        leader = self._cluster.own().leader()
        if leader is not None and leader.broker_id != self._config.broker_id:
            self._replication.set_leader(leader.ha)

    def _registration(self) -> v1.RegisterRequest:
        own, store = self.own(), self._store
        return v1.RegisterRequest(
            replica=v1.ReplicaIdentity(
                cluster=self._config.broker_cluster_name,
                group=own.group,
                broker_id=own.broker_id,
                replica_uuid=self._replication.replica.meta.replica_uuid,
                incarnation=own.incarnation,
            ),
            addresses=v1.ReplicaAddresses(
                client=own.client,
                ha=own.ha,
                metrics=own.metrics,
                remoting=self._remoting,
                remoting_advertised=self._remoting_advertised,
            ),
            role=v1.LEADER if own.is_leader else v1.FOLLOWER,
            epoch=self._replication.epoch,
            log_start=store.log_start,
            log_end=store.log_end,
            flushed_end=store.flushed_offset,
            confirm=self._replication.confirm,
            in_sync=self._replication.registered_set(),
        )
