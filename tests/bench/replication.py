"""Speed of a follower that copies a log over loopback, compared with a plain gRPC stream.

Leader and follower are two processes with real stores. The bound is the same two processes with
`grpc.aio` alone: the server writes ready bytes, the client reads them and answers every eighth
chunk. Then both logs grow message by message, to measure the time of a confirmation.

    python -m cometmq.tests.bench.replication [--megabytes 256] [--message 1024]

Prints its rows as one line of JSON.
"""

import argparse
import asyncio
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import grpc

from cometmq.broker.core.build import native_parts
from cometmq.ha.config import HaConfig
from cometmq.ha.engine import Identity, Replication
from cometmq.ha.stream.channel import channel_options
from cometmq.proto.native import load
from cometmq.store.config.store_config import StoreConfig
from cometmq.store.message_store import MessageStore
from cometmq.tests.bench.rows import Row
from cometmq.tests.ha.real_store import message, wall_ms
from cometmq.tests.ha.told import Told
from cometmq.tests.store.heard import Heard

SEGMENT = 256 << 20
CHUNK = 256 * 1024
WINDOW = 8 << 20


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Node:
    """A store and its replication engine, connected as in a broker."""

    def __init__(self, directory: Path, config: HaConfig, broker_id: int) -> None:
        self.heard, self.told = Heard(), Told()
        self.store = MessageStore(
            StoreConfig(store_path_root_dir=str(directory), mapped_file_size_commit_log=SEGMENT),
            wall_ms,
            native=native_parts(load()),
            events=self.heard,
        )
        self.store.open()
        self.store.start()
        self.replication = Replication(
            config,
            Identity("bench", "bench", broker_id),
            self.store,
            time.monotonic_ns,
            directory=directory / "ha",
            segment_size=SEGMENT,
            sync_flush=False,
            events=self.told,
        )
        loop = asyncio.get_running_loop()

        def on_flushed(_offset: int) -> None:
            loop.call_soon_threadsafe(self.replication.flushed)

        self.heard.flushed = on_flushed

    async def stop(self) -> None:
        await self.replication.stop()
        self.heard.flushed = lambda _offset: None
        self.store.close()


# --- the follower's process
# -------------------------------------------------------------------------


