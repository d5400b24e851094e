"""One real broker over gRPC: topics, routes, assignments, clients, bad input, restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from cometmq.front.errors import PortInUseError
from cometmq.front.grpcio_door import GrpcioDoor
from cometmq.proto import paths, v1, v2
from cometmq.store.format.errors import StoreLockedError
from cometmq.store.format.topic_names import META_TOPIC
from cometmq.tests.broker.live import (
    RpcError,
    assignment,
    create_group,
    create_topic,
    route,
    running,
    settings,
    telemetry,
    until,
)
from cometmq.tests.harness.wire import Wire, receive_request


async def test_a_topic_is_created_routed_and_assigned(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        made = await create_topic(wire, "t", queues=3)
        assert (made.code, made.created, made.topic.write_queues) == (v2.OK, True, 3)
        again = await create_topic(wire, "t", queues=3)
        assert (again.code, again.created) == (v2.OK, False)
        found = await route(wire, "t", live.bound.client)
        assert found.status.code == v2.OK
        assert [queue.id for queue in found.message_queues] == [0, 1, 2]
        for queue in found.message_queues:
            assert queue.permission == v2.READ_WRITE
            assert (queue.broker.name, queue.broker.id) == ("broker-a", 0)
            assert queue.broker.endpoints.scheme == v2.IPv4
            assert list(queue.accept_message_types) == [v2.NORMAL]
            (address,) = queue.broker.endpoints.addresses
            assert f"{address.host}:{address.port}" == live.bound.client
        await create_group(wire, "plain")
        await create_group(wire, "ordered", orderly=True, max_attempts=3)
        plain = await assignment(wire, "t", "plain")
        assert [one.message_queue.id for one in plain.assignments] == [-1]
        ordered = await assignment(wire, "t", "ordered")
        assert [one.message_queue.id for one in ordered.assignments] == [0, 1, 2]
        assert not ordered.assignments[0].message_queue.accept_message_types


async def test_topics_of_every_type_can_be_created(tmp_path: Path) -> None:
    kinds = {
        v2.NORMAL: [v2.NORMAL],
        v2.FIFO: [v2.FIFO],
        v2.DELAY: [v2.DELAY],
        v2.TRANSACTION: [v2.TRANSACTION],
        -1: [v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION],
    }
    async with running(settings(tmp_path)) as live, live.client() as wire:
        for number, (kind, accepted) in enumerate(kinds.items()):
            await create_topic(wire, f"t{number}", message_type=kind, queues=1)
            found = await route(wire, f"t{number}")
            assert list(found.message_queues[0].accept_message_types) == accepted
        listed = await wire.call(paths.LIST_TOPICS, v1.ListTopicsRequest(), v1.ListTopicsResponse)
        assert [topic.message_type for topic in listed.topics] == list(kinds)


@pytest.mark.parametrize(
    ("name", "fields", "code"),
    [
        ("", {}, v2.ILLEGAL_TOPIC),
        ("a b", {}, v2.ILLEGAL_TOPIC),
        ("x" * 128, {}, v2.ILLEGAL_TOPIC),
        ("TBW102", {}, v2.ILLEGAL_TOPIC),
        (META_TOPIC, {}, v2.ILLEGAL_TOPIC),
        ("t", {"queues": -1}, v2.BAD_REQUEST),
        ("t", {"queues": 1_025}, v2.BAD_REQUEST),
        ("t", {"message_type": 99}, v2.BAD_REQUEST),
        ("t", {"perm": 8}, v2.BAD_REQUEST),
        ("t", {"queues": 1}, v2.BAD_REQUEST),
    ],
)
async def test_invalid_topics_are_refused(
    tmp_path: Path, name: str, fields: dict[str, int], code: int
) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        await create_topic(wire, "t", queues=2)
        assert (await create_topic(wire, name, **fields)).code == code
        assert list(live.node.metadata.topics) == ["t"]


async def test_invalid_requests_get_their_codes(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        await create_topic(wire, "t")
        assert (await route(wire, "none")).status.code == v2.TOPIC_NOT_FOUND
        assert (await route(wire, "a b")).status.code == v2.ILLEGAL_TOPIC
        assert (await assignment(wire, "none", "g")).status.code == v2.TOPIC_NOT_FOUND
        assert (await assignment(wire, "t", "")).status.code == v2.ILLEGAL_CONSUMER_GROUP
        await create_topic(wire, "write_only", perm=2)
        assert (await assignment(wire, "write_only", "g")).status.code == v2.FORBIDDEN
        assert (await create_group(wire, "CID_RMQ_SYS_x")).code == v2.ILLEGAL_CONSUMER_GROUP
        assert (await create_group(wire, "g", max_attempts=-1)).code == v2.BAD_REQUEST
        async with live.client(" ") as anonymous:
            assert (await route(anonymous, "t")).status.code == v2.CLIENT_ID_REQUIRED
            beat = await anonymous.call(
                paths.HEARTBEAT, v2.HeartbeatRequest(), v2.HeartbeatResponse
            )
            assert beat.status.code == v2.CLIENT_ID_REQUIRED
            stream = telemetry(anonymous)
            assert (await stream.read()).status.code == v2.CLIENT_ID_REQUIRED
            assert await stream.read() is grpc.aio.EOF
        ended = await wire.call(
            paths.END_TRANSACTION, v2.EndTransactionRequest(), v2.EndTransactionResponse
        )
        assert ended.status.code == v2.ILLEGAL_TOPIC


def producer_settings(*topics: str) -> v2.TelemetryCommand:
    publishing = v2.Publishing(topics=[v2.Resource(name=t) for t in topics])
    chosen = v2.Settings(client_type=v2.PRODUCER, publishing=publishing)
    chosen.user_agent.version = "5.1.2"
    chosen.request_timeout.seconds = 3
    return v2.TelemetryCommand(settings=chosen)


def consumer_settings(group: str, topic: str, expression: str = "*") -> v2.TelemetryCommand:
    subscription = v2.Subscription(group=v2.Resource(name=group, resource_namespace="ns"))
    subscription.subscriptions.add(
        topic=v2.Resource(name=topic),
        expression=v2.FilterExpression(type=v2.TAG, expression=expression),
    )
    return v2.TelemetryCommand(
        settings=v2.Settings(client_type=v2.PUSH_CONSUMER, subscription=subscription)
    )


async def test_settings_responses_have_the_fields_that_clients_need(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        await create_group(wire, "ordered", orderly=True, max_attempts=5)
        stream = telemetry(wire)
        await stream.write(producer_settings("t", "not there yet"))
        with pytest.raises(RpcError) as refused:
            while await stream.read() is not grpc.aio.EOF:
                pass
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        stream = telemetry(wire)
        for _ in range(2):
            await stream.write(producer_settings("t", "not_there_yet"))
            answer = await stream.read()
            assert answer.status.code == v2.OK
            assert answer.settings.publishing.max_body_size == 4 << 20
            assert answer.settings.publishing.validate_message_type
            assert len(answer.settings.publishing.topics) == 2
            assert answer.settings.user_agent.version == "5.1.2"
            assert answer.settings.request_timeout.seconds == 3
            assert answer.settings.HasField("metric")
            backoff = answer.settings.backoff_policy
            assert backoff.max_attempts == 3
            assert backoff.exponential_backoff.initial.nanos == 10_000_000
        await stream.write(consumer_settings("ordered", "t"))
        answer = await stream.read()
        subscription = answer.settings.subscription
        assert subscription.fifo
        assert subscription.group.resource_namespace == "ns"
        assert subscription.receive_batch_size == 32
        assert subscription.long_polling_timeout.seconds == 20
        backoff = answer.settings.backoff_policy
        assert backoff.max_attempts == 5
        assert [one.seconds for one in backoff.customized_backoff.next][:4] == [1, 5, 10, 30]
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        client = live.node.clients.get("wire@1")
        assert client is not None and client.has_settings, "a stream is not the client"
        async with live.client("node@1", "HTTP") as node:
            stream = telemetry(node)
            await stream.write(consumer_settings("plain", "t"))
            answer = await stream.read()
            assert answer.settings.backoff_policy.HasField("exponential_backoff")
            stream.cancel()


@pytest.mark.parametrize(
    "command",
    [
        v2.TelemetryCommand(settings=v2.Settings(client_type=v2.PRODUCER)),
        producer_settings("TBW102"),
        consumer_settings("", "t"),
        consumer_settings("g", "t", "||"),
        v2.TelemetryCommand(),
        v2.TelemetryCommand(
            settings=v2.Settings(client_type=v2.PRODUCER, subscription=v2.Subscription())
        ),
    ],
)
async def test_invalid_settings_end_the_stream(
    tmp_path: Path, command: v2.TelemetryCommand
) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        stream = telemetry(wire)
        await stream.write(command)
        with pytest.raises(RpcError) as refused:
            await stream.read()
            await stream.read()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "telemetryCommand" in (refused.value.details() or "")
        await create_topic(wire, "unharmed")


async def test_clients_without_settings_are_served(tmp_path: Path) -> None:
    async def beat(wire: Wire, **fields: Any) -> int:
        request = v2.HeartbeatRequest(**fields)
        answer = await wire.call(paths.HEARTBEAT, request, v2.HeartbeatResponse)
        return int(answer.status.code)

    async with running(settings(tmp_path)) as live, live.client() as wire:
        group = v2.Resource(name="g")
        assert await beat(wire, client_type=v2.PUSH_CONSUMER, group=group) == v2.OK
        client = live.node.clients.get("wire@1")
        assert client is not None
        assert (client.group, client.client_type) == ("g", v2.PUSH_CONSUMER)
        assert await beat(wire, client_type=v2.PRODUCER) == v2.OK
        bad = v2.Resource(name="a b")
        assert (
            await beat(wire, client_type=v2.SIMPLE_CONSUMER, group=bad) == v2.ILLEGAL_CONSUMER_GROUP
        )
        assert await beat(wire) == v2.UNRECOGNIZED_CLIENT_TYPE
        described = await wire.call(
            paths.DESCRIBE_GROUP, v1.DescribeGroupRequest(name="g"), v1.DescribeGroupResponse
        )
        assert described.code == v2.OK, "the heartbeat creates the group"


async def test_client_termination_ends_its_long_polls(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        await create_topic(wire, "t")
        request = receive_request("t", "g", await_s=15)
        poll = asyncio.create_task(wire.receive(request, within_s=100))
        await until(lambda: live.node.pop.waiting == 1)
        goodbye = v2.NotifyClientTerminationRequest(group=v2.Resource(name="g"))
        for _ in range(2):
            answer = await wire.call(
                paths.NOTIFY_CLIENT_TERMINATION, goodbye, v2.NotifyClientTerminationResponse
            )
            assert answer.status.code == v2.OK
        code, messages = await asyncio.wait_for(poll, 60)
        assert (code, messages) == (v2.MESSAGE_NOT_FOUND, [])
        assert live.node.clients.get("wire@1") is None


async def test_a_second_process_on_a_store_is_refused_and_closes_everything(tmp_path: Path) -> None:
    async with running(settings(tmp_path / "one")) as live:
        with pytest.raises(StoreLockedError):
            async with running(settings(tmp_path / "one")):
                pass
        port = int(live.bound.client.rpartition(":")[2])
        with pytest.raises(PortInUseError, match=str(port)):
            async with running(settings(tmp_path / "two", grpc_server_port=port)):
                pass
    async with running(settings(tmp_path / "two")):
        pass


async def test_a_metrics_port_in_use_fails_the_start_and_closes_the_door(tmp_path: Path) -> None:
    async with running(settings(tmp_path / "a")) as live:
        port = int(live.bound.metrics.rpartition(":")[2])
        doors: list[GrpcioDoor] = []
        with pytest.MonkeyPatch.context() as patch:
            start = GrpcioDoor.start

            async def noted(door: GrpcioDoor, host: str, at: int) -> int:
                doors.append(door)
                return await start(door, host, at)

            patch.setattr(GrpcioDoor, "start", noted)
            second = settings(tmp_path / "b", metrics_prom_exporter_port=port)
            with pytest.raises(PortInUseError, match=str(port)):
                async with running(second):
                    pass
        assert [door._server for door in doors] == [None, None]  # of clients, of replication
