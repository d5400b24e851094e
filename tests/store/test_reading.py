"""Reading queues: statuses and next offsets of the format (section 9), filters, time."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cometmq.store.format.properties import java_hash
from cometmq.store.format.record import decode, decode_delivery
from cometmq.store.format.results import Arrival, GetStatus, PutStatus
from cometmq.store.reading import QueueReader, tags_match
from cometmq.tests.store.kit import QUEUE_FILE, START_MS, Kit

#: As the broker asks: more than a test has.
ANSWER_BYTES = 4 << 20


def test_statuses(kit: Kit) -> None:
    store = kit.store
    empty = store.get("TopicTest", 0, 5, 10)
    assert (empty.status, empty.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
    kit.write_many(10)
    for offset, status, next_offset in (
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (10, GetStatus.OFFSET_OVERFLOW_ONE, 10),
        (11, GetStatus.OFFSET_OVERFLOW_BADLY, 10),
        (3, GetStatus.FOUND, 7),
    ):
        result = store.get("TopicTest", 0, offset, 4)
        assert (result.status, result.next_offset) == (status, next_offset)
        assert (result.min_offset, result.max_offset) == (0, 10)
    found = store.get("TopicTest", 0, 3, 4).records
    assert [record.queue_offset for record in found] == [3, 4, 5, 6]
    assert [decode(record.data).queue_offset for record in found] == [3, 4, 5, 6]
    assert decode_delivery(found[0].data).body.startswith(b"000003")


def test_bytes_are_bounded_but_one_record_always_comes(kit: Kit) -> None:
    size = kit.write_many(10, 300)[0].size
    store = kit.store
    assert len(store.get("TopicTest", 0, 0, 10, max_bytes=3 * size).records) == 3
    assert len(store.get("TopicTest", 0, 0, 10, max_bytes=3 * size - 1).records) == 2
    one = store.get("TopicTest", 0, 4, 10, max_bytes=1)
    assert (len(one.records), one.next_offset) == (1, 5)


def test_a_read_crosses_queue_files(kit: Kit) -> None:
    kit.write_many(50, 10)
    result = kit.store.get("TopicTest", 0, 10, 35, ANSWER_BYTES)
    assert [record.queue_offset for record in result.records] == list(range(10, 45))
    kit.reopen()
    result = kit.store.get("TopicTest", 0, 10, 35, ANSWER_BYTES)
    assert [record.queue_offset for record in result.records] == list(range(10, 45))


def test_tags(kit: Kit) -> None:
    for index in range(60):
        kit.write(f"{index}".encode(), tags=f"T{index % 3}")
    kit.dispatch()
    wanted = frozenset({java_hash("T1")})
    result = kit.store.get("TopicTest", 0, 0, 5, tag_codes=wanted)
    assert [record.queue_offset for record in result.records] == [1, 4, 7, 10, 13]
    assert result.next_offset == 16, "goes on at the next match"
    assert {record.tags_code for record in result.records} == wanted
    result = kit.store.get("TopicTest", 0, 59, 5, tag_codes=wanted)
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 60)


def test_a_filtered_read_looks_at_a_bounded_number_of_units(tmp_path: Path) -> None:
    kit = Kit(tmp_path, max_filter_message_size=200)
    kit.open()
    for _ in range(50):
        kit.write(tags="A")
    kit.dispatch()
    result = kit.store.get("TopicTest", 0, 0, 5, tag_codes=frozenset({1}))
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 10)
    kit.close()


def test_a_code_outside_of_32_bits_may_match_anything() -> None:
    wanted = frozenset({5, -7})
    assert tags_match(5, wanted)
    assert tags_match(-7, wanted)
    assert not tags_match(6, wanted)
    assert tags_match((1 << 40) + 6, wanted), "a damaged code"
    assert tags_match(-(1 << 63), wanted), "the address of an extension unit"


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(gaps=st.lists(st.integers(0, 3), min_size=1, max_size=60), ipv6=st.booleans())
def test_offset_by_time(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[int], ipv6: bool
) -> None:
    kit = Kit(tmp_path_factory.mktemp("store"))
    kit.open()
    times = []
    for gap in gaps:
        kit.now_ms += gap
        times.append(kit.now_ms)
        kit.write(born_host=bytes(20 if ipv6 else 8))
    kit.dispatch()
    for at in range(START_MS - 1, times[-1] + 2):
        first_after = sum(1 for time in times if time < at)
        assert kit.store.reader.offset_by_time("TopicTest", 0, at) == first_after
        last_before = max(sum(1 for time in times if time <= at) - 1, 0)
        assert kit.store.reader.offset_by_time("TopicTest", 0, at, upper=True) == last_before
    assert kit.store.reader.offset_by_time("TopicTest", 1, START_MS) == 0
    kit.close()


def test_reads_of_a_missing_queue(kit: Kit) -> None:
    store = kit.store
    assert (
        store.min_offset("No", 0)
        == store.max_offset("No", 0)
        == store.writer.next_offset("No", 0)
        == 0
    )
    assert list(store.queues()) == []


def reader_of(kit: Kit, memory_bytes: int, **options: Any) -> QueueReader:
    """A reader that believes in a machine with so much memory."""
    config = dataclasses.replace(kit.store.config, **options)
    return QueueReader(kit.store.log, kit.store.queue_table, config, lambda: memory_bytes)


def counts(reader: QueueReader, count: int, bytes_max: int | None = None) -> list[int]:
    """How many records each read returns until the queue's end."""
    offset, found = 0, []
    while offset < reader.max_offset("TopicTest", 0):
        result = reader.get("TopicTest", 0, offset, count, bytes_max, tag_codes=None)
        found.append(len(result.records))
        assert result.next_offset == offset + found[-1]
        offset = result.next_offset
    return found


