"""Batches, the checksum tail, and records that fit no segment."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.store.format.record import (
    CRC_TAIL_BYTES,
    crc_room,
    decode,
    decode_properties,
    encode_sealed,
    pack_host,
    property_crc_ok,
)
from cometmq.store.format.results import PutStatus
from cometmq.tests.store.kit import SEGMENT, START_MS, Kit, message

BLANK = bytes.fromhex("cbd43194")


def test_the_records_of_a_batch_are_adjacent(kit: Kit) -> None:
    kit.write(queue_id=1)
    members = [message(b"%d" % n, queue_id=1, tags=f"T{n}") for n in range(34)]
    results = kit.store.writer.append_batch(members)
    assert {r.status for r in results} == {PutStatus.PUT_OK}
    assert [r.queue_offset for r in results] == list(range(1, 35))
    assert {r.store_timestamp_ms for r in results} == {START_MS}
    for before, after in itertools.pairwise(results):
        assert after.physical_offset == before.end
    kit.dispatch()
    assert kit.queue_bodies(queue_id=1)[1:] == [member.body for member in members]
    assert kit.store.writer.append_batch([]) == []


def test_a_batch_moves_as_a_whole(kit: Kit) -> None:
    kit.write(b"x" * 3000)
    results = kit.store.writer.append_batch([message(b"y" * 300) for _ in range(4)])
    assert results[0].physical_offset == SEGMENT
    assert results[-1].end < 2 * SEGMENT
    kit.dispatch()
    assert len(kit.queue_bodies()) == 5


@pytest.mark.parametrize(
    ("member", "status"),
    [
        ({"topic": "Other"}, PutStatus.MESSAGE_ILLEGAL),
        ({"queue_id": 3}, PutStatus.MESSAGE_ILLEGAL),
        ({"sys_flag": 0x4}, PutStatus.MESSAGE_ILLEGAL),
        ({"sys_flag": 0x8}, PutStatus.MESSAGE_ILLEGAL),
        ({"properties": b"DELAY\x013\x02"}, PutStatus.MESSAGE_ILLEGAL),
        ({"properties": b"TIMER_DELIVER_MS\x0199\x02"}, PutStatus.MESSAGE_ILLEGAL),
        ({"body": b"x" * 1001}, PutStatus.MESSAGE_ILLEGAL),
        ({"properties": b"x" * 32_768}, PutStatus.PROPERTIES_SIZE_EXCEEDED),
        ({"born_host": b"12"}, PutStatus.MESSAGE_ILLEGAL),
    ],
)
def test_one_bad_member_refuses_the_batch(
    tmp_path: Path, member: dict[str, Any], status: PutStatus
) -> None:
    kit = Kit(tmp_path, max_message_size=1000)
    kit.open()
    kit.write()
    before = kit.log_bytes(), kit.store.log_end
    results = kit.store.writer.append_batch([message(b"a"), message(**member), message(b"b")])
    assert [r.status for r in results] == [status] * 3
    assert (kit.log_bytes(), kit.store.log_end) == before
    assert kit.write().queue_offset == 1
    kit.close()


def test_a_delay_of_zero_is_none_and_the_whole_batch_has_a_limit(tmp_path: Path) -> None:
    kit = Kit(tmp_path, max_message_size=1000)
    kit.open()
    zero = message(b"a", properties=b"DELAY\x010\x02")
    assert kit.store.writer.append_batch([zero])[0].status is PutStatus.PUT_OK
    fits = [message(b"x" * 478) for _ in range(2)]  # 22 bytes a member on the wire
    assert {r.status for r in kit.store.writer.append_batch(fits)} == {PutStatus.PUT_OK}
    large = [message(b"x" * 479) for _ in range(2)]
    assert {r.status for r in kit.store.writer.append_batch(large)} == {PutStatus.MESSAGE_ILLEGAL}
    kit.close()


def test_a_batch_on_a_full_disk_leaves_nothing(kit: Kit) -> None:
    kit.write(b"x" * 1500)

    def fault(name: str) -> None:
        if name == "fallocate":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    kit.disk.fault = fault
    members = [message(b"y" * 900) for _ in range(3)]
    failed = PutStatus.CREATE_MAPPED_FILE_FAILED
    assert {r.status for r in kit.store.writer.append_batch(members)} == {failed}
    kit.disk.fault = None
    assert kit.store.writer.append_batch(members)[0].queue_offset == 1


# -- what fits no segment -------------------------------------------------------------------------


def test_a_record_that_fits_no_segment_ends_the_last_one(kit: Kit) -> None:
    """As with Apache's broker: two blanks. The second does not count, here and after a restart."""
    end = kit.write(b"small").end
    too_large = message(b"x" * SEGMENT)
    for _ in range(2):  # the second one wastes nothing more
        (result,) = kit.store.writer.append_many([too_large])
        assert (result.status, result.size, result.queue_offset) == (PutStatus.END_OF_FILE, 0, -1)
        assert kit.store.log_end == SEGMENT
        data = kit.log_bytes()
        assert data[end : end + 8] == (SEGMENT - end).to_bytes(4, "big") + BLANK
        assert data[SEGMENT : SEGMENT + 8] == SEGMENT.to_bytes(4, "big") + BLANK
    kit.dispatch()
    assert kit.reopen().clean
    assert kit.store.log_end == SEGMENT
    assert {r.status for r in kit.store.writer.append_batch([too_large])} == {PutStatus.END_OF_FILE}
    assert kit.write(b"next").physical_offset == SEGMENT
    kit.dispatch()
    assert kit.queue_bodies() == [b"small", b"next"]
    kit.kill()
    kit.open()
    assert kit.bodies() == [b"small", b"next"]


