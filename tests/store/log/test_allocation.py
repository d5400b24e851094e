"""Segments made ahead: how many, where, and what a failure leaves behind."""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from cometmq.store.format.disk import Disk
from cometmq.store.format.errors import DiskFullError, StoreError, UnsupportedLayoutError
from cometmq.store.format.results import PutStatus
from cometmq.store.log import allocation
from cometmq.store.log.allocation import SegmentAllocator, directory_for
from cometmq.store.log.segment import Segment
from cometmq.tests.store.kit import SEGMENT, Kit, message
from cometmq.tests.store.log.test_flush import until

SIZE = 4096


class Maker:
    """Makes small segments; can be made to fail or to wait."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[int] = []
        self.error: StoreError | None = None
        self.room = True
        self.go = threading.Event()
        self.go.set()
        self.allocator = SegmentAllocator(self.create, lambda _start: self.room)

    def create(self, start: int) -> Segment:
        assert self.go.wait(20)
        self.made.append(start)
        if self.error is not None:
            raise self.error
        return Segment.create(str(self.folder / f"{start:020d}"), start, SIZE, Disk())

    def names(self) -> list[int]:
        return sorted(int(path.name) for path in self.folder.iterdir())


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path)


def test_the_next_two_segments_are_prepared_in_order(maker: Maker) -> None:
    wanted = [SIZE, 2 * SIZE]
    until(lambda: maker.allocator.prepare(wanted))
    assert maker.made == wanted, "each once, the nearer one first"
    first = maker.allocator.take(SIZE)
    assert first.start == SIZE
    first.close()
    maker.allocator.take(2 * SIZE).close()
    assert maker.made == wanted, "both were ready"


def test_unused_segments_are_removed_or_left(maker: Maker) -> None:
    until(lambda: maker.allocator.prepare([SIZE, 2 * SIZE]))
    maker.allocator.discard()
    assert maker.names() == []
    until(lambda: maker.allocator.prepare([SIZE]))
    maker.allocator.abandon()
    assert maker.names() == [SIZE], "as a killed process leaves it"


def test_nothing_is_allocated_without_disk_space_or_behind_a_gap(maker: Maker) -> None:
    maker.room = False
    for _ in range(10):
        assert not maker.allocator.prepare([SIZE, 2 * SIZE])
    assert maker.made == []
    maker.room = True
    maker.error = DiskFullError("full")
    for _ in range(50):
        maker.allocator.prepare([SIZE, 2 * SIZE])
    until(lambda: maker.allocator._thread is None)
    assert set(maker.made) == {SIZE}, "the second never before the first"
    assert len(maker.made) <= 2, "after a failure some calls pass without a try"
    with pytest.raises(DiskFullError):
        maker.allocator.take(SIZE)
    maker.error = None
    assert maker.allocator.take(SIZE).start == SIZE, "take tries again at once"
    until(lambda: maker.allocator.prepare([2 * SIZE]))


def test_space_is_lacking_from_a_try_that_found_none_to_one_that_did(maker: Maker) -> None:
    """Under a quota the disk reports free space, and no segment can be had."""
    assert not maker.allocator.lacks_space
    maker.error = DiskFullError("quota")
    maker.allocator.prepare([SIZE])
    until(lambda: maker.allocator.lacks_space)
    with pytest.raises(DiskFullError):
        maker.allocator.take(SIZE)
    assert maker.allocator.lacks_space
    maker.error = None
    maker.allocator.take(SIZE).close()
    assert not maker.allocator.lacks_space


def test_take_waits_for_a_segment_that_is_being_created(
    maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker.go.clear()
    maker.allocator.prepare([SIZE])
    monkeypatch.setattr(allocation, "WAIT_SECONDS", 0.01)
    with pytest.raises(StoreError, match="still being allocated"):
        maker.allocator.take(SIZE)
    monkeypatch.setattr(allocation, "WAIT_SECONDS", 20)
    threading.Timer(0.01, maker.go.set).start()
    maker.allocator.take(SIZE).close()
    assert maker.made == [SIZE]


def test_a_small_idle_log_reserves_one_segment(kit: Kit) -> None:
    kit.write(b"x" * 1000)
    kit.store.log._allocator.discard()
    assert [path.name for path in kit.segment_paths()] == [f"{0:020d}"]
    kit.write(b"x" * 1000)
    kit.write(b"x" * 1000)
    until(lambda: len(kit.segment_paths()) == 2)
    kit.write(b"x" * 3000)  # the second segment: the next but one comes when it is half full
    until(lambda: (kit.write(b"y"), len(kit.segment_paths()) == 4)[1])
    kit.dispatch()
    kit.close()
    assert len(kit.segment_paths()) == 2, "a clean stop leaves what has records"


# -- several directories --------------------------------------------------------------------------


def test_directories_take_turns() -> None:
    paths = ["/b", "/a", "/c"]

    def chosen(*full: str) -> list[str]:
        return [directory_for(n * 10, 10, paths, lambda p: p in full) for n in range(6)]

    assert chosen() == ["/a", "/b", "/c", "/a", "/b", "/c"]
    assert chosen("/b") == ["/a", "/c"] * 3
    assert chosen("/a", "/b", "/c") == chosen(), "where all are full, all are used"


def spread(root: Path, *names: str, read_only: str = "") -> Kit:
    paths = ",".join(str(root / name) for name in names)
    options = {"read_only_commit_log_store_paths": str(root / read_only)} if read_only else {}
    return Kit(root / "store", store_path_commit_log=paths, **options)


def files(root: Path, *names: str) -> Counter[str]:
    return Counter({n: len(list((root / n).iterdir())) for n in names if (root / n).exists()})


def test_a_log_over_several_directories(tmp_path: Path) -> None:
    kit = spread(tmp_path, "one", "two", "three")
    kit.open()
    kit.write_many(60, 300)
    kit.close()
    assert files(tmp_path, "one", "two", "three") == {"one": 2, "two": 2, "three": 2}
    kit.open()
    assert len(kit.queue_bodies()) == 60
    bodies = kit.bodies()
    kit.close()
    # "one" is full for good, and a fourth directory takes turns with the others.
    before = files(tmp_path, "one")
    kit = spread(tmp_path, "one", "two", "three", "four", read_only="one")
    kit.open()
    assert kit.bodies() == bodies
    kit.write_many(60, 300)
    assert len(kit.queue_bodies()) == 120
    kit.close()
    assert files(tmp_path, "one") == before
    assert files(tmp_path, "four")["four"] > 0
    kit.open()
    kit.store.log.is_full = lambda path: path.endswith("four")
    count = files(tmp_path, "four")
    kit.write_many(60, 300)
    kit.close()
    assert files(tmp_path, "four") == count


def test_a_missing_directory_is_a_gap(tmp_path: Path) -> None:
    kit = spread(tmp_path, "one", "two")
    kit.open()
    kit.write_many(60, 300)
    kit.close()
    (tmp_path / "two").rename(tmp_path / "away")
    with pytest.raises(UnsupportedLayoutError, match="mounted"):
        kit.open_only()
    (tmp_path / "away").rename(tmp_path / "two")
    doubled = next((tmp_path / "one").iterdir())
    (tmp_path / "two" / doubled.name).write_bytes(doubled.read_bytes())
    with pytest.raises(UnsupportedLayoutError, match="are the same segment"):
        kit.open_only()


class MountedReadOnly(Disk):
    """A disk on which one directory cannot be written."""

    where = ""

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        if path.startswith(self.where) and flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return super().open(path, flags, mode)


def test_a_read_only_directory_may_really_be_one(tmp_path: Path) -> None:
    kit = spread(tmp_path, "one", "two")
    kit.open()
    kit.write_many(55, 300)  # six segments, the last one in "two"
    kit.close()
    bodies = [b"%06d" % n for n in range(55)]

    for name, sentence in (("one", ""), ("two", "it takes the next messages")):
        kit = spread(tmp_path, "one", "two", read_only=name)
        kit.make_disk = MountedReadOnly
        MountedReadOnly.where = str(tmp_path / name)
        kit.open_only()
        kit.dispatch()
        assert [found[:6] for found in kit.queue_bodies()] == bodies
        if sentence:
            with pytest.raises(StoreError, match=sentence):
                kit.store.start()
        else:
            kit.store.start()
            kit.write_many(30, 300)
            bodies += [b"%06d" % n for n in range(30)]
        kit.close()


def test_all_directories_read_only_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must take new segments"):
        spread(tmp_path, "one", read_only="one")


# -- dropping -------------------------------------------------------------------------------------


def test_a_dropped_segment_stays_readable_for_its_readers(kit: Kit) -> None:
    ends = [result.end for result in kit.write_many(60, 300)]
    log = kit.store.log
    with pytest.raises(StoreError, match="not flushed"):
        log.drop_first()
    kit.reopen()
    log = kit.store.log
    bodies = kit.bodies()
    first = log.segments[0]
    view = first.hold()
    head = bytes(view.data[:100])
    assert log.drop_first() is first
    assert kit.store.log_start == SEGMENT
    assert not os.path.exists(first.path)
    assert bytes(view.data[:100]) == head
    view.release()
    assert first.map.closed
    kept = len([end for end in ends if end > SEGMENT])
    assert kit.bodies() == bodies[-kept:]
    later = log.drop_first(unlink=False)
    assert os.path.exists(later.path)
    later.remove()
    while len(log.segments) > 1:
        log.drop_first()
    with pytest.raises(StoreError, match="last segment"):
        log.drop_first()
    end = kit.store.log_end
    assert kit.write().physical_offset >= end
    kit.dispatch()
    assert kit.reopen().clean
    assert kit.bodies()[-1] == b"body"


# -- permissions and full disks -------------------------------------------------------------------


def test_a_segment_that_may_not_be_written(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.open()
    kit.write_many(3)
    kit.close()

    def fault(name: str) -> None:
        if name == "open" and opened:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        opened.append(name)

    opened: list[str] = []
    kit.store = kit._new()
    kit.disk.fault = fault  # the lock file is opened first
    with pytest.raises(StoreError, match="cannot be opened for writing"):
        kit.store.open()
    kit.disk.fault = None
    kit.open()
    assert len(kit.bodies()) == 3
    kit.close()


def test_a_full_disk_is_detected_without_creating_a_file(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.write(b"x" * 1500)
    monkeypatch.setattr(kit.disk.__class__, "free_bytes", lambda _disk, _path: SEGMENT - 1)
    opened = kit.disk.counts["fallocate"]
    for _ in range(3):
        (result,) = kit.store.writer.append_many([message(b"x" * 3000)])
        assert result.status is PutStatus.CREATE_MAPPED_FILE_FAILED
    assert kit.disk.counts["fallocate"] == opened
    monkeypatch.undo()
    assert kit.write(b"x" * 3000).physical_offset == SEGMENT
