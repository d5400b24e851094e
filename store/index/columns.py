"""The next records of a segment as columns, for the index (NumPy).

The index reads dispatched records in small steps, so it needs neither the lockstep nor the damage
report of `scan.walk`. Records of the common form (version 1, IPv4) take a fast path that gathers
only what the index needs; if any record of a batch differs, the whole batch goes through
`columns_at`. Damage (only a rebuild over old segments can meet it) is skipped: recovery and `store
verify` report it.
"""

import logging
import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..format.errors import RecordFormatError
from ..format.index_keys import BATCH_BYTES_MAX, Integers, RecordColumns
from ..format.record_layout import (
    BODY_LENGTH,
    FIXED_V4,
    HOSTS_V6,
    MAGIC,
    MAGIC_V1,
    PHYSICAL_OFFSET,
    RECORD_BYTES_MIN,
    SIZE,
    STORE_TIMESTAMP,
    SYS_FLAG,
)
from ..scan.columns import columns_at
from ..scan.dtypes import record_fields
from ..scan.single import inspect
from ..scan.walk import RawBytes, TopicTable, sync

logger = logging.getLogger(__name__)
_SIZE: Final = struct.Struct(">i")
_USUAL: Final = record_fields(
    size=SIZE,
    magic=MAGIC,
    place=PHYSICAL_OFFSET,
    flags=SYS_FLAG,
    time=STORE_TIMESTAMP,
    body=BODY_LENGTH,
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
    """Return the records in [position, limit) of `data`, and the position behind them. None without
    records: the new position is then behind a blank or damage, or at a record that crosses the
    limit."""
    raw = RawBytes(data)
    positions = _record_starts(data, position, limit, records_max)
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


def _record_starts(data: Any, position: int, limit: int, records_max: int) -> Integers:
    """Return candidate record starts, following the size fields."""
    unpack = _SIZE.unpack_from
    starts: list[int] = []
    add = starts.append
    last = limit - RECORD_BYTES_MIN
    for _ in range(records_max):
        if position > last:
            break
        (size,) = unpack(data, position)
        if size < RECORD_BYTES_MIN or position + size > limit:
            break
        add(position)
        position += size
    return np.array(starts, np.int64)


def _usual(raw: RawBytes, base: int, positions: Integers, limit: int) -> IndexColumns | None:
    """Return all of these records, if every one is whole and of the common form."""
    if not len(positions):
        return None
    head = raw.blocks(positions, FIXED_V4.size).view(_USUAL)
    flags = head["flags"].astype(np.int64)
    ok = (head["magic"] == MAGIC_V1) & (flags & HOSTS_V6 == 0)
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
    """Return the next position; no readable record begins at `position` and ends before `limit`."""
    try:
        inspected = inspect(data, position, base, check_crc=False)
        if inspected.blank:
            return len(data)
        if position + inspected.size > limit:
            return position
        end = position + inspected.size  # its topic is not UTF-8
    except RecordFormatError:
        following = sync(data, base, position + 1, limit)
        end = limit if following < 0 else following
    logger.warning("index.skipped begin=%d end=%d", base + position, base + end)
    return end
