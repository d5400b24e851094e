"""`cometmq up --remoting`: classic clients reach a cluster through its nameserver."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from cometmq.cli.cluster.layout import DataDirectory, read_settings
from cometmq.cli.cluster.plan import Options, make_plans
from cometmq.proto import paths, v1, v2
from cometmq.remoting.codes import Request
from cometmq.tests.broker.classic_wire import message
from cometmq.tests.cli.cluster.test_up import free_block
from cometmq.tests.harness.cluster import Cluster, wait_until
from cometmq.tests.harness.wire import Wire
from cometmq.tests.remoting.client import RemotingClient


async def sends(cluster: Cluster, nameserver: int) -> None:
    async with Wire(cluster.endpoints) as wire:
        created = await wire.call(
            paths.CREATE_TOPIC, v1.CreateTopicRequest(name="orders"), v1.CreateTopicResponse
        )
        assert created.code == v2.OK, created
    async with RemotingClient(nameserver) as client, asyncio.timeout(60):
        while True:
            found = await client.call(Request.GET_ROUTEINFO_BY_TOPIC, topic="orders")
            if not found.code:
                break
            await asyncio.sleep(0.05)
    (broker,) = json.loads(found.body)["brokerDatas"]
    port = int(broker["brokerAddrs"]["0"].rpartition(":")[2])
    async with RemotingClient(port) as client:
        assert (await client.post(message(b="orders", e=0))).code == 0


@pytest.mark.parametrize("options", [("--single",), ("--replicas", "2")])
def test_a_classic_client_sends_to_the_brokers_that_the_nameserver_names(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    single = "--single" in options
    block = free_block() if single else 0
    cluster = Cluster(
        tmp_path / "d", *options, "--remoting", port=block, controller=not single
    ).start()
    try:
        ports = cluster.node("single" if single else "namesrv").ports
        port = ports["namesrv_remoting"]
        if single:  # one port for both protocols
            assert (port, ports["remoting"]) == (ports["namesrv"], ports["client"])
        wait_until(
            "the banner names it",
            lambda: f"namesrvAddr=127.0.0.1:{port}" in cluster.log_file.read_text(),
        )
        asyncio.run(sends(cluster, port))
    finally:
        cluster.stop()


def options(port: int | None, *, single: bool = False, remoting: bool = True) -> Options:
    return Options(port, single, None, None, not single, remoting=remoting)


def test_the_port_of_grpc_clients_is_in_the_files(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    make_plans(directory, options(None))
    files = {"namesrv": "namesrv.conf", "master": "broker.conf", "slave": "broker.conf"}
    found = {
        name: read_settings(tmp_path / name / file).get("remotingListenPort")
        for name, file in files.items()
    }
    assert found == {"namesrv": "9876", "master": "8081", "slave": "8083"}
    plans = make_plans(directory, options(None, remoting=False))
    assert {plan.file_values["remotingListenPort"] for plan in plans} == set(found.values())
    directory.close()


def test_a_broker_without_the_usual_port_serves_classic_clients_on_its_own(tmp_path: Path) -> None:
    (tmp_path / "master").mkdir()
    (tmp_path / "master" / "broker.conf").write_text("grpcServerPort=7001\n")
    directory = DataDirectory(tmp_path)
    make_plans(directory, options(None))
    found = read_settings(tmp_path / "master" / "broker.conf")
    assert found["remotingListenPort"] == "7001"
    directory.close()


def test_a_block_of_ports_has_none_for_classic_clients_alone(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    plans = make_plans(directory, options(20_000))
    found = {plan.name: plan.flags["remoting_listen_port"] for plan in plans}
    assert found == {"namesrv": "20001", "master": "20000", "slave": "20002"}
    directory.close()
