"""A real small file system that fills up under a store, and under a broker with clients.

A tmpfs of some MiB is mounted for each test; without the right to mount, the tests are skipped.
Deleting before its time is off (`cleanFileForciblyEnable=false`): nothing may be lost here but by
order.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cometmq.cli.installation.doctor import _store
from cometmq.proto import v2
from cometmq.store.format.errors import DiskFullError
from cometmq.store.format.index_file import IndexFile, IndexLayout
from cometmq.store.format.record import encode_properties
from cometmq.store.format.results import PutStatus
from cometmq.tests.harness.cluster import Cluster, wait_until
from cometmq.tests.harness.wire import Wire, normal_message, receive_request
from cometmq.tests.store.kit import Kit, message

MIB = 1 << 20
DISK_BYTES = 12 * MIB
OPTIONS = {
    "mapped_file_size_commit_log": MIB,
    "mapped_file_size_consume_queue": 4_000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
    "clean_file_forcibly_enable": False,
}
BODY = 20_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 12 MiB; needs the right to mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs"]
    done = subprocess.run(
        ["mount", *options, str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no right to mount a small file system: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, leave: int = 0) -> Path:
    """Take all room of the disk but `leave` bytes; deleting the file that is returned frees it."""
    ballast = folder / "ballast"
    with ballast.open("wb") as file:
        while True:
            space = os.statvfs(folder)
            free = space.f_bfree * space.f_frsize - leave
            if free <= 0:
                return ballast
            file.write(bytes(min(free, MIB)))
            file.flush()


def append_until_refused(kit: Kit, first: int, limit: int = 2000) -> tuple[int, PutStatus]:
    """Append numbered messages; returns the number of the first that was refused, and the
    status."""
    for number in range(first, limit):
        body = b"%06d" % number + bytes(BODY)
        (result,) = kit.store.writer.append_many([message(body, queue_id=number % 2)])
        if result.status is not PutStatus.PUT_OK:
            return number, result.status
        kit.store.writer.dispatch(kit.store.log_end)
    raise AssertionError("the disk never filled up")


def numbers(kit: Kit) -> list[int]:
    """What can be read from the queues."""
    kit.dispatch()
    return sorted(int(body[:6]) for queue in (0, 1) for body in kit.queue_bodies(queue_id=queue))


def go_on(kit: Kit, first: int) -> int:
    """Append messages until one is taken: what resumes may need a moment; returns the next
    number."""

    def taken() -> bool:
        kit.store.retention.watch_disk()  # as the broker does every few seconds
        body = b"%06d" % first + bytes(BODY)
        (result,) = kit.store.writer.append_many([message(body, queue_id=first % 2)])
        return result.status is PutStatus.PUT_OK

    wait_until("messages are taken again", taken, 30)
    return first + 1


def test_writes_stop_reads_go_on_and_writes_resume(small_disk: Path) -> None:
    kit = Kit(small_disk / "store", **OPTIONS)
    kit.open()
    ballast = fill(small_disk, leave=5 * MIB)
    count, status = append_until_refused(kit, 0)
    assert status in (PutStatus.CREATE_MAPPED_FILE_FAILED, PutStatus.SERVICE_NOT_AVAILABLE)
    assert count > 2 * MIB // BODY
    assert "disk space" in (kit.store.refusal + kit.store.writer.allocation_failure).lower()
    assert numbers(kit) == list(range(count)), "all that was taken can be read"
    ballast.unlink()
    count = go_on(kit, count)
    assert numbers(kit) == list(range(count))
    assert not kit.store.refusal
    kit.close()
    assert kit.open().clean
    assert numbers(kit) == list(range(count))
    kit.close()


def test_nothing_is_lost_when_the_process_dies_on_a_full_disk(small_disk: Path) -> None:
    kit = Kit(small_disk / "store", **OPTIONS)
    kit.open()
    fill(small_disk, leave=4 * MIB)
    count, _ = append_until_refused(kit, 0)
    fill(small_disk)
    kit.kill()
    kit.open()
    assert numbers(kit) == list(range(count))
    kit.close()


def test_an_index_is_readable_on_a_full_disk_without_sigbus(small_disk: Path) -> None:
    """A hole of a tmpfs file that is looked at through a map wants a page of the disk."""
    options = {**OPTIONS, "max_hash_slot_num": 20_000, "max_index_num": 4_000}
    kit = Kit(small_disk / "store", **options)
    kit.open()
    key = encode_properties({"KEYS": "one"})
    kit.write(b"first", properties=key)
    kit.dispatch()
    kit.store.queries.query("TopicTest", "one")  # makes the file; its slots stay in memory
    kit.kill()
    fill(small_disk)
    verify = [sys.executable, "-P", "-m", "cometmq.cli.main", "store", "verify", str(kit.root)]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    (path,) = (kit.root / "index").iterdir()
    with IndexFile(str(path), IndexLayout(20_000, 4_000)) as opened:
        assert {opened.slot(number) for number in range(20_000)} == {0}


@pytest.mark.parametrize("end", ["clean", "killed"])
def test_a_store_opens_on_a_full_disk(small_disk: Path, end: str) -> None:
    kit = Kit(small_disk / "store", **OPTIONS)
    kit.open()
    count = 0
    while count < 150:
        count = go_on(kit, count)
    kit.dispatch()
    kit.close() if end == "clean" else kit.kill()
    ballast = fill(small_disk)
    assert kit.open().clean == (end == "clean")
    assert numbers(kit) == list(range(count)), "it can be read"
    count, status = append_until_refused(kit, count)
    assert status in (PutStatus.CREATE_MAPPED_FILE_FAILED, PutStatus.SERVICE_NOT_AVAILABLE)
    ballast.unlink()
    count = go_on(kit, count)
    assert numbers(kit) == list(range(count))
    kit.reopen()
    assert numbers(kit) == list(range(count))
    kit.close()


# -- a broker ---------------------------------------------------------------------------------

ENVIRONMENT = {
    "COMETMQ_MAPPED_FILE_SIZE_COMMIT_LOG": str(MIB),
    "COMETMQ_MAPPED_FILE_SIZE_CONSUME_QUEUE": "4000",
    "COMETMQ_MAX_HASH_SLOT_NUM": "100",
    "COMETMQ_MAX_INDEX_NUM": "400",
    "COMETMQ_CLEAN_FILE_FORCIBLY_ENABLE": "false",
    "COMETMQ_CLEAN_RESOURCE_INTERVAL": "200",
}
TOPIC = "Small"


async def send(wire: Wire, number: int) -> tuple[int, str]:
    body = b"%06d" % number + bytes(BODY)
    answer = await wire.send([normal_message(TOPIC, f"{number:032X}", body)])
    return answer.status.code, answer.status.message


async def send_until_refused(wire: Wire, first: int) -> tuple[int, int, str]:
    """Returns the first number that was refused, with code and message."""
    for number in range(first, 2000):
        code, text = await send(wire, number)
        if code != v2.OK:
            return number, code, text
    raise AssertionError("the disk never filled up")


async def send_until_taken(wire: Wire, number: int) -> None:
    for _ in range(300):
        code, text = await send(wire, number)
        if code == v2.OK:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"still refused: {code} {text}")


async def receive_all(wire: Wire, group: str, count: int) -> set[int]:
    """Numbers that a consumer gets and acknowledges."""
    found: set[int] = set()
    for _ in range(200):
        _, messages = await wire.receive(receive_request(TOPIC, group, await_s=0.2))
        found |= {int(one.body[:6]) for one in messages}
        if messages:
            await wire.ack(TOPIC, group, messages)
        elif len(found) >= count:
            break
    return found


async def fill_and_free(endpoints: str, full: Callable[[], Callable[[], None]]) -> int:
    """Fill the disk under the broker, read everything, free it, go on; how many were taken."""
    async with Wire(endpoints) as wire:
        for number in range(20):
            assert (await send(wire, number))[0] == v2.OK
        free = full()
        count, code, text = await send_until_refused(wire, 20)
        assert code == v2.INTERNAL_SERVER_ERROR, text
        assert "room" in text or "full" in text
        assert await receive_all(wire, "during", count) == set(range(count)), "reads go on"
        free()
        await send_until_taken(wire, count)
        assert await receive_all(wire, "after", count + 1) == set(range(count + 1))
        return count + 1


async def read_on_a_full_disk(endpoints: str, count: int, free: Callable[[], None]) -> None:
    async with Wire(endpoints) as wire:
        assert await receive_all(wire, "again", count) == set(range(count))
        refused, code, _ = await send_until_refused(wire, count)
        assert code == v2.INTERNAL_SERVER_ERROR
        free()
        await send_until_taken(wire, refused)
        assert await receive_all(wire, "last", refused + 1) == set(range(refused + 1))


def test_a_broker_on_a_disk_that_fills_up(
    small_disk: Path, new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    environment = ENVIRONMENT | {"COMETMQ_STORE_PATH_ROOT_DIR": str(small_disk / "store")}
    cluster = new_cluster("--single", env=environment)
    cluster.create_topic(TOPIC, queues=2)
    count = asyncio.run(
        fill_and_free(cluster.address("master"), lambda: fill(small_disk, leave=4 * MIB).unlink)
    )
    cluster.stop()
    ballast = fill(small_disk)
    cluster.start()
    asyncio.run(read_on_a_full_disk(cluster.address("master"), count, ballast.unlink))


@pytest.mark.parametrize("big", [16, 32])
def test_a_log_whose_last_segment_does_not_fit_the_disk_is_refused(
    tmp_path: Path, small_disk: Path, big: int
) -> None:
    options = {**OPTIONS, "mapped_file_size_commit_log": big * MIB}
    kit = Kit(tmp_path / "elsewhere", **options)
    kit.open()
    kit.write(b"one")
    kit.close()
    copy = ["cp", "-a", "--sparse=always", str(tmp_path / "elsewhere"), str(small_disk / "store")]
    subprocess.run(copy, check=True)
    before = sorted(path.name for path in (small_disk / "store").rglob("*"))
    with pytest.raises(DiskFullError) as refusal:
        Kit(small_disk / "store", **options).open()
    sentence = str(refusal.value)
    assert f"The disk of {small_disk}/store/commitlog has" in sentence
    assert "more bytes" in sentence
    assert "on a larger disk" in sentence
    assert sorted(path.name for path in (small_disk / "store").rglob("*")) == before
    findings = [one.advice for one in _store(small_disk / "store", big * MIB)]
    assert findings == [sentence]
