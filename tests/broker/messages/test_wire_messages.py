"""The native conversion of records gives the bytes of the Python path, or leaves the record to it.

Records have all flags, extreme values and odd properties. Hypothesis shrinks what it finds;
`receive_cases.py` generates more records in less time. `TEST_EXAMPLES=1000 pytest
tests/broker/messages/test_wire_messages.py` compares more (up to eight records an example).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from cometmq.broker.messages.filters import TagFilter, of_tags
from cometmq.broker.messages.runs import Receipts, Room, Run, RunConverter, run_converter
from cometmq.proto.native import SWITCH, load
from cometmq.store.format.property_names import FORBIDDEN_PROPERTIES
from cometmq.store.format.record import Message, encode
from cometmq.store.format.results import StoredRecord
from cometmq.tests.broker.messages.receive_cases import ATTEMPTS_MAX, TOPIC, by_python

CONVERTER = run_converter(load())

pytestmark = pytest.mark.skipif(
    CONVERTER.native is None, reason="the native crate is not installed (scripts/native_door)"
)

_int32 = st.integers(-(1 << 31), (1 << 31) - 1)
_int64 = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(1_700_000_000_000, 1_900_000_000_000),
    st.sampled_from((0, -1, 1, (1 << 63) - 1, -(1 << 63))),
)
_hosts = st.one_of(
    st.binary(min_size=8, max_size=8),
    st.binary(min_size=20, max_size=20),
    st.sampled_from(
        (
            bytes(20),  # ::
            bytes(15) + b"\x01" + bytes(4),  # ::1
            bytes(10) + b"\xff\xff\x7f\0\0\x01" + bytes(4),  # an IPv4 address in IPv6
            b"\x20\x01\x0d\xb8" + bytes(11) + b"\x01\0\0\x1f\x91",
            b"\x20\x01\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01\xff\xff\xff\xff",
        )
    ),
)
_integers = st.one_of(
    _int64.map(str),
    st.sampled_from(("", "0", "-1", "-", "--1", "18", "19", "+3", " 3", "9" * 19, "9" * 20, "٣")),
)
_no_separator = st.characters(exclude_characters="\x01\x02", codec="utf-8")
_text = st.one_of(st.text(_no_separator, max_size=12), st.sampled_from(("", "a b", "  x ", "true")))
_NUMERIC = ("TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "DELAY", "_SYS_MSG_PRIORITY_")
_TEXTUAL = tuple(sorted(FORBIDDEN_PROPERTIES.difference(_NUMERIC)))
_pairs = st.one_of(
    st.tuples(st.sampled_from(_NUMERIC), _integers),
    st.tuples(st.sampled_from(_TEXTUAL), _text),
    st.tuples(st.sampled_from(("TAGS", "KEYS", "UNIQ_KEY", "TRAN_MSG", "__BORNHOST")), _text),
    st.tuples(_text, _text),
)
_properties = st.lists(_pairs, max_size=8).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
)
_odd_properties = st.one_of(
    st.binary(max_size=40),
    _properties.map(lambda data: data[:-1]),
    _properties.map(lambda data: data + b"\xff\x02"),
    st.just(b"a\x01b\x02" * 70),
    st.just(b"".join(b"%d\x01v\x02" % n for n in range(70))),
)


@st.composite
def records(draw: st.DrawFn, odd: bool = True) -> StoredRecord:
    """Generate a stored record; without `odd` of a form that the native path accepts."""
    # Bit 0: compressed; bits 4 and 5 follow from the hosts.
    sys_flag = draw(st.integers(0, (1 << 31) - 1)) if odd else draw(st.sampled_from((0, 4, 8, 12)))
    host = _hosts if odd else st.binary(min_size=8, max_size=8)
    message = Message(
        draw(st.sampled_from(("t", "t" * 127, "t" * 128, "é"))),
        draw(_int32),
        draw(st.binary(max_size=200)),
        draw(st.one_of(_properties, _odd_properties) if odd else _properties),
        draw(_int32),
        sys_flag,
        draw(_int64),
        draw(host),
        draw(host),
        draw(st.one_of(st.integers(0, 20), _int32) if odd else st.integers(0, ATTEMPTS_MAX - 1)),
        draw(_int64),
    )
    queue_offset, place = draw(st.integers(0, 1 << 62)), draw(st.integers(0, 1 << 62))
    return StoredRecord(queue_offset, place, encode(message, queue_offset, place, draw(_int64)), 0)


_receipts = st.none() | st.builds(
    Receipts,
    st.just(" 1 2 3 0 broker-é 4 "),
    st.sampled_from((-1, 0, 1 << 62)),
    st.integers(0, 1 << 50),
    st.just(ATTEMPTS_MAX),
)
_rooms = st.builds(Room, st.integers(1, 9), st.sampled_from((-5, 0, 1, 500, 1 << 20)))
_wanted = st.sampled_from((None, None, of_tags(["true", "a b"]), of_tags(["é"])))
_many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@_many
@given(st.lists(records(), max_size=8), _rooms, _wanted, _receipts, st.data())
def test_a_run_is_the_beginning_of_what_the_python_path_returns(
    found: list[StoredRecord],
    room: Room,
    wanted: TagFilter | None,
    receipts: Receipts | None,
    data: st.DataObject,
) -> None:
    numbers = st.lists(st.integers(1, 20), min_size=len(found), max_size=len(found))
    attempts = data.draw(st.none() | numbers)
    run = CONVERTER.run(TOPIC, found, 0, room, wanted=wanted, receipts=receipts, attempts=attempts)
    expected = by_python(found[: run.end], room, wanted, receipts, attempts)
    event(f"{run.end} of {len(found)}")
    assert run == expected


@_many
@given(st.lists(records(odd=False), max_size=8), _rooms, _wanted, _receipts)
def test_common_records_are_converted_up_to_the_limits(
    found: list[StoredRecord], room: Room, wanted: TagFilter | None, receipts: Receipts | None
) -> None:
    run = CONVERTER.run(TOPIC, found, 0, room, wanted=wanted, receipts=receipts)
    assert run == by_python(found, room, wanted, receipts, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sys_flag", 1),  # compressed
        ("properties", b"TAGS\x01\xff\x02"),
        ("properties", b"no pair"),
        ("born_host", bytes(20)),
        ("reconsume_times", ATTEMPTS_MAX),
    ],
)
def test_unusual_records_are_left_to_the_python_path(field: str, value: Any) -> None:
    common = StoredRecord(0, 0, encode(Message("t", 0, b"body"), 0, 0, 0), 0)
    message = Message("t", 0, b"body", **{field: value})
    unusual = StoredRecord(1, 500, encode(message, 1, 500, 0), 0)
    receipts = Receipts(" 1 2 3 0 b 4 ", -1, 1000, ATTEMPTS_MAX)
    found = [common, unusual, common]
    room = Room(9, 1 << 20)
    run = CONVERTER.run(TOPIC, found, 0, room, wanted=None, receipts=receipts)
    assert (len(run.items), run.end) == (1, 1)
    run = CONVERTER.run(TOPIC, found, 1, room, wanted=None, receipts=receipts)
    assert run == Run([], [], 0, 1)


def test_a_record_cut_anywhere_is_left_to_the_python_path() -> None:
    data = encode(Message("t", 0, b"body", b"a\x01b\x02"), 0, 0, 0)
    for end in range(len(data)):
        found = [StoredRecord(0, 0, data[:end], 0)]
        run = CONVERTER.run(TOPIC, found, 0, Room(1, 1), wanted=None)
        assert run == Run([], [], 0, 0)


def test_large_bodies_have_the_same_digests() -> None:
    bodies = [bytes([n]) * size for n, size in enumerate((0, 55, 56, 64, 4 << 20, 70_000, 1024))]
    found = [
        StoredRecord(n, n, encode(Message("t", 0, body), n, n, 0), 0)
        for n, body in enumerate(bodies * 3)
    ]
    room = Room(len(found), 1 << 30)
    run = CONVERTER.run(TOPIC, found, 0, room, wanted=None)
    assert run == by_python(found, room, None, None, None)


def test_the_switch_selects_the_python_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")
    converter = run_converter(load())
    assert converter == RunConverter(None)
    found = [StoredRecord(0, 0, encode(Message("t", 0, b"body"), 0, 0, 0), 0)]
    assert converter.run(TOPIC, found, 0, Room(1, 1), wanted=None) == Run([], [], 0, 0)
