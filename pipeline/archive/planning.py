"""Which ranges of a store are archived next: cells of the archive's grid, cut where the log ends.

A cell begins at a multiple of the archive's `splitBytes` within its segment. Only whole segments are
taken unless the live end is wanted, too: then the last cell ends where the log may be read, and the
next round goes on there. Reads the names of files and the end of the log; writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ..safe_end import safe_end
from ..segments import Segment, segments
from ..splits import Split

_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """A store directory, the broker name that its rows get, and its log as it is now."""

    root: str
    broker: str
    log: tuple[Segment, ...]
    end: int  #: records below may be read

    @property
    def start(self) -> int:
        """Where the log begins."""
        return self.log[0].base if self.log else 0


def snapshot(root: str, broker: str = "", known: int = 0) -> StoreSnapshot:
    """The store as it is now; `known` is an end that was found before. Raises UnreachableError."""
    root = os.path.abspath(root)
    log = segments(root)
    return StoreSnapshot(
        root, broker or os.path.basename(root), tuple(log), safe_end(root, log, known)
    )


def grid_splits(
    store: StoreSnapshot,
    split_bytes: int,
    *,
    live: bool = False,
    written_before_ms: int | None = None,
) -> list[Split]:
    """The cells of the log, in its order; without `live` of segments that are written to the end, and
    with `written_before_ms` of those that nobody has written to since."""
    return [
        cell
        for segment in store.log
        if _wanted(store, segment, live, written_before_ms)
        for cell in _cells(store, segment, split_bytes)
    ]


def _wanted(store: StoreSnapshot, segment: Segment, live: bool, before_ms: int | None) -> bool:
    if not live and segment.end > store.end:
        return False
    if before_ms is None:
        return True
    try:
        return os.stat(segment.path).st_mtime_ns // _NS_PER_MS < before_ms
    except FileNotFoundError:
        return False  # retention took it a moment ago


def _cells(store: StoreSnapshot, segment: Segment, split_bytes: int) -> Iterator[Split]:
    limit = min(segment.end, store.end)
    for start in range(segment.base, limit, split_bytes):
        end = min(start + split_bytes, limit)
        yield Split(store.root, segment.base, segment.path, start, end, store.broker)


def split_of(store: StoreSnapshot, start: int, end: int) -> Split | None:
    """A range of the log as a split, where one segment of the store still has it."""
    for segment in store.log:
        if segment.base <= start < segment.end:
            return Split(store.root, segment.base, segment.path, start, end, store.broker)
    return None
