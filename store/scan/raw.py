"""Many small reads from one buffer: the base of the scanner, in NumPy.

`RawBytes` gathers at arbitrary, unaligned positions; every position must be in range (the caller
checks; the gather raises IndexError otherwise and never reads outside). `BytesTable` numbers equal
byte strings, so that a million topic fields become a million small integers and few Python objects.
"""

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Integers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

WORD_BYTES: Final = 8
#: Longer strings are numbered one by one; they are rare and would need wide tables.
_BULK_BYTES_MAX: Final = 256
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_FOLD: Final = np.uint64(29)


class RawBytes:
    """Gathers over a buffer. Holds a reference: drop it before releasing the buffer."""

    __slots__ = ("data", "flat", "size")

    def __init__(self, data: Any) -> None:
        self.data = memoryview(data)
        self.size = len(self.data)
        self.flat: npt.NDArray[np.uint8] = np.frombuffer(self.data, np.uint8)

    def _at(self, positions: Integers, width: int, kind: str) -> npt.NDArray[Any]:
        # Overlapping elements, one at every byte: a gather is then one copy per position.
        count = max(self.size - width + 1, 0)
        if not count:
            if len(positions):
                raise IndexError(f"{width} bytes do not fit a buffer of {self.size}.")
            return np.empty(0, kind)
        every: npt.NDArray[Any] = np.ndarray((count,), kind, self.data, strides=(1,))
        return every[positions]

    def blocks(self, positions: Integers, width: int) -> npt.NDArray[Any]:
        """Return `width` bytes at each position, as `V<width>`."""
        return self._at(positions, width, f"V{width}")

    def unsigned(self, positions: Integers, width: int) -> Integers:
        """Return big-endian integers of 1, 2 or 4 bytes."""
        return self._at(positions, width, f">u{width}").astype(np.int64)

    def signed64(self, positions: Integers) -> Integers:
        return self._at(positions, 8, ">i8").astype(np.int64)

    def words(self, positions: Integers, lengths: Integers) -> npt.NDArray[np.uint64]:
        """Return up to 8 bytes from each position on as a little-endian word, zero-padded."""
        places = np.minimum(positions, self.size - WORD_BYTES)
        values = self._at(places, WORD_BYTES, "<u8").astype(np.uint64)
        values >>= ((positions - places) * 8).astype(np.uint64)
        unused = ((WORD_BYTES - np.minimum(lengths, WORD_BYTES)) * 8).astype(np.uint64)
        whole: npt.NDArray[np.uint64] = ~np.uint64(0) >> unused
        values &= whole
        return values

    def bytes_at(self, start: int, length: int) -> bytes:
        return bytes(self.data[start : start + length])


class BytesTable:
    """Numbers byte strings 0, 1, 2, ... in order of appearance; `values` is the reverse."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self._known: dict[bytes, int] = {}
        self._hashes = np.empty(0, np.uint64)  # ascending
        self._numbers = np.empty(0, np.int64)  # of the hashes
        self._words = np.zeros((0, 1), np.uint64)  # by number: the string, padded with zeros
        self._lengths = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self.values)

    def number(self, value: bytes) -> int:
        """Return the number of one string."""
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = len(self.values)
            self.values.append(value)
        return known

    def numbers(self, raw: RawBytes, starts: Integers, lengths: Integers) -> Integers:
        """Return the number of each of these slices."""
        if not len(starts):
            return np.empty(0, np.int64)
        widest = int(lengths.max())
        if widest > _BULK_BYTES_MAX or raw.size < WORD_BYTES:
            return self._one_by_one(raw, starts, lengths)
        words = self._words_of(raw, starts, lengths, widest)
        hashes = lengths.astype(np.uint64)
        for column in words:
            hashes = (hashes ^ column) * _MIX
            hashes ^= hashes >> _FOLD
        self._learn(raw, starts, lengths, words, hashes)
        known = self._numbers[np.searchsorted(self._hashes, hashes)]
        same = self._lengths[known] == lengths
        for at, column in enumerate(words):
            same &= self._words[known, at] == column
        if not same.all():  # two strings with one hash: never observed, but handled
            other = np.flatnonzero(~same)
            known[other] = self._one_by_one(raw, starts[other], lengths[other])
        return known

    @staticmethod
    def _words_of(
        raw: RawBytes, starts: Integers, lengths: Integers, widest: int
    ) -> list[npt.NDArray[np.uint64]]:
        words = []
        for at in range(0, max(widest, 1), WORD_BYTES):
            column = np.zeros(len(starts), np.uint64)
            some = np.flatnonzero(lengths > at)
            column[some] = raw.words(starts[some] + at, lengths[some] - at)
            words.append(column)
        return words

    def _learn(
        self,
        raw: RawBytes,
        starts: Integers,
        lengths: Integers,
        words: list[npt.NDArray[np.uint64]],
        hashes: npt.NDArray[np.uint64],
    ) -> None:
        """Add new hashes to the table."""
        if len(self._hashes):
            places = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
            fresh = np.flatnonzero(self._hashes[places] != hashes)
        else:
            fresh = np.arange(len(hashes))
        if not len(fresh):
            return
        _, first = np.unique(hashes[fresh], return_index=True)
        first = fresh[np.sort(first)]
        numbers = [
            self.number(raw.bytes_at(start, length))
            for start, length in zip(starts[first].tolist(), lengths[first].tolist(), strict=True)
        ]
        self._widen(len(self.values), len(words))
        for at, column in enumerate(words):
            self._words[numbers, at] = column[first]
        self._lengths[numbers] = lengths[first]
        merged = np.concatenate((self._hashes, hashes[first]))
        order = np.argsort(merged)
        self._hashes = merged[order]
        self._numbers = np.concatenate((self._numbers, np.array(numbers, np.int64)))[order]

    def _widen(self, rows: int, columns: int) -> None:
        """Make space for this many strings of this many words."""
        have_rows, have_columns = self._words.shape
        if rows <= have_rows and columns <= have_columns:
            return
        wider = np.zeros((max(rows, have_rows * 2), max(columns, have_columns)), np.uint64)
        wider[:have_rows, :have_columns] = self._words
        lengths = np.full(len(wider), -1, np.int64)
        lengths[: len(self._lengths)] = self._lengths
        self._words, self._lengths = wider, lengths

    def _one_by_one(self, raw: RawBytes, starts: Integers, lengths: Integers) -> Integers:
        pairs = zip(starts.tolist(), lengths.tolist(), strict=True)
        numbers = [self.number(raw.bytes_at(start, length)) for start, length in pairs]
        return np.array(numbers, np.int64)
