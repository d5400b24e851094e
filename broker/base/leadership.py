"""Leadership of this replica: whether it leads, whether it may write, and where its leader is.

`role.py` changes this state when the role changes; `pop/failover/roles.py` marks the later moment
from which pops lead, too. Every other part only reads it. In memory; the controller and the epoch
history hold the durable state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ...ha.engine import Role

if TYPE_CHECKING:
    from ...ha.engine import Replication
    from .cluster_view import ClusterView

_HANDING_OVER = "this leader hands over to another replica: try again"


class DurabilityPolicy(Struct, frozen=True):
    """What an OK answer waits for."""

    sync_flush: bool
    sync_replication: bool
    flush_timeout_ms: int
    slave_timeout_ms: int
    min_in_sync_replicas: int

    @property
    def immediate(self) -> bool:
        """An OK waits neither for the disk nor for other replicas."""
        return not (self.sync_flush or self.sync_replication)


class Leadership:
    """The role of this replica and the permission to write that follows from it."""

    def __init__(
        self,
        broker_id: int,
        replication: Replication,
        cluster: ClusterView,
        policy: DurabilityPolicy,
    ) -> None:
        self._broker_id = broker_id
        self._replication = replication
        self._cluster = cluster
        #: Follows the group's policy from each promotion on.
        self.policy = policy
        self.is_leader = replication.role is Role.LEADER
        #: The pop state here is the leader's, with its journal; follows a promotion after a moment.
        self.pop_leads = False
        #: A write was refused that this or another leader will soon accept.
        self.pausing = False
        #: Why writes are refused before a planned change of leader.
        self.draining: str | None = None

    def lead(self, *, sync_replication: bool, min_in_sync_replicas: int) -> None:
        """Begin to lead under the group's current policy."""
        self.draining = None
        self.pausing = False
        self.policy = replace(
            self.policy,
            sync_replication=sync_replication,
            min_in_sync_replicas=min_in_sync_replicas,
        )
        self.is_leader = True

    def follow(self) -> None:
        """Stop to lead."""
        self.is_leader = False
        self.draining = None

    def lead_pops(self) -> None:
        """The queues hold what the log held at the promotion: pops and their journal lead."""
        self.pop_leads = True

    def end_pops(self) -> None:
        """The pop state here is a follower's from now on."""
        self.pop_leads = False

    def drain(self, begin: bool) -> None:
        """Refuse writes before a planned change of leader (True), or accept them again."""
        self.draining = _HANDING_OVER if begin and self.is_leader else None
        self.pausing = begin

    def pause(self) -> None:
        """A write was refused that may soon be accepted: hold further sends."""
        self.pausing = True

    def still_pausing(self) -> bool:
        """Whether sends are held; ends once this replica accepts writes again."""
        if self.pausing:
            self.pausing = self.writes_elsewhere()
        return self.pausing

    def write_refusal(self) -> str | None:
        """Why nothing may be appended here now, apart from the disk; None if appends are
        allowed."""
        return self.draining or self._replication.write_refusal()

    def writes_elsewhere(self) -> bool:
        """Whether a refused write may soon be accepted, by another leader or by this one."""
        return not self.is_leader or self.draining is not None or not self._replication.may_write

    def leader_client(self) -> str | None:
        """The client address of this group's leader; None if this node leads or no leader is
        known."""
        hint = self._replication.leader_hint
        if hint is not None:
            return hint[1] if hint[0] != self._broker_id else None
        state = self._replication.state
        if state is not None and state.leader is not None:
            return None  # elected; the nameservers' routes may still name the former leader
        leader = self._cluster.own().leader()
        if leader is None or leader.broker_id == self._broker_id:
            return None
        return leader.client

    def leader_remoting(self) -> str:
        """The address of this group's leader for classic clients; empty if it is not known."""
        client = self.leader_client()
        members = self._cluster.own().members
        return next((each.remoting for each in members if each.client == client), "")
