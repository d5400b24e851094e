"""Decoder: every kind of record, any split size, every policy for damage."""

from __future__ import annotations

import itertools
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.pipeline.decode import Report, decode
from cometmq.pipeline.errors import DamagedLogError, DataLossError, UnreachableError
from cometmq.pipeline.pairs import Properties
from cometmq.pipeline.schema import COLUMNS, arrow_schema
from cometmq.pipeline.selection import TopicFilter
from cometmq.pipeline.splits import Split, plan
from cometmq.store.format.properties import decode_properties
from cometmq.store.format.record import encode, encode_properties, pack_host
from cometmq.tests.pipeline.logs import MadeLog, message, rows

LARGE = 1 << 23


def made(tmp_path: Path, count: int = 60, **fields: Any) -> MadeLog:
    log = MadeLog(tmp_path / "store")
    return log.append(*(message(number, **fields) for number in range(count)))


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return [int(row["msgId"], 16) for row in found]


# -- what rows say --------------------------------------------------------------------------------


def test_a_row_equals_its_record(tmp_path: Path) -> None:
    log = MadeLog(tmp_path)
    properties = encode_properties({"KEYS": "a b", "TAGS": "x", "UNIQ_KEY": "ID", "own": "1"})
    log.append(
        message(
            7,
            "topic",
            3,
            body=b"body",
            properties=properties,
            flag=-5,
            reconsume_times=2,
            prepared_transaction_offset=99,
            born_host=pack_host("10.0.0.1", 5),
            store_host=pack_host("::1", 6),
        )
    )
    (row,) = rows(tmp_path)
    assert row["topic"] == "topic"
    assert (row["queueId"], row["queueOffset"], row["physicalOffset"]) == (3, 0, 0)
    assert (row["msgId"], row["tags"], row["keys"]) == ("ID", "x", "a b")
    assert row["body"] == b"body"
    assert dict(row["properties"]) == {"KEYS": "a b", "TAGS": "x", "UNIQ_KEY": "ID", "own": "1"}
    assert (row["flag"], row["reconsumeTimes"], row["preparedTransactionOffset"]) == (-5, 2, 99)
    assert (row["bornHost"], row["storeHost"]) == ("10.0.0.1:5", "[::1]:6")
    assert row["bornTimestamp"].timestamp() == 1_700_000_000.007
    assert row["bodyCRC"] == zlib.crc32(b"body") & 0x7FFFFFFF
    assert row["sysFlag"] == 0x20
    assert row["size"] == log.end
    assert row["brokerName"] == tmp_path.name


def test_a_message_without_unique_key_has_its_offset_id(tmp_path: Path) -> None:
    v4, v6 = pack_host("127.0.0.1", 10911), pack_host("::1", 10911)
    log = MadeLog(tmp_path / "a").append(message(0, properties=b"", store_host=v4))
    (row,) = rows(log.root)
    assert row["msgId"] == "7F00000100002A9F0000000000000000"
    log = MadeLog(tmp_path / "b").append(message(0, properties=b"", store_host=v6), message(1))
    first, second = rows(log.root)
    assert first["msgId"] == (v6 + bytes(8)).hex().upper()
    assert second["msgId"] == f"{1:032X}"
    assert first["tags"] is None


def test_every_subset_of_columns_has_the_schema_that_spark_expects(tmp_path: Path) -> None:
    log = made(tmp_path, 3)
    (split,) = plan([str(log.root)])
    for name in COLUMNS:
        for form in ("map", "string", "none"):
            names = tuple(dict.fromkeys((name, "queueOffset")))
            (batch,) = decode(split, names, properties=form)
            assert batch.schema == arrow_schema(names, form)
            assert batch.num_rows == 3
    (batch,) = decode(split)
    assert batch.schema == arrow_schema()
    batch.validate(full=True)


def test_long_topics_small_and_large_bodies(tmp_path: Path) -> None:
    log = MadeLog(tmp_path, segment=LARGE)
    topics = ["t", "x" * 127, "%RETRY%" + "g" * 120, "ü" * 60]
    log.append(*(message(n, topic, body=b"b" * n) for n, topic in enumerate(topics)))
    log.append(message(4, body=b""), message(5, body=b"z" * (4 << 20)), message(6))
    found = rows(tmp_path)
    assert numbers(found) == list(range(7))
    assert [row["topic"] for row in found[:4]] == topics
    assert [len(row["body"]) for row in found] == [0, 1, 2, 3, 0, 4 << 20, 6]


def test_batches_are_bounded_by_rows_and_by_bytes(tmp_path: Path) -> None:
    """8192 bodies of 4 MiB would be more than an Arrow column can hold."""
    log = MadeLog(tmp_path, segment=LARGE)
    log.append(*(message(number, body=b"b" * 100_000) for number in range(40)))
    (split,) = plan([str(log.root)])
    found = list(decode(split, batch_bytes=1_000_000))
    assert sum(batch.num_rows for batch in found) == 40
    assert max(batch.nbytes for batch in found) < 1_200_000
    assert [batch.num_rows for batch in decode(split, batch_rows=16)] == [16, 16, 8]
    assert all(batch.num_rows == 1 for batch in decode(split, batch_bytes=1))


