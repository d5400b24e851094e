"""Retry topics: names, and copies with the bytes of Apache's broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.broker.names.retry import is_of_group, queue_topics, retry_copy
from cometmq.store.format.properties import decode_properties, encode_properties
from cometmq.store.format.record import Delivery, Message, decode
from cometmq.tests.formats.cases import manifest, unpack

#: A record of the golden store.
COPIES = 10
HOST = b"\x7f\0\0\1\0\0\x2a\xc7"


def stored(properties: dict[str, str], reconsumed: int = 0) -> Delivery:
    """Return a record as a pop reads it."""
    return Delivery(
        b"body",
        encode_properties(properties),
        3,
        7,
        1,
        0x101,
        0,
        111,
        b"\1" * 8,
        222,
        HOST,
        reconsumed,
    )


def test_names_of_a_groups_retry_and_dead_letter_topics() -> None:
    assert queue_topics("t", "g") == ("t", "%RETRY%g_t", "%RETRY%g+t")


def test_a_copy_keeps_the_message_and_adds_its_origin() -> None:
    record = stored({"UNIQ_KEY": "1", "a": "b", "TAGS": "x", "INNER_MULTI_DISPATCH": "%LMQ%q"}, 2)
    copy = retry_copy(record, "%RETRY%g_t", "g", 1, 5_000, store_host=HOST)
    assert (copy.topic, copy.queue_id, copy.body) == ("%RETRY%g_t", 0, b"body")
    assert (copy.flag, copy.sys_flag, copy.born_timestamp_ms) == (1, 0x101, 111)
    assert (copy.born_host, copy.store_host, copy.reconsume_times) == (HOST, HOST, 3)
    assert decode_properties(copy.properties) == {
        "UNIQ_KEY": "1",
        "a": "b",
        "TAGS": "x",
        "ORIGIN_GROUP": "g",
        "1ST_POP_TIME": "5000",
    }


def test_a_copy_keeps_the_first_pop_time_and_does_not_count_suspensions() -> None:
    record = stored({"1ST_POP_TIME": "1", "ORIGIN_GROUP": "g"}, 4)
    copy = retry_copy(record, "%RETRY%g_t", "g", 0, 5_000, store_host=HOST)
    assert decode_properties(copy.properties)["1ST_POP_TIME"] == "1"
    assert copy.reconsume_times == 4


@pytest.mark.parametrize(
    ("properties", "owners"),
    [
        ({"ORIGIN_GROUP": "g"}, {"g"}),
        ({"ORIGIN_GROUP": "g", "RETRY_TOPIC": "t"}, {"g"}),
        ({"ORIGIN_GROUP": "g_a"}, {"g_a"}),
        ({"RETRY_TOPIC": "other"}, {"g_a_t"}),
        ({"RETRY_TOPIC": "a_t"}, {"g_a_t"}),
        ({"RETRY_TOPIC": "other", "1ST_POP_TIME": "1"}, {"g", "g_a", "g_a_t"}),
        ({"a": "b"}, {"g", "g_a", "g_a_t"}),
    ],
)
def test_the_group_of_a_record_in_an_ambiguous_topic_is_found(
    properties: dict[str, str], owners: set[str]
) -> None:
    """The retry topic of g and a_t, of g_a and t, and of a consumer group with the whole name."""
    record = stored(properties)
    groups = ("g", "g_a", "g_a_t")
    assert {each for each in groups if is_of_group(record, each, "%RETRY%g_a_t")} == owners


def test_copies_are_byte_identical_to_apaches(tmp_path: Path) -> None:
    """Rebuild every copy of the golden store from the message that its consumer got."""
    log = (unpack("grpc", tmp_path) / "commitlog" / ("0" * 20)).read_bytes()
    records = [
        decode(log[unit["physical_offset"] : unit["physical_offset"] + unit["size"]])
        for topic, queues in manifest("grpc")["queues"].items()
        if topic.startswith(("acc-", "%RETRY%"))
        for queue in queues.values()
        for unit in queue["units"]
    ]
    sources = {(r.properties_dict.get("UNIQ_KEY"), r.reconsume_times): r for r in records}
    copies = [record for record in records if record.topic.startswith("%RETRY%")]
    for copy in copies:
        properties = copy.properties_dict
        source = sources[properties["UNIQ_KEY"], copy.reconsume_times - 1]
        again = retry_copy(
            Delivery(
                source.body,
                source.properties,
                source.queue_id,
                source.queue_offset,
                source.flag,
                source.sys_flag,
                source.body_crc,
                source.born_timestamp_ms,
                source.born_host,
                source.store_timestamp_ms,
                source.store_host,
                source.reconsume_times,
            ),
            copy.topic,
            properties["ORIGIN_GROUP"],
            1,
            int(properties["1ST_POP_TIME"]),
            store_host=copy.store_host,
        )
        assert copy.topic in queue_topics(source.properties_dict["PGROUP"], again_group(again))
        assert again.properties == copy.properties
        for name in ("body", "flag", "sys_flag", "born_host", "born_timestamp_ms", "queue_id"):
            assert getattr(again, name) == getattr(copy, name), name
        assert again.reconsume_times == copy.reconsume_times
    assert len(copies) == COPIES


def again_group(copy: Message) -> str:
    """Return the group and topic in the record."""
    return decode_properties(copy.properties)["ORIGIN_GROUP"]
