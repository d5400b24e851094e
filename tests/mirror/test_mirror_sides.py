"""`cometmq mirror` with users and TLS on both sides, and with several source brokers."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner

from cometmq.auth.model import User
from cometmq.broker.metadata.tables import Topic
from cometmq.cli.root import cli
from cometmq.mirror.cluster import Cluster
from cometmq.mirror.link import Access
from cometmq.mirror.run import Choice, Mirror
from cometmq.mirror.state import StateDirectory
from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.nodes.tls_config import TlsConfig
from cometmq.operations.errors import CliError, Exit
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command
from cometmq.store.format.record import Record, decode
from cometmq.tests.broker.live import Live, create_group, running, settings, until
from cometmq.tests.harness.cluster import cometmq_command
from cometmq.tests.remoting.client import RemotingClient

WAIT_S = 60.0
USER, SECRET, TOKEN = "mover", "secret-key", "the-cluster-token-of-tests"


def send_command(topic: str, queue_id: int, body: bytes) -> Command:
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1, "h": 0}
    fields |= {"i": "", "j": 0}
    texts = {name: str(value) for name, value in fields.items()}
    return Command(Request.SEND_MESSAGE_V2, texts, body)


def records(live: Live, topic: str, queue_id: int) -> list[Record]:
    live.node.pump.catch_up()
    found: list[Record] = []
    while len(found) < live.node.store.max_offset(topic, queue_id):
        some = live.node.store.get(topic, queue_id, len(found), 32).records
        found += [decode(stored.data) for stored in some]
    return found


@dataclass(slots=True)
class Side:
    """A cluster: the remoting port of its nameserver, and its brokers."""

    nameserver: int
    brokers: list[Live]
    tls: ssl.SSLContext | None

    def plain(self) -> Cluster:
        """Return the cluster, without a user."""
        return Cluster([f"127.0.0.1:{self.nameserver}"], Access())

    async def send(self, broker: int, topic: str, queue_id: int, *bodies: bytes) -> None:
        """Send to a queue, as the user."""
        port = int(self.brokers[broker].bound.remoting.rpartition(":")[2])
        async with RemotingClient(port, tls=self.tls) as client:
            for body in bodies:
                command = send_command(topic, queue_id, body)
                Access(USER, SECRET).sign(command)
                answer = await client.post(command)
                assert answer.code == Reply.SUCCESS, answer


@asynccontextmanager
async def side(
    folder: Path, name: str, *, brokers: int = 1, tls: TlsConfig | None = None, users: bool = False
) -> AsyncIterator[Side]:
    config = NameserverConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        remoting_listen_port=-1,
        authentication_enabled=users,
        cluster_token=TOKEN,
    )
    async with AsyncExitStack() as stack:
        nameserver = NameserverServer(config, tls=tls)
        address = await nameserver.start()
        stack.push_async_callback(nameserver.stop, 0)
        context = ssl.create_default_context(cafile=tls.tls_ca) if tls is not None else None
        made = Side(nameserver.remoting_port, [], context)
        for number in range(brokers):
            chosen = settings(
                folder / str(number),
                remoting_listen_port=-1,
                namesrv_addr=address,
                broker_cluster_name=name,
                broker_name=f"{name}-{number}",
                authorization_enabled=users,
                authentication_enabled=users,
                register_broker_period=200,
            )
            chosen = replace(chosen, ha=replace(chosen.ha, cluster_token=TOKEN))
            live = await stack.enter_async_context(running(chosen, tls=tls))
            if users:
                sealed = live.node.keys.key.seal(USER, SECRET)
                live.node.metadata.put_user(User(USER, sealed, policies=(), is_super=True))
            made.brokers.append(live)
        yield made


def certified(folder: Path, *names: str) -> TlsConfig:
    """Write a certificate and its CA; return the settings of a node."""
    authority = trustme.CA()
    issued = authority.issue_cert(*names)
    folder.mkdir()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    issued.private_key_pem.write_to_path(folder / "node.key")
    issued.cert_chain_pems[0].write_to_path(folder / "node.pem")
    return TlsConfig(
        tls_mode="enforcing",
        tls_certificate=str(folder / "node.pem"),
        tls_key=str(folder / "node.key"),
        tls_ca=str(folder / "ca.pem"),
    )


def mirror_run(words: list[str], secret: str = SECRET) -> subprocess.CompletedProcess[str]:
    """Run `cometmq mirror run` with the same user on both sides."""
    env = {
        f"COMETMQ_MIRROR_{name}_{key}_KEY": value
        for name in ("SOURCE", "TARGET")
        for key, value in (("ACCESS", USER), ("SECRET", secret))
    }
    return subprocess.run(
        [*cometmq_command(), "mirror", "run", *words],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env={**os.environ, **env},
    )


async def test_a_mirror_signs_and_speaks_tls_on_both_sides(tmp_path: Path) -> None:
    # The certificate of the source has its address; the one of the target has another name.
    first = certified(tmp_path / "t1", "127.0.0.1", "node.cometmq.internal")
    second = certified(tmp_path / "t2", "broker.example", "node.cometmq.internal")
    async with (
        side(tmp_path / "a", "old", tls=first, users=True) as source,
        side(tmp_path / "b", "new", tls=second, users=True) as target,
    ):
        source.brokers[0].node.meta_log.write_topic(Topic("orders", 2, 2))
        await source.send(0, "orders", 1, b"one", b"two")
        words = ["--source", f"127.0.0.1:{source.nameserver}", "--source-tls-ca", first.tls_ca]
        words += ["--source-tls-certificate", first.tls_certificate]
        words += ["--source-tls-key", first.tls_key]
        words += ["--target", f"127.0.0.1:{target.nameserver}", "--target-tls-ca", second.tls_ca]
        words += ["--state", str(tmp_path / "state"), "--until-caught-up"]
        done = await asyncio.to_thread(mirror_run, [*words, "--target-tls-any-name"])
        assert done.returncode == 0, done.stdout + done.stderr
        assert [one.body for one in records(target.brokers[0], "orders", 1)] == [b"one", b"two"]


def mirror(source: Cluster, target: Cluster, folder: Path) -> Mirror:
    folder.mkdir()
    made = Mirror(source, target, StateDirectory(folder), Choice(), lambda: 0)
    made.load()
    return made


async def failure(source: Cluster, target: Cluster, folder: Path) -> str:
    """Run a mirror until it shows a failure."""
    stopped = asyncio.Event()
    shown: list[str] = []

    def show(status: dict[str, Any]) -> None:
        shown.append(status["error"])
        if status["error"]:
            stopped.set()

    made = mirror(source, target, folder)
    async with asyncio.timeout(WAIT_S):
        await made.run(stopped, show, once=True)
    return shown[-1]


async def test_a_wrong_key_or_certificate_is_named(tmp_path: Path) -> None:
    tls = certified(tmp_path / "t1", "127.0.0.1", "node.cometmq.internal")
    strange = certified(tmp_path / "t2", "127.0.0.1", "node.cometmq.internal")
    async with (
        side(tmp_path / "a", "old", tls=tls, users=True) as one,
        side(tmp_path / "b", "new") as two,
    ):
        place = [f"127.0.0.1:{one.nameserver}"]

        def cluster(secret: str, authority: str) -> Cluster:
            context = ssl.create_default_context(cafile=authority)
            return Cluster(place, Access(USER, secret, context))

        found = await failure(cluster("wrong", tls.tls_ca), two.plain(), tmp_path / "s1")
        assert "broker old-0" in found and "signature" in found
        found = await failure(cluster(SECRET, strange.tls_ca), two.plain(), tmp_path / "s2")
        assert place[0] in found and "CERTIFICATE_VERIFY_FAILED" in found


async def test_a_server_without_tls_is_named(tmp_path: Path) -> None:
    async with side(tmp_path / "a", "old") as one:
        tls = Access("", "", ssl.create_default_context())
        found = await failure(
            Cluster([f"127.0.0.1:{one.nameserver}"], tls), one.plain(), tmp_path / "state"
        )
        assert f"127.0.0.1:{one.nameserver} cannot be reached: " in found
        assert not found.endswith(": ")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--source-access-key", "u"], "--source-access-key and --source-secret-key"),
        (["--target-tls-any-name"], "--target-tls-ca"),
        (["--source-tls-ca", "CA", "--source-tls-key", "CA"], "--source-tls-certificate and"),
        (["--source-tls-ca", "NONE"], "NONE is not a CA file"),
    ],
)
def test_incomplete_options_are_refused(words: list[str], reason: str, tmp_path: Path) -> None:
    tls = certified(tmp_path / "tls", "a")
    (tmp_path / "NONE").write_text("")
    files = {"CA": tls.tls_ca, "NONE": str(tmp_path / "NONE")}
    line = ["mirror", "run", "--source", "127.0.0.1:9", "--target", "127.0.0.1:9"]
    line += ["--state", str(tmp_path / "state")]
    done = CliRunner().invoke(cli, [*line, *(files.get(word, word) for word in words)])
    assert isinstance(done.exception, CliError) and reason in str(done.exception)
    assert done.exception.code == Exit.USAGE


async def test_queues_of_source_brokers_with_different_widths_stay_apart(tmp_path: Path) -> None:
    async with (
        side(tmp_path / "a", "old", brokers=2) as source,
        side(tmp_path / "b", "new") as target,
    ):
        queues = [(0, queue_id) for queue_id in range(4)] + [(1, queue_id) for queue_id in range(2)]
        for live, width in zip(source.brokers, (4, 2), strict=True):
            live.node.meta_log.write_topic(Topic("orders", width, width))
            async with live.client() as wire:
                await create_group(wire, "billing")
        for broker, queue_id in queues:
            bodies = [b"%d-%d-%d" % (broker, queue_id, n) for n in range(5)]
            await source.send(broker, "orders", queue_id, *bodies)
            source.brokers[broker].node.offsets.commit("orders", "billing", queue_id, 3)
        shown: list[dict[str, Any]] = []
        async with asyncio.timeout(WAIT_S):
            made = mirror(source.plain(), target.plain(), tmp_path / "state")
            await made.run(asyncio.Event(), shown.append, once=True)
        (live,) = target.brokers
        found = [[one.body for one in records(live, "orders", queue_id)] for queue_id in range(6)]
        assert sorted(found) == [
            [b"%d-%d-%d" % (broker, queue_id, n) for n in range(5)] for broker, queue_id in queues
        ]
        (row,) = (row for row in shown[-1]["groups"] if row["group"] == "billing")
        assert (row["state"], row["repeated"]) == ("ready", 0)
        assert [live.node.offsets.get("orders", "billing", n) for n in range(6)] == [3] * 6


async def test_a_source_broker_that_is_down_does_not_stop_the_others(tmp_path: Path) -> None:
    async with (
        side(tmp_path / "a", "old", brokers=2) as source,
        side(tmp_path / "b", "new") as target,
    ):
        for live in source.brokers:
            live.node.meta_log.write_topic(Topic("orders", 1, 1))
        for broker in (0, 1):
            await source.send(broker, "orders", 0, b"%d-first" % broker)
        stopped = asyncio.Event()
        shown: list[dict[str, Any]] = []
        made = mirror(source.plain(), target.plain(), tmp_path / "state")
        task = asyncio.create_task(made.run(stopped, shown.append, once=False))
        await until(lambda: shown and shown[-1]["copied"] == 2, WAIT_S)
        await source.brokers[0].server.stop(0)
        await source.send(1, "orders", 0, b"1-second")
        await until(lambda: shown[-1]["copied"] == 3, WAIT_S)
        await until(lambda: shown[-1]["error"], WAIT_S)
        assert shown[-1]["error"].startswith("broker old-0: ")
        stopped.set()
        await asyncio.wait_for(task, WAIT_S)
        bodies = [one.body for one in records(target.brokers[0], "orders", 1)]
        assert bodies == [b"1-first", b"1-second"]
