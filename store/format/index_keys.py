"""Index keys of records and their hashes, for thousands of records at once (NumPy).

A record has one entry for UNIQ_KEY, one for each non-empty token of KEYS (split at one space) and
one for TAGS, in this order; records of a rolled back transaction have none
(docs/formats/store-format.md, section 4).

    key string      topic#KEY for UNIQ_KEY and KEYS, topic#T#TAGS for the tag
    key hash        absolute value of Java's String.hashCode, 0 for -2^31

The hash is a polynomial over UTF-16 units modulo 2^32: h = sum of c[i] * 31^(n-1-i). 31 has an
inverse there, so with S[i] = sum of c[j] * 31^-j over all j < i the hash of any slice [a, b) of a
buffer is (S[b] - S[a]) * 31^(b-1): one pass over the buffer serves every key in it, and hash(x + y)
= hash(x) * 31^len(y) + hash(y) joins topic and key. ASCII bytes are their own UTF-16 units; keys
with other bytes are decoded first (malformed UTF-8 as the replacement character) and hashed the
same way.
"""

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from .record_layout import (
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
)

Words = npt.NDArray[np.uint32]
Integers = npt.NDArray[np.int64]

#: Maximum bytes of properties in one batch (one record always fits): bounds the tables below.
BATCH_BYTES_MAX: Final = 1 << 20
UNIQUE, KEY, TAG = 0, 1, 2  # kinds of entries, in their order within a record

_HASH_SIGN: Final = ord("#")
_TAG_SIGN: Final = ord("T")
_SPACE: Final = 0x20
_NAME_END: Final = 0x01
_PAIR_END: Final = 0x02
_ASCII_END: Final = 0x80
_WORD: Final = 8
_ROOM: Final = bytes(_WORD)
_SHORT_MASK: Final = (1 << 40) - 1  # the first five bytes of a little-endian word
_UNIQ_KEY: Final = int.from_bytes(b"UNIQ_KEY", "little")
_KEYS: Final = int.from_bytes(b"KEYS\x01", "little")
_TAGS: Final = int.from_bytes(b"TAGS\x01", "little")
_POWERS_MIN: Final = 1 << 16


class RecordColumns(Protocol):
    """The columns of `scan.Columns` that are read; starts are positions in the scanned buffer."""

    @property
    def physical_offset(self) -> Integers: ...
    @property
    def sys_flag(self) -> Integers: ...
    @property
    def store_timestamp(self) -> Integers: ...
    @property
    def topic_start(self) -> Integers: ...
    @property
    def topic_length(self) -> Integers: ...
    @property
    def properties_start(self) -> Integers: ...
    @property
    def properties_length(self) -> Integers: ...


@dataclass(slots=True)
class Entries:
    """Index entries in write order."""

    hashes: Integers
    offsets: Integers
    times: Integers
    kinds: Integers  #: UNIQUE, KEY or TAG

    def __len__(self) -> int:
        return len(self.hashes)


class _Powers:
    """31^i and 31^-i modulo 2^32, for i below the largest buffer so far."""

    def __init__(self) -> None:
        self._up = np.empty(0, np.uint32)
        self._down = np.empty(0, np.uint32)

    def tables(self, count: int) -> tuple[Words, Words]:
        if count > len(self._up):
            count = max(count, 2 * len(self._up), _POWERS_MIN)
            self._up = self._table(31, count)
            self._down = self._table(pow(31, -1, 1 << 32), count)
        return self._up, self._down

    @staticmethod
    def _table(base: int, count: int) -> Words:
        factors = np.full(count, base, np.uint32)
        factors[0] = 1
        return np.cumprod(factors, dtype=np.uint32)


_POWERS: Final = _Powers()


class SliceHashes:
    """Hashes of arbitrary slices of one sequence of UTF-16 units."""

    def __init__(self, units: npt.NDArray[Any]) -> None:
        self._up, down = _POWERS.tables(len(units) + 1)
        self._sums = np.zeros(len(units) + 1, np.uint32)
        np.cumsum(units * down[: len(units)], dtype=np.uint32, out=self._sums[1:])

    def of(self, starts: Integers, ends: Integers) -> Words:
        """Return the hashes of the slices [start, end); 0 for an empty one."""
        hashes: Words = self._sums[ends] - self._sums[starts]
        hashes *= self._up[ends - 1]
        return hashes

    def powers(self, lengths: Integers) -> Words:
        return self._up[lengths]


def entries_of(data: Any, columns: RecordColumns) -> Entries:
    """Return the entries of these records, which lie in `data`."""
    return KeyText(data, columns, indexed(columns)).entries()


def indexed(columns: RecordColumns) -> Integers:
    """Return which of these records have entries."""
    return np.flatnonzero((columns.sys_flag & TRANSACTION_MASK) != TRANSACTION_ROLLBACK)


