"""The timer log: its unit, roll-over, loss, damage."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.store.format.disk import Disk
from cometmq.store.format.errors import (
    DiskFullError,
    RecordFormatError,
    UnsupportedLayoutError,
)
from cometmq.store.timer.log import TimerLog
from cometmq.store.timer.unit import (
    DELETE,
    ROLL,
    UNIT_BYTES,
    TimerUnit,
    count_plausible,
    decode_unit,
    unit_type,
)
from cometmq.tests.store.timer_kit import (
    FILE,
    QuietDisk,
    filled,
    new_log,
    reloaded,
    unit,
)

LONG = st.integers(-(1 << 63), (1 << 63) - 1)
INT = st.integers(-(1 << 31), (1 << 31) - 1)


UNITS = st.builds(
    TimerUnit,
    st.integers(-1, 1 << 62),
    st.integers(1, 7),
    st.integers(0, 1 << 60),
    st.integers(0, (1 << 31) - 1),
    st.integers(0, 1 << 62),
    st.integers(1, (1 << 31) - 1),
    INT,
    st.just(0),
)


@given(UNITS)
def test_a_unit_comes_back(made: TimerUnit) -> None:
    assert decode_unit(b"xx" + made.encode(), 2, made.prev + 1) == made
    made = made.sealed()
    assert decode_unit(b"xx" + made.encode(), 2, made.prev + 1) == made
    rows = np.frombuffer(made.encode(), unit_type())
    assert count_plausible(rows, made.prev + 1) == 1


@given(UNITS, st.integers(0, UNIT_BYTES - 1), st.integers(1, 255))
def test_a_changed_byte_of_a_unit_with_a_checksum_is_found(
    made: TimerUnit, at: int, change: int
) -> None:
    data = bytearray(made.sealed().encode())
    data[at] ^= change
    with pytest.raises(RecordFormatError):
        decode_unit(bytes(data), 0, 1 << 62)
    assert count_plausible(np.frombuffer(data, unit_type()), 1 << 62) == 0
    assert made.rolled == bool(made.magic & ROLL)
    assert made.cancels == bool(made.magic & DELETE)


@given(st.binary(max_size=80), st.integers(0, 40), LONG)
def test_arbitrary_bytes_are_a_unit_or_refused(data: bytes, offset: int, position: int) -> None:
    try:
        found = decode_unit(data, offset, position)
    except RecordFormatError:
        return
    assert found.encode() == data[offset : offset + UNIT_BYTES]


@settings(deadline=None)
@given(data=st.binary(max_size=FILE), end=st.integers(0, 2 * FILE))
def test_arbitrary_files_do_not_crash_a_walk(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, end: int
) -> None:
    root = tmp_path_factory.mktemp("walk")
    log = filled(root, 14, QuietDisk())
    log.close()
    path = root / "timerlog" / f"{0:020d}"
    whole = path.read_bytes()
    path.write_bytes((data + whole[len(data) :])[:FILE])
    again = new_log(root, QuietDisk())
    again.load()
    walk = again.walk()
    assert all(each.encode() for _, each in walk)
    again.truncate(walk.end)
    assert again.end == min(walk.end, again.end)
    again.append(unit(20))
    again.close()
    os.unlink(path)


def test_files_roll_over_with_an_end_mark(tmp_path: Path) -> None:
    log = filled(tmp_path, 25)
    assert log.starts == [0, FILE, 2 * FILE]
    assert log.end == 2 * FILE + 5 * UNIT_BYTES
    first = (tmp_path / "timerlog" / f"{0:020d}").read_bytes()
    assert first[10 * UNIT_BYTES :] == (20).to_bytes(4, "big") + bytes(
        8
    ) + b"\xcb\xd4\x31\x94" + bytes(4)
    log.close()
    again = reloaded(tmp_path)
    assert again.end == log.end
    assert [each.physical_offset for _, each in again.walk()] == [100 * n for n in range(25)]
    assert [p for p, _ in again.walk(FILE)] == [p for p, _ in again.walk() if p >= FILE]
    assert again.append(unit(25)) == log.end
    again.close()


def test_an_end_mark_may_look_like_a_unit(tmp_path: Path) -> None:
    """With 52 bytes left its first field is 52, as Apache's small files have it."""
    log = TimerLog(str(tmp_path), 3 * UNIT_BYTES, Disk())
    positions = [log.append(unit(number)) for number in range(5)]
    assert positions == [0, 52, 156, 208, 312]
    assert [position for position, _ in log.walk()] == positions
    log.close()


