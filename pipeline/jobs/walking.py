"""Walks the records of one split as columns, for jobs that need records instead of rows.

A walk begins at the split's first valid record. Its bounds let the driver check that the walks of
all splits are contiguous: bytes between two walks belong to no valid record.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from ...store.format.record_layout import (
    TRANSACTION_MASK,
    UNQUEUED,
)
from ...store.format.topic_names import is_queue_name
from ...store.scan.files import open_bytes
from ...store.scan.properties import by_queue
from ...store.scan.raw import Integers
from ...store.scan.walk import Columns, LostRange, RawBytes, StopReason, TopicTable, sync, walk
from ..splits import Split

#: Ends of a walk without damage.
_GOOD_ENDS: Final = (StopReason.END, StopReason.BLANK, StopReason.EMPTY)


@dataclass(slots=True)
class SplitBounds:
    """First and last physical offset of a split's records, -1 without records, and damage."""

    first: int = -1
    end: int = -1
    blank: bool = False  #: the walk ended at the segment's blank
    records: int = 0
    lost: list[LostRange] = field(default_factory=list)
    #: Records whose topic or queue id cannot name a queue, by both.
    unnamed: Counter[tuple[str, int]] = field(default_factory=Counter)


@dataclass(slots=True)
class RecordColumns:
    """Scanned records; positions are relative to the segment."""

    raw: RawBytes
    columns: Columns
    topics: TopicTable


class SplitWalk:
    """An iterator run_parts the records of a split; `bounds` is final once it is exhausted."""

    def __init__(self, split: Split, *, check_crc: bool = False) -> None:
        self.bounds = SplitBounds()
        self.topics = TopicTable()
        self._split = split
        self._check_crc = check_crc

    def __iter__(self) -> Iterator[RecordColumns]:
        split, bounds = self._split, self.bounds
        view = open_bytes(Path(split.path))
        begin, end = split.start - split.base, min(split.end - split.base, len(view))
        if begin:
            begin = sync(view, split.base, begin, end)
            if begin < 0:
                return
        # Damaged records are left out and counted; the walk continues after them.
        walking = walk(
            view, split.base, begin, end, "skip", check_crc=self._check_crc, topics=self.topics
        )
        raw = RawBytes(view)
        for columns in walking:
            if bounds.first < 0:
                bounds.first = int(columns.physical_offset[0])
            bounds.records += len(columns)
            yield RecordColumns(raw, columns, self.topics)
        bounds.end = split.base + walking.end
        bounds.blank = walking.stop is StopReason.BLANK
        bounds.lost = list(walking.lost)
        if walking.stop not in _GOOD_ENDS:
            text = walking.reason or "damage"
            bounds.lost.append(LostRange(bounds.end, split.base + end, text))


def queued(columns: Columns) -> Columns:
    """Return the records with a unit in their queue: not prepared or rolled-back ones."""
    return columns.take(~np.isin(columns.sys_flag & TRANSACTION_MASK, UNQUEUED))


def queue_rows(
    rows: RecordColumns, columns: Columns, bounds: SplitBounds
) -> Iterator[tuple[tuple[str, int], Integers]]:
    """Yield topic and queue id with the rows of that queue. Count records of other names: a topic
    becomes the name of a folder, and a log can hold any."""
    for topic_id, queue_id, which in by_queue(columns):
        key = (rows.topics.names[topic_id], queue_id)
        if is_queue_name(*key):
            yield key, which
        else:
            bounds.unnamed[key] += len(which)


def unnamed(all_bounds: list[SplitBounds]) -> list[str]:
    """Return sentences about records whose topic or queue id cannot name a queue."""
    counts: Counter[tuple[str, int]] = Counter()
    for bounds in all_bounds:
        counts += bounds.unnamed
    return [
        f"{count} records have the topic {topic[:80]!r} and the queue id {queue_id}, which cannot "
        "name a queue."
        for (topic, queue_id), count in sorted(counts.items())
    ]


def gaps(splits: list[Split], all_bounds: list[SplitBounds]) -> list[str]:
    """Return sentences about bytes that belong to no record; both lists are in log order."""
    found = [_lost(one) for bounds in all_bounds for one in bounds.lost]
    position = -1
    base = -1
    blank = False
    for split, bounds in zip(splits, all_bounds, strict=True):
        if split.base != base:
            base, position, blank = split.base, split.start, False
        if bounds.first < 0:
            continue
        if bounds.first > position and not blank and not _is_lost(all_bounds, position):
            found.append(f"Bytes [{position}, {bounds.first}) of the log are not a valid record.")
        position, blank = bounds.end, bounds.blank
    return found


def _lost(one: LostRange) -> str:
    return f"Bytes [{one.begin}, {one.end}) of the log are damaged: {one.reason}"


def _is_lost(all_bounds: list[SplitBounds], position: int) -> bool:
    return any(one.begin <= position < one.end for bounds in all_bounds for one in bounds.lost)
