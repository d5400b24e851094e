"""Properties, Java's string hash and tags codes (docs/formats/store-format.md, sections 2.4 and
3.2)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.store.format.properties import (
    decode_properties,
    encode_properties,
    java_hash,
    property_value,
    tags_code,
    whole_number,
)

names = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)


@given(st.dictionaries(names, names))
def test_what_is_encoded_is_decoded(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


def test_properties_are_read_as_rocketmq_does() -> None:
    assert decode_properties(b"a\x01b\x02c\x01d") == {"a": "b", "c": "d"}  # a missing end
    assert decode_properties(b"a\x01\x02\x01b\x02ab\x02k\x01v\x01w\x02") == {"k": "v\x01w"}
    assert decode_properties(b"k\x011\x02k\x012\x02") == {"k": "2"}
    assert decode_properties(b"") == {}
    assert encode_properties({"TRACE_CONTEXT": ""}) == b"TRACE_CONTEXT\x01\x02"


@pytest.mark.parametrize(
    "bad", [{"a\x01": "b"}, {"a\x02": "b"}, {"a": "b\x02"}, {"a\x01b\x02c": "d"}]
)
def test_a_separator_in_a_property_is_refused(bad: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="separator"):
        encode_properties(bad)


def test_a_name_end_in_a_value_belongs_to_the_value() -> None:
    assert decode_properties(encode_properties({"a": "b\x01c"})) == {"a": "b\x01c"}


pieces = st.lists(
    st.sampled_from([b"TAGS", b"TAG", b"\x01", b"\x02", b"a", b"KEYS", b"\x02TAGS\x01"])
)


@given(pieces.map(b"".join))
def test_one_value_is_the_value_of_the_whole(data: bytes) -> None:
    whole = decode_properties(data)
    assert property_value(data, b"TAGS").decode() == whole.get("TAGS", "")
    expected = java_hash(whole["TAGS"]) if "TAGS" in whole else 0
    assert tags_code("Topic", data, 5) == expected
    assert tags_code("Topic", data, 5) == expected  # again, from what is remembered


@given(st.text(st.sampled_from("0123456789-+ _\u00b2\u0663"), max_size=22) | st.integers().map(str))
def test_a_whole_number_is_a_java_long_in_ascii_digits(text: str) -> None:
    valid = re.fullmatch("[0-9]{1,19}", text) is not None and int(text) < 1 << 63
    assert whole_number(text) == (int(text) if valid else None)
    assert whole_number(text.encode()) == whole_number(text)


def test_a_very_long_number_is_not_a_whole_number() -> None:
    assert whole_number("9" * 100_000) is None


def test_java_hash() -> None:
    assert java_hash("") == 0
    assert java_hash("TagA") == 2598919
    assert java_hash("polygenelubricants") == -(1 << 31)
    assert java_hash("AaAa") == java_hash("BBBB")
    assert java_hash("😀") == 0xD83D * 31 + 0xDE00  # two UTF-16 units


@given(st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=30))
def test_java_hash_is_the_sum_of_powers(text: str) -> None:
    value = sum(ord(c) * 31 ** (len(text) - 1 - i) for i, c in enumerate(text)) & 0xFFFFFFFF
    assert java_hash(text) == (value - (1 << 32) if value >> 31 else value)


def test_scheduled_records_carry_their_time() -> None:
    level_3 = encode_properties({"DELAY": "3", "TAGS": "TagA"})
    assert tags_code("SCHEDULE_TOPIC_XXXX", level_3, 1_700_000_000_123) == 0x18BCFE58F8B
    assert tags_code("SCHEDULE_TOPIC_XXXX", encode_properties({"DELAY": "99"}), 0) == 7_200_000
    for value in ("0", "-1", "x"):
        data = encode_properties({"DELAY": value, "TAGS": "TagA"})
        assert tags_code("SCHEDULE_TOPIC_XXXX", data, 0) == 2598919
    assert tags_code("Other", level_3, 0) == 2598919
