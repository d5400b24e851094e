"""Recovery rules: a decision table, and the traces of a power loss. Pure.

A walk ends at the first position without a whole record. Four questions decide what it is:

| position  | record behind it | it was durable | bytes are missing | verdict              |
|-----------|------------------|----------------|-------------------|----------------------|
| nothing   | no               | no             | -                 | the log's end        |
| damaged   | no               | no             | -                 | torn tail: cut       |
| -         | no               | yes            | -                 | corrupt: refuse      |
| -         | yes              | yes            | -                 | corrupt: refuse      |
| -         | yes              | no             | no                | corrupt: refuse      |
| -         | yes              | no             | yes               | lost pages: cut      |

*It was durable*: after a clean stop everything was, as shown by a record behind the position or a
queue unit that points there. After an unclean stop the checkpoint shows it: its flushed end lies
behind the position. Store times show it only where Apache's broker has written the checkpoint: they
go back with the clock.

*Bytes are missing*: the damaged record overlaps a sector that is all zeros from the position on.
That is the trace of a page that was allocated and did not reach the disk before a power loss (whole
pages of 4 KiB, or the first or last sectors of one; sectors are written whole). Then the record was
never promised to be durable, and neither was anything behind it: a flush covers all that comes
before. A killed process loses no page, and other damage does not leave zeros: such a log is refused
while records follow the damage.

Without a checkpoint that holds the flushed end (a lost one, or a new store of Apache's, whose
physicMsgTimestamp is 0) damage in front of records is always refused.
"""

import enum
import itertools
import struct
from dataclasses import dataclass
from typing import Final, TypeAlias

from msgspec import Struct

from ..format.checkpoint import Checkpoint
from ..format.errors import RecordFormatError
from ..format.record_layout import (
    BLANK_BYTES,
    BODY_LENGTH,
    FIXED,
    HEAD,
    MAGIC,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET,
    SIZE,
    SYS_FLAG,
)
from ..scan.single import Buffer, inspect

#: Disks write sectors of this size whole.
SECTOR_BYTES: Final = 512
_ZEROS: Final = bytes(SECTOR_BYTES)
_SIZE_BYTES: Final = 4


class StopKind(enum.Enum):
    """What the walk found where it stopped."""

    NOTHING = "nothing"
    DAMAGED = "damaged"


class Checks(Struct, frozen=True):
    """Which checksums of a record must match; none: only its structure counts."""

    body: bool = True
    sealed: bool = False  #: that at the end of the properties too, where there is one
    record: bool = False  #: only that one, which every record must have


class Walked(Struct):
    """The whole records from `begin` on, and why they end at `end`."""

    begin: int
    end: int
    records: int = 0
    last_start: int = 0
    last_time_ms: int = 0
    kind: StopKind = StopKind.NOTHING
    reason: str = "nothing is written here."
    behind: int = 0  #: where to search for following records
    blank_end: int = 0  #: the end of the blank at `end`, if there is one and nothing behind it

    def end_at(self, kind: StopKind, reason: str) -> None:
        self.kind, self.reason = kind, reason


class Verdict(enum.Enum):
    """What the position is; the log is cut there for the first three."""

    END = "end of the log"
    TORN_TAIL = "torn tail"
    LOST_PAGES = "lost pages"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class Finding:
    """The answers to the four questions."""

    kind: StopKind
    record_behind: bool
    durable: bool
    bytes_missing: bool


_Row: TypeAlias = tuple[StopKind | None, bool, bool, bool | None, Verdict]
#: The rows of the table above, in its columns; None matches both.
ROWS: Final[tuple[_Row, ...]] = (
    (StopKind.NOTHING, False, False, None, Verdict.END),
    (StopKind.DAMAGED, False, False, None, Verdict.TORN_TAIL),
    (None, False, True, None, Verdict.CORRUPT),
    (None, True, True, None, Verdict.CORRUPT),
    (None, True, False, False, Verdict.CORRUPT),
    (None, True, False, True, Verdict.LOST_PAGES),
)


