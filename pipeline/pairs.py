"""Parses the properties of many records at once, by Java's rules.

    name 0x01 value 0x02  name 0x01 value 0x02 ...

Two parsers give the same result; a property test compares them. The fast one finds the pairs of a
whole batch with NumPy. It accepts what current writers produce: pairs that end in 0x02, UTF-8, no
repeated name in a record. A batch with anything else goes to `decode_properties`, record by record:
a missing last 0x02 is legal, further 0x01 belong to the value, the last of repeated names counts,
malformed UTF-8 becomes the replacement character. Empty names and values are dropped. Format:
docs/formats/store-format.md, section 2.4.

The fast parser carries the speed of map columns: decoding 14 columns with `properties` as map runs
at 0.11 of memcpy (1 KiB bodies) and 0.05 (128 bytes) with it, at 0.025 and 0.007 with
`decode_properties` alone (one core, measured with `tests/bench/spark/scan.py`).
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
#: Odd multipliers of the repeat check (`_has_repeats`). One that separates the names of every
#: record is kept for the next batch.
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
    """Properties of one batch. `strings` is the raw column; pairs are parsed on demand."""

    def __init__(self, buffer: pa.Buffer, starts: Integers, lengths: Integers) -> None:
        self.strings = slices(buffer, starts, lengths, pa.binary())
        self._pairs: _Pairs | None = None
        self._dicts: list[dict[str, str]] | None = None

    def text(self) -> pa.Array:
        """Return the raw properties; malformed UTF-8 becomes the replacement character."""
        if _is_text(self.strings):
            return self.strings.view(pa.string())
        return pa.array([one.decode("utf-8", "replace") for one in self.strings.to_pylist()])

    def maps(self) -> pa.Array:
        """Return the properties as maps."""
        pairs = self._parse()
        if pairs is not None:
            return pairs.maps()
        assert self._dicts is not None
        return pa.array([list(one.items()) for one in self._dicts], _MAP)

    def values(self, name: str) -> pa.Array:
        """Return the values of one property; null without the property."""
        pairs = self._parse()
        if pairs is not None:
            return pairs.values(name.encode())
        assert self._dicts is not None
        return pa.array([one.get(name) for one in self._dicts], pa.string())

    def _parse(self) -> _Pairs | None:
        if self._pairs is None and self._dicts is None:
            self._pairs = _Pairs.found(self.strings)
            if self._pairs is None:
                self._dicts = [decode_properties(one) for one in self.strings.to_pylist()]
        return self._pairs


def _is_text(strings: pa.Array) -> bool:
    """Whether every string is UTF-8.

    The concatenation is decoded at once. It is valid if the parts are, and the parts are valid if
    no string begins inside a character.
    """
    data, offsets = _data_and_offsets(strings)
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


def _data_and_offsets(strings: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    _, offset_buffer, data_buffer = strings.buffers()
    if not len(strings):
        return np.empty(0, np.uint8), np.zeros(1, np.int32)
    offsets = np.frombuffer(offset_buffer, np.int32)[: len(strings) + 1]
    if data_buffer is None:
        return np.empty(0, np.uint8), offsets
    return np.frombuffer(data_buffer, np.uint8)[: offsets[-1]], offsets


class _Pairs:
    """Positions of names and values in the strings of a batch without repeated names."""

    _mix = 0  # index of the multiplier of the last batch

    def __init__(
        self, strings: pa.Array, name_ends: Integers, value_ends: Integers, ends: Integers
    ) -> None:
        self._buffer = strings.buffers()[2]
        data, self._row_starts = _data_and_offsets(strings)
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
        self._ends = ends  # for every row: number of pairs up to and including it
        self._words = self._name_prefixes()
        self._row: Integers | None = None
        self._uniform = self._uniform_pairs()

    @classmethod
    def found(cls, strings: pa.Array) -> _Pairs | None:
        """Parse the strings; None if the fast parser does not accept them."""
        data, offsets = _data_and_offsets(strings)
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
        """Return the values of a name of at most 8 bytes."""
        assert len(name) <= _WORD_BYTES
        word = np.uint64(int.from_bytes(name, "little"))
        if self._uniform:
            return self._uniform_values(word, len(name))
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

    def _uniform_pairs(self) -> int:
        """Return the number of pairs per record if all have the same names in order, else 0.

        Messages of one sender do. Names are compared by length and first 8 bytes.
        """
        count = len(self._ends)
        each = len(self._words) // count if count else 0
        if not each or each * count != len(self._words):
            return 0
        if int(self._ends[0]) != each or (np.diff(self._ends) != each).any():
            return 0
        words, lengths = self._words.reshape(count, each), self._lengths.reshape(count, each)
        alike = (words == words[0]).all() and (lengths == lengths[0]).all()
        return each if alike else 0

    def _uniform_values(self, word: np.uint64, length: int) -> pa.Array:
        each = self._uniform
        same = (self._words[:each] == word) & (self._lengths[:each] == length)
        found = np.flatnonzero(same)
        if not len(found):
            return pa.nulls(len(self._ends), pa.string())
        starts = self._name_ends[found[0] :: each] + 1
        return self._slices(starts, self._value_ends[found[0] :: each] - starts)

    def _rows(self) -> Integers:
        """Return the row number of every pair."""
        if self._row is None:
            self._row = np.repeat(np.arange(len(self._ends)), np.diff(self._ends, prepend=0))
        return self._row

    def _data(self) -> pa.Buffer:
        return self._buffer if self._buffer is not None else pa.py_buffer(b"")

    def _slices(self, starts: Integers, lengths: Integers) -> pa.Array:
        return slices(self._data(), starts, lengths, pa.string())

    def _name_prefixes(self) -> Words:
        if self._raw.size < _WORD_BYTES:
            padded = RawBytes(bytes(self._raw.data).ljust(_WORD_BYTES, b"\0"))
            return padded.words(self._starts, self._lengths)
        return self._raw.words(self._starts, self._lengths)

    def _has_repeats(self) -> bool:
        """Whether a record may have a repeated name.

        Every name is hashed to one of 64 bits. A record has no repeat if the OR of its bits equals
        their sum. Because different names may share a bit, several multipliers are tried, then the
        hashes are compared exactly. Long names of equal length, start and end have equal hashes and
        count as repeats: the slow parser decides.
        """
        if self._uniform:
            some = slice(self._uniform)
            names = set(zip(self._words[some].tolist(), self._lengths[some].tolist(), strict=True))
            if len(names) == self._uniform:
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
