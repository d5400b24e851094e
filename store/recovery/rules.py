"""The judgement of recovery: a table, and the marks that a power loss leaves. Pure.

A walk ends where no whole record stands. What that place is, is decided by four questions:

| the place | record behind it | it had been on the disk | bytes are missing | verdict              |
|-----------|------------------|-------------------------|-------------------|----------------------|
| nothing   | no               | no                      | -                 | the log's end        |
| damaged   | no               | no                      | -                 | torn tail: cut       |
| -         | no               | yes                     | -                 | corrupt: refuse      |
| -         | yes              | yes                     | -                 | corrupt: refuse      |
| -         | yes              | no                      | no                | corrupt: refuse      |
| -         | yes              | no                      | yes               | lost pages: cut      |

*It had been on the disk* (durable): after a clean stop everything had been, so a record behind the place
or a queue unit that points there says so. After an unclean stop the checkpoint says so: its flushed
end lies behind the place, or a record behind the place is older than the last one that was flushed.

*Bytes are missing*: the damaged record overlaps a sector that holds nothing but zeros, from the place
on. That is what a page looks like that was allocated and never reached the disk while the machine lost its
power (whole pages of 4 KiB, or the first or last sectors of one; sectors are written whole). Then the
record was never promised to be on the disk, and neither was anything behind it: a flush covers all
that comes before. A process that is killed loses no page, and other damage does not leave zeros: such a
log stays refused while records stand behind the damage.

Nothing was promised where nothing is known: without a checkpoint that says how far the log was flushed
(a lost one, or a young store of Apache's, whose physicMsgTimestamp is 0) damage in front of records is
always refused.
"""

import enum
import itertools
import struct
from dataclasses import dataclass
from typing import Final, TypeAlias

from ..format.checkpoint import Checkpoint
from ..format.errors import RecordFormatError
from ..format.record import BLANK_BYTES, FIXED, HEAD, MAGIC_V1, MAGIC_V2
from ..scan.single import Buffer, inspect

#: Disks write sectors of this size whole.
SECTOR_BYTES: Final = 512
_ZEROS: Final = bytes(SECTOR_BYTES)
_PHYSICAL_OFFSET: Final = 6
_SYS_FLAG: Final = 7
_SIZE_BYTES: Final = 4


class Place(enum.Enum):
    """What stands where the walk stopped."""

    NOTHING = "nothing"
    DAMAGED = "damaged"


class Verdict(enum.Enum):
    """What the place is; the first three are cut there."""

    END = "end of the log"
    TORN_TAIL = "torn tail"
    LOST_PAGES = "lost pages"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class Finding:
    """The answers to the four questions."""

    place: Place
    record_behind: bool
    durable: bool
    bytes_missing: bool


_Row: TypeAlias = tuple[Place | None, bool, bool, bool | None, Verdict]
#: The rows of the table above, as in its columns; None matches both.
ROWS: Final[tuple[_Row, ...]] = (
    (Place.NOTHING, False, False, None, Verdict.END),
    (Place.DAMAGED, False, False, None, Verdict.TORN_TAIL),
    (None, False, True, None, Verdict.CORRUPT),
    (None, True, True, None, Verdict.CORRUPT),
    (None, True, False, False, Verdict.CORRUPT),
    (None, True, False, True, Verdict.LOST_PAGES),
)


def rows_for(finding: Finding) -> list[Verdict]:
    """The verdicts of all rows that match; a test proves that it is always exactly one."""
    return [
        verdict
        for place, behind, durable, missing, verdict in ROWS
        if place in (None, finding.place)
        and (behind, durable) == (finding.record_behind, finding.durable)
        and missing in (None, finding.bytes_missing)
    ]


def judge(finding: Finding) -> Verdict:
    (verdict,) = rows_for(finding)
    return verdict


def all_findings() -> list[Finding]:
    """Everything that can be found."""
    answers = (False, True)
    return [Finding(*each) for each in itertools.product(Place, answers, answers, answers)]


def flushed_beyond(checkpoint: Checkpoint, offset: int, following_ms: int | None) -> bool:
    """Whether the checkpoint says that the disk once had the log beyond `offset`. `following_ms` is
    the store time of the first whole record behind it, if there is one.

    Store times never fall, so a record that is older than the last flushed one was flushed itself.
    One of the same millisecond may have come after the flush: then only the flushed end can tell.
    """
    if checkpoint.flushed_end > offset:
        return True
    if following_ms is None:
        return False
    if checkpoint.flushed_end >= 0:
        return following_ms < checkpoint.physic_msg_timestamp_ms
    # Nothing else is known. A time of 0 says nothing about what was flushed, so all may have been.
    known_ms = checkpoint.physic_msg_timestamp_ms
    return not known_ms or following_ms <= known_ms


def bytes_missing(data: Buffer, position: int, base: int, following: int) -> bool:
    """Whether sectors of the damaged record at `position` never reached the disk (module docstring).
    `following` is where the next whole record begins, or the end of the segment."""
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
    """Whether the record would be whole but for the first `count` (1 to 3) bytes of its size. They
    are zero in most sizes, so zeros there do not tell by themselves that a sector is missing."""
    size = _size_by_lengths(data, position)
    if size <= 0 or size > len(data) - position:
        return False
    rest = bytes(data[position + count : position + size])
    head = size.to_bytes(_SIZE_BYTES, "big")[:count]
    if not any(head):
        return False
    try:
        # One segment that ends with the record: its place is as it was.
        inspect(memoryview(head + rest), 0, base + position, check_crc=True)
    except RecordFormatError:
        return False
    return True


def _size_by_lengths(data: Buffer, position: int) -> int:
    """Size of a record as the lengths of its parts have it, or 0."""
    try:
        head = HEAD.unpack_from(data, position)
        fixed = FIXED[head[_SYS_FLAG] >> 4 & 3]
        body_length: int = fixed.unpack_from(data, position)[-1]
        body_end = fixed.size + body_length
        topic_bytes = 1 if head[1] == MAGIC_V1 else 2
        topic_at = position + body_end
        topic = int.from_bytes(data[topic_at : topic_at + topic_bytes], "big")
        end: int = body_end + topic_bytes + topic + 2
        if body_length < 0:
            return 0
        return end + int.from_bytes(data[position + end - 2 : position + end], "big")
    except struct.error:
        return 0


def _damaged_end(data: Buffer, position: int, base: int) -> int:
    """Where the record at `position` ends if its head can be believed, else the segment's end."""
    if len(data) - position < HEAD.size:
        return len(data)
    head = HEAD.unpack_from(data, position)
    size, magic = head[0], head[1]
    if magic not in (MAGIC_V1, MAGIC_V2) or head[_PHYSICAL_OFFSET] != base + position:
        return len(data)
    return position + size if BLANK_BYTES < size <= len(data) - position else len(data)
