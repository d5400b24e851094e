"""A broker with few descriptors and many connections, and one without any."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import urllib.request
from pathlib import Path

import pytest

from cometmq.broker.base import json_file
from cometmq.front.clock import Clock
from cometmq.proto import v2
from cometmq.proto.native import is_available
from cometmq.store.format.disk import Disk
from cometmq.tests.broker.broker_process import BrokerProcess
from cometmq.tests.broker.desk import desk
from cometmq.tests.broker.live import create_topic, until
from cometmq.tests.broker.timing import HOUR, TOPIC, arrives, delayed, with_store
from cometmq.tests.front.raw_http2 import PREFACE, SETTINGS, frame
from cometmq.tests.harness.wire import normal_message

DOORS = ("grpcio", "native") if is_available() else ("grpcio",)
DESCRIPTORS = 300
IDLE = 200


async def connect(address: str, count: int, greeting: bytes) -> list[asyncio.StreamWriter]:
    """Open connections that send `greeting` and nothing else."""
    host, _, port = address.rpartition(":")
    writers = []
    for _ in range(count):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(greeting)
        writers.append(writer)
    return writers


def readiness(address: str) -> int:
    """Return the status of the readiness probe."""
    with urllib.request.urlopen(f"http://{address}/readyz", timeout=10) as answer:
        status: int = answer.status
    return status


@pytest.mark.parametrize("door", DOORS)
async def test_idle_connections_beyond_the_descriptors_leave_the_store_working(
    door: str, tmp_path: Path
) -> None:
    limits = {"descriptors": DESCRIPTORS, "front_door": door}
    async with BrokerProcess(tmp_path, **limits) as broker, broker.client() as wire:
        await create_topic(wire, "t0", queues=8)
        assert (await wire.send([normal_message("t0", "first", b"x")])).status.code == v2.OK
        greeting = PREFACE + frame(SETTINGS, 0, 0, b"")
        idle = []
        for address in (broker.address, broker.ha, broker.metrics):
            idle += await connect(address, IDLE // 2, greeting)
            idle += await connect(address, IDLE // 2, b"")
        for number in range(1, 8):
            # New files for the queues, and a new segment now and then.
            await create_topic(wire, f"t{number}", queues=8)
            messages = [normal_message(f"t{number}", f"m{number}", bytes(300_000))]
            answer = await wire.send(messages)
            assert answer.status.code == v2.OK, answer.status.message
        assert await asyncio.to_thread(readiness, broker.metrics) == 200
        for writer in idle:
            writer.transport.abort()
        async with broker.client("late") as late:
            answer = await late.send([normal_message("t1", "last", b"x")])
            assert answer.status.code == v2.OK


async def test_timer_and_json_files_without_a_descriptor_are_written_when_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, lacking = Clock(), False
    names: set[str] = set()
    refused: set[str] = set()
    open_file = Disk.open

    def open_if_free(disk: Disk, path: str, flags: int, mode: int = 0o666) -> int:
        name = Path(path).stem
        if Path(path).parent.name == "timerlog":
            name = "timerlog"
        if lacking and name in names:
            refused.add(name)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return open_file(disk, path, flags, mode)

    monkeypatch.setattr(Disk, "open", open_if_free)
    monkeypatch.setattr(json_file, "_RETRY_DELAY_S", 0.05)
    chosen = with_store(tmp_path, timer_flush_interval_ms=10)
    async with desk(tmp_path, chosen, clock) as k:
        lacking, names = True, {"topics.json", "subscriptionGroup.json", "timerlog"}
        k.topic(TOPIC, message_type=v2.DELAY)
        k.group("g")
        due = clock.wall_ms() + HOUR
        for body in (b"a", b"b"):
            assert (await k.send(delayed(body, due))).status.code == v2.OK
        await until(lambda: refused >= names)
        for names in ({"timerwheel"}, {"timercheck"}, {"timermetrics"}):
            await until(lambda: refused >= names)  # noqa: B023
        lacking = False
        config = tmp_path / "config"
        for name in ("topics.json", "subscriptionGroup.json", "timercheck", "timermetrics"):
            await until((config / name).exists)
        assert not k.node.timers.stats.broken
        assert k.node.store.writable
    async with desk(tmp_path, chosen, clock) as k:
        k.advance(HOUR)
        await arrives(k, b"a", b"b")
    shutil.rmtree(tmp_path)  # a wheel is a sparse file of 37 MiB
