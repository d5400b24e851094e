"""Stores with segments of 4 KiB on a disk that says how full it is, and rounds of retention."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cometmq.store.format.disk import Disk, Space
from cometmq.store.message_store import MessageStore
from cometmq.store.retention.rules import Verdict
from cometmq.tests.store.kit import Kit, filled

HOUR_MS = 3_600_000
#: Later than every file that a test writes, and in the hour of `deleteWhen`.
LATER_MS = 1 << 44
HOUR = 4


class SmallDisk(Disk):
    """A disk that says how full it is."""

    percent = 10
    #: Returns the use instead of `percent`.
    percent_of: Callable[[], int] | None = None

    def space(self, path: str) -> Space:
        percent = self.percent if self.percent_of is None else self.percent_of()
        return Space(100, 100 - percent, 100 - percent)

    def free_bytes(self, path: str) -> int:
        return 1 << 40


class SmallDiskKit(Kit):
    make_disk = SmallDisk

    def fill_to(self, percent: int) -> None:
        assert isinstance(self.disk, SmallDisk)
        self.disk.percent = percent
        self.store.retention.watch_disk()


def small(root: Path, **options: Any) -> SmallDiskKit:
    options = {"delete_commit_log_files_interval": 0, "flush_disk_type": "SYNC_FLUSH", **options}
    kit = SmallDiskKit(root, **options)
    kit.open()
    return kit


def until(condition: Callable[[], object]) -> None:
    pause = threading.Event()
    for _ in range(2000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never happened")


def written(kit: Kit, count: int = 60) -> None:
    """Several segments, all flushed and dispatched."""
    filled(kit, count)
    until(lambda: kit.store.flushed_offset == kit.store.log_end)


def rounds(store: MessageStore, count: int = 1, now_ms: int = LATER_MS) -> list[Verdict]:
    """Rounds of retention, with the files of each deleted at its end."""
    verdicts: list[Verdict] = []
    for _ in range(count):
        verdicts = store.retention.step(now_ms, HOUR)
        deletion = store.retention._deletion
        if deletion is not None:
            deletion.wait()
    return verdicts


def starts(kit: Kit) -> list[int]:
    return [int(path.name) for path in kit.segment_paths()]
