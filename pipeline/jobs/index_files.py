"""Rebuilds index files: many tasks collect the entries, one task writes the files.

Tasks write the entries of their split to `.entries/` (20 bytes each). The last task reads them in
log order and fills file after file, as a broker does. An index file is named by its creation time:
names of the store's files are reused for comparison; further files are named by the time of their
first record. Entries of deleted records come first, from the store's files (carry_over.py). Format:
docs/formats/store-format.md, section 4.
"""

import itertools
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...store.format.disk import Disk
from ...store.format.index_file import USUAL_LAYOUT, IndexLayout, file_name, guess_layout
from ...store.format.index_keys import Entries
from ...store.format.index_writer import IndexWriter
from ...store.format.layout import INDEX_FOLDER, is_file_name
from ..splits import Split
from .carry_over import OldEntries

_DRAFTS: Final = ".entries"
_DRAFT: Final = np.dtype([("hash", "<i4"), ("offset", "<i8"), ("time", "<i8")])
#: Entries per call of the writer.
_ENTRIES: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class IndexSizes:
    """Slots and entries per file."""

    slots: int
    entries: int


def index_sizes(store: str, slots: int = 0, entries: int = 0) -> IndexSizes:
    """Return the sizes of the store's files. Raises OSError."""
    if slots and entries:
        return IndexSizes(slots, entries)
    for name in _names(store):
        found = guess_layout(os.path.join(store, INDEX_FOLDER, name))
        if found is not None:
            return IndexSizes(slots or found.slots, entries or found.entries)
    return IndexSizes(slots or USUAL_LAYOUT.slots, entries or USUAL_LAYOUT.entries)


def _names(store: str) -> list[str]:
    try:
        names = os.listdir(os.path.join(store, INDEX_FOLDER))
    except FileNotFoundError:
        return []
    return sorted(name for name in names if is_file_name(name))


def save_entries(out: str, split: Split, found: list[Entries]) -> int:
    """Write a split's entries to the drafts folder. Return their number. Raises OSError."""
    count = sum(len(one) for one in found)
    rows = np.empty(count, _DRAFT)
    begin = 0
    for one in found:
        part = rows[begin : begin + len(one)]
        part["hash"], part["offset"], part["time"] = one.hashes, one.offsets, one.times
        begin += len(one)
    folder = os.path.join(out, _DRAFTS)
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{split.start:020d}")
    draft = f"{path}.{os.getpid()}"
    rows.tofile(draft)
    os.replace(draft, path)
    return count


def merge_index(store: str, out: str, sizes: IndexSizes, log_start: int = 0) -> int:
    """Write the index files: entries carried over from the store, then the drafts.

    Return the number of carried-over entries. Raises OSError.
    """
    names = iter(_names(store))
    folder = os.path.join(out, INDEX_FOLDER)
    shutil.rmtree(folder, ignore_errors=True)  # left by a failed attempt
    os.makedirs(folder)
    layout = IndexLayout(sizes.slots, sizes.entries)
    writer: IndexWriter | None = None
    last = ""
    old = OldEntries(store, log_start)
    for entries in itertools.chain(old, _drafts(os.path.join(out, _DRAFTS))):
        begin = 0
        while begin < len(entries):
            if writer is None or not writer.room:
                header = old.seed() if writer is None else writer.header.follower()
                _finish(writer)
                last = next(names, "") or file_name(int(entries.times[begin]), last)
                path = os.path.join(folder, last)
                writer = IndexWriter(path, layout, header, Disk(), create=True)
            end = min(begin + writer.room, len(entries))
            writer.put(entries, begin, end)
            begin = end
    _finish(writer)
    shutil.rmtree(os.path.join(out, _DRAFTS), ignore_errors=True)
    return old.count


def _drafts(folder: str) -> Iterator[Entries]:
    names: list[str] = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    for name in names:
        if not name.isdecimal():
            continue
        rows: Any = np.fromfile(os.path.join(folder, name), _DRAFT)
        for begin in range(0, len(rows), _ENTRIES):
            part = rows[begin : begin + _ENTRIES]
            kinds = np.zeros(len(part), np.int64)
            hashes, offsets = part["hash"].astype(np.int64), part["offset"].astype(np.int64)
            yield Entries(hashes, offsets, part["time"].astype(np.int64), kinds)


def _finish(writer: IndexWriter | None) -> None:
    if writer is not None:
        writer.write_out()
        writer.sync()
        writer.close()
