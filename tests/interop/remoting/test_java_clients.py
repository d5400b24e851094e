"""The official 4.x-style Java client, both generations, unmodified: produce, push, retry, order."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from cometmq.auth.model import Policy, ResourcePattern, User, parse_actions
from cometmq.broker.metadata.tables import TEMPLATE_TOPIC, Topic
from cometmq.front.config import DoorConfig
from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.nodes.tls_config import Identity, TlsConfig
from cometmq.remoting.codes import Reply, Request
from cometmq.tests.broker.live import (
    Live,
    create_group,
    create_topic,
    running,
    settings,
)
from cometmq.tests.conftest import NATIVE_DOOR
from cometmq.tests.harness.jvm import JAVA
from cometmq.tests.harness.tls_cluster import dev_ca
from cometmq.tests.interop.programs import CACHE, compiled, fetched, require
from cometmq.tests.remoting.client import RemotingClient, wait_for_routes

HERE = Path(__file__).parent / "java"
RUN_S = 400
#: Topics of each program.
TOPICS = {
    "Classic": ("normal", "ordered"),
    "More": ("transactions", "requests"),
    "Modes": (
        *("broadcast", "pull", "lite", "sql", "restart", "rebalance", "dead", "timed", "trace"),
        *("traces", "spaced2", "compressed"),
    ),
    "Pop": ("pop",),
}
#: Its topics are created by its sends (`autoCreateTopicEnable`).
CREATES = "Classic"
#: Pop came with 5.x.
RUNS = [(version, program) for version in ("5.5.0", "4.9.8") for program in TOPICS][:-1]


def java(version: str) -> list[str]:
    """Fetch a version of the client and build the programs; return the command without a class."""
    require("mvn", "java", "javac")
    jars = fetched(CACHE / f"classic-client-{version}", HERE, f"-Dclient.version={version}")
    programs = [f"{name}.java" for name in (*TOPICS, "Failover", "Nameservers", "Ordered")]
    classes = compiled(CACHE / f"classic-classes-{version}", jars, HERE, *programs)
    return [*JAVA, "-cp", f"{classes}:{jars}/*"]


async def pop_mode(live: Live) -> None:
    """Let the group of the program `Pop` pop, as `mqadmin setConsumeMode` does."""
    if "java-pop" not in live.node.metadata.topics:
        return
    mode = {"consumerGroup": "java-popped", "topic": "java-pop", "mode": "POP"}
    async with RemotingClient(int(live.bound.remoting.rpartition(":")[2])) as client:
        body = json.dumps(mode).encode()
        done = await client.call(Request.SET_MESSAGE_REQUEST_MODE, body)
    assert done.code == Reply.SUCCESS, done


async def output_of(command: list[str], home: Path) -> str:
    """Run a program; return what it prints."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, "HOME": str(home), "JAVA_TOOL_OPTIONS": f"-Duser.home={home}"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), RUN_S)
    return output.decode()


@pytest.mark.timeout(700)  # the first run fetches the client
@pytest.mark.parametrize(("version", "program"), RUNS)
async def test_the_client_works_unmodified(version: str, program: str, tmp_path: Path) -> None:
    command = await asyncio.to_thread(java, version)
    nameserver = NameserverServer(
        NameserverConfig(bind_address="127.0.0.1", listen_port=0, remoting_listen_port=-1)
    )
    address = await nameserver.start()
    chosen = settings(
        tmp_path / "store",
        remoting_listen_port=-1,
        namesrv_addr=address,
        transaction_check_interval=1_000,
        transaction_time_out=10_000,  # a send and its end may take seconds
        # 4.9.8 sends its first heartbeat half a minute after its first message.
        transaction_check_max=100,
        recall_message_enable=True,
        auto_create_topic_enable=program == CREATES,
    )
    home = tmp_path / "home"
    home.mkdir()
    try:
        async with running(chosen) as live:
            async with live.client() as wire:
                # The last one in the namespace of its clients.
                topics = [*(f"java-{kind}" for kind in TOPICS[program]), "space%java-spaced"]
                if program == CREATES:
                    topics = [TEMPLATE_TOPIC]
                for topic in topics if program != CREATES else ():
                    await create_topic(wire, topic, queues=4)
                await create_group(wire, "java-popped")
            await pop_mode(live)
            await wait_for_routes(nameserver.remoting_port, topics)
            remoting = f"127.0.0.1:{nameserver.remoting_port}"
            output = await output_of([*command, program, remoting, "java"], home)
            assert output.splitlines()[-1] == "OK", output[-3_000:]
    finally:
        await nameserver.stop(0.5)


