"""JSON with bare keys: every recorded document, any document, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting.bare_json import BareJsonError, QueueKey, dumps, loads
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
    *("nul", "+1", "01x", "1 2", '"\\x"', '"', "NaN", "[" * 100_000, '{"a":' * 40, "{" * 40),
    *("1" * 400, '{{"brokerName":"b","queueId":true,"topic":"T"}:1}'),
)


@pytest.mark.parametrize("text", REFUSED)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(BareJsonError):
        loads(text.encode())
