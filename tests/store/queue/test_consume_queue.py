"""Consume queues on disk: units as in the format (section 15, E6), sparse files, fillers."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest

from cometmq.store.format.disk import Disk
from cometmq.store.format.properties import java_hash
from cometmq.store.format.queue_files import QueueFiles
from cometmq.store.format.results import Arrival, PutStatus
from cometmq.store.queue import consume_queue, loading
from cometmq.store.queue.consume_queue import ConsumeQueue
from cometmq.store.queue.loading import load_queues
from cometmq.store.queue.table import WAITING_UNITS_MAX, QueueTable
from cometmq.tests.store.kit import LIMIT, QUEUE_FILE, Kit, message

FILLER_BYTES = bytes.fromhex("0000000000000000 7fffffff 0000000000000000")


def arrival(number: int, physical_offset: int, size: int = 100, code: int = 0) -> Arrival:
    return Arrival(PutStatus.PUT_OK, physical_offset, size, number, 5, "T", 0, code)


def table(root: Path) -> QueueTable:
    return QueueTable(str(root), QUEUE_FILE, 4, Disk())


def test_units_are_as_in_the_format(tmp_path: Path) -> None:
    queues = table(tmp_path)
    queues.write(
        [
            arrival(0, 0, 0x8B, java_hash("TagA")),
            arrival(1, 0x8B, 0x7F, java_hash("polygenelubricants")),
            arrival(2, 0x186, 0xE0, 0),
            arrival(3, 0x266, 0xA5, 0x18BCFE58F8B),
        ]
    )
    queues.write_out()
    path = tmp_path / "T" / "0" / f"{0:020d}"
    data = path.read_bytes()
    assert data[:80] == bytes.fromhex(
        "0000000000000000 0000008b 000000000027a807"
        "000000000000008b 0000007f ffffffff80000000"
        "0000000000000186 000000e0 0000000000000000"
        "0000000000000266 000000a5 0000018bcfe58f8b"
    )
    assert len(data) == QUEUE_FILE
    assert data[80:] == bytes(QUEUE_FILE - 80)


def test_a_queue_file_is_sparse(kit: Kit, tmp_path: Path) -> None:
    large = Kit(tmp_path / "large", mapped_file_size_consume_queue=6_000_000)
    large.open()
    large.write_many(3)
    large.close()
    (path,) = (tmp_path / "large" / "consumequeue").rglob("0*0")
    assert path.stat().st_size == 6_000_000
    assert path.stat().st_blocks * 512 <= 8192


def test_units_are_read_from_memory_and_from_files(tmp_path: Path) -> None:
    queues = table(tmp_path)
    queue = queues.queue("T", 0)
    for number in range(70):
        queues.write([arrival(number, number * 100)])
        if number % 17 == 0:
            queues.write_out()
        for at in range(number + 1):
            assert queue.unit(at) == (at * 100, 100, 0)
    units = b""
    while len(units) < 70 * 20:
        units += queue.read(len(units) // 20, 1000)
    assert units == b"".join(struct.pack(">qiq", at * 100, 100, 0) for at in range(70))
    queues.write_out()
    assert [path.name for path in sorted((tmp_path / "T" / "0").iterdir())] == [
        f"{start:020d}" for start in (0, 400, 800, 1200)
    ]
    assert (
        b"".join(p.read_bytes() for p in sorted((tmp_path / "T" / "0").iterdir()))[:1400] == units
    )


def test_waiting_units_are_bounded(tmp_path: Path) -> None:
    queues = table(tmp_path)
    disk = queues.files.disk
    count = WAITING_UNITS_MAX
    queues.write([arrival(number, number * 100) for number in range(count)])
    assert disk.counts["pwrite"] == 0
    queues.write([arrival(count, count * 100)])
    assert disk.counts["pwrite"] > 0
    queues.write([arrival(count + 1, 0)])
    assert len(queues.queue("T", 0).tail) == 20, "what was written out is let go"


def test_a_queue_that_begins_above_zero_has_fillers_before(tmp_path: Path) -> None:
    queues = table(tmp_path)
    queues.write([arrival(45, 5000)])
    queues.write_out()
    (path,) = (tmp_path / "T" / "0").iterdir()
    assert path.name == f"{800:020d}", "unit 45 is at byte 900, in the third file"
    assert path.read_bytes()[:100] == FILLER_BYTES * 5
    queue = queues.queue("T", 0)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (45, 46, 46)


def test_a_gap_is_filled_so_that_units_keep_their_numbers(tmp_path: Path) -> None:
    queues = table(tmp_path)
    queues.write([arrival(0, 0), arrival(1, 100), arrival(30, 200), arrival(31, 300)])
    queue = queues.queue("T", 0)
    assert queue.unit(1) == (100, 100, 0)
    assert queue.unit(2) == (0, 0x7FFFFFFF, 0)
    assert (queue.unit(30)[0], queue.unit(31)[0], queue.max_offset) == (200, 300, 32)


def test_units_of_a_queue_are_not_written_twice(tmp_path: Path) -> None:
    queues = table(tmp_path)
    queues.write([arrival(0, 0), arrival(1, 100)])
    queues.write([arrival(1, 999), arrival(0, 999), arrival(2, 200)])
    queue = queues.queue("T", 0)
    assert [queue.unit(n)[0] for n in range(3)] == [0, 100, 200]
    assert queue.max_offset == 3


def test_truncation_clears_the_bytes(tmp_path: Path) -> None:
    for keep in (0, 1, 19, 20, 21, 45):
        queues = table(tmp_path / str(keep))
        queues.write([arrival(number, number * 100) for number in range(45)])
        queues.write_out()
        queues.truncate(keep * 100, 0)
        queue = queues.queue("T", 0)
        assert (queue.max_offset, queue.next_offset) == (keep, keep)
        files = sorted((tmp_path / str(keep) / "T" / "0").iterdir())
        data = b"".join(path.read_bytes() for path in files)
        assert len(data) == -(-keep // 20) * QUEUE_FILE
        assert data[keep * 20 :].strip(b"\0") == b""
        queues.write([arrival(keep, keep * 100, code=7)])
        assert queue.unit(keep) == (keep * 100, 100, 7)


def test_descriptors_are_bounded(tmp_path: Path) -> None:
    disk = Disk()
    files = QueueFiles(disk, 400, 3)
    paths = [str(tmp_path / str(i) / "0") for i in range(10)]
    for path in paths:
        os.close(files.open_for_writing(path))
    for path in paths + paths[-3:]:
        assert files.read(path, 10, 0) == bytes(10)
    created = 2 * len(paths)  # opens; the test closed them itself
    assert disk.counts["open"] - created - disk.counts["close"] == 3
    opened = disk.counts["open"]
    files.read(paths[-1], 10, 0)
    assert disk.counts["open"] == opened
    files.close()
    assert disk.counts["open"] - created == disk.counts["close"]


def test_many_queues_need_few_descriptors(tmp_path: Path) -> None:
    kit = Kit(tmp_path, open_queue_files_max=8)
    kit.open()
    before = len(os.listdir("/proc/self/fd"))
    for index in range(200):
        kit.write(queue_id=index)
    kit.dispatch()
    for index in range(200):
        assert kit.queue_bodies(queue_id=index) == [b"body"]
    assert len(os.listdir("/proc/self/fd")) - before < 40
    kit.reopen()
    assert all(kit.queue_bodies(queue_id=index) == [b"body"] for index in range(200))
    kit.close()


@pytest.fixture(params=["small files", "large files"])
def looked_at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are looked at as a whole, large ones are searched."""
    if request.param == "large files":
        monkeypatch.setattr(consume_queue, "WHOLE_FILE_BYTES", 0)
        monkeypatch.setattr(loading, "WHOLE_FILE_BYTES", 0)


