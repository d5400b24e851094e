"""A consumer group that is deleted while it has clients stays deleted for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cometmq.broker.admin.groups import STAYS_DELETED_MS
from cometmq.front.clock import Clock
from cometmq.proto import v2
from cometmq.remoting.admin_codes import Admin
from cometmq.remoting.codes import Reply, Request
from cometmq.tests.broker.admin.test_admin_groups import delete
from cometmq.tests.broker.classic_wire import GROUP, classic, heartbeat, pulling
from cometmq.tests.broker.desk import desk, resource
from cometmq.tests.broker.live import create_group, telemetry
from cometmq.tests.broker.test_server import consumer_settings
from cometmq.tests.broker.timing import with_store
from cometmq.tests.harness.wire import Wire


class LaterClock(Clock):
    """Its steady time can be moved."""

    __slots__ = ("later_ns",)

    def __init__(self) -> None:
        super().__init__()
        self.later_ns = 0

    def steady_ns(self) -> int:
        return super().steady_ns() + self.later_ns


async def subscribe(wire: Wire) -> Any:
    """Open the telemetry stream of a push consumer."""
    stream = telemetry(wire)
    await stream.write(consumer_settings("g", "t"))
    assert (await stream.read()).status.code == v2.OK
    return stream


async def test_polls_of_its_clients_do_not_create_it(tmp_path: Path) -> None:
    clock = LaterClock()
    async with desk(tmp_path, clock=clock) as one, one.live.client() as wire:
        one.topic("t")
        await one.nothing("t", "g")
        one.node.clients.forget("c@1")
        stream = await subscribe(wire)
        for options in ({}, {"keep_offsets": True}, {"accept_loss": True}):
            refused = await delete(wire, "g", **options)
            assert refused.code == v2.FORBIDDEN
            assert "1 connected clients (wire@1): stop them" in refused.message
        plan = await delete(wire, "g", dry_run=True)
        assert (plan.clients, list(plan.client_ids)) == (1, ["wire@1"])
        assert (await delete(wire, "g", force=True)).code == v2.OK
        assert (await one.receive("t", "g")).code == v2.CONSUMER_GROUP_NOT_FOUND
        stream.cancel()
        await subscribe(wire)
        assert "g" not in one.node.metadata.groups, "a reconnection"
    async with desk(tmp_path, clock=clock) as one, one.live.client() as wire:
        assert (await one.receive("t", "g")).code == v2.CONSUMER_GROUP_NOT_FOUND, "a restart"
        assert (await create_group(wire, "g")).created
        await one.nothing("t", "g")
        await subscribe(wire)
        assert (await delete(wire, "g", force=True)).code == v2.OK
        assert (await one.receive("t", "g")).code == v2.CONSUMER_GROUP_NOT_FOUND
        clock.later_ns += STAYS_DELETED_MS * 1_000_000
        await one.nothing("t", "g")


async def test_polls_without_a_telemetry_stream_are_those_of_clients(tmp_path: Path) -> None:
    async with desk(tmp_path) as one, one.live.client() as wire:
        one.topic("t")
        await one.nothing("t", "g")
        plan = await delete(wire, "g", dry_run=True)
        assert (plan.clients, list(plan.client_ids)) == (1, ["c@1"])
        assert (await delete(wire, "g")).code == v2.FORBIDDEN
        assert (await delete(wire, "g", force=True)).code == v2.OK
        assert (await one.receive("t", "g")).code == v2.CONSUMER_GROUP_NOT_FOUND
        one.group("p")
        queue = v2.MessageQueue(topic=resource("t"), id=0)
        pull = v2.PullMessageRequest(group=resource("p"), message_queue=queue, batch_size=1)
        answer = one.pulls.pull_message(pull, one.context(remaining_ms=105))
        assert isinstance(answer, list) or await answer
        assert list((await delete(wire, "p", dry_run=True)).client_ids) == ["c@1"]


async def test_it_stays_deleted_when_the_log_has_new_segments(tmp_path: Path) -> None:
    small = with_store(tmp_path, mapped_file_size_commit_log=64 << 10)
    async with desk(tmp_path, small) as one, one.live.client() as wire:
        one.topic("t")
        await one.nothing("t", "g")
        assert (await delete(wire, "g", force=True)).code == v2.OK
        await one.sent("t", *[bytes(16 << 10)] * 10)
    async with desk(tmp_path, small) as one:
        assert (await one.receive("t", "g")).code == v2.CONSUMER_GROUP_NOT_FOUND


async def test_it_stays_deleted_for_classic_clients(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, client):
        assert (await client.call(Request.HEART_BEAT, heartbeat())).code == Reply.SUCCESS
        assert GROUP in live.node.metadata.groups
        answer = await client.call(Admin.DELETE_SUBSCRIPTIONGROUP, groupName=GROUP)
        assert answer.code == Reply.SUCCESS, "as mqadmin deletes it"
        assert (await client.call(Request.HEART_BEAT, heartbeat())).code == Reply.SUCCESS
        assert (await client.post(pulling())).code == Reply.SUBSCRIPTION_GROUP_NOT_EXIST
        assert GROUP not in live.node.metadata.groups
