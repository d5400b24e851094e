"""The native crate reads the index entries that NumPy reads, and the index files are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.proto import native
from cometmq.store.format.index_file import index_files
from cometmq.store.format.index_keys import BATCH_BYTES_MAX, Entries, entries_of
from cometmq.store.format.record import Message, encode_properties
from cometmq.store.index.columns import next_columns
from cometmq.store.index.native_entries import next_entries
from cometmq.store.native_parts import NativeParts
from cometmq.tests.store.index.test_index_keys import log_of, messages
from cometmq.tests.store.kit import Kit
from cometmq.tests.store.scan.test_native_reads import fill

CRATE = native.load()
INDEX_ENTRIES: Any = CRATE and CRATE.index_entries

pytestmark = pytest.mark.skipif(
    INDEX_ENTRIES is None, reason="the native crate is not installed (scripts/native_door)"
)


class NativeKit(Kit):
    """A store that indexes through the native crate."""

    native = NativeParts(index_entries=INDEX_ENTRIES)


def rows(entries: Entries) -> list[tuple[int, ...]]:
    columns = (entries.hashes, entries.offsets, entries.times, entries.kinds)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def compare(log: bytes, step: int) -> int:
    """Compare both for the whole log; return how many records the crate has read."""
    position = read = 0
    view = memoryview(log)
    while position < len(log):
        found = next_entries(INDEX_ENTRIES, view, 0, (position, len(log)), step)
        columns, end = next_columns(view, 0, position, len(log), found[2] if found else 1)
        assert columns is not None
        if found is not None:
            entries, native_end, records = found
            assert (native_end, records) == (end, len(columns))
            assert rows(entries) == rows(entries_of(view, columns))
            read += records
        position = end
    return read


@settings(deadline=None)
@given(st.lists(messages, max_size=12), st.integers(1, 5))
def test_entries_equal_those_of_numpy(many: list[Message], step: int) -> None:
    log = log_of(many)
    common = sum(len(message.topic.encode()) < 128 for message in many)
    assert compare(log, step) == common


@settings(deadline=None)
@given(st.lists(messages, min_size=1, max_size=3), st.data())
def test_damaged_records_are_read_alike_or_left(many: list[Message], data: st.DataObject) -> None:
    log = bytearray(log_of(many))
    at = data.draw(st.integers(0, len(log) - 1))
    log[at] = data.draw(st.integers(0, 255))
    view = memoryview(log)
    found = next_entries(INDEX_ENTRIES, view, 0, (0, len(log)), len(many))
    if found is None:
        return
    entries, end, records = found
    columns, numpy_end = next_columns(view, 0, 0, len(log), records)
    assert columns is not None
    assert (numpy_end, len(columns)) == (end, records)
    assert rows(entries) == rows(entries_of(view, columns))


def test_the_properties_of_a_batch_are_bounded() -> None:
    properties = encode_properties({"KEYS": "k" * 30_000})
    log = log_of([Message("T", 0, b"", properties)] * 40)
    found = next_entries(INDEX_ENTRIES, memoryview(log), 0, (0, len(log)), 40)
    assert found is not None
    assert found[2] == BATCH_BYTES_MAX // len(properties)
    assert compare(log, 40) == 40


def test_index_files_are_the_same(tmp_path: Path) -> None:
    options = {"max_hash_slot_num": 5, "max_index_num": 50}
    files = []
    for kit in (Kit(tmp_path / "numpy", **options), NativeKit(tmp_path / "native", **options)):
        kit.open()
        fill(kit)
        kit.close()
        directory = str(kit.store.config.index_directory)
        files.append([Path(path).read_bytes() for path in index_files(directory)])
    assert len(files[0]) > 3
    assert files[0] == files[1]
