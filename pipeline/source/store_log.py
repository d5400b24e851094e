"""Logs of store directories, read from their files. Takes no lock and writes nothing.

`snapshot` determines the bounds of logs and queues; they hold until the next one.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ...store.format.layout import REPLICA_FILE, REPLICA_FOLDER
from ...store.format.record_layout import store_timestamp
from ...store.format.slot_file import newest_slot
from ...store.scan.files import open_bytes
from ...store.scan.walk import sync, walk
from ..errors import UnreachableError
from ..safe_end import safe_end
from ..segments import Segment, segments
from ..splits import Split, brokers_of, split_segment
from .log import AnySplit, BrokerLog, QueueName
from .loss import report_loss
from .marks import HEAD_BYTES, Mark, mark_of
from .queue_units import BatchUnits, OpenFiles, Units, open_units, queues_of
from .store_topics import topics_of

#: Bytes of log that cost as much as one record that is read by its queue.
_PICK_BYTES: Final = 32 << 10
#: Records that a plan names one by one.
_PICKED_MAX: Final = 200_000
#: Bytes at the end of the log in which its last record is searched, until one is found.
_TAILS: Final = (4 << 10, 64 << 10, 1 << 20, 1 << 40)


class _Store:
    """One store directory."""

    def __init__(self, root: str, wants: Callable[[str, int], bool]) -> None:
        self.root = root
        self._wants = wants
        self._known_end = 0
        self.segments: list[Segment] = []
        self.queues: dict[QueueName, Units] = {}
        self._files = OpenFiles()

    def snapshot(self, *, queues: bool) -> BrokerLog:
        self.close()
        self.segments = segments(self.root)
        end = self._known_end = safe_end(self.root, self.segments, self._known_end)
        start = self.segments[0].base if self.segments else 0
        if queues:
            self.queues = {
                (topic, queue): open_units(folder, start, end, self._files)
                for topic, queue, folder in queues_of(self.root)
                if self._wants(topic, queue)
            }
        bounds = {name: (one.first, one.end) for name, one in self.queues.items()}
        return BrokerLog(start, end, bounds)

    def close(self) -> None:
        """Close the files."""
        self._files.close()
        self.queues = {}

    def time_at(self, position: int) -> int:
        """Return the store time of the record at a physical offset; -1 if it is deleted."""
        head = self._head(position)
        return store_timestamp(head) if len(head) >= HEAD_BYTES else -1

    def mark_at(self, position: int) -> Mark | None:
        """Return the mark of the record at a physical offset; None if no record begins there."""
        return mark_of(self._head(position), position)

    def last_mark(self) -> Mark:
        """Return the mark of the last record below the readable end of the last snapshot."""
        end = self._known_end
        for segment in reversed(self.segments):
            if segment.base < end:
                position = _last_record(segment, min(end, segment.end))
                found = None if position is None else self.mark_at(position)
                if found is not None:
                    return found
        return Mark(end, -1)

    def _head(self, position: int) -> bytes:
        segment = next((one for one in self.segments if one.base <= position < one.end), None)
        if segment is None:
            return b""
        try:
            with open(segment.path, "rb") as file:
                return os.pread(file.fileno(), HEAD_BYTES, position - segment.base)
        except FileNotFoundError:
            return b""  # deleted by retention meanwhile


class StoreLog:
    """The logs of the directories of `path`."""

    physical = True

    def __init__(
        self,
        paths: Sequence[str],
        brokers: Sequence[str],
        wants: Callable[[str, str, int], bool],
        *,
        fail_on_loss: bool = True,
    ) -> None:
        """`wants(broker, topic, queue id)` selects the queues to read."""
        self._fail_on_loss = fail_on_loss
        names = broker_names(paths, brokers)
        #: Older versions named a store after its directory.
        self.former_names: Mapping[str, str] = dict(
            zip(brokers_of(paths, brokers), names, strict=True)
        )
        for path in paths:
            if not Path(path).is_dir():
                raise UnreachableError(
                    f"{path} is not a directory on this machine. The driver and every executor "
                    "must see a store under the same path (a shared file system, or one machine)."
                )
        self._stores = {
            name: _Store(path, partial(wants, name))
            for name, path in zip(names, paths, strict=True)
        }

    def snapshot(self) -> dict[str, BrokerLog]:
        return {name: store.snapshot(queues=True) for name, store in self._stores.items()}

    def log_bounds(self) -> dict[str, BrokerLog]:
        """Return the logs without queues, for reads of complete logs."""
        return {name: store.snapshot(queues=False) for name, store in self._stores.items()}

    def offsets_at_position(self, broker: str, position: int) -> dict[QueueName, int]:
        queues = self._stores[broker].queues
        return {name: units.bisect(lambda at: at, position) for name, units in queues.items()}

    def offsets_at_time(self, broker: str, time_ms: int) -> dict[QueueName, int]:
        store = self._stores[broker]
        return {name: units.bisect(store.time_at, time_ms) for name, units in store.queues.items()}

    def positions(
        self, broker: str, messages: Sequence[tuple[str, int, int]]
    ) -> list[tuple[int, int] | None]:
        queues = self._stores[broker].queues
        return [
            queues[topic, queue].position(offset) if (topic, queue) in queues else None
            for topic, queue, offset in messages
        ]

    def split_range(self, broker: str, start: int, end: int, split_bytes: int) -> list[AnySplit]:
        store = self._stores[broker]
        found: list[AnySplit] = []
        reached = start
        for segment in store.segments:
            if segment.end <= start or segment.base >= end:
                continue
            if segment.base > reached:
                report_loss(
                    _gap(store.root, reached, segment.base), fail_on_loss=self._fail_on_loss
                )
            part = (max(segment.base, start), min(segment.end, end))
            found += split_segment(store.root, broker, segment, part, split_bytes)
            reached = segment.end
        if reached < end:
            report_loss(_gap(store.root, reached, end), fail_on_loss=self._fail_on_loss)
        return found

    def pick(
        self, broker: str, ranges: Mapping[QueueName, tuple[int, int]], span: tuple[int, int]
    ) -> list[AnySplit] | None:
        store = self._stores[broker]
        count = sum(end - start for start, end in ranges.values())
        if count > _PICKED_MAX or count * _PICK_BYTES > span[1] - span[0]:
            return None
        sizes = dict(
            record
            for name, (start, end) in ranges.items()
            for record in store.queues[name].records(start, end)
        )
        if len(sizes) < count and not any(
            isinstance(store.queues[name], BatchUnits) for name in ranges
        ):
            return None  # a queue has fillers or lacks a file: the log tells what there is
        found = sorted(sizes)
        parts: list[AnySplit] = []
        there = 0
        for segment in store.segments:
            mine = found[bisect_left(found, segment.base) : bisect_left(found, segment.end)]
            if mine:
                end = mine[-1] + sizes[mine[-1]]
                place = (segment.base, segment.path, mine[0], end)
                parts.append(Split(store.root, *place, broker, tuple(mine)))
                there += len(mine)
        return parts if there == len(found) else None

    def last_mark(self, broker: str) -> Mark | None:
        return self._stores[broker].last_mark()

    def mark_at(self, broker: str, position: int) -> Mark | None:
        return self._stores[broker].mark_at(position)

    def missing_topics(self, topics: Sequence[str]) -> list[str]:
        known = set(self.topic_names())
        # A directory with only a commit log names no topics: every name is accepted.
        return [topic for topic in topics if topic not in known] if known else []

    def topic_names(self) -> list[str]:
        return sorted({name for store in self._stores.values() for name in topics_of(store.root)})

    def close(self) -> None:
        for store in self._stores.values():
            store.close()


def broker_names(paths: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Return a broker name for each store: as given, else the one that the store has recorded.

    A store without a record (Apache's) has its directory's name; so have replicas of one broker.
    """
    names = brokers_of(paths, given)
    if given:
        return names
    known = tuple(recorded_name(path) or name for path, name in zip(paths, names, strict=True))
    return known if len(set(known)) == len(known) else names


def recorded_name(root: str) -> str | None:
    """Return the broker name that a store has recorded; None if it has none."""
    try:
        newest = newest_slot((Path(root) / REPLICA_FOLDER / REPLICA_FILE).read_bytes())
        return None if newest is None else str(newest[1]["group"]) or None
    except (OSError, ValueError, KeyError):
        return None


def _last_record(segment: Segment, end: int) -> int | None:
    """Return the physical offset of the last record of a segment below `end`; None without one."""
    try:
        view = open_bytes(Path(segment.path))
    except FileNotFoundError:
        return None  # deleted by retention meanwhile
    stop = min(end - segment.base, len(view))
    for size in _TAILS:
        begin = max(stop - size, 0)
        position = sync(view, segment.base, begin, stop)
        if position >= 0:
            for columns in walk(view, segment.base, position, stop, "skip"):
                position = int(columns.position[-1])
            return position + segment.base
        if not begin:
            break
    return None


def _gap(root: str, begin: int, end: int) -> str:
    return (
        f"The log of {root} has no file for offsets {begin} to {end}: it was deleted, by retention "
        "or otherwise, or this machine has another directory under the path."
    )
