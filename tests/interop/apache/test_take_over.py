"""docs/migration.md, "Take over a directory": its files and commands run as printed.

Apache's broker writes the directory: topics, groups, committed offsets, FIFO messages, delayed
messages. After the take-over clients of both protocols continue, and Apache opens it again.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.tests.formats.cases import units_of
from cometmq.tests.harness.cluster import cometmq_command, wait_until
from cometmq.tests.harness.official import Official
from cometmq.tests.harness.ports import free_ports
from cometmq.tests.interop.apache import live, oracle
from cometmq.tests.interop.apache.test_directories import CONF
from cometmq.tests.remoting.client import RemotingClient

pytestmark = pytest.mark.timeout(900)  # the first one fetches the jars
GUIDE = Path(__file__).resolve().parents[3] / "docs" / "migration.md"
PORTS = ("9876", "9877", "8081", "10911", "10912", "5557")
SIZES = CONF | {"mappedFileSizeTimerLog": "52000"}
ORDERS, STEPS, COMMITTED = 40, 10, 6
WAIT_S = 120.0


def section() -> str:
    found = re.search(r"^## Take over a directory$(.*?)(?=^## |\Z)", GUIDE.read_text(), re.M | re.S)
    assert found is not None
    return found[1]


class Guide:
    """The section, on this machine: other paths, other ports, the loopback address."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        found = map(str, free_ports(len(PORTS)))
        ports = dict(zip(PORTS, found, strict=True))
        self.store = folder / "var/lib/rocketmq/store"
        text = section().replace("10.0.0.11", "127.0.0.1")
        text = re.sub(r"(?<![\w.])/(var/lib|etc)/", rf"{folder}/\1/", text)
        self._text = re.sub(
            r"(?<=[=:])(\d{4,5})$|(?<=:)(\d{4,5})\b",
            lambda match: ports.get(match[0], match[0]),
            text,
            flags=re.M,
        )
        self.endpoint = f"127.0.0.1:{ports['8081']}"
        self.remoting = int(ports["10911"])
        self.classic_nameserver = int(ports["9876"])
        self._running: list[subprocess.Popen[bytes]] = []

    def write_files(self) -> None:
        """Write the configuration files; the broker's has the sizes of Apache's file."""
        found = re.findall(r"`(\S+\.conf)`[^`]*?:\n\n```\n(.*?)```", self._text, re.S)
        files = {Path(path).name: (Path(path), text) for path, text in found}
        path, _ = files["namesrv.conf"]
        blocks = re.findall(r"```\n(\w+=.*?)```", self._text, re.S)
        path.parent.mkdir(parents=True)
        path.write_text(blocks[0])
        sizes = "".join(f"{key}={value}\n" for key, value in SIZES.items())
        (path.parent / "broker.conf").write_text(blocks[1] + sizes)
        Path(blocks[0].partition("namesrvDataDir=")[2].split("\n")[0]).mkdir(parents=True)

    def commands(self) -> list[list[str]]:
        lines = re.findall(r"^cometmq .*$", self._text, re.M)
        return [shlex.split(line)[1:] for line in lines]

    def run(self, words: list[str]) -> str:
        done = subprocess.run(
            [*cometmq_command(), *words],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
            cwd=self.folder,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}\n{self.log()}"
        return done.stdout

    def start(self, words: list[str]) -> None:
        with (self.folder / f"{words[0]}.log").open("ab") as log:
            self._running.append(
                subprocess.Popen(
                    [*cometmq_command(), *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.folder,
                )
            )

    def stop(self) -> None:
        """Stop the broker, then the nameserver."""
        while self._running:
            process = self._running.pop()
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0, self.log()

    def kill(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()

    def log(self) -> str:
        return "\n".join(path.read_text()[-3_000:] for path in self.folder.glob("*.log"))

    def wait_healthy(self) -> None:
        words = [*cometmq_command(), "healthcheck", "--endpoint", self.endpoint]

        def is_healthy() -> bool:
            return subprocess.run(words, capture_output=True, check=False).returncode == 0

        wait_until("the broker serves", is_healthy, WAIT_S)

    def document(self, *words: str) -> Any:
        return json.loads(self.run([*words, "--endpoint", self.endpoint, "-o", "json"]))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def fill(port: int) -> None:
    """Write messages of all kinds, and commit a part."""
    async with RemotingClient(port) as client:
        await live.create_topic(client, "orders", queues=4)
        await live.create_topic(client, "steps", queues=2, kind="FIFO")
        await live.create_topic(client, "later", queues=1, kind="DELAY")
        await live.create_group(client, "billing", retryMaxTimes=7)
        await live.create_group(client, "ordered", consumeMessageOrderly=True)
        await live.create_group(client, "waiting")
        for n in range(ORDERS):
            body, key = b"order-%d" % n, f"k{n}"
            await live.send(client, "orders", n % 4, body, now_ms(), KEYS=key, UNIQ_KEY=unique(n))
        for n in range(STEPS):
            properties = {"__SHARDINGKEY": f"g{n % 2}", "UNIQ_KEY": unique(100 + n)}
            await live.send(client, "steps", n % 2, b"step-%d" % n, now_ms(), **properties)
        times = {"soon": 5_000, "much later": 3_600_000}
        for number, (body_text, delay_ms) in enumerate(times.items()):
            properties = {"TIMER_DELIVER_MS": str(now_ms() + delay_ms)}
            properties["UNIQ_KEY"] = unique(200 + number)
            await live.send(client, "later", 0, body_text.encode(), now_ms(), **properties)
        await live.send(client, "later", 0, b"level", now_ms(), DELAY="3", UNIQ_KEY=unique(300))
        for queue_id in range(4):
            await live.commit(client, "orders", "billing", queue_id, COMMITTED)


def unique(number: int) -> str:
    return f"{number:032X}"


def received(client: Official, name: str, count: int) -> list[dict[str, Any]]:
    """Return deliveries of a push consumer, at least `count`."""

    def enough() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = client.call("pushed", name=name)
        return found if len(found) >= count else []

    found: list[dict[str, Any]] = wait_until(f"{count} messages arrive", enough, WAIT_S)
    return found


@pytest.fixture
def guide(tmp_path: Path) -> Iterator[Guide]:
    made = Guide(tmp_path)
    made.store.parent.mkdir(parents=True)
    with live.ApacheBroker(made.store, tmp_path / "apache", SIZES) as apache:
        asyncio.run(fill(apache.broker))
    try:
        yield made
    finally:
        made.kill()


def walk(guide: Guide) -> dict[str, str]:
    """Execute the commands up to the comparison; return what these print, by command."""
    guide.write_files()
    printed: dict[str, str] = {}
    for words in guide.commands()[:-1]:  # the last one belongs to the way back
        if words[0] in ("namesrv", "broker"):
            guide.start(words)
            continue
        if words[0] == "healthcheck":
            guide.wait_healthy()
        printed[" ".join(words[:2])] = guide.run(words)
    return printed


def test_a_directory_of_apache_is_taken_over_and_given_back(guide: Guide, tmp_path: Path) -> None:
    printed = walk(guide)
    assert "no problem" in printed["store verify"]
    for name in ("orders", "steps", "later"):
        assert name in printed["topic list"]
    for name in ("billing", "ordered"):
        assert name in printed["group list"]
    assert "order-17" in printed["message query"]
    assert unique(201) in printed["timer ls"]
    types = {row["topic"]: row["type"] for row in guide.document("topic", "list")}
    assert types.items() >= {"orders": "normal", "steps": "fifo", "later": "delay"}.items()
    offsets = guide.document("offset", "show", "billing", "orders")
    assert [row["consumer_offset"] for row in offsets] == [COMMITTED] * 4
    billing = guide.document("group", "describe", "billing")
    assert (billing["max_attempts"], billing["lag"]) == (8, ORDERS - 4 * COMMITTED)

    client = Official(guide.endpoint, tmp_path / "official")
    try:
        client.call("push", name="billing", group="billing", topics={"orders": "*"})
        client.call("push", name="ordered", group="ordered", topics={"steps": "*"})
        client.call("push", name="waiting", group="waiting", topics={"later": "*"})
        rest = {f"order-{n}" for n in range(4 * COMMITTED, ORDERS)}
        assert {one["body"] for one in received(client, "billing", len(rest))} == rest
        steps = [one["body"] for one in received(client, "ordered", STEPS)]
        for group in range(2):
            own = [f"step-{n}" for n in range(STEPS) if n % 2 == group]
            assert [body for body in steps if body in own] == own
        assert {one["body"] for one in received(client, "waiting", 2)} == {"soon", "level"}
        client.call("producer", topics=["orders"])
        client.call("send", topic="orders", body="from CometMQ", keys=["new"])
        received(client, "billing", len(rest) + 1)
        # A listener sees a message before its client acknowledges it.
        wait_until("the last is acknowledged", lambda: lag(guide, "billing") == 0, WAIT_S)
    finally:
        client.close()
    check_way_back(guide, tmp_path)


def lag(guide: Guide, group: str) -> int:
    return int({row["group"]: row["lag"] for row in guide.document("group", "list")}[group])


def check_way_back(guide: Guide, tmp_path: Path) -> None:
    """Stop CometMQ, check, and let Apache's consumers go on."""
    guide.stop()
    assert "no problem" in guide.run(guide.commands()[-1])
    plan = {
        "queries": [{"topic": "orders", "key": key} for key in ("k17", "new")],
        "consume": [
            {"group": "billing", "topic": "orders", "count": 0},
            {"group": "auditing", "topic": "orders", "count": ORDERS + 1},
        ],
    }
    report = oracle.ask(guide.store, tmp_path / "back", plan, SIZES)
    assert [len(query["physical_offsets"]) for query in report["before"]["key_queries"]] == [1, 1]
    billing, auditing = report["consumed"]
    assert billing == [] and len(auditing) == ORDERS + 1
    topics = {unit["record_topic"] for unit in units_of(report["before"])}
    assert {"orders", "steps", "later", "rmq_sys_COMETMQ_META"} <= topics
