"""Readers return no record that differs from what was stored, if that can be detected."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.store.format.record import decode, encode_properties, pack_host, property_crc_ok
from cometmq.tests.store.kit import Kit

COUNT = 60
DAMAGED = 7


def made(root: Path, **options: Any) -> Kit:
    kit = Kit(root, **options)
    kit.open()
    for number in range(COUNT):
        properties = {"UNIQ_KEY": f"u{number:03d}", "KEYS": f"k{number:03d}", "TAGS": "TagA"}
        kit.write(
            f"body-{number:03d}".encode().ljust(100, b"."),
            properties=encode_properties(properties),
        )
    kit.dispatch()
    return kit


def altered(kit: Kit, change: Callable[[bytes], bytes], number: int = DAMAGED) -> None:
    """Change the record of a message in its segment."""
    found = kit.store.reader.record_range("TopicTest", 0, number)
    assert found is not None
    offset, size = found
    record = kit.store.read_log(offset, size)
    new = change(record[:size])
    assert len(new) == size
    assert new != record[:size]
    kit.change(offset, new)


def swap(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda record: record.replace(old, new)


def queue_id_of_9(record: bytes) -> bytes:
    return record[:12] + struct.pack(">i", 9) + record[16:]


def numbers(kit: Kit) -> list[int]:
    return [int(body[5:8]) for body in kit.queue_bodies()]


ALL = list(range(COUNT))
OTHERS = [number for number in ALL if number != DAMAGED]


@pytest.mark.parametrize("number", [DAMAGED, COUNT - 3], ids=["old", "in the last segment"])
@pytest.mark.parametrize(
    ("change", "part"),
    [
        (swap(b"body-", b"Body-"), "body"),
        (swap(b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab"), "magic"),
        (swap(b"\xda\xa3\x20\xa7", b"\xda\xa3\x21\xa7"), "magic"),
        (swap(b"TopicTest", b"TopicTesu"), "topic"),
        (swap(b"TAGS\x01TagA", b"TAGS\x01TagB"), "tags"),
        (swap(b"TAGS\x01TagA", b"TAGZ\x01TagA"), "tags"),
        (swap(b"\x09TopicTest", b"\x08TopicTest"), "topic"),
        (swap(b"TopicTest\x00", b"TopicTest\x01"), "lengths"),
    ],
)
def test_an_altered_record_is_not_returned(
    tmp_path: Path, change: Callable[[bytes], bytes], part: str, number: int
) -> None:
    kit = made(tmp_path)
    assert len(kit.store.queries.query("TopicTest", "k000")) == 1  # everything is indexed
    altered(kit, change, number)
    assert numbers(kit) == [one for one in ALL if one != number]
    assert kit.store.stats().record_mismatches[part] > 0
    kit.close()


@pytest.mark.parametrize(
    "change",
    [
        swap(b"KEYS\x01k007", b"KEYS\x01k008"),
        swap(b"TagA", b"TagB"),
        swap(b"body-", b"Body-"),
        swap(b"UNIQ_KEY\x01u007", b"UNIQ_KEY\x01u008"),
    ],
)
def test_the_checksum_of_the_record_covers_every_property(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    kit = made(tmp_path, enabled_append_prop_crc=True)
    altered(kit, change)
    assert numbers(kit) == OTHERS
    assert kit.store.stats().record_mismatches["record"] > 0
    kit.close()


@pytest.mark.parametrize("sealed", [False, True])
def test_an_altered_queue_id_is_replaced_by_that_of_the_unit(tmp_path: Path, sealed: bool) -> None:
    kit = made(tmp_path, enabled_append_prop_crc=sealed)
    altered(kit, queue_id_of_9)
    assert numbers(kit) == ALL
    (stored,) = kit.store.get("TopicTest", 0, DAMAGED, 1).records
    record = decode(stored.data)
    assert (record.queue_id, record.queue_offset) == (0, DAMAGED)
    assert property_crc_ok(stored.data) == sealed
    assert kit.store.stats().record_mismatches["queue"] > 0
    kit.close()


def test_a_record_is_returned_if_only_its_units_tags_code_is_damaged(tmp_path: Path) -> None:
    kit = made(tmp_path)
    kit.reopen()
    path = kit.root / "consumequeue" / "TopicTest" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[DAMAGED * 20 + 19] ^= 1
    path.write_bytes(data)
    assert numbers(kit) == ALL
    assert kit.store.stats().record_mismatches["tags_code"] > 0
    kit.close()


def test_a_valid_body_is_not_a_mismatch(tmp_path: Path) -> None:
    bodies = [b"", b"x", bytes(70_000)]
    kit = Kit(tmp_path, mapped_file_size_commit_log=1 << 20)
    kit.open()
    for body in bodies:
        for host in ("127.0.0.1", "::1"):
            kit.write(body, born_host=pack_host(host, 1), store_host=pack_host(host, 2))
    kit.dispatch()
    assert [zlib.crc32(body) for body in kit.queue_bodies()] == [
        zlib.crc32(body) for body in bodies for _ in range(2)
    ]
    assert kit.store.stats().record_mismatches == {}
    kit.close()
