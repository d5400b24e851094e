"""The official Go client for classic clients (rocketmq-client-go v2), unmodified."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.remoting.codes import Request
from cometmq.tests.broker.live import create_topic, running, settings, until
from cometmq.tests.interop.programs import CACHE, build, require
from cometmq.tests.interop.remoting.test_java_clients import output_of
from cometmq.tests.remoting.client import WAIT_S, RemotingClient

HERE = Path(__file__).parent / "go"
TOPICS = (
    *("push", "order", "broadcast", "delay", "pull", "sql", "transaction", "restart", "request"),
    *("dead", "rebalance"),
)


def program() -> list[str]:
    """Build the program; return its command."""
    require("go")
    built = CACHE / "classic-go-client"
    build(["go", "build", "-o", str(built), "."], HERE)
    return [str(built)]


async def routed(port: int) -> None:
    """Wait until the nameserver has the topics: the client does not ask twice at its start."""
    async with RemotingClient(port) as client, asyncio.timeout(WAIT_S):
        for name in TOPICS:
            while (await client.call(Request.GET_ROUTEINFO_BY_TOPIC, topic=f"go-{name}")).code:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.05)


@pytest.mark.timeout(700)  # the first run fetches the client
async def test_the_client_works_unmodified(tmp_path: Path) -> None:
    command = await asyncio.to_thread(program)
    nameserver = NameserverServer(
        NameserverConfig(bind_address="127.0.0.1", listen_port=0, remoting_listen_port=-1)
    )
    chosen = settings(
        tmp_path / "store",
        remoting_listen_port=-1,
        namesrv_addr=await nameserver.start(),
        transaction_check_interval=1_000,
        transaction_time_out=1_000,
        # The client sends its first heartbeat half a minute after its first message.
        transaction_check_max=100,
    )
    home = tmp_path / "home"
    home.mkdir()
    try:
        async with running(chosen) as live:
            async with live.client() as wire:
                for name in TOPICS:
                    await create_topic(wire, f"go-{name}", queues=4)
            await routed(nameserver.remoting_port)
            output = await output_of(
                [*command, f"127.0.0.1:{nameserver.remoting_port}", "go"], home
            )
            assert output.splitlines()[-1] == "OK", output[-3_000:]
            dead = "%DLQ%go-dead-group"
            # More than one if the client repeated what took it more than 3 s.
            await until(lambda: live.node.store.max_offset(dead, 0) >= 1)
    finally:
        await nameserver.stop(0.5)
