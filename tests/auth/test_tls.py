"""TLS between the processes of a cluster: who may connect, failover, renewed certificates."""

from __future__ import annotations

import asyncio
import json
import ssl
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from cometmq.nodes.node_links import TOKEN_KEY
from cometmq.proto import paths, v1, v2
from cometmq.proto.native import is_available
from cometmq.tests.harness.cluster import cometmq_command, wait_until
from cometmq.tests.harness.tls_cluster import (
    CALLER,
    NODE_NAME,
    TlsCluster,
    credentials,
    dev_ca,
)
from cometmq.tests.harness.wire import Wire, normal_message

TOPIC = "orders"
FORWARDED = "x-cometmq-forwarded"
HEALTH = "/grpc.health.v1.Health/Check"
pytestmark = pytest.mark.timeout(900)
native = pytest.mark.skipif(
    not is_available(),
    reason="the native door is not installed (scripts/native_door builds it where Rust is)",
)


async def send(wire: Wire, number: int, within_s: float = 60.0) -> None:
    """Send one message; it must be acknowledged."""
    message = normal_message(TOPIC, f"01{number:030X}", str(number).encode())
    answer = await wire.send([message], within_s)
    assert answer.status.code == v2.OK, answer


async def stored(wire: Wire) -> int:
    """Return the number of messages in the topic."""
    request = v1.DescribeTopicRequest(name=TOPIC)
    answer = await wire.call(paths.DESCRIBE_TOPIC, request, v1.DescribeTopicResponse)
    return sum(queue.max_offset - queue.min_offset for queue in answer.queues)


async def call(
    address: str, path: str, link: grpc.ChannelCredentials | None, *metadata: tuple[str, str]
) -> grpc.StatusCode:
    """Make one call with an empty request; return its status."""
    name = (("grpc.ssl_target_name_override", NODE_NAME),)
    channel = (
        grpc.aio.insecure_channel(address)
        if link is None
        else grpc.aio.secure_channel(address, link, options=name)
    )
    async with channel:
        try:
            await channel.unary_unary(path)(b"", timeout=60, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize(
    "settings",
    [
        # Each node has another token: only certificates can admit them.
        pytest.param({}, id="native", marks=native),
        pytest.param(
            {"frontDoor": "grpcio", "clusterToken": "the-token-of-the-tests"}, id="grpcio"
        ),
    ],
)
async def test_a_cluster_with_tls_alone_replicates_and_fails_over(
    settings: dict[str, str], tmp_path: Path
) -> None:
    cluster = TlsCluster(tmp_path, {"tlsMode": "enforcing", **settings})
    if not settings:
        for name in cluster.names:
            cluster.set(name, clusterToken=f"the-token-of-the-node-{name}")
    with cluster:
        cluster.run("topic", "create", TOPIC, "--queues", "4")
        leader = cluster.leader()
        (follower,) = {"b0", "b1"} - {leader}
        async with cluster.wire(leader) as at_leader, cluster.wire(follower) as at_follower:
            for number in range(20):
                await send(at_leader if number % 2 else at_follower, number)
            cluster.kill(leader)
            for number in range(20, 40):
                await send(at_follower, number)
            assert await stored(at_follower) == 40
        cluster.start(leader)
        wait_until("the killed replica is in sync", cluster.in_sync)
        async with cluster.wire(leader) as at_leader:
            await send(at_leader, 40)
            assert await stored(at_leader) == 41


@pytest.fixture(scope="module")
def enforcing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsCluster]:
    settings = {"tlsMode": "enforcing", "clusterToken": "the-token-of-the-tests"}
    with TlsCluster(tmp_path_factory.mktemp("enforcing"), settings, 1) as cluster:
        cluster.run("topic", "create", TOPIC, "--queues", "1")
        yield cluster


