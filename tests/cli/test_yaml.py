"""YAML of documents: what it looks like, and that no text is taken for another value."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cometmq.cli.yaml import yaml_lines

_SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=12)
_DOCUMENTS = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


def test_a_document_is_written_in_block_style() -> None:
    document = {
        "topic": "orders",
        "queues": [{"queue": 0, "messages": 3, "tags": []}, {"queue": 1, "empty": {}}],
        "nested": [["a", "b"], []],
        "ratio": 0.5,
        "none": None,
        "yes": True,
        "time": "2026-11-22 10:00",
        "number": "12",
        "address": "127.0.0.1:8081",
        "path": "/var/lib/cometmq store",
        "text": 'a "quoted"\nline: #1',
    }
    assert list(yaml_lines(document)) == [
        "topic: orders",
        "queues:",
        "  - queue: 0",
        "    messages: 3",
        "    tags: []",
        "  - queue: 1",
        "    empty: {}",
        "nested:",
        "  - - a",
        "    - b",
        "  - []",
        "ratio: 0.5",
        "none: null",
        '"yes": true',
        'time: "2026-11-22 10:00"',
        'number: "12"',
        'address: "127.0.0.1:8081"',
        "path: /var/lib/cometmq store",
        'text: "a \\"quoted\\"\\nline: #1"',
    ]


@pytest.mark.parametrize("text", ["", "no", "Null", "~", "1e3", "0x1F", "- a", "a: b", "a ", "*"])
def test_text_that_is_something_else_in_yaml_is_quoted(text: str) -> None:
    assert list(yaml_lines(text)) == [json.dumps(text)]


@given(_DOCUMENTS)
def test_a_document_reads_back(document: Any) -> None:
    lines = list(yaml_lines(document))
    assert all(line.isprintable() for line in lines if line.isascii())
    assert yaml.safe_load("\n".join(lines)) == document
