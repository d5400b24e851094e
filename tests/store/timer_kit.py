"""What the tests of the timer files share: units, a log of small files, a store without
messages."""

from __future__ import annotations

from pathlib import Path

from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.disk import Disk
from cometmq.store.format.errors import (
    OffsetOutOfRangeError,
)
from cometmq.store.timer.log import TimerLog
from cometmq.store.timer.store import TimerStore
from cometmq.store.timer.unit import (
    DEFAULT,
    UNIT_BYTES,
    TimerUnit,
)

FILE = 10 * UNIT_BYTES + 20
NOW_MS = 1_700_000_000_000


class QuietDisk(Disk):
    """Flushes nothing: for tests of many short lives."""

    def fdatasync(self, descriptor: int) -> None:
        pass

    def fsync(self, descriptor: int) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass


class NoMessages:
    """A store without a timer topic."""

    log_end = 1 << 62

    def record_at(self, physical_offset: int) -> bytes:
        raise OffsetOutOfRangeError(physical_offset, 0, 0)

    def min_offset(self, topic: str, queue_id: int) -> int:
        return 3

    def max_offset(self, topic: str, queue_id: int) -> int:
        return 500


def new_log(root: Path, disk: Disk | None = None) -> TimerLog:
    return TimerLog(str(root / "timerlog"), FILE, disk or Disk())


def unit(number: int, prev: int = -1, magic: int = DEFAULT) -> TimerUnit:
    return TimerUnit(prev, magic, NOW_MS, 1000 * number, 100 * number, 90, 7)


def filled(root: Path, count: int, disk: Disk | None = None) -> TimerLog:
    log = new_log(root, disk)
    for number in range(count):
        log.append(unit(number))
    return log


def reloaded(root: Path) -> TimerLog:
    log = new_log(root)
    assert log.load() == ""
    walk = log.walk()
    for _ in walk:
        pass
    log.truncate(walk.end)
    return log


def timers(root: Path, disk: Disk | None = None) -> TimerStore:
    config = StoreConfig(str(root), mapped_file_size_timer_log=FILE)
    return TimerStore(root, config, disk or Disk(), NoMessages())
