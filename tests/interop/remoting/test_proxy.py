"""Unmodified Java and Go clients that reach only a proxy, which is their nameserver and broker.

The brokers advertise an address without a server, so a request that bypasses the proxy fails.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.auth.model import Policy, ResourcePattern, User, parse_actions
from cometmq.broker.metadata.tables import Topic
from cometmq.nodes.tls_config import TlsConfig
from cometmq.tests.broker.live import create_group, create_topic, running
from cometmq.tests.broker.proxy_classic_wire import classic_nameserver, classic_proxy, hidden
from cometmq.tests.harness.cluster import Cluster
from cometmq.tests.harness.proxy_process import proxy_process
from cometmq.tests.harness.tls_cluster import dev_ca
from cometmq.tests.interop.remoting import test_go_client, test_java_clients
from cometmq.tests.interop.remoting.test_failover import client_runs, killing, said
from cometmq.tests.interop.remoting.test_java_clients import RUNS, java, output_of, pop_mode
from cometmq.tests.remoting.client import wait_for_routes

CHECKS = {
    "transaction_check_interval": 1_000,
    "transaction_time_out": 10_000,  # a send and its end may take seconds
    # 4.9.8 and Go send their first heartbeat half a minute after their first message.
    "transaction_check_max": 100,
    "recall_message_enable": True,
}


async def run(command: list[str], topics: list[str], path: Path, groups: int = 1) -> None:
    """Run a program with the address of a proxy in place of `{}`, on this many broker groups."""
    home = path / "home"
    home.mkdir()
    async with classic_nameserver() as names:
        first = hidden(path / "a", names.grpc, **CHECKS)
        second = hidden(path / "b", names.grpc, broker_name="broker-b", **CHECKS)
        async with running(first) as live, classic_proxy(names) as (_, port):
            async with live.client() as wire:
                for topic in topics:
                    await create_topic(wire, topic, queues=4)
                await create_group(wire, "java-popped")
            await pop_mode(live)
            await wait_for_routes(port, topics)
            arguments = [each.format(f"127.0.0.1:{port}") for each in command]
            if groups == 1:
                output = await output_of(arguments, home)
            else:
                async with running(second) as other:
                    async with other.client() as wire:
                        for topic in topics:
                            await create_topic(wire, topic, broker="broker-b", queues=4)
                    output = await output_of(arguments, home)
            assert output.splitlines()[-1] == "OK", output[-3_000:]


def through_a_proxy() -> Iterator[Any]:
    """Yield the runs: of one generation those with the main kinds of messages, the rest as slow.

    The rest takes minutes, and uses the same code of the proxy: it passes all requests on alike.
    """
    for version, program in RUNS:
        essential = version == "5.5.0" and program in ("Classic", "More")
        yield pytest.param(version, program, marks=[] if essential else pytest.mark.slow)


@pytest.mark.timeout(700)  # the first run fetches the client
@pytest.mark.parametrize(("version", "program"), list(through_a_proxy()))
async def test_java_clients_work_through_a_proxy_alone(
    version: str, program: str, tmp_path: Path
) -> None:
    command = await asyncio.to_thread(java, version)
    topics = [f"java-{kind}" for kind in test_java_clients.TOPICS[program]]
    await run([*command, program, "{}", "java"], [*topics, "space%java-spaced"], tmp_path)


@pytest.mark.slow  # a minute; one group differs from two in the choice of the broker alone
@pytest.mark.timeout(700)
async def test_a_java_client_works_through_a_proxy_with_two_broker_groups(tmp_path: Path) -> None:
    command = await asyncio.to_thread(java, "5.5.0")
    topics = [f"java-{kind}" for kind in test_java_clients.TOPICS["Classic"]]
    await run([*command, "Classic", "{}", "java"], topics, tmp_path, groups=2)


@pytest.mark.timeout(700)
async def test_the_go_client_works_through_a_proxy_alone(tmp_path: Path) -> None:
    command = await asyncio.to_thread(test_go_client.program)
    topics = [f"go-{kind}" for kind in test_go_client.TOPICS]
    await run([*command, "{}", "go"], topics, tmp_path)


@pytest.mark.slow  # a minute and more; brokers without a proxy have the same test
@pytest.mark.timeout(700)
@pytest.mark.parametrize("version", ["5.5.0", "4.9.8"])
async def test_java_clients_use_signatures_and_tls_through_a_proxy(
    version: str, tmp_path: Path
) -> None:
    command = await asyncio.to_thread(java, version)
    folder, home = tmp_path / "tls", tmp_path / "home"
    home.mkdir()
    await asyncio.to_thread(dev_ca, folder, "n")
    files = {"tls_certificate": "n.pem", "tls_key": "n.key", "tls_ca": "ca.pem"}
    tls = TlsConfig(
        tls_mode="enforcing",
        **{name: str(folder / file) for name, file in files.items()},  # type: ignore[arg-type]
    )
    secured: dict[str, Any] = {
        "cluster_token": "the-token-of-the-tests",
        "authentication_enabled": True,
    }
    async with classic_nameserver(tls, **secured) as names:
        chosen = hidden(
            tmp_path / "a",
            names.grpc,
            authentication_enabled=True,
            authorization_enabled=True,
            **CHECKS,
        )
        chosen = replace(chosen, ha=replace(chosen.ha, cluster_token="the-token-of-the-tests"))
        async with (
            running(chosen, tls=tls) as live,
            classic_proxy(names, tls=tls, **secured) as (_, port),
        ):
            for kind in test_java_clients.TOPICS["More"]:
                live.node.meta_log.write_topic(Topic(f"java-{kind}", 4, 4))
            policies = tuple(
                Policy(ResourcePattern.parse(resource), parse_actions(actions), True, ())
                for resource, actions in (
                    ("Topic:java-*", "Pub,Sub"),
                    ("Topic:DefaultCluster_REPLY_TOPIC", "Pub"),
                    ("Group:java-*", "Sub"),
                )
            )
            sealed = live.node.keys.key.seal("java", "java-secret")
            live.node.metadata.put_user(User("java", sealed, policies=policies))
            command.insert(1, "-Dtls.enable=true")
            arguments = ["More", f"127.0.0.1:{port}", "java", "java", "java-secret"]
            output = await output_of([*command, *arguments], home)
            assert output.splitlines()[-1] == "OK", output[-3_000:]


@pytest.mark.slow  # a minute and more; brokers without a proxy have the same test
@pytest.mark.timeout(700)
def test_nothing_acknowledged_is_lost_when_a_leader_behind_a_proxy_is_killed(
    tmp_path: Path,
) -> None:
    runs = client_runs()
    cluster = Cluster(tmp_path / "d", "--remoting", restart=True, controller=True).start()
    try:
        for each in runs:
            (tmp_path / each.mark).mkdir()
            cluster.create_topic(f"{each.mark}-failover", queues=4)
        cluster.wait_in_sync()
        with proxy_process(cluster, tmp_path) as proxy:
            asyncio.run(killing(cluster, runs, tmp_path, f"127.0.0.1:{proxy.port}"))
    finally:
        cluster.stop()
    for each in runs:
        print(f"{each.name}: {said(each, 'GAP')}", file=sys.stderr)
