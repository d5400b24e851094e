"""The scanner against the codec: every batch is what `decode` gives, whatever stands in the log."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.store.format.record import Message, decode, encode
from cometmq.store.format.record_layout import (
    MAGIC_V1,
)
from cometmq.store.scan import (
    walk as scan,
)
from cometmq.store.scan.walk import Columns, OnCorrupt, StopReason, TopicTable, Walk, sync, walk
from cometmq.tests.store.logs import any_message, build, fields_of, hurt, is_nothing, plain

BASE = 3 << 30


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lockstep already on small logs, so that a test meets it."""
    narrowed = pytest.MonkeyPatch()
    use_lockstep(narrowed)
    yield
    narrowed.undo()


def use_lockstep(patch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("WINDOW_BYTES", 20_000),
        ("SPACING_BYTES", 300),
        ("_WALKERS_MIN", 2),
        ("_STEPS_ASIDE", 2),
    ):
        patch.setattr(scan, name, value)


def columns_of(
    columns: Columns, data: bytes | bytearray, topics: TopicTable
) -> list[tuple[object, ...]]:
    lists: dict[str, list[Any]] = {
        name: getattr(columns, name).tolist() for name in Columns.__slots__
    }
    rows: list[tuple[object, ...]] = []
    for i in range(len(columns)):
        row = {name: values[i] for name, values in lists.items()}

        def part(name: str, row: dict[str, Any] = row) -> bytes:
            begin = row[f"{name}_start"]
            return bytes(data[begin : begin + row[f"{name}_length"]])

        def host(name: str, wide: int, row: dict[str, Any] = row) -> bytes:
            begin = row[f"{name}_host_start"]
            return bytes(data[begin : begin + (20 if row["sys_flag"] & wide else 8)])

        assert row["position"] + BASE == row["physical_offset"]
        assert part("topic").decode() == topics.names[row["topic_id"]]
        rows.append(
            (
                *(row["physical_offset"], row["size"], 1 if row["magic"] == MAGIC_V1 else 2),
                *(row["body_crc"], row["queue_id"], row["flag"], row["queue_offset"]),
                *(row["sys_flag"], row["born_timestamp"], row["store_timestamp"]),
                *(row["reconsume_times"], row["prepared_transaction_offset"]),
                *(host("born", 0x10), host("store", 0x20)),
                *(part("body"), part("topic").decode(), part("properties")),
            )
        )
    return rows


def walked(found: Walk, data: bytes | bytearray) -> list[tuple[object, ...]]:
    return [row for columns in found for row in columns_of(columns, data, found.topics)]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    count=st.integers(0, 120),
    harm=st.integers(0, 4),
    check_crc=st.booleans(),
    blank=st.booleans(),
)
def test_a_walk_that_fails_on_damage_equals_the_reference_walk(
    seed: int, count: int, harm: int, check_crc: bool, blank: bool
) -> None:
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        if rng.random() < 0.8:
            use_lockstep(patch)
        data = build([any_message(rng) for _ in range(count)], BASE)
        if blank:
            data = build([], BASE, 50) if not data else data + build([], BASE, rng.randrange(8, 80))
        hurt(rng, data, harm)
        start, end = 0, rng.choice([len(data), len(data), rng.randrange(len(data) + 20)])
        records, stop = plain(bytes(data), BASE, start, end, check_crc)
        found = walk(data, BASE, start, end, check_crc=check_crc)
        assert walked(found, data) == fields_of(records)
        assert found.end == stop
        assert not found.lost
        assert found.records == len(records)
        expected = StopReason.DAMAGED
        if stop >= min(end, len(data)):
            expected = StopReason.END
        elif is_nothing(data, stop):
            expected = StopReason.EMPTY
        elif data[stop + 4 : stop + 8] == bytes.fromhex("cbd43194"):
            whole = int.from_bytes(data[stop : stop + 4], "big") == len(data) - stop
            expected = StopReason.BLANK if whole else StopReason.DAMAGED
        assert found.stop is expected


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    harm=st.integers(0, 6),
    mode=st.sampled_from(["skip", "permissive"]),
    check_crc=st.booleans(),
)
def test_a_skipping_walk_finds_every_whole_record(
    seed: int, harm: int, mode: Any, check_crc: bool
) -> None:
    """Records and lost ranges cover what was walked, without gap or overlap; records are whole."""
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        if rng.random() < 0.8:
            use_lockstep(patch)
        messages = [any_message(rng) for _ in range(rng.randrange(150))]
        data = build(messages, BASE, 60_000 if rng.random() < 0.5 else 0)
        untouched = bytes(data)
        hurt(rng, data, harm)
        found = walk(data, BASE, 0, len(data), mode, check_crc=check_crc)
        pieces = []
        for columns in found:
            for begin, size, good in zip(
                columns.position.tolist(),
                columns.size.tolist(),
                columns.crc_ok.tolist(),
                strict=True,
            ):
                decode(bytes(data[begin : begin + size]), check_crc=check_crc and good)
                pieces.append((begin, begin + size))
        if len(data) == len(untouched):
            for record in plain(untouched, BASE, 0, len(data), True)[0]:
                begin = record.physical_offset - BASE
                if data[begin : begin + record.size] == untouched[begin : begin + record.size]:
                    inside = any(b < begin < e for b, e in pieces)
                    assert (begin, begin + record.size) in pieces or inside
        pieces += [(one.begin - BASE, one.end - BASE) for one in found.lost]
        pieces.sort()
        position = 0
        for begin, end in pieces:
            assert (begin, end > begin) == (position, True)
            position = end
        assert found.end <= position or not pieces
        rest = data[position:]
        assert not rest.strip(b"\0") or found.stop is StopReason.BLANK


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=3000), start=st.integers(0, 3000), base=st.integers(0, 1 << 62))
def test_garbage_never_crashes_a_walk(data: bytes, start: int, base: int) -> None:
    modes: tuple[OnCorrupt, ...] = ("fail", "skip", "permissive")
    for mode in modes:
        found = walk(data, base, start, len(data), mode, check_crc=True)
        assert sum(len(columns) for columns in found) == 0
        assert found.stop is not None
    assert sync(data, base, start) == -1