def certificate(folder: Path, user: str) -> list[str]:
    """Make the certificate of a user; return the client's options for it."""
    authority = trustme.CA.from_pem(
        (folder / "ca.pem").read_bytes(), (folder / "ca.key").read_bytes()
    )
    made = authority.issue_cert("client.example", common_name=user)
    made.cert_chain_pems[0].write_to_path(folder / "client.pem")
    key = load_pem_private_key(made.private_key_pem.bytes(), None)
    plain = serialization.NoEncryption()
    (folder / "client.key").write_bytes(
        key.private_bytes(Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    )
    options = {
        "test.mode.enable": "false",
        "client.authServer": "true",
        "client.trustCertPath": str(folder / "ca.pem"),
        "client.certPath": str(folder / "client.pem"),
        "client.keyPath": str(folder / "client.key"),
    }
    return [f"-Dtls.{name}={value}" for name, value in options.items()]


@pytest.mark.timeout(700)
@pytest.mark.parametrize(
    ("version", "identity"),
    [
        *(("5.5.0", "none"), ("4.9.8", "none")),
        pytest.param("5.5.0", "CN", marks=pytest.mark.slow),
        pytest.param("4.9.8", "CN", marks=pytest.mark.slow),
    ],
)
async def test_the_client_works_with_tls_and_signatures_or_its_certificate(
    version: str, identity: Identity, tmp_path: Path
) -> None:
    if identity != "none" and not NATIVE_DOOR:
        pytest.skip("only the native door requests certificates")
    command = await asyncio.to_thread(java, version)
    folder, home = tmp_path / "tls", tmp_path / "home"
    home.mkdir()
    await asyncio.to_thread(dev_ca, folder, "n")
    files = {"tls_certificate": "n.pem", "tls_key": "n.key", "tls_ca": "ca.pem"}
    tls = TlsConfig(
        tls_mode="enforcing",
        tls_client_identity=identity,
        **{name: str(folder / file) for name, file in files.items()},  # type: ignore[arg-type]
    )
    config = NameserverConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        remoting_listen_port=-1,
        cluster_token="the-token-of-the-tests",
        authentication_enabled=True,
    )
    nameserver = NameserverServer(config, tls=tls)
    address = await nameserver.start()
    chosen = settings(
        tmp_path / "store",
        remoting_listen_port=-1,
        namesrv_addr=address,
        transaction_check_interval=1_000,
        transaction_time_out=10_000,  # a send and its end may take seconds
        # 4.9.8 sends its first heartbeat half a minute after its first message.
        transaction_check_max=100,
        recall_message_enable=True,
        authentication_enabled=True,
        authorization_enabled=True,
    )
    chosen = replace(chosen, ha=replace(chosen.ha, cluster_token="the-token-of-the-tests"))
    try:
        door = DoorConfig(front_door="grpcio" if identity == "none" else "native")
        async with running(chosen, door=door, tls=tls) as live:
            for kind in TOPICS["More"]:
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
            remoting = f"127.0.0.1:{nameserver.remoting_port}"
            arguments = ["More", remoting, "java"]
            if identity == "none":
                arguments += ["java", "java-secret"]
            else:
                command[1:1] = certificate(folder, "java")
            output = await output_of([*command, *arguments], home)
            assert output.splitlines()[-1] == "OK", output[-3_000:]
    finally:
        await nameserver.stop(0.5)
