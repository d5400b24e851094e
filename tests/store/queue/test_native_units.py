"""A follower's store with the native crate: the log, the queues and the arrivals are those that
Python makes of the same bytes.

`TEST_EXAMPLES=40 pytest tests/store/queue/test_native_units.py` runs longer.
"""

from __future__ import annotations

import errno
import os
from itertools import cycle, groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cometmq.proto import native
from cometmq.store.dispatch import parse_arrivals
from cometmq.store.format.errors import CorruptLogError
from cometmq.store.format.lmq_queues import NUMBERS, with_lmqs
from cometmq.store.format.properties import SCHEDULE_TOPIC
from cometmq.store.format.record import Message, encode, pack_host
from cometmq.store.format.record_layout import (
    TRANSACTION_MASK,
    UNIT,
    UNQUEUED,
)
from cometmq.store.format.results import Arrival
from cometmq.store.native_parts import NativeParts
from cometmq.store.queue import table
from cometmq.store.scan.single import inspect
from cometmq.tests.store.index.test_index_keys import broken, keyed
from cometmq.tests.store.kit import SEGMENT, START_MS, Kit

CRATE = native.load()
WHOLE_RECORDS: Any = CRATE and CRATE.whole_records
QUEUE_UNITS: Any = CRATE and CRATE.queue_units


pytestmark = pytest.mark.skipif(
    QUEUE_UNITS is None, reason="the native crate is not installed (scripts/native_door)"
)

V6 = pack_host("2001:db8::1", 1)
HOSTS = st.sampled_from([b"\x7f\0\0\1\0\0\0\1"] * 9 + [V6])
messages = st.builds(
    Message,
    topic=st.sampled_from(["T", "TopicTest", "主题", "%RETRY%" + "g" * 130, SCHEDULE_TOPIC]),
    queue_id=st.integers(0, 2),
    body=st.binary(max_size=20),
    properties=keyed | broken | st.just(b"DELAY\x013\x02") | st.just(NUMBERS + b"\x011\x02"),
    sys_flag=st.sampled_from([0, 0, 0, 0x4, 0x8, 0xC]),
    born_host=HOSTS,
    store_host=HOSTS,
)
#: Messages, and whether the store time moves in front of each.
timed = st.lists(st.tuples(messages, st.booleans()), max_size=12)


class NativeKit(Kit):
    """A store whose follower side is in the native crate."""

    native = NativeParts(whole_records=WHOLE_RECORDS, queue_units=QUEUE_UNITS)


def log_of(many: list[tuple[Message, bool]]) -> bytes:
    """Return a log whose records follow each other in their queues."""
    log, now_ms = b"", START_MS
    numbers: dict[tuple[str, int], int] = {}
    for message, moves in many:
        now_ms += moves
        queue = message.topic, message.queue_id
        unqueued = message.sys_flag & TRANSACTION_MASK in UNQUEUED
        number = 0 if unqueued else numbers.get(queue, 0)
        numbers[queue] = numbers.get(queue, 0) + (not unqueued)
        log += encode(message, number, len(log), now_ms)
    return log


def is_common(message: Message) -> bool:
    if len(message.born_host) > 8 or len(message.store_host) > 8:
        return False
    if len(message.topic.encode()) > 127 or NUMBERS in message.properties:
        return False
    if message.sys_flag & TRANSACTION_MASK in UNQUEUED:
        return True
    tags = [
        part[5:]
        for part in message.properties.split(b"\x02")
        if part.startswith(b"TAGS\x01") and part[5:]
    ]
    valid = not tags or tags[-1].decode("utf-8", "replace").encode() == tags[-1]
    return valid and message.topic != SCHEDULE_TOPIC


def expected(log: bytes, begin: int, end: int) -> tuple[list[Arrival], int]:
    """Return the arrivals of the records in [begin, end), and how many records that are."""
    segment: Any = SimpleNamespace(map=log, start=0, path="log")
    found: list[Arrival] = []
    records = 0
    while begin < end:
        arrivals, sys_flag = parse_arrivals(segment, begin)
        if sys_flag & TRANSACTION_MASK not in UNQUEUED:
            found += arrivals
        begin += int.from_bytes(log[begin : begin + 4], "big")
        records += 1
    assert begin == end
    return found, records


def by_queue(arrivals: list[Arrival]) -> dict[tuple[str, int], list[tuple[int, ...]]]:
    def queue_of(arrival: Arrival) -> tuple[str, int]:
        return arrival.topic, arrival.queue_id

    return {
        queue: [(one.queue_offset, one.physical_offset, one.size, one.tags_code) for one in group]
        for queue, group in groupby(sorted(arrivals, key=queue_of), queue_of)
    }


def compare(log: bytes, position: int, step: int) -> tuple[int, int]:
    """Compare the next units with those of Python; return their end and the number of records."""
    view = memoryview(log)
    units, end, times, last = QUEUE_UNITS(view, 0, (position, len(log)), step)
    arrivals, records = expected(log, position, end)
    assert records <= step
    rows = {
        (topic, queue_id): [
            (number, *unit) for number, unit in enumerate(UNIT.iter_unpack(data), first)
        ]
        for topic, queue_id, first, data in units
    }
    assert rows == by_queue(arrivals)
    assert list(memoryview(times).cast("q")) == [one.store_timestamp_ms for one in arrivals]
    assert last == (arrivals[-1].physical_offset if arrivals else 0)
    return end, records


@given(timed, st.integers(1, 5))
def test_units_equal_those_of_python(many: list[tuple[Message, bool]], step: int) -> None:
    log = log_of(many)
    position = read = 0
    while position < len(log):
        end, records = compare(log, position, step)
        read += records
        if not records:
            end = position + int.from_bytes(log[position : position + 4], "big")
        position = end
    assert read == sum(is_common(message) for message, _ in many)


