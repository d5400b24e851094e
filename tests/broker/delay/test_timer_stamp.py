"""Properties added at delivery, in the order of Apache's maps."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.broker.delay.delivery_copy import DEQUEUED, ENQUEUED, ROLLED, number, stamped
from cometmq.broker.messages.stored_properties import in_bucket_order
from cometmq.store.format.properties import decode_properties, encode_properties
from cometmq.store.format.record import Record, decode
from cometmq.store.timer.rules import TIMER_TOPIC
from cometmq.tests.formats.cases import TIMED, dispatch_all, new_store, unpack

NAMES = st.sampled_from(
    ("UNIQ_KEY", "TAGS", "KEYS", "REAL_TOPIC", "TIMER_ENQUEUE_MS", "TIMER_OUT_MS", "a", "b", "ä")
)


@settings(deadline=None)
@given(st.lists(st.tuples(NAMES, st.sampled_from(("", "1", "xy"))), max_size=12))
def test_the_fast_encoder_equals_the_map_of_128_buckets(pairs: list[tuple[str, str]]) -> None:
    before = "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
    wanted = decode_properties(before)
    wanted.update({"TIMER_ENQUEUE_MS": "5", "TIMER_DEQUEUE_MS": "6"})
    after = stamped(before, (ENQUEUED, DEQUEUED), (b"5", b"6"))
    assert after == encode_properties(in_bucket_order(wanted))


def test_without_additions_only_the_order_changes() -> None:
    assert stamped(b"", (), ()) == b""
    assert decode_properties(stamped(b"b\x01 1\x02a\x012\x02", (), ())) == {"a": "2", "b": " 1"}


def test_an_added_property_replaces_an_older_one() -> None:
    once = stamped(b"a\x01b\x02", (ROLLED,), (b"1",))
    assert decode_properties(stamped(once, (ROLLED,), (b"2",))) == {
        "a": "b",
        "TIMER_ROLL_TIMES": "2",
    }


@pytest.mark.parametrize("text", [b"", b"-1", b"x", b"1.0", b" 1"])
def test_text_that_is_not_a_number_counts_as_minus_one(text: bytes) -> None:
    assert number(text) == -1


def records_of(root: Path, case: str) -> dict[bool, list[Record]]:
    """Return every record of the case: those of the timer topic, and the others."""
    store = new_store(case, root)
    store.open()
    dispatch_all(store)
    found: dict[bool, list[Record]] = {True: [], False: []}
    for topic, queue_id in store.queues():
        begin = store.min_offset(topic, queue_id)
        result = store.get(topic, queue_id, begin, 10_000, 1 << 30)
        found[topic == TIMER_TOPIC] += [decode(record.data) for record in result.records]
    store.close()
    return found


@pytest.mark.parametrize("case", TIMED)
def test_deliveries_are_byte_identical_to_apaches(case: str, tmp_path: Path) -> None:
    found = records_of(unpack(case, tmp_path), case)
    shutil.rmtree(tmp_path)
    parked = {(record.properties_dict["UNIQ_KEY"], record.body): record for record in found[True]}
    compared = 0
    for copy in found[False]:
        after = copy.properties_dict
        before = parked.get((after.get("UNIQ_KEY", ""), copy.body))
        if "TIMER_DEQUEUE_MS" not in after or before is None:
            continue
        names = (ENQUEUED, DEQUEUED)
        values = [after[name.decode()].encode() for name in names]
        assert stamped(before.properties, names, values) == copy.properties
        compared += 1
    assert compared
