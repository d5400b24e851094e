"""Offset ids and unique keys."""

from __future__ import annotations

from datetime import datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.store.format.message_id import OffsetId, UniqueKey
from cometmq.store.format.record import pack_host

addresses = st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)


def test_worked_examples() -> None:
    """Store format, E9."""
    host = pack_host("127.0.0.1", 10911)
    assert str(OffsetId(host, 139)) == "7F00000100002A9F000000000000008B"
    host = pack_host("2001:db8::1", 10911)
    text = "20010DB800000000000000000000000100002A9F000000000000008B"
    assert str(OffsetId(host, 139)) == text
    assert OffsetId.parse(text) == OffsetId(host, 139)
    key = UniqueKey.parse("0A010203109218B4AAC2496ED47B0000")
    assert key == UniqueKey(bytes([10, 1, 2, 3]), 4242, 0x18B4AAC2, 1_232_000_123, 0)


def ms(*fields: int) -> int:
    return int(datetime(*fields).timestamp()) * 1000  # type: ignore[arg-type]


def test_the_time_of_a_unique_key() -> None:
    key = UniqueKey(bytes(4), 1, 2, 86_400_000 + 5, 0)
    assert key.born_ms(ms(2023, 11, 20)) == ms(2023, 11, 2) + 5
    assert key.born_ms(ms(2023, 11, 1, 12)) == ms(2023, 10, 2) + 5, "of the month before"
    assert key.born_ms(ms(2023, 1, 1, 12)) == ms(2022, 12, 2) + 5


@settings(deadline=None)
@given(addresses, st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1))
def test_offset_ids_round_trip(address: bytes, port: int, offset: int) -> None:
    wanted = OffsetId(address + port.to_bytes(4, "big", signed=True), offset)
    assert OffsetId.parse(str(wanted)) == wanted


@settings(deadline=None)
@given(addresses, *[st.integers(0, (1 << bits) - 1) for bits in (16, 31, 32, 16)])
def test_unique_keys_round_trip(
    address: bytes, process: int, loader: int, month_ms: int, counter: int
) -> None:
    wanted = UniqueKey(address, process, loader, month_ms, counter)
    assert UniqueKey.parse(str(wanted)) == wanted


@settings(deadline=None)
@given(st.text(max_size=60) | st.text("0123456789abcdefABCDEF_ ", min_size=32, max_size=32))
def test_arbitrary_text_is_parsed_or_rejected(text: str) -> None:
    for kind in (OffsetId, UniqueKey):
        found = kind.parse(text)
        assert found is None or str(found) == text.upper()
