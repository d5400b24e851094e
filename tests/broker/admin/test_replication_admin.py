"""The replication of a group through the Admin service: state, changes, replay of tails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from cometmq.broker.admin.replication import ReplicationAdmin
from cometmq.broker.base.cluster_view import ClusterView
from cometmq.broker.base.config import BrokerConfig
from cometmq.front.context import RequestContext
from cometmq.nodes.node_links import NodeLinks
from cometmq.proto import v1, v2
from cometmq.proto.errors import WireError
from cometmq.tests.cli.replica_doors import GROUP, NameserverDoor, ReplicaDoor

CTX = RequestContext("tool@1", "PYTHON", "5.0.0", "", "127.0.0.1:50001")
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Close the doors of a test."""
    with ExitStack() as opened:
        yield opened


def admin(*nameservers: str) -> ReplicationAdmin:
    """Return the handlers of a node with these nameservers."""
    config = BrokerConfig(broker_name=GROUP, namesrv_addr=";".join(nameservers))
    return ReplicationAdmin(config, NodeLinks("secret"), ClusterView(GROUP, lambda: 0))


def led(stack: ExitStack, *followers: ReplicaDoor, active: bool = True) -> NameserverDoor:
    """Return the nameserver of a group that broker 0 leads."""
    state = v1.GroupState(cluster="c", group=GROUP, version=3, epoch=4)
    state.leader.broker_id, state.leader.incarnation = 0, 1
    replicas = [ReplicaDoor(0, role="leader"), *followers]
    for one in replicas:
        stack.enter_context(one)
    return stack.enter_context(NameserverDoor(replicas, state, active=active))


def replaying(file_id: str = "", *, dry_run: bool = False) -> v1.ChangeReplicationRequest:
    """Return a request to replay the tails of all replicas."""
    tails = v1.ReplayTails(broker_id=-1, file_id=file_id)
    return v1.ChangeReplicationRequest(replay=tails, dry_run=dry_run)


async def test_the_state_is_that_of_the_active_controller_and_of_each_replica(
    stack: ExitStack,
) -> None:
    one, gone = ReplicaDoor(1), ReplicaDoor(2)
    names = led(stack, one, gone)
    gone.stop()
    idle = stack.enter_context(NameserverDoor(names.replicas, names.state, active=False))
    found = await admin(NOWHERE, idle.address, names.address).describe(
        v1.DescribeReplicationRequest(), CTX
    )
    assert (found.code, found.group, found.report.controller) == (v2.OK, GROUP, names.address)
    assert list(found.silent_nameservers) == [NOWHERE]
    assert [(each.broker_id, each.HasField("status")) for each in found.replicas] == [
        (0, True),
        (1, True),
        (2, False),
    ]
    assert found.replicas[2].error
    assert one.tokens == {"secret"}, "the node's own token"


async def test_a_change_goes_to_the_active_controller_for_this_group_only(
    stack: ExitStack,
) -> None:
    names = led(stack, ReplicaDoor(1))
    other = v1.SwitchoverRequest(group="other", to=1, max_wait_ms=1 << 40)
    node = admin(names.address)
    answer = await node.change(v1.ChangeReplicationRequest(switchover=other, dry_run=True), CTX)
    assert list(answer.steps) == ["decided"]
    policy = v1.SetPolicyRequest(sync=True)
    await node.change(v1.ChangeReplicationRequest(policy=policy), CTX)
    first, second = names.asked
    assert (first.group, first.to, first.dry_run, first.max_wait_ms) == (GROUP, 1, True, 60_000)
    assert (second.group, second.sync, second.dry_run) == (GROUP, True, False)


async def test_the_plan_of_a_drain_changes_nothing(stack: ExitStack) -> None:
    names = led(stack, ReplicaDoor(1))
    drain = v1.SetDrainRequest(drain=True)
    node = admin(names.address)
    plan = await node.change(v1.ChangeReplicationRequest(drain=drain, dry_run=True), CTX)
    assert "no other group" in plan.steps[0]
    assert not names.asked
    again = v1.ChangeReplicationRequest(drain=v1.SetDrainRequest(), dry_run=True)
    with pytest.raises(WireError, match="already"):
        await node.change(again, CTX)


async def test_a_change_without_an_active_controller_is_refused(stack: ExitStack) -> None:
    names = led(stack, active=False)
    asked = v1.ChangeReplicationRequest(switchover=v1.SwitchoverRequest(to=1))
    with pytest.raises(WireError, match="active controller"):
        await admin(names.address).change(asked, CTX)
    with pytest.raises(WireError, match="no controller decides"):
        await admin().change(asked, CTX)
    with pytest.raises(WireError, match="names no change"):
        await admin(names.address).change(v1.ChangeReplicationRequest(), CTX)


async def test_a_tail_of_two_replicas_is_sent_once_and_a_plan_sends_nothing(
    stack: ExitStack,
) -> None:
    tail = v1.ArchivedTail(file_id="2-100-200", epoch=2, start=100, end=200, messages=8, crc32=7)
    one, two = ReplicaDoor(1, tails=[tail]), ReplicaDoor(2, tails=[tail])
    node = admin(led(stack, one, two).address)
    plan = await node.change(replaying(dry_run=True), CTX)
    assert (plan.messages, one.calls) == (8, ["replay True"])
    done = await node.change(replaying(), CTX)
    assert (done.messages, two.calls[-1]) == (8, "replay False but 2-100-200")
    assert "broker 0 has no archived tail to replay" in done.steps
    unknown = v1.ChangeReplicationRequest(replay=v1.ReplayTails(broker_id=9))
    with pytest.raises(WireError, match="no broker with id 9"):
        await node.change(unknown, CTX)
