"""A walk over all segments of a log, offline: batches of columns, and the end of each segment.

Files are mapped read-only (`scan.files`) and closed by their last reader. Bytes that are not a
record become a lost range, and the walk continues behind it. `verify_log` judges the ranges.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ..format.index_keys import BATCH_BYTES_MAX, KeyText, indexed
from ..format.record_layout import AT, FLAG, PHYSICAL_OFFSET, QUEUE_ID, QUEUE_OFFSET
from ..scan.files import open_bytes
from ..scan.walk import Columns, LostRange, OnCorrupt, RawBytes, StopReason, TopicTable, walk
from .layout import DataFile, Layout


@dataclass(slots=True)
class Batch:
    """Some records of one segment; positions in `columns` are positions in the file."""

    file: DataFile
    raw: RawBytes
    columns: Columns
    topics: TopicTable
    _texts: list[tuple[Columns, KeyText]] | None = None

    def texts(self) -> list[tuple[Columns, KeyText]]:
        """Return topics and properties of all indexed records, in parts of bounded size; computed
        once for all checks."""
        if self._texts is None:
            self._texts = list(self._make_texts())
        return self._texts

    def _make_texts(self) -> Iterator[tuple[Columns, KeyText]]:
        lengths = np.cumsum(self.columns.properties_length)
        begin = 0
        while begin < len(self.columns):
            floor = int(lengths[begin - 1]) if begin else 0
            end = int(np.searchsorted(lengths, floor + BATCH_BYTES_MAX, "right"))
            end = max(end, begin + 1)
            part = self.columns.take(slice(begin, end))
            yield part, KeyText(self.raw.data, part, indexed(part))
            begin = end


@dataclass(slots=True)
class SegmentEnd:
    """How the walk over one segment ended; `position` is a position in the file."""

    file: DataFile
    position: int = 0
    records: int = 0
    stop: StopReason = StopReason.EMPTY
    reason: str = ""
    lost: list[LostRange] = field(default_factory=list)


class LogWalk:
    """An iterator of batches over the records that begin in [begin, end) of the log."""

    def __init__(
        self,
        layout: Layout,
        *,
        check_crc: bool = False,
        on_corrupt: OnCorrupt = "permissive",
        begin: int = 0,
        end: int = -1,
    ) -> None:
        self.topics = TopicTable()
        self.ends: list[SegmentEnd] = []
        self._layout = layout
        self._check_crc = check_crc
        self._on_corrupt: OnCorrupt = on_corrupt
        self._begin = begin
        self._end = end

    def __iter__(self) -> Iterator[Batch]:
        size = self._layout.log.size
        for file in self._layout.log.files:
            if file.start + size <= self._begin or 0 <= self._end <= file.start:
                continue
            yield from self._segment(file)

    def _segment(self, file: DataFile) -> Iterator[Batch]:
        view = open_bytes(file.path)[: self._layout.log.size]
        end = SegmentEnd(file)
        self.ends.append(end)
        if not len(view):
            return
        limit = len(view) if self._end < 0 else min(self._end - file.start, len(view))
        walking = walk(
            view,
            file.start,
            0,
            limit,
            self._on_corrupt,
            check_crc=self._check_crc,
            topics=self.topics,
        )
        raw = RawBytes(view)
        first = self._begin - file.start
        for columns in walking:
            if first > 0:
                # Record boundaries are only known from the segment's start on.
                columns = columns.take(columns.position >= first)  # noqa: PLW2901
                if not len(columns):
                    continue
            yield Batch(file, raw, columns, self.topics)
        end.position = walking.end
        end.records = walking.records
        end.stop = walking.stop or StopReason.END
        end.reason = walking.reason
        end.lost = walking.lost


def first_record(file: DataFile) -> Columns | None:
    """Return the first record of a segment, or None if it does not begin with one."""
    view = open_bytes(file.path)
    return next(walk(view, file.start, 0, min(1, len(view))), None)


def segment_of(layout: Layout, offset: int) -> DataFile | None:
    """Return the segment that has a byte at this offset."""
    files = layout.log.files
    return next((f for f in files if f.start <= offset < f.start + f.length), None)


def record_at(layout: Layout, offset: int) -> Columns | None:
    """Return the whole record that begins at this offset."""
    file = segment_of(layout, offset)
    if file is None:
        return None
    position = offset - file.start
    return next(walk(open_bytes(file.path), file.start, position, position + 1), None)


def locate(layout: Layout, offset: int, part: str) -> tuple[str, int, int] | None:
    """Return file, begin and end of a part of the whole record at `offset`: "properties", "topic",
    "queue_id", "queue_offset", "store_timestamp", "header" or "record"; None without a record."""
    file = segment_of(layout, offset)
    columns = record_at(layout, offset)
    if file is None or columns is None:
        return None
    position = offset - file.start
    size = int(columns.size[0])
    begin, end = {
        "properties": (int(columns.properties_start[0]), position + size),
        "topic": (
            int(columns.topic_start[0]),
            int(columns.topic_start[0] + columns.topic_length[0]),
        ),
        "queue_id": (position + AT[QUEUE_ID], position + AT[FLAG]),
        "queue_offset": (position + AT[QUEUE_OFFSET], position + AT[PHYSICAL_OFFSET]),
        "store_timestamp": (
            int(columns.store_host_start[0]) - 8,
            int(columns.store_host_start[0]),
        ),
        "header": (position, int(columns.body_start[0])),
        "record": (position, position + size),
    }[part]
    return layout.name(file.path), begin, end
