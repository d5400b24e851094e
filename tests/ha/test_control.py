"""ReplicaControl over the wire: a static group is promoted by calls, and every loss needs
accept_loss."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from cometmq.front.config import DoorConfig
from cometmq.ha.core.group_state import GroupState, Policy
from cometmq.ha.core.role_machine import Role
from cometmq.ha.state.state_codec import state_message
from cometmq.nodes.node_links import TOKEN_KEY
from cometmq.proto import paths, v1, v2
from cometmq.tests.front.raw_http2 import RawConnection, message
from cometmq.tests.ha.group import Group
from cometmq.tests.ha.group import Replica as Elected
from cometmq.tests.ha.live import Live, Pair, assert_equal_logs, until


async def call(live: Live, path: str, request: Any, kind: Any, token: str = "") -> Any:
    async with grpc.aio.insecure_channel(live.address) as channel:
        raw = await channel.unary_unary(path)(
            request.SerializeToString(), metadata=((TOKEN_KEY, token),) if token else ()
        )
    return kind.FromString(raw)


async def status(live: Live) -> Any:
    return await call(live, paths.REPLICA_STATUS, v1.StatusRequest(), v1.ReplicaStatus)


def decided(leader: Live, version: int, epoch: int, *others: Live) -> GroupState:
    """What scripts/promote makes of the replicas that it reached."""
    from cometmq.ha.core.group_state import Addresses, Member

    state = GroupState("cluster", "group", version, epoch, leader.replication.replica.ref)
    for live in (leader, *others):
        meta = live.replication.replica.meta
        address = Addresses(ha=live.address)
        state = state.with_member(Member(live.broker_id, meta.replica_uuid, address))
    return state.with_(
        version=version, in_sync=(leader.replication.replica.ref,), policy=Policy(sync=True)
    )


async def test_status_has_the_fields_for_promotion_scripts(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        follower = await pair.follower(leader)
        end = await leader.append_random(1, 20)
        await assert_equal_logs(leader, follower)
        first, second = await status(leader), await status(follower)
        assert (first.code, first.role, second.role) == (v2.OK, "leader", "follower")
        assert first.beat.log_end == second.beat.log_end == end
        assert [(each.epoch, each.start) for each in second.epochs] == [(1, 0)]
        assert second.beat.heard_epoch == 1
        assert second.beat.replica.replica_uuid == follower.replication.replica.meta.replica_uuid


async def test_a_script_promotes_a_static_slave_and_the_master_follows(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        master = await pair.leader()
        slave = await pair.follower(master)
        end = await master.append_random(1, 50)
        await assert_equal_logs(master, slave)
        await until(lambda: master.replication.confirm == end)
        fenced = await call(slave, paths.FENCE, v1.FenceRequest(epoch=2), v1.ReplicaStatus)
        assert fenced.beat.promised_epoch == 2
        await call(master, paths.FENCE, v1.FenceRequest(epoch=2), v1.ReplicaStatus)
        assert master.replication.role is Role.FENCED
        state = state_message(decided(slave, 1, 2, master))
        answer = await call(
            slave, paths.PROMOTE, v1.PromoteRequest(state=state), v1.ControlResponse
        )
        assert (answer.code, answer.status.role) == (v2.OK, "leader")
        answer = await call(master, paths.FOLLOW, v1.FollowRequest(state=state), v1.ControlResponse)
        assert answer.code == v2.OK
        await slave.append_random(2, 50)
        await assert_equal_logs(slave, master)
        # Both keep their role over a restart, against their configuration.
        port = slave.replication.port
        await pair.stop_all()
        slave = await pair.follower("127.0.0.1:1", ha_listen_port=port)
        master = await pair.leader()
        assert slave.replication.role is Role.LEADER
        await slave.append_random(3, 20)
        await assert_equal_logs(slave, master)


async def test_a_static_master_that_was_fenced_does_not_lead_after_a_restart(
    tmp_path: Path,
) -> None:
    async with Pair(tmp_path) as pair:
        master = await pair.leader()
        await call(master, paths.FENCE, v1.FenceRequest(epoch=2), v1.ReplicaStatus)
        await pair.stop(master)
        master = await pair.leader()
        assert master.replication.role is Role.FENCED
        assert master.replication.write_refusal() is not None


async def test_a_planned_step_down_waits_for_the_followers(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        master = await pair.leader()
        slave = await pair.follower(master)
        await until(lambda: master.replication.in_sync_count == 2)
        end = await master.append_random(1, 100)
        request = v1.StepDownRequest(epoch=2, drain_ms=10_000)
        answer = await call(master, paths.STEP_DOWN, request, v1.ControlResponse)
        assert answer.code == v2.OK, answer.message
        assert slave.log.log_end == end
        assert master.replication.write_refusal() is not None


async def test_in_controller_mode_promote_is_refused(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.start(0, 1)
        group.elect(0)
        leader = await group.leads(0)
        state = state_message(group.state.with_(epoch=9, leader=group.replicas[1].ref))
        request = v1.PromoteRequest(state=state)
        answer = await call(group.replicas[1], paths.PROMOTE, request, v1.ControlResponse)
        assert answer.code != v2.OK
        assert "switchover" in answer.message
        assert leader.role is Role.LEADER


async def test_a_replica_reseeds_on_request(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.start(0, 1)
        group.elect(0)
        leader = await group.leads(0)
        await leader.append_random(1, 50)
        follower: Elected = group.replicas[1]
        await assert_equal_logs(leader, follower)
        await until(lambda: len(group.state.in_sync) == 2)
        uuid = follower.replication.replica.meta.replica_uuid
        refused = await call(follower, paths.RESEED, v1.ReseedRequest(), v1.ControlResponse)
        assert refused.code != v2.OK
        request = v1.ReseedRequest(accept_loss=True, dry_run=True)
        planned = await call(follower, paths.RESEED, request, v1.ControlResponse)
        assert planned.code == v2.OK
        assert planned.steps
        assert follower.reopened == []
        request = v1.ReseedRequest(accept_loss=True)
        await call(follower, paths.RESEED, request, v1.ControlResponse)
        await until(lambda: follower.starts == 2)
        assert follower.replication.replica.meta.replica_uuid != uuid
        group.decide(in_sync=(leader.ref,))  # the controller sees another disk
        leader.replication.roles.state_seen(group.state)
        group.tell_state(follower)
        await assert_equal_logs(leader, follower)
        refused = await call(leader, paths.RESEED, v1.ReseedRequest(), v1.ControlResponse)
        assert refused.code != v2.OK


async def test_an_unauthenticated_caller_may_not_control(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader(cluster_token="the-token-of-the-tests")
        for path in (paths.REPLICA_STATUS, paths.FENCE, paths.GET_DIGESTS):
            async with grpc.aio.insecure_channel(leader.address) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary(path)(b"", metadata=((TOKEN_KEY, "wrong"),))
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert leader.replication.role is Role.LEADER
        async with grpc.aio.insecure_channel(leader.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(paths.FENCE)(
                    b"\xff\xff", metadata=((TOKEN_KEY, "the-token-of-the-tests"),)
                )
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_unfinished_requests_end(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        door = DoorConfig(front_request_timeout=500)
        leader = await pair.leader(cluster_token="the-token-of-the-tests", door=door)
        for path in (paths.REPLICA_STATUS, paths.GET_DIGESTS):
            raw = await RawConnection.open(int(leader.address.rpartition(":")[2]))
            raw.start(1, path, x_cometmq_token="wrong")
            raw.data(1, message(b"", length=100), end=False)
            assert (await raw.until_end(1))[-1].ends
            raw.start(3, path, x_cometmq_token="the-token-of-the-tests")
            raw.data(3, message(b"", length=100), end=False)
            assert (await raw.until_end(3))[-1].ends
            raw.abort()
        token = "the-token-of-the-tests"
        answer = await call(
            leader, paths.REPLICA_STATUS, v1.StatusRequest(), v1.ReplicaStatus, token
        )
        assert answer.role == "leader"


async def test_a_cut_on_request_leaves_an_archive(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.start(0, 1)
        group.elect(0)
        leader = await group.leads(0)
        common = leader.log.log_end
        await leader.append_random(1, 10)
        follower = group.replicas[1]
        await assert_equal_logs(leader, follower)
        await until(lambda: follower.replication.confirm == follower.log.log_end)
        refused = await call(
            follower, paths.CUT_TAIL, v1.CutTailRequest(to=common), v1.ControlResponse
        )
        assert refused.code != v2.OK, "it is confirmed"
        request = v1.CutTailRequest(to=common, reason="a test", accept_loss=True)
        await call(follower, paths.CUT_TAIL, request, v1.ControlResponse)
        await until(lambda: follower.starts == 2)
        await assert_equal_logs(leader, follower)
        assert list((follower.directory / "ha" / "diverged").glob("*.log"))
        await asyncio.sleep(0)