def test_an_interrupted_roll_is_undone(tmp_path: Path) -> None:
    log = filled(tmp_path, 10)
    disk = Disk()
    again = new_log(tmp_path, disk)
    again.load()
    again.truncate(10 * UNIT_BYTES)

    def fault(name: str) -> None:
        if name == "pwrite":
            raise OSError(errno.EIO, "gone")

    disk.fault = fault
    with pytest.raises(OSError, match="gone"):
        again.append(unit(10))
    again.close()
    log.close()
    assert len(os.listdir(tmp_path / "timerlog")) == 2
    assert reloaded(tmp_path).end == 10 * UNIT_BYTES
    assert len(os.listdir(tmp_path / "timerlog")) == 1


def test_a_full_disk_raises_before_a_unit_is_written(tmp_path: Path) -> None:
    disk = Disk()
    log = new_log(tmp_path, disk)
    for number in range(10):
        log.append(unit(number))

    def fault(name: str) -> None:
        if name == "fallocate":
            raise OSError(errno.ENOSPC, "full")

    disk.fault = fault
    with pytest.raises(DiskFullError, match="timer log"):
        log.append(unit(10))
    assert log.end == 10 * UNIT_BYTES
    assert len(os.listdir(tmp_path / "timerlog")) == 1
    disk.fault = None
    assert log.append(unit(10)) == FILE
    log.close()


def test_the_space_of_a_file_is_reserved(tmp_path: Path) -> None:
    disk = Disk()
    log = new_log(tmp_path, disk)
    log.append(unit(0))
    assert disk.counts["fallocate"] == 1
    log.close()


def test_bytes_behind_the_end_are_cleared(tmp_path: Path) -> None:
    filled(tmp_path, 25).close()
    log = new_log(tmp_path)
    log.load()
    assert log.truncate(FILE + 2 * UNIT_BYTES) > 12 * UNIT_BYTES
    log.close()
    assert reloaded(tmp_path).end == FILE + 2 * UNIT_BYTES
    second = (tmp_path / "timerlog" / f"{FILE:020d}").read_bytes()
    assert second[2 * UNIT_BYTES :].strip(b"\0") == b""


def test_the_reserved_rest_of_a_file_is_not_read(tmp_path: Path) -> None:
    path, file_bytes = str(tmp_path / "timerlog"), 100 << 20
    log = TimerLog(path, file_bytes, Disk())
    log.append(unit(0))
    log.close()
    disk = Disk()
    again = TimerLog(path, file_bytes, disk)
    again.load()
    assert again.truncate(UNIT_BYTES) == 0
    assert disk.counts["pread"] <= 2
    again.close()


def test_a_chain_goes_back_across_files_and_stops_where_it_is_broken(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    last = -1
    for number in range(30):
        position = log.append(unit(number, last))
        last = position if number % 3 == 0 else last
    found = [each.physical_offset // 100 for _, each in log.chain(last)]
    assert found == list(range(27, -1, -3))
    broken = log.append(unit(31, last + 1))
    with pytest.raises(RecordFormatError, match="no timer unit"):
        list(log.chain(broken))
    for nowhere in (-1, log.end):
        with pytest.raises(RecordFormatError):
            log.read(nowhere)
    log.close()


def test_units_are_found_by_their_message(tmp_path: Path) -> None:
    log = filled(tmp_path, 34)
    for number in range(34):
        assert log.read(log.find(100 * number)).physical_offset == 100 * number
    assert log.find(50) == log.find(100 * 34) == -1
    assert new_log(tmp_path / "none").find(5) == -1
    log.close()


def test_retention_takes_whole_files_and_never_the_last(tmp_path: Path) -> None:
    log = filled(tmp_path, 25)
    assert log.trim(900) == 0
    assert log.trim(901) == 1
    assert log.starts == [FILE, 2 * FILE]
    assert log.trim(1 << 60) == 1
    assert log.start == 2 * FILE
    assert log.find(100) == -1
    assert log.append(unit(25)) == 2 * FILE + 5 * UNIT_BYTES
    log.close()
    assert reloaded(tmp_path).start == 2 * FILE


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, 2).close()
    log = TimerLog(str(tmp_path / "timerlog"), FILE + 52, Disk())
    with pytest.raises(UnsupportedLayoutError, match="mappedFileSizeTimerLog"):
        log.load()
