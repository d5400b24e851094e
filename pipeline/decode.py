"""Decoder: records of a log as Arrow batches, for every source and job. Does not import Spark.

    for batch in decode(split, columns=("topic", "body")): ...
    for batch in Decoder(...).range(view, base, start, end): ...     # frames of ReadLog

A split yields exactly the records that start in it, independent of other splits. A batch has at
most `batch_rows` rows and about `batch_bytes` bytes of bodies and properties (at least one row).
Damage is always reported, also at the boundary of splits:

    onCorrupt     damage in the log    body's checksum      body that cannot be
                                       does not match       decompressed or unwrapped
    fail          DamagedLogError      DamagedLogError      DamagedLogError
    skip          left out, counted    left out, counted    left out, counted
    permissive    left out, counted    kept                 kept: null, or not unwrapped

Checksums are verified for the selected records if bodies are read (`verify_crc`: never, or always).
Counts are in `Report`. Records: docs/formats/store-format.md, sections 2.1-2.10.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..store.format.errors import RecordFormatError
from ..store.scan.columns import check_bodies, columns_at
from ..store.scan.files import open_bytes
from ..store.scan.single import inspect, is_empty
from ..store.scan.walk import (
    BODY_MISMATCH,
    Columns,
    LostRange,
    OnCorrupt,
    RawBytes,
    StopReason,
    TopicTable,
    sync,
    walk,
)
from .bodies import BodyDecoder
from .errors import DamagedLogError, DataLossError, UnreachableError
from .row_filter import RowFilter, joined
from .rows import LogBytes, RowBuilder
from .schema import COLUMNS, PropertiesForm
from .selection import TopicFilter

if TYPE_CHECKING:
    import pyarrow as pa

    from .splits import Split

logger = logging.getLogger(__name__)
BATCH_ROWS: Final = 8192
#: An Arrow column holds 2 GiB; a batch stays far below, also in memory.
BATCH_BYTES: Final = 32 << 20


@dataclass(slots=True)
class Report:
    """Ranges that a decoder left out."""

    lost: list[LostRange] = field(default_factory=list)

    @property
    def lost_bytes(self) -> int:
        return sum(one.end - one.begin for one in self.lost)


def decode(
    split: Split,
    columns: Sequence[str] = COLUMNS,
    *,
    properties: PropertiesForm = "map",
    decompress: bool = True,
    verify_crc: bool | None = None,
    on_corrupt: OnCorrupt = "fail",
    topics: TopicFilter | None = None,
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int = BATCH_BYTES,
    report: Report | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a split. Raises DamagedLogError, DataLossError, UnreachableError."""
    decoder = Decoder(
        columns,
        split.broker,
        properties=properties,
        decompress=decompress,
        verify_crc=verify_crc,
        on_corrupt=on_corrupt,
        topics=topics,
        batch_rows=batch_rows,
        batch_bytes=batch_bytes,
        report=report,
    )
    view = open_split(split)
    if split.picked is not None:
        yield from decoder.picked(view, split.base, split.picked, split.path)
        return
    yield from decoder.range(view, split.base, split.start, split.end, split.path)


def open_split(split: Split) -> memoryview:
    """Map the segment of a split. Raises DataLossError (deleted or shorter), UnreachableError."""
    try:
        view = open_bytes(Path(split.path))
    except FileNotFoundError:
        if not Path(split.path).parent.is_dir():
            raise UnreachableError(
                f"This machine does not see {Path(split.path).parent}. The driver and every "
                "executor must see a store under the same path (a shared file system, or one "
                "machine)."
            ) from None
        raise DataLossError(
            f"The segment {split.path} was deleted before offsets {split.start} to {split.end} "
            "were read, by retention or otherwise."
        ) from None
    if len(view) < split.end - split.base:
        raise DataLossError(
            f"The segment {split.path} ends at offset {split.base + len(view)}, before the end of "
            f"the planned range, {split.end}."
        )
    return view


