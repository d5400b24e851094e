"""An index file as arrays: header, slots, entries; and a check of its chains.

The file does not hold its own sizes (docs/formats/store-format.md, section 4), so they are given,
taken from the files beside it, or guessed from the contents. Chains are checked in one pass over
the entries, with one number per slot in memory: the newest entry so far, which the next one of the
slot must name.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..format.errors import StoreError
from ..format.index_file import ENTRY, HEADER, IndexHeader, IndexLayout, guess_layout
from ..format.index_writer import INDEX_ENTRY
from ..scan.files import open_bytes
from .layout import Layout, Sizes

_CHUNK: Final = 1 << 16
#: Size limit for guessing from a damaged file; above it `--index-slots` is needed.
_GUESS_BYTES_MAX: Final = 1 << 20
_FIT_MIN: Final = 0.8
#: An entry with an unknown key hash.
UNKNOWN: Final = -1


class IndexView:
    """One file. `count` is the number of the next entry according to the entries."""

    def __init__(self, path: Path, layout: IndexLayout) -> None:
        data = open_bytes(path)
        self.path = path
        self.layout = layout
        self.length = len(data)
        whole: bytes | memoryview = data
        if len(data) < layout.file_bytes:
            whole = bytes(data) + bytes(layout.file_bytes - len(data))
        self.header = IndexHeader.decode(whole)
        self.slots: npt.NDArray[Any] = np.frombuffer(whole, ">i4", layout.slots, HEADER.size)
        self.entries: npt.NDArray[Any] = np.frombuffer(
            whole, INDEX_ENTRY, layout.entries, layout.entries_at
        )
        self.count = self._used()

    def _used(self) -> int:
        """Return the number behind the last non-zero entry; starts at the header's count."""
        said = min(max(self.header.count, 1), self.layout.entries)
        words = self.entries.view(np.uint8).reshape(-1, ENTRY.size)
        for begin in range(said, self.layout.entries, _CHUNK):
            if not words[begin : begin + _CHUNK].any():
                break
            said = begin + int(np.flatnonzero(words[begin : begin + _CHUNK].any(axis=1))[-1]) + 1
        while said > 1:
            begin = max(said - _CHUNK, 1)
            used = np.flatnonzero(words[begin:said].any(axis=1))
            if len(used):
                return begin + int(used[-1]) + 1
            said = begin
        return 1

    def entry_range(self, first: int, end: int) -> tuple[int, int]:
        """Return the byte range of the entries [first, end)."""
        return self.layout.entry_at(first), self.layout.entry_at(end)

    def in_chain(self, number: int) -> bool:
        """Return whether the chain of the entry's own hash leads to it."""
        hash_ = int(self.entries["hash"][number])
        if hash_ < 0:
            return False
        at = int(self.slots[hash_ % self.layout.slots])
        while number < at < self.layout.entries:
            previous = int(self.entries["previous"][at])
            if previous >= at:
                return False
            at = previous
        return at == number


def layouts_of(paths: Sequence[Path], sizes: Sizes) -> list[IndexLayout | None]:
    """Return the layout of each file: given, or guessed from it or from another one of its
    length."""
    if sizes.index_slots:
        return [_told(path, sizes) for path in paths]
    lengths = [path.stat().st_size for path in paths]
    if not lengths:
        return []
    # All files of a folder have one size; any of that size determines the layout.
    usual = max(lengths, key=lambda length: (lengths.count(length), length))
    whole = [path for path, length in zip(paths, lengths, strict=True) if length == usual]
    layouts = [_guess(path, guess_layout) for path in whole]
    layouts = [guess for guess in layouts if guess] or [
        _guess(path, _most_fitting) for path in whole
    ]
    known = [guess for guess in layouts if guess]
    return [max(known, key=known.count) if known else None] * len(paths)


def _told(path: Path, sizes: Sizes) -> IndexLayout:
    entries = sizes.index_entries
    if not entries:
        entries = (path.stat().st_size - HEADER.size - 4 * sizes.index_slots) // ENTRY.size
    return IndexLayout(sizes.index_slots, max(entries, 1))


def _guess(path: Path, how: Callable[[str], IndexLayout | None]) -> IndexLayout | None:
    try:
        return how(str(path))
    except (OSError, ValueError, StoreError):
        return None


def _most_fitting(path: str) -> IndexLayout | None:
    """Return the sizes with which most entries are in the chain of a slot, for a damaged file."""
    data = open_bytes(Path(path))
    if not HEADER.size + ENTRY.size < len(data) <= _GUESS_BYTES_MAX:
        return None
    units = (len(data) - HEADER.size) // 4
    best, best_fit = None, 1
    for count in range(2, (units - 1) // 5 + 1):
        layout = IndexLayout(units - count * 5, count)
        slots = np.frombuffer(data, ">i4", layout.slots, HEADER.size)
        entries = np.frombuffer(data, INDEX_ENTRY, count, layout.entries_at)[1:]
        number = np.arange(1, count)
        good = (entries["hash"] > 0) & (entries["offset"] >= 0) & (entries["seconds"] >= 0)
        good &= (entries["previous"] >= 0) & (entries["previous"] < number)
        good &= slots[np.abs(entries["hash"].astype(np.int64)) % layout.slots] >= number
        fit = int(np.count_nonzero(good))
        used = int(np.count_nonzero(entries["hash"]))
        if fit > best_fit and fit >= _FIT_MIN * used:
            best, best_fit = layout, fit
    return best


def broken_chains(
    view: IndexView, corrections: dict[int, int]
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return entries that do not name the previous one of their slot, and ranges of slots that
    do not name their newest entry. `corrections` has the true hashes of damaged entries, or
    UNKNOWN."""
    slots = view.layout.slots
    newest = np.zeros(slots, np.int32)
    broken: list[int] = []
    unknown = {number for number, hash_ in corrections.items() if hash_ == UNKNOWN}
    for first in range(1, view.count, _CHUNK):
        part = view.entries[first : min(first + _CHUNK, view.count)]
        hashes = part["hash"].astype(np.int64)
        for number, hash_ in corrections.items():
            if first <= number < first + len(part):
                hashes[number - first] = hash_
        known = hashes >= 0
        at = np.where(known, hashes % slots, 0)
        order = np.argsort(at, kind="stable")
        order = order[known[order]]
        places = at[order]
        same = np.zeros(len(order), np.bool_)
        same[1:] = places[1:] == places[:-1]
        expected = newest[places].astype(np.int64)
        expected[1:][same[1:]] = order[:-1][same[1:]] + first
        said = part["previous"][order].astype(np.int64)
        for row in np.flatnonzero(said != expected).tolist():
            number = first + int(order[row])
            if number not in corrections and int(said[row]) not in unknown:
                broken.append(number)
        newest[places] = order + first  # of several, the last one stays
    different: list[int] = np.flatnonzero(view.slots != newest).tolist()
    wrong = [at for at in different if int(view.slots[at]) not in unknown]
    return sorted(broken), list(_runs(wrong))


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    first = previous = -2
    for number in numbers:
        if number != previous + 1:
            if first >= 0:
                yield first, previous + 1
            first = number
        previous = number
    if first >= 0:
        yield first, previous + 1


def common_layout(layout: Layout) -> IndexLayout | None:
    """Return the layout that all index files share; None if each must be guessed separately."""
    layouts = set(layouts_of(layout.index, layout.sizes)) - {None}
    return layouts.pop() if len(layouts) == 1 else None
