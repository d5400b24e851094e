"""Classic clients at the follower of a group: what it serves, passes on to the leader, refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import PASSED_ON
from cometmq.tests.broker.classic_wire import (
    GROUP,
    TOPIC,
    heartbeat,
    message,
    port_of,
    pulled,
    pulling,
)
from cometmq.tests.broker.live import Live, create_topic, nameserver, running, settings, until
from cometmq.tests.remoting.client import RemotingClient


@asynccontextmanager
async def pair(
    path: Path, *, ratio: int = 40
) -> AsyncIterator[tuple[Live, Live, RemotingClient, RemotingClient]]:
    """Run a leader and its follower; yield them, and a client of each.

    Records further than `ratio` percent of the memory behind the end of the log are old.
    """
    async with nameserver() as address:
        first = settings(path / "a", namesrv_addr=address, remoting_listen_port=-1)
        second = settings(path / "b", namesrv_addr=address, remoting_listen_port=-1, broker_id=1)
        second = replace(second, ha=replace(second.ha, broker_role="SLAVE"))
        first, second = (
            replace(each, store=replace(each.store, access_message_in_memory_max_ratio=ratio))
            for each in (first, second)
        )
        async with running(first) as leader, running(second) as follower:
            await until(lambda: follower.node.replication.leader_alive)
            for live in (leader, follower):
                group = live.node.cluster.own
                await until(lambda: len([m for m in group().members if m.remoting]) == 2)  # noqa: B023 - called before the next one
            async with leader.client() as wire:
                await create_topic(wire, TOPIC, queues=2)
            await until(lambda: follower.node.metadata.topic(TOPIC))
            async with (
                RemotingClient(port_of(leader)) as one,
                RemotingClient(port_of(follower)) as other,
            ):
                yield leader, follower, one, other


async def test_a_follower_serves_pulls_and_passes_on_the_rest(tmp_path: Path) -> None:
    async with pair(tmp_path) as (leader, follower, at_leader, at_follower):
        sent = await at_follower.post(message())
        assert (sent.code, sent.fields["queueOffset"]) == (Reply.SUCCESS, "0")
        await until(lambda: leader.node.store.max_offset(TOPIC, 1) == 1)
        await until(lambda: follower.node.store.max_offset(TOPIC, 1) == 1)
        assert (await at_leader.call(Request.HEART_BEAT, heartbeat())).code == Reply.SUCCESS
        assert (await at_follower.call(Request.HEART_BEAT, heartbeat())).code == Reply.SUCCESS
        await until(lambda: follower.node.metadata.group(GROUP))
        # With the subscription of the heartbeat at the follower; it commits nothing.
        found = await pulled(at_follower, sysFlag=1, subVersion=1, commitOffset=1)
        assert found == await pulled(at_leader)
        queue = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 1}
        asked = await at_follower.call(Request.QUERY_CONSUMER_OFFSET, **queue)
        assert (asked.code, asked.fields) == (Reply.SUCCESS, {"offset": "0"})
        done = await at_follower.call(Request.UPDATE_CONSUMER_OFFSET, **queue, commitOffset=1)
        assert done.code == Reply.SUCCESS
        assert leader.node.offsets.get(TOPIC, GROUP, 1) == 1
        at_follower.oneway(Request.UPDATE_CONSUMER_OFFSET, **queue, commitOffset=0)
        await until(lambda: leader.node.offsets.get(TOPIC, GROUP, 1) == 0)


async def test_a_waiting_pull_at_a_follower_gets_what_arrives(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, _, at_leader, at_follower):
        waiting = at_follower.post(pulling(sysFlag=2 | 4, suspendTimeoutMillis=20_000))
        assert (await at_leader.post(message())).code == Reply.SUCCESS
        assert (await asyncio.wait_for(waiting, 60)).code == Reply.SUCCESS


async def test_without_a_leader_a_follower_reads_and_refuses_sends(tmp_path: Path) -> None:
    async with pair(tmp_path) as (leader, follower, at_leader, at_follower):
        await at_leader.call(Request.HEART_BEAT, heartbeat())
        assert (await at_follower.post(message())).code == Reply.SUCCESS
        queue = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 1}
        await at_leader.call(Request.UPDATE_CONSUMER_OFFSET, **queue, commitOffset=1)
        await until(lambda: follower.node.offsets.get(TOPIC, GROUP, 1) == 1)
        await leader.server.stop(0.2)
        await until(lambda: not follower.node.replication.leader_alive)
        assert len(await pulled(at_follower)) == 1
        asked = await at_follower.call(Request.QUERY_CONSUMER_OFFSET, **queue)
        assert asked.fields == {"offset": "1"}
        refused = await at_follower.post(message())
        assert refused.code == Reply.SERVICE_NOT_AVAILABLE, "producers try another broker"
        assert "no leader" in (refused.remark or "")


async def test_a_request_is_passed_on_once(tmp_path: Path) -> None:
    async with pair(tmp_path) as (_, _, _, at_follower):
        passed_on = message()
        passed_on.flag = PASSED_ON
        refused = await at_follower.post(passed_on)
        assert refused.code == Reply.SERVICE_NOT_AVAILABLE


async def test_a_leader_suggests_a_follower_for_old_records(tmp_path: Path) -> None:
    async with pair(tmp_path, ratio=0) as (leader, follower, at_leader, at_follower):
        for _ in range(2):
            await at_leader.post(message())
        await until(lambda: follower.node.store.max_offset(TOPIC, 1) == 2)
        await until(
            lambda: any(
                m.in_sync and m.role == "follower" for m in leader.node.replication.members()
            )
        )
        for client, offset, suggested in (
            (at_leader, 0, "1"),
            (at_follower, 0, "1"),
            (at_follower, 1, "0"),
        ):
            answer = await client.post(pulling(queueOffset=offset, maxMsgNums=1))
            assert answer.fields["suggestWhichBrokerId"] == suggested, offset
