"""Decoder: compressed bodies, inner batches, selection by topic, queue, offset and tag."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import lz4.frame
import pytest

from cometmq.pipeline.decode import Report, decode
from cometmq.pipeline.errors import DamagedLogError
from cometmq.pipeline.selection import TopicFilter
from cometmq.pipeline.splits import plan
from cometmq.store.format.bodies import zstd
from cometmq.store.format.record import encode_properties
from cometmq.tests.pipeline.logs import MadeLog, message, rows


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return [int(row["msgId"], 16) for row in found]


# -- compressed, and batches in one record --------------------------------------------------------


def compressed(number: int, kind: int, body: bytes) -> Any:
    codec = {
        0x000: zlib.compress,
        0x100: lz4.frame.compress,
        0x200: zstd().compress,
        0x300: zlib.compress,
    }[kind]
    return message(number, body=codec(body), sys_flag=0x1 | kind)


def test_compressed_bodies_are_decompressed_in_bounded_batches(tmp_path: Path) -> None:
    log = MadeLog(tmp_path)
    body = b"text " * 4000
    kinds = (0x000, 0x100, 0x200, 0x300)
    log.append(message(0), *(compressed(1 + n, kinds[n % 4], body) for n in range(8)), message(9))
    found = rows(tmp_path)
    assert numbers(found) == list(range(10))
    assert [row["body"] for row in found[1:9]] == [body] * 8
    assert found[9]["body"] == b"body-9"
    stored = rows(tmp_path, decompress=False)
    assert stored[1]["body"] == zlib.compress(body)
    (split,) = plan([str(tmp_path)])
    batches = list(decode(split, batch_bytes=50_000))
    assert max(batch.nbytes for batch in batches) < 70_000
    assert sum(batch.num_rows for batch in batches) == 10


def test_on_corrupt_applies_to_bodies_that_cannot_be_decompressed(tmp_path: Path) -> None:
    log = MadeLog(tmp_path).append(message(0), message(1, body=b"no zlib", sys_flag=1), message(2))
    with pytest.raises(DamagedLogError, match="zlib"):
        rows(tmp_path)
    report = Report()
    assert numbers(rows(tmp_path, on_corrupt="skip", report=report)) == [0, 2]
    assert report.lost_bytes == log.starts[2] - log.starts[1]
    kept = rows(tmp_path, on_corrupt="permissive")
    assert [row["body"] for row in kept] == [b"body-0", None, b"body-2"]
    assert numbers(rows(tmp_path, columns=("msgId",))) == [0, 1, 2]  # without bodies


def inner(*parts: tuple[int, bytes, bytes]) -> bytes:
    return b"".join(
        struct.pack(">5i", 22 + len(body) + len(text), 0, 0, flag, len(body))
        + body
        + struct.pack(">h", len(text))
        + text
        for flag, body, text in parts
    )


def test_a_record_with_a_batch_is_unwrapped_to_its_messages(tmp_path: Path) -> None:
    body = inner(
        (1, b"first", encode_properties({"UNIQ_KEY": "A", "TAGS": "x"})),
        (2, b"", encode_properties({"UNIQ_KEY": "B"})),
        (3, b"third", b""),
    )
    log = MadeLog(tmp_path)
    log.append(message(0), message(1, body=body, sys_flag=0xC0))
    log.append(message(2, body=zlib.compress(body), sys_flag=0xC1), message(3))
    found = rows(tmp_path)
    assert [row["body"] for row in found] == [
        b"body-0",
        *([b"first", b"", b"third"] * 2),
        b"body-3",
    ]
    assert [row["queueOffset"] for row in found] == [0, 1, 2, 3, 2, 3, 4, 3]
    assert [row["flag"] for row in found[1:4]] == [1, 2, 3]
    assert [row["msgId"] for row in found[1:3]] == ["A", "B"]
    assert found[1]["tags"] == "x"
    assert {row["physicalOffset"] for row in found[1:4]} == {log.starts[1]}
    ranged = TopicFilter(ranges={("t", 0): (2, 4)})
    assert [row["queueOffset"] for row in rows(tmp_path, topics=ranged)] == [2, 3, 2, 3, 3]
    log.append(message(4, body=body[:-1], sys_flag=0xC0))
    with pytest.raises(DamagedLogError, match="batch"):
        rows(tmp_path)
    assert len(rows(tmp_path, on_corrupt="skip")) == 8
    assert len(rows(tmp_path, on_corrupt="permissive")) == 9


# -- choosing -------------------------------------------------------------------------------------


def test_topics_queues_offsets_and_tags_select_records(tmp_path: Path) -> None:
    log = MadeLog(tmp_path)
    for number in range(120):
        log.append(
            message(number, ("a", "b", "%DLQ%g", "SCHEDULE_TOPIC_XXXX")[number % 4], number % 2)
        )
    everything = rows(tmp_path)

    def chosen(**fields: Any) -> list[int]:
        return numbers(rows(tmp_path, topics=TopicFilter(**fields)))

    def expected(test: Any) -> list[int]:
        return numbers([row for row in everything if test(row)])

    assert chosen() == list(range(120))
    assert chosen(topics=frozenset("a")) == expected(lambda r: r["topic"] == "a")
    assert chosen(pattern="[ab]") == expected(lambda r: r["topic"] in "ab")
    assert chosen(include_system=False) == expected(lambda r: r["topic"] in "ab")
    assert chosen(tags=frozenset(("T1", "T2"))) == expected(lambda r: r["tags"] in ("T1", "T2"))
    ranges = {("a", 0): (3, 7), ("%DLQ%g", 0): (0, 1 << 62)}
    assert chosen(ranges=ranges) == expected(
        lambda r: (r["topic"] == "a" and 3 <= r["queueOffset"] < 7) or r["topic"] == "%DLQ%g"
    )
    assert chosen(topics=frozenset(("unknown",))) == []


def test_prepared_and_rolled_back_records_are_in_no_queue(tmp_path: Path) -> None:
    log = MadeLog(tmp_path)
    log.append(
        message(0), message(1, sys_flag=0x4), message(2, sys_flag=0xC), message(3, sys_flag=8)
    )
    assert numbers(rows(tmp_path)) == [0, 1, 2, 3]
    assert numbers(rows(tmp_path, topics=TopicFilter(ranges={("t", 0): (0, 99)}))) == [0, 3]
