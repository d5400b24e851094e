"""Random classic requests: each is answered, none fails in the server, the broker serves on."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from cometmq.broker.classic import calls
from cometmq.remoting import admin_headers, headers
from cometmq.remoting.admin_codes import Admin
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command
from cometmq.tests.broker.classic_wire import GROUP, TOPIC, classic, heartbeat, message, pulling
from cometmq.tests.broker.live import create_topic

ROUNDS, AT_ONCE = 60, 50
#: Deletions would leave the later requests without their topic and group.
_DELETIONS = (Admin.DELETE_TOPIC_IN_BROKER, Admin.DELETE_SUBSCRIPTIONGROUP)
CODES = (*(each for each in (*Request, *Admin) if each not in _DELETIONS), 0, -1, 32_767)
_HEADERS = (
    each
    for module in (headers, admin_headers)
    for each in vars(module).values()
    if is_dataclass(each)
)
#: Every field that a handler reads, by its name and by its letter, and whether it is text.
NAMES = {
    name: field.metadata["parse"] is str
    for header in _HEADERS
    for field in fields(header)
    for name in (field.metadata["name"], field.metadata["letter"])
    if name
}
#: Fields of long polls, which would hold up the round.
WAITS = ("suspendTimeoutMillis", "pollTime")
VALUES = (
    *("", "0", "1", "-1", "5", "32", "2147483647", "-2147483648", "9223372036854775807"),
    *("-9223372036854775808", "9" * 30, "x", "true", TOPIC, GROUP, "%RETRY%" + GROUP),
    *("%DLQ%" + GROUP, "TBW102", "../etc", "a\x00b", "\ud7ff", "*", "a || b", "SQL92", "|"),
    *("KEYS\x01a\x02", "\x02\x02\x01", "DELAY\x0199\x02", "TIMER_DELIVER_MS\x01x\x02"),
    *("TIMER_DELAY_SEC\x01-5\x02", "UNIQ_KEY\x01\x02", "x" * 40_000, "%|", "rmq_sys_x"),
)
NUMBERS = ("0", "1", "2", "32", "-1", "2147483647", "9223372036854775807", "true")
BODIES = (
    *(b"", b"x", b"{}", b"[]", b"null", b"\xff" * 60, b'{"clientID":"c"}', b'{"mqSet":[{}]}'),
    b'{"clientId":"c","consumerGroup":"shop","mqSet":[{"topic":"orders","queueId":1e9}]}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{}]}]}',
    *(b'{"consumerGroup":"shop","topic":"orders","mode":"POP"}', b'{"properties":{"x":1}}'),
    *(b'{"username":"u","password":"p","userType":"Super"}', b'{"policies":[{"resource":1}]}'),
    *(b'{"topicConfigList":[{}]}', b'{"groupName":"shop"}', b'{"groupConfigList":[{}]}'),
    *(b'{"acks":[{"c":1}]}', b'{"acks":[1]}', b"key=value", b"deleteWhen=04", b"[" * 2_000),
    *(heartbeat(), heartbeat("c2", "../x"), heartbeat("c3", "CID_RMQ_SYS_x"), b"x" * 300_000),
    json.dumps({"subscriptionData": {"topic": 1, "subString": "*"}}).encode(),
)


def some_request(chance: random.Random) -> Command:
    """Return a request with random fields, often on top of one that is served."""
    kind = chance.randrange(3)
    command = Command(chance.choice(CODES))
    if kind == 1:
        command = message()
    elif kind == 2:
        command = pulling(queueId=chance.randrange(2))
    for _ in range(chance.randrange(5)):
        command.fields[chance.choice(list(NAMES))] = chance.choice(VALUES)
    if kind == 0:
        for name, is_text in NAMES.items():
            values = VALUES if is_text or not chance.randrange(50) else NUMBERS
            command.fields[name] = chance.choice(values)
        if chance.randrange(2):
            command.fields.update(topic=TOPIC, consumerGroup=GROUP, group=GROUP, b=TOPIC)
        command.body = chance.choice(BODIES)
    for name in WAITS:
        command.fields[name] = chance.choice(("0", "-1", "10"))
    return command


async def test_no_request_fails_in_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The client answers no request of the server.
    monkeypatch.setattr(calls, "CALL_S", 0.05)
    chance = random.Random(20_21)
    seen = set()
    async with classic(tmp_path) as (live, client):
        await client.call(Request.HEART_BEAT, heartbeat())
        for _ in range(ROUNDS):
            sent = [some_request(chance) for _ in range(AT_ONCE)]
            answers = await asyncio.wait_for(asyncio.gather(*map(client.post, sent)), 60)
            for command, answer in zip(sent, answers, strict=True):
                failed = "failed in the server" in (answer.remark or "")
                assert not failed, f"{command.code} {command.fields} {command.body[:100]!r}"
                seen.add(answer.code)
        async with live.client() as wire:
            await create_topic(wire, "after", queues=2)
        assert (await client.post(message(b="after"))).code == Reply.SUCCESS
        assert live.node.store.writable
    assert {Reply.SUCCESS, Reply.SYSTEM_ERROR, Reply.REQUEST_CODE_NOT_SUPPORTED} <= seen
