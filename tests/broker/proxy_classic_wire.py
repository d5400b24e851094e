"""A proxy for classic clients before brokers of the test's process, which clients cannot reach."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cometmq.broker.proxy.base.config import ProxyConfig
from cometmq.broker.proxy.server import ProxyServer
from cometmq.front.config import DoorConfig
from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.nodes.node_links import NodeLinks
from cometmq.nodes.tls_config import TlsConfig
from cometmq.tests.broker.live import Settings, settings

#: What the brokers advertise: routes with it are useless to clients.
UNREACHABLE = "127.0.0.1:1"


def hidden(directory: Path, namesrv: str, **broker: Any) -> Settings:
    """Return settings of a broker whose routes name an address without a server."""
    return settings(
        directory,
        namesrv_addr=namesrv,
        remoting_listen_port=-1,
        remoting_advertise=UNREACHABLE,
        **broker,
    )


@dataclass(frozen=True, slots=True)
class Names:
    """The addresses of a nameserver."""

    grpc: str
    remoting: str


@asynccontextmanager
async def classic_nameserver(tls: TlsConfig | None = None, **more: Any) -> AsyncIterator[Names]:
    """Run a nameserver with a remoting port of its own."""
    config = NameserverConfig(
        bind_address="127.0.0.1", listen_port=0, remoting_listen_port=-1, **more
    )
    server = NameserverServer(config, tls=tls)
    address = await server.start()
    try:
        yield Names(address, f"127.0.0.1:{server.remoting_port}")
    finally:
        await server.stop(0.5)


@asynccontextmanager
async def classic_proxy(
    names: Names,
    *,
    tls: TlsConfig | None = None,
    door: DoorConfig | None = None,
    **more: Any,
) -> AsyncIterator[tuple[ProxyServer, int]]:
    """Run a proxy; yield it and its port for classic clients."""
    config = ProxyConfig(
        **{
            "grpc_server_port": 0,
            "metrics_prom_exporter_port": 0,
            "bind_address": "127.0.0.1",
            "namesrv_addr": names.grpc,
            "remoting_listen_port": -1,
            "remoting_namesrv_addr": names.remoting,
            "proxy_poll_interval": 100,
            **more,
        }
    )
    links = NodeLinks(config.cluster_token, tls)
    server = ProxyServer(config, door or DoorConfig(), links=links)
    bound = await server.start()
    try:
        yield server, int(bound.remoting.rpartition(":")[2])
    finally:
        await server.stop(0.5)
