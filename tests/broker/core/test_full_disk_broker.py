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

from cometmq.ha.core.epochs import EpochHistory
from cometmq.ha.state import epochs_file
from cometmq.ha.state.epoch_scan import scan
from cometmq.proto import v2
from cometmq.store.format.disk import Disk, Space
from cometmq.store.format.results import PutStatus
from cometmq.tests.broker.desk import Desk, desk, message
from cometmq.tests.broker.live import Live, Settings, create_topic, settings, until
from cometmq.tests.broker.role_desk import elections, replica
from cometmq.tests.store.kit import message as tiny

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


MIB = 1 << 20
BODY = b"x" * 20_000


def desk_of(live: Live) -> Desk:
    """Return the handlers of a running replica."""
    return Desk(live, live.node.acks, live.node.pulls)


async def number_read(one: Desk, group: str) -> int:
    """Receive until nothing is left."""
    count = 0
    while bodies := (await one.receive("t", group, one.context(remaining_ms=200))).bodies:
        count += len(bodies)
    return count


@pytest.mark.parametrize(
    ("full", "fills"),
    [(Space(100 * MIB, 0, 0), False), (Space(3 * MIB, MIB // 2, MIB // 2), True)],
    ids=["disk use", "no room for a segment"],
)
async def test_in_a_group_of_full_disks_one_replica_leads_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: Space, fills: bool
) -> None:
    async with elections(replica(tmp_path / "a", 0), replica(tmp_path / "b", 1)) as group:
        first, second = await group.elect(0, 1), group.node(1)
        at_first, at_second = (desk_of(group.replicas[one]) for one in (0, 1))
        async with group.replicas[0].client() as wire:
            assert (await create_topic(wire, "t")).code == v2.OK
        await at_first.sent("t", BODY)
        stored = 1
        await until(lambda: second.store.log_end == first.store.log_end)
        with monkeypatch.context() as patch:
            patch.setattr(Disk, "space", lambda _self, _path: full)
            for node in (first, second):
                node.store.log.discard_prepared()
                node.store.retention.watch_disk()
            while fills and (await at_first.send(message("t", BODY))).status.code == v2.OK:
                stored += 1
            while (
                fills and first.store.writer.append_many([tiny(b"")])[0].status is PutStatus.PUT_OK
            ):
                first.pump.appended()
            await until(lambda: second.store.log_end == first.store.log_end)
            for node in (first, second):
                node.store.retention.watch_disk()
                assert node.replication.heartbeat().no_room
            ended = first.store.log_end

            await group.elect(1, 0)
            status = (await at_second.send(message("t", BODY))).status
            assert status.code == v2.INTERNAL_SERVER_ERROR
            assert "Epoch 2 cannot begin" in second.store.refusal or not fills
            assert "Messages are refused until disk space is free." in status.message
            assert second.store.log_end == ended
            assert await number_read(at_second, "g1") == stored

            await group.elect(0, 1)  # a leader without a first record can step down
            status = (await at_first.send(message("t", BODY))).status
            assert status.code == v2.INTERNAL_SERVER_ERROR
            assert await number_read(at_first, "g2") == stored
        for node in (first, second):
            node.store.retention.watch_disk()
        await until(lambda: first.store.writable)
        await at_first.sent("t", BODY)
        assert await number_read(at_first, "g3") == stored + 1
        await until(lambda: second.store.log_end == first.store.log_end)
        for node in (first, second):  # each epoch with bytes has its first record
            found = scan(node.store)
            assert found is not None
            assert found.entries[1:] == node.replication.replica.history.entries[1:]


def test_the_history_of_epochs_is_saved_on_a_full_disk(small_disk: Path) -> None:
    history = EpochHistory()
    history.assign(1, 0)
    epochs_file.save(small_disk / "ha", history)
    fill(small_disk / "ballast")
    for epoch in range(2, 20):
        history.assign(epoch, 100 * epoch)
        epochs_file.save(small_disk / "ha", history)
        fill(small_disk / "ballast")
    assert epochs_file.load(small_disk / "ha") == history


async def test_a_replica_without_a_free_byte_leads_read_only(small_disk: Path) -> None:
    a, b = chosen(small_disk / "a"), replica(small_disk / "b", 1)
    a = replace(replica(small_disk / "a", 0), store=a.store)
    b = replace(b, store=chosen(small_disk / "b").store)
    async with elections(a, b) as group:
        first, second = await group.elect(0, 1), group.node(1)
        async with group.replicas[0].client() as wire:
            assert (await create_topic(wire, "t")).code == v2.OK
        await desk_of(group.replicas[0]).sent("t", b"one")
        await until(lambda: second.store.log_end == first.store.log_end)
        fill(small_disk / "ballast")
        await until(lambda: first.store.paused and second.store.paused)
        for leader, follower in ((1, 0), (0, 1), (1, 0)):
            await group.elect(leader, follower)
            fill(small_disk / "ballast")
            one = desk_of(group.replicas[leader])
            status = (await one.send(message("t"))).status
            assert status.code == v2.INTERNAL_SERVER_ERROR
            assert await number_read(one, f"g{group.epoch}") == 1
        (small_disk / "ballast").unlink()
        await until(lambda: second.store.writable)
        await one.sent("t", b"two")
        assert await number_read(one, "last") == 2
