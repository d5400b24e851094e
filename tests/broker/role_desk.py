"""Groups whose leader is elected by the test: replicas in controller mode, without a nameserver."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cometmq.broker.assembly.parts import Broker
from cometmq.ha.config import BrokerRole
from cometmq.ha.core.group_state import Addresses, GroupState, Member, Policy
from cometmq.ha.core.role_machine import (
    DirectiveArrived,
    LeaseRenewed,
    Order,
    StateSeen,
    StepDownOrdered,
)
from cometmq.ha.engine import Role
from cometmq.tests.broker.live import Live, Settings, running, settings, until

NOBODY_THERE = "127.0.0.1:1"
HOUR_NS = 3_600_000_000_000


def replica(directory: Path, broker_id: int, *, sync: bool = False, **broker: Any) -> Settings:
    """Return the settings of a replica that waits for directives."""
    base = settings(directory, broker_id=broker_id, namesrv_addr=NOBODY_THERE, **broker)
    role: BrokerRole = "SYNC_MASTER" if sync else "ASYNC_MASTER"
    return replace(
        base,
        ha=replace(
            base.ha,
            enable_controller_mode=True,
            broker_role=role,
            ha_beat_interval_ms=100,
            slave_timeout=60_000,  # a stall of the machine does not fail a send
        ),
    )


@dataclass
class Elections:
    """Sends the decisions of a controller directly to the replicas."""

    replicas: dict[int, Live] = field(default_factory=dict)
    state: GroupState | None = None
    epoch: int = 0
    sync: bool = False
    _contexts: dict[int, AsyncExitStack] = field(default_factory=dict)

    def node(self, broker_id: int) -> Broker:
        """Return the parts of a replica."""
        return self.replicas[broker_id].node

    async def start(self, chosen: Settings) -> Live:
        """Start a replica."""
        context = AsyncExitStack()
        live = await context.enter_async_context(running(chosen))
        self._contexts[chosen.broker.broker_id] = context
        self.replicas[chosen.broker.broker_id] = live
        return live

    async def stop(self, broker_id: int) -> None:
        """Stop a replica."""
        del self.replicas[broker_id]
        await self._contexts.pop(broker_id).aclose()

    async def elect(self, broker_id: int, *followers: int) -> Broker:
        """Elect a leader for a new epoch with these followers in sync; return when it leads."""
        self.epoch += 1
        self.send_state(broker_id, *followers)
        node = self.node(broker_id)
        await until(lambda: node.replication.role is Role.LEADER and node.leadership.pop_leads)
        return node

    def send_state(self, broker_id: int, *followers: int) -> None:
        """Send the group's state to all replicas."""
        refs = {one: live.node.replication.replica.ref for one, live in self.replicas.items()}
        members = tuple(
            Member(
                one,
                live.node.replication.replica.meta.replica_uuid,
                Addresses(live.bound.client, live.bound.ha, live.bound.metrics),
            )
            for one, live in sorted(self.replicas.items())
        )
        self.state = GroupState(
            "DefaultCluster",
            self.node(broker_id).runtime.config.broker_name,
            version=1 if self.state is None else self.state.version + 1,
            epoch=self.epoch,
            leader=refs[broker_id],
            in_sync=tuple(sorted(refs[one] for one in (broker_id, *followers))),
            members=members,
            policy=Policy(self.sync, False, 1),
        )
        for one, live in self.replicas.items():
            roles = live.node.replication.roles
            if one == broker_id:
                roles.directive(
                    DirectiveArrived(self.state, Order.PROMOTE, old_leader_is_dead=True)
                )
                now_ns = live.node.runtime.clock.steady_ns()
                live.node.replication.lease(LeaseRenewed(now_ns, HOUR_NS))
            else:
                roles.directive(DirectiveArrived(self.state, Order.FOLLOW))

    def resend_state(self, broker_id: int) -> None:
        """Send the state again, with the members' new addresses."""
        assert self.state is not None
        members = tuple(
            Member(
                one,
                live.node.replication.replica.meta.replica_uuid,
                Addresses(live.bound.client, live.bound.ha, live.bound.metrics),
            )
            for one, live in sorted(self.replicas.items())
        )
        self.state = self.state.with_(members=members)
        for live in self.replicas.values():
            live.node.replication.roles.directive(DirectiveArrived(self.state, Order.NONE))

    def remove_leader(self) -> None:
        """Report the leader as gone, before an election."""
        assert self.state is not None
        self.state = self.state.with_(leader=None)
        for live in self.replicas.values():
            roles = live.node.replication.roles
            roles.feed(StateSeen(self.state))
            if live.node.leadership.is_leader:
                roles.feed(StepDownOrdered(0, "a test"))


@asynccontextmanager
async def elections(*chosen: Settings, sync: bool = False) -> AsyncIterator[Elections]:
    """Run replicas of one group without a leader."""
    group = Elections(sync=sync)
    try:
        for one in chosen:
            await group.start(one)
        yield group
    finally:
        for broker_id in list(group.replicas):
            await group.stop(broker_id)
