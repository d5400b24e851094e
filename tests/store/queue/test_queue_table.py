"""All consume queues together: bulk writing, trimming in steps, flushing and loading very many."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.store.format.disk import Disk
from cometmq.store.format.errors import UnsupportedLayoutError
from cometmq.store.format.queue_ext import address_of
from cometmq.store.format.results import Arrival, PutStatus
from cometmq.store.queue import (
    table as queue_table,
)
from cometmq.store.queue import (
    unit_files,
)
from cometmq.store.queue.consume_queue import ConsumeQueue
from cometmq.store.queue.loading import load_queues
from cometmq.store.queue.numbering import QueueGapError
from cometmq.store.queue.table import QueueTable
from cometmq.tests.store.kit import QUEUE_FILE, Kit

UNITS = QUEUE_FILE // 20


def arrival(number: int, place: int, queue_id: int = 0) -> Arrival:
    return Arrival(PutStatus.PUT_OK, place, 100, number, 5 + number, "T", queue_id, number - 7)


def table(root: Path, write_ext: bool = False) -> QueueTable:
    directory = str(root / "consumequeue")
    return QueueTable(directory, QUEUE_FILE, 4, Disk(), ext_file_bytes=100, write_ext=write_ext)


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def write_columns(queues: QueueTable, arrivals: list[Arrival]) -> None:
    queues.write_columns(
        "T",
        0,
        arrivals[0].queue_offset,
        offsets=np.array([a.physical_offset for a in arrivals], ">i8"),
        sizes=np.array([a.size for a in arrivals], ">i4"),
        codes=np.array([a.tags_code for a in arrivals], "i8"),
        store_timestamps=np.array([a.store_timestamp_ms for a in arrivals], "i8"),
    )


@settings(max_examples=25, deadline=None)
@given(
    begin=st.integers(0, 50),
    parts=st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 45)), min_size=1, max_size=6),
    ext=st.booleans(),
)
def test_columns_give_the_files_that_arrivals_give(
    tmp_path_factory: pytest.TempPathFactory,
    begin: int,
    parts: list[tuple[int, int]],
    ext: bool,
) -> None:
    """Runs that follow, overlap or leave a gap; some of them by the other way."""
    root = tmp_path_factory.mktemp("queues")
    one, other = table(root / "one", ext), table(root / "other", ext)
    first = begin
    for index, (shift, count) in enumerate(parts):
        first = max(first + shift, 0)
        arrivals = [arrival(n, n * 100) for n in range(first, first + count)]
        one.write(arrivals)
        if index % 3 == 2:
            other.write(arrivals)
        else:
            write_columns(other, arrivals)
        first += count
    a, b = one.queue("T", 0), other.queue("T", 0)
    for queues in (one, other):
        queues.flush(0)
    assert files(root / "one") == files(root / "other")
    state = [(q.min_offset, q.max_offset, q.next_offset, q.written_end) for q in (a, b)]
    assert state[0] == state[1]
    for number in range(a.min_offset, a.max_offset):
        assert a.unit(number) == b.unit(number)
    if ext:
        assert b.unit(b.min_offset)[2] == address_of(0)
    for queues in (one, other):
        queues.close()


def test_records_without_a_place_in_their_queue_are_logged_once_per_queue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queues = table(tmp_path)
    queues.write([arrival(0, 0), arrival(1, 100), arrival(0, 200, queue_id=1)])
    queues.write([arrival(0, 300), arrival(1, 400), arrival(0, 500, queue_id=1)])
    assert caplog.text.count("queue.offset_passed") == 2


def test_columns_into_a_gap_are_refused_while_strict(tmp_path: Path) -> None:
    queues = table(tmp_path)
    queues.strict = True
    write_columns(queues, [arrival(0, 0), arrival(1, 100)])
    with pytest.raises(QueueGapError):
        write_columns(queues, [arrival(3, 300)])


def test_trimming_deletes_leading_files_and_never_the_last(tmp_path: Path) -> None:
    queues = table(tmp_path)
    queues.write([arrival(n, n * 100) for n in range(4 * UNITS)])
    queue = queues.queue("T", 0)
    assert queues.trim(UNITS * 100) == 0, "units that wait have no file yet"
    queues.write_out()
    queues.write([])
    assert queues.trim(2 * UNITS * 100 - 100) == 1
    assert (queue.min_offset, queue.max_offset) == (2 * UNITS - 1, 4 * UNITS)
    assert queues.trim(2 * UNITS * 100) == 1
    assert queue.min_offset == 2 * UNITS
    assert queues.trim(1 << 40) == 1
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (4 * UNITS,) * 3
    assert len(queue.starts) == 1
    assert queues.trim(1 << 41) == 0
    queues.flush(0)  # files that are gone are no trouble
    queues.write([arrival(4 * UNITS, 1 << 42)])
    queues.write_out()
    again = table(tmp_path)
    load_queues(again, lambda *_: True, 1 << 41)
    queue = again.queue("T", 0)
    assert (queue.min_offset, queue.max_offset) == (4 * UNITS, 4 * UNITS + 1)


def test_files_left_untrimmed_by_a_crash_are_trimmed_after_the_next_start(tmp_path: Path) -> None:
    queues = table(tmp_path)
    queues.write([arrival(n, n * 100) for n in range(4 * UNITS)])
    queues.write_out()
    again = table(tmp_path)
    load_queues(again, lambda *_: True, 3 * UNITS * 100)
    assert again.queue("T", 0).min_offset == 3 * UNITS
    assert again.trimmed_to == 0
    assert again.trim(3 * UNITS * 100) == 3
    assert again.trimmed_to == 3 * UNITS * 100


def test_trimming_is_done_in_bounded_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = table(tmp_path)
    count = 50
    for queue_id in range(count):
        queues.write([arrival(n, n * 100, queue_id) for n in range(3 * UNITS)])
    queues.write_out()
    queues.write([])  # lets go of the tails
    for name, limit in (("TRIM_FILES_MAX", 7), ("TRIM_READS_MAX", 11), ("TRIM_LOOKS_MAX", 13)):
        monkeypatch.setattr(queue_table, name, limit)
    start = 2 * UNITS * 100
    removed = calls = 0
    while queues.trimmed_to < start:
        now = queues.trim(start)
        assert now <= 7
        removed += now
        calls += 1
    assert removed == 2 * count
    assert calls >= 2 * count // 7
    assert {queue.min_offset for queue in queues.queues.values()} == {2 * UNITS}
    reads = queues.files.disk.counts["pread"]
    while queues.trimmed_to < start + 1:
        queues.trim(start + 1)
    assert queues.files.disk.counts["pread"] > reads
    reads = queues.files.disk.counts["pread"]
    assert queues.trim(start + 1) == 0
    assert queues.files.disk.counts["pread"] == reads, "nothing to do costs nothing"


def test_many_dirty_files_are_flushed_with_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit_files, "FLUSH_FILES_MAX", 42)
    queues = table(tmp_path)
    for count, syncs, flushes in ((20, 0, 20), (43, 1, 20)):
        for queue_id in range(count):
            number = queues.queue("T", queue_id).max_offset
            queues.write([arrival(number, number * 100, queue_id)])
        queues.flush(0)
        assert queues.files.disk.counts["syncfs"] == syncs
        assert queues.files.disk.counts["fdatasync"] == flushes
    assert queues.files.take_dirty(0) == []


def test_a_queue_object_is_small() -> None:
    """80,000 of them have to fit beside everything else."""
    queues = table(Path("/nowhere"))
    queue = queues.queue("Topic", 7)
    assert not hasattr(queue, "__dict__")
    assert sys.getsizeof(queue) + sys.getsizeof(queue.tail) < 350


def test_a_clean_start_opens_every_queue_file_once(tmp_path: Path) -> None:
    kit = Kit(tmp_path, open_queue_files_max=4)
    kit.open()
    count = 60
    for queue_id in range(count):
        kit.write(queue_id=queue_id)
        kit.write(queue_id=queue_id)
    kit.dispatch()
    kit.close()
    opened: list[str] = []

    class Watched(Disk):
        def open(self, path: str, flags: int, mode: int = 0o644) -> int:
            opened.append(path)
            return super().open(path, flags, mode)

    kit.make_disk = Watched
    report = kit.open_only()
    assert (report.clean, report.queues) == (True, count)
    of_queues = [path for path in opened if "consumequeue" in path]
    assert len(of_queues) == len(set(of_queues)) == count
    assert all(kit.store.max_offset("TopicTest", queue_id) == 2 for queue_id in range(count))
    queue = kit.store.queue_table.queue("TopicTest", 0)
    assert isinstance(queue, ConsumeQueue)
    assert queue.known_end() == 2 * len(kit.store.get("TopicTest", 0, 0, 1).records[0].data)
    kit.close()


@pytest.mark.parametrize("damage", ["name", "size"])
def test_queue_files_lost_in_a_power_loss_are_rebuilt(tmp_path: Path, damage: str) -> None:
    """A file in the middle without its name or its size: refused after a clean stop (no crash
    explains it), made from the log after an unclean one."""
    kit = Kit(tmp_path)
    kit.open()
    results = kit.write_many(4 * UNITS, 10)
    kit.close()
    whole = files(tmp_path / "consumequeue")
    path = tmp_path / "consumequeue" / "TopicTest" / "0" / f"{QUEUE_FILE:020d}"
    if damage == "name":
        path.unlink()
    else:
        path.write_bytes(b"")
    with pytest.raises(UnsupportedLayoutError):
        kit.open()
    (tmp_path / "abort").write_text("1")
    report = kit.open()
    assert not report.clean
    assert report.log_end == results[-1].end
    kit.dispatch()
    assert len(kit.queue_bodies()) == 4 * UNITS
    kit.close()
    assert files(tmp_path / "consumequeue") == whole


def test_queue_files_of_another_size_are_refused_after_a_crash_too(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.open()
    kit.write_many(3 * UNITS)
    kit.close()
    (tmp_path / "abort").write_text("1")
    for size in (QUEUE_FILE // 2, QUEUE_FILE * 2):
        kit.options["mapped_file_size_consume_queue"] = size
        before = kit.all_files()
        with pytest.raises(UnsupportedLayoutError, match="mappedFileSizeConsumeQueue"):
            kit.open()
        assert kit.all_files() == before