PORTS: list[Any] = [
    pytest.param(lambda cluster: (cluster.client("b0"), HEALTH), id="client"),
    pytest.param(lambda cluster: (cluster.namesrv, HEALTH), id="nameserver"),
    pytest.param(lambda cluster: (cluster.ha("b0"), paths.REPLICA_STATUS), id="replication"),
]
Port = Callable[[TlsCluster], tuple[str, str]]


@native
@pytest.mark.parametrize("port", PORTS)
async def test_enforcing_refuses_plaintext_and_other_authorities(
    enforcing: TlsCluster, port: Port, tmp_path: Path
) -> None:
    address, path = port(enforcing)
    own = enforcing.certificates
    assert await call(address, path, credentials(own, CALLER)) is grpc.StatusCode.OK
    token = (TOKEN_KEY, "the-token-of-the-tests")
    assert await call(address, path, None, token) is grpc.StatusCode.UNAVAILABLE
    dev_ca(tmp_path, "stranger")
    stranger = credentials(tmp_path, "stranger", own / "ca.pem")
    assert await call(address, path, stranger, token) is grpc.StatusCode.UNAVAILABLE
    deceived = credentials(own, CALLER, tmp_path / "ca.pem")
    assert await call(address, path, deceived, token) is grpc.StatusCode.UNAVAILABLE


@native
async def test_the_replication_port_requires_a_certificate(enforcing: TlsCluster) -> None:
    link, token = credentials(enforcing.certificates), (TOKEN_KEY, "the-token-of-the-tests")
    status = await call(enforcing.ha("b0"), paths.REPLICA_STATUS, link, token)
    assert status is grpc.StatusCode.UNAVAILABLE


@native
async def test_a_certificate_without_the_name_of_nodes_does_not_make_a_node(
    enforcing: TlsCluster,
) -> None:
    own = enforcing.certificates
    dev_ca(own, "client", "--node-name", "client.example")
    link, denied = credentials(own, "client"), grpc.StatusCode.PERMISSION_DENIED
    token, node = (TOKEN_KEY, "the-token-of-the-tests"), credentials(own, CALLER)
    for address, path in (
        (enforcing.ha("b0"), paths.REPLICA_STATUS),
        (enforcing.namesrv, paths.GET_CLUSTER),
    ):
        assert await call(address, path, link) is denied
        assert await call(address, path, link, (TOKEN_KEY, "wrong")) is denied
        assert await call(address, path, link, token) is grpc.StatusCode.OK
        assert await call(address, path, node) is grpc.StatusCode.OK


@native
async def test_a_forged_forwarding_mark_is_refused_without_the_identity_of_a_node(
    enforcing: TlsCluster,
) -> None:
    own, address = enforcing.certificates, enforcing.client("b0")
    mark, denied = (FORWARDED, "10.1.2.3:4"), grpc.StatusCode.PERMISSION_DENIED
    dev_ca(own, "client", "--node-name", "client.example")
    for link in (credentials(own), credentials(own, "client")):
        assert await call(address, paths.HEARTBEAT, link, mark) is denied
        assert await call(address, paths.HEARTBEAT, link, mark, (TOKEN_KEY, "wrong")) is denied
        assert await call(address, paths.HEARTBEAT, link) is grpc.StatusCode.OK
    node = credentials(own, CALLER)
    assert await call(address, paths.HEARTBEAT, node, mark) is grpc.StatusCode.OK


