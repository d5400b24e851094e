"""Connections to a host or container that returned elsewhere: nothing arrives, and no packet
reports it."""

import asyncio
from pathlib import Path

from cometmq.nameserver.acceptors import PeerAcceptor
from cometmq.nameserver.meta_store import StoreUnavailableError
from cometmq.nameserver.server import NameserverServer
from cometmq.nodes.node_links import NodeLinks
from cometmq.tests.harness.ports import free_ports
from cometmq.tests.harness.relay import Relay
from cometmq.tests.nameserver.fake_broker import WAIT_S, controller_config


async def test_a_connection_without_answers_is_closed_early(
    tmp_path: Path,
) -> None:
    """Before, containers that returned with another address had no controller for minutes (drill 38
    on containers)."""
    port, absent, other = free_ports(3)
    peers = f"127.0.0.1:{absent},127.0.0.1:{other}"
    config = controller_config(tmp_path, listen_port=port, controller_peers=peers)
    server = NameserverServer(config)
    await server.start()
    relay = Relay(port)
    peer = PeerAcceptor(await relay.start(), NodeLinks("the-token-of-the-tests"), timeout_s=0.5)
    try:
        await peer.names()
        relay.make_deaf()
        tries = 0
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    await peer.names()
                    break
                except StoreUnavailableError:
                    tries += 1
        assert tries > 0
    finally:
        await peer.close()
        await relay.stop()
        await server.stop(0.2)
