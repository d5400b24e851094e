"""A leader and its follower as two real brokers: topics, forwarding, reads without the leader."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.metadata.tables import Topic
from cometmq.broker.server import BrokerServer
from cometmq.proto import paths, v1, v2
from cometmq.tests.broker.live import (
    HELD_S,
    SHORT_HOLDS,
    Live,
    RpcError,
    Settings,
    assignment,
    create_topic,
    follower_of,
    nameserver,
    route,
    running,
    settings,
    telemetry,
    until,
)
from cometmq.tests.broker.test_server import producer_settings
from cometmq.tests.harness.wire import Wire, normal_message, receive_request


def in_sync(chosen: Settings, minimum: int = 1) -> Settings:
    """Return the settings of a synchronous master, whose sends a stall does not fail."""
    ha = replace(
        chosen.ha,
        broker_role="SYNC_MASTER",
        min_in_sync_replicas=minimum,
        slave_timeout=60_000,
        ha_in_sync_lag_ms=90_000,
    )
    return replace(chosen, ha=ha)


@asynccontextmanager
async def pair(path: Path, *, sync: bool = False) -> AsyncIterator[tuple[Live, Live, str]]:
    """Run a nameserver, a leader and a follower that finds the leader through the nameserver."""
    async with nameserver() as address:
        first = settings(path / "a", namesrv_addr=address)
        async with running(in_sync(first) if sync else first) as leader:
            second = settings(path / "b", namesrv_addr=address, broker_id=1)
            second = replace(second, ha=replace(second.ha, broker_role="SLAVE"))
            async with running(second, door=SHORT_HOLDS) as follower:
                await until(lambda: follower.node.replication.leader_alive)
                await until(lambda: len(leader.node.cluster.own().members) == 2)
                await until(lambda: len(follower.node.cluster.own().members) == 2)
                yield leader, follower, f"{leader.bound.client};{follower.bound.client}"


def logs_equal(leader: Live, follower: Live) -> bool:
    """Return whether both logs have the same bytes."""
    end = leader.node.store.log_end
    return follower.node.store.log_end == end and follower.node.store.log_crc(
        0, end
    ) == leader.node.store.log_crc(0, end)


@pytest.mark.parametrize("sync", [False, True])
async def test_both_nodes_are_access_points(tmp_path: Path, sync: bool) -> None:
    async with pair(tmp_path, sync=sync) as (leader, follower, both), follower.client() as wire:
        made = await create_topic(wire, "t", queues=2)
        assert made.code == v2.OK, "the follower passed it on"
        await until(lambda: follower.node.metadata.topic("t"))
        assert leader.node.metadata.topic("t") == follower.node.metadata.topic("t")
        await until(lambda: "t" in leader.node.cluster.own().topics)
        for live in (leader, follower):
            async with live.client() as own:
                found = await route(own, "t", live.bound.client)
                (broker,) = {queue.broker.SerializeToString() for queue in found.message_queues}
                named = v2.Broker.FromString(broker).endpoints.addresses
                assert ";".join(f"{a.host}:{a.port}" for a in named) == both
                plain = await assignment(own, "t", "g")
                assert plain.assignments[0].message_queue.id == -1
        for number in range(20):
            sent = await wire.send([normal_message("t", f"id{number}", b"x")])
            assert sent.status.code == v2.OK
        got = await receive_all(wire, 20)
        assert (await wire.ack("t", "g", got)).status.code == v2.OK
        assert not leader.node.pop.in_flight("t", "g", 0)
        await until(lambda: logs_equal(leader, follower))
        await until(lambda: follower.node.store.max_offset("t", 0) == 10)
        described = await wire.call(
            paths.DESCRIBE_CLUSTER, v1.DescribeClusterRequest(), v1.DescribeClusterResponse
        )
        assert [(m.role, m.alive) for m in described.members] == [
            (v1.LEADER, True),
            (v1.FOLLOWER, True),
        ]
        assert described.replication == ("sync" if sync else "async")
        assert all(member.in_sync for member in described.members)


async def receive_all(wire: Wire, count: int) -> list[Any]:
    """Receive until there are `count` messages."""
    got: list[Any] = []
    while len(got) < count:
        code, messages = await wire.receive(receive_request("t", "g", await_s=5), within_s=60)
        assert code == v2.OK, f"{len(got)} of {count}"
        got += messages
    return got


async def test_a_follower_serves_reads_and_holds_writes_without_its_leader(tmp_path: Path) -> None:
    async with pair(tmp_path) as (leader, follower, _), follower.client() as wire:
        await create_topic(wire, "t", queues=1)
        await wire.send([normal_message("t", f"id{number}", b"x") for number in range(10)])
        first = await receive_all(wire, 10)
        await wire.ack("t", "g", first[:4])
        await until(lambda: (follower.node.offsets.get("t", "g", 0) or 0) >= 4)
        await until(lambda: logs_equal(leader, follower))
        await leader.server.stop(0.2)
        await until(lambda: not follower.node.replication.leader_alive)
        assert (await route(wire, "t")).status.code == v2.OK
        beat = v2.HeartbeatRequest(client_type=v2.PUSH_CONSUMER, group=v2.Resource(name="g"))
        answer = await wire.call(paths.HEARTBEAT, beat, v2.HeartbeatResponse)
        assert answer.status.code == v2.OK
        stream = telemetry(wire)
        await stream.write(producer_settings("t"))
        assert (await stream.read()).status.code == v2.OK
        stream.cancel()
        # The leader's deliveries are in the log, and in flight here too.
        assert (await wire.ack("t", "g", first[4:6])).status.code == v2.OK
        assert follower.node.pop.in_flight("t", "g", 0) == 4
        follower.node.runtime.clock.advance_wall_ms(60_000)
        again = await receive_all(wire, 4)
        assert sorted(m.system_properties.message_id for m in again) == [
            f"id{number}" for number in range(6, 10)
        ]
        assert {m.system_properties.delivery_attempt for m in again} == {2}
        assert (await wire.ack("t", "g", again)).status.code == v2.OK
        assert follower.node.offsets.get("t", "g", 0) == 10
        assert follower.node.runtime.counters.redelivered_without_handover == 0
        refused = await wire.send([normal_message("t", "late", b"x")], HELD_S)
        assert refused.status.code == v2.HA_NOT_AVAILABLE
        group = await create_topic(wire, "new", within_s=HELD_S)
        assert group.code == v2.HA_NOT_AVAILABLE


async def test_used_up_messages_are_not_redelivered_while_dead_letters_wait(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as (leader, follower, _), follower.client() as wire:
        await create_topic(wire, "t", queues=1)
        group = v1.CreateGroupRequest(name="g", max_attempts=2)
        made = await wire.call(paths.CREATE_GROUP, group, v1.CreateGroupResponse)
        assert made.code == v2.OK
        await wire.send([normal_message("t", "poison", b"x")])
        await until(lambda: logs_equal(leader, follower))
        await leader.server.stop(0.2)
        await until(lambda: not follower.node.replication.leader_alive)
        for attempt in (1, 2):
            (message,) = await receive_all(wire, 1)
            assert message.system_properties.delivery_attempt == attempt
            follower.node.runtime.clock.advance_wall_ms(60_000)
        code, messages = await wire.receive_now(receive_request("t", "g"))
        assert (code, messages) == (v2.MESSAGE_NOT_FOUND, [])
        assert follower.node.pop.in_flight("t", "g", 0) == 1


async def test_a_diverged_follower_serves_no_reads_without_its_leader(tmp_path: Path) -> None:
    async with running(settings(tmp_path / "b")) as other, other.client() as wire:
        await create_topic(wire, "t", queues=1)
        await wire.send([normal_message("t", "stray", b"x")])
    async with (
        running(settings(tmp_path / "a")) as leader,
        running(follower_of(leader.bound, tmp_path / "b"), door=SHORT_HOLDS) as follower,
    ):
        await until(lambda: follower.node.replication.diverged is not None)
        await leader.server.stop(0.2)
        async with follower.client() as wire:
            code, messages = await wire.receive(receive_request("t", "g"), HELD_S)
        assert (code, messages) == (v2.HA_NOT_AVAILABLE, [])


async def test_held_sends_succeed_when_the_leader_returns(tmp_path: Path) -> None:
    async with nameserver() as address:
        chosen = settings(tmp_path / "a", namesrv_addr=address)
        async with running(chosen) as leader:
            ports = {
                "grpc_server_port": int(leader.bound.client.rpartition(":")[2]),
            }
            second = settings(tmp_path / "b", namesrv_addr=address, broker_id=1)
            second = replace(second, ha=replace(second.ha, broker_role="SLAVE"))
            async with running(second) as follower, follower.client() as wire:
                await create_topic(wire, "t", queues=1)
                await leader.server.stop(0.2)
                sending = asyncio.create_task(wire.send([normal_message("t", "held", b"x")]))
                await asyncio.sleep(0.3)
                assert not sending.done()
                back = settings(tmp_path / "a", namesrv_addr=address, **ports)
                async with running(back):
                    assert (await sending).status.code == v2.OK
                    await until(lambda: follower.node.replication.leader_alive)
                    (message,) = await receive_all(wire, 1)
                    assert message.system_properties.message_id == "held"


async def test_heartbeats_and_terminations_are_forwarded_to_the_leader(tmp_path: Path) -> None:
    async with pair(tmp_path) as (leader, follower, _), follower.client("c@1") as wire:
        beat = v2.HeartbeatRequest(client_type=v2.PRODUCER)
        await wire.call(paths.HEARTBEAT, beat, v2.HeartbeatResponse)
        assert follower.node.clients.get("c@1") is not None
        await until(lambda: leader.node.clients.get("c@1"))
        await wire.call(
            paths.NOTIFY_CLIENT_TERMINATION,
            v2.NotifyClientTerminationRequest(),
            v2.NotifyClientTerminationResponse,
        )
        assert follower.node.clients.get("c@1") is None
        await until(lambda: leader.node.clients.get("c@1") is None)


async def test_creating_a_topic_waits_for_the_replicas(tmp_path: Path) -> None:
    chosen = in_sync(settings(tmp_path / "a"), minimum=2)
    async with running(chosen) as leader, leader.client() as wire:
        refused = await create_topic(wire, "t")
        assert refused.code == v2.HA_NOT_AVAILABLE
        assert leader.node.metadata.topic("t") is None
        assert leader.node.store.log_end == 0
        async with running(follower_of(leader.bound, tmp_path / "b")) as follower:
            await until(lambda: leader.node.replication.write_refusal() is None)
            assert (await create_topic(wire, "t")).code == v2.OK
            assert follower.node.store.log_end == leader.node.store.log_end
            await until(lambda: follower.node.metadata.topic("t"))
            assert follower.node.metadata.topic("t") == leader.node.metadata.topic("t")


async def test_topics_behind_the_confirm_offset_are_known_after_a_restart(tmp_path: Path) -> None:
    """Unconfirmed records are not in the queues; the tables are read from the log itself."""
    chosen = in_sync(settings(tmp_path / "a"), minimum=2)
    async with running(chosen) as leader:
        slave = follower_of(leader.bound, tmp_path / "b")
        async with running(slave), leader.client() as wire:
            await until(lambda: leader.node.replication.write_refusal() is None)
            for number in range(20):
                made = await create_topic(wire, f"t{number}", queues=1)
                assert made.code == v2.OK
    shutil.rmtree(tmp_path / "a/consumequeue")
    shutil.rmtree(tmp_path / "a/config")
    (tmp_path / "a/ha/positions").unlink()
    (tmp_path / "a/checkpoint").unlink(missing_ok=True)
    async with running(chosen) as leader:
        assert leader.node.store.dispatched_offset == 0
        assert len(leader.node.metadata.topics) == 20


async def test_a_follower_never_writes(tmp_path: Path) -> None:
    """A group that is new to a follower is only in its memory: only the leader writes the log."""
    async with running(settings(tmp_path / "a")) as leader, leader.client() as wire:
        await create_topic(wire, "t", queues=1)
        chosen = follower_of(leader.bound, tmp_path / "b")
    follower = BrokerServer(chosen.broker, chosen.store, chosen.ha, SHORT_HOLDS)
    bound = await follower.start()
    try:
        assert follower.broker.metadata.ensure_group("g").name == "g"
        assert follower.broker.store.log_end == 0
        async with Wire(bound.client) as wire:
            sent = await wire.send([normal_message("t", "id", b"x")], HELD_S)
            assert sent.status.code == v2.HA_NOT_AVAILABLE
            with pytest.raises(RpcError):
                await wire.call("/x/Y", v1.ListTopicsRequest(), v1.ListTopicsResponse)
    finally:
        await follower.stop(0.2)


async def test_brokers_of_two_groups_forward_to_each_other(tmp_path: Path) -> None:
    async with nameserver() as address:
        one = settings(tmp_path / "a", namesrv_addr=address, broker_name="one")
        two = settings(tmp_path / "b", namesrv_addr=address, broker_name="two")
        async with running(one) as first, running(two) as second:
            async with second.client() as wire:
                await create_topic(wire, "t", queues=1)
                await create_topic(wire, "shared", queues=1)
            async with first.client() as wire:
                await create_topic(wire, "shared", queues=2)
                await until(lambda: first.node.cluster.others_with("t"))
                await until(lambda: first.node.cluster.others_with("shared"))
                shared = await route(wire, "shared")
                assert [(q.broker.name, q.id) for q in shared.message_queues] == [
                    ("one", 0),
                    ("one", 1),
                    ("two", 0),
                ]
                found = await route(wire, "t")
                assert [q.broker.name for q in found.message_queues] == ["two"]
                sent = await wire.send([normal_message("t", "id", b"x")])
                assert sent.status.code == v2.OK, "passed on to the group that has it"
                (message,) = await receive_all(wire, 1)
                handle = message.system_properties.receipt_handle
                assert handle.split(" ")[5] == "two"
                assert (await wire.ack("t", "g", [message])).status.code == v2.OK
                assert second.node.offsets.get("t", "g", 0) == 1
                assert first.node.metadata.topics == {
                    "shared": Topic("shared", 2, 2, attributes={"message.type": "NORMAL"})
                }
