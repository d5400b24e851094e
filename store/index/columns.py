"""The next records of a segment, as columns, for the index (NumPy).

The index walks what was dispatched, in small bounded steps, so it needs neither the lockstep nor the
damage report of `scan.walk`. Records of the usual form (version 1, IPv4) are taken by a short cut that
gathers only what the index needs; where one record of a batch is anything else, the whole batch is
judged by `columns_at`. Damage (only a rebuild over old segments can meet it) is stepped over: recovery
and `store verify` report it.
"""

import logging
import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..format.errors import RecordFormatError
from ..format.index_keys import BATCH_BYTES_MAX, Integers, RecordColumns
from ..format.record import BORN_HOST_V6, FIXED_V4, MAGIC_V1, RECORD_BYTES_MIN, STORE_HOST_V6
from ..scan.columns import columns_at
from ..scan.single import inspect
from ..scan.walk import RawBytes, TopicTable, sync

logger = logging.getLogger(__name__)
_SIZE: Final = struct.Struct(">i")
_USUAL: Final = np.dtype(
    {
        "names": ["size", "magic", "place", "flags", "time", "body"],
        "formats": [">i4", ">i4", ">i8", ">i4", ">i8", ">i4"],
        "offsets": [0, 4, 28, 36, 56, 84],
        "itemsize": FIXED_V4.size,
    }
)


@dataclass(slots=True)
class IndexColumns:
    """See `RecordColumns`."""

    physical_offset: Integers
    sys_flag: Integers
    store_timestamp: Integers
    topic_start: Integers
    topic_length: Integers
    properties_start: Integers
    properties_length: Integers

    @classmethod
    def first(cls, columns: RecordColumns, count: int) -> "IndexColumns":
        return cls(
            columns.physical_offset[:count],
            columns.sys_flag[:count],
            columns.store_timestamp[:count],
            columns.topic_start[:count],
            columns.topic_length[:count],
            columns.properties_start[:count],
            columns.properties_length[:count],
        )

    def __len__(self) -> int:
        return len(self.physical_offset)

    def end(self) -> int:
        """Position behind the last record."""
        return int(self.properties_start[-1] + self.properties_length[-1])


def next_columns(
    data: Any, base: int, position: int, limit: int, records_max: int
) -> tuple[IndexColumns | None, int]:
    """Records that lie in [position, limit) of `data`, and the position behind them. None if there
    are none there: a blank or damage, which the new position is behind, or a record that goes on
    behind the limit, whose position it then is."""
    raw = RawBytes(data)
    positions = _borders(data, position, limit, records_max)
    columns = _usual(raw, base, positions, limit)
    if columns is None and len(positions):
        every, whole = columns_at(raw, base, positions, TopicTable())
        columns = IndexColumns.first(every, whole)
    if columns is None or not len(columns) or columns.end() > limit:
        return None, _behind(data, base, position, limit)
    lengths = np.cumsum(columns.properties_length)
    if lengths[-1] > BATCH_BYTES_MAX:
        count = max(int(np.searchsorted(lengths, BATCH_BYTES_MAX, "right")), 1)
        columns = IndexColumns.first(columns, count)
    return columns, columns.end()


def _borders(data: Any, position: int, limit: int, records_max: int) -> Integers:
    """Where records may begin, from size field to size field."""
    unpack = _SIZE.unpack_from
    found: list[int] = []
    add = found.append
    last = limit - RECORD_BYTES_MIN
    for _ in range(records_max):
        if position > last:
            break
        (size,) = unpack(data, position)
        if size < RECORD_BYTES_MIN or position + size > limit:
            break
        add(position)
        position += size
    return np.array(found, np.int64)


def _usual(raw: RawBytes, base: int, positions: Integers, limit: int) -> IndexColumns | None:
    """All of these records, if every one is whole and of the usual form."""
    if not len(positions):
        return None
    head = raw.blocks(positions, FIXED_V4.size).view(_USUAL)
    flags = head["flags"].astype(np.int64)
    ok = (head["magic"] == MAGIC_V1) & (flags & (BORN_HOST_V6 | STORE_HOST_V6) == 0)
    offsets = positions + base
    ok &= head["place"] == offsets
    body = head["body"].astype(np.int64)
    ends = positions + head["size"]
    topic_start = positions + (FIXED_V4.size + 1) + body
    ok &= (body >= 0) & (topic_start + 2 <= ends) & (ends <= limit)
    if not ok.all():
        return None
    topic_length = raw.unsigned(topic_start - 1, 1)
    properties_start = topic_start + topic_length + 2
    properties_length = ends - properties_start
    if (properties_length < 0).any():
        return None
    if (raw.unsigned(properties_start - 2, 2) != properties_length).any():
        return None
    return IndexColumns(
        offsets,
        flags,
        head["time"].astype(np.int64),
        topic_start,
        topic_length,
        properties_start,
        properties_length,
    )


def _behind(data: Any, base: int, position: int, limit: int) -> int:
    """Where to go on: no readable record lies at `position` and before `limit`."""
    try:
        found = inspect(data, position, base, check_crc=False)
        if found.blank:
            return len(data)
        if position + found.size > limit:
            return position
        end = position + found.size  # its topic is not UTF-8
    except RecordFormatError:
        following = sync(data, base, position + 1, limit)
        end = limit if following < 0 else following
    logger.warning("index.skipped begin=%d end=%d", base + position, base + end)
    return end