def test_rocketmqs_limits_apply_without_a_byte_limit(kit: Kit) -> None:
    kit.write_many(80, 300)
    memory = 1 << 30
    assert counts(reader_of(kit, memory), 100) == [32, 32, 16]
    assert counts(reader_of(kit, memory), 5)[:2] == [5, 5]
    assert counts(reader_of(kit, 0), 100) == [8] * 10, "all of it is on the disk"
    assert counts(reader_of(kit, memory), 100, ANSWER_BYTES) == [80], "the caller's own limit"
    assert counts(reader_of(kit, 0), 100, ANSWER_BYTES) == [80]
    size = len(kit.store.get("TopicTest", 0, 0, 1).records[0].data)
    small = reader_of(kit, memory, max_transfer_bytes_on_message_in_memory=10 * size)
    assert counts(small, 100) == [10] * 8
    small = reader_of(kit, 0, max_transfer_bytes_on_message_in_disk=3 * size - 1)
    assert counts(small, 100) == [2] * 40
    one = reader_of(kit, 0, max_transfer_bytes_on_message_in_disk=1)
    assert counts(one, 100) == [1] * 80, "the first comes whatever its size"


def test_records_near_the_log_end_count_as_in_memory(kit: Kit) -> None:
    results = kit.write_many(80, 300)
    end = kit.store.log_end
    # 40 percent of the memory reaches back to record 50.
    reader = reader_of(kit, (end - results[50].physical_offset) * 100 // 40)
    assert len(reader.get("TopicTest", 0, 49, 100, None, tag_codes=None).records) == 8
    assert len(reader.get("TopicTest", 0, 50, 100, None, tag_codes=None).records) == 30
    far = reader.get("TopicTest", 0, 40, 10, ANSWER_BYTES, tag_codes=None)
    near = reader.get("TopicTest", 0, 41, 10, ANSWER_BYTES, tag_codes=None)
    assert (far.suggest_pulling_from_slave, near.suggest_pulling_from_slave) == (True, False)
    assert not reader.get("TopicTest", 0, 80, 10, None, tag_codes=None).suggest_pulling_from_slave


def test_reads_of_invalid_queues(kit: Kit) -> None:
    kit.write_many(2)
    for topic, queue_id in (("../x", 0), ("", 0), ("TopicTest", -1), ("t" * 200, 0)):
        result = kit.store.get(topic, queue_id, 7, 1)
        assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0)
    assert kit.store.get("TopicTest", 5, 7, 1).status is GetStatus.NO_MESSAGE_IN_QUEUE


@pytest.mark.parametrize("how", ["missing", "cut", "empty"])
def test_a_missing_or_cut_queue_file_is_written_again(kit: Kit, how: str) -> None:
    units = QUEUE_FILE // 20
    kit.write_many(3 * units, 10)
    kit.reopen()
    kit.store.queue_table.files.files.close()
    path = kit.root / "consumequeue" / "TopicTest" / "0" / f"{QUEUE_FILE:020d}"
    before = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        os.truncate(path, 133 if how == "cut" else 0)
    first = kit.store.get("TopicTest", 0, units - 3, 10, ANSWER_BYTES)
    assert (len(first.records), first.next_offset) == (10, units + 7)
    rest = kit.store.get("TopicTest", 0, units + 7, 100, ANSWER_BYTES)
    assert len(rest.records) == 2 * units - 7
    assert path.read_bytes() == before


