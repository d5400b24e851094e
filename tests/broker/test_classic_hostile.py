"""Random classic requests: each is answered, none fails in the server, the broker serves on."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command
from cometmq.tests.broker.classic_wire import GROUP, TOPIC, classic, heartbeat, message, pulling

ROUNDS, AT_ONCE = 30, 50
CODES = (
    *(10, 11, 12, 33, 14, 15, 29, 30, 31, 32, 34, 35, 36, 38, 41, 42, 46, 310, 320, 361),
    *(0, -1, 105, 32_767, 200_050),
)
NAMES = (
    *("consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag"),
    *("commitOffset", "suspendTimeoutMillis", "subVersion", "subscription", "expressionType"),
    *("timestamp", "boundaryType", "offset", "group", "delayLevel", "maxReconsumeTimes"),
    *(
        "clientID",
        "key",
        "maxNum",
        "beginTimestamp",
        "endTimestamp",
        "producerGroup",
        *"abcdefghijklm",
        "defaultTopic",
        "bornTimestamp",
        "flag",
    ),
)
VALUES = (
    *("", "0", "1", "-1", "5", "32", "2147483647", "-2147483648", "9223372036854775807"),
    *("-9223372036854775808", "9" * 30, "x", "true", TOPIC, GROUP, "%RETRY%" + GROUP),
    *("%DLQ%" + GROUP, "TBW102", "../etc", "a\x00b", "\ud7ff", "*", "a || b", "SQL92", "|"),
    *("KEYS\x01a\x02", "\x02\x02\x01", "DELAY\x0199\x02", "TIMER_DELIVER_MS\x01x\x02"),
    *("TIMER_DELAY_SEC\x01-5\x02", "UNIQ_KEY\x01\x02", "x" * 40_000, "%|", "rmq_sys_x"),
)
BODIES = (
    *(b"", b"x", b"{}", b"[]", b"null", b"\xff" * 60, b'{"clientID":"c"}', b'{"mqSet":[{}]}'),
    b'{"clientId":"c","consumerGroup":"shop","mqSet":[{"topic":"orders","queueId":1e9}]}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{}]}]}',
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
        command.fields[chance.choice(NAMES)] = chance.choice(VALUES)
    if kind == 0:
        command.fields.update({name: chance.choice(VALUES) for name in NAMES})
        command.body = chance.choice(BODIES)
    # A waiting pull would hold up the round.
    command.fields["suspendTimeoutMillis"] = chance.choice(("0", "-1", "10"))
    return command


async def test_no_request_fails_in_the_server(tmp_path: Path) -> None:
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
        assert (await client.post(message())).code == Reply.SUCCESS
        assert live.node.store.writable
    assert {Reply.SUCCESS, Reply.SYSTEM_ERROR, Reply.REQUEST_CODE_NOT_SUPPORTED} <= seen
