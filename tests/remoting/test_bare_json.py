"""JSON with bare keys: every recorded document, any document, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting.bare_json import (
    BareJsonError,
    QueueKey,
    as_bool,
    as_enum,
    as_int,
    as_text,
    dumps,
    loads,
)
from cometmq.tests.remoting.recordings import frames, scenarios

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
keys = st.builds(QueueKey, texts, st.integers(0, 99), texts)
plain = st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 63) | texts
documents = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(texts | st.integers(0, 9) | keys, inner, max_size=4)
    ),
    max_leaves=20,
)


@given(documents)
def test_any_document_survives(document: Any) -> None:
    assert loads(dumps(document)) == document


@given(st.recursive(plain | st.floats(allow_nan=False, allow_infinity=False), st.lists))
def test_standard_json_is_read_as_the_standard_module_reads_it(document: Any) -> None:
    assert loads(json.dumps(document, indent=1).encode()) == document


def test_names_and_texts_are_read_as_fastjson_reads_them() -> None:
    text = b"""{name:'it\\'s "so"', $x_1: ['\\u00e9', ''], "n":1}"""
    assert loads(text) == {"name": 'it\'s "so"', "$x_1": ["\u00e9", ""], "n": 1}
    assert loads(b'"\\x4a\\v\\7\\#\\\'\\/\t"') == "J\v\7#'/\t"
    assert loads(b"""'\\"\\\\"'""") == '"\\"'
    for wrong in (b'"\\q"', b"{a b:1}", b"{'a:1}", b"{:1}", b"{a}"):
        with pytest.raises(BareJsonError):
            loads(wrong)


@pytest.mark.parametrize(
    ("value", "number", "text", "truth"),
    [
        ("1795839709992", 1795839709992, "1795839709992", False),
        ("1,000", 1000, "1,000", False),
        ("5.9", 5, "5.9", False),
        ("1e3", 1000, "1e3", False),
        ("1e30", None, "1e30", False),
        (-1, -1, "-1", True),
        (1.0, 1, "1.0", False),
        (5, 5, "5", False),
        (1, 1, "1", True),
        (2.9, 2, "2.9", False),
        (True, 1, "true", True),
        ("TRUE", None, "TRUE", True),
        ("", None, "", None),
        (None, None, None, None),
        ([1], None, None, None),
        ("9" * 19, None, "9" * 19, False),
    ],
)
def test_values_are_converted_as_fastjson_converts_them(
    value: Any, number: int | None, text: str | None, truth: bool | None
) -> None:
    assert (as_int(value), as_text(value), as_bool(value)) == (number, text, truth)


def test_enums_are_read_by_name_and_by_ordinal() -> None:
    assert [as_enum(value, ("A_B",)) for value in ("a_b", "AB", "a-b", "A B", "A.B")] == [
        *("A_B", "A_B", "A_B", "A_B", "")
    ]
    names = ("A", "B")
    assert [as_enum(value, names) for value in ("B", "b", 1, "1", 2, -1, "C", None)] == [
        *("B", "B", "B", "B", "", "", "", "")
    ]


def test_bare_keys_are_written_as_java_writes_them() -> None:
    assert dumps({0: "h:1", 1: "h:2"}) == b'{0:"h:1",1:"h:2"}'
    document = {QueueKey("b", 0, "T"): [5]}
    assert dumps(document) == b'{{"brokerName":"b","queueId":0,"topic":"T"}:[5]}'


def test_recorded_documents_are_read_and_written_again() -> None:
    bare = 0
    for scenario in scenarios():
        for recorded in frames(scenario):
            body = recorded.command.body
            if not (body.startswith(b"{") and body.endswith(b"}")):
                continue
            document = loads(body)
            assert loads(dumps(document)) == document
            bare += b":{{" in body or b":{0:" in body
    assert bare > 10


REFUSED = (
    *("", " ", "{", "[1", "{,}", "[1,]", '{"a"}', '{"a":}', "{1.5:2}", "{{}:1}", '{{"a":1}:1}'),
    *("nul", "01x", "1 2", '"\\x"', '"', "NaN", "[" * 100_000, '{"a":' * 40, "{" * 40),
    *("1" * 400, '{{"brokerName":"b","queueId":"x","topic":"T"}:1}'),
)


@pytest.mark.parametrize("text", REFUSED)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(BareJsonError):
        loads(text.encode())
