"""Quotas of users and topics: sends, clients and waiting receives beyond them are refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.auth.signature import authorization
from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.proto import paths, v1, v2
from cometmq.proto.native import is_available
from cometmq.tests.broker.live import (
    Live,
    Settings,
    create_group,
    create_topic,
    follower_of,
    running,
    settings,
    telemetry,
    until,
)
from cometmq.tests.broker.metrics.test_observed import samples
from cometmq.tests.harness.wire import Wire, normal_message, receive_request

FIRST = '{"username":"admin","password":"admin-secret"}'
SECOND_NS = 1_000_000_000
DOORS = ["grpcio"] + (["native"] if is_available() else [])


class Stopped(Clock):
    """A steady clock that a test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_ns = 0
        self.stopped_ns: int | None = None

    def steady_ns(self) -> int:
        if self.stopped_ns is not None:
            return self.stopped_ns + self.ahead_ns
        return super().steady_ns()


async def put(wire: Wire, subject: str, **limits: Any) -> v1.QuotaResponse:
    request = v1.PutQuotaRequest(subject=subject, **limits)
    answer: v1.QuotaResponse = await wire.call(paths.PUT_QUOTA, request, v1.QuotaResponse)
    return answer


async def remove(wire: Wire, subject: str) -> v1.QuotaResponse:
    request = v1.DeleteQuotaRequest(subject=subject)
    answer: v1.QuotaResponse = await wire.call(paths.DELETE_QUOTA, request, v1.QuotaResponse)
    return answer


async def send(wire: Wire, topic: str, count: int = 1, size: int = 10) -> v2.Status:
    body = b"x" * size
    answer = await wire.send([normal_message(topic, f"id{i}", body) for i in range(count)], 60.0)
    status: v2.Status = answer.status
    return status


def signed(live: Live, user: str, secret: str, client_id: str = "") -> Wire:
    wire = live.client(client_id or f"{user}@1")
    header = authorization(user, secret, "20261123T060428Z")
    wire.metadata = (
        *wire.metadata,
        ("x-mq-date-time", "20261123T060428Z"),
        ("authorization", header),
    )
    return wire


async def refused(live: Live) -> dict[tuple[str, str], int]:
    rows = (await samples(live)).get("cometmq_quota_refused_total", [])
    return {(row.labels["subject"], row.labels["limit"]): int(row.value) for row in rows}


@pytest.mark.parametrize("door", DOORS)
async def test_a_topic_takes_as_many_messages_a_second_as_its_quota(
    tmp_path: Path, door: str
) -> None:
    clock = Stopped()
    async with (
        running(settings(tmp_path), clock, DoorConfig(front_door=door)) as live,
        live.client() as wire,
    ):
        for topic in ("orders", "free"):
            await create_topic(wire, topic)
        clock.stopped_ns = clock.steady_ns()
        assert (await put(wire, "Topic:orders", messages=3)).code == v2.OK
        assert [(await send(wire, "orders")).code for _ in range(3)] == [v2.OK] * 3
        status = await send(wire, "orders")
        assert status.code == v2.TOO_MANY_REQUESTS
        assert status.message == "[QUOTA] Topic:orders is limited to 3 messages a second"
        assert (await send(wire, "free")).code == v2.OK
        assert await refused(live) == {("Topic", "messages"): 1}
        clock.ahead_ns += SECOND_NS
        # A request larger than the quota passes, and the next ones wait for two more seconds.
        assert (await send(wire, "orders", count=8)).code == v2.OK
        clock.ahead_ns += SECOND_NS
        assert (await send(wire, "orders")).code == v2.TOO_MANY_REQUESTS
        clock.ahead_ns += SECOND_NS
        assert (await send(wire, "orders")).code == v2.OK
        assert (await remove(wire, "Topic:orders")).code == v2.OK
        assert [(await send(wire, "orders")).code for _ in range(5)] == [v2.OK] * 5


async def test_a_held_send_counts_once(tmp_path: Path) -> None:
    clock = Stopped()
    async with running(settings(tmp_path), clock) as live, live.client() as wire:
        await create_topic(wire, "orders")
        clock.stopped_ns = clock.steady_ns()
        await put(wire, "Topic:orders", messages=10)
        leadership = live.node.leadership
        leadership.draining = "no replica is in sync"  # as `minInSyncReplicas` or a full disk does
        held = asyncio.create_task(send(wire, "orders", count=6))
        await until(lambda: leadership.pausing, 60)
        leadership.draining = None
        assert (await held).code == v2.OK
        assert (await send(wire, "orders", count=4)).code == v2.OK
        assert (await send(wire, "orders")).code == v2.TOO_MANY_REQUESTS


