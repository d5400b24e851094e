"""A disk that can lose power: what was not flushed comes back whole, not at all, or torn.

`FakeDisk` is a `Disk` on a real directory. The files that a process sees are the page cache: a
killed process loses nothing of them. Besides it keeps what is certainly on the disk: the bytes of
every file at its last fdatasync or fsync, and the names that a sync of their directory made
durable. `crash` writes into another directory what a power loss may leave:

* of every 4 KiB page that differs from its flushed content: the new one, the flushed one (zeros
  where nothing was flushed), or half of each;
* of the creations, deletions and renames in a directory that was not synced: those up to some
  point (a journal keeps their order), and a file created without a sync may be empty or missing.

Which of them is asked of a `Fate`, so that hypothesis or a seed decides. Nothing is really flushed,
which makes it fast. Directories themselves are always kept.
"""

from __future__ import annotations

import enum
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cometmq.store.format.disk import Disk

PAGE_BYTES = 4096


class Page(enum.Enum):
    """What became of one page that was written and not flushed."""

    KEPT = "kept"
    LOST = "lost"
    #: The first half is new, the rest as it was flushed; or the other way round.
    TORN_TAIL = "torn tail"
    TORN_HEAD = "torn head"


@dataclass(slots=True)
class Fate:
    """Decides by a seed. `pages` are the outcomes to choose from, `names` whether changes of names
    that were not synced may be lost."""

    seed: int
    pages: tuple[Page, ...] = tuple(Page)
    names: bool = True
    _random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def page(self) -> Page:
        return self._random.choice(self.pages)

    def names_kept(self, changes: int) -> int:
        """How many of the changes of a directory are there, the oldest first."""
        return self._random.randint(0, changes) if self.names else changes

    def size_kept(self) -> bool:
        """Whether a size that was not flushed is there."""
        return Page.LOST not in self.pages or self._random.random() < 0.5


@dataclass(slots=True)
class _Change:
    """One change of a name that is not durable: before it the name was `old` (None: not there)."""

    name: str
    old: bytes | None


class FakeDisk(Disk):
    """See the module's docstring. Everything below `root` when it is made counts as flushed."""

    __slots__ = ("_changes", "_flushed", "_lock", "root")

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root
        self._lock = threading.RLock()  # flush threads call too
        #: path -> content at its last flush; a path without one was never flushed
        self._flushed: dict[str, bytes] = {}
        self._changes: dict[str, list[_Change]] = {}  # directory -> what is not synced
        for path in self._files():
            self._flushed[str(path)] = path.read_bytes()

    def _files(self) -> Iterator[Path]:
        return (path for path in sorted(self.root.rglob("*")) if path.is_file())

    # -- what the store calls -----------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        with self._lock:
            new = flags & os.O_CREAT and not os.path.exists(path)
            descriptor = super().open(path, flags, mode)
            if new:
                self._change(path, _Change(path, None))
                self._flushed.pop(path, None)
            return descriptor

    def fdatasync(self, descriptor: int) -> None:
        self._enter("fdatasync")
        self._flush(descriptor)

    def fsync(self, descriptor: int) -> None:
        self._enter("fsync")
        self._flush(descriptor)

    def sync_directory(self, path: str) -> None:
        self._enter("fsync")
        with self._lock:
            self._changes.pop(os.path.normpath(path), None)

    def sync_file_system(self, path: str) -> None:
        self._enter("syncfs")
        with self._lock:
            self._flushed = {str(found): found.read_bytes() for found in self._files()}
            self._changes.clear()

    def unlink(self, path: str) -> None:
        with self._lock:
            old = self._flushed.get(path, b"")
            super().unlink(path)
            self._change(path, _Change(path, old))
            self._flushed.pop(path, None)

    def replace(self, source: str, target: str) -> None:
        with self._lock:
            old = self._flushed.get(target, b"") if os.path.exists(target) else None
            super().replace(source, target)
            self._flushed[target] = self._flushed.pop(source, b"")
            self._change(target, _Change(target, old))

    def _change(self, path: str, change: _Change) -> None:
        self._changes.setdefault(os.path.dirname(os.path.normpath(path)), []).append(change)

    def _flush(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isdir(path):
            self._changes.pop(path, None)
            return
        with self._lock:
            if os.path.exists(path):
                self._flushed[path] = Path(path).read_bytes()

    # -- power loss ---------------------------------------------------------------------------

    def unflushed_pages(self) -> int:
        """How many pages a crash now has to choose the fate of."""
        return sum(
            sum(1 for _ in _differences(self._flushed.get(str(path), b""), path.read_bytes()))
            for path in self._files()
        )

    def crash(self, target: Path, fate: Fate) -> None:
        """Write into `target`, which must not exist, what a power loss now leaves of `root`."""
        with self._lock:
            target.mkdir(parents=True)
            for folder in (path for path in sorted(self.root.rglob("*")) if path.is_dir()):
                (target / folder.relative_to(self.root)).mkdir()
            for path in self._files():
                flushed = self._flushed.get(str(path), b"")
                self._put(target, str(path), _after(flushed, path.read_bytes(), fate))
            for changes in self._changes.values():
                kept = fate.names_kept(len(changes))
                for change in reversed(changes[kept:]):  # the last one first
                    self._put(target, change.name, change.old)

    def _put(self, target: Path, name: str, data: bytes | None) -> None:
        path = target / Path(name).relative_to(self.root)
        if data is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(data)


def _differences(flushed: bytes, now: bytes) -> Iterator[int]:
    """Where pages begin that are not what was flushed."""
    for at in range(0, max(len(flushed), len(now)), PAGE_BYTES):
        if now[at : at + PAGE_BYTES] != flushed[at : at + PAGE_BYTES]:
            yield at


def _after(flushed: bytes, now: bytes, fate: Fate) -> bytes:
    """The content of one file after the power loss."""
    if now == flushed:
        return now
    size = len(now) if len(now) == len(flushed) or fate.size_kept() else len(flushed)
    room = max(len(now), len(flushed))
    old, data = flushed.ljust(room, b"\0"), bytearray(now.ljust(room, b"\0"))
    for at in _differences(old, bytes(data)):
        end, half = min(at + PAGE_BYTES, room), min(at + PAGE_BYTES // 2, room)
        begin, stop = {
            Page.KEPT: (at, at),
            Page.LOST: (at, end),
            Page.TORN_TAIL: (half, end),
            Page.TORN_HEAD: (at, half),
        }[fate.page()]
        data[begin:stop] = old[begin:stop]
    return bytes(data[:size])
