"""Order and files of the archive, for every kind of log."""

from __future__ import annotations

import random
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.pipeline.archive.manifest import all_manifests
from cometmq.pipeline.archive.planning import grid_splits, snapshot
from cometmq.pipeline.archive.record_order import _order, sort_records
from cometmq.pipeline.archive.row_file import FileFormat, RowFile, file_schema
from cometmq.pipeline.archive.splits import SplitWork, archive_split, source_crc
from cometmq.pipeline.decode import decode
from cometmq.pipeline.pairs import Properties
from cometmq.pipeline.slices import slices
from cometmq.store.format.checksum import crc32
from cometmq.store.format.properties import decode_properties
from cometmq.store.format.record import Message, encode_properties, pack_host
from cometmq.store.scan.files import open_bytes
from cometmq.store.scan.walk import RawBytes, TopicTable, walk
from cometmq.tests.pipeline.written import write_store

SPLIT = 1 << 20


def message(number: int, host: str = "127.0.0.1") -> Message:
    names = {"UNIQ_KEY": f"{number:032X}", "KEYS": f"k{number}"}
    if number % 7 == 0:
        names = {"TAGS": f"t{number % 3}", "COMETMQ_LONG_A": "a", "COMETMQ_LONG_B": "b"}
    return Message(
        f"topic-{number % 5}",
        number % 3,
        random.Random(number).randbytes(number % 700),
        encode_properties(names),
        born_host=pack_host(host, 1000 + number % 2),
        store_host=pack_host("127.0.0.1", 10911),
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store") / "broker-a"
    messages = [message(n, "::1" if n % 50 == 3 else "127.0.0.1") for n in range(2000)]
    return write_store(root, messages, step_ms=120_000, segment=8 << 20)


def test_the_files_of_a_split_have_the_rows_of_the_decoder(store: Path, tmp_path: Path) -> None:
    for split in grid_splits(snapshot(str(store)), SPLIT, live=True):
        done = archive_split(SplitWork(str(tmp_path), split))
        assert done.rows
    whole = [
        b for split in grid_splits(snapshot(str(store)), SPLIT, live=True) for b in decode(split)
    ]
    log = pa.Table.from_batches(whole).sort_by("physicalOffset")
    parts = []
    for path in tmp_path.rglob("*.parquet"):
        table = pq.read_table(path, partitioning=None)
        metadata = table.schema.metadata
        topic = metadata[b"cometmq.topic"].decode()
        order = table.select(["queueId", "queueOffset"]).to_pylist()
        assert order == sorted(order, key=lambda row: (row["queueId"], row["queueOffset"]))
        table = table.add_column(0, "topic", pa.array([topic] * len(table)))
        parts.append(table.replace_schema_metadata(None))
    assert pa.concat_tables(parts).sort_by("physicalOffset").equals(log)


def test_the_source_digest_is_the_crc_of_its_bytes(store: Path, tmp_path: Path) -> None:
    (split,) = grid_splits(snapshot(str(store)), SPLIT * 64, live=True)
    archive_split(SplitWork(str(tmp_path), split))
    (manifest,) = all_manifests(str(tmp_path))
    assert manifest.about["source_crc"] == source_crc(split)


def test_sorted_records_keep_their_hosts(store: Path) -> None:
    (split,) = grid_splits(snapshot(str(store)), SPLIT * 64, live=True)
    raw = RawBytes(open_bytes(Path(split.path)))
    end = split.end - split.base

    def batches() -> Any:
        return walk(raw.data, split.base, 0, end, topics=TopicTable())

    plain = list(batches())
    found, days = sort_records(raw, batches(), end)
    whole = {
        name: np.concatenate([getattr(part, name) for part in plain])
        for name in ("topic_id", "queue_id", "queue_offset", "store_timestamp", "physical_offset")
    }
    day = whole["store_timestamp"] // 86_400_000
    order = np.lexsort((whole["queue_offset"], whole["queue_id"], day, whole["topic_id"]))
    assert found.physical_offset.tolist() == whole["physical_offset"][order].tolist()
    assert days.tolist() == day[order].tolist()
    for name in ("born_host_start", "store_host_start"):
        before = np.concatenate([getattr(part, name) for part in plain])[order]
        now = getattr(found, name)
        for old, new in zip(before.tolist(), now.tolist(), strict=True):
            assert raw.bytes_at(old, 8) == raw.bytes_at(new, 8)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 9)), max_size=30),
    st.booleans(),
)
def test_records_in_no_queue_are_sorted(rows: list[tuple[int, int, int]], wide: bool) -> None:
    scale = 1 << 20 if wide else 1
    topics, queues, offsets = (np.array([r[at] for r in rows], np.int64) for at in range(3))
    order = _order(topics, topics * 0 + 5, queues * scale, offsets)
    assert order.tolist() == sorted(range(len(rows)), key=lambda at: (*rows[at], at))


