"""The replication port: addresses that it listens on, plaintext and TLS, and who gets in."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import grpc
import grpc.aio
import pytest
import trustme

from cometmq.front.config import DoorConfig
from cometmq.nodes.node_links import TOKEN_KEY, NodeLinks
from cometmq.nodes.tls_config import TlsConfig
from cometmq.proto import native, paths, v1
from cometmq.tests.ha.live import Live, Pair, assert_equal_logs, until
from cometmq.tests.nodes.test_node_links import NAME, write


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
needs_native = pytest.mark.skipif(
    not native.is_available(), reason="grpcio serves plaintext or TLS on a port, not both"
)


@needs_native
@pytest.mark.parametrize(("bind", "reached"), [*BOUND, (V4, [V4])])
async def test_a_wildcard_serves_both_protocols_of_the_internet(
    bind: str, reached: list[str], tmp_path: Path
) -> None:
    files = write(trustme.CA(), tmp_path)
    links = NodeLinks("the-token-of-the-tests", TlsConfig(tls_mode="permissive", **files))
    tls = caller(files)
    name = [("grpc.ssl_target_name_override", NAME)]
    live = await Live(tmp_path / "store", bind=bind, links=links).start()
    try:
        for host in reached:
            address = f"{host}:{live.replication.port}"
            for channel in (
                grpc.aio.insecure_channel(address),
                grpc.aio.secure_channel(address, tls, options=name),
            ):
                async with channel, asyncio.timeout(60):
                    answer = await channel.unary_unary(paths.REPLICA_STATUS)(
                        b"", metadata=((TOKEN_KEY, "the-token-of-the-tests"),)
                    )
                assert v1.ReplicaStatus.FromString(answer).role == "leader"
    finally:
        await live.stop()


@pytest.mark.parametrize("door", ["grpcio", "auto"])
async def test_a_follower_copies_through_either_door(tmp_path: Path, door: str) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader(door=DoorConfig(front_door=door))
        await leader.append_random(1, 50)
        follower = await pair.follower(leader, door=DoorConfig(front_door=door))
        await until(lambda: leader.replication.in_sync_count == 2)
        await leader.append_random(2, 50)
        await assert_equal_logs(leader, follower)


@pytest.mark.parametrize("door", ["grpcio", "auto"])
async def test_the_port_has_no_public_service(tmp_path: Path, door: str) -> None:
    live = await Live(
        tmp_path, cluster_token="the-token-of-the-tests", door=DoorConfig(front_door=door)
    ).start()
    try:
        async with grpc.aio.insecure_channel(live.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    finally:
        await live.stop()
