"""The log: segments, roll-over with the blank, raw reads and raw appends."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cometmq.store.format.errors import (
    CorruptLogError,
    OffsetOutOfRangeError,
    RecordFormatError,
    StoreClosedError,
    StoreError,
)
from cometmq.store.format.record import decode, encode, record_size
from cometmq.tests.store.kit import LIMIT, SEGMENT, Kit, message

BLANK_MAGIC = bytes.fromhex("cbd43194")


def test_records_are_consecutive(kit: Kit) -> None:
    first, second = kit.write(b"one"), kit.write(b"two")
    assert (first.physical_offset, second.physical_offset) == (0, first.size)
    assert (first.queue_offset, second.queue_offset) == (0, 1)
    assert kit.store.log_end == second.end
    assert kit.bodies() == [b"one", b"two"]
    assert decode(kit.store.record_at(second.physical_offset)).body == b"two"


def test_a_full_segment_ends_with_a_blank(kit: Kit) -> None:
    """The shape of the format's section 2.6: remaining bytes and magic, zeros, the next file."""
    size = kit.write(b"x" * 1000).size
    per_segment = (SEGMENT - 8) // size
    results = [kit.write(b"x" * 1000) for _ in range(per_segment)]
    last_in_first = results[-2]
    assert results[-1].physical_offset == SEGMENT
    data = kit.segment_paths()[0].read_bytes()
    rest = data[last_in_first.end :]
    assert rest == len(rest).to_bytes(4, "big") + BLANK_MAGIC + bytes(len(rest) - 8)
    assert [path.name for path in kit.segment_paths()][:2] == [f"{0:020d}", f"{SEGMENT:020d}"]


def test_a_record_needs_eight_bytes_behind_it(kit: Kit) -> None:
    empty = kit.write(b"").size
    room = SEGMENT - empty
    fits = kit.write(b"x" * (room - 8 - empty))
    assert fits.end == SEGMENT - 8
    assert kit.write(b"next").physical_offset == SEGMENT
    assert kit.log_bytes()[SEGMENT - 8 : SEGMENT] == b"\0\0\0\x08" + BLANK_MAGIC
    kit.write(b"x" * (SEGMENT - kit.store.log_end % SEGMENT - 8 - empty + 1))
    assert kit.store.log_end > 2 * SEGMENT


def test_raw_reads_stop_at_record_boundaries(kit: Kit) -> None:
    results = kit.write_many(100, 100)
    size = results[0].size
    borders = {result.end for result in results} | {SEGMENT, 2 * SEGMENT, 3 * SEGMENT, 4 * SEGMENT}
    assert len(kit.store.read_log(0, 3 * size + 5)) == 3 * size
    assert len(kit.store.read_log(0, LIMIT)) == SEGMENT
    assert len(kit.store.read_log(0, 10)) == 10, "a record above the limit comes in parts"
    assert len(kit.store.read_log(10, size)) == size
    assert kit.store.read_log(kit.store.log_end, 100) == b""
    offset = 0
    while offset < kit.store.log_end:
        offset += len(kit.store.read_log(offset, 1000))
        assert offset in borders
    for bad in (-1, kit.store.log_end + 1):
        with pytest.raises(OffsetOutOfRangeError):
            kit.store.read_log(bad, 10)


def test_checksum_of_a_range(kit: Kit) -> None:
    kit.write_many(100, 100)
    data = kit.log_bytes()
    for begin, end in ((0, kit.store.log_end), (100, 9000), (SEGMENT, SEGMENT), (5, 6)):
        assert kit.store.log_crc(begin, end) == crc32(data[begin:end])
    with pytest.raises(OffsetOutOfRangeError):
        kit.store.log_crc(0, kit.store.log_end + 1)


def test_record_at_refuses_offsets_without_a_record(kit: Kit) -> None:
    kit.write(b"x" * 100)
    with pytest.raises(RecordFormatError):
        kit.store.record_at(4)
    with pytest.raises(OffsetOutOfRangeError):
        kit.store.record_at(kit.store.log_end)


