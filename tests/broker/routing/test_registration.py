"""Registration: nameservers are independent, none is required, the cluster view is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.proto import v2
from cometmq.tests.broker.live import (
    RpcError,
    create_topic,
    nameserver,
    route,
    running,
    settings,
    until,
)
from cometmq.tests.harness.ports import free_port
from cometmq.tests.harness.wire import Wire


async def start_nameserver(port: int, token: str = "") -> NameserverServer:
    """Run a nameserver on a given port."""
    server = NameserverServer(
        NameserverConfig(bind_address="127.0.0.1", listen_port=port, cluster_token=token)
    )
    await server.start()
    return server


async def known_at(port: int, topic: str) -> bool:
    """Return whether a nameserver routes a topic."""
    async with Wire(f"127.0.0.1:{port}") as wire:
        return (await route(wire, topic)).status.code == v2.OK


async def until_known(port: int, topic: str) -> None:
    """Retry until the condition holds."""
    for _ in range(200):
        try:
            if await known_at(port, topic):
                return
        except RpcError:  # "not ready" is a gRPC failure of a starting nameserver
            pass
        await asyncio.sleep(0.05)
    raise AssertionError(f"{topic} is not known at {port}")


async def test_a_missing_nameserver_delays_nothing_and_is_used_once_up(tmp_path: Path) -> None:
    missing = free_port()
    async with nameserver() as there:
        both = f"{there};127.0.0.1:{missing}"
        async with running(settings(tmp_path, namesrv_addr=both)) as live:
            async with live.client() as wire:
                await create_topic(wire, "t", queues=1)
            await until_known(int(there.rpartition(":")[2]), "t")
            late = await start_nameserver(missing)
            await until_known(missing, "t")
            await late.stop(0.1)


async def test_a_restarted_nameserver_gets_the_whole_table(tmp_path: Path) -> None:
    port = free_port()
    first = await start_nameserver(port)
    chosen = settings(tmp_path, namesrv_addr=f"127.0.0.1:{port}")
    async with running(chosen) as live, live.client() as wire:
        for number in range(3):
            await create_topic(wire, f"t{number}", queues=1)
        await until_known(port, "t2")
        await until(lambda: "t2" in live.node.cluster.own().topics)
        await first.stop(0.1)
        assert (await route(wire, "t0")).status.code == v2.OK
        second = await start_nameserver(port)
        await until_known(port, "t0")
        assert await known_at(port, "t2")
        await second.stop(0.1)


async def test_a_wrong_token_is_refused_and_the_broker_keeps_serving(tmp_path: Path) -> None:
    port = free_port()
    server = await start_nameserver(port, token="the-token-of-the-tests")
    chosen = settings(tmp_path, namesrv_addr=f"127.0.0.1:{port}")
    async with running(chosen) as live, live.client() as wire:
        assert (await create_topic(wire, "t", queues=1)).code == v2.OK
        assert (await route(wire, "t")).status.code == v2.OK
        assert not await known_at(port, "t")
    await server.stop(0.1)