def test_times_out_of_range_are_null(tmp_path: Path) -> None:
    log = MadeLog(tmp_path)
    wild = message(0)
    wild.born_timestamp_ms = (1 << 62) + 5
    log.append(wild, message(1))
    found = rows(tmp_path, columns=("bornTimestamp",))
    assert found[0]["bornTimestamp"] is None
    assert found[1]["bornTimestamp"] is not None


# -- properties -----------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [b"a", b"TAGS", b"KEYS", b"UNIQ_KEY", b"\x01", b"\x02", "é".encode(), b"\xff", b"\0"]
)
WELL_FORMED = st.dictionaries(
    st.text("abTAGS", min_size=0, max_size=20), st.text("xyzé", max_size=9), max_size=8
).map(encode_properties)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.lists(PIECES, max_size=14).map(b"".join), WELL_FORMED), max_size=12))
def test_properties_are_parsed_by_the_rules_of_java(strings: list[bytes]) -> None:
    import numpy as np

    lengths = np.array([len(one) for one in strings], np.int64)
    starts = np.cumsum(lengths) - lengths
    found = Properties(pa.py_buffer(b"".join(strings)), starts, lengths)
    expected = [decode_properties(one) for one in strings]
    assert [dict(one) for one in found.maps().to_pylist()] == expected
    for name in ("TAGS", "KEYS", "UNIQ_KEY"):
        assert found.values(name).to_pylist() == [one.get(name) for one in expected]
    assert found.text().to_pylist() == [one.decode("utf-8", "replace") for one in strings]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a\x01b", {"a": "b"}),  # the last 0x02 may be missing
        (b"a\x011\x02a\x012\x02", {"a": "2"}),  # of a repeated name the last one counts
        (b"a\x01\x02b\x01c\x02", {"b": "c"}),  # empty values are not read
        (b"\x01x\x02b\x01c\x02", {"b": "c"}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),  # a 0x01 belongs to the value
        (b"junk\x02b\x01c\x02", {"b": "c"}),
        (b"a\x01\xff\xfe\x02", {"a": "\ufffd\ufffd"}),
    ],
)
def test_malformed_properties_are_parsed_as_by_java(
    tmp_path: Path, text: bytes, expected: dict[str, str]
) -> None:
    log = MadeLog(tmp_path).append(message(0), message(1, properties=text), message(2))
    found = rows(tmp_path)
    assert dict(found[1]["properties"]) == expected
    assert dict(found[2]["properties"])["TAGS"] == "T2"
    del log


