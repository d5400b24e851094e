"""The scanner: walks raw log bytes and returns records as columns, many at a time.

    records = walk(view, base, start, end, on_corrupt="skip")
    for columns in records: ...                     # batches in log order
    records.lost, records.end, records.stop, records.reason

`view` reaches from offset `base` to the end of one segment; a walk covers the records that begin in
[start, end). A record must pass `single.inspect`, and its topic must be UTF-8 without NUL. Every
record of every batch equals the result of `record.decode` (a property test compares).

A long range is walked by many walkers in lockstep: one NumPy step moves all of them. They begin at
sync points, where a whole record holds its own offset. A walker's records count only if the
previous walker ends exactly at its start, so the chain depends on `start` alone, and a fake record
inside a body is never accepted. Where the chain breaks, the walk continues record by record. Reads
stay within the view, for any content.

Memory: one batch covers at most WINDOW_BYTES of log. The walk holds the view until it is exhausted
or closed (docs/formats/store-format.md, sections 2 and 6.2).
"""

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from ..format.errors import RecordFormatError
from ..format.record_layout import (
    AT,
    BLANK,
    BLANK_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET,
    RECORD_BYTES_MIN,
)
from .columns import (
    Columns,
    TopicTable,
    check_bodies,
    check_records,
    check_sealed,
    columns_at,
)
from .raw import BytesTable, Flags, Integers, RawBytes
from .single import (
    MAGIC_AT,
    MAGIC_BYTES,
    Buffer,
    Found,
    find_record,
    inspect,
    is_empty,
    is_record,
)

__all__ = [
    "BODY_MISMATCH",
    "WINDOW_BYTES",
    "Buffer",
    "BytesTable",
    "Columns",
    "Found",
    "LostRange",
    "OnCorrupt",
    "RawBytes",
    "StopReason",
    "TopicTable",
    "Walk",
    "find_record",
    "inspect",
    "is_empty",
    "is_record",
    "sync",
    "walk",
]

OnCorrupt = Literal["fail", "skip", "permissive"]