@settings(deadline=None)
@given(st.lists(st.binary(max_size=9), max_size=30), st.randoms(use_true_random=False))
def test_slices_accept_starts_in_any_order(parts: list[bytes], chance: random.Random) -> None:
    places = np.cumsum([0, *(len(part) + 1 for part in parts)])[: len(parts)]
    order = list(range(len(parts)))
    chance.shuffle(order)
    buffer = pa.py_buffer(b"|".join(parts) + b"|")
    starts = places.astype(np.int64)[order]
    lengths = np.array([len(parts[at]) for at in order], np.int64)
    assert slices(buffer, starts, lengths, pa.binary()).to_pylist() == [parts[at] for at in order]


NAMES = st.sampled_from(("TAGS", "KEYS", "UNIQ_KEY", "COMETMQ_LONG_A", "COMETMQ_LONG_B", "a"))


@settings(max_examples=200, deadline=None)
@given(st.lists(NAMES, max_size=4), st.lists(st.text("xyz", max_size=3), min_size=4, max_size=9))
def test_records_of_one_sender_have_their_properties(names: list[str], values: list[str]) -> None:
    """All records have the same names in the same order, including a repeated name."""
    texts = [
        "".join(f"{name}\x01{value}{at}\x02" for at, name in enumerate(names)).encode()
        for value in values
    ]
    lengths = np.array([len(text) for text in texts], np.int64)
    found = Properties(pa.py_buffer(b"".join(texts)), np.cumsum(lengths) - lengths, lengths)
    expected = [decode_properties(text) for text in texts]
    assert [dict(one) for one in found.maps().to_pylist()] == expected
    for name in ("TAGS", "KEYS", "UNIQ_KEY"):
        assert found.values(name).to_pylist() == [one.get(name) for one in expected]


@settings(deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_every_checksum_equals_zlib(first: bytes, second: bytes) -> None:
    assert crc32(first + second, 0) == zlib.crc32(first + second)
    assert crc32(memoryview(second), crc32(first, 0)) == zlib.crc32(first + second)


_WRITER = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    view = mmap.mmap(file.fileno(), 0)
print("ready", flush=True)
while True:
    view[400_000:500_000] = b"\\1" * 100_000
    view[400_000:500_000] = bytes(100_000)
"""


def test_the_safe_end_is_found_while_a_broker_appends(tmp_path: Path) -> None:
    """`np.flatnonzero` counts first and raises if bytes change before its second pass."""
    path = tmp_path / "segment"
    path.write_bytes(bytes(1 << 20))
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _WRITER, str(path)], stdout=subprocess.PIPE
    ) as writer:
        try:
            assert writer.stdout is not None
            writer.stdout.readline()
            for _ in range(300):
                walking = walk(open_bytes(path), 0, 0, 1 << 20, "skip")
                assert list(walking) == []
        finally:
            writer.kill()


def test_a_file_has_row_groups_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.pipeline.archive.row_file.GROUP_BYTES", 1000)
    batch = pa.record_batch({"body": pa.array([b"x" * 300] * 2), "physicalOffset": [7, 5]})
    file = RowFile(str(tmp_path / "one"), file_schema(batch.schema, {"a": "b"}), FileFormat())
    for _ in range(5):
        file.add(batch)
    entry = file.close("t", "p", "s")
    assert (entry.rows, entry.first, entry.last) == (10, 5, 7)
    assert entry.crc == zlib.crc32(b"x" * 3000)
    read = pq.ParquetFile(tmp_path / "one")
    assert read.num_row_groups == 5
    assert read.schema_arrow.metadata[b"cometmq.a"] == b"b"
    assert entry.file_crc == zlib.crc32((tmp_path / "one").read_bytes())
