"""Segments: allocated in full or not at all, views that outlive the close, zeroing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cometmq.store.format.disk import Disk
from cometmq.store.format.errors import DiskFullError, StoreError
from cometmq.store.log.segment import Segment

SIZE = 1 << 20


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    return Segment.create(str(tmp_path / f"{0:020d}"), 0, SIZE, Disk())


def test_a_new_segment_has_all_its_space_and_nothing_in_it(segment: Segment) -> None:
    status = os.stat(segment.path)
    assert status.st_size == SIZE
    assert status.st_blocks * 512 >= SIZE
    assert segment.used_end(0) == 0
    assert (segment.written, segment.flushed) == (0, 0)


def test_written_bytes_are_visible_in_the_map(segment: Segment) -> None:
    segment.write(100, b"abc")
    assert segment.map[100:103] == b"abc"
    assert segment.written == 103
    segment.flush(103)
    assert segment.flushed == 103


def test_a_view_outlives_the_close(segment: Segment) -> None:
    segment.write(0, b"still here")
    view = segment.hold()
    other = segment.hold()
    segment.remove()
    assert bytes(view.data[:10]) == b"still here"
    view.release()
    view.release()
    assert bytes(other.data[:10]) == b"still here"
    other.release()
    assert segment.map.closed
    segment.close()


@pytest.mark.parametrize("call", ["open", "fallocate", "fsync"])
@pytest.mark.parametrize(
    ("code", "error"), [(errno.ENOSPC, DiskFullError), (errno.EIO, StoreError)]
)
def test_a_failed_creation_leaves_nothing(
    tmp_path: Path, call: str, code: int, error: type[StoreError]
) -> None:
    disk = Disk()

    def fault(name: str) -> None:
        if name == call:
            raise OSError(code, os.strerror(code))

    disk.fault = fault
    with pytest.raises(error):
        Segment.create(str(tmp_path / "0"), 0, SIZE, disk)
    assert list(tmp_path.iterdir()) == []
    disk.fault = None
    Segment.create(str(tmp_path / "0"), 0, SIZE, disk).close()


def test_zeroing_finds_the_last_byte(segment: Segment) -> None:
    segment.write(700_000, b"\x01\x00\x02\x00")
    segment.write(5, b"keep")
    assert segment.used_end(9) == 700_003
    assert segment.used_end(700_003) == 700_003
    segment.zero(9, segment.used_end(9))
    assert segment.used_end(9) == 9
    assert segment.map[5:9] == b"keep"
    assert Path(segment.path).read_bytes().strip(b"\0") == b"keep"


def test_a_short_write_is_an_error(tmp_path: Path) -> None:
    class ShortDisk(Disk):
        def write_log(self, descriptor: int, data: bytes | memoryview, position: int) -> int:
            return super().write_log(descriptor, data[:1], position)

    segment = Segment.create(str(tmp_path / "0"), 0, SIZE, ShortDisk())
    with pytest.raises(OSError, match="1 of 3 bytes"):
        segment.write(0, b"abc")
    assert segment.written == 0
