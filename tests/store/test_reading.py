"""Reading queues: statuses and next offsets of the format (section 9), filters, time."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cometmq.store.message_store import GetStatus
from cometmq.store.properties import java_hash
from cometmq.store.reading import tags_match
from cometmq.store.record import decode, decode_delivery
from cometmq.tests.store.kit import START_MS, Kit


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
    result = kit.store.get("TopicTest", 0, 10, 35)
    assert [record.queue_offset for record in result.records] == list(range(10, 45))
    kit.reopen()
    result = kit.store.get("TopicTest", 0, 10, 35)
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


def test_codes_match_in_their_low_32_bits() -> None:
    wanted = frozenset({5, -7})
    assert tags_match(5, wanted)
    assert tags_match(-7, wanted)
    assert not tags_match(6, wanted)
    assert tags_match((1 << 40) + 5, wanted)
    assert tags_match((1 << 40) + 0xFFFFFFF9, wanted)
    assert not tags_match((1 << 40) + 6, wanted)
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
        assert kit.store.offset_by_time("TopicTest", 0, at) == first_after
        last_before = max(sum(1 for time in times if time <= at) - 1, 0)
        assert kit.store.offset_by_time("TopicTest", 0, at, upper=True) == last_before
    assert kit.store.offset_by_time("TopicTest", 1, START_MS) == 0
    kit.close()


def test_questions_about_no_queue(kit: Kit) -> None:
    store = kit.store
    assert store.min_offset("No", 0) == store.max_offset("No", 0) == store.next_offset("No", 0) == 0
    assert list(store.queues()) == []
