"""Nameserver and broker with one port each for both protocols, on both doors."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from cometmq.front.config import DoorConfig
from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.remoting.codes import Reply, Request
from cometmq.store.format.record import unpack_host
from cometmq.tests.broker.classic_wire import TOPIC, message, pulled
from cometmq.tests.broker.live import create_topic, running, settings
from cometmq.tests.front.conftest import DOORS
from cometmq.tests.harness.ports import free_ports
from cometmq.tests.remoting.client import RemotingClient

PATIENCE_S = 60


@pytest.mark.parametrize("door_name", DOORS)
async def test_classic_clients_follow_routes_on_the_ports_of_grpc(
    door_name: str, tmp_path: Path
) -> None:
    first, second = free_ports(2)
    door = DoorConfig(front_door=door_name)
    config = NameserverConfig(
        bind_address="127.0.0.1", listen_port=first, remoting_listen_port=first
    )
    nameserver = NameserverServer(config, door=door)
    address = await nameserver.start()
    chosen = settings(
        tmp_path, grpc_server_port=second, remoting_listen_port=second, namesrv_addr=address
    )
    try:
        async with running(chosen, door=door) as live, RemotingClient(first) as client:
            assert live.bound.remoting == live.bound.client == f"127.0.0.1:{second}"
            async with live.client() as wire:
                await create_topic(wire, TOPIC, queues=2)
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    route = await client.call(Request.GET_ROUTEINFO_BY_TOPIC, topic=TOPIC)
                    if route.code == Reply.SUCCESS:
                        break
                    await asyncio.sleep(0.02)
            (broker,) = json.loads(route.body)["brokerDatas"]
            assert broker["brokerAddrs"] == {"0": f"127.0.0.1:{second}"}
            async with RemotingClient(second) as sender:
                assert (await sender.post(message())).code == Reply.SUCCESS
                (record,) = await pulled(sender)
                host, port = sender.writer.get_extra_info("sockname")
            assert record.body == b"hello"
            assert unpack_host(record.born_host) == (host, port)
    finally:
        await nameserver.stop(0.5)
