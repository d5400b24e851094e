"""Requests that the broker sends to classic consumers: forwarded calls and resets of offsets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.classic import calls
from cometmq.proto import paths, v1, v2
from cometmq.remoting.bare_json import QueueKey, loads
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command, reply
from cometmq.store.format.record import decode
from cometmq.tests.broker.classic_wire import (
    GROUP,
    TOPIC,
    classic,
    heartbeat,
    message,
    port_of,
    pulled,
)
from cometmq.tests.remoting.client import RemotingClient


async def test_a_call_is_forwarded_to_the_consumer_and_its_answer_returned(tmp_path: Path) -> None:
    seen: list[Command] = []

    def answer(command: Command) -> Command | None:
        if command.is_oneway:
            return None
        seen.append(command)
        return reply(Reply.SUCCESS, "fine", {"a": "b"}, b'{"mqTable":{}}')

    async with classic(tmp_path) as (live, consumer):
        consumer.on_request = answer
        await consumer.call(Request.HEART_BEAT, heartbeat("c1"))
        async with RemotingClient(port_of(live)) as tool:
            asked = {"consumerGroup": GROUP, "clientId": "c1", "jstackEnable": "true", "more": "1"}
            found = await tool.call(Request.GET_CONSUMER_RUNNING_INFO, **asked)
            assert (found.code, found.remark, found.body) == (0, "fine", b'{"mqTable":{}}')
            assert seen[0].fields.items() >= asked.items()
            found = await tool.call(
                Request.GET_CONSUMER_RUNNING_INFO, **{**asked, "clientId": "c2"}
            )
            assert (found.code, found.remark) == (1, f"The Consumer <{GROUP}> <c2> not online")


async def test_a_message_is_consumed_directly_by_its_offset_id(tmp_path: Path) -> None:
    seen: list[Command] = []

    def answer(command: Command) -> Command | None:
        if command.is_oneway:
            return None
        seen.append(command)
        return reply(Reply.SUCCESS, body=b'{"consumeResult":"CR_SUCCESS"}')

    async with classic(tmp_path) as (_, client):
        client.on_request = answer
        await client.call(Request.HEART_BEAT, heartbeat("c1"))
        sent = await client.post(message(b"direct"))
        asked = {"consumerGroup": GROUP, "clientId": "c1"}
        found = await client.call(
            Request.CONSUME_MESSAGE_DIRECTLY, **asked, msgId=sent.fields["msgId"]
        )
        assert found.body == b'{"consumeResult":"CR_SUCCESS"}'
        assert [decode(each.body).body for each in seen] == [b"direct"]
        added = {"brokerName": "broker-a", "topicSysFlag": "0", "groupSysFlag": "0"}
        assert seen[0].fields.items() >= added.items()
        for wrong in ("", "x", "0" * 32):
            found = await client.call(Request.CONSUME_MESSAGE_DIRECTLY, **asked, msgId=wrong)
            assert (found.code, "no message" in (found.remark or "")) == (1, True)


async def test_a_consumer_that_does_not_answer_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "CALL_S", 0.01)
    async with classic(tmp_path) as (live, client):
        asked = {"consumerGroup": GROUP, "clientId": "c1"}
        async with RemotingClient(port_of(live)) as consumer:
            await consumer.call(Request.HEART_BEAT, heartbeat("c1"))
            found = await client.call(Request.GET_CONSUMER_RUNNING_INFO, **asked)
            assert found.code == Reply.CONSUME_MSG_TIMEOUT
            monkeypatch.setattr(calls, "CALL_S", 60)
            waiting = asyncio.create_task(client.call(Request.GET_CONSUMER_RUNNING_INFO, **asked))
            while (await consumer.next_request()).is_oneway:
                pass
        assert ((await waiting).code, (await waiting).remark) == (1, "the client has left")


async def test_an_operators_reset_of_offsets_reaches_connected_consumers(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, client), live.client() as wire:
        await client.call(Request.HEART_BEAT, heartbeat("c1"))
        for _ in range(3):
            await client.post(message())
        assert len(await pulled(client)) == 3
        request = v1.ResetOffsetsRequest(group=GROUP, topic=TOPIC, queue_id=1, offset=1)
        done: Any = await wire.call(paths.RESET_OFFSETS, request, v1.ResetOffsetsResponse)
        assert done.code == v2.OK
        told = await client.next_request()
        while told.code == Request.NOTIFY_CONSUMER_IDS_CHANGED:
            told = await client.next_request()
        assert (told.code, told.is_oneway) == (Request.RESET_CONSUMER_CLIENT_OFFSET, True)
        assert (told.fields["topic"], told.fields["group"]) == (TOPIC, GROUP)
        broker = live.node.runtime.config.broker_name
        assert loads(told.body) == {"offsetTable": {QueueKey(broker, 1, TOPIC): 1}}