def test_units_of_deleted_records_are_skipped(kit: Kit) -> None:
    results = kit.write_many(60, 200)
    store = kit.store
    start = store.log.segments[2].start
    kept = next(r.queue_offset for r in results if r.physical_offset >= start)
    for segment in store.log.segments[:2]:
        segment.flushed = segment.size
    store.log.drop_first()
    store.log.drop_first()
    reader = reader_of(kit, 1 << 30, max_filter_message_size=100)
    none = reader.get("TopicTest", 0, 0, 5, ANSWER_BYTES, tag_codes=None)
    assert (none.status, none.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 5)
    for offset in (0, kept - 2):
        some = store.get("TopicTest", 0, offset, 4, ANSWER_BYTES)
        assert some.status is GetStatus.FOUND
        assert some.records[0].queue_offset == kept
    assert store.reader.offset_by_time("TopicTest", 0, START_MS - 1) == kept
    store.queue_table.write_out()
    while store.queue_table.trimmed_to < start:
        store.queue_table.trim(start)
    assert store.min_offset("TopicTest", 0) == kept
    assert store.get("TopicTest", 0, 0, 5).status is GetStatus.OFFSET_TOO_SMALL
    assert store.get("TopicTest", 0, 0, 5).next_offset == kept
    assert store.reader.offset_by_time("TopicTest", 0, 0) == kept
    assert store.reader.offset_by_time("TopicTest", 0, 0, upper=True) == kept


def test_a_unit_without_its_record_is_skipped(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    """Damage in a record's head or in a unit: never other bytes, never an error for the readers of
    what is whole. Damaged units are restored from the log."""
    results = kit.write_many(12, 100)
    store = kit.store
    kit.change(results[3].physical_offset + 28, b"\xff" * 8)  # its own place
    kit.change(results[5].physical_offset, b"\x00\x00\x00\x01")  # its size
    store.queue_table.write_out()
    store.queue_table.write_units({})  # lets go of the tails
    path = kit.root / "consumequeue" / "TopicTest" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[7 * 20 : 8 * 20] = bytes(20)  # a unit that was never written
    data[8 * 20 : 8 * 20 + 8] = (1 << 40).to_bytes(8, "big")  # behind the log's end
    data[9 * 20 + 8 : 9 * 20 + 12] = (1 << 30).to_bytes(4, "big")  # larger than a segment
    data[10 * 20 : 10 * 20 + 8] = (-5).to_bytes(8, "big", signed=True)
    path.write_bytes(data)
    result = store.get("TopicTest", 0, 0, 32)
    assert result.status is GetStatus.FOUND
    assert [record.queue_offset for record in result.records] == [0, 1, 2, 4, *range(6, 12)]
    assert result.next_offset == 12
    reader = reader_of(kit, 1 << 30, max_filter_message_size=20)
    alone = reader.get("TopicTest", 0, 3, 1, None, tag_codes=None)
    assert (alone.status, alone.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 4)
    assert caplog.text.count("queue.record_missing") == 3, "once per record and reader"


def test_fillers_are_not_returned_as_messages(tmp_path: Path) -> None:
    """A queue with a gap in the middle, as recovery makes one where records are lost."""
    kit = Kit(tmp_path)
    kit.open()
    results = [kit.write(bytes(100), topic="Gap") for _ in range(10)]
    for at, result in enumerate(results[5:], 35):
        kit.change(result.physical_offset + 20, at.to_bytes(8, "big"))
    queues = kit.store.queue_table
    number = 35
    units = [
        Arrival(PutStatus.PUT_OK, r.physical_offset, r.size, number + i, 0, "Gap", 0, 0)
        for i, r in enumerate(results[5:])
    ]
    first = [
        Arrival(PutStatus.PUT_OK, r.physical_offset, r.size, i, 0, "Gap", 0, 0)
        for i, r in enumerate(results[:5])
    ]
    queues.write([*first, *units])
    store = kit.store
    assert store.get("Gap", 0, 5, 3, ANSWER_BYTES).status is GetStatus.FOUND
    assert store.get("Gap", 0, 5, 3, ANSWER_BYTES).records[0].queue_offset == 35
    found = store.get("Gap", 0, 0, 40, ANSWER_BYTES).records
    assert [record.queue_offset for record in found] == [0, 1, 2, 3, 4, 35, 36, 37, 38, 39]
    assert store.get("Gap", 0, 3, 4).next_offset == 37
    queue = queues.queue("Gap", 0)
    queue.correct_min_offset(results[3].physical_offset)
    assert queue.min_offset == 3, "the gap does not mislead the search"
    queue.correct_min_offset(results[4].physical_offset + 1)
    assert queue.min_offset == 35
    kit.close()
