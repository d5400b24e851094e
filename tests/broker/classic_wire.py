"""Requests of classic clients to a broker of the test's process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command
from cometmq.store.format.record import Record, decode
from cometmq.tests.broker.live import Live, create_topic, running, settings
from cometmq.tests.remoting.client import RemotingClient

TOPIC, GROUP = "orders", "shop"
NOW_MS = 1_795_389_060_489


def port_of(live: Live) -> int:
    return int(live.bound.remoting.rpartition(":")[2])


@asynccontextmanager
async def classic(tmp_path: Path, **broker: Any) -> AsyncIterator[tuple[Live, RemotingClient]]:
    async with running(settings(tmp_path, remoting_listen_port=-1, **broker)) as live:
        async with live.client() as wire:
            await create_topic(wire, TOPIC, queues=2)
        async with RemotingClient(port_of(live)) as client:
            yield live, client


def message(
    body: bytes = b"hello", properties: str = "TAGS\x01TagA\x02UNIQ_KEY\x01id1\x02", **more: Any
) -> Command:
    fields = {
        **{"a": "producers", "b": TOPIC, "c": "TBW102", "d": 4, "e": 1, "f": 0, "g": NOW_MS},
        **{"h": 7, "i": properties, "j": 0, "k": "false", "m": "false", "n": "broker-a", **more},
    }
    return Command(
        Request.SEND_MESSAGE_V2, {name: str(value) for name, value in fields.items()}, body
    )


def pulling(**more: Any) -> Command:
    fields = {
        **{"consumerGroup": GROUP, "topic": TOPIC, "queueId": 1, "queueOffset": 0},
        **{"maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0},
        **{"subVersion": 0, "subscription": "*", "expressionType": "TAG", **more},
    }
    return Command(Request.PULL_MESSAGE, {name: str(value) for name, value in fields.items()})


def heartbeat(
    client_id: str = "c1", group: str = GROUP, version: int = 1, **subscriptions: str
) -> bytes:
    entries = [
        {
            "topic": topic,
            "subString": text,
            "subVersion": version,
            "expressionType": "TAG",
            "tagsSet": [],
            "codeSet": [],
        }
        for topic, text in (subscriptions or {TOPIC: "*"}).items()
    ]
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": entries,
    }
    document = {
        "clientID": client_id,
        "consumerDataSet": [consumer],
        "producerDataSet": [{"groupName": "CLIENT_INNER_PRODUCER"}],
    }
    return json.dumps(document).encode()


def records(body: bytes) -> list[Record]:
    found = []
    while body:
        record = decode(body)
        found.append(record)
        body = body[record.size :]
    return found


async def pulled(client: RemotingClient, **more: Any) -> list[Record]:
    answer = await client.post(pulling(**more))
    assert answer.code == Reply.SUCCESS, answer
    return records(answer.body)
