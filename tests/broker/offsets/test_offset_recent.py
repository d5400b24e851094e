"""Recent offsets: only complete frames, younger than the table and covered by the log, count."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.broker.offsets import (
    recent as offset_recent,
)
from cometmq.broker.offsets.consumer_offsets import ConsumerOffsets
from cometmq.broker.offsets.recent import RecentOffsets
from cometmq.proto import v1, v2
from cometmq.tests.broker.broker_process import BrokerProcess
from cometmq.tests.broker.journal.test_pop_restart import nothing, numbers, some
from cometmq.tests.broker.live import create_topic, until
from cometmq.tests.harness.wire import normal_message


@dataclass(slots=True)
class SafeLog:
    """A log that is on disk at once."""

    log_end: int = 100
    writable: bool = True
    paused: bool = False
    asked: int = 0
    broken: bool = False

    @property
    def flushed_offset(self) -> int:
        """The log end, after the first request for a flush."""
        return self.log_end if self.asked and not self.broken else 0

    def flush_soon(self) -> None:
        """Whether a flush was requested."""
        self.asked += 1


def made(directory: Path, log: SafeLog, wall_ms: int = 1_000) -> ConsumerOffsets:
    """Return a loaded table with both files in the directory."""
    (directory / "config").mkdir(exist_ok=True)
    offsets = ConsumerOffsets(
        directory / "config" / "consumerOffset.json",
        lambda: wall_ms,
        50,
        log=log,
        recent=RecentOffsets(directory / "ha" / "offsets-recent"),
    )
    offsets.load()
    offsets.load_recent()
    return offsets


def copy_of(path: Path) -> Path:
    return path.with_name(path.name + ".copy")


def payload(offset: int, log_end: int = 0) -> bytes:
    """Return a snapshot with one position."""
    offsets = v1.Offsets(log_end=log_end)
    offsets.entries.add(topic="t", group="g", offset=offset)
    return offsets.SerializeToString()


def found(file: RecentOffsets, since_ms: int = 0, log_end: int = 1 << 40) -> list[int]:
    """Return the offsets of the frames that count."""
    frames = file.read(Path("/nowhere"), since_ms, log_end)
    return [entry.offset for frame in frames for entry in frame.entries]


def test_frames_that_are_old_or_ahead_of_the_log_do_not_count(tmp_path: Path) -> None:
    file = RecentOffsets(tmp_path / "ha" / "recent")
    file.begin(payload(1), 10)
    file.append(payload(2, log_end=50), 20)
    file.append(payload(3, log_end=60), 30)
    assert found(file) == [1, 2, 3]
    assert found(file, since_ms=20) == [2, 3]
    assert found(file, log_end=55) == [1, 2]


async def test_changes_count_after_the_clock_was_set_back(tmp_path: Path) -> None:
    hour = 3_600_000
    table = tmp_path / "config" / "consumerOffset.json"
    before = made(tmp_path, SafeLog(), wall_ms=9 * hour)
    before.start()
    before.commit("t", "g", 0, 10)
    await before.close()
    ahead_ns = table.stat().st_mtime_ns + 8 * hour * 1_000_000
    os.utime(table, ns=(ahead_ns, ahead_ns))
    after = made(tmp_path, SafeLog(), wall_ms=hour)
    after.start()
    after.commit("t", "g", 0, 4)
    after._note()
    found = made(tmp_path, SafeLog(), wall_ms=hour).position("t", "g", 0)
    assert found is not None and found.offset == 4
    await after.close()


@given(cut=st.integers(1, 200), flip=st.integers(0, 7))
def test_an_incomplete_or_damaged_end_is_ignored(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int
) -> None:
    path = tmp_path_factory.mktemp("recent") / "recent"
    file = RecentOffsets(path)
    file.begin(payload(1), 10)
    whole = path.stat().st_size
    file.append(payload(2), 20)
    data = bytearray(path.read_bytes())
    at = min(whole + cut % (len(data) - whole), len(data) - 1)
    data[at] ^= 1 << flip
    for each in (path, copy_of(path)):
        each.write_bytes(data[: len(data) if cut % 2 else at])
    assert found(file) == [1]


@settings(deadline=None)
@given(
    of_copy=st.booleans(),
    at=st.integers(0, 1 << 20),
    flip=st.integers(0, 8),
    younger=st.booleans(),
)
def test_a_file_that_was_cut_or_damaged_loses_no_offset(
    tmp_path_factory: pytest.TempPathFactory, of_copy: bool, at: int, flip: int, younger: bool
) -> None:
    """Any cut, also to nothing and between two frames, and any flipped bit of one of the files."""
    path = tmp_path_factory.mktemp("recent") / "recent"
    file = RecentOffsets(path)
    file.begin(payload(1), 10)
    file.append(payload(2), 20)
    file.append(payload(3), 30)
    hurt = copy_of(path) if of_copy else path
    data = bytearray(hurt.read_bytes())
    at %= len(data)
    if flip < 8:
        data[at] ^= 1 << flip
    hurt.write_bytes(data if flip < 8 else data[:at])
    assert found(file) == [1, 2, 3]
    table = path.with_name("table")
    table.touch()
    os.utime(table, ns=(0, path.stat().st_mtime_ns + (1 if younger else -1)))
    assert len(list(file.read(table, 0, 1 << 40))) == (0 if younger else 3)


def test_a_cut_file_is_reported_and_a_kill_between_two_writes_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "recent"
    file = RecentOffsets(path)
    file.begin(payload(1), 10)
    before = path.read_bytes()
    file.append(payload(2), 20)
    copy_of(path).write_bytes(before)  # killed before the copy got the frame
    assert found(file) == [1, 2]
    file.cover()
    file.append(payload(3), 30)
    whole = path.read_bytes()
    file.covered()
    path.write_bytes(whole)  # killed when only the copy was replaced
    assert found(file) == [1, 2, 3]
    assert not caplog.messages
    path.write_bytes(b"")
    assert found(file) == [3]
    (line,) = caplog.messages
    assert line.startswith(f"offsets_recent.restored path={path} position=0: ")


def test_frames_covered_by_a_table_are_removed(tmp_path: Path) -> None:
    file = RecentOffsets(tmp_path / "recent")
    file.append(payload(1), 10)
    file.cover()
    file.append(payload(2), 20)
    file.covered()
    assert found(file) == [2]
    file.covered()
    assert found(file) == [2]


def test_the_size_of_the_file_is_bounded(tmp_path: Path) -> None:
    file = RecentOffsets(tmp_path / "recent")
    big = payload(1) * (offset_recent.SIZE_MAX // len(payload(1)) // 3)
    for _ in range(5):
        file.append(big, 10)
    assert (tmp_path / "recent").stat().st_size <= offset_recent.SIZE_MAX


def test_a_table_of_another_writer_overrides_the_frames(tmp_path: Path) -> None:
    file = RecentOffsets(tmp_path / "recent")
    file.append(payload(1), 10)
    table = tmp_path / "table"
    table.touch()
    os.utime(table, ns=(0, (tmp_path / "recent").stat().st_mtime_ns + 1))
    assert list(file.read(table, 0, 1 << 40)) == []


async def test_progress_rewinds_and_deletions_survive_a_kill(tmp_path: Path) -> None:
    log = SafeLog()
    offsets = made(tmp_path, log)
    offsets.commit("t", "g", 0, 5)
    offsets.commit("t", "g", 1, 50)
    offsets.commit("gone", "g", 0, 5)
    offsets.start()
    offsets.commit("t", "g", 0, 7)
    table = tmp_path / "config" / "consumerOffset.json"
    await until(table.exists)
    recent = tmp_path / "ha" / "offsets-recent"
    await until(lambda: recent.stat().st_size == 0)
    assert log.asked
    offsets._saver.changed = lambda: None  # type: ignore[method-assign]  # no table any more
    offsets.commit("t", "g", 0, 9)
    offsets.commit("t", "g", 1, 20)
    offsets.forget_topic("gone")
    await until(lambda: recent.stat().st_size > 0)
    # The process ends here: nothing is closed.
    again = made(tmp_path, log)
    assert sorted(again) == [("t", "g", 0, 9), ("t", "g", 1, 20)]
    shorter = made(tmp_path, SafeLog(log_end=99))
    assert sorted(shorter) == [("gone", "g", 0, 5), ("t", "g", 0, 7), ("t", "g", 1, 50)]


async def test_a_table_is_written_after_the_log_is_on_disk(tmp_path: Path) -> None:
    log = SafeLog(writable=False, broken=True)
    offsets = made(tmp_path, log)
    offsets.start()
    offsets.commit("t", "g", 0, 7)
    await offsets.close()
    assert not (tmp_path / "config" / "consumerOffset.json").exists()


async def test_recent_acknowledgements_survive_a_kill(tmp_path: Path) -> None:
    slow = {"flush_consumer_offset_interval": 3_600_000}
    async with BrokerProcess(tmp_path, **slow) as broker, broker.client() as wire:
        await create_topic(wire, "t", queues=1)
        await wire.send([normal_message("t", f"id{n}", b"%d" % n) for n in range(4)])
        got = await some(wire, 4)
        recent = tmp_path / "ha" / "offsets-recent"
        await until(lambda: recent.stat().st_size)
        before = recent.stat().st_size
        assert (await wire.ack("t", "g", got)).status.code == v2.OK
        await until(lambda: recent.stat().st_size > before)
        await wire.send([normal_message("t", f"id{n}", b"%d" % n) for n in (4, 5)])
        await broker.kill()
    async with BrokerProcess(tmp_path, **slow) as broker, broker.client() as wire:
        again = await some(wire, 2)
        assert numbers(again) == [4, 5]
        await wire.ack("t", "g", again)
        await nothing(wire)


async def test_a_removed_position_stays_removed_after_a_kill(tmp_path: Path) -> None:
    log = SafeLog()
    offsets = made(tmp_path, log)
    offsets.start()
    offsets.commit("lite", "g", 0, 7)
    offsets._note()
    offsets.forget("lite", "g")
    offsets._note()
    assert made(tmp_path, log).get("lite", "g", 0) is None
    await offsets.close()
