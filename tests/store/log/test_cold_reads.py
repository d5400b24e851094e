"""Records that have to come from the disk: detection, and reads on a thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cometmq.store.format.errors import CorruptLogError, OffsetOutOfRangeError
from cometmq.store.format.properties import java_hash
from cometmq.tests.store.kit import Kit
from cometmq.tests.store.test_reading import reader_of


def codes(*tags: str) -> frozenset[int]:
    return frozenset(java_hash(tag) for tag in tags)


@given(
    tags=st.lists(st.sampled_from("ab"), min_size=1, max_size=60),
    border=st.integers(0, 60),
    asked=st.tuples(st.integers(-2, 62), st.integers(1, 40), st.integers(1, 5000)),
    wanted=st.sampled_from([None, codes("a"), codes("a", "b"), codes("c")]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_cold_units_are_a_prefix_of_what_a_read_returns(
    tmp_path_factory: pytest.TempPathFactory,
    tags: list[str],
    border: int,
    asked: tuple[int, int, int],
    wanted: frozenset[int] | None,
) -> None:
    kit = Kit(tmp_path_factory.mktemp("cold"))
    kit.open()
    written = [kit.write(b"." * (number % 7 * 40), tags=tag) for number, tag in enumerate(tags)]
    kit.dispatch()
    end = kit.store.log_end
    warm_from = written[border].physical_offset if border < len(written) else end
    reader = reader_of(kit, (end - warm_from) * 100, access_message_in_memory_max_ratio=1)
    offset = asked[0]
    found = reader.cold_units("TopicTest", 0, *asked, tag_codes=wanted)
    read = reader.get("TopicTest", 0, *asked, tag_codes=wanted)
    is_cold = 0 <= offset < min(border, len(tags))
    assert (found is not None) == is_cold
    if found is not None:
        units, following = found
        got = [(r.queue_offset, r.physical_offset, len(r.data), r.tags_code) for r in read.records]
        said = [(u.queue_offset, u.physical_offset, u.size, u.tags_code) for u in units]
        assert said == got[: len(said)]
        assert offset < following <= read.next_offset
        # Nothing that was wanted is passed over.
        assert all(r[0] >= following for r in got[len(said) :])
    kit.close()


def test_ranges_are_read_on_a_thread(kit: Kit) -> None:
    written = kit.write_many(80, 300)
    places = [(one.physical_offset, one.size) for one in (*written[3:6], written[-1])]
    with kit.store.blocks.range_reader(places) as read, ThreadPoolExecutor(1) as thread:
        records = thread.submit(read).result()
    assert records == [kit.store.record_at(offset) for offset, _ in places]


def test_a_range_reader_holds_its_segments(kit: Kit) -> None:
    written = kit.write_many(80, 300)
    first = written[0]
    segment = kit.store.log.segment_at(first.physical_offset)
    with kit.store.blocks.range_reader([(first.physical_offset, first.size)] * 2):
        assert segment.held
    assert not segment.held


def test_ranges_outside_of_the_log_or_damaged_are_refused(kit: Kit) -> None:
    written = kit.write_many(20, 300)
    end = kit.store.log_end
    for places in ([(end, 1)], [(0, 0)], [(end - 10, 11)], [(1 << 62, 5)]):
        with pytest.raises(OffsetOutOfRangeError), kit.store.blocks.range_reader(places):
            pass
    kit.store.blocks.mark_damaged(0, 10)
    first, second = written[:2]
    with (
        pytest.raises(CorruptLogError),
        kit.store.blocks.range_reader([(first.physical_offset, first.size)]),
    ):
        pass
    with kit.store.blocks.range_reader([(second.physical_offset, second.size)]) as read:
        assert len(read()[0]) == second.size