# -- cutting --------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_every_record_is_read_once_for_any_split_size(data: st.DataObject) -> None:
    """Bodies hold copies of records, so a magic alone proves nothing."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        log = MadeLog(Path(folder))
        fake = encode(message(1), 0, 12345, 1)
        bodies = [
            fake * data.draw(st.integers(0, 2)) + bytes(data.draw(st.integers(0, 40)))
            for _ in range(25)
        ]
        log.append(*(message(number, body=body) for number, body in enumerate(bodies)))
        borders = sorted(data.draw(st.sets(st.integers(1, log.end - 1), max_size=12)))
        (whole,) = plan([folder])
        cuts = [0, *borders, log.end]
        found: list[int] = []
        for begin, end in itertools.pairwise(cuts):
            part = Split(whole.root, whole.base, whole.path, begin, end, "b")
            for batch in decode(part, ("msgId",)):
                found += numbers(batch.to_pylist())
        assert found == list(range(25))


def test_preallocated_segments_give_no_rows(tmp_path: Path) -> None:
    log = made(tmp_path, 700)
    assert log.base > 0  # several segments, each ended by a blank
    for ahead in (1, 2):
        (log.root / "commitlog" / f"{log.base + ahead * log.segment:020d}").write_bytes(
            bytes(log.segment)
        )
    assert numbers(rows(log.root, 4_000)) == list(range(700))
    assert plan([str(log.root)])[-1].end == log.end


def test_half_a_record_at_the_end_is_not_read(tmp_path: Path) -> None:
    log = made(tmp_path)
    record = encode(message(60, body=b"q" * 500), 60, log.end, 1)
    for length in (3, 60, 200, len(record) - 1):
        log.change(log.end, record[:length].ljust(len(record), b"\0"))
        assert numbers(rows(log.root)) == list(range(60))
    log.change(log.end, record)
    assert numbers(rows(log.root)) == list(range(61))


def test_an_incompletely_written_body_is_not_read(tmp_path: Path) -> None:
    """A live broker writes concurrently: lengths may be visible before the body."""
    log = made(tmp_path)
    record = bytearray(encode(message(60, body=b"q" * 500), 60, log.end, 1))
    record[100:300] = bytes(200)
    log.change(log.end, bytes(record))
    assert numbers(rows(log.root)) == list(range(60))


def test_nothing_above_the_confirm_offset_is_read(tmp_path: Path) -> None:
    from cometmq.ha.state.positions import Positions

    log = made(tmp_path)
    (log.root / "ha").mkdir()
    for confirmed, expected in (
        (log.starts[40], 40),
        (log.starts[40] + 5, 40),
        (log.end + 999, 60),
    ):
        positions = Positions(log.root / "ha")
        positions.save(confirmed)
        positions.close()
        assert numbers(rows(log.root)) == list(range(expected))


# -- damage ---------------------------------------------------------------------------------------


def test_damage_raises_or_is_counted(tmp_path: Path) -> None:
    log = made(tmp_path)
    log.change(log.starts[20], b"\x7f\xff\xff\xff")  # its size
    for split_bytes in (1 << 30, 700):
        with pytest.raises(DamagedLogError, match=f"damaged at offset {log.starts[20]}"):
            rows(log.root, split_bytes)
        for policy in ("skip", "permissive"):
            report = Report()
            found = rows(log.root, split_bytes, on_corrupt=policy, report=report)
            assert numbers(found) == [n for n in range(60) if n != 20]
            assert report.lost_bytes == log.starts[21] - log.starts[20]


def test_damage_at_a_split_boundary_is_reported(tmp_path: Path) -> None:
    """The next split begins at its first valid record, so the previous one must report a gap."""
    log = made(tmp_path)
    (whole,) = plan([str(log.root)])
    log.change(log.starts[20] + 30, b"\xff\xff")  # its own offset
    middle = log.starts[20] - 3
    parts = [
        Split(whole.root, 0, whole.path, begin, end, "b")
        for begin, end in ((0, middle), (middle, log.end))
    ]
    with pytest.raises(DamagedLogError):
        [list(decode(part)) for part in parts]
    report = Report()
    found = [
        number
        for part in parts
        for batch in decode(part, on_corrupt="skip", report=report)
        for number in numbers(batch.to_pylist())
    ]
    assert found == [n for n in range(60) if n != 20]
    assert report.lost_bytes == log.starts[21] - log.starts[20]


def test_a_page_of_zeros_inside_the_log_is_damage(tmp_path: Path) -> None:
    log = made(tmp_path)
    log.change(log.starts[30], bytes(log.starts[33] - log.starts[30]))
    (whole,) = [Split(str(log.root), 0, str(log.root / "commitlog" / f"{0:020d}"), 0, log.end, "b")]
    with pytest.raises(DamagedLogError, match="bytes are zeros"):
        list(decode(whole))
    report = Report()
    found = [
        n for b in decode(whole, on_corrupt="skip", report=report) for n in numbers(b.to_pylist())
    ]
    assert found == [n for n in range(60) if n not in (30, 31, 32)]
    assert report.lost_bytes == log.starts[33] - log.starts[30]


@pytest.mark.parametrize("topics", [None, TopicFilter(ranges={("t", 0): (0, 1 << 40)})])
def test_altered_bodies_are_not_returned(tmp_path: Path, topics: TopicFilter | None) -> None:
    log = made(tmp_path)
    (split,) = plan([str(log.root)])
    expected = len(rows(log.root, topics=topics))
    log.change(log.starts[10] + 90, b"!")
    with pytest.raises(DamagedLogError, match=f"offset {log.starts[10]} .*checksum of the body"):
        rows(log.root, topics=topics)
    report = Report()
    assert len(rows(log.root, on_corrupt="skip", topics=topics, report=report)) == expected - 1
    assert [lost.begin for lost in report.lost] == [log.starts[10]]
    assert len(rows(log.root, on_corrupt="permissive", topics=topics)) == expected
    assert len(rows(log.root, verify_crc=False, topics=topics)) == expected
    metadata = ("topic", "queueId")
    assert len(list(decode(split, metadata, topics=topics))) >= 1, "no body is read"
    with pytest.raises(DamagedLogError):
        list(decode(split, metadata, topics=topics, verify_crc=True))


def test_altered_bodies_of_other_topics_are_not_read(tmp_path: Path) -> None:
    log = made(tmp_path)
    log.change(log.starts[10] + 90, b"!")
    others = TopicFilter(topics=frozenset({"none"}))
    assert rows(log.root, topics=others) == []


def test_a_deleted_segment_is_data_loss(tmp_path: Path) -> None:
    log = made(tmp_path)
    (split,) = plan([str(log.root)])
    Path(split.path).unlink()
    with pytest.raises(DataLossError, match="deleted before"):
        list(decode(split))
    (log.root / "commitlog").rmdir()
    with pytest.raises(UnreachableError, match="does not see"):
        list(decode(split))
    with pytest.raises(UnreachableError, match="commitlog"):
        plan([str(log.root)])
