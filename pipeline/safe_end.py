"""How far a store may be read from its files: never beyond what is confirmed, never a torn record.

    where the store says it         `ha/positions` (replication): the confirm offset, at most a second old
    everywhere                      the end of the whole records of the last segments

A live broker writes while we read, so the last records count only if their bodies fit their checksums:
half-written ones do not. The log of a broker that was killed is read to its last whole record, as the
broker's own recovery would. Losing `ha/positions` means that the second rule alone counts. Its form is two
slots of text (HA note, section 6.5): magic, sequence, CRC-32, length, JSON.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from ..store.scan.files import open_bytes
from ..store.scan.walk import OnCorrupt, StopReason, is_empty, is_record, sync, walk

if TYPE_CHECKING:
    from .splits import Segment

_SLOT_BYTES: Final = 4096
_SLOT_MAGIC: Final = b"cometmq-ha1 "
_SLOT_HEADER_BYTES: Final = 49
#: The checkpoint's fields that name the start of a whole record (store format, section 5).
_CHECKPOINT_RECORDS: Final = struct.Struct(">32xqq")
#: Of the end of the log are checked by their checksums; a broker appends less at a time.
_TAIL_BYTES: Final = 8 << 20


def safe_end(root: str, log: Sequence[Segment], known: int = 0) -> int:
    """The offset behind the last record that may be read. `known`: an end that was found before."""
    confirmed = confirmed_end(root)
    for segment in reversed(log):
        if confirmed is not None and confirmed <= segment.base and segment is not log[0]:
            continue
        end = whole_end(segment, _record_starts(root), known)
        if end > segment.base or segment is log[0]:
            return end if confirmed is None else border_below(segment, min(end, confirmed))
    return 0


def border_below(segment: Segment, limit: int) -> int:
    """The end of the last record that ends at `limit` or below: followers confirm parts of records."""
    view = open_bytes(Path(segment.path))
    place = limit - segment.base
    if place >= len(view) or place <= 0 or _is_border(view, place, segment.base):
        return max(limit, segment.base)
    end = 0
    for columns in walk(view, segment.base, 0, place, "skip"):
        ends = columns.position + columns.size
        whole = ends[ends <= place]
        end = int(whole[-1]) if len(whole) else end
    return segment.base + end


def confirmed_end(root: str) -> int | None:
    """The confirm offset that replication left in the store; None where there is none."""
    try:
        data = (Path(root) / "ha" / "positions").read_bytes()
    except OSError:
        return None
    slots = [_slot(data[at : at + _SLOT_BYTES]) for at in (0, _SLOT_BYTES)]
    valid = [slot for slot in slots if slot is not None]
    return max(valid)[1] if valid else None


def _slot(slot: bytes) -> tuple[int, int] | None:
    """Sequence and confirm offset of one slot; None for one that is damaged or was never written."""
    if not slot.startswith(_SLOT_MAGIC) or len(slot) != _SLOT_BYTES:
        return None
    try:
        sequence, crc, length = int(slot[12:32]), int(slot[33:41], 16), int(slot[42:48])
        body = slot[_SLOT_HEADER_BYTES : _SLOT_HEADER_BYTES + length]
        if crc != zlib.crc32(body, zlib.crc32(b"%020d %06d" % (sequence, length))):
            return None
        return sequence, int(json.loads(body)["confirm"])
    except (ValueError, KeyError, TypeError):
        return None


def _record_starts(root: str) -> list[int]:
    """Places where records start that the checkpoint names; from there on the log is walked."""
    try:
        data = (Path(root) / "checkpoint").read_bytes()
        named = _CHECKPOINT_RECORDS.unpack_from(data)
    except (OSError, struct.error):
        named = (0, 0)
    return sorted(named, reverse=True)


def whole_end(segment: Segment, starts: Sequence[int] = (), known: int = 0) -> int:
    """The offset behind the last whole record of a segment (behind its blank: its end).

    The walk begins at `known`, where the log ended before, or at the first of `starts` at which a record
    lies, else where the segment begins.
    Records with damage in the middle of the log are not for this function to find: it goes on behind them.
    """
    view = open_bytes(Path(segment.path))
    begin = 0
    for start in (known, *starts):
        place = start - segment.base
        if 0 < place < len(view) and (
            is_record(view, place, segment.base, check_crc=False)
            or (start == known and is_empty(view, place))
        ):
            begin = place
            break
    end, stop = _walked(view, segment.base, begin, "fail")
    if stop is StopReason.DAMAGED:  # in the middle, or half of a record at the end
        end, stop = _walked(view, segment.base, end, "skip")
    if stop is StopReason.BLANK:
        return segment.end
    return segment.base + _untorn(view, segment.base, begin, end)


def _is_border(view: memoryview, place: int, base: int) -> bool:
    """A record starts here, or nothing is written behind what was found before."""
    return is_record(view, place, base, check_crc=False) or is_empty(view, place)


def _walked(
    view: memoryview, base: int, begin: int, on_corrupt: OnCorrupt
) -> tuple[int, StopReason | None]:
    walking = walk(view, base, begin, len(view), on_corrupt)
    end = begin
    for columns in walking:
        end = int(columns.position[-1] + columns.size[-1])
    return end, walking.stop


def _untorn(view: memoryview, base: int, begin: int, end: int) -> int:
    """`end` without last records whose bodies are not written yet."""
    tail = max(begin, end - _TAIL_BYTES)
    position = tail if tail == begin else sync(view, base, tail, end)
    if position < 0:  # one record is larger
        return end
    last = position
    flat = np.frombuffer(view, np.uint8)
    for columns in walk(view, base, position, end, "skip", check_crc=True):
        ends = columns.position + columns.size
        # Properties have no checksum, but they never end in a zero; half-written ones do.
        whole = ends[(columns.properties_length == 0) | (flat[ends - 1] != 0)]
        last = int(whole[-1]) if len(whole) else last
    return last
