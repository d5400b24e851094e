"""Applies a `TopicFilter` to columns of records before their bodies are read."""

from __future__ import annotations

from typing import Final

import numpy as np

from ..store.format.record_layout import (
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from ..store.scan.columns import Columns, TopicTable
from ..store.scan.properties import value_spans
from ..store.scan.raw import BytesTable, Flags, Integers, RawBytes
from .inner_batch import WRAPPED
from .selection import TopicFilter

#: Distinct tags held in memory; beyond, the table is cleared.
_TAGS_MAX: Final = 50_000


class RowFilter:
    """Applies a filter to the batches of one walk."""

    def __init__(self, chosen: TopicFilter, topics: TopicTable) -> None:
        self._filter = chosen
        self._topics = topics
        self._wanted = np.empty(0, np.bool_)  # by topic number
        # Queues with a range, ascending: topic number << 32 | queue id.
        self._keys = np.empty(0, np.int64)
        self._starts = np.empty(0, np.int64)
        self._ends = np.empty(0, np.int64)
        self._tags = BytesTable()
        self._wanted_tags = np.empty(0, np.bool_)
        self._by_queue = chosen.ranges is not None or chosen.queues is not None

    def take(self, raw: RawBytes, columns: Columns, *, inner: bool = False) -> Columns:
        """Return the records that match.

        A record that holds a batch is kept if any of its messages may match; the messages are
        filtered again with `inner`.
        """
        self._match_new_topics()
        keep = self._wanted[columns.topic_id]
        if self._by_queue and keep.any():
            keep &= self._in_range(columns, inner)
        keep &= self._in_bounds(columns, inner)
        if self._filter.tags is not None and keep.any():
            keep = self._with_tags(raw, columns, keep, inner)
        return columns if keep.all() else columns.take(keep)

    def _match_new_topics(self) -> None:
        names = self._topics.names
        known = len(self._wanted)
        if len(names) == known:
            return
        fresh = [self._filter.matches(name) for name in names[known:]]
        self._wanted = np.concatenate((self._wanted, np.array(fresh, np.bool_)))
        if not self._by_queue:
            return
        numbers = {name: number for number, name in enumerate(names)}
        found = sorted(
            (numbers[topic] << 32 | queue, start, end)
            for (topic, queue), (start, end) in self._ranges().items()
            if topic in numbers
        )
        table = np.array(found, np.int64).reshape(-1, 3)
        self._keys, self._starts, self._ends = table[:, 0], table[:, 1], table[:, 2]

    def _ranges(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the range of every matching queue."""
        if self._filter.ranges is None:
            queues = self._filter.queues or {}
            return {(t, q): (0, 1 << 62) for t, wanted in queues.items() for q in wanted}
        return {
            (topic, queue): bounds
            for (topic, queue), bounds in self._filter.ranges.items()
            if self._filter.matches_queue(topic, queue)
        }

    def _in_range(self, columns: Columns, inner: bool) -> Flags:
        if not len(self._keys):
            return np.zeros(len(columns), np.bool_)
        keys = columns.topic_id << 32 | columns.queue_id & 0xFFFFFFFF
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        offsets = columns.queue_offset
        late_enough = offsets >= self._starts[at]
        if not inner:
            late_enough |= (columns.sys_flag & WRAPPED) == WRAPPED
        kind = columns.sys_flag & TRANSACTION_MASK
        # Prepared and rolled-back records are in no queue and have no queue offset.
        queued = (kind != TRANSACTION_PREPARED) & (kind != TRANSACTION_ROLLBACK)
        found: Flags = (self._keys[at] == keys) & late_enough & (offsets < self._ends[at]) & queued
        return found

    def _in_bounds(self, columns: Columns, inner: bool) -> Flags:
        chosen = self._filter
        found: Flags = np.ones(len(columns), np.bool_)
        if chosen.queue_ids is not None:
            found &= np.isin(columns.queue_id, list(chosen.queue_ids))
        if chosen.times_ms is not None:
            start, end = chosen.times_ms
            found &= (columns.store_timestamp >= start) & (columns.store_timestamp < end)
        if chosen.offsets is not None:
            start, end = chosen.offsets
            inside = (columns.queue_offset >= start) & (columns.queue_offset < end)
            if not inner:  # the store writes the first offset of a batch, or 0
                inside |= (columns.sys_flag & WRAPPED) == WRAPPED
            found &= inside
        return found

    def _with_tags(self, raw: RawBytes, columns: Columns, keep: Flags, inner: bool) -> Flags:
        rows = np.flatnonzero(keep)
        starts, lengths = columns.properties_start[rows], columns.properties_length[rows]
        at, sizes = value_spans(raw, starts, lengths, b"TAGS")
        wanted = np.zeros(len(rows), np.bool_)
        tagged = np.flatnonzero(sizes)
        wanted[tagged] = self._match_tags(raw, at[tagged], sizes[tagged])
        if not inner:
            wanted |= (columns.sys_flag[rows] & WRAPPED) == WRAPPED
        found = np.zeros(len(columns), np.bool_)
        found[rows[wanted]] = True
        return found

    def _match_tags(self, raw: RawBytes, starts: Integers, lengths: Integers) -> Flags:
        if len(self._tags) > _TAGS_MAX:
            self._tags, self._wanted_tags = BytesTable(), self._wanted_tags[:0]
        numbers = self._tags.numbers(raw, starts, lengths)
        names = self._filter.tags or frozenset()
        fresh = [
            one.decode("utf-8", "replace") in names
            for one in self._tags.values[len(self._wanted_tags) :]
        ]
        self._wanted_tags = np.concatenate((self._wanted_tags, np.array(fresh, np.bool_)))
        found: Flags = self._wanted_tags[numbers]
        return found


def joined(parts: list[Columns]) -> Columns:
    """Concatenate columns of the same log bytes."""
    if len(parts) == 1:
        return parts[0]
    names = Columns.__slots__
    return Columns(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
