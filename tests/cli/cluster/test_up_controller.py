"""`cometmq up` with a controller: the slave leads when the master is killed, and the master comes
back as a slave."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import grpc.aio

from cometmq.proto import paths, v1, v2
from cometmq.tests.broker.desk import message
from cometmq.tests.harness.cluster import Cluster, wait_until
from cometmq.tests.harness.wire import Wire

LONG_S = 60.0
RpcError = grpc.aio.AioRpcError


async def send(wire: Wire, text: str) -> bool:
    """One message; whether it was answered OK."""
    request = v2.SendMessageRequest(messages=[message("t", text.encode(), message_id=text)])
    try:
        answer = await wire.call(paths.SEND_MESSAGE, request, v2.SendMessageResponse, 5.0)
    except RpcError:
        return False  # it was in flight at the process that was killed
    return bool(answer.status.code == v2.OK)


async def send_until_ok(wire: Wire, text: str) -> None:
    """As a client with retries does."""
    async with asyncio.timeout(LONG_S):
        while not await send(wire, text):  # noqa: ASYNC110 - retries
            await asyncio.sleep(0.05)


async def described(wire: Wire) -> v1.DescribeClusterResponse:
    """The group as the node that answers sees it."""
    request = v1.DescribeClusterRequest()
    said: v1.DescribeClusterResponse = await wire.call(
        paths.DESCRIBE_CLUSTER, request, v1.DescribeClusterResponse
    )
    return said


async def until_in_sync(wire: Wire, leader: int) -> None:
    """Wait until this broker leads with the other one in sync."""
    async with asyncio.timeout(LONG_S):
        while True:
            try:
                members = (await described(wire)).members
                led = [m.replica.broker_id for m in members if m.role == v1.LEADER]
                if led == [leader] and all(m.in_sync for m in members):
                    return
            except RpcError:
                pass
            await asyncio.sleep(0.1)


async def drill(cluster: Cluster) -> None:
    endpoints = cluster.endpoints
    async with Wire(endpoints) as wire:
        created = await wire.call(
            paths.CREATE_TOPIC, v1.CreateTopicRequest(name="t"), v1.CreateTopicResponse
        )
        assert created.code == v2.OK, created
        await until_in_sync(wire, 0)
        # The controller has to hear where the slave's log begins: beats come once a second.
        await asyncio.sleep(2.5)
        await send_until_ok(wire, "before")
        cluster.kill9("master")
        await send_until_ok(wire, "meanwhile")
        # Its supervisor starts it again: it follows now, and takes what it missed.
        await until_in_sync(wire, 1)
        cluster.kill9("slave")
        await send_until_ok(wire, "afterwards")
        await until_in_sync(wire, 0)
        first = await wire.call(
            paths.DESCRIBE_TOPIC, v1.DescribeTopicRequest(name="t"), v1.DescribeTopicResponse
        )
        assert sum(queue.max_offset for queue in first.queues) >= 3


def test_the_remaining_replica_leads_and_the_returning_one_follows(tmp_path: Path) -> None:
    # A leader that stalls for seconds, on a busy machine, goes on leading.
    lease = {"COMETMQ_CONTROLLER_LEASE_MS": "8000"}
    cluster = Cluster(tmp_path / "d", restart=True, controller=True, env=lease).start()
    try:
        asyncio.run(drill(cluster))
    finally:
        cluster.stop()


def leaders(cluster: Cluster) -> list[int]:
    """Broker ids of the leaders according to `cluster describe`."""
    found = json.loads(cluster.run("cluster", "describe", "-o", "json", *where(cluster)).stdout)
    return [row["broker_id"] for row in found["members"] if row["role"] == "leader"]


def where(cluster: Cluster) -> tuple[str, str]:
    return "--data", str(cluster.data)


def policy(cluster: Cluster) -> str:
    """Replication in force according to `cluster describe`."""
    found = json.loads(cluster.run("cluster", "describe", "-o", "json", *where(cluster)).stdout)
    return str(found["replication"])


def banner_of(cluster: Cluster) -> str:
    """The output of the last start, when its banner is complete."""

    def text() -> str:
        return cluster.log_file.read_text()

    wait_until("the banner", lambda: "Press Ctrl-C" in text(), LONG_S)
    return text()


def test_the_banner_and_the_option_agree_with_the_policy_in_force(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "d", "--replication", "async", controller=True)
    try:
        assert "async replication" in banner_of(cluster.start())
        cluster.stop()
        # The group keeps its policy: the file of the master alone does not change it.
        conf = cluster.data / "master" / "broker.conf"
        conf.write_text(conf.read_text().replace("ASYNC_MASTER", "SYNC_MASTER"))
        kept = Cluster(cluster.data, controller=True)
        kept.log_file = cluster.data / "kept.log"
        cluster = kept
        assert "async replication; OK means: in the master's page cache" in banner_of(
            cluster.start()
        )
        assert policy(cluster) == "async"
        cluster.stop()
        changed = Cluster(cluster.data, "--replication", "sync", controller=True)
        changed.log_file = cluster.data / "changed.log"
        cluster = changed
        assert "sync replication; OK means: in the memory of every" in banner_of(cluster.start())
        assert policy(cluster) == "sync"
    finally:
        cluster.stop()


def test_a_cluster_whose_slave_led_is_ready_when_it_has_a_leader(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "d", controller=True)
    try:
        cluster.start().wait_in_sync()
        cluster.kill9("master")
        wait_until("the slave leads", lambda: leaders(cluster) == [1], LONG_S)
        cluster.restart("master")
        cluster.wait_in_sync()
        assert leaders(cluster) == [1]
        cluster.stop()
        cluster.log_file = cluster.data / "again.log"
        cluster.start()
        assert len(leaders(cluster)) == 1
        assert "is ready after" in banner_of(cluster)
    finally:
        cluster.stop()
