"""The same bytes come out of our store: golden logs written again, message by message.

The decoded records of the manifest go through `MessageStore` in physical order, with the clock, the
hosts, the queue ids and the batches that Apache had. Log, queues, extension files and index must
then be Apache's, byte for byte. Index files are compared in the order of their names, which are
creation times. The order of properties is taken from the log, because a manifest sorts them;
records without a queue unit (prepared, rolled back) are not in a manifest at all and are taken from
the log.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.store.format.record import Message, Record, pack_host
from cometmq.store.format.results import PutStatus
from cometmq.store.message_store import MessageStore
from cometmq.tests.formats.cases import (
    REWRITTEN,
    config_of,
    contents,
    dispatch_all,
    host,
    manifest,
    records_of,
    units_of,
    unpack,
)

CRC_TAIL_BYTES = 20  # `__CRC32#`, 0x01, ten digits, 0x02: the store's own, added again by it
DERIVED = ("commitlog", "consumequeue", "consumequeue_ext")


def message_of(record: Record, unit: dict[str, Any] | None, with_crc: bool) -> Message:
    """What was appended: the fields of the manifest, without what the store adds."""
    properties = record.properties
    if with_crc:
        assert properties[-CRC_TAIL_BYTES:].startswith(b"__CRC32#\x01")
        properties = properties[:-CRC_TAIL_BYTES]
    if unit is None:
        assert record.sys_flag & 0xC in (0x4, 0xC), "only these are in no queue"
        return Message(
            topic=record.topic,
            queue_id=record.queue_id,
            body=record.body,
            properties=properties,
            flag=record.flag,
            sys_flag=record.sys_flag,
            born_timestamp_ms=record.born_timestamp_ms,
            born_host=record.born_host,
            store_host=record.store_host,
        )
    assert record.properties_dict == unit["properties"]
    return Message(
        topic=unit["record_topic"],
        queue_id=unit["record_queue_id"],
        body=base64.b64decode(unit["stored_body_b64"]),
        properties=properties,
        flag=unit["flag"],
        sys_flag=unit["sys_flag"],
        born_timestamp_ms=unit["born_timestamp"],
        born_host=pack_host(*host(unit["born_host"])),
        store_host=pack_host(*host(unit["store_host"])),
        reconsume_times=unit["reconsume_times"],
        prepared_transaction_offset=unit["prepared_transaction_offset"],
    )


def refused_messages(case: str, records: list[Record]) -> Iterator[tuple[Message, PutStatus]]:
    """What Apache refused in `hosts`, after all that it took: a record that fits no segment (its
    answer is called PUT_OK there, with an append status END_OF_FILE) and too long properties."""
    if case != "hosts":
        return
    for sent, status in zip(
        manifest(case)["sent"][-2:],
        (PutStatus.END_OF_FILE, PutStatus.PROPERTIES_SIZE_EXCEEDED),
        strict=True,
    ):
        keys = sent["keys"].encode()
        message = Message(sent["topic"], 1, base64.b64decode(sent["body_b64"]))
        message.properties = b"KEYS\x01" + keys + b"\x02" + b"TAGS\x01T\x02"
        message.born_host, message.store_host = records[-1].born_host, records[-1].store_host
        yield message, status


def groups(case: str, records: list[Record]) -> Iterator[list[Record]]:
    """Records by the call that appended them: batches, else one each."""
    sizes = [sent.get("batch_of", 1) for sent in manifest(case)["sent"]] if case == "batch" else []
    at = 0
    for size in sizes or [1] * len(records):
        yield records[at : at + size]
        at += size
    assert at == len(records)


@pytest.mark.parametrize("case", REWRITTEN)
def test_rewritten_files_equal_apaches(case: str, tmp_path: Path) -> None:
    theirs = unpack(case, tmp_path)
    records = [record for record, _ in records_of(theirs)]
    units = {unit["physical_offset"]: unit for unit in units_of(manifest(case))}
    ours = tmp_path / "again"
    config = config_of(case, ours)
    with_crc = manifest(case)["broker_conf"].get("enabledAppendPropCRC") == "true"
    now = [0]
    store = MessageStore(config, lambda: now[0])
    store.open()
    store.start()
    for group in groups(case, records):
        now[0] = group[0].store_timestamp_ms
        assert {record.store_timestamp_ms for record in group} == {now[0]}
        messages = [message_of(r, units.get(r.physical_offset), with_crc) for r in group]
        writer = store.writer
        results = (writer.append_batch if case == "batch" else writer.append_many)(messages)
        assert [result.physical_offset for result in results] == [r.physical_offset for r in group]
        assert [result.queue_offset for result in results] == [r.queue_offset for r in group]
    for message, status in refused_messages(case, records):
        assert store.writer.append_many([message])[0].status is status
    dispatch_all(store)
    store.close()
    compare(theirs, ours)


def compare(theirs: Path, ours: Path) -> None:
    expected, found = contents(theirs, *DERIVED), contents(ours, *DERIVED)
    assert found.keys() == expected.keys()
    for name, data in expected.items():
        assert first_difference(found[name], data) == -1, name
    index = [data for _, data in sorted(contents(theirs, "index").items())]
    again = [data for _, data in sorted(contents(ours, "index").items())]
    assert len(again) == len(index) > 0
    for number, (mine, data) in enumerate(zip(again, index, strict=True)):
        assert first_difference(mine, data) == -1, f"index file {number}"


def first_difference(one: bytes, other: bytes) -> int:
    """Position of the first byte that differs, or -1."""
    if one == other:
        return -1
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