#: Bytes of log covered by one lockstep, and about the distance of its walkers.
WINDOW_BYTES: Final = 16 << 20
SPACING_BYTES: Final = 32 << 10
#: Below this many walkers a step of NumPy costs more than Python's own.
_WALKERS_MIN: Final = 24
#: Above this mean record size Python steps are faster: they need no sync points.
_LOCKSTEP_RECORD_MAX: Final = 16 << 10
#: Batch size of a walk record by record.
_STEPS: Final = 16_384
#: After a broken chain, and to measure the mean size, this many records are walked one by one.
_STEPS_ASIDE: Final = 512
#: A walker's start is searched in the next two records, but in at least this many bytes.
_REACH_BYTES_MIN: Final = 256
_MAGIC_BYTE: Final = np.uint8(MAGIC_V1 >> 24 & 0xFF)
_SIZE_AND_MAGIC: Final = np.dtype(">u8")
_MAGICS: Final = (np.uint64(MAGIC_V1 & 0xFFFFFFFF), np.uint64(MAGIC_V2 & 0xFFFFFFFF))
_BLANK_MAGIC: Final = (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")
BODY_MISMATCH: Final = "the checksum of the body does not match."
_RECORD_MISMATCH: Final = "the checksum of the record is missing or does not match."
_SEARCH_BYTES: Final = 1 << 20


class StopReason(enum.Enum):
    """Why a walk ended."""

    END = "the end of the range"
    BLANK = "the blank that ends the segment"
    EMPTY = "nothing is written here"
    DAMAGED = "damage"


@dataclass(frozen=True, slots=True)
class LostRange:
    """Bytes [begin, end) of the log without a whole record; absolute offsets."""

    begin: int
    end: int
    reason: str


def sync(view: Any, base: int, from_: int, end: int = -1) -> int:
    """Return the position of the first whole record that holds its own offset and begins at or
    after `from_` (and before `end`), or -1. The checksum of the body is not verified."""
    data = memoryview(view)
    return find_record(data, from_, len(data) if end < 0 else end, base, check_crc=False)


def walk(
    view: Any,
    base: int,
    start: int,
    end: int,
    on_corrupt: OnCorrupt = "fail",
    *,
    check_crc: bool = False,
    sealed: bool = False,
    record_crc: bool = False,
    topics: TopicTable | None = None,
) -> "Walk":
    """Walk over the records that begin in [start, end) of `view`; `start` is a record boundary.

    `on_corrupt`: "fail" stops at the first damage; "skip" notes it in `lost` and continues at the
    next whole record; "permissive" does the same, but keeps records with nothing wrong except the
    checksum of the body (`crc_ok` is false). With `sealed` the checksum at the end of the
    properties is checked too, of records that have it. With `record_crc` it replaces the body's,
    and every record must have it. Walks over several segments may share one table of topics.
    """
    checks = check_sealed if sealed else check_bodies if check_crc else None
    checks = check_records if record_crc else checks
    return Walk(view, base, start, end, on_corrupt, check=checks, topics=topics)


class Walk:
    """An iterator of batches; its other attributes are final once it is exhausted."""

    def __init__(
        self,
        view: Any,
        base: int,
        start: int,
        end: int,
        on_corrupt: OnCorrupt = "fail",
        *,
        check: Callable[[RawBytes, Columns], Flags] | None = None,
        topics: TopicTable | None = None,
    ) -> None:
        self.topics = TopicTable() if topics is None else topics
        self.lost: list[LostRange] = []
        self.end = start  #: position behind the last record walked
        self.stop: StopReason | None = None
        self.reason = ""  #: what is wrong at `end`, as a sentence
        self.records = 0
        self._base = base
        self._skip = on_corrupt != "fail"
        self._permissive = on_corrupt == "permissive"
        self._check = check
        #: The view, for gathers by the consumer of the batches; None once the walk released it.
        self.raw: RawBytes | None = RawBytes(view)
        self._limit = min(end, self.raw.size)
        self._aside = True  # the next records are walked one by one
        self._mean = 0.0  # recent mean record size, bytes

    def __iter__(self) -> Iterator[Columns]:
        return self

    def __next__(self) -> Columns:
        """Return the next batch, never empty."""
        raw = self.raw
        while raw is not None and self.stop is None:
            if self.end >= self._limit:
                self.stop = StopReason.END
                break
            columns = self._batch(raw)
            if columns is not None and len(columns):
                self.records += len(columns)
                return columns
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Release the view."""
        self.raw = None

    # -- a batch ------------------------------------------------------------------------------

    def _batch(self, raw: RawBytes) -> Columns | None:
        """Return the records from `end` on and move `end` behind them; None at damage or the
        end."""
        positions = self._positions(raw)
        if not len(positions):
            self._meet(raw)
            return None
        begin = self.end
        columns, whole = columns_at(raw, self._base, positions, self.topics)
        if whole < len(columns):
            columns = columns.take(slice(whole))
            self._aside = True
            if not whole:
                self._meet(raw)
                return None
        self.end = int(columns.position[-1] + columns.size[-1])
        self._mean = (self.end - begin) / len(columns)
        return columns if self._check is None else self._checked(columns, self._check(raw, columns))

    def _checked(self, columns: Columns, right: Flags) -> Columns:
        """Return the records whose checksums match, up to the first mismatch."""
        columns.crc_ok = right
        if columns.crc_ok.all() or self._permissive:
            return columns
        if not self._skip:
            whole = int(np.argmin(columns.crc_ok))
            self.end = int(columns.position[whole])
            self.stop, self.reason = StopReason.DAMAGED, self._mismatch(columns, whole)
            return columns.take(slice(whole))
        for at in np.flatnonzero(~columns.crc_ok).tolist():
            begin = int(columns.physical_offset[at])
            end = begin + int(columns.size[at])
            self.lost.append(LostRange(begin, end, self._mismatch(columns, at)))
        return columns.take(columns.crc_ok)

    def _mismatch(self, columns: Columns, at: int) -> str:
        """Return which checksum of a record does not match."""
        assert self.raw is not None
        if self._check is check_records or check_bodies(self.raw, columns.take(slice(at, at + 1))):
            return _RECORD_MISMATCH
        return BODY_MISMATCH

    def _meet(self, raw: RawBytes) -> None:
        """Stop at `end`, where no whole record begins, or note the lost range and continue behind
        it."""
        data, position = raw.data, self.end
        try:
            if inspect(data, position, self._base, check_crc=False).blank:
                self.stop = StopReason.BLANK
                return
            reason = "the topic is no text."
        except RecordFormatError as error:
            reason = str(error)
        stop = StopReason.DAMAGED
        if is_empty(data, position):
            stop, reason = StopReason.EMPTY, "nothing is written here."
        if self._skip:
            following = self._following(raw, position + 1)
            if following >= 0:
                self._lose(position, following, reason)
                return
            used = _used_end(raw, position, self._limit)
            if used > position:
                self.lost.append(LostRange(self._base + position, self._base + used, reason))
        self.stop, self.reason = stop, reason

    def _following(self, raw: RawBytes, begin: int) -> int:
        """Return where the walk can continue: a whole record with a readable topic, or the
        blank."""
        data = raw.data
        while (
            record_at := find_record(data, begin, self._limit, self._base, check_crc=False)
        ) >= 0:
            start = np.array([record_at], np.int64)
            if columns_at(raw, self._base, start, self.topics)[1]:
                return record_at
            begin = record_at + 1
        return _find_blank(data, begin, self._limit)

    def _lose(self, begin: int, end: int, reason: str) -> None:
        self.lost.append(LostRange(self._base + begin, self._base + end, reason))
        self.end = end
        self._aside = True

    # -- positions ----------------------------------------------------------------------------

    def _positions(self, raw: RawBytes) -> Integers:
        """Return consecutive record starts from `end` on, checked by size and magic."""
        stop = min(self.end + WINDOW_BYTES, self._limit)
        if self._aside or self._mean > _LOCKSTEP_RECORD_MAX:
            count = _STEPS_ASIDE if self._aside else _STEPS
            self._aside = False
            return _steps(raw, self.end, stop, count)
        spacing = max(SPACING_BYTES, int(self._mean) * 8)
        if stop - self.end < spacing * _WALKERS_MIN:
            return _steps(raw, self.end, stop, _STEPS)
        return self._lockstep(raw, stop, spacing)

    def _lockstep(self, raw: RawBytes, stop: int, spacing: int) -> Integers:
        reach = min(spacing, max(int(self._mean) * 2, _REACH_BYTES_MIN))
        begins = np.arange(self.end + spacing, min(stop, raw.size - reach) - 3, spacing)
        starts = np.concatenate(([self.end], _sync_points(raw, begins, reach, self._base)))
        starts = starts[starts < stop]
        if len(starts) < _WALKERS_MIN:  # large records among small ones
            return _steps(raw, self.end, stop, _STEPS)
        limits = np.append(starts[1:], stop)
        positions, ends = _hop(raw, starts, limits)
        broken = np.flatnonzero(ends[:-1] != limits[:-1])
        if len(broken):
            self._aside = True
            positions = positions[positions < limits[broken[0]]]
        positions.sort()
        return positions


def _steps(raw: RawBytes, position: int, stop: int, count: int) -> Integers:
    """Follow the size fields record by record."""
    data, size = raw.data, raw.size
    unpack = BLANK.unpack_from
    steps: list[int] = []
    while position < stop and len(steps) < count and position + RECORD_BYTES_MIN <= size:
        length, magic = unpack(data, position)
        if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_BYTES_MIN <= length <= size - position:
            break
        steps.append(position)
        position += length
    return np.array(steps, np.int64)


def _sync_points(raw: RawBytes, begins: Integers, reach: int, base: int) -> Integers:
    """Return the first candidate record that holds its own offset, in the `reach` bytes behind each
    of these (equally spaced) positions, if any."""
    if not len(begins):
        return begins
    step = int(begins[1] - begins[0]) if len(begins) > 1 else reach
    windows = np.lib.stride_tricks.as_strided(
        raw.flat[int(begins[0]) :], (len(begins), reach), (step, 1), writeable=False
    )
    rows, places = np.divmod(np.flatnonzero(windows == _MAGIC_BYTE), reach)
    at = begins[rows] + places - MAGIC_AT
    fits = (at >= begins[rows]) & (at + RECORD_BYTES_MIN <= raw.size)
    rows, at = rows[fits], at[fits]
    magic = raw.unsigned(at + MAGIC_AT, MAGIC_BYTES).astype(np.uint64)
    good = (magic == _MAGICS[0]) | (magic == _MAGICS[1])
    rows, at = rows[good], at[good]
    own = raw.signed64(at + AT[PHYSICAL_OFFSET]) == at + base
    rows, at = rows[own], at[own]
    points: Integers = at[np.unique(rows, return_index=True)[1]]
    return points


def _hop(raw: RawBytes, starts: Integers, limits: Integers) -> tuple[Integers, Integers]:
    """Move all walkers, each to its limit or to the first invalid record; return every position
    visited (unsorted) and where each ended."""
    last = raw.size - BLANK_BYTES
    every: Any = np.ndarray((max(last + 1, 0),), _SIZE_AND_MAGIC, raw.data, strides=(1,))
    ends = starts.copy()
    number = np.arange(len(starts))
    at = starts
    met: list[Integers] = []
    while len(at):
        head = every[np.minimum(at, last)].astype(np.uint64)
        size = (head >> np.uint64(32)).astype(np.int64)
        magic = head & np.uint64(0xFFFFFFFF)
        good = (magic == _MAGICS[0]) | (magic == _MAGICS[1])
        good &= (size >= RECORD_BYTES_MIN) & (at + size <= raw.size)
        good &= at <= last
        if not good.all():
            at, size, number, limits = at[good], size[good], number[good], limits[good]
        met.append(at)
        at = at + size
        ends[number] = at
        going = at < limits
        if not going.all():
            at, number, limits = at[going], number[going], limits[going]
    return np.concatenate(met), ends


def _find_blank(data: memoryview, begin: int, end: int) -> int:
    """Return the position in [begin, end) of the blank that reaches exactly to the end of `data`,
    or -1."""
    for chunk in range(begin, end, _SEARCH_BYTES):
        window = bytes(data[chunk : min(chunk + _SEARCH_BYTES, end) + BLANK_BYTES])
        at = window.find(_BLANK_MAGIC, 4)
        while at >= 0:
            position = chunk + at - 4
            if BLANK.unpack_from(data, position)[0] == len(data) - position and position < end:
                return position
            at = window.find(_BLANK_MAGIC, at + 1)
    return -1


def _used_end(raw: RawBytes, begin: int, end: int) -> int:
    """Return the position behind the last non-zero byte in [begin, end), or `begin`."""
    for stop in range(end, begin, -_SEARCH_BYTES):
        start = max(stop - _SEARCH_BYTES, begin)
        # Of a copy: a live log is written meanwhile, which nonzero itself refuses.
        used = np.flatnonzero(raw.flat[start:stop] != 0)
        if len(used):
            return start + int(used[-1]) + 1
    return begin
