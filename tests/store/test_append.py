"""Appending: statuses, queue offsets, times, the hook of a new segment, a full or failing disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.store.format.record import Message, decode, encode, pack_host
from cometmq.store.format.results import PutStatus
from cometmq.tests.store.kit import SEGMENT, START_MS, Kit, message


def fail(call: str, code: int) -> Callable[[str], None]:
    def fault(name: str) -> None:
        if name == call:
            raise OSError(code, os.strerror(code))

    return fault


def test_the_record_on_disk_is_the_codecs(kit: Kit) -> None:
    sent = message(b"body", tags="TagA", flag=7, sys_flag=1, reconsume_times=2)
    kit.write(b"before")
    (result,) = kit.store.writer.append_many([sent])
    data = encode(sent, 1, result.physical_offset, START_MS)
    assert kit.store.record_at(result.physical_offset) == data
    assert result.size == len(data)


def test_uncommon_messages_are_the_codecs_too(kit: Kit) -> None:
    six = pack_host("::1", 5)
    sent = [
        message(b"1", born_host=six),
        message(b"2", store_host=six),
        message(b"3", sys_flag=0x4),
        message(b"4", sys_flag=0x8),
        message(b"5", topic="%RETRY%" + "g" * 200),
        message(b"6", topic="SCHEDULE_TOPIC_XXXX", tags="TagA"),
        message(b"7"),
    ]
    results = kit.store.writer.append_many(sent)
    for one, result in zip(sent, results, strict=True):
        data = encode(one, result.queue_offset, result.physical_offset, START_MS)
        assert kit.store.record_at(result.physical_offset) == data
    assert [result.queue_offset for result in results] == [0, 1, 0, 2, 0, 0, 3]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"body": b"x" * 1001}, PutStatus.MESSAGE_ILLEGAL),
        ({"properties": b"x" * 32_768}, PutStatus.PROPERTIES_SIZE_EXCEEDED),
        ({"topic": "t" * 128}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "%RETRY%" + "t" * 249}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": ""}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "../up"}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": ".."}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "nul\0"}, PutStatus.MESSAGE_ILLEGAL),
        ({"queue_id": -1}, PutStatus.MESSAGE_ILLEGAL),
        ({"born_host": b"12"}, PutStatus.MESSAGE_ILLEGAL),
        ({"flag": 1 << 40}, PutStatus.MESSAGE_ILLEGAL),
    ],
)
def test_a_refused_message_changes_nothing_and_does_not_stop_the_batch(
    tmp_path: Any, fields: dict[str, Any], status: PutStatus
) -> None:
    kit = Kit(tmp_path, max_message_size=1000)
    kit.open()
    for known in (False, True):  # a queue that is new, one that is there
        end = kit.store.log_end
        results = kit.store.writer.append_many([message(b"a"), message(**fields), message(b"b")])
        assert [r.status for r in results] == [PutStatus.PUT_OK, status, PutStatus.PUT_OK], known
        refused = results[1]
        assert (refused.physical_offset, refused.size, refused.queue_offset) == (-1, 0, -1)
        assert results[0].end == results[2].physical_offset
        assert kit.store.log_end == end + results[0].size + results[2].size
    kit.dispatch()
    assert kit.queue_bodies() == [b"a", b"b"] * 2
    kit.close()


def test_store_times_follow_the_clock_back(kit: Kit) -> None:
    assert kit.write().store_timestamp_ms == START_MS
    kit.now_ms -= 1000
    assert kit.write().store_timestamp_ms == START_MS - 1000
    kit.now_ms -= 1000
    kit.reopen()
    assert kit.write().store_timestamp_ms == START_MS - 2000
    kit.now_ms = START_MS + 5
    assert kit.write().store_timestamp_ms == START_MS + 5


def test_offsets_count_for_each_queue(kit: Kit) -> None:
    batch = [message(queue_id=i % 2, topic=f"T{i % 3}") for i in range(12)]
    results = kit.store.writer.append_many(batch)
    assert [r.queue_offset for r in results] == [0] * 6 + [1] * 6
    assert kit.store.writer.next_offset("T0", 0) == 2
    assert kit.store.max_offset("T0", 0) == 0, "not dispatched yet"
    kit.dispatch()
    assert kit.store.max_offset("T0", 0) == 2
    assert sorted(kit.store.queues()) == [(f"T{t}", q) for t in range(3) for q in range(2)]


def test_a_batch_may_be_larger_than_a_segment(kit: Kit) -> None:
    batch = [message(bytes([i]) * 500) for i in range(50)]
    results = kit.store.writer.append_many(batch)
    assert {r.status for r in results} == {PutStatus.PUT_OK}
    assert kit.bodies() == [one.body for one in batch]
    assert kit.store.log_end > 5 * SEGMENT
    kit.dispatch()
    assert kit.queue_bodies() == [one.body for one in batch]


# -- the hook -----------------------------------------------------------------------------------


def test_every_segment_begins_with_the_hooks_records(kit: Kit) -> None:
    asked: list[int] = []

    def heads(offset: int) -> list[Message]:
        asked.append(offset)
        return [message(f"head {offset}".encode(), topic="Meta"), message(b"head", topic="Meta")]

    kit.heard.heads = heads
    for index in range(60):
        kit.write(f"{index}".encode().ljust(300), queue_id=0)
    kit.reopen()
    kit.heard.heads = heads
    for index in range(60):
        kit.write(f"{index}".encode().ljust(300), queue_id=0)
    segments = len(asked)
    assert asked == [i * SEGMENT for i in range(segments)]
    assert segments > 10
    for offset in asked:
        first = decode(kit.store.record_at(offset))
        second = decode(kit.store.record_at(offset + first.size))
        assert (first.topic, first.body) == ("Meta", f"head {offset}".encode())
        assert (second.topic, second.body) == ("Meta", b"head")
    kit.dispatch()
    assert len(kit.queue_bodies("Meta")) == 2 * segments
    assert len(kit.queue_bodies()) == 120


def test_hook_records_that_fill_a_segment_do_not_stop_the_log(kit: Kit) -> None:
    kit.heard.heads = lambda _: [message(b"h" * 900, topic="Meta") for _ in range(5)]
    for _ in range(4):
        kit.write(b"x" * 3500)
    assert [len(body) for body in kit.bodies()].count(3500) == 4


# -- the disk -----------------------------------------------------------------------------------


def test_a_full_disk_is_an_error_before_anything_is_written(kit: Kit) -> None:
    while kit.store.log_end < SEGMENT // 2 - 200:
        kit.write(b"x" * 100)
    kit.disk.fault = fail("fallocate", errno.ENOSPC)
    before = kit.log_bytes()
    end = kit.store.log_end
    (result,) = kit.store.writer.append_many([message(b"x" * 3000)])
    assert result.status is PutStatus.CREATE_MAPPED_FILE_FAILED
    assert "No disk space for the next segment" in kit.store.writer.allocation_failure
    assert kit.store.log_end == end
    assert kit.log_bytes() == before, "no blank, no file"
    assert kit.store.writable, "what fits is still taken"
    assert kit.write(b"small").physical_offset == end
    kit.disk.fault = None
    assert kit.write(b"x" * 3000).physical_offset == SEGMENT
    assert kit.store.writer.allocation_failure == ""
    kit.dispatch()
    assert kit.queue_bodies()[-2:] == [b"small", b"x" * 3000]


def test_a_log_that_cannot_be_written_is_read_only(kit: Kit) -> None:
    said: list[str] = []
    kit.heard.refused = said.append
    kit.write_many(3)
    kit.disk.fault = fail("write_log", errno.EIO)
    results = kit.store.writer.append_many([message(), message()])
    assert {r.status for r in results} == {PutStatus.UNKNOWN_ERROR}
    assert not kit.store.writable
    assert said == [kit.store.refusal]
    assert "read-only" in said[0]
    kit.disk.fault = None
    (result,) = kit.store.writer.append_many([message()])
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE, "it stays so"
    assert len(kit.queue_bodies()) == 3, "reading goes on"
    report = kit.reopen()
    assert not report.clean
    assert kit.write().queue_offset == 3


def test_a_store_that_is_not_started_refuses_messages(tmp_path: Any) -> None:
    kit = Kit(tmp_path)
    kit.open_only()
    (result,) = kit.store.writer.append_many([message()])
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert kit.store.refusal == "The store was not started."
    kit.close()
