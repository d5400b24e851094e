"""The records of one split as columns, for jobs that look at the log itself and not at messages.

A walk begins where a record names its own place and ends where the split does. What it says of its
borders lets the driver see whether the walks of all splits meet: a record that no walk has seen lies
between two that do not. (pipeline study, section 2.2)
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from ...store.format.queue_unit import UNQUEUED
from ...store.format.record import TRANSACTION_MASK
from ...store.scan.files import open_bytes
from ...store.scan.walk import Columns, LostRange, RawBytes, StopReason, TopicTable, sync, walk
from ..splits import Split

#: Ends that are no damage.
_GOOD_ENDS: Final = (StopReason.END, StopReason.BLANK, StopReason.EMPTY)


@dataclass(slots=True)
class SplitBounds:
    """Where the records of a split begin and end; -1: there are none."""

    first: int = -1
    end: int = -1
    blank: bool = False  #: the rest of the segment is its blank
    records: int = 0
    lost: list[LostRange] = field(default_factory=list)


@dataclass(slots=True)
class RecordColumns:
    """Some records; positions are places in the segment."""

    raw: RawBytes
    columns: Columns
    topics: TopicTable


class SplitWalk:
    """An iterator run_parts the records of a split; `border` is final once it is exhausted."""

    def __init__(self, split: Split, *, check_crc: bool = False) -> None:
        self.border = SplitBounds()
        self.topics = TopicTable()
        self._split = split
        self._check_crc = check_crc

    def __iter__(self) -> Iterator[RecordColumns]:
        split, border = self._split, self.border
        view = open_bytes(Path(split.path))
        begin, end = split.start - split.base, min(split.end - split.base, len(view))
        if begin:
            begin = sync(view, split.base, begin, end)
            if begin < 0:
                return
        # With checksums a damaged body is left out and counted; the walk goes on behind damage.
        walking = walk(
            view, split.base, begin, end, "skip", check_crc=self._check_crc, topics=self.topics
        )
        raw = RawBytes(view)
        for columns in walking:
            if border.first < 0:
                border.first = int(columns.physical_offset[0])
            border.records += len(columns)
            yield RecordColumns(raw, columns, self.topics)
        border.end = split.base + walking.end
        border.blank = walking.stop is StopReason.BLANK
        border.lost = list(walking.lost)
        if walking.stop not in _GOOD_ENDS:
            text = walking.reason or "damage"
            border.lost.append(LostRange(border.end, split.base + end, text))


def queued(columns: Columns) -> Columns:
    """The records that have a unit in their queue: not those of prepared or rolled back transactions."""
    return columns.take(~np.isin(columns.sys_flag & TRANSACTION_MASK, UNQUEUED))


def gaps(splits: list[Split], borders: list[SplitBounds]) -> list[str]:
    """Places that no walk has seen, as sentences; both lists are in the order of the log."""
    found = [_lost(one) for border in borders for one in border.lost]
    position = -1
    base = -1
    blank = False
    for split, border in zip(splits, borders, strict=True):
        if split.base != base:
            base, position, blank = split.base, split.start, False
        if border.first < 0:
            continue
        if border.first > position and not blank and not _is_lost(borders, position):
            found.append(f"Bytes [{position}, {border.first}) of the log are no whole record.")
        position, blank = border.end, border.blank
    return found


def _lost(one: LostRange) -> str:
    return f"Bytes [{one.begin}, {one.end}) of the log are lost: {one.reason}"


def _is_lost(borders: list[SplitBounds], position: int) -> bool:
    return any(one.begin <= position < one.end for border in borders for one in border.lost)
