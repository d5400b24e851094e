"""The fake disk itself: what a crash may leave, and what it may not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cometmq.tests.store.fake_disk import PAGE_BYTES, FakeDisk, Fate, Page

OLD, NEW = b"o" * PAGE_BYTES, b"n" * PAGE_BYTES
HALF = PAGE_BYTES // 2


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "old").write_bytes(OLD * 3)
    return folder


def crashed(disk: FakeDisk, *pages: Page, seed: int = 1, names: bool = True) -> dict[str, bytes]:
    target = disk.root.parent / f"left-{len(list(disk.root.parent.iterdir()))}"
    disk.crash(target, Fate(seed, pages or tuple(Page), names))
    return {
        str(path.relative_to(target)): path.read_bytes()
        for path in sorted(target.rglob("*"))
        if path.is_file()
    }


def write(disk: FakeDisk, name: str, data: bytes, position: int = 0, flags: int = 0) -> int:
    descriptor = disk.open(str(disk.root / name), os.O_RDWR | flags)
    disk.pwrite(descriptor, data, position)
    return descriptor


@pytest.mark.parametrize(
    ("page", "left"),
    [
        (Page.KEPT, NEW),
        (Page.LOST, OLD),
        (Page.TORN_TAIL, NEW[:HALF] + OLD[HALF:]),
        (Page.TORN_HEAD, OLD[:HALF] + NEW[HALF:]),
    ],
)
def test_an_unflushed_page_is_kept_lost_or_torn(root: Path, page: Page, left: bytes) -> None:
    disk = FakeDisk(root)
    os.close(write(disk, "inner/old", NEW, PAGE_BYTES))
    assert disk.unflushed_pages() == 1
    assert crashed(disk, page) == {"inner/old": OLD + left + OLD}


def test_flushed_pages_are_kept(root: Path) -> None:
    disk = FakeDisk(root)
    descriptor = write(disk, "inner/old", NEW)
    disk.fdatasync(descriptor)
    os.close(descriptor)
    assert disk.unflushed_pages() == 0
    assert crashed(disk, Page.LOST) == {"inner/old": NEW + OLD * 2}


def test_pages_are_kept_or_lost_independently(root: Path) -> None:
    disk = FakeDisk(root)
    os.close(write(disk, "inner/old", NEW * 3))
    seen = {crashed(disk, Page.KEPT, Page.LOST, seed=seed)["inner/old"] for seed in range(60)}
    assert len(seen) == 8
    assert crashed(disk, seed=5) == crashed(disk, seed=5), "the same seed, the same crash"


def test_a_new_name_needs_a_sync_of_its_directory(root: Path) -> None:
    disk = FakeDisk(root)
    descriptor = write(disk, "inner/new", NEW, flags=os.O_CREAT)
    disk.fsync(descriptor)
    os.close(descriptor)
    there = {"inner/new" in crashed(disk, Page.LOST, seed=seed) for seed in range(20)}
    assert there == {True, False}
    assert "inner/new" in crashed(disk, Page.LOST, names=False)
    disk.sync_directory(str(root / "inner"))
    assert all(crashed(disk, Page.LOST, seed=s)["inner/new"] == NEW for s in range(20))


def test_an_unsynced_delete_or_rename_may_be_undone(root: Path) -> None:
    disk = FakeDisk(root)
    os.close(write(disk, "inner/fresh", NEW, flags=os.O_CREAT))
    disk.replace(str(root / "inner/fresh"), str(root / "inner/old"))
    old = {crashed(disk, Page.KEPT, seed=seed).get("inner/old") for seed in range(40)}
    assert old == {OLD * 3, NEW}
    disk.sync_directory(str(root / "inner"))
    disk.unlink(str(root / "inner/old"))
    assert {len(crashed(disk, seed=seed)) for seed in range(20)} == {0, 1}


def test_an_unflushed_size_may_be_lost(root: Path) -> None:
    disk = FakeDisk(root)
    descriptor = disk.open(str(root / "inner/sparse"), os.O_RDWR | os.O_CREAT)
    disk.sync_directory(str(root / "inner"))
    disk.truncate(descriptor, 3 * PAGE_BYTES)
    disk.pwrite(descriptor, NEW, PAGE_BYTES)
    os.close(descriptor)
    sizes = {len(crashed(disk, Page.LOST, seed=seed)["inner/sparse"]) for seed in range(20)}
    assert sizes == {0, 3 * PAGE_BYTES}
    assert crashed(disk, Page.KEPT)["inner/sparse"] == bytes(PAGE_BYTES) + NEW + bytes(PAGE_BYTES)


def test_a_flush_of_everything(root: Path) -> None:
    disk = FakeDisk(root)
    os.close(write(disk, "inner/new", NEW, flags=os.O_CREAT))
    disk.sync_file_system(str(root))
    assert crashed(disk, Page.LOST) == {"inner/new": NEW, "inner/old": OLD * 3}