@given(timed.filter(bool), st.data())
def test_damaged_records_are_read_alike_or_left(
    many: list[tuple[Message, bool]], data: st.DataObject
) -> None:
    log = bytearray(log_of(many))
    at = data.draw(st.integers(0, len(log) - 1))
    log[at] = data.draw(st.integers(0, 255))
    compare(bytes(log), 0, len(many))
    end, stored_ms = WHOLE_RECORDS(bytes(log), 0, (0, len(log)))
    position = last_ms = 0
    while position < end:
        found = inspect(memoryview(log), position, 0, check_crc=False)
        position, last_ms = position + found.size, found.store_timestamp_ms
    assert (position, last_ms) == (end, stored_ms)


@given(timed)
def test_whole_records_end_in_front_of_an_incomplete_one_and_of_another_form(
    many: list[tuple[Message, bool]],
) -> None:
    log = log_of(many)
    end, _ = WHOLE_RECORDS(log, 0, (0, len(log)))
    if end < len(log):
        found = inspect(memoryview(log), end, 0, check_crc=False)
        magic_v2 = log[end + 7] == 0xAB
        assert magic_v2 or log[end + 39] & 0x30
        assert end + found.size <= len(log)
    cut = max(end - 1, 0)
    assert WHOLE_RECORDS(log, 0, (0, cut))[0] <= cut


def copied(kit: Kit, log: bytes, cuts: list[int], limits: list[int]) -> list[object]:
    """Follow a leader with this log: append it in pieces and dispatch in steps, up to the first
    failure. Returns all that a broker sees of it."""
    kit.open()
    store = kit.store
    seen: list[object] = []
    for cut, limit in zip(cycle(cuts), cycle(limits), strict=False):
        begin = store.received_end
        if begin == len(log) or store.refusal:
            break
        try:
            seen.append(store.append_raw(begin, log[begin : begin + cut]))
        except CorruptLogError as error:
            seen.append(str(error).replace(str(kit.root), ""))
            break
        found = store.writer.dispatch(store.log_end, limit)
        if not store.refusal:
            seen += [store.received_end, list(found), found.queues(), store.dispatched_offset]
    kit.dispatch()
    refusal = store.refusal
    seen += [store.log.last_store_timestamp_ms, refusal]
    if not refusal:
        seen.append(store._dispatcher.last)
        seen += [(*key, queue.next_offset) for key, queue in store.queue_table.queues.items()]
    kit.close()
    # A record without a valid topic makes the store read-only. How many of the records in front of
    # it have a unit differs then; the next start builds the queues again.
    return [*seen, {} if refusal else kit.queue_files()]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    many=timed,
    damage=st.none() | st.tuples(st.integers(0, 10**6), st.integers(0, 255)),
    cuts=st.lists(st.integers(1, 900), min_size=1, max_size=4),
    limits=st.lists(st.integers(1, 9), min_size=1, max_size=3),
)
def test_a_follower_has_the_queues_that_python_makes(
    tmp_path_factory: pytest.TempPathFactory,
    many: list[tuple[Message, bool]],
    damage: tuple[int, int] | None,
    cuts: list[int],
    limits: list[int],
) -> None:
    log = bytearray(log_of(many))
    if damage is not None and log:
        log[damage[0] % len(log)] = damage[1]
    root: Path = tmp_path_factory.mktemp("follower")
    kits = Kit(root / "python"), NativeKit(root / "native")
    python, crate = (copied(kit, bytes(log), cuts, limits) for kit in kits)
    assert crate == python
    assert kits[1].log_bytes() == kits[0].log_bytes()


def test_a_failed_write_of_a_queue_loses_no_arrival(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata of a follower and its waiting polls depend on what `dispatch` returns."""
    monkeypatch.setattr(table, "WAITING_UNITS_MAX", 10)
    log = log_of([(Message("T", number % 3, b""), True) for number in range(40)])
    kit = NativeKit(tmp_path)
    kit.open()
    kit.store.append_raw(0, log)
    found = list(kit.store.writer.dispatch(200, 5))
    lacking = True

    def fault(call: str) -> None:
        if lacking and call == "pwrite":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    kit.disk.fault = fault
    while kit.store.dispatched_offset < kit.store.log_end and not kit.store.paused:
        found += kit.store.writer.dispatch(kit.store.log_end, 5)
    assert kit.store.paused
    lacking = False
    while kit.store.dispatched_offset < kit.store.log_end:
        found += kit.store.writer.dispatch(kit.store.log_end, 5)
    assert found == expected(log, 0, len(log))[0]
    kit.close()


def test_queues_that_begin_above_0_and_light_queues_are_left_to_python(tmp_path: Path) -> None:
    leader = Kit(tmp_path / "leader")
    leader.open()
    for number in range(60):
        one = Message("T", number % 3, bytes(number), b"", born_timestamp_ms=START_MS)
        leader.store.writer.append_many([with_lmqs(one, ["%LMQ%a"]) if number % 7 == 0 else one])
        leader.now_ms += number % 2
    seen = []
    for kit in (Kit(tmp_path / "python"), NativeKit(tmp_path / "native")):
        kit.open()
        # From the second segment on: the queues begin above 0.
        while (begin := max(kit.store.received_end, SEGMENT)) < leader.store.log_end:
            kit.store.append_raw(begin, leader.store.read_log(begin, 700))
            kit.store.writer.dispatch(kit.store.log_end)
        bodies = kit.queue_bodies("T", 1)
        kit.close()
        seen.append((bodies, kit.queue_files()))
    leader.close()
    assert seen[0] == seen[1]
    assert seen[0][0]
