"""The timers of a store as a whole: puts, flushes, chains, recovery."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.disk import Disk
from cometmq.store.format.errors import (
    OffsetOutOfRangeError,
)
from cometmq.store.format.record import Message, encode, encode_properties, pack_host
from cometmq.store.timer.checkpoint import TimerCheckpoint
from cometmq.store.timer.recovery import oldest_read_ms, revise, revise_all
from cometmq.store.timer.rules import DELETE_KEY
from cometmq.store.timer.store import DUE, KNOWN, TAKEN, TimerStore, has_timers
from cometmq.store.timer.unit import (
    UNIT_BYTES,
    TimerUnit,
)
from cometmq.store.timer.wheel import TimerWheel
from cometmq.tests.store.timer_kit import (
    FILE,
    NOW_MS,
    NoMessages,
    QuietDisk,
    new_log,
    timers,
)


def test_an_idle_store_creates_no_files(tmp_path: Path) -> None:
    made = timers(tmp_path)
    report = made.recover(NOW_MS)
    assert (report.queue_offset, report.end, report.newest) == (3, 0, -1)
    assert report.read_ms == oldest_read_ms(NOW_MS, 1000) == NOW_MS - 604_800_000 + 60_000
    assert not has_timers(tmp_path)
    assert not list(tmp_path.iterdir())
    made.close()


def test_put_returns_what_it_did(tmp_path: Path) -> None:
    made = timers(tmp_path)
    made.recover(NOW_MS)
    assert made.put(NOW_MS + 5000, NOW_MS, 100, 90, real_topic="T") == 0
    assert made.put(NOW_MS + 5000, NOW_MS, 100, 90, real_topic="T") == KNOWN
    assert made.put(NOW_MS - 1000, NOW_MS, 200, 90) == DUE
    assert made.put(NOW_MS + 5000, NOW_MS, 300, 90, cancels=True) == UNIT_BYTES
    assert made.put(NOW_MS + 200_000_000, NOW_MS, 400, 90) == 2 * UNIT_BYTES
    assert made.put(NOW_MS + 6000, NOW_MS, 150, 90) == 3 * UNIT_BYTES, "due once, not any more"
    waiting = made.units_at(NOW_MS + 5000)
    assert [each.physical_offset for each in waiting.units] == [100]
    assert [each.physical_offset for each in waiting.cancellations] == [300]
    assert made.number_at(NOW_MS + 5000) == 0
    (rolled,) = made.units_at(NOW_MS + 86_400_000).units
    assert rolled.rolled
    assert has_timers(tmp_path)
    made.close()


def test_messages_behind_a_damaged_unit_may_wait(tmp_path: Path) -> None:
    made = timers(tmp_path)
    made.recover(NOW_MS)
    positions = [made.put(NOW_MS + 9_000, NOW_MS, offset, 90) for offset in (100, 200, 300)]
    made.log._write(positions[1], b"\xff" * UNIT_BYTES)
    made.log._write(positions[0], TimerUnit(-1, 1, NOW_MS, 1_000, 100, 90, 0).sealed().encode())
    assert (made.oldest(NOW_MS + 5_000), made.damaged) == (0, True)
    made.close()


def test_the_oldest_waiting_message_is_known(tmp_path: Path) -> None:
    made = timers(tmp_path)
    made.recover(NOW_MS)
    assert made.oldest(NOW_MS) is None
    waits_s = {100: 9, 200: 2, 300: 5, 400: 1, 500: 7}
    for offset, seconds in waits_s.items():
        made.put(NOW_MS + 1000 * seconds, NOW_MS, offset, 90)
        assert made.oldest(NOW_MS) == 100
    found = [made.oldest(NOW_MS + 1000 * seconds) for seconds in range(11)]
    assert found == [100] * 10 + [None]
    # It was due, and is enqueued again after later ones: the clock was set back.
    made.put(NOW_MS + 12_000, NOW_MS + 10_000, 600, 90)
    assert made.oldest(NOW_MS + 10_000) == 600
    made.put(NOW_MS + 11_000, NOW_MS + 10_000, 450, 90)
    assert made.oldest(NOW_MS + 10_000) == 450
    made.close()
    again = timers(tmp_path)
    again.recover(NOW_MS + 3_000)
    assert again.oldest(NOW_MS + 6_000) == 100
    assert again.oldest(NOW_MS + 10_000) == 450
    again.close()


def test_the_flush_order_is_log_wheel_checkpoint_metrics(tmp_path: Path) -> None:
    disk = Disk()
    made = timers(tmp_path, disk)
    made.recover(NOW_MS)
    made.put(NOW_MS + 5000, NOW_MS, 100, 90)
    made.metrics.add("T", 1, NOW_MS)
    paths: list[str] = []

    class Watching(Disk):
        """Notes which file each fdatasync is for."""

        def fdatasync(self, descriptor: int) -> None:
            paths.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
            super().fdatasync(descriptor)

        fsync = fdatasync

    for owner in (made.log, made.wheel, made._check_file, made.metrics):
        owner._disk = Watching()
    flush = made.begin_flush(NOW_MS, 1, NOW_MS)
    made.put(NOW_MS + 5000, NOW_MS, 200, 90)
    flush.run()
    assert [*dict.fromkeys(paths)] == [
        f"{0:020d}",
        "timerwheel",
        "timercheck",
        "timermetrics.tmp",
    ]
    assert made.check.last_timer_log_flush_pos == UNIT_BYTES
    assert made.wheel.changed == 1
    made.close()


def test_what_cancellations_name(tmp_path: Path) -> None:
    host = pack_host("127.0.0.1", 1)

    class Messages(NoMessages):
        def record_at(self, physical_offset: int) -> bytes:
            properties = {100: {DELETE_KEY: "one"}, 200: {DELETE_KEY: "T+two"}, 300: {}}
            if physical_offset not in properties:
                raise OffsetOutOfRangeError(physical_offset, 0, 0)
            encoded = encode_properties(properties[physical_offset])
            made = Message("T", 0, b"0", encoded, born_host=host, store_host=host)
            return encode(made, 0, physical_offset, 0)

    config = StoreConfig(str(tmp_path), mapped_file_size_timer_log=FILE)
    made = TimerStore(tmp_path, config, Disk(), Messages())
    made.recover(NOW_MS)
    for offset in (100, 200, 300, 400):
        made.put(NOW_MS + 5000, NOW_MS, offset, 90, cancels=True)
    keys = made.cancelled_keys(made.units_at(NOW_MS + 5000).cancellations)
    assert keys == {"one", "T+two"}
    made.close()


def test_a_broken_chain_is_read_by_a_walk(tmp_path: Path) -> None:
    made = timers(tmp_path)
    made.recover(NOW_MS)
    for number in range(12):
        made.put(NOW_MS + 5000 + number % 2 * 1000, NOW_MS, 100 * number, 90)
    slot = made.wheel.slot(NOW_MS + 5000)
    made.wheel.put(NOW_MS + 5000, slot.first, slot.last + UNIT_BYTES, slot.num)
    found = [each.physical_offset for each in made.units_at(NOW_MS + 5000).units]
    assert found == [0, 200, 400, 600, 800, 1000]
    made.close()


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from([1, 3, 5])), max_size=40),
    st.integers(0, 40),
)
def test_many_units_revise_slots_as_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[int, int]], known: int
) -> None:
    """Whatever part of them the wheel knows already; 40 times share 16 slots."""
    root = tmp_path_factory.mktemp("revise")
    log = new_log(root, QuietDisk())
    one, many = (TimerWheel(str(root / name), 1000, Disk(), slots=16) for name in "ab")
    for number, (second, magic) in enumerate(puts):
        made = TimerUnit(-1, magic, NOW_MS, 1000 * second, 100 * number, 90, 7)
        position = log.append(made)
        for wheel in (one, many):
            if number < known:
                revise(wheel, position, made)
    added = sum(revise(one, position, made) for position, made in log.walk())
    assert sum(revise_all(many, at, rows) for at, rows in log.walk().batches()) == added
    assert added == max(len(puts) - known, 0)
    assert dict(one.occupied()) == dict(many.occupied())
    log.close()


def test_a_slot_that_is_not_done_keeps_its_place(tmp_path: Path) -> None:
    made = timers(tmp_path)
    made.recover(NOW_MS)
    first_ms = NOW_MS + 5000
    made.put(first_ms, NOW_MS, 100, 90)
    turn_ms = made.wheel.slots * 1000
    later_ms = first_ms + turn_ms
    done = made.put(later_ms, NOW_MS + turn_ms, 200, 90, done_ms=first_ms)
    assert done == TAKEN
    assert made.number_at(first_ms) == 1
    assert made.put(later_ms, NOW_MS + turn_ms, 200, 90, done_ms=first_ms + 1000) >= 0
    assert made.number_at(later_ms) == 1
    made.close()


def test_recovery_of_large_offsets_and_a_lost_wheel(tmp_path: Path) -> None:
    made = timers(tmp_path)
    made.recover(NOW_MS)
    for number in range(12):
        made.put(NOW_MS + 5000, NOW_MS, (1 << 40) + number, 90)
    made.flush(NOW_MS, 40, NOW_MS)
    made.close()
    os.unlink(tmp_path / "timerwheel")
    again = timers(tmp_path)
    report = again.recover(NOW_MS)
    assert (report.units_walked, report.slots_revised, report.queue_offset) == (12, 12, 40)
    assert report.newest == (1 << 40) + 11
    assert again.wheel.slot(NOW_MS + 5000).num == 12
    assert again.put(NOW_MS + 5000, NOW_MS, (1 << 40) + 11, 90) == KNOWN
    again.close()


@settings(deadline=None, max_examples=60)
@given(
    wheel=st.binary(max_size=200),
    log=st.binary(max_size=200),
    check=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=7, max_size=7),
    at=st.integers(0, 60),
)
@example(wheel=b"", log=b"", check=[(1 << 63) - 1] * 7, at=0)
@example(wheel=b"", log=b"", check=[-(1 << 63)] * 7, at=0)
def test_damaged_files_are_recovered_or_refused(
    tmp_path_factory: pytest.TempPathFactory, wheel: bytes, log: bytes, check: list[int], at: int
) -> None:
    """Whatever stands in them: no crash, no endless walk, and the next put works."""
    root = tmp_path_factory.mktemp("damaged")

    def small(root: Path) -> TimerStore:
        disk = QuietDisk()
        made = timers(root, disk)
        made.wheel = TimerWheel(str(root / "timerwheel"), 1000, disk, slots=64)
        return made

    made = small(root)
    made.recover(NOW_MS)
    for number in range(14):
        made.put(NOW_MS + 5000 + number % 3 * 1000, NOW_MS, 100 * number, 90)
    made.flush(NOW_MS, 14, NOW_MS)
    made.close()
    index = made.wheel.index(NOW_MS + 5000)
    with open(root / "timerwheel", "r+b") as file:
        file.seek(index * 32 + at % 32)
        file.write(wheel[: 64 * 32 - file.tell()])
    with open(root / "timerlog" / f"{0:020d}", "r+b") as file:
        file.seek(5 * at)
        file.write(log)
    made_check = TimerCheckpoint(*check)  # type: ignore[arg-type]
    (root / "config" / "timercheck").write_bytes(made_check.encode())
    again = small(root)
    again.recover(NOW_MS)
    for _, slot in again.wheel.occupied():
        again.units_at(slot.time * 1000)
    assert again.put(NOW_MS + 9000, NOW_MS, 1 << 40, 90) >= 0
    assert [unit.physical_offset for unit in again.units_at(NOW_MS + 9000).units][-1] == 1 << 40
    again.flush(NOW_MS, 1, NOW_MS)
    again.close()


@settings(max_examples=150, deadline=None)
@given(begin=st.integers(0, 31), data=st.binary(min_size=1, max_size=32), more=st.booleans())
def test_a_slot_that_changes_on_the_disk_loses_no_unit(
    tmp_path_factory: pytest.TempPathFactory, begin: int, data: bytes, more: bool
) -> None:
    """Every change of a slot of the running store is found before the slot is read or extended."""
    root = tmp_path_factory.mktemp("changed")
    made = timers(root, QuietDisk())
    made.recover(NOW_MS)
    slot_ms = NOW_MS + 5000
    for number in range(3):
        made.put(slot_ms, NOW_MS, 100 * number, 90)
    made.put(slot_ms + 1000, NOW_MS, 300, 90)
    made.flush(NOW_MS, 4, NOW_MS)
    with open(root / "timerwheel", "r+b", buffering=0) as file:
        file.seek(made.wheel.index(slot_ms) * 32 + begin)
        before = file.read(len(data[: 32 - begin]))
        file.seek(-len(before), 1)
        file.write(data[: len(before)])
    if more:
        made.put(slot_ms, NOW_MS, 400, 90)
    assert made.wheel.next_used(NOW_MS, NOW_MS + 60_000) == slot_ms
    expected = [0, 100, 200] + [400] * more
    assert [unit.physical_offset for unit in made.units_at(slot_ms).units] == expected
    assert made.damaged == (before != data[: len(before)])
    made.flush(NOW_MS, 4, NOW_MS)  # the slot is written again
    assert not made.wheel.lost(slot_ms)
    assert [unit.physical_offset for unit in made.units_at(slot_ms).units] == expected
    made.close()