def test_no_segment_is_ended_early_when_a_hook_writes_its_first_records(kit: Kit) -> None:
    kit.heard.heads = lambda _start: [message(b"head", topic="Heads")]
    end = kit.write(b"small").end
    (result,) = kit.store.writer.append_many([message(b"x" * SEGMENT)])
    assert result.status is PutStatus.END_OF_FILE
    assert kit.store.log_end == end


def test_the_largest_record_that_fits(kit: Kit) -> None:
    overhead = 91 + len("TopicTest")
    assert kit.write(b"x" * (SEGMENT - 8 - overhead)).size == SEGMENT - 8
    (result,) = kit.store.writer.append_many([message(b"x" * (SEGMENT - 7 - overhead))])
    assert result.status is PutStatus.END_OF_FILE
    assert kit.store.log_end == SEGMENT


# -- the checksum of the whole record -------------------------------------------------------------

hosts = st.sampled_from([pack_host("10.0.0.1", 1), pack_host("::1", 2)])


@given(
    body=st.binary(max_size=100),
    properties=st.dictionaries(
        st.text("abc#_", min_size=1, max_size=4), st.text("xyz", max_size=4), max_size=3
    ),
    old=st.booleans(),
    host=hosts,
)
def test_sealed_records(body: bytes, properties: dict[str, str], old: bool, host: bytes) -> None:
    encoded = "".join(f"{k}\x01{v}\x02" for k, v in properties.items()).encode()
    given_properties = (b"__CRC32#\x01123\x02" if old else b"") + encoded
    made = message(body, properties=crc_room(given_properties), born_host=host)
    data = encode_sealed(made, 7, 4711, START_MS)
    assert property_crc_ok(data)
    record = decode(data)
    assert record.properties[:-CRC_TAIL_BYTES] == encoded
    digits = decode_properties(record.properties)["__CRC32#"]
    assert int(digits[::-1]) == crc32(data[:-CRC_TAIL_BYTES]) & 0x7FFFFFFF
    assert crc_room(record.properties) == made.properties
    for position in (0, 30, len(data) // 2, len(data) - 3):
        damaged = bytearray(data)
        damaged[position] ^= 1
        assert not property_crc_ok(bytes(damaged))
    assert not property_crc_ok(data[:-1])
    assert not property_crc_ok(b"")


def test_the_checksum_has_its_last_digit_first() -> None:
    """The example of docs/formats/store-format.md, section 2.8: 266904096 is written 6904096620."""
    value = 266_904_096
    assert str(value).encode()[::-1].ljust(10, b"0") == b"6904096620"
    assert crc_room(b"a\x01b") == b"a\x01b\x02__CRC32#\x010000000000\x02"


def test_a_store_that_seals(tmp_path: Path) -> None:
    kit = Kit(tmp_path, enabled_append_prop_crc=True)
    kit.open()
    kit.write(b"one", tags="T", properties=b"TAGS\x01T\x02__CRC32#\x015\x02")
    results = kit.store.writer.append_batch([message(b"two", tags="U"), message(b"three")])
    assert [r.queue_offset for r in results] == [1, 2]
    kit.write(b"v6", born_host=pack_host("::1", 1))
    kit.write(b"half", sys_flag=0x4)
    (refused,) = kit.store.writer.append_many(
        [message(properties=b"x" * (32_767 - CRC_TAIL_BYTES))]
    )
    assert refused.status is PutStatus.PROPERTIES_SIZE_EXCEEDED, "the tail and a 0x02 count"
    kit.dispatch()
    offset, found = 0, []
    while offset < kit.store.log_end:
        data = kit.store.record_at(offset)
        assert property_crc_ok(data)
        found.append(decode(data).body)
        offset += len(data)
    assert found == [b"one", b"two", b"three", b"v6", b"half"]
    assert kit.queue_bodies() == found[:-1]
    (stored,) = kit.store.get("TopicTest", 0, 0, 1).records
    assert decode(stored.data).properties_dict["TAGS"] == "T"
    assert stored.tags_code == ord("T")
    assert kit.reopen().clean
    kit.close()
