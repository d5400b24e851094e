"""Connected clients of both protocols for tools: lists, settings, stacks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import cometmq
from cometmq.broker.classic.connected import version_name
from cometmq.broker.clients import registry, stacks
from cometmq.client.transport.stack_trace import stack_trace
from cometmq.front.context import RequestContext
from cometmq.proto import paths, v1, v2
from cometmq.remoting.bare_json import QueueKey, dumps
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command, reply
from cometmq.tests.broker.classic_wire import GROUP, TOPIC, classic, heartbeat
from cometmq.tests.broker.live import Live, telemetry


async def listed(wire: Any, client_id: str = "") -> dict[str, v1.ClientStatus]:
    request = v1.ListClientsRequest(client_id=client_id)
    answer = await wire.call(paths.LIST_CLIENTS, request, v1.ListClientsResponse)
    assert answer.code == v2.OK, answer.message
    return {one.client.client_id: one for one in answer.clients}


async def stack_of(wire: Any, client_id: str) -> v1.GetClientStackResponse:
    request = v1.GetClientStackRequest(client_id=client_id)
    found: v1.GetClientStackResponse = await wire.call(
        paths.GET_CLIENT_STACK, request, v1.GetClientStackResponse
    )
    return found


def endpoint_of(live: Live) -> str:
    return live.bound.client


async def test_producers_and_consumers_of_both_protocols_are_listed(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, client), live.client() as wire:
        await client.call(Request.HEART_BEAT, heartbeat("c1", orders="TagA"))
        endpoint = endpoint_of(live)
        async with (
            cometmq.Producer(endpoint, topics=[TOPIC]) as producer,
            cometmq.SimpleConsumer(endpoint, group="poppers", topics={TOPIC: "a || b"}) as popper,
        ):
            await producer.send(TOPIC, b"x")
            rows = await listed(wire)
            kinds = {one.kind: one for one in rows.values()}
            assert kinds["producer"].topics == [TOPIC]
            assert kinds["simple consumer"].groups == ["poppers"]
            assert kinds["simple consumer"].client.protocol == "grpc"
            assert rows["c1"].client.protocol == "remoting"
            assert (rows["c1"].kind, list(rows["c1"].groups)) == ("consumer", [GROUP])
            own = kinds["simple consumer"].client.client_id
            (detailed,) = (await listed(wire, own)).values()
            assert [(one.topic, one.expression) for one in detailed.subscriptions] == [
                (TOPIC, "a || b")
            ]
            assert "long polling" in {one.key for one in detailed.settings}
            (classic_one,) = (await listed(wire, "c1")).values()
            assert [one.expression for one in classic_one.subscriptions] == ["TagA"]
            group = v1.DescribeGroupRequest(name=GROUP)
            described = await wire.call(paths.DESCRIBE_GROUP, group, v1.DescribeGroupResponse)
            assert [one.client_id for one in described.clients] == ["c1"]
            assert described.progress.clients == 1
            found = await stack_of(wire, own)
            assert "test_producers_and_consumers" in found.stack
            page = v1.ListClientsRequest(limit=1)
            answer = await wire.call(paths.LIST_CLIENTS, page, v1.ListClientsResponse)
            assert (len(answer.clients), answer.more) == (1, True)
            await popper.receive(wait=1)
        missing = v1.ListClientsRequest(client_id="nothing")
        answer = await wire.call(paths.LIST_CLIENTS, missing, v1.ListClientsResponse)
        assert answer.code == v2.NOT_FOUND


async def test_a_classic_consumer_is_asked_for_its_stack(tmp_path: Path) -> None:
    answers: list[Command] = []

    def answer(command: Command) -> Command | None:
        return None if command.is_oneway else answers.pop()

    async with classic(tmp_path) as (live, client), live.client() as wire:
        client.on_request = answer
        await client.call(Request.HEART_BEAT, heartbeat("c1"))
        key = QueueKey("broker-a", 0, TOPIC)
        body = dumps({"jstack": "main\n  at Worker", "mqTable": {key: {"commitOffset": 5}}})
        answers.append(reply(Reply.SUCCESS, body=body))
        assert (await stack_of(wire, "c1")).stack == "main\n  at Worker"
        answers.append(reply(Reply.SUCCESS, body=b'{"mqTable":{}}'))
        found = await stack_of(wire, "c1")
        assert (found.code, "sent no stack" in found.message) == (v2.UNSUPPORTED, True)
        assert (await stack_of(wire, "c2")).code == v2.NOT_FOUND


async def test_a_client_that_refuses_or_ignores_the_request_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with classic(tmp_path) as (live, _), live.client() as wire:
        stream = telemetry(wire)
        settings = v2.Settings(client_type=v2.PRODUCER, publishing=v2.Publishing())
        await stream.write(v2.TelemetryCommand(settings=settings))
        await stream.read()
        (client_id,) = await listed(wire)
        asking = asyncio.create_task(stack_of(wire, client_id))
        asked = await stream.read()
        assert asked.print_thread_stack_trace_command.nonce
        refusal = v2.Status(code=v2.UNSUPPORTED, message="not here")
        await stream.write(v2.TelemetryCommand(status=refusal))
        found = await asking
        assert (found.code, "not here" in found.message) == (v2.UNSUPPORTED, True)
        monkeypatch.setattr(stacks, "ANSWER_S", 0.01)
        found = await stack_of(wire, client_id)
        assert (found.code, "did not answer" in found.message) == (v2.REQUEST_TIMEOUT, True)


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (513, "5.5.0"),
        (477, "5.3.2"),
        (409, "4.9.8"),
        (317, "4.5.2"),
        (232, "4.1.0-SNAPSHOT"),
        (0, "number 0"),
        (613, "number 613"),
    ],
)
def test_a_number_of_a_classic_version_is_written_as_its_name(number: int, name: str) -> None:
    assert version_name(number) == name


def test_settings_are_kept_for_tools_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = registry.ClientRegistry(expiry_ms=1_000, limit=10)

    def settled(name: str, topics: int) -> registry.Client:
        client = clients.seen(RequestContext(client_id=name), 0)
        publishing = v2.Publishing(topics=[v2.Resource(name="t" * 100) for _ in range(topics)])
        clients.keep(client, v2.Settings(publishing=publishing))
        return client

    assert settled("small", 2).settings
    assert not settled("large", 100).settings
    monkeypatch.setattr(registry, "KEPT_SETTINGS_BYTES_MAX", 1_000)
    assert settled("second", 5).settings
    assert not settled("third", 5).settings
    clients.forget("second")
    assert settled("third", 5).settings


async def test_the_stack_of_a_process_has_its_threads_and_tasks() -> None:
    task = asyncio.create_task(asyncio.sleep(60), name="sleeper")
    await asyncio.sleep(0)
    found = stack_trace()
    assert "Thread MainThread" in found
    assert "Task sleeper" in found
    task.cancel()
