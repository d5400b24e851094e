"""Does our store say the same as Apache's broker says about the same directory?

`view` is a golden manifest (`cases.py`), or what the broker that `tests/interop/apache` starts
printed:
queues with every unit and its decoded record, offsets by time, key queries, the ends of the log.
"""

from __future__ import annotations

import base64
from typing import Any

from cometmq.store.format.record import Record, decode, unpack_host
from cometmq.store.message_store import MessageStore
from cometmq.tests.formats.cases import host, queues_of

View = dict[str, Any]


def check_record(record: Record, unit: dict[str, Any]) -> None:
    """Every field of a decoded record."""
    assert record.topic == unit["record_topic"]
    assert record.queue_id == unit["record_queue_id"]
    assert record.queue_offset == unit["record_queue_offset"]
    assert record.flag == unit["flag"]
    assert record.sys_flag == unit["sys_flag"]
    assert record.born_timestamp_ms == unit["born_timestamp"]
    assert unpack_host(record.born_host) == host(unit["born_host"])
    assert record.store_timestamp_ms == unit["store_timestamp"]
    assert unpack_host(record.store_host) == host(unit["store_host"])
    assert record.reconsume_times == unit["reconsume_times"]
    assert record.prepared_transaction_offset == unit["prepared_transaction_offset"]
    assert record.body_crc == unit["body_crc"]
    assert record.properties_dict == unit["properties"]
    assert record.body == base64.b64decode(unit["stored_body_b64"])


def check_units(store: MessageStore, view: View) -> int:
    """Every unit of every queue with its record; returns how many there are."""
    count = 0
    for topic, queue_id, queue in queues_of(view):
        assert len(queue["units"]) == queue["max"] - queue["min"]
        for unit in queue["units"]:
            count += 1
            (stored,) = store.get(topic, queue_id, unit["queue_offset"], 1).records
            assert stored.queue_offset == unit["queue_offset"]
            assert stored.physical_offset == unit["physical_offset"]
            assert len(stored.data) == unit["size"]
            assert stored.tags_code == unit["tags_code"]
            assert store.record_at(unit["physical_offset"]) == stored.data
            check_record(decode(stored.data), unit)
    return count


def check_queues(store: MessageStore, view: View, *, may_have_grown: bool = False) -> None:
    """Which queues there are, their ends, and offsets by time."""
    assert {(topic, queue_id) for topic, queue_id, _ in queues_of(view)} == set(store.queues())
    for topic, queue_id, queue in queues_of(view):
        grown = store.max_offset(topic, queue_id) - queue["max"]
        assert grown == 0 or (grown > 0 and may_have_grown)
        assert store.min_offset(topic, queue_id) == queue["min"]
        assert store.writer.next_offset(topic, queue_id) == queue["max"] + grown
        last_ms = queue["units"][-1]["store_timestamp"]
        for time_ms, boundary, answer in queue["offset_by_time"]:
            if grown and time_ms >= last_ms:
                continue  # what came after the view changes these
            upper = boundary == "UPPER"
            assert store.reader.offset_by_time(topic, queue_id, time_ms, upper=upper) == answer


def check_key_queries(store: MessageStore, view: View) -> None:
    """Both find the same records for the same keys, in whatever order."""
    for asked in view["key_queries"]:
        found = [r.physical_offset for r in store.queries.query(asked["topic"], asked["key"])]
        assert sorted(found) == sorted(asked["physical_offsets"]), asked["key"]


def assert_agrees(store: MessageStore, view: View) -> int:
    """All of it; returns the number of messages."""
    assert store.log_start == view["min_physical_offset"]
    assert store.log_end == view["max_physical_offset"]
    check_queues(store, view)
    check_key_queries(store, view)
    return check_units(store, view)
