"""Plans the ranges of a store to archive: splits on the archive's grid.

A split begins at a multiple of the archive's `splitBytes` within its segment. Only complete
segments are archived unless the live end is included: then the last split ends at the safe end of
the log, and the next round continues there. Reads file names and the end of the log only.
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
    """A store directory, the broker name for its rows, and its current log."""

    root: str
    broker: str
    log: tuple[Segment, ...]
    end: int  #: safe end of the log

    @property
    def start(self) -> int:
        """First physical offset of the log."""
        return self.log[0].base if self.log else 0


def snapshot(root: str, broker: str = "", known: int = 0) -> StoreSnapshot:
    """Return the current state of a store; `known` is an earlier end. Raises UnreachableError."""
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
    """Return the splits of the log, in log order.

    Without `live` only of complete segments; with `written_before_ms` only of segments that were
    last modified before that time.
    """
    return [
        split
        for segment in store.log
        if _wanted(store, segment, live, written_before_ms)
        for split in _segment_splits(store, segment, split_bytes)
    ]


def _wanted(store: StoreSnapshot, segment: Segment, live: bool, before_ms: int | None) -> bool:
    if not live and segment.end > store.end:
        return False
    if before_ms is None:
        return True
    try:
        return os.stat(segment.path).st_mtime_ns // _NS_PER_MS < before_ms
    except FileNotFoundError:
        return False  # deleted by retention meanwhile


def _segment_splits(store: StoreSnapshot, segment: Segment, split_bytes: int) -> Iterator[Split]:
    limit = min(segment.end, store.end)
    for start in range(segment.base, limit, split_bytes):
        end = min(start + split_bytes, limit)
        yield Split(store.root, segment.base, segment.path, start, end, store.broker)


def split_of(store: StoreSnapshot, start: int, end: int) -> Split | None:
    """Return a range of the log as a split; None if no segment has its start."""
    for segment in store.log:
        if segment.base <= start < segment.end:
            return Split(store.root, segment.base, segment.path, start, end, store.broker)
    return None
