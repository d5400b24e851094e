"""Properties of many records: positions of values, tags codes, and records by queue.

`value_spans` is the NumPy version of `properties.property_value`: a pair begins at the start of the
properties or behind a 0x02, its name ends at the first 0x01, of a repeated name the last one with a
value counts. Records are processed in blocks of one width, so that a few long properties do not
slow down the others. A property test compares both, and `tags_codes` with `properties.tags_code`
(docs/formats/store-format.md, sections 2.4 and 3.2).
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from ..format.properties import SCHEDULE_TOPIC, java_hash, property_value, tags_code
from .columns import Columns, TopicTable
from .raw import BytesTable, Integers, RawBytes

_NAME_END: Final = 1
_PAIR_END: Final = 2
_PART_BYTES_MIN: Final = 3
_NARROWEST: Final = 64
_WIDEST: Final = 1 << 15
_BLOCK_BYTES: Final = 1 << 20
#: Maximum number of cached tags; the cache is then cleared (a topic may have a tag per message).
_TAGS_MAX: Final = 50_000


def value_spans(
    raw: RawBytes, starts: Integers, lengths: Integers, name: bytes
) -> tuple[Integers, Integers]:
    """Return start and length of the value of `name` in each of these property strings; length 0:
    none."""
    value_starts = starts.copy()
    value_lengths = np.zeros(len(starts), np.int64)
    least = len(name) + 2
    width, below = _NARROWEST, least
    while width <= _WIDEST * 2:
        which = np.flatnonzero((lengths >= below) & (lengths <= width))
        # A block must not extend beyond the buffer; only the last records' could.
        fits = starts[which] + width <= raw.size
        for at in which[~fits].tolist():
            _look(raw, at, (starts, lengths), name, (value_starts, value_lengths))
        which = which[fits]
        rows = max(_BLOCK_BYTES // width, 1)
        for begin in range(0, len(which), rows):
            part = which[begin : begin + rows]
            found, at, size = _in_block(raw, starts[part], lengths[part], width, name)
            value_starts[part[found]] = starts[part[found]] + at
            value_lengths[part[found]] = size
        below, width = width + 1, width * 2
    return value_starts, value_lengths


def _look(
    raw: RawBytes,
    at: int,
    places: tuple[Integers, Integers],
    name: bytes,
    found: tuple[Integers, Integers],
) -> None:
    """Find the value in one string."""
    start = int(places[0][at])
    data = raw.bytes_at(start, int(places[1][at]))
    value = property_value(data, name)
    if not value:
        return
    mark = name + b"\x01" + value
    # The last pair with a value: its name begins the string or follows a 0x02.
    place = len(data)
    while True:
        place = data.rfind(mark, 0, place)
        end = place + len(mark)
        if (not place or data[place - 1] == _PAIR_END) and data[end : end + 1] in (b"", b"\x02"):
            break
        place += len(mark) - 1
    found[0][at] = start + place + len(name) + 1
    found[1][at] = len(value)


def _in_block(
    raw: RawBytes, starts: Integers, lengths: Integers, width: int, name: bytes
) -> tuple[Integers, Integers, Integers]:
    """Return the rows that have a value, where it begins in the row, and its length."""
    flat = raw.blocks(starts, width).view(np.uint8).reshape(-1)
    marks = np.flatnonzero(flat == _NAME_END)
    marks = marks[np.searchsorted(marks, len(name)) :]
    for back, byte in enumerate(reversed(name), 1):
        marks = marks[flat[marks - back] == byte]
    rows = marks // width
    columns = marks - rows * width
    good = (columns >= len(name)) & (columns < lengths[rows])
    marks, columns, rows = marks[good], columns[good], rows[good]
    good = columns == len(name)
    good |= flat[marks - len(name) - 1] == _PAIR_END
    marks, columns, rows = marks[good], columns[good], rows[good]
    if not len(marks):
        return marks, marks, marks
    row_ends = rows * width + lengths[rows]
    pair_ends = np.append(np.flatnonzero(flat == _PAIR_END), len(flat))
    ends = np.minimum(pair_ends[np.searchsorted(pair_ends, marks)], row_ends)
    sizes = ends - marks - 1
    good = (sizes > 0) & (sizes + len(name) + 1 >= _PART_BYTES_MIN)
    rows, columns, sizes = rows[good], columns[good], sizes[good]
    # Of several in one row the last counts.
    last = np.append(rows[1:] != rows[:-1], True) if len(rows) else np.zeros(0, np.bool_)
    return rows[last], columns[last] + 1, sizes[last]


class TagsCodes:
    """Tags codes of records, with a cache of tags."""

    def __init__(self) -> None:
        self._tags = BytesTable()
        self._codes = np.empty(0, np.int64)

    def of(self, raw: RawBytes, columns: Columns, topics: TopicTable) -> Integers:
        """Return the `properties.tags_code` of each record."""
        starts, lengths = columns.properties_start, columns.properties_length
        at, sizes = value_spans(raw, starts, lengths, b"TAGS")
        codes = np.zeros(len(columns), np.int64)
        tagged = np.flatnonzero(sizes)
        if len(tagged):
            if len(self._tags) > _TAGS_MAX:
                self._tags, self._codes = BytesTable(), self._codes[:0]
            numbers = self._tags.numbers(raw, at[tagged], sizes[tagged])
            fresh = [
                java_hash(tag.decode("utf-8", "replace"))
                for tag in self._tags.values[len(self._codes) :]
            ]
            self._codes = np.concatenate((self._codes, np.array(fresh, np.int64)))
            codes[tagged] = self._codes[numbers]
        if SCHEDULE_TOPIC in topics.names:
            scheduled = columns.topic_id == topics.names.index(SCHEDULE_TOPIC)
            for row in np.flatnonzero(scheduled).tolist():
                properties = raw.bytes_at(int(starts[row]), int(lengths[row]))
                codes[row] = tags_code(
                    SCHEDULE_TOPIC, properties, int(columns.store_timestamp[row])
                )
        return codes


def by_queue(columns: Columns) -> Iterator[tuple[int, int, Integers]]:
    """Yield topic number, queue id and the rows of that queue in log order, for every queue."""
    return groups(columns.topic_id, columns.queue_id)


def groups(topic_ids: Integers, queue_ids: Integers) -> Iterator[tuple[int, int, Integers]]:
    """Group two columns likewise."""
    if not len(topic_ids):
        return
    keys = topic_ids << 32 | queue_ids & 0xFFFFFFFF
    distinct, group = np.unique(keys, return_inverse=True)
    small = group.astype(np.uint16) if len(distinct) <= 1 << 16 else group
    order = np.argsort(small, kind="stable")
    ends = np.cumsum(np.bincount(group, minlength=len(distinct))).tolist()
    begin = 0
    for key, end in zip(distinct.tolist(), ends, strict=True):
        queue_id = key & 0xFFFFFFFF
        yield key >> 32, queue_id - (queue_id >> 31 << 32), order[begin:end]
        begin = end
