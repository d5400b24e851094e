"""docs/migration.md, "Mirror a running cluster": from Apache's broker, over TLS, under load.

A sender goes on all the time. The mirror is killed and started again, a group of official
consumers moves, then the producers. Every message is in the target, and the group got each one.
"""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cometmq.mirror.cluster import PULL_MAX
from cometmq.remoting.codes import Request
from cometmq.store.format.record import Record, decode
from cometmq.tests.harness.cluster import Cluster, cometmq_command, wait_until
from cometmq.tests.harness.official import Official
from cometmq.tests.harness.tls_cluster import dev_ca
from cometmq.tests.interop.apache import live
from cometmq.tests.interop.apache.test_directories import CONF
from cometmq.tests.interop.apache.test_take_over import now_ms, unique
from cometmq.tests.remoting.client import RemotingClient

pytestmark = pytest.mark.timeout(900)  # the first one fetches the jars
QUEUES, STEPS = 4, 20
WAIT_S = 120.0


class Sender:
    """Sends numbered messages, some in order by message group, until it is stopped."""

    def __init__(self, client: RemotingClient) -> None:
        self._client = client
        self.count = 0
        self.stopped = False

    async def run(self) -> None:
        while not self.stopped:
            await self.send_one()
            await asyncio.sleep(0.005)

    async def send_one(self) -> None:
        n = self.count
        properties = {"KEYS": f"k{n}", "TAGS": f"t{n % 3}", "number": str(n), "UNIQ_KEY": unique(n)}
        await live.send(self._client, "orders", n % QUEUES, b"%d" % n, now_ms(), **properties)
        self.count = n + 1

    async def reach(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.count < count:  # noqa: ASYNC110 - a counter has no event
                await asyncio.sleep(0.02)


@asynccontextmanager
async def sending(port: int) -> AsyncIterator[Sender]:
    async with RemotingClient(port) as client:
        await live.create_topic(client, "orders", queues=QUEUES)
        await live.create_topic(client, "steps", queues=2, kind="FIFO")
        await live.create_group(client, "billing")
        for n in range(STEPS):
            group = {"__SHARDINGKEY": f"g{n % 2}", "UNIQ_KEY": unique(1_000_000 + n)}
            await live.send(client, "steps", n % 2, b"step-%d" % n, now_ms(), **group)
        sender = Sender(client)
        task = asyncio.create_task(sender.run())
        try:
            yield sender
        finally:
            sender.stopped = True
            await task


class MirrorProcess:
    """`cometmq mirror run`."""

    def __init__(self, source: int, target: int, folder: Path, authority: Path) -> None:
        self.state = folder / "state"
        self._log = folder / "mirror.log"
        self._words = ["--source", f"127.0.0.1:{source}", "--target", f"127.0.0.1:{target}"]
        self._words += ["--source-tls-ca", str(authority), "--source-tls-any-name"]
        self.start()

    def start(self) -> None:
        command = [*cometmq_command(), "mirror", "run", *self._words, "--state", str(self.state)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def stop(self) -> None:
        """Stop as with SIGTERM."""
        self.process.terminate()
        assert self.process.wait(WAIT_S) == 0, self._log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def status(self) -> dict[str, Any]:
        """Return what `mirror status` prints; nothing before the first round."""
        words = [*cometmq_command(), "mirror", "status", "--state", str(self.state), "-o", "json"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return found

    def group(self, state: str) -> None:
        """Wait until the group has a state."""

        def reached() -> bool:
            rows = self.status().get("groups", [])
            return any(row["group"] == "billing" and row["state"] == state for row in rows)

        wait_until(f"billing is {state}: {self._log.read_text()}", reached, WAIT_S)

    def copied(self, count: int) -> None:
        wait_until(f"{count} are copied", lambda: self.status().get("copied", 0) >= count, WAIT_S)


async def records(port: int, topic: str, queue_id: int) -> list[Record]:
    """Read a queue of the target."""
    found: list[Record] = []
    async with RemotingClient(port) as client:
        while True:
            fields = {"consumerGroup": "TOOLS_CONSUMER", "topic": topic, "queueId": queue_id}
            fields |= {"queueOffset": len(found), "maxMsgNums": 32, "sysFlag": 4, "subVersion": 0}
            fields |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*"}
            answer = await client.call(Request.PULL_MESSAGE, **fields)
            body = answer.body if not answer.code else b""
            if not body:
                return found
            while body:
                found.append(decode(body))
                body = body[found[-1].size :]


async def test_topics_and_a_group_move_from_apache_under_load(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "target", "--single", "--remoting")
    try:
        await asyncio.to_thread(cluster.start, WAIT_S)
        options = await asyncio.to_thread(certified, tmp_path / "tls")
        with live.ApacheBroker(tmp_path / "store", tmp_path / "apache", CONF, options) as apache:
            await move(apache, cluster, tmp_path)
    finally:
        await asyncio.to_thread(cluster.stop)


async def move(apache: live.ApacheBroker, cluster: Cluster, tmp_path: Path) -> None:
    ports = cluster.nodes()[0].ports
    async with sending(apache.broker) as sender:
        await sender.reach(200)
        consumed = await asyncio.to_thread(
            apache.consume, {"group": "billing", "topic": "orders", "count": 150}
        )
        before = {base64_number(one["body_b64"]) for one in consumed[0]}
        authority = tmp_path / "tls" / "ca.pem"
        mirror = MirrorProcess(apache.nameserver, ports["namesrv_remoting"], tmp_path, authority)
        try:
            await asyncio.to_thread(mirror.copied, 100)
            mirror.kill()
            mirror.start()
            await asyncio.to_thread(mirror.group, "ready")
            client = await asyncio.to_thread(Official, cluster.endpoints, tmp_path / "official")
            call = client.call
            await asyncio.to_thread(call, "push", group="billing", topics={"orders": "*"})
            await asyncio.to_thread(mirror.group, "moved")
            await sender.reach(sender.count + 100)
        except BaseException:
            mirror.kill()
            raise
    total = sender.count
    try:
        rest = await asyncio.to_thread(delivered, client, set(range(total)) - before)
        await asyncio.to_thread(call, "producer", topics=["orders"])
        await asyncio.to_thread(call, "send", topic="orders", body="new")
        await asyncio.to_thread(mirror.stop)
        numbers = [int(one["body"]) for one in rest]
        assert before | set(numbers) == set(range(total))
        # Every failure, here the kill, can repeat one pull of each queue.
        assert len(numbers) + len(before) - total <= PULL_MAX * QUEUES
        one = next(one for one in rest if one["body"] == str(total - 1))
        assert (one["id"], one["keys"]) == (unique(total - 1), [f"k{total - 1}"])
        assert one["properties"]["number"] == str(total - 1)
    finally:
        await asyncio.to_thread(client.close)
    await check_target(ports["remoting"], total)


def certified(folder: Path) -> list[str]:
    """Make certificates for Apache's servers; return the options of java."""
    dev_ca(folder, "apache=apache.example")
    values = {
        "tls.server.mode": "permissive",  # the default, which the tests switch off
        "tls.test.mode.enable": "false",
        "tls.server.certPath": str(folder / "apache.pem"),
        "tls.server.keyPath": str(folder / "apache.key"),
        "tls.server.need.client.auth": "none",
    }
    return [f"-D{name}={value}" for name, value in values.items()]


def base64_number(text: str) -> int:
    return int(base64.b64decode(text))


def delivered(client: Official, numbers: set[int]) -> list[dict[str, Any]]:
    """Return the deliveries when these numbers are among them."""

    def complete() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = client.call("pushed")
        return found if numbers <= {int(one["body"]) for one in found} else []

    found: list[dict[str, Any]] = wait_until("the group gets the rest", complete, WAIT_S)
    return found


async def check_target(port: int, total: int) -> None:
    """Every message of the source is in its queue, in order; FIFO messages likewise."""
    copies: Counter[bytes] = Counter()
    for queue_id in range(QUEUES):
        bodies = [one.body for one in await records(port, "orders", queue_id)]
        numbers = [int(body) for body in dict.fromkeys(bodies) if body != b"new"]
        assert numbers == list(range(queue_id, total, QUEUES))
        copies.update(bodies)
    assert copies.total() - len(copies) <= PULL_MAX * QUEUES
    for queue_id in range(2):
        steps = await records(port, "steps", queue_id)
        assert [one.body for one in steps] == [b"step-%d" % n for n in range(queue_id, STEPS, 2)]
        assert {one.properties_dict["__SHARDINGKEY"] for one in steps} == {f"g{queue_id}"}
        assert steps[0].properties_dict["MIRROR_ORIGIN"] == f"DefaultCluster/broker-a/{queue_id}/0"
