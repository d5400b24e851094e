"""Clients connected to another node than the leader: transaction checks and answers are
forwarded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from cometmq.broker.base.cluster_view import GroupView
from cometmq.broker.metadata.tables import Topic
from cometmq.proto import v1, v2
from cometmq.tests.broker.live import Live, nameserver, running, settings, until
from cometmq.tests.broker.test_replicas import pair
from cometmq.tests.broker.transacting import advance, client_of, half, producing

ROUND_MS = 30_000


def make_topic(live: Live, name: str = "t") -> None:
    live.node.meta_log.write_topic(Topic(name, 1, 1, message_type=v2.TRANSACTION))
    live.node.pump.appended()


def streams(live: Live, client_id: str) -> int:
    """Return the number of open telemetry streams of a client at a node."""
    client = live.node.clients.get(client_id)
    return len(client.streams) if client is not None else 0


async def test_a_producer_at_the_follower_answers_the_leaders_check(tmp_path: Path) -> None:
    async with pair(tmp_path) as (leader, follower, _), leader.client() as operator:
        make_topic(leader)
        await until(lambda: follower.node.metadata.topic("t"))
        async with producing(follower, "p@1", "t") as producer:
            (ident,) = await producer.send(half("t", "A", b"body"))
            await until(lambda: streams(leader, "p@1") == 1)
            # The settings arrive after the stream.
            await until(lambda: client_of(leader, "p@1").topics.keys() == {"t"})
            await until(lambda: len(leader.node.transactions.table) == 1)
            await advance(operator, ROUND_MS)
            asked = await producer.next_check()
            assert (asked.transaction_id, asked.message.body) == (ident, b"body")
            assert await producer.end("t", asked.transaction_id) == v2.OK
            await until(lambda: follower.node.store.max_offset("t", 0) == 1)
        await until(lambda: streams(leader, "p@1") == 0)
        assert len(follower.node.telemetry_forward or ()) == 0


async def test_changed_settings_are_forwarded_and_responses_dropped(tmp_path: Path) -> None:
    async with pair(tmp_path) as (leader, follower, _):
        async with producing(follower, "p@1") as producer:
            await until(lambda: streams(leader, "p@1") == 1)
            await producer.settle("x", "y")
            await until(lambda: client_of(leader, "p@1").topics.keys() == {"x", "y"})
            # The leader's responses are not forwarded to the client: the next response is this
            # node's own.
            await producer.settle("z")
            await until(lambda: client_of(leader, "p@1").topics.keys() == {"z"})
        async with producing(leader, "q@1"):
            assert len(leader.node.telemetry_forward or ()) == 0, "the leader passes nothing on"


async def test_a_broken_stream_is_reopened(tmp_path: Path) -> None:
    async with pair(tmp_path) as (leader, follower, _), producing(follower, "p@1", "t"):
        await until(lambda: streams(leader, "p@1") == 1)
        (stream,) = client_of(leader, "p@1").streams
        cast(Any, stream).finish()
        await until(lambda: streams(leader, "p@1") == 1 and stream.finished is True)
        await until(lambda: any(not one.finished for one in client_of(leader, "p@1").streams))
        await until(lambda: client_of(leader, "p@1").topics.keys() == {"t"})


async def test_streams_of_many_clients_are_reopened_after_an_outage_of_the_leader(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        leader, follower, _ = await stack.enter_async_context(pair(tmp_path))
        for number in range(20):
            await stack.enter_async_context(producing(follower, f"p{number}@1", "t"))
        await until(lambda: all(streams(leader, f"p{number}@1") for number in range(20)))
        await leader.server.stop(0.2)
        port = int(leader.bound.client.rpartition(":")[2])
        again = settings(tmp_path / "again", grpc_server_port=port, broker_name="again")
        back = await stack.enter_async_context(running(again))
        await until(lambda: all(streams(back, f"p{number}@1") == 1 for number in range(20)))
        await until(lambda: client_of(back, "p7@1").topics.keys() == {"t"})  # after its stream


async def test_streams_move_to_a_new_leader(tmp_path: Path) -> None:
    async with (
        pair(tmp_path) as (leader, follower, _),
        running(settings(tmp_path / "c", broker_name="elsewhere")) as stranger,
        producing(follower, "p@1", "t"),
    ):
        await until(lambda: streams(leader, "p@1") == 1)
        forward = follower.node.telemetry_forward
        assert forward is not None
        view = follower.node.cluster
        own = view.own()
        moved = tuple(
            replace(member, client=stranger.bound.client) if member.is_leader else member
            for member in own.members
        )
        view.groups = {**view.groups, own.name: GroupView(own.name, moved, own.topics)}
        forward.cluster_changed()
        await until(lambda: streams(stranger, "p@1") == 1)
        await until(lambda: streams(leader, "p@1") == 0)
        assert len(forward) == 1


async def test_streams_are_forwarded_after_a_leader_that_has_a_successor_steps_down(
    tmp_path: Path,
) -> None:
    async with (
        running(settings(tmp_path / "a")) as former,
        running(settings(tmp_path / "b", broker_name="elsewhere")) as new,
        producing(former, "p@1", "t"),
    ):
        view, forward = former.node.cluster, former.node.telemetry_forward
        assert forward is not None
        (own,) = view.own().members
        other = replace(own, broker_id=1, client=new.bound.client)
        members = (replace(own, is_leader=False), other)
        view.groups = {own.group: GroupView(own.group, members, {})}
        forward.cluster_changed()
        assert not len(forward)
        former.node.leadership.is_leader = False
        forward.cluster_changed()
        await until(lambda: streams(new, "p@1") == 1)
        former.node.leadership.is_leader = True


@asynccontextmanager
async def two_groups(path: Path) -> AsyncIterator[tuple[Live, Live]]:
    """Run two masters that know each other."""
    async with nameserver() as address:
        first = settings(path / "a", namesrv_addr=address, broker_name="group-a")
        second = settings(path / "b", namesrv_addr=address, broker_name="group-b")
        async with running(first) as one, running(second) as other:
            make_topic(other, "there")
            other.node.pump.run()
            await until(lambda: "there" in _topics(one, "group-b"))
            yield one, other


def _topics(live: Live, group: str) -> dict[str, v1.TopicRoute]:
    found = live.node.cluster.group(group)
    return found.topics if found is not None else {}


async def test_a_producer_of_another_groups_topic_is_checked_through_its_own_node(
    tmp_path: Path,
) -> None:
    """The Rust client sends everything to its access point, ends of transactions included."""
    async with (
        two_groups(tmp_path) as (one, other),
        producing(one, "rust@1", "there") as producer,
        other.client() as operator,
    ):
        (ident,) = await producer.send(half("there", "A"))
        assert ident == "group-b:0:A"
        await until(lambda: streams(other, "rust@1") == 1)
        await until(lambda: len(other.node.transactions.table) == 1)
        await advance(operator, ROUND_MS)
        asked = await producer.next_check()
        assert await producer.end("there", asked.transaction_id) == v2.OK
        other.node.pump.run()
        assert other.node.store.max_offset("there", 0) == 1
        await producer.settle("elsewhere")
        await until(lambda: streams(other, "rust@1") == 0)


async def test_a_removed_client_that_returns_is_checked_again(tmp_path: Path) -> None:
    async with (
        running(settings(tmp_path)) as live,
        producing(live, "p@1", "t") as producer,
    ):
        make_topic(live)
        live.node.clients.forget("p@1")
        assert not live.node.clients.producers("t", live.node.runtime.clock.steady_ns())
        await producer.settle("t")
        (client,) = live.node.clients.producers("t", live.node.runtime.clock.steady_ns())
        assert client.client_id == "p@1"
        await asyncio.sleep(0)
