"""Batch consume queues: the unit of 46 bytes, its files, and that the store leaves them alone."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.store.format.batch_queue import (
    UNIT_BYTES,
    BatchQueue,
    BatchUnit,
    decode_unit,
    encode_unit,
)
from cometmq.store.format.errors import UnsupportedLayoutError
from cometmq.store.format.results import GetStatus, PutStatus
from cometmq.tests.store.kit import Kit, message

I64 = st.integers(-(1 << 63), (1 << 63) - 1)
I32 = st.integers(-(1 << 31), (1 << 31) - 1)
UNITS = st.builds(
    BatchUnit, I64, I32, I64, I64, I64, st.integers(-(1 << 15), (1 << 15) - 1), I32, I32
)


def write_queue(folder: Path, units: list[BatchUnit], units_a_file: int = 10) -> None:
    folder.mkdir(parents=True)
    size = units_a_file * UNIT_BYTES
    data = b"".join(encode_unit(unit) for unit in units)
    for start in range(0, max(len(data), 1), size):
        (folder / f"{start:020d}").write_bytes(data[start : start + size].ljust(size, b"\0"))


def batches(counts: list[int], first: int = 0) -> list[BatchUnit]:
    units = []
    for index, count in enumerate(counts):
        units.append(BatchUnit(index * 500, 500, 7, 1000 + index, first, count))
        first += count
    return units


def test_a_unit_is_as_in_the_format() -> None:
    unit = BatchUnit(0x186, 0xE0, -2, 0x18BCFE58F8B, 45, 3)
    data = bytes.fromhex(
        "0000000000000186 000000e0 fffffffffffffffe 0000018bcfe58f8b 000000000000002d 0003 ffffffff"
        " 00000000"
    )
    assert encode_unit(unit) == data
    assert decode_unit(data) == unit
    assert unit.is_whole
    assert unit.end_offset == 48
    assert not decode_unit(bytes(46)).is_whole


@given(UNITS)
def test_units_round_trip(unit: BatchUnit) -> None:
    assert decode_unit(b"x" + encode_unit(unit), 1) == unit


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 35])
def test_messages_are_found_by_searching(tmp_path: Path, count: int) -> None:
    units = batches([1 + index % 4 for index in range(count)], first=100 if count else 0)
    write_queue(tmp_path / "q", units)
    queue = BatchQueue(str(tmp_path / "q"))
    assert list(queue) == units
    assert queue.units == count
    assert queue.min_offset == (100 if count else 0)
    assert queue.max_offset == (units[-1].end_offset if count else 0)
    for offset in range(98, queue.max_offset + 2):
        expected = [u for u in units if u.base_offset <= offset < u.end_offset]
        assert queue.find(offset) == (expected[0] if expected else None)
    with pytest.raises(IndexError):
        queue.unit(-1)


@given(data=st.binary(max_size=300))
def test_arbitrary_bytes_are_decoded_without_a_crash(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("q")
    (folder / f"{0:020d}").write_bytes(data)
    try:
        queue = BatchQueue(str(folder))
    except UnsupportedLayoutError:
        assert len(data) % UNIT_BYTES
        return
    assert len(list(queue)) == queue.units
    queue.find(5)


def test_file_names_that_are_not_offsets_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(46))
    with pytest.raises(UnsupportedLayoutError):
        BatchQueue(str(tmp_path))


def test_the_store_leaves_batch_queues_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic of the batch form: not read, not written, its queues' folder never made (Apache's
    broker refuses to start where a topic has both forms)."""
    kit = Kit(tmp_path)
    kit.open()
    kit.write_many(5, topic="Batched")
    kit.write_many(5)
    kit.close()
    import shutil

    shutil.rmtree(tmp_path / "consumequeue" / "Batched")
    write_queue(tmp_path / "batchconsumequeue" / "Batched" / "0", batches([5]))
    before = (tmp_path / "batchconsumequeue" / "Batched" / "0" / f"{0:020d}").read_bytes()
    (tmp_path / "abort").write_text("1")  # the queues are made from the log again
    report = kit.open()
    assert "Batched" in caplog.text
    assert not report.clean
    kit.dispatch()
    assert not (tmp_path / "consumequeue" / "Batched").exists()
    assert kit.store.get("Batched", 0, 0, 5).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    assert len(kit.queue_bodies()) == 5
    (result,) = kit.store.writer.append_many([message(b"x", topic="Batched")])
    assert result.status is PutStatus.MESSAGE_ILLEGAL
    kit.write()
    kit.close()
    kit.open_only()
    assert kit.store.writer.next_offset("TopicTest", 0) == 6
    kit.close()
    assert not (tmp_path / "consumequeue" / "Batched").exists()
    after = (tmp_path / "batchconsumequeue" / "Batched" / "0" / f"{0:020d}").read_bytes()
    assert after == before
    assert struct.unpack_from(">h", after, 36) == (5,)
