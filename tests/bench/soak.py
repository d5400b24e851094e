"""Soak of a whole cluster: every kind of work at once, the memory of each process, lost messages.

`python -m cometmq.tests.bench.soak [--seconds 3600] [--rate 40]` starts nameserver, master, slave
and proxy with small segments, works with them over both protocols and prints
the resident memory of each process: from the eleventh minute on it may grow by GROWTH_MAX_MIB.
Exit code 1: a process grew by more, or an acknowledged message was not received.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import psutil

import cometmq
from cometmq.proto import paths, v1, v2
from cometmq.remoting.codes import Request
from cometmq.tests.broker.classic_wire import heartbeat, message, pulling, records
from cometmq.tests.broker.live import create_group, create_topic
from cometmq.tests.harness.cluster import Cluster, cometmq_command, wait_until
from cometmq.tests.harness.wire import Wire
from cometmq.tests.remoting.client import RemotingClient

SEGMENT_BYTES = 16 << 20
SAMPLE_S, WARM_S, WINDOW_S, DRAIN_S = 10.0, 600.0, 300.0, 120.0
GROWTH_MAX_MIB = 5.0
ENVIRONMENT = {
    "COMETMQ_FILE_RESERVED_TIME": "1",
    "COMETMQ_DELETE_WHEN": ";".join(f"{hour:02}" for hour in range(24)),
    "COMETMQ_CLEAN_RESOURCE_INTERVAL": "1000",
}
KINDS = {
    **{"plain": v2.NORMAL, "sql": v2.NORMAL, "again": v2.NORMAL, "pulled": v2.NORMAL},
    **{"classic": v2.NORMAL, "fifo": v2.FIFO, "later": v2.DELAY, "halves": v2.TRANSACTION},
}


class Ledger:
    """Messages that were sent and not yet received, by topic."""

    def __init__(self) -> None:
        self.open: dict[str, set[int]] = {topic: set() for topic in KINDS}
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._next = itertools.count()

    def begin(self, topic: str) -> int:
        number = next(self._next)
        self.open[topic].add(number)
        return number

    def drop(self, topic: str, number: int) -> None:
        """Expect this message no longer: its send failed, or it was cancelled."""
        self.open[topic].discard(number)

    def got(self, topic: str, body: bytes) -> None:
        self.open[topic].discard(int(body[:12]))
        self.done[topic] += 1


def _read(page: str) -> None:
    with urllib.request.urlopen(page) as answer:
        answer.read()


def body_of(number: int) -> bytes:
    """Return the body of a message: its number and filling."""
    return f"{number:012}".encode() + b"x" * 500


class Work:
    """Every kind of work against one cluster, until `stopping`."""

    def __init__(self, direct: str, proxy: str, classic: int, pages: Iterable[str]) -> None:
        self.direct, self.proxy, self.classic, self.pages = direct, proxy, classic, list(pages)
        self.ledger = Ledger()
        self.stopping = False

    async def every(self, seconds: float, what: str, do: Callable[[], Awaitable[object]]) -> None:
        """Repeat work at an interval; a failure is counted, not raised."""
        while not self.stopping:
            try:
                await do()
            except Exception as error:
                self.ledger.failed[f"{what}: {type(error).__name__}: {error}"[:120]] += 1
            await asyncio.sleep(seconds)

    async def send(self, producer: cometmq.Producer, topic: str, **extras: Any) -> cometmq.Receipt:
        number = self.ledger.begin(topic)
        try:
            return await producer.send(topic, body_of(number), **extras)
        except BaseException:
            self.ledger.drop(topic, number)
            raise

    async def send_later(self, producer: cometmq.Producer) -> None:
        number = self.ledger.begin("later")
        receipt = await producer.send("later", body_of(number), deliver_in=1 + number % 7)
        if number % 5 == 0:
            with suppress(cometmq.CometError):
                await producer.recall(receipt)
                self.ledger.drop("later", number)

    async def transact(self, producer: cometmq.TransactionProducer) -> None:
        number = self.ledger.begin("halves")
        try:
            transaction = await producer.transaction("halves", body_of(number))
        except BaseException:
            self.ledger.drop("halves", number)
            raise
        if number % 3 == 0:
            await transaction.rollback()
            self.ledger.drop("halves", number)
        elif number % 17:  # the others are left to the broker's check, which commits them
            await transaction.commit()

    async def send_many(self, producer: cometmq.Producer) -> None:
        numbers = [self.ledger.begin("plain") for _ in range(20)]
        results = await producer.send_many("plain", [body_of(one) for one in numbers])
        for number, result in zip(numbers, results, strict=True):
            if isinstance(result, Exception):
                self.ledger.drop("plain", number)

    async def take(self, consumer: cometmq.SimpleConsumer) -> None:
        """Receive; give a part back, hold a part for longer, acknowledge the rest."""
        while not self.stopping:
            for one in await consumer.receive(wait=5.0):
                if one.attempt == 1 and int(one.body[:12]) % 4 == 0:
                    await consumer.nack(one)
                    continue
                if int(one.body[:12]) % 4 == 1:
                    await consumer.change_invisible(one, 20.0)
                await consumer.ack(one)
                self.ledger.got(one.topic, one.body)

    async def pull(self, consumer: cometmq.PullConsumer) -> None:
        while not self.stopping:
            one = await consumer.poll(wait=2.0)
            if one is not None:
                self.ledger.got(one.topic, one.body)
                if int(one.body[:12]) % 16 == 0:
                    await consumer.commit()

    async def handle(self, one: cometmq.Message) -> None:
        number = int(one.body[:12])
        if number % 29 == 0 and one.topic == "plain":  # becomes a dead letter
            self.ledger.drop(one.topic, number)
            raise RuntimeError("this delivery fails")
        self.ledger.got(one.topic, one.body)

    async def pass_by(self) -> None:
        """Connect with each kind of client, use it once, leave."""
        async with cometmq.Producer(self.proxy) as producer:
            await self.send(producer, "plain")
        async with cometmq.SimpleConsumer(self.direct, group="g-again", topics="again") as consumer:
            for one in await consumer.receive(1, wait=0):
                await consumer.ack(one)
                self.ledger.got(one.topic, one.body)
        async with RemotingClient(self.classic) as client:
            beat = heartbeat("passing", "g-passing", classic="*")
            await client.call(Request.HEART_BEAT, beat)
        for address in (self.direct, self.proxy):
            reader, writer = await asyncio.open_connection(*address.split(";")[0].split(":"))
            writer.write(b"\x00\x01 not a frame of any protocol" * 8)
            await reader.read(100)
            writer.close()

    async def refused(self, producer: cometmq.Producer) -> None:
        with suppress(cometmq.CometError):
            await producer.send("absent", b"body", within=2.0)

    async def administer(self, wire: Wire, turn: Iterable[int]) -> None:
        """Create, describe, list, query and delete."""
        name = f"passing-{next(iter(turn)) % 10}"
        await create_topic(wire, name, queues=4)
        await create_group(wire, name)
        calls: tuple[tuple[str, Any, type[Any]], ...] = (
            (paths.LIST_TOPICS, v1.ListTopicsRequest(), v1.ListTopicsResponse),
            (paths.LIST_GROUPS, v1.ListGroupsRequest(), v1.ListGroupsResponse),
            (paths.LIST_CLIENTS, v1.ListClientsRequest(), v1.ListClientsResponse),
            (paths.DESCRIBE_TOPIC, v1.DescribeTopicRequest(name="plain"), v1.DescribeTopicResponse),
            (
                paths.DESCRIBE_GROUP,
                v1.DescribeGroupRequest(name="g-again", topic="again", deliveries=100),
                v1.DescribeGroupResponse,
            ),
            (paths.LIST_TIMERS, v1.ListTimersRequest(count=100), v1.ListTimersResponse),
            (
                paths.LIST_TRANSACTIONS,
                v1.ListTransactionsRequest(count=100),
                v1.ListTransactionsResponse,
            ),
            (
                paths.QUERY_MESSAGES,
                v1.QueryMessagesRequest(topic="plain", key="k7", count=32),
                v1.QueryMessagesResponse,
            ),
            (paths.DESCRIBE_CLUSTER, v1.DescribeClusterRequest(), v1.DescribeClusterResponse),
            (paths.DESCRIBE_STORE, v1.DescribeStoreRequest(), v1.DescribeStoreResponse),
            (paths.DELETE_GROUP, v1.DeleteGroupRequest(name=name), v1.DeleteGroupResponse),
            (paths.DELETE_TOPIC, v1.DeleteTopicRequest(name=name), v1.DeleteTopicResponse),
        )
        for path, request, answer in calls:
            await wire.call(path, request, answer)

    async def scrape(self) -> None:
        for page in self.pages:
            await asyncio.to_thread(_read, page)

    async def classic_send(self, client: RemotingClient) -> None:
        number = self.ledger.begin("classic")
        properties = f"TAGS\x01t\x02KEYS\x01k{number % 50}\x02UNIQ_KEY\x01{number:032X}\x02"
        try:
            answer = await client.post(message(body_of(number), properties, b="classic", d=1, e=0))
            if answer.code:
                raise RuntimeError(f"classic send: {answer.code} {answer.remark}")
        except BaseException:
            self.ledger.drop("classic", number)
            raise

    async def classic_pull(self, client: RemotingClient) -> None:
        where = {"consumerGroup": "g-classic", "topic": "classic", "queueId": 0}
        offset = 0
        while not self.stopping:
            beat = heartbeat("puller", "g-classic", classic="*")
            await client.call(Request.HEART_BEAT, beat)
            request = pulling(
                **where, queueOffset=offset, sysFlag=7, commitOffset=offset,
                suspendTimeoutMillis=2_000,
            )  # fmt: skip
            answer = await client.post(request)
            found = records(answer.body) if answer.code == 0 else []
            for one in found:
                self.ledger.got("classic", one.body)
            offset = int(answer.fields.get("nextBeginOffset", offset))
            await client.call(Request.UPDATE_CONSUMER_OFFSET, **where, commitOffset=offset)

    async def run(self, seconds: float, rate: float) -> None:
        async with Wire(self.direct) as wire:
            for topic, kind in KINDS.items():
                made = await create_topic(
                    wire, topic, queues=1 if topic == "classic" else 4, message_type=kind
                )
                assert made.code == v2.OK, made
            for topic in KINDS:
                await create_group(
                    wire,
                    f"g-{topic}",
                    orderly=topic == "fifo",
                    max_attempts=3 if topic == "plain" else 16,
                )
            await create_group(wire, "g-passing")
            await asyncio.sleep(2.0)
            await self._with_clients(wire, seconds, rate)

    async def _with_clients(self, wire: Wire, seconds: float, rate: float) -> None:
        def commit(_: cometmq.Message) -> cometmq.Resolution:
            return cometmq.Resolution.COMMIT

        push, simple = cometmq.PushConsumer, cometmq.SimpleConsumer
        async with (
            cometmq.Producer(self.direct) as near,
            cometmq.Producer(self.proxy) as far,
            cometmq.TransactionProducer(self.direct, topics=["halves"], checker=commit) as pay,
            push(self.proxy, self.handle, group="g-plain", topics="plain"),
            push(self.direct, self.handle, group="g-fifo", topics="fifo"),
            push(self.proxy, self.handle, group="g-later", topics="later"),
            push(self.direct, self.handle, group="g-halves", topics="halves"),
            push(
                self.direct, self.handle, group="g-sql", topics={"sql": cometmq.sql("n = 'even'")}
            ),
            simple(self.proxy, group="g-again", topics="again") as again,
            cometmq.PullConsumer(self.direct, group="g-pulled", topics="pulled") as pulled,
            RemotingClient(self.classic) as classic,
            RemotingClient(self.classic) as puller,
        ):
            turn, pause = itertools.count(), 1 / rate
            key = itertools.count()
            sends = {
                "plain": lambda: self.send(near, "plain", keys=[f"k{next(key) % 50}"], tag="t"),
                "far": lambda: self.send(far, "plain"),
                "sql": lambda: self.send(far, "sql", properties={"n": "even"}),
                "odd": lambda: near.send("sql", b"odd", properties={"n": "odd"}),
                "again": lambda: self.send(near, "again"),
                "pulled": lambda: self.send(far, "pulled"),
                "fifo": lambda: self.send(near, "fifo", group=f"g{next(key) % 20}"),
                "later": lambda: self.send_later(far),
                "halves": lambda: self.transact(pay),
                "classic": lambda: self.classic_send(classic),
            }
            tasks = [
                asyncio.create_task(self.every(pause * len(sends), name, do))
                for name, do in sends.items()
            ]
            readers = [
                asyncio.create_task(work)
                for work in (
                    self.every(1.0, "again", lambda: self.take(again)),
                    self.every(1.0, "pull", lambda: self.pull(pulled)),
                    self.every(1.0, "classic pull", lambda: self.classic_pull(puller)),
                )
            ]
            tasks += [
                asyncio.create_task(self.every(pause, name, do))
                for name, pause, do in (
                    ("many", 1.0, lambda: self.send_many(far)),
                    ("pass by", 2.0, self.pass_by),
                    ("refused", 1.0, lambda: self.refused(near)),
                    ("administer", 2.0, lambda: self.administer(wire, turn)),
                    ("scrape", 5.0, self.scrape),
                )
            ]
            await asyncio.sleep(seconds)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            end = time.monotonic() + DRAIN_S
            while any(self.ledger.open.values()) and time.monotonic() < end:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
            self.stopping = True
            await asyncio.gather(*readers, return_exceptions=True)


class Memory:
    """Samples of resident and anonymous MiB by process."""

    def __init__(self, processes: dict[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in processes.items()}
        self._began = time.monotonic()
        self.samples: list[tuple[float, str, float, float]] = []

    async def watch(self, into: Path) -> None:
        with into.open("w") as file:
            while True:
                now = time.monotonic() - self._began
                for name, process in self._processes.items():
                    every = process.memory_info()
                    sample = (now, name, every.rss / 2**20, (every.rss - every.shared) / 2**20)
                    self.samples.append(sample)
                    file.write(json.dumps(sample) + "\n")
                file.flush()
                await asyncio.sleep(SAMPLE_S)

    def growth(self, warm_s: float) -> dict[str, tuple[float, ...]]:
        """Return by process: resident at the start and at the end, anonymous alike; medians."""
        found = {}
        for name in self._processes:
            mine = [one for one in self.samples if one[1] == name and one[0] >= warm_s]
            if not mine:
                continue
            first = [one for one in mine if one[0] <= mine[0][0] + WINDOW_S]
            last = [one for one in mine if one[0] >= mine[-1][0] - WINDOW_S]
            resident = [median(one[2] for one in part) for part in (first, last)]
            anonymous = [median(one[3] for one in part) for part in (first, last)]
            found[name] = (*resident, *anonymous)
        return found


async def soak(work: Work, memory: Memory, seconds: float, rate: float, into: Path) -> None:
    """Work and watch."""
    watch = asyncio.create_task(memory.watch(into))
    try:
        await work.run(seconds, rate)
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


def start_proxy(folder: Path, nameserver: str) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Start a proxy; return it with its ready file."""
    ready = folder / "proxy.json"
    command = [*cometmq_command(), "proxy", "--ready-file", str(ready)]
    command += ["--grpc-server-port", "0", "--namesrv-addr", nameserver]
    command += ["--metrics-prom-exporter-port", "0", "--bind-address", "127.0.0.1"]
    command += ["--cluster-token", (folder / "data" / "cluster-token").read_text().strip()]
    with (folder / "proxy.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    wait_until("the proxy serves", ready.exists)
    return process, json.loads(ready.read_text())


def main() -> int:
    """Run it; print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3_600.0)
    parser.add_argument("--warm", type=float, default=WARM_S)
    parser.add_argument("--rate", type=float, default=40.0, help="single sends in a second")
    parser.add_argument("--samples", type=Path, default=Path("soak.jsonl"))
    options = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)  # deliveries fail on purpose
    with tempfile.TemporaryDirectory(prefix="cometmq-soak-") as name:
        folder = Path(name)
        cluster = Cluster(
            folder / "data", "--remoting", segment_size=SEGMENT_BYTES, env=ENVIRONMENT,
            controller=True,
        )  # fmt: skip
        proxy = None
        try:
            cluster.start()
            print(cluster.ready_file.read_text(), flush=True)
            nodes = cluster.nodes()
            nameserver = next(one for one in nodes if "nameserver" in one.role or "ns" in one.name)
            proxy, ready = start_proxy(folder, f"127.0.0.1:{next(iter(nameserver.ports.values()))}")
            print(ready, flush=True)
            return _measure(cluster, proxy.pid, ready, options)
        finally:
            if proxy is not None:
                proxy.terminate()
                proxy.wait()
            cluster.stop()


def _measure(cluster: Cluster, proxy: int, ready: dict[str, Any], options: Any) -> int:
    nodes = cluster.nodes()
    master = cluster.node("master")
    pages = [
        f"http://127.0.0.1:{one.ports['metrics']}/metrics"
        for one in nodes
        if "metrics" in one.ports
    ]
    work = Work(cluster.address("master"), ready["endpoints"], master.ports["remoting"], pages)
    memory = Memory({**{one.name: one.pid for one in nodes}, "proxy": proxy})
    asyncio.run(soak(work, memory, options.seconds, options.rate, options.samples))
    growth = memory.growth(options.warm)
    for name, (rss, rss_end, own, own_end) in growth.items():
        print(
            f"{name}: resident {rss:.1f} MiB, at the end {rss_end:.1f} ({rss_end - rss:+.1f});"
            f" anonymous {own:.1f}, {own_end:.1f} ({own_end - own:+.1f})"
        )
    lost = {topic: len(missing) for topic, missing in work.ledger.open.items() if missing}
    print(f"received: {dict(work.ledger.done)}; not received: {lost}")
    for text, count in work.ledger.failed.most_common(20):
        print(f"failed {count} times: {text}")
    grown = any(values[1] - values[0] > GROWTH_MAX_MIB for values in growth.values())
    return 1 if lost or grown else 0


if __name__ == "__main__":
    sys.exit(main())