@pytest.mark.usefixtures("narrow")
def test_fake_records_in_bodies_are_not_returned() -> None:
    """Whole records, with their own right place, inside the bodies of others."""
    rng = random.Random(7)
    data = bytearray()
    for number in range(400):
        outer = any_message(rng)
        place = BASE + len(data)
        outer.body = b"x" * 40
        inner_at = 88 + 12 * ((len(outer.born_host) > 8) + (len(outer.store_host) > 8)) + 7
        fake = encode(any_message(rng), 0, place + inner_at, 5)
        outer.body = b"y" * 7 + fake + b"z" * rng.randrange(20)
        data += encode(outer, number, place, 6)
    assert sync(data, BASE, 1) < plain(data, BASE, 0, len(data), True)[0][1].physical_offset - BASE
    found = walk(data, BASE, 0, len(data))
    assert walked(found, data) == fields_of(plain(data, BASE, 0, len(data), True)[0])


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("mode", ["fail", "skip", "permissive"])
def test_a_checksum_mismatch_in_each_mode(mode: Any) -> None:
    data = build([Message("T", 0, bytes([i]) * 100) for i in range(40)], BASE)
    size = len(data) // 40
    data[20 * size + 120] ^= 1
    found = walk(data, BASE, 0, len(data), mode, check_crc=True)
    good = [flag for columns in found for flag in columns.crc_ok.tolist()]
    if mode == "fail":
        assert (good, found.end, found.stop) == ([True] * 20, 20 * size, StopReason.DAMAGED)
        assert "checksum" in found.reason
    elif mode == "skip":
        assert good == [True] * 39
        (lost,) = found.lost
        assert (lost.begin, lost.end) == (BASE + 20 * size, BASE + 21 * size)
    else:
        assert (good.count(False), good.index(False), found.lost) == (1, 20, [])


@pytest.mark.parametrize("mode", ["fail", "skip"])
def test_a_topic_that_is_not_text_is_damage(mode: Any) -> None:
    data = build([Message("Topic", 0, b"b" * 100) for _ in range(9)], BASE)
    size = len(data) // 9
    at = data.index(b"Topic", 4 * size)
    data[at] = 0xFF
    found = walk(data, BASE, 0, len(data), mode)
    assert sum(len(columns) for columns in found) == (4 if mode == "fail" else 8)
    if mode == "fail":
        assert (found.reason, found.end) == ("the topic is no text.", 4 * size)
    else:
        assert [(one.begin - BASE, one.end - BASE) for one in found.lost] == [(4 * size, 5 * size)]


def test_a_range_owns_the_records_that_begin_in_it() -> None:
    """Any splitting of a segment gives every record once (the pipeline's splits)."""
    rng = random.Random(3)
    data = build([any_message(rng) for _ in range(300)], BASE)
    whole = [r.physical_offset for r in plain(data, BASE, 0, len(data), False)[0]]
    for _ in range(40):
        borders = sorted([0, len(data), *(rng.randrange(len(data)) for _ in range(6))])
        offsets: list[int] = []
        for begin, end in itertools.pairwise(borders):
            start = sync(data, BASE, begin, end)
            if start >= 0:
                found = walk(data, BASE, start, end)
                offsets += [o for columns in found for o in columns.physical_offset.tolist()]
        assert offsets == whole


def test_the_view_is_released() -> None:
    data = build([Message("T", 0, b"x" * 50) for _ in range(600)], BASE)
    view = memoryview(data)
    found = walk(view, BASE, 0, len(data))
    batches = list(found)
    assert sum(map(len, batches)) == 600
    view.release()
    found.close()
    other = memoryview(data)
    abandoned = walk(other, BASE, 0, len(data))
    next(abandoned)
    abandoned.close()
    other.release()
