"""The unit of the timer log: one per waiting message. Pure codec.

offset  size  field
     0     4  52
     4     8  prev: position of the unit before it in the same slot, -1 = none
    12     4  magic: bit 1 always, 2 a roll (parked, not due yet), 4 a cancellation
    16     8  write time, ms: the enqueue clock, rounded down to the precision
    24     4  delay, ms: slot time - write time
    28     8  physical offset of the message in the commit log
    36     4  its size
    40     4  Java hash of the real topic, 0 = none
    44     8  reserved: 0 or, ours, a checksum of the bytes before it, which Apache ignores

Big-endian (docs/formats/store-format.md, section 11.4; example E10 in section 15). The checksum is
the sum of the eleven words before it, each times an odd number, so that a change of one word always
shows. Recovery uses `plausible`, or `are_plausible` for many units at once.
"""

import operator
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from ..format.errors import RecordFormatError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UNIT: Final = struct.Struct(">iqiqiqiiq")
UNIT_BYTES: Final = UNIT.size
DEFAULT: Final = 1
ROLL: Final = 2
DELETE: Final = 4
_MAGIC_BITS: Final = DEFAULT | ROLL | DELETE
_WIDTHS: Final = (4, 8, 4, 8, 4, 8, 4, 4, 8)  # bytes of the fields
#: Apache's clock may move between reading a message's time and writing the unit, by minutes on an
#: overloaded machine: then the delay is negative.
_LATE_MAX_MS: Final = 3_600_000
_TIME_MAX_MS: Final = 1 << 60  # sums of times fit an i64
_WORDS: Final = struct.Struct(">11I")
_MASK: Final = (1 << 64) - 1
_FACTORS: Final = tuple((0x9E3779B97F4A7C15 * (2 * n + 1) & _MASK) | 1 for n in range(11))


class TimerUnit(NamedTuple):
    """One unit; see the module docstring."""

    prev: int
    magic: int
    write_ms: int
    delay_ms: int
    physical_offset: int
    size: int
    topic_hash: int
    reserved: int = 0

    @property
    def slot_ms(self) -> int:
        """The time of its slot."""
        return self.write_ms + self.delay_ms

    @property
    def rolled(self) -> bool:
        return bool(self.magic & ROLL)

    @property
    def cancels(self) -> bool:
        return bool(self.magic & DELETE)

    def encode(self) -> bytes:
        return UNIT.pack(UNIT_BYTES, *self)

    @property
    def checksum(self) -> int:
        """The checksum of the fields, never 0."""
        words = _WORDS.unpack_from(self.encode())
        total = sum(map(operator.mul, words, _FACTORS)) & _MASK or 1
        return total - (1 << 64) if total >> 63 else total

    def sealed(self) -> "TimerUnit":
        """Return the unit with its checksum."""
        return self._replace(reserved=self.checksum)


def decode_unit(data: bytes | memoryview, offset: int, position: int) -> TimerUnit:
    """Decode the unit at `offset` of the data, which is `position` in the log. Raises
    RecordFormatError."""
    if len(data) - offset < UNIT_BYTES:
        raise RecordFormatError(f"no timer unit at {position}: only {len(data) - offset} bytes.")
    size, *values = UNIT.unpack_from(data, offset)
    unit = TimerUnit._make(values)
    if not plausible(size, unit, position):
        raise RecordFormatError(f"no timer unit at {position}: size {size}, {unit}.")
    return unit


def plausible(size: int, unit: TimerUnit, position: int) -> bool:
    """Return whether these can be the fields of a unit at this position."""
    return (
        size == UNIT_BYTES
        and 0 < unit.magic <= _MAGIC_BITS
        and -1 <= unit.prev < position
        and 0 <= unit.write_ms <= _TIME_MAX_MS
        and unit.delay_ms >= -_LATE_MAX_MS
        and unit.physical_offset >= 0
        and unit.size > 0
        and unit.reserved in (0, unit.checksum)
    )


def unit_type() -> "np.dtype[np.void]":
    """Return the NumPy type of a unit; the names are those of `TimerUnit`."""
    import numpy as np

    kinds = zip(("unit_bytes", *TimerUnit._fields), (f">i{n}" for n in _WIDTHS), strict=True)
    return np.dtype(list(kinds))


def are_plausible(rows: "NDArray[np.void]", position: int) -> "NDArray[np.bool_]":
    """Return which of consecutive rows are units (see `plausible`)."""
    import numpy as np

    positions = position + UNIT_BYTES * np.arange(len(rows))
    good: NDArray[np.bool_] = (
        (rows["unit_bytes"] == UNIT_BYTES)
        & (rows["magic"] > 0)
        & (rows["magic"] <= _MAGIC_BITS)
        & (rows["prev"] >= -1)
        & (rows["prev"] < positions)
        & (rows["write_ms"] >= 0)
        & (rows["write_ms"] <= _TIME_MAX_MS)
        & (rows["delay_ms"] >= -_LATE_MAX_MS)
        & (rows["physical_offset"] >= 0)
        & (rows["size"] > 0)
    )
    return good & checksums_match(rows)


def checksums_match(rows: "NDArray[np.void]") -> "NDArray[np.bool_]":
    """Return which units match their checksum, or have none."""
    import numpy as np

    as_stored = np.ascontiguousarray(rows, rows.dtype.newbyteorder(">"))
    words = as_stored.view(">u4").reshape(len(rows), UNIT_BYTES // 4).astype(np.uint64)
    sums = (words[:, :11] * np.array(_FACTORS, np.uint64)).sum(axis=1, dtype=np.uint64)
    stored = words[:, 11] << np.uint64(32) | words[:, 12]
    match: NDArray[np.bool_] = (stored == 0) | (stored == np.maximum(sums, 1))
    return match


def count_plausible(rows: "NDArray[np.void]", position: int) -> int:
    """Return how many rows are units before the first that is not."""
    good = are_plausible(rows, position)
    return len(rows) if good.all() else int(good.argmin())
