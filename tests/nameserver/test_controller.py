"""A real nameserver with `controller=true`: sessions, elections, operator commands, invalid
calls."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from cometmq.proto import paths, v1, v2
from cometmq.tests.nameserver.fake_broker import (
    TOKEN,
    WAIT_S,
    FakeBroker,
    Link,
    controller,
    joined,
    until,
)


async def pair(link: Link) -> tuple[FakeBroker, FakeBroker]:
    """A leader and a follower in sync."""
    leader, follower = FakeBroker(0, [link]), FakeBroker(1, [link])
    leader.start()
    await until(lambda: leader.leads)
    follower.start()
    await until(lambda: follower.state.version > 0)
    await joined(leader, follower, link)
    return leader, follower


async def stop(*brokers: FakeBroker) -> None:
    for broker in brokers:
        await broker.stop()


async def test_a_new_group_gets_its_leader_and_the_leader_a_lease(tmp_path: Path) -> None:
    async with controller(tmp_path) as link:
        leader, follower = await pair(link)
        await until(lambda: any(d.lease_for_seq for d in leader.directives))
        assert not any(d.lease_for_seq for d in follower.directives)
        assert follower.directives[-1].order == v1.ORDER_FOLLOW
        answer = await link.groups()
        assert answer.code == v2.OK
        (report,) = answer.groups
        assert (report.phase, report.active) == ("stable", True)
        assert [r.in_sync for r in report.replicas] == [True, True]
        assert answer.steps == ["g: broker 0 leads epoch 1"]
        await stop(leader, follower)


async def test_a_reported_exit_promotes_the_follower_at_once(tmp_path: Path) -> None:
    async with controller(tmp_path, controller_lease_ms=60_000) as link:
        leader, follower = await pair(link)
        await leader.stop()
        began = time.monotonic()
        request = v1.ProcessExitedRequest(replica=leader.identity, status="signal 9")
        answer = await link.call(paths.PROCESS_EXITED, request, v1.ProcessExitedResponse)
        assert answer.known
        await until(lambda: follower.leads)
        assert time.monotonic() - began < 30  # half the lease: it did not wait for the silence
        order = next(d for d in follower.directives if d.order == v1.ORDER_PROMOTE)
        assert order.old_leader_is_dead
        await follower.stop()


async def test_silence_for_a_lease_elects_another_leader(tmp_path: Path) -> None:
    async with controller(tmp_path) as link:
        leader, follower = await pair(link)
        follower.heartbeat.update(heard_age_ms=-1)
        await leader.stop()
        await until(lambda: follower.leads)
        order = next(d for d in follower.directives if d.order == v1.ORDER_PROMOTE)
        assert not order.old_leader_is_dead
        assert follower.state.epoch == 2
        await follower.stop()


async def test_no_election_while_the_follower_receives_the_leader(tmp_path: Path) -> None:
    async with controller(tmp_path) as link:
        leader, follower = await pair(link)
        follower.heartbeat.update(heard_epoch=1, heard_age_ms=5)
        await leader.stop()
        await asyncio.sleep(1.5)
        assert not follower.leads
        async with asyncio.timeout(WAIT_S):
            answer = await link.groups("g")
            while answer.groups[0].phase != "suspect_leader":
                await asyncio.sleep(0.02)
                answer = await link.groups("g")
        assert not follower.leads
        assert "its followers receive its frames" in answer.steps[0]
        await follower.stop()


async def test_a_restarted_leader_leads_again_in_a_new_epoch(tmp_path: Path) -> None:
    async with controller(tmp_path, controller_lease_ms=60_000) as link:
        leader = FakeBroker(0, [link])
        leader.start()
        await until(lambda: leader.leads)
        await leader.stop()
        again = FakeBroker(0, [link], incarnation=2, **leader.heartbeat)
        again.start()
        await until(lambda: again.leads)
        assert again.state.epoch == 2
        await again.stop()


async def test_switchover_in_steps(tmp_path: Path) -> None:
    async with controller(tmp_path) as link:
        leader, follower = await pair(link)
        request = v1.SwitchoverRequest(group="g", to=1, dry_run=True)
        plan = await link.call(paths.SWITCHOVER, request, v1.GroupsResponse)
        assert plan.code == v2.OK
        assert any("would elect broker 1" in step for step in plan.steps)
        assert leader.leads
        request.dry_run = False
        answer = await link.call(paths.SWITCHOVER, request, v1.GroupsResponse)
        assert answer.code == v2.OK, answer
        assert answer.message == "broker 1 leads epoch 2"
        assert any("stepped down" in step for step in answer.steps)
        assert follower.leads
        assert not leader.leads
        again = await link.call(paths.SWITCHOVER, request, v1.GroupsResponse)
        assert (again.code, again.message) == (v2.BAD_REQUEST, "broker 1 leads already")
        await stop(leader, follower)


async def test_a_leader_that_does_not_step_down_keeps_leading(tmp_path: Path) -> None:
    async with controller(tmp_path) as link:
        leader, follower = await pair(link)
        leader.obeys = False
        request = v1.SwitchoverRequest(group="g", to=1)
        answer = await link.call(paths.SWITCHOVER, request, v1.GroupsResponse)
        assert answer.code == v2.HA_NOT_AVAILABLE
        assert "did not step down" in answer.message
        assert leader.state.epoch == 1
        count = len(leader.directives)
        await until(lambda: any(d.lease_for_seq for d in leader.directives[count:]))
        await stop(leader, follower)


async def test_a_suspect_sole_replica_is_held_until_an_operator_forces_it(tmp_path: Path) -> None:
    async with controller(tmp_path) as link:
        leader = FakeBroker(0, [link])
        leader.start()
        await until(lambda: leader.leads)
        await leader.stop()
        again = FakeBroker(0, [link], incarnation=2, **{**leader.heartbeat, "suspect": True})
        again.heartbeat["log_end"] = again.heartbeat["flushed_end"] = again.heartbeat["confirm"] = (
            40
        )
        again.start()
        await until(lambda: again.state.hold_reason)
        assert again.state.hold_since_ms > 0
        await until(lambda: again.directives[-1].order == v1.ORDER_HOLD)
        request = v1.ForceElectRequest(group="g", to=0, reason="test")
        refused = await link.call(paths.FORCE_ELECT, request, v1.GroupsResponse)
        assert refused.code == v2.BAD_REQUEST
        assert "accept-loss" in refused.message
        request.accept_loss = True
        answer = await link.call(paths.FORCE_ELECT, request, v1.GroupsResponse)
        assert answer.code == v2.OK, answer
        assert (answer.lost_start, answer.lost_end) == (40, 100)
        assert again.state.accept_loss
        assert again.leads
        await again.stop()


async def test_drain_is_on_disk_and_in_the_routes(tmp_path: Path) -> None:
    async with controller(tmp_path) as link:
        leader, follower = await pair(link)
        answer = await link.call(
            paths.SET_DRAIN, v1.SetDrainRequest(group="g", drain=True), v1.GroupsResponse
        )
        assert answer.code == v2.OK, answer
        await until(lambda: leader.state.drain)
        await stop(leader, follower)
    async with controller(tmp_path) as link:
        answer = await link.groups("g")
        assert answer.groups[0].state.drain


async def test_a_policy_is_changed_by_command_and_is_on_disk(tmp_path: Path) -> None:
    async with controller(tmp_path) as link:
        leader, follower = await pair(link)
        before = leader.state
        request = v1.SetPolicyRequest(
            group="g", sync=not before.policy.sync, min_in_sync=1, dry_run=True
        )
        plan = await link.call(paths.SET_POLICY, request, v1.GroupsResponse)
        assert plan.code == v2.OK
        assert any("for an epoch with the new policy" in step for step in plan.steps)
        request.dry_run = False
        answer = await link.call(paths.SET_POLICY, request, v1.GroupsResponse)
        assert answer.code == v2.OK, answer
        assert answer.message.endswith("broker 0 leads epoch 2")
        assert leader.leads
        assert leader.state.policy.sync is not before.policy.sync
        request = v1.SetPolicyRequest(group="g", min_in_sync=5)
        refused = await link.call(paths.SET_POLICY, request, v1.GroupsResponse)
        assert refused.code == v2.BAD_REQUEST
        await stop(leader, follower)
    async with controller(tmp_path) as link:
        report = (await link.groups("g")).groups[0]
        assert report.state.policy.sync is not before.policy.sync


async def test_invalid_sessions_are_refused(tmp_path: Path) -> None:
    async with controller(tmp_path) as link:
        method = link.channel.stream_stream(
            paths.CONTROLLER_SESSION, response_deserializer=v1.Directive.FromString
        )

        async def fails(code: grpc.StatusCode, metadata: object, *heartbeats: bytes) -> str:
            call = method(metadata=metadata)
            with suppress(grpc.aio.AioRpcError):
                for heartbeat in heartbeats:
                    await call.write(heartbeat)
            with suppress(grpc.aio.AioRpcError):
                async for _ in call:
                    pass
            assert await call.code() == code
            return await call.details() or ""

        await fails(grpc.StatusCode.PERMISSION_DENIED, ())
        # Without a heartbeat: after a write that meets the refusal, grpc reports INTERNAL instead.
        await fails(grpc.StatusCode.PERMISSION_DENIED, (("x-cometmq-token", "wrong"),))
        await fails(grpc.StatusCode.INVALID_ARGUMENT, TOKEN, b"\xff\xff\xff")
        await fails(grpc.StatusCode.INVALID_ARGUMENT, TOKEN, b"")
        broker = FakeBroker(0, [link])
        broker.identity.replica_uuid = ""
        text = await fails(
            grpc.StatusCode.INVALID_ARGUMENT, TOKEN, broker.message().SerializeToString()
        )
        assert "uuid" in text
        good, other = FakeBroker(0, [link]), FakeBroker(1, [link])
        await fails(
            grpc.StatusCode.INVALID_ARGUMENT,
            TOKEN,
            good.message().SerializeToString(),
            other.message().SerializeToString(),
        )
        liar = FakeBroker(2, [link], log_start=10, log_end=5)
        await fails(grpc.StatusCode.INVALID_ARGUMENT, TOKEN, liar.message().SerializeToString())
        with pytest.raises(grpc.aio.AioRpcError) as denied:
            await link.call(paths.GET_GROUPS, v1.GetGroupRequest(), v1.GroupsResponse, ())
        assert denied.value.code() == grpc.StatusCode.PERMISSION_DENIED


async def test_two_brokers_with_one_identity(tmp_path: Path) -> None:
    async with controller(tmp_path) as link:
        leader, follower = await pair(link)
        thief = FakeBroker(0, [link], uuid="other-disk")
        thief.start()
        await until(lambda: thief.errors)
        assert thief.errors[0].code() == grpc.StatusCode.ALREADY_EXISTS
        assert "give this one another brokerId" in thief.errors[0].details()
        assert leader.leads
        assert leader.state.epoch == 1
        older = FakeBroker(1, [link], incarnation=0)
        older.identity.incarnation = 1
        older.identity.replica_uuid = "copied"
        older.start()
        await until(lambda: older.errors)
        await stop(leader, follower, thief, older)


async def test_a_replayed_old_heartbeat_changes_nothing(tmp_path: Path) -> None:
    async with controller(tmp_path) as link:
        leader, follower = await pair(link)
        old = FakeBroker(0, [link]).message(first=True).SerializeToString()
        call = link.channel.stream_stream(
            paths.CONTROLLER_SESSION, response_deserializer=v1.Directive.FromString
        )(metadata=TOKEN)
        await call.write(old)
        await asyncio.sleep(0.3)
        call.cancel()
        answer = await link.groups("g")
        assert answer.groups[0].replicas[0].beat.log_end == leader.heartbeat["log_end"]
        assert leader.leads
        await stop(leader, follower)


async def test_an_unknown_group_is_reported_by_name(tmp_path: Path) -> None:
    async with controller(tmp_path) as link:
        answer = await link.groups("missing")
        assert answer.code == v2.NOT_FOUND
        assert "no group missing" in answer.message