class Decoder:
    """Decodes ranges. Its tables of topics and hosts are shared by all ranges."""

    def __init__(
        self,
        columns: Sequence[str],
        broker: str,
        *,
        properties: PropertiesForm = "map",
        decompress: bool = True,
        verify_crc: bool | None = None,
        on_corrupt: OnCorrupt = "fail",
        topics: TopicFilter | None = None,
        batch_rows: int = BATCH_ROWS,
        batch_bytes: int = BATCH_BYTES,
        report: Report | None = None,
    ) -> None:
        self.report = Report() if report is None else report
        self._topics = TopicTable()
        self._rows = RowBuilder(columns, properties, broker, self._topics)
        self._bodies = BodyDecoder(
            decompress=decompress,
            bodies=self._rows.wants_bodies,
            keep_unreadable=on_corrupt == "permissive",
            batch_bytes=max(batch_bytes, 1),
        )
        self._verify_crc = self._rows.wants_bodies if verify_crc is None else verify_crc
        self._on_corrupt: OnCorrupt = on_corrupt
        no_filter = topics is None or topics.matches_all
        self._row_filter = None if no_filter or topics is None else RowFilter(topics, self._topics)
        self._batch_rows = max(batch_rows, 1)
        self._batch_bytes = max(batch_bytes, 1)
        self._path = ""

    def range(
        self, data: Any, base: int, start: int, end: int, path: str = "the wire"
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records that start in [start, end).

        `data` begins at physical offset `base` and includes the end of the last record.
        """
        view = LogBytes(RawBytes(data))
        for columns in self.scan(view, base, start, end, path):
            yield from self.rows(view, columns)

    def picked(
        self, data: Any, base: int, offsets: Sequence[int], path: str
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records at these physical offsets, which queues point to."""
        view = LogBytes(RawBytes(data))
        self._path = path
        for columns in self._gathered(view, self._records_at(view, base, offsets)):
            yield from self.rows(view, columns)

    def _records_at(self, view: LogBytes, base: int, offsets: Sequence[int]) -> Iterator[Columns]:
        for begin in range(0, len(offsets), self._batch_rows):
            good = []
            for offset in offsets[begin : begin + self._batch_rows]:
                try:
                    inspect(view.raw.data, offset - base, base, check_crc=False)
                except RecordFormatError as error:
                    self._lose(LostRange(offset, offset + 1, str(error)))
                else:
                    good.append(offset - base)
            columns, whole = columns_at(view.raw, base, np.array(good, np.int64), self._topics)
            yield columns.take(slice(0, whole))

    def scan(self, view: LogBytes, base: int, start: int, end: int, path: str) -> Iterator[Columns]:
        """Yield the columns of these records, for callers that sort them before building rows."""
        self._path = path
        raw = view.raw
        first, limit = start - base, end - base
        if first > 0:
            first = sync(raw.data, base, first, limit)
            if first < 0:
                return
        walking = walk(
            raw.data,
            base,
            first,
            limit,
            self._on_corrupt,
            check_crc=self._verify_crc and self._row_filter is None,
            topics=self._topics,
        )
        yield from self._gathered(view, walking)
        self._check_end(raw.data, base, limit, walking)

    def topic(self, number: int) -> str:
        """Return the name of a topic by its number in the columns."""
        return self._topics.names[number]

    # -- damage -------------------------------------------------------------------------------

    def _check_end(self, data: memoryview, base: int, limit: int, walking: Any) -> None:
        """Report damage of the walk and bytes before the next split's first record."""
        for lost in walking.lost:
            self._lose(lost)
        at = walking.end
        if walking.stop is StopReason.DAMAGED and self._on_corrupt == "fail":
            raise DamagedLogError(self._path, base + at, walking.reason)
        if walking.stop is StopReason.BLANK:
            return
        if walking.stop in (StopReason.EMPTY, StopReason.DAMAGED):
            following = sync(data, base, at + 1, limit)
            if following >= 0:  # zeros in the middle: a lost page
                self._lose(LostRange(base + at, base + following, "the bytes are zeros."))
            return
        if at > limit:
            self._check_boundary(data, base, limit, at)

    def _check_boundary(self, data: memoryview, base: int, limit: int, at: int) -> None:
        """Report damage if the next split's first record is not the one that follows here."""
        following = sync(data, base, limit, min(at + 1, len(data)))
        if following == at or at >= len(data) or is_empty(data, at):
            return
        try:
            inspect(data, at, base, check_crc=False)
        except Exception as error:
            following = sync(data, base, at)
            if following >= 0:
                self._lose(LostRange(base + at, base + following, str(error)))

    def _lose(self, lost: LostRange) -> None:
        if self._on_corrupt == "fail":
            raise DamagedLogError(self._path, lost.begin, lost.reason)
        self.report.lost.append(lost)
        logger.warning(
            "pipeline.lost path=%s begin=%d end=%d bytes=%d reason=%s",
            self._path,
            lost.begin,
            lost.end,
            lost.end - lost.begin,
            lost.reason,
        )

    # -- batches ------------------------------------------------------------------------------

    def _gathered(self, view: LogBytes, walking: Iterator[Columns]) -> Iterator[Columns]:
        """Yield the matching records, gathered into larger batches when few match."""
        if self._row_filter is None:
            yield from walking
            return
        waiting: list[Columns] = []
        count = size = 0
        for scanned in walking:
            columns = self._row_filter.take(view.raw, scanned)
            if self._verify_crc:
                columns = self._verified(view, columns)
            if not len(columns):
                continue
            waiting.append(columns)
            count += len(columns)
            size += int(columns.size.sum())
            if count >= self._batch_rows or size >= self._batch_bytes:
                yield joined(waiting)
                waiting, count, size = [], 0, 0
        if waiting:
            yield joined(waiting)

    def _verified(self, view: LogBytes, columns: Columns) -> Columns:
        """Return the records whose bodies match their checksums; report the others."""
        right = check_bodies(view.raw, columns)
        if right.all() or self._on_corrupt == "permissive":
            return columns
        for at in np.flatnonzero(~right).tolist():
            begin = int(columns.physical_offset[at])
            self._lose(LostRange(begin, begin + int(columns.size[at]), BODY_MISMATCH))
        return columns.take(right)

    def rows(self, view: LogBytes, columns: Columns) -> Iterator[pa.RecordBatch]:
        """Yield the rows of records in this order, in batches of bounded size."""
        for part in self._slices(columns):
            if self._bodies.is_plain(part):
                yield self._rows.batch(view, part)
            else:
                yield from self._special_rows(view, part)

    def _slices(self, columns: Columns) -> Iterator[Columns]:
        ends = np.cumsum(columns.body_length + columns.properties_length)
        begin = 0
        while begin < len(columns):
            floor = int(ends[begin - 1]) if begin else 0
            end = int(np.searchsorted(ends, floor + self._batch_bytes, "right"))
            end = min(max(end, begin + 1), begin + self._batch_rows, len(columns))
            whole = end - begin == len(columns)
            yield columns if whole else columns.take(slice(begin, end))
            begin = end

    def _special_rows(self, view: LogBytes, columns: Columns) -> Iterator[pa.RecordBatch]:
        """Yield rows of records with compressed bodies or inner batches."""
        for part in self._bodies.parts(view, columns):
            if not part.inner:
                yield self._rows.batch(part.view, part.columns, part.bodies)
                continue
            rows = part.columns
            if self._row_filter is not None:
                rows = self._row_filter.take(part.view.raw, rows, inner=True)
            for some in self._slices(rows):
                yield self._rows.batch(part.view, some)
        failures, self._bodies.failures = self._bodies.failures, []
        for one in failures:
            if self._on_corrupt != "permissive":
                self._lose(LostRange(one.offset, one.offset + one.size, one.reason))
