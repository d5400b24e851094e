"""Safe end of a store's log: the physical offset up to which its files may be read.

    with replication      the confirm offset in `ha/positions`, at most one second old
    always                the end of the last whole record

A live broker writes concurrently, so the last records count only if their bodies match their
checksums. The log of a killed broker is read to its last whole record, as in the broker's recovery.
Without `ha/positions` only the second rule applies (docs/formats/ha.md, section 6.5).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from ..store.format.checkpoint import Checkpoint
from ..store.format.layout import CHECKPOINT_FILE, POSITIONS_FILE, REPLICA_FOLDER
from ..store.format.slot_file import newest_slot
from ..store.scan.files import open_bytes
from ..store.scan.walk import OnCorrupt, StopReason, is_empty, is_record, sync, walk
from .segments import Segment

#: Bytes at the end of the log whose checksums are verified; a broker appends less at a time.
_TAIL_BYTES: Final = 8 << 20


def safe_end(root: str, log: Sequence[Segment], known: int = 0) -> int:
    """Return the offset after the last readable record. `known`: an end that was found before."""
    confirmed = confirmed_end(root)
    for segment in reversed(log):
        if confirmed is not None and confirmed <= segment.base and segment is not log[0]:
            continue
        end = whole_end(segment, _record_starts(root), known)
        if end > segment.base or segment is log[0]:
            return end if confirmed is None else boundary_below(segment, min(end, confirmed))
    return 0


def boundary_below(segment: Segment, limit: int) -> int:
    """Return the end of the last record that ends at or below `limit`.

    A confirm offset may lie inside a record.
    """
    view = open_bytes(Path(segment.path))
    position = limit - segment.base
    if position >= len(view) or position <= 0 or _is_boundary(view, position, segment.base):
        return max(limit, segment.base)
    end = 0
    for columns in walk(view, segment.base, 0, position, "skip"):
        ends = columns.position + columns.size
        whole = ends[ends <= position]
        end = int(whole[-1]) if len(whole) else end
    return segment.base + end


def confirmed_end(root: str) -> int | None:
    """Return the confirm offset of `ha/positions`; None without a valid one."""
    try:
        newest = newest_slot((Path(root) / REPLICA_FOLDER / POSITIONS_FILE).read_bytes())
        return None if newest is None else int(newest[1]["confirm"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _record_starts(root: str) -> list[int]:
    """Return the starts of records named by the checkpoint, latest first."""
    try:
        found = Checkpoint.decode((Path(root) / CHECKPOINT_FILE).read_bytes())
    except OSError:
        found = Checkpoint()
    return sorted((found.confirm_physical_offset, found.queues_durable_to), reverse=True)


def whole_end(segment: Segment, starts: Sequence[int] = (), known: int = 0) -> int:
    """Return the offset after the last whole record of a segment (its end if it has a blank).

    The walk begins at `known`, an end that was found before, or at the first of `starts` at which
    a record begins, else at the start of the segment. Damage in the middle of the log is skipped.
    """
    view = open_bytes(Path(segment.path))
    begin = 0
    for start in (known, *starts):
        position = start - segment.base
        if 0 < position < len(view) and (
            is_record(view, position, segment.base, check_crc=False)
            or (start == known and is_empty(view, position))
        ):
            begin = position
            break
    end, stop = _walk_end(view, segment.base, begin, "fail")
    if stop is StopReason.DAMAGED:  # in the middle, or half of a record at the end
        end, stop = _walk_end(view, segment.base, end, "skip")
    if stop is StopReason.BLANK:
        return segment.end
    return segment.base + _without_torn_records(view, segment.base, begin, end)


def _is_boundary(view: memoryview, position: int, base: int) -> bool:
    """Whether a record starts here or nothing is written from here on."""
    return is_record(view, position, base, check_crc=False) or is_empty(view, position)


def _walk_end(
    view: memoryview, base: int, begin: int, on_corrupt: OnCorrupt
) -> tuple[int, StopReason | None]:
    walking = walk(view, base, begin, len(view), on_corrupt)
    end = begin
    for columns in walking:
        end = int(columns.position[-1] + columns.size[-1])
    return end, walking.stop


def _without_torn_records(view: memoryview, base: int, begin: int, end: int) -> int:
    """Return `end` without the last records whose bodies are not completely written."""
    tail = max(begin, end - _TAIL_BYTES)
    position = tail if tail == begin else sync(view, base, tail, end)
    if position < 0:  # one record is larger
        return end
    last = position
    flat = np.frombuffer(view, np.uint8)
    for columns in walk(view, base, position, end, "skip", check_crc=True):
        ends = columns.position + columns.size
        # Properties have no checksum, but never end in a zero byte; half-written ones do.
        whole = ends[(columns.properties_length == 0) | (flat[ends - 1] != 0)]
        last = int(whole[-1]) if len(whole) else last
    return last