def rows_for(finding: Finding) -> list[Verdict]:
    """Return the verdicts of all matching rows; a test proves that it is always exactly one."""
    return [
        verdict
        for kind, behind, durable, missing, verdict in ROWS
        if kind in (None, finding.kind)
        and (behind, durable) == (finding.record_behind, finding.durable)
        and missing in (None, finding.bytes_missing)
    ]


def judge(finding: Finding) -> Verdict:
    (verdict,) = rows_for(finding)
    return verdict


def all_findings() -> list[Finding]:
    """Return every possible finding."""
    answers = (False, True)
    return [Finding(*each) for each in itertools.product(StopKind, answers, answers, answers)]


def flushed_beyond(checkpoint: Checkpoint, offset: int, following_ms: int | None) -> bool:
    """Return whether the checkpoint shows that the log was flushed beyond `offset`. `following_ms`
    is the store time of the first whole record behind it, if there is one.

    A store time decides only without a flushed end, and only for "it was flushed": a record that is
    older than the last flushed one was appended before it, or after the clock was set back.
    """
    if checkpoint.flushed_end >= 0:
        return checkpoint.flushed_end > offset
    if following_ms is None:
        return False
    # A time of 0 is no information about flushes, so all may have been flushed.
    known_ms = checkpoint.physic_msg_timestamp_ms
    return not known_ms or following_ms <= known_ms


def bytes_missing(data: Buffer, position: int, base: int, following: int) -> bool:
    """Return whether sectors of the damaged record at `position` never reached the disk (see the
    module docstring). `following` is the start of the next whole record, or the end of the
    segment."""
    end = min(_damaged_end(data, position, base), following)
    sector = position - position % SECTOR_BYTES
    while sector < end:
        begin, stop = max(sector, position), min(sector + SECTOR_BYTES, len(data))
        count = stop - begin
        if (
            stop <= following
            and bytes(data[begin:stop]) == _ZEROS[:count]
            and (count >= _SIZE_BYTES or _only_size_lacks(data, position, base, count))
        ):
            return True
        sector += SECTOR_BYTES
    return False


def _only_size_lacks(data: Buffer, position: int, base: int, count: int) -> bool:
    """Return whether the record would be whole but for the first `count` (1 to 3) bytes of its
    size. These are zero in most sizes, so zeros there do not show that a sector is missing."""
    size = _size_by_lengths(data, position)
    if size <= 0 or size > len(data) - position:
        return False
    rest = bytes(data[position + count : position + size])
    head = size.to_bytes(_SIZE_BYTES, "big")[:count]
    if not any(head):
        return False
    try:
        # One segment that ends with the record, at its original position.
        inspect(memoryview(head + rest), 0, base + position, check_crc=True)
    except RecordFormatError:
        return False
    return True


def _size_by_lengths(data: Buffer, position: int) -> int:
    """Return the size of a record from the lengths of its parts, or 0."""
    try:
        head = HEAD.unpack_from(data, position)
        fixed = FIXED[head[SYS_FLAG] >> 4 & 3]
        body_length: int = fixed.unpack_from(data, position)[BODY_LENGTH]
        body_end = fixed.size + body_length
        topic_bytes = 1 if head[MAGIC] == MAGIC_V1 else 2
        topic_at = position + body_end
        topic = int.from_bytes(data[topic_at : topic_at + topic_bytes], "big")
        end: int = body_end + topic_bytes + topic + 2
        if body_length < 0:
            return 0
        return end + int.from_bytes(data[position + end - 2 : position + end], "big")
    except struct.error:
        return 0


def _damaged_end(data: Buffer, position: int, base: int) -> int:
    """Return the end of the record at `position` if its head is plausible, else the segment's
    end."""
    if len(data) - position < HEAD.size:
        return len(data)
    head = HEAD.unpack_from(data, position)
    size, magic = head[SIZE], head[MAGIC]
    if magic not in (MAGIC_V1, MAGIC_V2) or head[PHYSICAL_OFFSET] != base + position:
        return len(data)
    return position + size if BLANK_BYTES < size <= len(data) - position else len(data)