class KeyText:
    """Topics and properties of the records, copied into one buffer.

    Every topic and every record ends with a pair end: an unterminated pair is terminated here, and
    no pair crosses a record boundary. So `bytes` has three extra pair ends per record, and eight
    zeros at its end.
    """

    def __init__(self, data: Any, columns: RecordColumns, keep: Integers) -> None:
        begins = columns.topic_start[keep]
        ends = columns.properties_start[keep] + columns.properties_length[keep]
        pieces = [data[b:e] for b, e in zip(begins.tolist(), ends.tolist(), strict=True)]
        pieces.append(_ROOM)  # padding for the words that `_find` reads
        self._bytes = bytearray(b"\x02").join(pieces)
        self._units = np.frombuffer(self._bytes, np.uint8)
        self._topic_starts = np.zeros(len(keep), np.int64)
        np.cumsum((ends - begins + 1)[:-1], out=self._topic_starts[1:])
        self._topic_ends = self._topic_starts + columns.topic_length[keep]
        self._units[self._topic_ends] = _PAIR_END
        self._units[self._topic_ends + 1] = _PAIR_END  # overwrites the length of the properties
        self._columns = columns
        self._keep = keep

    @property
    def bytes(self) -> bytearray:
        return self._bytes

    def entries(self) -> Entries:
        ends = np.flatnonzero(self._units == _PAIR_END)
        starts = np.empty(len(ends), np.int64)
        starts[:1] = 0
        starts[1:] = ends[:-1] + 1
        words = np.ndarray((len(self._units) - _WORD + 1,), "<u8", self._bytes, strides=(1,))
        first = words[starts]
        short = first & np.uint64(_SHORT_MASK)
        entries = [
            self._values(starts, ends, first == _UNIQ_KEY, _WORD + 1),
            self._tokens(*self._values(starts, ends, short == _KEYS, 5)),
            self._values(starts, ends, short == _TAGS, 5),
        ]
        records = np.concatenate([records for records, _, _ in entries])
        kinds = np.repeat((UNIQUE, KEY, TAG), [len(records) for records, _, _ in entries])
        # By record, then kind; positions in `entries` keep the order of tokens and make every key
        # unique.
        order = (records * 4 + kinds) << 32 | np.arange(len(records))
        order.sort()
        order &= 0xFFFFFFFF
        records, kinds = records[order], kinds[order]
        hashes = self._hashes(
            records,
            kinds,
            np.concatenate([starts for _, starts, _ in entries])[order],
            np.concatenate([ends for _, _, ends in entries])[order],
        )
        where = self._keep[records]
        return Entries(
            hashes,
            self._columns.physical_offset[where],
            self._columns.store_timestamp[where],
            kinds,
        )

    def _values(
        self, starts: Integers, ends: Integers, named: npt.NDArray[np.bool_], name_bytes: int
    ) -> tuple[Integers, Integers, Integers]:
        """Return record, start and end of the non-empty values of one name; the last of each
        record."""
        at = np.flatnonzero(named)
        begins, ends = starts[at] + name_bytes, ends[at]
        at = np.flatnonzero((self._units[begins - 1] == _NAME_END) & (begins < ends))
        begins, ends = begins[at], ends[at]
        records = np.searchsorted(self._topic_starts, begins, "right") - 1
        keep = begins - name_bytes > self._topic_ends[records]  # the topic is not a pair
        keep[:-1] &= records[1:] != records[:-1]  # keep the last of each record
        return records[keep], begins[keep], ends[keep]

    def _tokens(
        self, records: Integers, starts: Integers, ends: Integers
    ) -> tuple[Integers, Integers, Integers]:
        """Return the non-empty tokens of these values, in order."""
        if not len(starts):
            return records, starts, ends
        spaces = np.flatnonzero(self._units == _SPACE)
        owners = np.searchsorted(starts, spaces, "right") - 1
        inside = (owners >= 0) & (spaces < ends[owners])
        spaces, owners = spaces[inside], owners[inside]
        if not len(spaces):
            return records, starts, ends
        # Values are disjoint and ascending: the n-th start belongs to the n-th end.
        begins = np.sort(np.concatenate((starts, spaces + 1)))
        stops = np.sort(np.concatenate((ends, spaces)))
        of = np.sort(np.concatenate((records, records[owners])))
        keep = begins < stops
        return of[keep], begins[keep], stops[keep]

    def _hashes(
        self, records: Integers, kinds: Integers, starts: Integers, ends: Integers
    ) -> Integers:
        units = SliceHashes(self._units)
        wide = self._not_ascii()
        topics, _ = self._slices(units, wide, self._topic_starts, self._topic_ends)
        prefixes = topics * np.uint32(31)
        prefixes += np.uint32(_HASH_SIGN)
        tag_prefixes = prefixes * np.uint32(31 * 31)
        tag_prefixes += np.uint32(_TAG_SIGN * 31 + _HASH_SIGN)
        keys, lengths = self._slices(units, wide, starts, ends)
        hashes = np.where(kinds == TAG, tag_prefixes[records], prefixes[records])
        hashes *= units.powers(lengths)
        hashes += keys
        signed = np.abs(hashes.view(np.int32).astype(np.int64))
        signed[signed == 1 << 31] = 0
        return signed

    def _not_ascii(self) -> Integers | None:
        """Return how many bytes before each position are not ASCII; None if all are."""
        wide = self._units >= _ASCII_END
        if not wide.any():
            return None
        count = np.zeros(len(wide) + 1, np.int64)
        np.cumsum(wide, out=count[1:])
        return count

    def _slices(
        self, units: SliceHashes, wide: Integers | None, starts: Integers, ends: Integers
    ) -> tuple[Words, Integers]:
        """Return hashes and lengths of slices, both in UTF-16 units."""
        hashes, lengths = units.of(starts, ends), ends - starts
        if wide is None:
            return hashes, lengths
        at = np.flatnonzero(wide[ends] > wide[starts])
        if not len(at):
            return hashes, lengths
        texts = [
            self._bytes[start:end].decode("utf-8", "replace").encode("utf-16-be")
            for start, end in zip(starts[at].tolist(), ends[at].tolist(), strict=True)
        ]
        lengths[at] = np.array([len(text) for text in texts], np.int64) // 2
        stops = np.cumsum(lengths[at])
        decoded = np.frombuffer(b"".join(texts), ">u2").astype(np.uint32)
        hashes[at] = SliceHashes(decoded).of(stops - lengths[at], stops)
        return hashes, lengths
