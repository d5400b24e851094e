"""`store diff`: the first difference of two stores, in the log and in every queue.

Logs are compared byte by byte over their common range; a replica's log is a copy, so the first
different byte is where the histories diverge. A different log start is no difference: retention may
have deleted more on one side. Queues are compared unit by unit (docs/formats/store-format.md,
sections 1-3).
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from ..format.record_layout import FILLER_SIZE
from ..scan.files import open_bytes
from .layout import DataFile, FileQueue, Layout, QueueFolder
from .listing import segments
from .log_walk import LogWalk, locate
from .queue_view import OpenFiles, read_units, written_units

_CHUNK_BYTES: Final = 1 << 20
_UNITS: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference: in "log", or in the queue `topic/id`; `at` is a log offset or a unit
    number."""

    where: str
    at: int
    what: str
    a: str
    b: str

    def document(self) -> dict[str, Any]:
        return asdict(self)


def diff(first: Layout, second: Layout) -> Iterator[Divergence]:
    """Yield the first difference of the logs, then of each queue. Raises OSError."""
    difference = diff_logs(first, second)
    if difference is not None:
        yield difference
    yield from diff_queues(first, second)


def log_end(layout: Layout) -> int:
    """Return the offset behind the last record."""
    ends = [row["end"] for row in segments(layout) if row["first_ms"] is not None]
    return max(ends, default=layout.log.start)


def diff_logs(first: Layout, second: Layout) -> Divergence | None:
    """Return the first offset at which the bytes differ, or at which one log ends."""
    ends = log_end(first), log_end(second)
    begin = max(first.log.start, second.log.start)
    end = min(ends)
    offset = begin
    while offset < end:
        one, other = _file_at(first.log, offset), _file_at(second.log, offset)
        if one is None or other is None:
            have = ["there is a segment" if f else "the segment is missing" for f in (one, other)]
            return Divergence("log", offset, "A segment is missing.", *have)
        stop = min(end, one.start + first.log.size, other.start + second.log.size)
        at = _first_difference(one, other, offset, stop)
        if at >= 0:
            return _log_divergence(first, second, at, (one, other))
        offset = stop
    if ends[0] != ends[1]:
        what = "One log ends, the other continues."
        return Divergence("log", end, what, f"ends at {ends[0]}", f"ends at {ends[1]}")
    return None


def _file_at(files: FileQueue, offset: int) -> DataFile | None:
    for file in files.files:
        if file.start <= offset < file.start + min(files.size, file.length):
            return file
    return None


def _first_difference(one: DataFile, other: DataFile, begin: int, end: int) -> int:
    """Return the first offset in [begin, end) at which the two files differ, or -1."""
    a, b = open_bytes(one.path), open_bytes(other.path)
    for offset in range(begin, end, _CHUNK_BYTES):
        stop = min(offset + _CHUNK_BYTES, end)
        left = a[offset - one.start : stop - one.start]
        right = b[offset - other.start : stop - other.start]
        if left == right:
            continue
        size = min(len(left), len(right))
        x = np.frombuffer(left[:size], np.uint8)
        y = np.frombuffer(right[:size], np.uint8)
        apart = np.flatnonzero(x != y)
        return offset + (int(apart[0]) if len(apart) else size)
    return -1


def _log_divergence(
    first: Layout, second: Layout, at: int, files: tuple[DataFile, DataFile]
) -> Divergence:
    said = [
        _record_around(layout, file, at)
        for layout, file in zip((first, second), files, strict=True)
    ]
    return Divergence("log", at, "The bytes of the logs differ from this offset on.", *said)


def _record_around(layout: Layout, file: DataFile, at: int) -> str:
    """Return a description of the record that contains the byte."""
    walk = LogWalk(layout, begin=file.start, end=at + 1)
    last = None
    for batch in walk:
        last = (batch.columns, batch.topics)
    if last is None:
        return "no record"
    columns, topics = last
    start = int(columns.physical_offset[-1])
    if at >= start + int(columns.size[-1]) or locate(layout, start, "record") is None:
        return f"no record at {at}"
    topic = topics.names[int(columns.topic_id[-1])]
    place = f"{topic}/{int(columns.queue_id[-1])}/{int(columns.queue_offset[-1])}"
    return f"record {place} at {start}"


def diff_queues(first: Layout, second: Layout) -> Iterator[Divergence]:
    """Yield the first different unit of every queue of either store."""
    ours = {(q.topic, q.queue_id): q for q in first.of_kind("consumequeue")}
    theirs = {(q.topic, q.queue_id): q for q in second.of_kind("consumequeue")}
    start = max(first.log.start, second.log.start)
    opened = OpenFiles()
    try:
        for key in sorted(ours.keys() | theirs.keys()):
            name = f"{key[0]}/{key[1]}"
            pair = ours.get(key), theirs.get(key)
            ranges = [_range(q, start, opened) if q is not None else (0, 0) for q in pair]
            if pair[0] is not None and pair[1] is not None:
                difference = _diff_queue(name, (pair[0], pair[1]), ranges, opened)
            else:
                difference = _one_has_it(name, ranges)
            if difference is not None:
                yield difference
    finally:
        opened.close()


def _range(queue: QueueFolder, start: int, opened: OpenFiles) -> tuple[int, int]:
    """Return the numbers of the units that point to `start` or behind: first, and behind the
    last."""
    first, end = -1, 0
    for number, units in written_units(opened, queue):
        used = np.flatnonzero(units["size"] > 0)
        if not len(used):
            continue
        end = number + int(used[-1]) + 1
        held = (units["offset"] >= start) & (units["size"] > 0) & (units["size"] != FILLER_SIZE)
        if first < 0 and held.any():
            first = number + int(np.argmax(held))
    return (first if first >= 0 else end), end


def _one_has_it(name: str, ranges: list[tuple[int, int]]) -> Divergence | None:
    if all(first == end for first, end in ranges):
        return None
    said = [f"{end - first} units" if end > first else "no such queue" for first, end in ranges]
    return Divergence(name, max(ranges)[0], "Only one of the stores has this queue.", *said)


def _diff_queue(
    name: str,
    pair: tuple[QueueFolder, QueueFolder],
    ranges: list[tuple[int, int]],
    opened: OpenFiles,
) -> Divergence | None:
    begin = max(first for first, _ in ranges)
    end = min(end for _, end in ranges)
    for number in range(begin, end, _UNITS):
        count = min(_UNITS, end - number)
        left, right = (read_units(opened, queue, number, count) for queue in pair)
        apart = np.flatnonzero(
            (left["offset"] != right["offset"]) | (left["size"] != right["size"])
        )
        if len(apart):
            at = int(apart[0])
            said = [f"offset {u[at]['offset']}, {u[at]['size']} bytes" for u in (left, right)]
            return Divergence(name, number + at, "The units differ.", *said)
    firsts, ends = zip(*ranges, strict=True)
    if ends[0] != ends[1]:
        what = "One queue ends, the other continues."
        return Divergence(name, end, what, f"ends at {ends[0]}", f"ends at {ends[1]}")
    if firsts[0] != firsts[1]:
        said = [f"begins at {first}" for first in firsts]
        return Divergence(name, min(firsts), "Units are missing at the front.", *said)
    return None