@contextmanager
def proxy(cluster: TlsCluster, folder: Path) -> Iterator[str]:
    """Run a proxy with a certificate and without the token; yield its address."""
    own, ready = cluster.certificates, folder / "ready.json"
    command = [
        *(*cometmq_command(), "proxy", "--namesrv-addr", cluster.namesrv),
        *("--bind-address", "127.0.0.1", "--grpc-server-port", "0"),
        *("--metrics-prom-exporter-port", "0", "--ready-file", str(ready)),
        *("--tls-mode", "enforcing", "--tls-ca", str(own / "ca.pem")),
        *("--tls-certificate", str(own / f"{CALLER}.pem"), "--tls-key", str(own / f"{CALLER}.key")),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until("the proxy is ready", ready.exists)
        yield json.loads(ready.read_text())["endpoints"]
    finally:
        process.terminate()
        process.wait(30)


@native
async def test_a_proxy_is_a_node_by_its_certificate(enforcing: TlsCluster, tmp_path: Path) -> None:
    with proxy(enforcing, tmp_path) as address:
        assert await call(address, HEALTH, None) is grpc.StatusCode.UNAVAILABLE
        async with Wire(address, credentials=credentials(enforcing.certificates)) as wire:
            before = await stored(wire)
            await send(wire, 1)
            assert await stored(wire) == before + 1


def test_dev_ca_makes_private_files_and_keeps_its_authority(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    dev_ca(folder, "b0=10.0.0.1,broker.example")
    first = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert set(first) == {"ca.pem", "ca.key", "b0.pem", "b0.key"}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    dev_ca(folder, "b0", "b1")
    second = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert [name for name in first if first[name] == second[name]] == [
        name for name in first if name.startswith("ca.")
    ]


async def _certificate(address: str) -> str:
    host, _, port = address.rpartition(":")
    return await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)), timeout=10)


@native
async def test_certificates_are_renewed_under_load_without_an_error(tmp_path: Path) -> None:
    settings = {"tlsMode": "enforcing", "clusterToken": "the-token-of-the-tests"}
    with TlsCluster(tmp_path, settings) as cluster:
        cluster.run("topic", "create", TOPIC, "--queues", "4")
        (follower,) = {"b0", "b1"} - {cluster.leader()}
        addresses = [cluster.namesrv, cluster.client("b0"), cluster.client("b1")]
        first = [await _certificate(address) for address in addresses]
        ending = asyncio.Event()
        sent = [0]

        async def load(wire: Wire | None) -> None:
            while not ending.is_set():
                sent[0] += 1
                if wire is not None:
                    await send(wire, sent[0])
                else:
                    async with cluster.wire(follower) as fresh:
                        await send(fresh, sent[0])

        async with cluster.wire(follower) as lasting:
            tasks = [asyncio.create_task(load(wire)) for wire in (lasting, lasting, None, None)]
            for _ in range(3):
                before = sent[0]
                await asyncio.to_thread(dev_ca, cluster.certificates, *cluster.names, CALLER)
                while sent[0] < before + 100:
                    done, _ = await asyncio.wait(tasks, timeout=0.1)
                    assert not done, [task.exception() for task in done]
            for address, old in zip(addresses, first, strict=True):
                while await _certificate(address) == old:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            # Broken connections are made again with the new certificates.
            await asyncio.to_thread(cluster.restart, follower)
            ending.set()
            await asyncio.gather(*tasks, return_exceptions=True)  # the restart may end some calls
        await asyncio.to_thread(wait_until, "both brokers are in sync", cluster.in_sync)
        assert "certificate.kept" not in "".join(map(cluster.log, cluster.names))


@native
async def test_a_cluster_changes_from_plaintext_to_tls_node_by_node(tmp_path: Path) -> None:
    settings = {"tlsMode": "permissive", "clusterToken": "the-token-of-the-tests"}
    with TlsCluster(tmp_path, settings) as cluster:
        cluster.run("topic", "create", TOPIC, "--queues", "4")
        number = 0
        for step in ({"tlsNodeCalls": "true"}, {"tlsMode": "enforcing"}):
            for name in cluster.names:
                cluster.set(name, **step)
                cluster.restart(name)
                for broker in ("b0", "b1"):
                    async with cluster.wire(broker) as wire:
                        number += 1
                        await send(wire, number)
        token = (TOKEN_KEY, "the-token-of-the-tests")
        status = await call(cluster.ha("b0"), paths.REPLICA_STATUS, None, token)
        assert status is grpc.StatusCode.UNAVAILABLE
        async with cluster.wire("b0") as wire:
            assert await stored(wire) == number
