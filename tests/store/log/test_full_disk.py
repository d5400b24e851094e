"""A file system that is really full: refused before anything is half written, and it goes on
later."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.store.format.errors import DiskFullError
from cometmq.store.format.results import PutStatus
from cometmq.tests.store.kit import Kit, message

SEGMENT = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 5 MiB; needs the right to mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no right to mount a small file system: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(kit: Kit) -> list[int]:
    """Append until the disk is full; returns the ends of what was accepted."""
    ends: list[int] = []
    while True:
        (result,) = kit.store.writer.append_many([message(b"x" * 50_000)])
        if result.status is not PutStatus.PUT_OK:
            assert result.status is PutStatus.CREATE_MAPPED_FILE_FAILED
            return ends
        ends.append(result.end)


def test_a_full_disk_refuses_new_segments_until_space_is_free(small_disk: Path) -> None:
    kit = Kit(small_disk / "store", mapped_file_size_commit_log=SEGMENT)
    kit.open()
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(SEGMENT + SEGMENT // 2))
    ends = fill(kit)
    assert len(ends) > 40
    assert "No disk space for the next segment" in kit.store.writer.allocation_failure
    assert len(kit.segment_paths()) == len({end // SEGMENT for end in ends})
    assert all(path.stat().st_size == SEGMENT for path in kit.segment_paths())
    assert kit.store.writable
    kit.dispatch()
    assert len(kit.queue_bodies()) == len(ends)
    ballast.unlink()
    more = kit.write(b"x" * 50_000)
    assert more.physical_offset % SEGMENT == 0
    kit.dispatch()
    assert kit.reopen().clean
    assert len(kit.queue_bodies()) == len(ends) + 1
    kit.close()


def test_a_follower_on_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    leader = Kit(tmp_path / "leader", mapped_file_size_commit_log=SEGMENT)
    leader.open()
    for _ in range(100):
        leader.write(b"x" * 50_000)
    follower = Kit(small_disk / "store", mapped_file_size_commit_log=SEGMENT)
    follower.open()
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(SEGMENT + SEGMENT // 2))
    with pytest.raises(DiskFullError):
        while True:
            begin = follower.store.received_end
            follower.store.append_raw(begin, leader.store.read_log(begin, 100_000))
    end = follower.store.log_end
    assert end == follower.store.received_end > SEGMENT
    assert follower.log_bytes()[:end] == leader.log_bytes()[:end]
    os.unlink(ballast)
    follower.store.append_raw(end, leader.store.read_log(end, 100_000))
    assert follower.store.log_end > end
    follower.close()
    leader.close()


def test_a_store_without_space_for_its_first_segment_does_not_start(small_disk: Path) -> None:
    kit = Kit(small_disk / "store", mapped_file_size_commit_log=16 * SEGMENT)
    with pytest.raises(
        DiskFullError, match=rf"^The disk of {small_disk}\S* has \d+ of 5242880"
    ) as full:
        kit.open()
    assert f"needs {16 * SEGMENT} bytes (mappedFileSizeCommitLog" in str(full.value)
    assert "larger disk" in str(full.value)
