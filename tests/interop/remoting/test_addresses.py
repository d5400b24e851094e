"""Unmodified Java clients: several nameservers of which one is dead or ends, and a broker that is
reached by the address that it advertises."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.tests.broker.live import create_topic, running, settings
from cometmq.tests.harness.relay import Relay
from cometmq.tests.interop.remoting.test_failover import VERSIONS, Run
from cometmq.tests.interop.remoting.test_java_clients import RUN_S, TOPICS, java, output_of
from cometmq.tests.remoting.client import wait_for_routes

pytestmark = pytest.mark.timeout(700)  # the first run fetches the client


def in_turn(gating: str) -> list[Any]:
    """Return the versions of the client: one in the gate, the others in the slow lane."""
    return [
        pytest.param(version, marks=[] if version == gating else [pytest.mark.slow])
        for version in VERSIONS
    ]


@asynccontextmanager
async def nameservers(count: int) -> AsyncIterator[tuple[list[NameserverServer], str]]:
    """Run nameservers for classic clients; yield them, and their addresses for brokers."""
    servers = [
        NameserverServer(
            NameserverConfig(bind_address="127.0.0.1", listen_port=0, remoting_listen_port=-1)
        )
        for _ in range(count)
    ]
    try:
        addresses = [await server.start() for server in servers]
        yield servers, ";".join(addresses)
    finally:
        for server in servers:
            await server.stop(0.5)


@pytest.mark.parametrize("version", in_turn("4.9.8"))
async def test_a_client_goes_on_when_its_nameserver_ends(version: str, tmp_path: Path) -> None:
    command = await asyncio.to_thread(java, version)
    home = tmp_path / "home"
    home.mkdir()
    async with nameservers(2) as (servers, for_brokers):
        chosen = settings(tmp_path / "store", remoting_listen_port=-1, namesrv_addr=for_brokers)
        async with running(chosen) as live, live.client() as wire, asyncio.TaskGroup() as group:
            await create_topic(wire, "java-before")
            for server in servers:
                await wait_for_routes(server.remoting_port, ["java-before"])
            client = Run(version, "java", [*command, "Nameservers", "{}", "java"])
            addresses = ";".join(f"127.0.0.1:{server.remoting_port}" for server in servers)
            program = group.create_task(client.run(addresses, home))
            await asyncio.wait_for(client.sending.wait(), RUN_S)
            used = [server for server in servers if server.remoting_connections]
            assert used, client.lines[-40:]
            await used[0].stop(0)
            await create_topic(wire, "java-after")
            await asyncio.wait_for(program, RUN_S)
    assert client.lines[-1] == "OK", client.lines[-40:]


@pytest.mark.parametrize("version", in_turn("5.5.0"))
async def test_a_client_goes_on_when_one_of_its_nameservers_is_dead(
    version: str, tmp_path: Path
) -> None:
    command = await asyncio.to_thread(java, version)
    home = tmp_path / "home"
    home.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = taken.getsockname()[1]
    async with nameservers(1) as (servers, for_brokers):
        chosen = settings(tmp_path / "store", remoting_listen_port=-1, namesrv_addr=for_brokers)
        async with running(chosen) as live, live.client() as wire:
            for topic in ("java-before", "java-after"):
                await create_topic(wire, topic)
            port = servers[0].remoting_port
            await wait_for_routes(port, ["java-before", "java-after"])
            client = Run(version, "java", [*command, "Nameservers", "{}", "java"])
            await asyncio.wait_for(client.run(f"127.0.0.1:{dead};127.0.0.1:{port}", home), RUN_S)
    assert client.lines[-1] == "OK", client.lines[-40:]


@pytest.mark.parametrize("version", in_turn("4.9.8"))
async def test_a_client_uses_the_address_that_a_broker_advertises(
    version: str, tmp_path: Path
) -> None:
    command = await asyncio.to_thread(java, version)
    home = tmp_path / "home"
    home.mkdir()
    relay = Relay(0)
    mapped = (await relay.start()).rpartition(":")[2]
    async with nameservers(1) as (servers, for_brokers):
        chosen = settings(
            tmp_path / "store",
            remoting_listen_port=-1,
            namesrv_addr=for_brokers,
            remoting_advertise=f"localhost:{mapped}",
        )
        try:
            async with running(chosen) as live, live.client() as wire:
                relay.to = int(live.bound.remoting.rpartition(":")[2])
                topics = [f"java-{kind}" for kind in TOPICS["Classic"]]
                for topic in topics:
                    await create_topic(wire, topic, queues=4)
                port = servers[0].remoting_port
                await wait_for_routes(port, topics)
                arguments = ["Classic", f"127.0.0.1:{port}", "java"]
                output = await output_of([*command, *arguments], home)
                assert output.splitlines()[-1] == "OK", output[-3_000:]
                assert relay.joined, "no connection came through the advertised address"
        finally:
            await relay.stop()
