"""Index files: bytes as the format says, and readers that survive any bytes."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cometmq.store.format.disk import Disk
from cometmq.store.format.errors import UnsupportedLayoutError
from cometmq.store.format.index_file import (
    IndexFile,
    IndexHeader,
    IndexLayout,
    file_name,
    guess_layout,
    index_files,
    read_header,
)
from cometmq.store.format.index_keys import KEY, Entries
from cometmq.store.format.index_writer import IndexWriter
from cometmq.tests.store.plain_index import PlainFile

TIME_MAX = 1 << 62
NOW_MS = 1_700_000_000_000
SMALL = IndexLayout(4, 5)


def entries(*rows: tuple[int, int, int]) -> Entries:
    hashes, offsets, times = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return Entries(hashes, offsets, times, np.full(len(rows), KEY))


def test_worked_example(tmp_path: Path) -> None:
    """Store format, E7: four slots, room for five, the seed of a file before it."""
    path = str(tmp_path / "1")
    seed = IndexHeader(end_offset=1000, end_timestamp_ms=1_700_000_000_000).follower()
    writer = IndexWriter(path, SMALL, seed, Disk(), create=True)
    key_a, key_b = 0x4A53EE7F, 0x4A53EE80
    new = entries(
        (key_a, 2000, 1_700_000_005_999),
        (key_a, 2100, 1_700_000_007_500),
        (key_b, 2200, 1_700_000_006_000),
        (key_a, 2300, 1_700_000_009_000),
    )
    writer.put(new, 0, 1)
    writer.put(new, 1, 4)
    assert writer.room == 0
    writer.write_out()
    writer.close()
    expected = (
        "0000018bcfe57f6f 0000018bcfe58b28 00000000000007d0 00000000000008fc 00000002 00000005"
        "00000003 00000000 00000000 00000004"
        "0000000000000000000000000000000000000000"
        "4a53ee7f 00000000000007d0 00000005 00000000"
        "4a53ee7f 0000000000000834 00000001 00000001"
        "4a53ee80 0000000000000898 00000000 00000000"
        "4a53ee7f 00000000000008fc 00000003 00000002"
    )
    assert Path(path).read_bytes() == bytes.fromhex(expected)
    with IndexFile(path, SMALL) as file:
        assert [o for o in file.find(key_a, 0, TIME_MAX) if o >= 0] == [2300, 2100, 2000]
        assert [o for o in file.find(key_b, 0, TIME_MAX) if o >= 0] == [2200]


rows = st.lists(
    st.tuples(
        st.integers(0, 20) | st.integers(0, (1 << 31) - 1),
        st.integers(0, 1 << 40),
        st.integers(0, 5000),
    ),
    max_size=30,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=rows,
    cuts=st.lists(st.integers(1, 7), min_size=1),
    seed=st.integers(0, 2000),
    slots=st.sampled_from([7, 5000]),
)
def test_batches_give_the_bytes_of_single_puts(
    tmp_path: Path, rows: list[tuple[int, int, int]], cuts: list[int], seed: int, slots: int
) -> None:
    layout = IndexLayout(slots, 40)
    plain = PlainFile(slots, 40, end_offset=seed, end_ms=seed)
    path = tmp_path / "2"
    path.unlink(missing_ok=True)
    header = IndexHeader(end_timestamp_ms=seed, end_offset=seed).follower()
    writer = IndexWriter(str(path), layout, header, Disk(), create=True)
    new = entries(*rows) if rows else None
    at = 0
    for cut in itertools.cycle(cuts):
        end = min(at + cut, len(rows))
        if new is None or at == end:
            break
        writer.put(new, at, end)
        at = end
        if cut == 3:  # stop and start again
            writer.write_out()
            writer.close()
            header = read_header(str(path), layout)
            writer = IndexWriter(str(path), layout, header, Disk(), create=False)
    writer.write_out()
    writer.close()
    for row in rows:
        assert plain.put(*row)
    assert path.read_bytes() == plain.bytes()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_are_read_to_an_end(tmp_path: Path, data: st.DataObject) -> None:
    """Loops, numbers beyond the count, negative ones: a chain ends, and nothing is raised."""
    layout = IndexLayout(3, 6)
    numbers = st.integers(-2, 8)
    parts = [data.draw(st.integers(-(1 << 63), (1 << 63) - 1)).to_bytes(8, "big", signed=True)]
    parts += [data.draw(numbers).to_bytes(8, "big", signed=True) for _ in range(3)]
    words = (layout.file_bytes - 32) // 4
    parts += [
        data.draw(numbers | st.integers(-(1 << 31), (1 << 31) - 1)).to_bytes(4, "big", signed=True)
        for _ in range(words)
    ]
    path = tmp_path / "3"
    path.write_bytes(b"".join(parts))
    header = read_header(str(path), layout)
    assert isinstance(header.problem(layout), str)
    with IndexFile(str(path), layout) as file:
        for hash_ in range(3):
            assert len(list(file.find(hash_, 0, TIME_MAX))) <= 6
    guess_layout(str(path))


def test_another_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "20260101000000000"
    path.write_bytes(bytes(SMALL.file_bytes - 1))
    with pytest.raises(UnsupportedLayoutError, match="maxHashSlotNum=4 and maxIndexNum=5"):
        read_header(str(path), SMALL)
    with pytest.raises(UnsupportedLayoutError):
        IndexFile(str(path), SMALL)


def test_file_names_are_increasing_times() -> None:
    first = file_name(1_700_000_000_123, "")
    assert len(first) == 17
    assert first.endswith("123")
    second = file_name(1_700_000_000_123, first)
    assert int(second) == int(first) + 1, "the same millisecond"
    assert int(file_name(1_600_000_000_000, second)) == int(second) + 1, "a clock that went back"


def test_other_file_names_are_ignored(tmp_path: Path) -> None:
    for name in ("20260101000000002", "9", "readme.txt", "20260101000000001"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "123").mkdir()
    names = [Path(path).name for path in index_files(str(tmp_path))]
    assert names == ["9", "20260101000000001", "20260101000000002"]
    assert index_files(str(tmp_path / "none")) == []


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    hashes=st.lists(st.integers(0, (1 << 31) - 1), min_size=1, max_size=29),
    slots=st.integers(1, 50),
    start=st.integers(1, 1 << 40),
)
def test_sizes_are_guessed_from_the_contents(
    tmp_path: Path, hashes: list[int], slots: int, start: int
) -> None:
    path = tmp_path / "4"
    path.unlink(missing_ok=True)
    layout = IndexLayout(slots, 30)
    writer = IndexWriter(str(path), layout, IndexHeader(), Disk(), create=True)
    writer.write_out()
    assert guess_layout(str(path)) is None, "nothing to learn from"
    rows = [(hash_, start + 91 * n, NOW_MS + n) for n, hash_ in enumerate(hashes)]
    writer.put(entries(*rows), 0, len(rows))
    writer.write_out()
    writer.close()
    assert guess_layout(str(path)) == layout
