"""Segments of 1 GiB, offsets beyond 32 bits, and messages at every limit
(docs/formats/store-format.md, section 2.5).

Files are sparse: `ftruncate` stands in for the reservation.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cometmq.store.format.disk import Disk
from cometmq.store.format.record import Message, decode, encode, pack_host
from cometmq.store.format.results import PutStatus
from cometmq.tests.store.kit import HOST, START_MS, Kit, message

GIB = 1 << 30
MAX_BODY = 4 << 20
V6 = pack_host("2001:db8::1", 10911)


class SparseDisk(Disk):
    """Reserves nothing."""

    def fallocate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)


class SparseKit(Kit):
    make_disk = SparseDisk


def large(root: Path, **options: Any) -> Kit:
    kit = SparseKit(
        root,
        mapped_file_size_commit_log=GIB,
        mapped_file_size_consume_queue=6_000_000,
        **options,
    )
    kit.open()
    return kit


def test_the_end_of_a_gibibyte(tmp_path: Path) -> None:
    """The last bytes of a full segment, and a record that goes to the next one."""
    kit = large(tmp_path)
    kit.write(b"first")
    log = kit.store.log
    end = GIB - 8 - 2 * (100 + 91 + 9)
    kit.dispatch()
    log._set_end(end)  # as if all before it were written
    kit.store._dispatcher.offset = end
    ends = [kit.write(b"x" * 100).end for _ in range(3)]
    assert ends == [end + 200, GIB - 8, GIB + 200]
    kit.dispatch()
    assert [r.physical_offset for r in kit.store.get("TopicTest", 0, 1, 9).records] == [
        end,
        end + 200,
        GIB,
    ]
    assert kit.store.read_log(GIB - 8, 100)[:8] == bytes.fromhex("00000008 cbd43194")
    assert decode(kit.store.record_at(GIB)).body == b"x" * 100
    kit.kill()


def test_a_log_beyond_32_bits(tmp_path: Path) -> None:
    start = 5 * GIB
    kit = large(tmp_path)
    data = b""
    for number in range(20):
        made = Message("TopicTest", 0, b"%d" % number, born_host=HOST, store_host=V6)
        data += encode(made, number, start + len(data), START_MS)
    assert kit.store.append_raw(start, data) == start + len(data)
    kit.dispatch()
    assert kit.write(b"own").physical_offset == start + len(data)
    kit.dispatch()
    expected = [b"%d" % number for number in range(20)] + [b"own"]
    assert kit.queue_bodies() == expected
    assert kit.reopen().clean
    assert (kit.store.log_start, kit.queue_bodies()) == (start, expected)
    kit.kill()
    assert not kit.open().clean
    assert kit.queue_bodies() == expected
    assert [path.name for path in kit.segment_paths()] == ["00000000005368709120"]
    kit.close()


@pytest.mark.parametrize("seal", [False, True])
def test_messages_at_their_limits(tmp_path: Path, seal: bool) -> None:
    kit = large(tmp_path, enabled_append_prop_crc=seal)
    pair = b"k\x01" + b"v" * 32_764 + b"\x02"
    if seal:
        pair = b"k\x01" + b"v" * (32_764 - 20) + b"\x02"
    retry = "%RETRY%" + "g" * 248
    largest = message(b"x" * MAX_BODY, retry, properties=pair, born_host=V6, store_host=V6)
    largest.store_host = V6
    (result,) = kit.store.writer.append_many([largest])
    assert result.status is PutStatus.PUT_OK
    assert result.size == 72 + 40 + MAX_BODY + 2 + 255 + 2 + 32_767
    assert result.size <= MAX_BODY + 65_536
    empty = kit.write(b"", topic="t", properties=b"")
    kit.dispatch()
    record = decode(kit.store.record_at(result.physical_offset))
    assert (record.version, record.topic, record.body) == (2, retry, largest.body)
    assert record.properties.startswith(pair)
    assert decode(kit.store.record_at(empty.physical_offset)).body == b""
    for fields, status in (
        ({"body": largest.body + b"x"}, PutStatus.MESSAGE_ILLEGAL),
        ({"properties": b"x" + pair}, PutStatus.PROPERTIES_SIZE_EXCEEDED),
        ({"topic": retry + "g"}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "t" * 128}, PutStatus.MESSAGE_ILLEGAL),
    ):
        (result,) = kit.store.writer.append_many([message(**fields)])
        assert result.status is status
    kit.close()
