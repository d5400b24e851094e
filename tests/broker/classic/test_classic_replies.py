"""Request-reply and recalls of classic producers."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.broker.classic import calls
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command, reply
from cometmq.store.format.properties import decode_properties
from cometmq.tests.broker.classic_wire import TOPIC, classic, heartbeat, message, port_of
from cometmq.tests.remoting.client import RemotingClient

HOUR_MS = 3_600_000


def answering(client_id: str, body: bytes = b"pong") -> Command:
    text = f"REPLY_TO_CLIENT\x01{client_id}\x02CORRELATION_ID\x01c1\x02MSG_TYPE\x01reply\x02"
    command = message(body, text, b="DefaultCluster_REPLY_TOPIC", e=0)
    command.code = Request.SEND_REPLY_MESSAGE_V2
    return command


async def test_a_reply_is_passed_on_to_the_client_that_asked(tmp_path: Path) -> None:
    pushed: list[Command] = []

    def take(command: Command) -> Command | None:
        if command.is_oneway:
            return None
        pushed.append(command)
        return reply(Reply.SUCCESS)

    async with classic(tmp_path) as (live, asker):
        asker.on_request = take
        await asker.call(Request.HEART_BEAT, heartbeat("asker"))
        async with RemotingClient(port_of(live)) as replier:
            found = await replier.post(answering("asker"))
        assert (found.code, found.fields["msgId"]) == (Reply.SUCCESS, "0")
        assert found.fields.keys() >= {"queueId", "queueOffset", "MSG_REGION", "TRACE_ON"}
        (command,) = pushed
        assert (command.code, command.body) == (Request.PUSH_REPLY_MESSAGE_TO_CLIENT, b"pong")
        assert command.fields["topic"] == "DefaultCluster_REPLY_TOPIC"
        properties = decode_properties(command.fields["properties"].encode())
        assert properties["CORRELATION_ID"] == "c1"
        assert int(properties["PUSH_REPLY_TIME"]) == int(command.fields["storeTimestamp"])
        host, _, port = command.fields["bornHost"].rpartition(":")
        assert (host, int(port) > 0) == ("127.0.0.1", True)


async def test_a_reply_that_reaches_no_client_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "CALL_S", 0.01)
    async with classic(tmp_path) as (_, client):
        found = await client.post(answering("gone"))
        assert found.code == Reply.SYSTEM_ERROR
        assert found.remark == "push reply message fail, channel of <gone> not found."
        await client.call(Request.HEART_BEAT, heartbeat("asker"))
        assert (await client.post(answering("asker"))).code == Reply.CONSUME_MSG_TIMEOUT
        monkeypatch.setattr(calls, "CALL_S", 60)
        client.on_request = lambda command: (
            None if command.is_oneway else reply(Reply.SYSTEM_ERROR, "no such request")
        )
        found = await client.post(answering("asker"))
        assert (found.code, "response code: 1" in (found.remark or "")) == (1, True)


async def test_a_delayed_message_is_recalled_before_its_time(tmp_path: Path) -> None:
    async with classic(tmp_path, recall_message_enable=True) as (live, client):
        clock = live.node.runtime.clock
        text = f"TIMER_DELIVER_MS\x01{clock.wall_ms() + HOUR_MS}\x02UNIQ_KEY\x01later\x02"
        sent = await client.post(message(b"never", text))
        handle = sent.fields["recallHandle"]
        done = await client.call(Request.RECALL_MESSAGE, topic=TOPIC, recallHandle=handle)
        assert (done.code, done.fields["msgId"]) == (Reply.SUCCESS, "later")
        for wrong in ("x", handle[:-8]):
            done = await client.call(Request.RECALL_MESSAGE, topic=TOPIC, recallHandle=wrong)
            assert done.code == Reply.ILLEGAL_OPERATION
        done = await client.call(Request.RECALL_MESSAGE, topic="nowhere", recallHandle=handle)
        assert done.code == Reply.TOPIC_NOT_EXIST


async def test_recalls_are_refused_where_they_are_off(tmp_path: Path) -> None:
    async with classic(tmp_path, recall_message_enable=False) as (_, client):
        done = await client.call(Request.RECALL_MESSAGE, topic=TOPIC, recallHandle="x")
        assert done.code == Reply.NO_PERMISSION