# -- a follower ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def leader(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    kit = Kit(tmp_path_factory.mktemp("leader"))
    kit.open()
    sizes = random.Random(1)
    for index in range(60):
        kit.write(bytes([index]) * sizes.randrange(1200), queue_id=index % 3, tags=f"T{index % 4}")
    kit.dispatch()
    return kit


def follow(leader: Kit, follower: Kit, sizes: list[int]) -> None:
    """Send the leader's log in pieces of these sizes, over and over."""
    turn = 0
    while follower.store.received_end < leader.store.log_end:
        begin = follower.store.received_end
        data = leader.store.read_log(begin, sizes[turn % len(sizes)])
        end = follower.store.append_raw(begin, data)
        assert end == follower.store.log_end <= follower.store.received_end
        assert follower.store.received_end == begin + len(data)
        turn += 1


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sizes=st.lists(st.integers(1, 6000), min_size=1, max_size=5))
def test_raw_appends_give_the_same_bytes_however_they_are_cut(
    leader: Kit, tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    follower = Kit(tmp_path_factory.mktemp("follower"))
    follower.open()
    follow(leader, follower, sizes)
    follower.dispatch()
    end = leader.store.log_end
    assert follower.store.log_end == end
    assert follower.log_bytes()[:end] == leader.log_bytes()[:end]
    for queue_id in range(3):
        assert follower.queue_bodies(queue_id=queue_id) == leader.queue_bodies(queue_id=queue_id)
    follower.close()


def test_a_follower_that_becomes_leader_continues_the_offsets(leader: Kit, tmp_path: Path) -> None:
    follower = Kit(tmp_path / "follower")
    follower.open()
    follow(leader, follower, [100_000])
    next_offset = leader.store.writer.next_offset("TopicTest", 1)
    assert follower.store.writer.next_offset("TopicTest", 1) == next_offset == 20
    assert follower.write(queue_id=1).queue_offset == next_offset
    follower.dispatch()
    assert follower.store.max_offset("TopicTest", 1) == next_offset + 1
    follower.close()


def test_an_incomplete_record_is_dropped_on_close(leader: Kit, tmp_path: Path) -> None:
    follower = Kit(tmp_path / "follower")
    follower.open()
    first = leader.store.record_at(0)
    second = leader.store.record_at(len(first))
    follower.store.append_raw(0, first + second[: len(second) // 2])
    assert follower.store.log_end == len(first) < follower.store.received_end
    follower.dispatch()
    report = follower.reopen()
    assert report.clean
    assert report.torn_bytes == 0
    assert follower.store.received_end == len(first)
    follower.store.append_raw(len(first), second)
    assert len(follower.bodies()) == 2
    follower.close()


def test_an_empty_log_may_begin_at_any_segment(leader: Kit, tmp_path: Path) -> None:
    follower = Kit(tmp_path / "follower")
    follower.open()
    with pytest.raises(OffsetOutOfRangeError):
        follower.store.append_raw(SEGMENT + 1, b"abc")
    data = leader.store.read_log(SEGMENT, LIMIT)
    follower.store.append_raw(SEGMENT, data)
    assert (follower.store.log_start, follower.store.received_end) == (SEGMENT, 2 * SEGMENT)
    follower.dispatch()
    first = decode(data)
    queue = ("TopicTest", first.queue_id)
    assert follower.store.min_offset(*queue) == first.queue_offset > 0
    assert follower.queue_bodies(*queue)[0] == first.body
    report = follower.reopen()
    assert (report.log_start, follower.store.min_offset(*queue)) == (SEGMENT, first.queue_offset)
    follower.close()


def test_raw_bytes_must_begin_where_the_last_ended(leader: Kit, tmp_path: Path) -> None:
    follower = Kit(tmp_path / "follower")
    follower.open()
    first = leader.store.record_at(0)
    size = len(first)
    follower.store.append_raw(0, first + leader.store.record_at(size)[:50])
    assert (follower.store.log_end, follower.store.received_end) == (size, size + 50)
    for offset in (0, size + 1, size + 49, size + 51):
        with pytest.raises(OffsetOutOfRangeError):
            follower.store.append_raw(offset, b"x")
    # A new stream may begin the half-sent record again.
    follower.store.append_raw(size, leader.store.record_at(size)[:40])
    assert follower.store.received_end == size + 40
    assert follower.log_bytes()[size + 40 :].strip(b"\0") == b""
    follower.close()


def test_raw_bytes_that_are_not_a_record_are_refused(leader: Kit, tmp_path: Path) -> None:
    follower = Kit(tmp_path / "follower")
    follower.open()
    first = leader.store.record_at(0)
    for bad in (b"\0" * 100, b"garbage garbage", first):  # the last: a record from elsewhere
        with pytest.raises(CorruptLogError):
            follower.store.append_raw(follower.store.received_end, first + bad)
        assert follower.store.received_end == follower.store.log_end
        follower.close()
        follower = Kit(tmp_path / f"follower-{len(bad)}")
        follower.open()
    follower.store.append_raw(0, first)
    with pytest.raises(CorruptLogError):
        follower.store.append_raw(len(first), b"garbage garbage")
    assert follower.store.append_raw(len(first), leader.store.record_at(len(first))) > len(first)
    follower.close()


def test_a_follower_continues_when_its_full_disk_has_space(leader: Kit, tmp_path: Path) -> None:
    follower = Kit(tmp_path / "follower")
    follower.open()

    def full(name: str) -> None:
        if name == "fallocate":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    follower.store.append_raw(0, leader.store.read_log(0, 1000))
    follower.disk.fault = full
    with pytest.raises(StoreError):
        follow(leader, follower, [5000])
    assert follower.store.writable
    assert follower.store.received_end == SEGMENT
    follower.disk.fault = None
    follow(leader, follower, [5000])
    assert follower.bodies() == leader.bodies()
    follower.close()


def test_a_closed_store_refuses_messages(kit: Kit) -> None:
    kit.close()
    with pytest.raises(StoreClosedError):
        kit.store.append_raw(0, b"")


def test_a_record_is_read_only_at_its_own_offset(kit: Kit) -> None:
    """What a unit or an index entry points to is looked at: size and physical offset."""
    first, second = kit.write(b"x" * 50), kit.write(b"y" * 50)
    log = kit.store.log
    assert decode(log.read_record(second.physical_offset, second.size)).body == b"y" * 50
    for offset, size in ((first.end - 4, 40), (0, first.size - 1), (0, first.size + 1), (0, 3)):
        with pytest.raises(RecordFormatError, match="No record of"):
            log.read_record(offset, size)
    for offset, size in ((-1, 10), (second.physical_offset, second.size + 1), (1 << 40, 10)):
        with pytest.raises(OffsetOutOfRangeError):
            log.read_record(offset, size)
    moved = kit.store.record_at(0)
    kit.change(second.physical_offset, moved)  # a copy of another record, whole and valid
    with pytest.raises(RecordFormatError):
        kit.store.record_at(second.physical_offset)
    kit.change(0, (SEGMENT * 2).to_bytes(4, "big"))
    with pytest.raises(OffsetOutOfRangeError):
        kit.store.record_at(0)
    with pytest.raises(OffsetOutOfRangeError):
        Kit(kit.root.parent / "empty").store.log.read_record(0, 100)


@pytest.mark.parametrize("left", [8, 7, 1, 0])
def test_a_record_without_space_for_a_blank_behind_it_is_refused(tmp_path: Path, left: int) -> None:
    """No leader sends it, and recovery would take the segment for damaged."""
    follower = Kit(tmp_path)
    follower.open()
    body = bytes(SEGMENT - left - record_size(message(b"")))
    record = encode(message(body), 0, 0, follower.now_ms)
    if left == 8:
        assert follower.store.append_raw(0, record) == SEGMENT - 8
    else:
        with pytest.raises(CorruptLogError):
            follower.store.append_raw(0, record)
        assert follower.store.received_end == follower.store.log_end == 0
    follower.close()
