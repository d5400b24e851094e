"""Splits: byte ranges of segments, one per task.

    splits = plan(["/data/store"])                 # about equal parts of every segment
    for split in splits: for batch in decode(split): ...

A split contains every record that *starts* in [start, end). The decoder finds its first record with
`scan.sync`, because a record contains its own physical offset. Segments are found by file name; no
consume queue is needed. Splits end at the `safe_end` of the store. Takes no lock, writes nothing.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .safe_end import safe_end
from .segments import Segment, segments

SPLIT_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Split:
    """A range of one segment; `start` and `end` are physical offsets."""

    root: str
    base: int
    path: str
    start: int
    end: int
    broker: str
    #: Physical offsets of the wanted records, ascending; None: all that start in the range.
    picked: tuple[int, ...] | None = None


def brokers_of(roots: Sequence[str], names: Sequence[str] = ()) -> tuple[str, ...]:
    """Return a broker name for each store: as given, else the directory's name.

    If two directories have the same name, their parents' names are prepended.
    """
    if names:
        return tuple(names)
    paths = [Path(os.path.abspath(root)) for root in roots]
    short = [path.name for path in paths]
    if len(set(short)) == len(short):
        return tuple(short)
    return tuple("-".join(path.parts[-2:]) for path in paths)


def plan(
    roots: Sequence[str],
    split_bytes: int = SPLIT_BYTES,
    start: int | None = None,
    end: int | None = None,
    *,
    brokers: Sequence[str] = (),
) -> list[Split]:
    """Return splits of the records that start in [start, end) of every store, in log order.

    `end` is limited to the safe end of the store. Raises UnreachableError.
    """
    found: list[Split] = []
    for root, broker in zip(roots, brokers_of(roots, brokers), strict=True):
        log = segments(root)
        limit = safe_end(root, log)
        if end is not None:
            limit = min(limit, end)
        for segment in log:
            first = max(segment.base, start or 0)
            found += split_segment(
                root, broker, segment, (first, min(segment.end, limit)), split_bytes
            )
    return found


def split_segment(
    root: str, broker: str, segment: Segment, part: tuple[int, int], split_bytes: int
) -> list[Split]:
    """Divide a range [start, end) of one segment into parts of about `split_bytes`."""
    first, limit = part
    if first >= limit:
        return []
    count = max(round((limit - first) / max(split_bytes, 1)), 1)
    borders = [first + (limit - first) * number // count for number in range(count + 1)]
    return [
        Split(root, segment.base, segment.path, begin, stop, broker)
        for begin, stop in itertools.pairwise(borders)
    ]