async def follow(directory: Path, address: str, end: int) -> None:
    """Copy up to `end`, report, and continue until the end of standard input."""
    config = HaConfig(broker_role="SLAVE", ha_listen_port=0, ha_master_address=address)
    node = Node(directory, config, 1)
    reached = asyncio.Event()
    started = [0.0, 0.0]

    def on_data() -> None:
        if not started[0]:
            started[:] = [time.perf_counter(), cpu_seconds()]
        if node.store.log_end >= end:
            reached.set()

    node.told.data_arrived = on_data
    await node.replication.start()
    await reached.wait()
    seconds, cpu = time.perf_counter() - started[0], cpu_seconds() - started[1]
    print(json.dumps({"seconds": seconds, "cpu": cpu / seconds}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await node.stop()


async def read_plain(address: str, count: int) -> None:
    async with grpc.aio.insecure_channel(address, options=channel_options(WINDOW)) as channel:
        call = channel.stream_stream("/bench/Stream")()
        await call.write(b"begin")
        await call.read()
        started, cpu_started = time.perf_counter(), cpu_seconds()
        for number in range(count - 1):
            await call.read()
            if number % 8 == 0:
                await call.write(b"ack")
        seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu_started
        print(json.dumps({"seconds": seconds, "cpu": cpu / seconds}), flush=True)
        await call.write(b"end")


# --- the leader's process
# ---------------------------------------------------------------------------


async def child(*arguments: str) -> Any:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "cometmq.tests.bench.replication",
        *arguments,
        cwd="/",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


class PlainServer(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, count: int) -> None:
        self.count = count
        self.data = os.urandom(CHUNK)
        self.cpu = 0.0

    def service(self, call: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(self.stream)

    async def stream(self, _requests: Any, context: Any) -> None:
        await context.read()
        reader = asyncio.get_running_loop().create_task(self.drain(context))
        started = cpu_seconds()
        for _ in range(self.count):
            await context.write(self.data)
        self.cpu = cpu_seconds() - started
        await reader

    async def drain(self, context: Any) -> None:
        while await context.read() not in (b"end", grpc.aio.EOF):
            pass


async def measure_plain(megabytes: int) -> dict[str, float]:
    count = (megabytes << 20) // CHUNK
    handler = PlainServer(count)
    server = grpc.aio.server(options=channel_options(WINDOW))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    process = await child("--read-plain", f"127.0.0.1:{port}", "--count", str(count))
    report: dict[str, float] = json.loads(await process.stdout.readline())
    await process.wait()
    await server.stop(None)
    return {
        "mb_per_s": count * CHUNK / 1e6 / report["seconds"],
        "cpu_sender": handler.cpu / report["seconds"],
        "cpu_receiver": report["cpu"],
    }


async def measure_confirm(node: Node, body: bytes, count: int) -> list[float]:
    """Return microseconds from one append to its confirmation, one at a time."""
    moved = asyncio.Event()
    node.told.confirm_moved = moved.set
    figures = []
    for _ in range(count):
        started = time.perf_counter()
        node.store.writer.append_many([message(body)])
        node.replication.appended()
        while node.replication.confirm < node.store.log_end:
            moved.clear()
            await moved.wait()
        figures.append((time.perf_counter() - started) * 1e6)
    return sorted(figures)


async def measure(megabytes: int, message_bytes: int, root: Path) -> dict[str, Any]:
    config = HaConfig(broker_role="SYNC_MASTER", ha_listen_port=0)
    node = Node(root / "leader", config, 0)
    body = os.urandom(message_bytes)
    batch = [message(body)] * 256
    while node.store.log_end < megabytes << 20:
        node.store.writer.append_many(batch)
    joined = asyncio.Event()
    node.told.members_changed = joined.set
    port = await node.replication.start()
    end, cpu_started = node.store.log_end, cpu_seconds()
    process = await child(
        "--follow", str(root / "follower"), "--address", f"127.0.0.1:{port}", "--end", str(end)
    )
    report = json.loads(await process.stdout.readline())
    cpu = (cpu_seconds() - cpu_started) / report["seconds"]
    await joined.wait()
    confirm_us = await measure_confirm(node, body, 500)
    process.stdin.close()
    await process.wait()
    await node.stop()
    return {
        "mb_per_s": end / 1e6 / report["seconds"],
        "cpu_leader": cpu,
        "cpu_follower": report["cpu"],
        "confirm_us_p50": statistics.median(confirm_us),
        "confirm_us_p99": confirm_us[int(len(confirm_us) * 0.99)],
    }


async def main(megabytes: int, message_bytes: int) -> None:
    root = Path(tempfile.mkdtemp(prefix="cometmq-bench-"))
    try:
        plain = await measure_plain(megabytes)
        ours = await measure(megabytes, message_bytes, root)
    finally:
        shutil.rmtree(root)
    copied, bound = ours["mb_per_s"], plain["mb_per_s"]
    rows = [
        Row(
            f"replication: copy a log of {message_bytes} B messages",
            round(copied, 1),
            "MB/s",
            f"plain gRPC stream {bound:.1f} MB/s",
            round(copied / bound, 3),
            "100 MB/s on an idle machine",
        ),
        Row(
            "replication: leader's cores while it sends",
            round(ours["cpu_leader"], 2),
            "cores",
            f"plain sender {plain['cpu_sender']:.2f}",
        ),
        Row(
            "replication: follower's cores while it copies",
            round(ours["cpu_follower"], 2),
            "cores",
            f"plain receiver {plain['cpu_receiver']:.2f}",
        ),
        Row("replication: append to confirm, median", round(ours["confirm_us_p50"]), "us"),
        Row("replication: append to confirm, 99 %", round(ours["confirm_us_p99"]), "us"),
    ]
    print(json.dumps([asdict(row) for row in rows]))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--message", type=int, default=1024)
    parser.add_argument("--follow", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--end", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--read-plain", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    options = parse()
    if options.follow:
        asyncio.run(follow(options.follow, options.address, options.end))
    elif options.read_plain:
        asyncio.run(read_plain(options.read_plain, options.count))
    else:
        asyncio.run(main(options.megabytes, options.message))
