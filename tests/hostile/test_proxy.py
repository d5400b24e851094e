"""Hostile classic clients at a proxy: each harms only its own connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

from cometmq.remoting.codec import FRAME_BYTES_MAX, encode
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command
from cometmq.tests.broker.classic_wire import message
from cometmq.tests.harness.cluster import Cluster, wait_until
from cometmq.tests.harness.proxy_process import proxy_process
from cometmq.tests.hostile.memory import Memory
from cometmq.tests.hostile.remoting import (
    AT_ONCE,
    CLASSIC,
    broken_frames,
    closes,
    frame,
    hostile,
    pushed,
    unfinished,
)
from cometmq.tests.hostile.target import SETTINGS
from cometmq.tests.hostile.trial import STAYS_MIB
from cometmq.tests.remoting.client import WAIT_S, RemotingClient, wait_for_routes

TOPIC = "neighbour"
#: Requests whose bodies or handles the proxy reads, and some of those that it only passes on.
CODES = (
    *(Request.LOCK_BATCH_MQ, Request.UNLOCK_BATCH_MQ, Request.BATCH_ACK_MESSAGE),
    *(Request.RECALL_MESSAGE, Request.ACK_MESSAGE, Request.END_TRANSACTION, Request.HEART_BEAT),
    *(Request.SEND_MESSAGE_V2, Request.PULL_MESSAGE, Request.GET_ROUTEINFO_BY_TOPIC),
)
#: Requests for each code with an extreme field, besides those with hostile bodies.
CHOSEN = 8


async def frames_that_are_none(port: int) -> None:
    found = [await closes(port, broken, WAIT_S) for broken in broken_frames()]
    assert set(found) == {"closed"}, found


async def half_a_frame(port: int) -> None:
    """The proxy closes the connection after its `frontRequestTimeout`."""
    assert await closes(port, frame(b"{}", length=100), WAIT_S) == "closed"


async def large_frames(port: int) -> None:
    await asyncio.gather(*(pushed(port, unfinished(), 1) for _ in range(8)))
    async with RemotingClient(port) as client:
        body = bytes(FRAME_BYTES_MAX - 10_000)
        answer = await client.post(message(body, b=TOPIC))
        assert answer.code == Reply.MESSAGE_ILLEGAL, answer


async def hostile_fields_and_bodies(port: int) -> None:
    async with RemotingClient(port) as client:
        for code in CODES:
            commands = list(hostile(code, CHOSEN))
            for begin in range(0, len(commands), AT_ONCE):
                some = map(client.post, commands[begin : begin + AT_ONCE])
                for answer in await asyncio.gather(*some):
                    assert answer.code in set(Reply), answer


async def requests_without_reading(port: int) -> None:
    request = encode(Command(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}))
    await asyncio.gather(*(pushed(port, request * 1_000, 3) for _ in range(2)))


async def beside(client: RemotingClient, attack: Awaitable[None]) -> None:
    """Send messages through the same proxy until the attack is over."""
    attacking = asyncio.ensure_future(attack)
    sent = 0
    while not (attacking.done() and sent):
        answer = await asyncio.wait_for(client.post(message(b=TOPIC)), WAIT_S)
        assert answer.code == Reply.SUCCESS, answer
        sent += 1
        await asyncio.sleep(0.02)
    await attacking


async def attacked(port: int) -> None:
    await wait_for_routes(port, [TOPIC, CLASSIC])
    async with RemotingClient(port) as client:
        for attack in (
            *(frames_that_are_none, half_a_frame, large_frames),
            *(hostile_fields_and_bodies, requests_without_reading),
        ):
            await beside(client, attack(port))


def test_hostile_classic_clients_of_a_proxy_harm_only_their_connections(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "data", "--single", env=SETTINGS)
    try:
        cluster.start()
        for topic in (TOPIC, CLASSIC):
            cluster.create_topic(topic, queues=4)
        with proxy_process(cluster, tmp_path, front_request_timeout="10000") as proxy:
            memory = Memory(proxy.pid)
            before_mib = memory.own_mib()
            asyncio.run(attacked(proxy.port))
            wait_until("memory is given back", lambda: memory.own_mib() - before_mib < STAYS_MIB)
        log = proxy.log.read_text()
        assert "Traceback" not in log, log[-5_000:]
    finally:
        cluster.stop()
