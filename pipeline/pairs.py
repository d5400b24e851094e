"""Properties of many records at once, read by Java's rules (store format, section 2.4).

    name 0x01 value 0x02  name 0x01 value 0x02 ...

What every writer of today leaves (pairs that end in 0x02, UTF-8, no name twice) is found with NumPy; for
a batch with anything else `decode_properties` reads every record of it: a missing last 0x02 is legal, a
0x01 belongs to the value, of a repeated name the last one counts, malformed UTF-8 becomes the replacement
character. Empty names and values are dropped in both ways. A property test compares both.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..store.format.properties import decode_properties
from ..store.scan.raw import RawBytes
from .slices import Integers, slices, some_slices

Words = npt.NDArray[np.uint64]
_NAME_END: Final = 1
_PAIR_END: Final = 2
_WORD_BYTES: Final = 8
_MAP: Final = pa.map_(pa.string(), pa.string())
#: Odd multipliers that spread names over 64 bits; one with which no two of a record meet is kept.
_MIXES: Final = tuple(
    np.uint64(value)
    for value in (
        *(0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9),
        *(0xD6E8FEB86659FD93, 0xFF51AFD7ED558CCD, 0xA0761D6478BD642F),
    )
)
_TOP_BITS: Final = np.uint64(58)
_ONE: Final = np.uint64(1)


class Properties:
    """The property strings of one batch. `strings` is the raw column; pairs are looked for on demand."""

    def __init__(self, buffer: pa.Buffer, starts: Integers, lengths: Integers) -> None:
        self.strings = slices(buffer, starts, lengths, pa.binary())
        self._pairs: _Pairs | None = None
        self._slow: list[dict[str, str]] | None = None

    def text(self) -> pa.Array:
        """As strings; malformed UTF-8 becomes the replacement character."""
        if _is_text(self.strings):
            return self.strings.view(pa.string())
        return pa.array([one.decode("utf-8", "replace") for one in self.strings.to_pylist()])

    def maps(self) -> pa.Array:
        """As maps."""
        pairs = self._find()
        if pairs is not None:
            return pairs.maps()
        assert self._slow is not None
        return pa.array([list(one.items()) for one in self._slow], _MAP)

    def values(self, name: str) -> pa.Array:
        """The value of one property; null where there is none."""
        pairs = self._find()
        if pairs is not None:
            return pairs.values(name.encode())
        assert self._slow is not None
        return pa.array([one.get(name) for one in self._slow], pa.string())

    def _find(self) -> _Pairs | None:
        if self._pairs is None and self._slow is None:
            self._pairs = _Pairs.found(self.strings)
            if self._pairs is None:
                self._slow = [decode_properties(one) for one in self.strings.to_pylist()]
        return self._pairs


def _is_text(strings: pa.Array) -> bool:
    """Whether all of it is UTF-8. Every string ends where a character does: judged by its end, and a
    whole that is right is right in its parts then."""
    data, offsets = _parts(strings)
    if not len(data) or int(data.max()) < 0x80:
        return True
    begins = data[offsets[:-1][offsets[:-1] < offsets[1:]]]
    if ((begins & 0xC0) == 0x80).any():  # begins inside a character
        return False
    try:
        data.tobytes().decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _parts(strings: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    _, offset_buffer, data_buffer = strings.buffers()
    if not len(strings):
        return np.empty(0, np.uint8), np.zeros(1, np.int32)
    offsets = np.frombuffer(offset_buffer, np.int32)[: len(strings) + 1]
    if data_buffer is None:
        return np.empty(0, np.uint8), offsets
    return np.frombuffer(data_buffer, np.uint8)[: offsets[-1]], offsets


class _Pairs:
    """Where names and values stand in the strings of a batch; no name twice in a record."""

    _mix = 0  # the multiplier that served last; names of records change seldom

    def __init__(
        self, strings: pa.Array, name_ends: Integers, value_ends: Integers, ends: Integers
    ) -> None:
        self._buffer = strings.buffers()[2]
        data, self._row_starts = _parts(strings)
        self._raw = RawBytes(data)
        starts = np.empty_like(name_ends)
        starts[:1] = 0
        starts[1:] = value_ends[:-1] + 1
        lengths = name_ends - starts
        used = (lengths > 0) & (value_ends - name_ends > 1)
        if not used.all():
            kept: Integers = np.zeros(len(used) + 1, np.int64)
            np.cumsum(used, out=kept[1:])
            ends = kept[ends]
            starts, lengths = starts[used], lengths[used]
            name_ends, value_ends = name_ends[used], value_ends[used]
        self._starts, self._lengths = starts, lengths
        self._name_ends, self._value_ends = name_ends, value_ends
        self._ends = ends  # of every row: how many pairs up to and with it
        self._words = self._first_words()
        self._row: Integers | None = None
        self._alike = self._pairs_alike()

    @classmethod
    def found(cls, strings: pa.Array) -> _Pairs | None:
        """The pairs, if these are strings as writers of today leave them."""
        data, offsets = _parts(strings)
        marks = np.flatnonzero(data <= _PAIR_END)
        kinds = data[marks]
        if len(marks) % 2 or not ((kinds[0::2] == _NAME_END) & (kinds[1::2] == _PAIR_END)).all():
            return None
        last = offsets[1:][offsets[1:] > offsets[:-1]] - 1
        if not (data[last] == _PAIR_END).all() or not _is_text(strings):
            return None
        value_ends = marks[1::2]
        pairs = cls(strings, marks[0::2], value_ends, np.searchsorted(value_ends, offsets[1:]))
        return None if pairs._has_repeats() else pairs

    def maps(self) -> pa.Array:
        names = self._slices(self._starts, self._lengths)
        values = self._slices(self._name_ends + 1, self._value_ends - self._name_ends - 1)
        offsets = np.zeros(len(self._ends) + 1, np.int32)
        offsets[1:] = self._ends
        return pa.MapArray.from_arrays(pa.array(offsets), names, values)

    def values(self, name: bytes) -> pa.Array:
        """Of a name of up to 8 bytes."""
        assert len(name) <= _WORD_BYTES
        word = np.uint64(int.from_bytes(name, "little"))
        if self._alike:
            return self._values_alike(word, len(name))
        at = np.flatnonzero((self._words == word) & (self._lengths == len(name)))
        rows = self._rows()[at]
        count = len(self._ends)
        valid = np.zeros(count, np.bool_)
        valid[rows] = True
        starts = self._row_starts[:-1].astype(np.int64)
        lengths = np.zeros(count, np.int64)
        starts[rows] = self._name_ends[at] + 1
        lengths[rows] = self._value_ends[at] - starts[rows]
        return some_slices(self._data(), starts, lengths, valid)

    def _pairs_alike(self) -> int:
        """How many pairs a record has, if all have the same names in the same order (messages of one
        sender do), as far as the first bytes and the length say it; else 0."""
        count = len(self._ends)
        each = len(self._words) // count if count else 0
        if not each or each * count != len(self._words):
            return 0
        if int(self._ends[0]) != each or (np.diff(self._ends) != each).any():
            return 0
        words, lengths = self._words.reshape(count, each), self._lengths.reshape(count, each)
        alike = (words == words[0]).all() and (lengths == lengths[0]).all()
        return each if alike else 0

    def _values_alike(self, word: np.uint64, length: int) -> pa.Array:
        each = self._alike
        same = (self._words[:each] == word) & (self._lengths[:each] == length)
        found = np.flatnonzero(same)
        if not len(found):
            return pa.nulls(len(self._ends), pa.string())
        starts = self._name_ends[found[0] :: each] + 1
        return self._slices(starts, self._value_ends[found[0] :: each] - starts)

    def _rows(self) -> Integers:
        """The row of every pair."""
        if self._row is None:
            self._row = np.repeat(np.arange(len(self._ends)), np.diff(self._ends, prepend=0))
        return self._row

    def _data(self) -> pa.Buffer:
        return self._buffer if self._buffer is not None else pa.py_buffer(b"")

    def _slices(self, starts: Integers, lengths: Integers) -> pa.Array:
        return slices(self._data(), starts, lengths, pa.string())

    def _first_words(self) -> Words:
        if self._raw.size < _WORD_BYTES:
            padded = RawBytes(bytes(self._raw.data).ljust(_WORD_BYTES, b"\0"))
            return padded.words(self._starts, self._lengths)
        return self._raw.words(self._starts, self._lengths)

    def _has_repeats(self) -> bool:
        """Whether a record might have one name twice. Says so for two long names of one length that
        begin and end alike, too: they are read the slow way."""
        if self._alike:
            some = slice(self._alike)
            names = set(zip(self._words[some].tolist(), self._lengths[some].tolist(), strict=True))
            if len(names) == self._alike:
                return False
        hashes = self._hashes()
        counts = np.diff(self._ends, prepend=0)
        first = (self._ends - counts)[counts > 0]
        if not len(first):
            return False
        for turn in range(len(_MIXES)):
            mix = (_Pairs._mix + turn) % len(_MIXES)
            bits = _ONE << ((hashes * _MIXES[mix]) >> _TOP_BITS)
            if (np.bitwise_or.reduceat(bits, first) == np.add.reduceat(bits, first)).all():
                _Pairs._mix = mix
                return False
        rows = np.repeat(np.arange(len(counts)), counts)
        order = np.lexsort((hashes, rows))
        hashes, rows = hashes[order], rows[order]
        return bool(((hashes[1:] == hashes[:-1]) & (rows[1:] == rows[:-1])).any())

    def _hashes(self) -> Words:
        hashes = self._words ^ (self._lengths.astype(np.uint64) << np.uint64(48))
        long = np.flatnonzero(self._lengths > _WORD_BYTES)
        if len(long):
            ends = self._name_ends[long] - _WORD_BYTES
            tails = self._raw.words(ends, np.full(len(long), _WORD_BYTES))
            hashes[long] ^= tails * _MIXES[0]
        return hashes
