"""Timer wheel, timer checkpoint and timer metrics as files."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cometmq.store.format.disk import Disk
from cometmq.store.format.errors import (
    UnsupportedLayoutError,
)
from cometmq.store.format.json_file import unseal
from cometmq.store.timer.checkpoint import TimerCheckpoint, TimerCheckpointFile
from cometmq.store.timer.metrics import TimerMetrics
from cometmq.store.timer.wheel import FILE_BYTES, NONE, Slot, TimerWheel
from cometmq.tests.store.timer_kit import (
    NOW_MS,
    QuietDisk,
)

LONG = st.integers(-(1 << 63), (1 << 63) - 1)
INT = st.integers(-(1 << 31), (1 << 31) - 1)


@given(LONG, LONG, LONG, INT, INT)
def test_a_slot_comes_back(time: int, first: int, last: int, num: int, magic: int) -> None:
    slot = Slot(time, first, last, num, magic)
    assert Slot.decode(slot.encode()) == slot
    assert len(slot.encode()) == 32


PAIRS = st.lists(st.tuples(st.integers(1, (1 << 63) - 1), LONG), max_size=10)


@given(st.lists(LONG, min_size=7, max_size=7), PAIRS)
def test_a_checkpoint_comes_back(fields: list[int], done: list[tuple[int, int]]) -> None:
    check = TimerCheckpoint(*fields)  # type: ignore[arg-type]
    check.done = tuple(done)
    found = TimerCheckpoint.decode(check.encode())
    assert found.done == tuple(done[-8:])
    assert found == replace(check, done=found.done)


def test_a_slot_belongs_to_one_time(tmp_path: Path) -> None:
    wheel = TimerWheel(str(tmp_path / "timerwheel"), 1000, Disk())
    assert wheel.slot(NOW_MS) == NONE
    wheel.put(NOW_MS, 0, 52, 2)
    assert wheel.slot(NOW_MS + 999) == Slot(NOW_MS // 1000, 0, 52, 2)
    later = NOW_MS + 14 * 86_400_000
    assert wheel.index(later) == wheel.index(NOW_MS)
    assert wheel.slot(later) == NONE
    wheel.put(later, 104, 104, 1)
    assert wheel.slot(NOW_MS) == NONE
    assert wheel.slot(later).last == 104


def test_the_wheel_writes_what_changed_and_stays_sparse(tmp_path: Path) -> None:
    path = tmp_path / "timerwheel"
    disk = Disk()
    wheel = TimerWheel(str(path), 1000, disk)
    assert not wheel.load()
    wheel.write_out(wheel.take_changes())
    assert not path.exists(), "nothing to write makes no file"
    for second in (0, 1, 2, 5, 100_000):
        wheel.put(NOW_MS + 1000 * second, second, second, 1)
    assert wheel.changed == 5
    changes = wheel.take_changes()
    wheel.put(NOW_MS + 2000, 7, 7, 2)
    assert wheel.slot(NOW_MS + 1000).first == 1
    assert wheel.slot(NOW_MS + 2000).first == 7
    before = disk.counts["pwrite"]
    wheel.write_out(changes)
    assert disk.counts["pwrite"] - before == 3
    assert wheel.changed == 1
    assert wheel.slot(NOW_MS).num == 1
    wheel.close()
    assert path.stat().st_size == FILE_BYTES
    assert path.stat().st_blocks * 512 < FILE_BYTES // 10
    again = TimerWheel(str(path), 1000, Disk())
    assert again.load()
    assert [slot.first for _, slot in again.occupied()] == [0, 1, 2, 5, 100_000]
    again.clear(again.index(NOW_MS))
    assert [slot.first for _, slot in again.occupied()] == [1, 2, 5, 100_000]
    assert again.slot(NOW_MS) == NONE
    again.close()


def test_a_wheel_of_another_size_is_refused_and_an_empty_one_ignored(tmp_path: Path) -> None:
    path = tmp_path / "timerwheel"
    path.write_bytes(b"")
    assert not TimerWheel(str(path), 1000, Disk()).load()
    path.write_bytes(bytes(32))
    with pytest.raises(UnsupportedLayoutError, match="timer wheel"):
        TimerWheel(str(path), 1000, Disk()).load()


def test_the_checkpoint_file(tmp_path: Path) -> None:
    path = tmp_path / "config" / "timercheck"
    file = TimerCheckpointFile(str(path), Disk())
    assert file.load() is None
    check = TimerCheckpoint(1, 2, 3, 4, 5, 6, 7)
    file.save(check)
    file.close()
    assert path.read_bytes() == check.encode().ljust(4096, b"\0")
    assert TimerCheckpointFile(str(path), Disk()).load() == check
    path.write_bytes(b"")
    assert TimerCheckpointFile(str(path), Disk()).load() is None
    path.write_bytes(bytes(20))
    with pytest.raises(UnsupportedLayoutError, match="checkpoint"):
        TimerCheckpointFile(str(path), Disk()).load()


def test_metrics_are_counted_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "config" / "timermetrics"
    metrics = TimerMetrics(path, Disk())
    metrics.load()
    assert metrics.take_text() == ""
    metrics.add("Tö", 1, 5)
    metrics.add("Tö", 1, 6)
    metrics.add("Tö", -1, 7)
    metrics.write(metrics.take_text())
    assert unseal(path.read_text()) == (
        '{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":7},'
        '"timingCount":{"T\\u00f6":{"count":1,"timeStamp":7}}}'
    )
    again = TimerMetrics(path, Disk())
    again.load()
    assert again.count("Tö") == 1
    assert again.count("other") == 0
    path.write_text('{"timingCount":{"T":{"count":"x"}}}')
    broken = TimerMetrics(path, Disk())
    broken.load()
    assert broken.count("T") == 0


@settings(deadline=None)
@given(
    times=st.lists(st.integers(1, 60), max_size=12),  # 0 means that a slot was never used
    flushed=st.integers(0, 12),
    begin=st.integers(0, 60),
    length=st.integers(0, 70),
)
@example(times=[47, 7], flushed=1, begin=18, length=30)
@example(times=[58, 3], flushed=2, begin=1, length=60)
def test_due_messages_are_counted_in_a_range(
    times: list[int], flushed: int, begin: int, length: int
) -> None:
    """On a wheel of 40 slots, so that later times take the slots of earlier ones."""
    with TemporaryDirectory() as folder:
        wheel = TimerWheel(f"{folder}/timerwheel", 1000, QuietDisk(), slots=40)
        known: dict[int, int] = {}
        for number, time in enumerate(times):
            if number == flushed:
                wheel.write_out(wheel.take_changes())
            count = wheel.slot(time * 1000).num + 1
            wheel.put(time * 1000, 1, 1 + number, count)
            known = {each: num for each, num in known.items() if (each - time) % 40}
            known[time] = count
        end = begin + length
        inside = sorted(time for time in known if begin <= time < end)
        assert wheel.next_used(begin * 1000, end * 1000) == 1000 * min([*inside, end])
        assert list(wheel.used_times(begin * 1000, end * 1000)) == [1000 * time for time in inside]
        end = begin + min(length, 40)  # of one turn
        bounds = [begin, begin + (end - begin) // 2, end]
        assert wheel.count(begin * 1000, [1000 * bound for bound in bounds]) == [
            sum(num for time, num in known.items() if begin <= time < bound) for bound in bounds
        ]
        wheel.close()


def test_a_search_over_years_reads_the_used_slots_of_two_turns(tmp_path: Path) -> None:
    class Counting(Disk):
        reads = 0

        def pread(self, descriptor: int, size: int, position: int) -> bytes:
            self.reads += 1
            return super().pread(descriptor, size, position)

    disk = Counting()
    wheel = TimerWheel(str(tmp_path / "timerwheel"), 1000, disk)
    year_ms = 365 * 86_400_000
    later_ms = NOW_MS + 3 * year_ms
    wheel.put(later_ms, 1, 1, 1)
    wheel.write_out(wheel.take_changes())
    disk.reads = 0
    assert wheel.next_used(NOW_MS, NOW_MS + 4 * year_ms) == later_ms
    assert disk.reads == 2
    wheel.close()
