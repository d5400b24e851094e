"""The replication port that serves plaintext and TLS: addresses that it listens on."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import grpc
import grpc.aio
import pytest
import trustme

from cometmq.ha.stream.dual_port import DualPort
from cometmq.proto.node_links import NodeLinks
from cometmq.proto.tls_config import TlsConfig
from cometmq.tests.proto.test_node_links import NAME, write


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def caller(files: dict[str, str]) -> grpc.ChannelCredentials:
    roots, key, chain = (
        Path(files[name]).read_bytes() for name in ("tls_ca", "tls_key", "tls_certificate")
    )
    return grpc.ssl_channel_credentials(roots, key, chain)


V4, V6 = "127.0.0.1", "[::1]"
BOUND = [("0.0.0.0", [V4, V6]), ("::", [V4, V6])] if has_ipv6() else [("0.0.0.0", [V4])]


@pytest.mark.parametrize(("bind", "reached"), [*BOUND, (V4, [V4])])
async def test_a_wildcard_serves_both_protocols_of_the_internet(
    bind: str, reached: list[str], tmp_path: Path
) -> None:
    files = write(trustme.CA(), tmp_path)
    links = NodeLinks("secret", TlsConfig(tls_mode="permissive", **files))
    tls = caller(files)
    name = [("grpc.ssl_target_name_override", NAME)]
    server = grpc.aio.server()
    listener = DualPort(server, links)
    port = await listener.open(bind, 0)
    await server.start()
    try:
        for host in reached:
            address = f"{host}:{port}"
            for channel in (
                grpc.aio.insecure_channel(address),
                grpc.aio.secure_channel(address, tls, options=name),
            ):
                async with channel, asyncio.timeout(60):
                    await channel.channel_ready()
    finally:
        listener.stop_listening()
        await server.stop(None)
        await listener.close()
