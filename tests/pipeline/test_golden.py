"""Every golden directory through Spark: the messages that Apache's broker read from it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.store.doctor.documents import host_text
from cometmq.store.doctor.dump import DumpState, Selection, messages
from cometmq.store.doctor.layout import discover
from cometmq.store.format.record import pack_host
from cometmq.tests.formats import cases

COLUMNS = (
    ("queue_id", "queueId"),
    ("queue_offset", "queueOffset"),
    ("physical_offset", "physicalOffset"),
    ("size", "size"),
    ("flag", "flag"),
    ("sys_flag", "sysFlag"),
    ("reconsume_times", "reconsumeTimes"),
    ("prepared_transaction_offset", "preparedTransactionOffset"),
    ("body_crc", "bodyCRC"),
    ("topic", "topic"),
)


def ms(row: Any, name: str) -> int:
    seconds: float = row[name].timestamp()
    return round(seconds * 1000)


def host(text: str) -> str:
    """As the manifests have it."""
    address, _, port = text.rpartition(":")
    return host_text(pack_host(address.strip("[]"), int(port)))


def agree(row: Any, said: dict[str, Any], properties: dict[str, str]) -> None:
    for theirs, ours in COLUMNS:
        assert row[ours] == said[theirs], (ours, row)
    assert ms(row, "bornTimestamp") == said["born_timestamp"]
    assert ms(row, "storeTimestamp") == said["store_timestamp"]
    assert host(row["bornHost"]) == said["born_host"]
    assert host(row["storeHost"]) == said["store_host"]
    assert row["properties"] == properties
    assert row["tags"] == properties.get("TAGS")
    assert row["keys"] == properties.get("KEYS")
    if "UNIQ_KEY" in properties:
        assert row["msgId"] == properties["UNIQ_KEY"]


@pytest.mark.parametrize("case", cases.CASES)
def test_spark_reads_the_messages_of_the_manifest(
    spark: Any, golden: Callable[[str], Path], case: str
) -> None:
    root = golden(case)
    found = spark.read.format("rocketmq").option("path", str(root)).load().collect()
    by_place = {row["physicalOffset"]: row for row in found}
    assert len(by_place) == len(found)
    # All of the log: what `store dump` shows.
    dumped = list(messages(discover(root), Selection(), DumpState()))
    assert sorted(by_place) == [one["physical_offset"] for one in dumped]
    for one in dumped:
        row = by_place[one["physical_offset"]]
        agree(row, one, one["properties"])
        assert bytes(row["body"]) == base64.b64decode(one["body_b64"])
    # Below the manifest's end: what Apache's broker read back.
    said = cases.read_back(case)
    end = said["max_physical_offset"]
    seen = set()
    dumped_at = {one["physical_offset"]: one for one in dumped}
    for unit in cases.units_of(said):
        if unit["physical_offset"] >= end or "record_topic" not in unit:
            continue
        row = by_place[unit["physical_offset"]]
        seen.add(unit["physical_offset"])
        stored = {
            **unit,
            "topic": unit["record_topic"],
            "queue_id": unit["record_queue_id"],
            "queue_offset": unit["record_queue_offset"],
        }
        agree(row, stored, unit["properties"])
        assert dumped_at[row["physicalOffset"]]["stored_body_b64"] == unit["stored_body_b64"]
    assert seen
    # What no queue holds has no offset in one: prepared and rolled back records.
    rest = [row for place, row in by_place.items() if place < end and place not in seen]
    assert all(row["sysFlag"] & 0xC in (0x4, 0xC) for row in rest)
