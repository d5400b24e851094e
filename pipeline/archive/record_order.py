"""Sorts the records of a split by topic, day, queue and queue offset. Pure NumPy.

A log has the records of a queue in order, so one stable sort by small numbers mostly suffices. The
scanned columns are copied batch by batch into one block of memory, which causes far fewer page
faults than separate arrays per column and batch.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...store.format.record_layout import (
    BORN_HOST_V6,
    HOST_V4_BYTES,
    STORE_HOST_V6,
)
from ...store.scan.walk import Columns, RawBytes

Integers = npt.NDArray[np.int64]

_MS_PER_DAY: Final = 86_400_000
#: Numbers of up to 16 bits use a counting sort.
_SMALL: Final = 1 << 16
#: Columns that no row needs.
_UNUSED: Final = ("magic", "topic_start", "topic_length", "crc_ok")
_KEPT: Final = tuple(name for name in Columns.__slots__ if name not in _UNUSED)
_HOSTS: Final = {
    _KEPT.index("born_host_start"): BORN_HOST_V6,
    _KEPT.index("store_host_start"): STORE_HOST_V6,
}
_FLAGS: Final = _KEPT.index("sys_flag")


def sort_records(
    raw: RawBytes, batches: Iterator[Columns], bytes_left: int
) -> tuple[Columns, Integers]:
    """Return all records of the batches in the archive's order, and the day of each.

    `bytes_left` is the length of their log range. The columns `_UNUSED` have no valid values.
    """
    block = _together(raw, batches, bytes_left)
    found = dict(zip(_KEPT, block, strict=True))
    days = found["store_timestamp"] // _MS_PER_DAY
    order = _order(found["topic_id"], days, found["queue_id"], found["queue_offset"])
    out = np.empty_like(block)
    for column, target in zip(block, out, strict=True):
        np.take(column, order, out=target)
    kept = dict(zip(_KEPT, out, strict=True))
    unused = dict.fromkeys(_UNUSED, kept["position"])
    return Columns(**kept, **unused), days[order]


def _together(raw: RawBytes, batches: Iterator[Columns], bytes_left: int) -> Integers:
    """Return the columns as rows of one matrix."""
    block = np.empty((len(_KEPT), 0), np.int64)
    count = 0
    hosts = [_Host(raw, flag) for flag in _HOSTS.values()]
    for batch in batches:
        end = count + len(batch)
        if end > block.shape[1]:
            covered = int(batch.position[-1] - batch.position[0] + batch.size[-1])
            more = len(batch) * bytes_left // covered
            larger = np.empty((len(_KEPT), max(end, count + more + len(batch) // 8)), np.int64)
            larger[:, :count] = block[:, :count]
            block = larger
        part = block[:, count:end]
        for target, name in zip(part, _KEPT, strict=True):
            target[:] = getattr(batch, name)
        for host, row in zip(hosts, _HOSTS, strict=True):
            host.settle(part[row], part[_FLAGS])
        count = end
        bytes_left -= int(batch.size.sum())
    return block[:, :count]


class _Host:
    """Redirects equal hosts to their first occurrence, because sorted rows are far apart."""

    def __init__(self, raw: RawBytes, long: int) -> None:
        self._raw = raw
        self._long = long
        self._place = -1
        self._packed: Any = None

    def settle(self, starts: Integers, flags: Integers) -> None:
        """Point the starts of equal IPv4 hosts to the first occurrence."""
        if (flags & self._long).any():
            return
        packed = self._raw.blocks(starts, HOST_V4_BYTES).view(np.uint64)
        if self._place < 0:
            self._place, self._packed = int(starts[0]), packed[0]
        starts[packed == self._packed] = self._place


def _order(topics: Integers, days: Integers, queues: Integers, offsets: Integers) -> Integers:
    if not len(topics):
        return np.empty(0, np.int64)
    widths = []
    codes = np.zeros(len(topics), np.int64)
    for numbers in (topics, days, queues):
        low, high = int(numbers.min()), int(numbers.max())
        widths.append(high - low + 1)
        if np.prod(widths, dtype=float) >= _SMALL:
            return np.lexsort((offsets, queues, days, topics))
        codes = codes * widths[-1] + (numbers - low)
    order = np.argsort(codes.astype(np.uint16), kind="stable")
    codes, offsets = codes[order], offsets[order]
    if ((offsets[1:] < offsets[:-1]) & (codes[1:] == codes[:-1])).any():
        return order[np.lexsort((offsets, codes))]  # there are records that are in no queue
    return order