@pytest.mark.usefixtures("looked_at")
def test_load_finds_the_end_in_every_file_shape(tmp_path: Path) -> None:
    for count in (1, 19, 20, 21, 40, 59):
        queues = table(tmp_path / str(count))
        queues.write([arrival(number, number * 100) for number in range(count)])
        queues.write_out()
        again = table(tmp_path / str(count))
        assert load_queues(again, lambda *_: True, 0) == []
        queue = again.queue("T", 0)
        assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, count, count)
        again.queue("T", 0).correct_min_offset(1050)
        assert queue.min_offset == min(11, count)


@pytest.mark.usefixtures("looked_at")
@pytest.mark.parametrize("keep", [0, 10, 20, 33, 40])
def test_a_loaded_queue_is_cut_and_what_lies_behind_its_end_is_cleared(
    tmp_path: Path, keep: int
) -> None:
    queues = table(tmp_path)
    queues.write([arrival(number, number * 100) for number in range(33)])
    queues.write_out()
    again = table(tmp_path)
    load_queues(again, lambda *_: True, 0)
    again.truncate(keep * 100, 0)
    queue = again.queue("T", 0)
    end = min(keep, 33)
    assert (queue.max_offset, queue.known_end()) == (end, end * 100 if end else -1)
    files = sorted((tmp_path / "T" / "0").iterdir())
    data = b"".join(path.read_bytes() for path in files)
    assert len(data) == -(-end // 20) * QUEUE_FILE
    assert data[end * 20 :].strip(b"\0") == b""


@pytest.mark.usefixtures("looked_at")
def test_units_that_the_log_does_not_confirm_are_dropped(tmp_path: Path) -> None:
    queues = table(tmp_path)
    queues.write([arrival(number, number * 100) for number in range(33)])
    queues.write_out()
    again = table(tmp_path)
    load_queues(again, lambda _q, number, _o, _s: number < 25, 0)
    queue = again.queue("T", 0)
    assert isinstance(queue, ConsumeQueue)
    assert queue.unconfirmed
    assert queue.max_offset == 25


def test_bytes_behind_the_last_unit_are_cleared(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.open()
    kit.write_many(7)
    kit.close()
    (path,) = (tmp_path / "consumequeue" / "TopicTest" / "0").iterdir()
    data = path.read_bytes()
    path.write_bytes(data[:200] + struct.pack(">qiq", 5, -1, 0) + data[220:])
    assert kit.open().clean
    kit.dispatch()
    assert len(kit.queue_bodies()) == 7
    kit.close()
    assert path.read_bytes() == data


def test_folders_that_are_not_queues_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "Topic" / "not-a-number").mkdir(parents=True)
    (tmp_path / "Topic" / "file").write_text("x")
    queues = table(tmp_path)
    assert load_queues(queues, lambda *_: True, 0) == []
    assert queues.queues == {}


@pytest.mark.parametrize("call", ["pwrite", "truncate"])
def test_a_failed_queue_write_makes_the_store_read_only_and_loses_nothing(
    tmp_path: Path, call: str
) -> None:
    kit = Kit(tmp_path)
    kit.open()
    kit.write_many(20)

    def fault(name: str) -> None:
        if name == call:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    kit.disk.fault = fault
    results = kit.store.writer.append_many([message(f"{i}".encode()) for i in range(30)])
    assert {r.status for r in results} == {PutStatus.PUT_OK}
    kit.store.writer.dispatch(LIMIT)
    # Files are made and written later, by the flush thread or at the end.
    kit.store._threads._queue_flusher.stop()  # type: ignore[union-attr]
    kit.store._finish()
    assert not kit.store.writable
    assert "queue" in kit.store.refusal or "Stopping" in kit.store.refusal
    assert not kit.store.writer.dispatch(LIMIT)
    assert len(kit.queue_bodies()) >= 20
    kit.close()
    report = kit.open()
    assert not report.clean
    kit.dispatch()
    assert len(kit.queue_bodies()) == 50
    kit.close()
