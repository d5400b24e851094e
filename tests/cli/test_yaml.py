"""YAML of documents: what it looks like, and that no text is taken for another value."""

from __future__ import annotations

import json
from typing import Any

import pytest
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


def read(lines: list[str]) -> Any:
    """Read what `yaml_lines` writes: blocks by indentation, scalars that are JSON or plain."""
    if lines[0].startswith("- "):
        items = blocks(lines, lambda line: not line.startswith(" "))
        return [read([item[0][2:], *(line[2:] for line in item[1:])]) for item in items]
    key, colon, rest = entry(lines[0])
    if colon and (rest or len(lines) > 1):
        found = {}
        for block in blocks(lines, lambda line: not line.startswith(" ")):
            key, _, rest = entry(block[0])
            found[key] = read([rest] if rest else [line[2:] for line in block[1:]])
        return found
    return scalar(lines[0])


def entry(line: str) -> tuple[str, str, str]:
    """Split `key: value`; a scalar has no colon outside quotes."""
    if not line.startswith('"'):
        key, colon, rest = line.partition(":")
        return (key, colon, rest.strip()) if rest[:1] in ("", " ") else (line, "", "")
    key, end = json.JSONDecoder().raw_decode(line)
    rest = line[end:]
    return key, rest[:1], rest[1:].strip()


def blocks(lines: list[str], starts: Any) -> list[list[str]]:
    found: list[list[str]] = []
    for line in lines:
        found.append([line]) if starts(line) else found[-1].append(line)
    return found


def scalar(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        assert text[0].isalpha() or text[0] == "/"
        assert text.lower() not in ("true", "false", "null", "yes", "no", "on", "off")
        return text


@given(_DOCUMENTS)
def test_a_document_reads_back(document: Any) -> None:
    lines = list(yaml_lines(document))
    assert all(line.isprintable() for line in lines if line.isascii())
    assert read(lines) == document
