"""A broker on a full file system: refuses sends, serves readers, stops, starts, resumes."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.proto import v2
from cometmq.tests.broker.desk import Desk, desk, message
from cometmq.tests.broker.live import Settings, settings, until

MESSAGES = 100


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a tmpfs of 12 MiB; needs the permission to mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no right to mount a small file system: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path) -> None:
    """Fill the file system completely."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for size in (1 << 20, 1 << 16, 1 << 12, 1):
        with suppress(OSError):
            while os.write(descriptor, b"x" * size):
                pass
    os.close(descriptor)
    assert os.statvfs(path).f_bavail == 0


def chosen(directory: Path) -> Settings:
    base = settings(directory)
    store = replace(
        base.store,
        clean_file_forcibly_enable=False,  # keep the messages
        clean_resource_interval=50,
        flush_interval_consume_queue=20,
        max_hash_slot_num=1_000,
        max_index_num=4_000,
    )
    return replace(base, store=store)


async def receive(one: Desk, group: str, count: int) -> list[bytes]:
    """Return `count` bodies in delivery order, or fewer if no more arrive."""
    bodies: list[bytes] = []
    while len(bodies) < count:
        answer = await one.receive("t", group, one.context(remaining_ms=5_000))
        if answer.code != v2.OK:
            break
        bodies += answer.bodies
        one.ack("t", group, *answer.handles)
    return bodies


@pytest.mark.feature("Disk full")
async def test_a_full_disk_loses_nothing_and_the_broker_resumes(small_disk: Path) -> None:
    where = chosen(small_disk / "store")
    sent = [f"{n:04d}".encode().ljust(20_000) for n in range(MESSAGES)]
    ballast = small_disk / "ballast"
    async with desk(small_disk / "store", where) as one:
        one.topic("t")
        await one.sent("t", *sent)
        fill(ballast)
        await until(lambda: one.node.store.paused)
        answer = await one.send(message("t"))
        assert answer.status.code == v2.INTERNAL_SERVER_ERROR
        assert "Messages are refused until disk space is free." in answer.status.message
        assert await receive(one, "first", MESSAGES) == sent
    fill(ballast)  # stopping released the allocated space
    async with desk(small_disk / "store", where) as one:
        # The first disk check follows the start by a moment; sends that fit until then are
        # accepted.
        while (answer := await one.send(message("t"))).status.code == v2.OK:
            sent.append(message("t").body)
            await asyncio.sleep(0.05)
        assert "until disk space is free" in answer.status.message
        assert await receive(one, "second", len(sent)) == sent
        ballast.unlink()
        await until(lambda: one.node.store.writable)
        await one.sent("t", b"again")
        assert await receive(one, "second", 1) == [b"again"]
    async with desk(small_disk / "store", where) as one:
        assert await receive(one, "third", len(sent) + 1) == [*sent, b"again"]
        files = {path.name for path in (small_disk / "store" / "config").iterdir()}
        assert {"topics.json", "consumerOffset.json"} <= files
