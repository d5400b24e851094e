"""A group of replicas in one process with the test as its controller: it makes the states and gives
the orders."""

import asyncio
from pathlib import Path
from typing import Any

from cometmq.ha.core.group_state import Addresses, GroupState, Member, Policy, Ref
from cometmq.ha.core.in_sync_events import ProposeIsr
from cometmq.ha.core.role_machine import DirectiveArrived, LeaseRenewed, Order, Role
from cometmq.ha.rejoin import pending
from cometmq.store.config.store_config import StoreConfig
from cometmq.tests.ha.live import SEGMENT, Live, until

LEASE_NS = 10**12


class Replica(Live):
    """One replica in controller mode, with the broker's part of the hooks: EPOCH_START, and
    restarts."""

    def __init__(self, group: "Group", broker_id: int, **settings: Any) -> None:
        super().__init__(
            group.root / f"b{broker_id}",
            broker_id=broker_id,
            store=group.store,
            **{
                "broker_role": "SYNC_MASTER" if group.policy.sync else "ASYNC_MASTER",
                "enable_controller_mode": True,
                "controller_lease_ms": 2000,
                "controller_beat_interval_ms": 100,
                **settings,
            },
        )
        self.controller = group
        self.promoted: list[int] = []
        self.stepped_down: list[str] = []
        self.reopened: list[str] = []
        self.steps: list[str] = []
        self.failed: list[str] = []
        self.starts = 0
        self.told.promoted = self._on_promote
        self.told.stepped_down = self.stepped_down.append
        self.told.reopen = self._on_reopen
        self.told.disk_failed = self.failed.append

    async def start(self) -> "Replica":
        options = StoreConfig(
            store_path_root_dir=str(self.directory), mapped_file_size_commit_log=SEGMENT
        )
        self.steps += pending.run(self.directory, options)
        await super().start()
        self.starts += 1
        self.replication.roles.reports = self
        return self

    def _on_promote(self, epoch: int) -> None:
        self.promoted.append(epoch)
        self.append(b"EPOCH_START %d" % epoch)

    def changed(self) -> None:
        """See `RoleReports`: the test's controller looks for itself."""

    def proposed(self, proposal: ProposeIsr) -> None:
        asyncio.get_running_loop().call_soon(self.controller.take_proposal, self, proposal)

    def _on_reopen(self, reason: str) -> None:
        self.reopened.append(reason)
        self.controller.reopening.append(asyncio.get_running_loop().create_task(self._reopen()))

    async def _reopen(self) -> None:
        await self.stop()
        await self.start()
        self.controller.tell_state(self)

    @property
    def ref(self) -> Ref:
        return self.replication.replica.ref

    @property
    def role(self) -> Role:
        return self.replication.role

    def member(self) -> Member:
        uuid = self.replication.replica.meta.replica_uuid
        return Member(self.broker_id, uuid, Addresses(ha=self.address))


class Group:
    def __init__(self, root: Path, *, policy: Policy | None = None, **store: Any) -> None:
        self.root = root
        self.store = store
        self.policy = policy or Policy(sync=True)
        self.replicas: dict[int, Replica] = {}
        self.state = GroupState("cluster", "group")
        self.reopening: list[asyncio.Task[None]] = []
        self.answers_proposals = True

    async def start(self, *broker_ids: int, **settings: Any) -> None:
        for broker_id in broker_ids:
            replica = Replica(self, broker_id, **settings)
            await replica.start()
            self.replicas[broker_id] = replica

    async def stop(self, *broker_ids: int) -> None:
        for broker_id in broker_ids or tuple(self.replicas):
            await self.replicas.pop(broker_id).stop()

    async def __aenter__(self) -> "Group":
        return self

    async def __aexit__(self, *_error: object) -> None:
        await asyncio.gather(*self.reopening, return_exceptions=True)
        await self.stop()

    def decide(self, **changes: Any) -> GroupState:
        """Return the next version, with the newest addresses of all members."""
        state = self.state
        for replica in self.replicas.values():
            state = state.with_member(replica.member())
        self.state = state.with_(policy=self.policy, **changes)
        self.state.validate()
        return self.state

    def elect(
        self, leader: int, *, in_sync: tuple[int, ...] | None = None, dead: bool = True
    ) -> None:
        """Elect `leader` in the next epoch and send the state to every replica here."""
        ids = in_sync if in_sync is not None else (leader,)
        refs = tuple(sorted(self.replicas[broker_id].ref for broker_id in ids))
        self.decide(
            epoch=self.state.epoch + 1,
            leader=self.replicas[leader].ref,
            in_sync=refs,
            last_proposal_seq=0,
        )
        for replica in self.replicas.values():
            self.tell_state(replica, dead=dead)

    def tell_state(self, replica: Replica, *, dead: bool = True) -> None:
        is_leader = self.state.leader == replica.ref
        order = Order.PROMOTE if is_leader else Order.FOLLOW
        if is_leader:
            now_ns = replica.replication.replica.steady_ns()
            replica.replication.lease(LeaseRenewed(now_ns, LEASE_NS))
        replica.replication.directive(DirectiveArrived(self.state, order, dead))

    def take_proposal(self, replica: Replica, proposal: ProposeIsr) -> None:
        if not self.answers_proposals or proposal.version != self.state.version:
            return
        self.decide(in_sync=proposal.members, last_proposal_seq=proposal.seq)
        replica.replication.proposal_answered(proposal.seq, self.state, accepted=True)

    async def leads(self, broker_id: int) -> Replica:
        replica = self.replicas[broker_id]
        await until(lambda: replica.role is Role.LEADER)
        return replica