async def test_a_request_that_one_quota_refuses_takes_nothing_from_another(tmp_path: Path) -> None:
    clock = Stopped()
    chosen = settings(
        tmp_path,
        authentication_enabled=True,
        init_authentication_user=FIRST,
    )
    async with running(chosen, clock) as live, signed(live, "admin", "admin-secret") as wire:
        for topic in ("a", "b"):
            await create_topic(wire, topic)
        clock.stopped_ns = clock.steady_ns()
        await put(wire, "User:admin", messages=2)
        await put(wire, "Topic:*", bytes=1_000)
        assert (await send(wire, "a", size=2_000)).code == v2.OK
        status = await send(wire, "a")
        assert status.message == "[QUOTA] Topic:a is limited to 1000 bytes a second"
        assert (await send(wire, "b")).code == v2.OK
        status = await send(wire, "b")
        assert status.message == "[QUOTA] User:admin is limited to 2 messages a second"
        assert await refused(live) == {("Topic", "bytes"): 1, ("User", "messages"): 1}


async def test_waiting_receives_beyond_the_quota_are_refused(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        await create_topic(wire, "orders", queues=1)
        await create_group(wire, "g")
        await put(wire, "Topic:orders", polls=1)
        waiting = asyncio.create_task(wire.receive(receive_request("orders", "g", await_s=20)))
        await until(lambda: live.node.pop.waiting == 1)
        code, _ = await wire.receive(receive_request("orders", "g", await_s=20))
        assert code == v2.TOO_MANY_REQUESTS
        assert await refused(live) == {("Topic", "polls"): 1}
        await until(lambda: live.node.pop.waiting == 1)
        assert (await send(wire, "orders")).code == v2.OK
        assert (await waiting)[0] == v2.OK
        assert (await send(wire, "orders")).code == v2.OK
        # A receive that finds a message does not wait.
        assert (await wire.receive(receive_request("orders", "g")))[0] == v2.OK
        waiting = asyncio.create_task(wire.receive(receive_request("orders", "g", await_s=20)))
        await until(lambda: live.node.pop.waiting == 1)
        waiting.cancel()
        await until(lambda: live.node.pop.waiting == 0)


def publishing(topic: str) -> v2.TelemetryCommand:
    publishing = v2.Publishing(topics=[v2.Resource(name=topic)])
    return v2.TelemetryCommand(settings=v2.Settings(client_type=v2.PRODUCER, publishing=publishing))


async def connected(wire: Wire, topic: str) -> tuple[Any, int]:
    """Open a telemetry stream; return it and the code of its answer."""
    stream = telemetry(wire)
    await stream.write(publishing(topic))
    answer = await asyncio.wait_for(stream.read(), 60)
    return stream, v2.OK if answer.HasField("settings") else answer.status.code


async def test_clients_beyond_the_quota_are_refused(tmp_path: Path) -> None:
    async with (
        running(settings(tmp_path)) as live,
        live.client("one@1") as one,
        live.client("two@1") as two,
    ):
        await create_topic(one, "orders")
        await put(one, "Topic:orders", connections=1)
        first, code = await connected(one, "orders")
        assert code == v2.OK
        again, code = await connected(one, "orders")
        assert code == v2.OK, "the same client"
        _, code = await connected(two, "orders")
        assert code == v2.TOO_MANY_REQUESTS
        assert await refused(live) == {("Topic", "connections"): 1}
        first.cancel()
        again.cancel()

        for _ in range(200):  # until the broker has seen the end of both streams
            _, code = await connected(two, "orders")
            if code == v2.OK:
                break
            await asyncio.sleep(0.05)
        assert code == v2.OK


def small(chosen: Settings) -> Settings:
    """Return the settings with small segments; each begins with a snapshot."""
    return replace(chosen, store=replace(chosen.store, mapped_file_size_commit_log=16 * 1024))


async def test_quotas_are_replicated_and_survive_a_restart(tmp_path: Path) -> None:
    chosen = settings(tmp_path / "a")
    chosen = small(chosen)
    async with running(chosen) as live, live.client() as wire:
        await put(wire, "topic:orders", messages=3, polls=4)
        await put(wire, "Topic:orders", messages=0, bytes=5)
        await put(wire, "User:*", connections=7)
        await put(wire, "User:gone", connections=7)
        await remove(wire, "User:gone")
        follower = small(follower_of(live.bound, tmp_path / "b"))
        async with running(follower) as second:
            await until(lambda: set(second.node.metadata.quotas) == {"Topic:orders", "User:*"})
        await create_topic(wire, "t", queues=1)
        for number in range(20):  # into further segments, each with a snapshot
            await wire.send([normal_message("t", str(number), b"x" * 2_000)])
    async with running(chosen) as live, live.client() as wire:
        answer = await wire.call(paths.LIST_QUOTAS, v1.ListQuotasRequest(), v1.ListQuotasResponse)
        assert list(answer.quotas) == [
            v1.QuotaConfig(subject="Topic:orders", bytes=5, polls=4),
            v1.QuotaConfig(subject="User:*", connections=7),
        ]


async def test_unsuitable_quotas_are_refused(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        assert (await put(wire, "Group:g", messages=1)).code == v2.BAD_REQUEST
        assert (await put(wire, "Topic:t")).code == v2.BAD_REQUEST
        assert (await put(wire, "Topic:t", messages=0)).code == v2.BAD_REQUEST
        assert (await remove(wire, "Topic:t")).code == v2.NOT_FOUND
