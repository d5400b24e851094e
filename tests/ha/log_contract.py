"""Conformance suite of `ReplicatedLog`, for the store and for the log in memory."""

import zlib
from collections.abc import Callable
from typing import Protocol

import pytest

from cometmq.ha.core.replicated_log import ReplicatedLog
from cometmq.store.format.errors import StoreError

SEGMENT = 8192
SIZES = (10, 500, 1, 1500, 3000, 40, 2500, 2500, 2500, 700, 6000, 5)


class WritableLog(Protocol):
    """A log that a leader appends to: `body` becomes one record; returns the new end."""

    @property
    def log(self) -> ReplicatedLog: ...
    def append(self, body: bytes) -> int: ...
    def flush(self) -> None: ...


MakeLog = Callable[[], WritableLog]


def read_all(log: ReplicatedLog, chunk: int) -> list[bytes]:
    pieces = []
    offset = log.log_start
    while offset < log.log_end:
        pieces.append(log.read_log(offset, chunk))
        assert pieces[-1]
        offset += len(pieces[-1])
    return pieces


def fill(writable: WritableLog) -> ReplicatedLog:
    for number, size in enumerate(SIZES):
        writable.append(bytes([number]) * size)
    return writable.log


class LogContract:
    """Subclasses define `make_log`: a fixture for empty logs with segments of SEGMENT bytes."""

    def test_a_new_log_is_empty(self, make_log: MakeLog) -> None:
        log = make_log().log
        ends = (log.log_start, log.log_end, log.received_end, log.flushed_offset)
        assert ends == (0, 0, 0, 0)
        assert log.read_log(0, 100) == b""
        assert log.log_crc(0, 0) == 0

    def test_appends_move_the_ends(self, make_log: MakeLog) -> None:
        writable = make_log()
        end = writable.append(b"x" * 100)
        assert end == writable.log.log_end == writable.log.received_end > 100

    def test_a_flush_reaches_the_end(self, make_log: MakeLog) -> None:
        writable = make_log()
        writable.append(b"x" * 100)
        assert writable.log.flushed_offset <= writable.log.log_end
        writable.flush()
        assert writable.log.flushed_offset == writable.log.log_end

    @pytest.mark.parametrize("chunk", [64, 1000, 4096, 1 << 20])
    def test_reads_are_the_whole_log_and_stay_inside_a_segment(
        self, make_log: MakeLog, chunk: int
    ) -> None:
        log = fill(make_log())
        pieces = read_all(log, chunk)
        assert all(len(piece) <= chunk for piece in pieces)
        assert zlib.crc32(b"".join(pieces)) == log.log_crc(0, log.log_end)
        offset = 0
        for piece in pieces:
            assert offset // SEGMENT == (offset + len(piece) - 1) // SEGMENT
            offset += len(piece)

    def test_reads_end_at_a_record_where_one_fits(self, make_log: MakeLog) -> None:
        writable = make_log()
        first = writable.append(b"x" * 100)
        second = writable.append(b"y" * 100)
        assert len(writable.log.read_log(0, second - 1)) == first
        assert len(writable.log.read_log(0, first - 1)) == first - 1

    def test_nothing_is_read_beyond_the_end(self, make_log: MakeLog) -> None:
        log = fill(make_log())
        assert log.read_log(log.log_end, 100) == b""
        with pytest.raises(StoreError):
            log.read_log(log.log_end + 1, 100)

    @pytest.mark.parametrize("chunk", [64, 1000, 4096, 1 << 20])
    def test_raw_appends_make_an_equal_log(self, make_log: MakeLog, chunk: int) -> None:
        leader, follower = fill(make_log()), make_log().log
        for piece in read_all(leader, chunk):
            before = follower.received_end
            end = follower.append_raw(before, piece)
            assert end == follower.log_end <= follower.received_end == before + len(piece)
        assert follower.log_end == leader.log_end
        assert follower.log_crc(0, leader.log_end) == leader.log_crc(0, leader.log_end)

    def test_raw_appends_need_no_borders_at_all(self, make_log: MakeLog) -> None:
        leader, follower = fill(make_log()), make_log().log
        everything = b"".join(read_all(leader, 1 << 20))
        for start in range(0, len(everything), 777):
            follower.append_raw(start, everything[start : start + 777])
        assert follower.log_end == leader.log_end
        assert follower.log_crc(0, leader.log_end) == leader.log_crc(0, leader.log_end)

    def test_a_part_of_a_record_is_received_only(self, make_log: MakeLog) -> None:
        leader, follower = fill(make_log()), make_log().log
        first = len(leader.read_log(0, 300))
        piece = leader.read_log(0, 1 << 20)
        follower.append_raw(0, piece[: first + 3])
        assert (follower.log_end, follower.received_end) == (first, first + 3)
        follower.append_raw(first + 3, piece[first + 3 : first + 100])
        assert (follower.log_end, follower.received_end) == (first, first + 100)

    def test_a_part_of_a_record_is_dropped_when_it_comes_again(self, make_log: MakeLog) -> None:
        leader, follower = fill(make_log()), make_log().log
        everything = b"".join(read_all(leader, 1 << 20))
        for cut in (3, 700, 9000, 16_500, len(everything) - 1):
            start = follower.log_end
            follower.append_raw(start, everything[start:cut])
        assert follower.received_end > follower.log_end
        start = follower.log_end
        follower.append_raw(start, everything[start:])
        assert follower.log_end == leader.log_end
        assert follower.log_crc(0, leader.log_end) == leader.log_crc(0, leader.log_end)

    @pytest.mark.parametrize("shift", [-1, 1, 5000])
    def test_raw_appends_elsewhere_are_refused(self, make_log: MakeLog, shift: int) -> None:
        writable = make_log()
        end = writable.append(b"x" * 100)
        with pytest.raises(StoreError):
            writable.log.append_raw(end + shift, b"y" * 50)
        assert writable.log.log_end == writable.log.received_end == end

    def test_an_empty_log_may_begin_at_any_segment(self, make_log: MakeLog) -> None:
        leader, follower = fill(make_log()), make_log().log
        offset = SEGMENT
        while offset < leader.log_end:
            piece = leader.read_log(offset, 1000)
            follower.append_raw(offset, piece)
            offset += len(piece)
        assert (follower.log_start, follower.log_end) == (SEGMENT, leader.log_end)
        ours = follower.log_crc(SEGMENT, leader.log_end)
        assert ours == leader.log_crc(SEGMENT, leader.log_end)
